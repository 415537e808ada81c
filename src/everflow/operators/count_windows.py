"""Aggregates of windows over the records of a key: built-in ones and those with functions.

A key's records are numbered from 0, in processing order; the numbers take the place that times have
in time windows (note 036). How many records of a key there were stands in a store of its own; the
aggregates of windows that are not complete stand in the operator's store. Records with a null key
are skipped; no record is late. So a result depends on the records alone, not on where a micro-batch
was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow import serdes
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.fold import valid
from everflow.operators.grouping import (
    Groups,
    KeyedRows,
    Tasks,
    grouped,
    read,
    stream_times,
)
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.user_code import written_bytes
from everflow.operators.windowed_aggregate import WindowedAggregate
from everflow.records import EdgeBatch, Int64, StoreChanges, TasksResult
from everflow.serdes.windowed import START_BYTES, STORE_SUFFIX_BYTES
from everflow.state.store import StoreView
from everflow.topology.graph import Inputs

_SEQUENCE_BYTES = STORE_SUFFIX_BYTES - START_BYTES
_COUNT = serdes.long()
EACH_UPDATE = 1


@dataclass(frozen=True, kw_only=True)
class CountWindowSpec(WindowedAggregate[AggregateSpec | PythonAggregateSpec]):
    """``layout``: the aggregate, whose windows are over record numbers; ``numbers``: the store of
    how many records of each key there were.

    ``early``: of a window that is not complete each ``early``-th update is a result, 0: none; `
    EACH_UPDATE`: all, as with ``emit_every_update``. The update that completes a window
    is always one, and then the window leaves the store. A result has the latest time of its
    window's records.
    """

    numbers: str
    early: int = EACH_UPDATE
    emit_every_update: bool = False

    @property
    def result_key(self) -> pa.DataType:
        """Arrow type of the output's key."""
        return self.layout.result_key

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`; a result has the headers of the record that made it."""
        (batch,) = inputs.sides
        windows = self.layout.window
        assert windows is not None
        rows = np.flatnonzero(valid(batch.key))
        dropped = {"null-key": batch.key.null_count} if batch.key.null_count else {}
        owners = batch.partition[rows]
        _, after = stream_times(batch.timestamp[rows], owners, inputs.stream_times)
        keys = written_bytes(self.key_serde, batch.key, self.store, batch).take(pa.array(rows))
        by_key = grouped(KeyedRows(rows, keys, owners, None), None, after, dropped)
        numbers, counted = self._numbered(batch, by_key, inputs.stores)
        at, starts = windows.expand(numbers)
        given = KeyedRows(rows[at], keys.take(pa.array(at)), owners[at], starts)
        groups = grouped(given, windows, after, dropped)
        # The keys of a key-value store: without a window store's sequence number.
        groups.keys = [key[:-_SEQUENCE_BYTES] for key in groups.keys]
        positions = numbers[at] - starts + 1
        every = self.emit_every_update or self.early > EACH_UPDATE
        views = {partition: views[self.store] for partition, views in inputs.stores.items()}
        done = replace(self.layout, emit_every_update=every).folded(
            batch, groups, Tasks(batch.partition, views, inputs.stream_times)
        )
        last = positions if every else positions[np.sort(groups.last)]
        shown = done.output.take(np.flatnonzero(self._shown(last, windows.size_ms)))
        complete = positions[groups.last] == windows.size_ms
        changes = {
            partition: [*_without(done.changes[partition], complete[part]), *counted[partition]]
            for partition, part in groups.parts
        }
        return TasksResult(shown, changes, after, dropped)

    def _numbered(
        self,
        batch: EdgeBatch,
        groups: Groups,
        stores: Mapping[int, Mapping[str, StoreView]],
    ) -> tuple[Int64, dict[int, list[StoreChanges]]]:
        """The number of each record among its key's, and the changes of the numbers' store."""
        views = {partition: views[self.numbers] for partition, views in stores.items()}
        stored = read(groups, views, _COUNT)
        counts: Int64 = stored.values.fill_null(0).to_numpy().astype(np.int64)
        order = np.argsort(groups.codes, kind="stable")
        many = np.bincount(groups.codes, minlength=len(groups))
        first = np.repeat(np.cumsum(many) - many, many)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order)) - first
        numbers += counts[groups.codes]
        times = stored.timestamps
        np.maximum.at(times, groups.codes, batch.timestamp[groups.rows])
        written = _COUNT.encode_array(pa.array(counts + many)).to_pylist()
        return numbers, groups.changes(self.numbers, written, times)

    def _shown(self, positions: Int64, size: int) -> npt.NDArray[np.bool_]:
        """Which updates are results; ``positions``: how many records the window then has."""
        shown: npt.NDArray[np.bool_] = positions == size
        return shown | (positions % self.early == 0) if self.early else shown


def _without(changes: list[StoreChanges], complete: npt.NDArray[np.bool_]) -> list[StoreChanges]:
    """Changes of windows, of which the complete ones are deletions."""
    (one,) = changes
    values = [
        None if is_complete else value
        for value, is_complete in zip(one.values, complete.tolist(), strict=True)
    ]
    return [replace(one, values=values)]
