"""Aggregates over windows that depend on the records before: sessions, sliding and count windows.

An assigner says which windows each record goes into. What they hold is folded over that: in columns
for built-in aggregates, record by record with functions of the user (`FunctionFold`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow import serdes
from everflow.operators.aggregates.aggregate import AggregateSpec, PythonAggregateSpec
from everflow.operators.fold import valid
from everflow.operators.grouping import (
    Groups,
    KeyedRows,
    Tasks,
    grouped,
    read,
    stream_times,
)
from everflow.operators.user_code import function_failure, require_users, written_bytes
from everflow.records import EdgeBatch, Int64, StoreChanges, TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder
from everflow.serdes.windowed import START_BYTES, STORE_SUFFIX_BYTES, python_keys, windowed_key_type
from everflow.state.store import StoreView
from everflow.topology.graph import Inputs, TableOperator

Layout = TypeVar("Layout", bound=AggregateSpec | PythonAggregateSpec)


@dataclass(frozen=True)
class WindowedAggregate(TableOperator, Generic[Layout]):
    """``layout``: the aggregate as it is without these windows; it has the types and the store."""

    layout: Layout

    @property
    def store(self) -> str:
        return self.layout.store

    @property
    def key_serde(self) -> Serde:
        """The serde of the keys without their windows."""
        return self.layout.key_serde

    @property
    def value_serde(self) -> Serde:
        return self.layout.value_serde

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value."""
        return self.layout.result

    @property
    def result_key(self) -> pa.DataType:
        """Arrow type of the output's key."""
        return windowed_key_type(self.key_serde.type)

    @property
    def results(self) -> ResultDecoder:
        return self.layout.results


class WindowFold(Protocol):
    """The contents of a batch's windows. A window is a number, as its assigner gives it."""

    def take(self, row: int) -> None:
        """A record of the batch, which the assigner has just put into its windows."""

    def results(
        self, windows: Sequence[int], rows: Sequence[int]
    ) -> tuple[Sequence[bytes | None], pa.Array]:
        """Stored bytes of these windows, and what is shown: their results, or where every update is
        emitted that of each update. ``rows``: of the last record of each window."""


Step: TypeAlias = tuple[int, tuple[int, ...], bool, bool]
"""What a record does to a window, a plain tuple as there is one for each record: the window; the
windows whose aggregates it begins with, if it is new; whether the record goes into it; and whether
it is an update that is shown."""


class FunctionFold:
    """Functions of the user over a batch's windows, one call per record and window: a `WindowFold`.
    UserFunctionError naming the record."""

    def __init__(
        self,
        layout: PythonAggregateSpec,
        batch: EdgeBatch,
        stored: Sequence[bytes],
        *,
        steps: Callable[[], Iterable[Step]],
        begin: Callable[[Any, list[Any]], Any],
        remove: Callable[[int], None],
        every: bool,
        write_each: bool = False,
    ) -> None:
        """``steps``: those of the record that was taken last; ``begin``: makes the aggregate of a
        new window from its key and the aggregates of its parents; ``remove``: is told of windows
        whose aggregate has become None; ``every``: each update is emitted; ``write_each``: an
        aggregate that cannot be written fails at the record that made it so, not at its last."""
        known = layout.value_serde.decode_array(pa.array(stored, pa.binary())).to_pylist()
        self._layout, self._batch, self._aggregator = layout, batch, layout.aggregator
        self._encode = layout.value_serde.encode
        self._states: dict[int, Any] = dict(enumerate(known))
        self._keys, self._values = python_keys(batch.key), batch.value.to_pylist()
        self._steps, self._begin, self._remove = steps, begin, remove
        self._every: list[bytes | None] | None = [] if every else None
        self._written: dict[int, bytes | None] | None = {} if write_each else None

    def take(self, row: int) -> None:
        states, every, written = self._states, self._every, self._written
        key, value, aggregator = self._keys[row], self._values[row], self._aggregator
        try:
            for window, parents, takes, shown in self._steps():
                if parents:
                    states[window] = self._begin(key, [states[one] for one in parents])
                if takes:
                    states[window] = after = aggregator(key, value, states.get(window))
                    if after is None:
                        self._remove(window)
                # An aggregate may be changed in place, so each result is written down at once.
                if written is not None:
                    written[window] = data = self._encode(states[window])
                    if every is not None:
                        every.append(data)
                elif every is not None and shown:
                    every.append(self._encode(states[window]))
        except BaseException as error:
            require_users(error)
            raise function_failure(self._layout.store, self._batch, row, error) from error

    def results(
        self, windows: Sequence[int], rows: Sequence[int]
    ) -> tuple[Sequence[bytes | None], pa.Array]:
        if self._written is not None:
            found = [self._written[window] for window in windows]
        else:
            found = self._encoded(windows, rows)
        shown = pa.array(found if self._every is None else self._every, pa.binary())
        return found, self._layout.value_serde.decode_array(shown)

    def _encoded(self, windows: Sequence[int], rows: Sequence[int]) -> list[bytes | None]:
        found: list[bytes | None] = []
        try:
            for window in windows:
                found.append(self._encode(self._states[window]))
        except BaseException as error:
            require_users(error)
            row = rows[len(found)]
            raise function_failure(self._layout.store, self._batch, row, error) from error
        return found


# --- aggregates of windows over the records of a key: built-in ones and those with functions ------
# A key's records are numbered from 0, in processing order; the numbers take the place that times
# have in time windows (note 036). How many records of a key there were stands in a store of its
# own; the aggregates of windows that are not complete stand in the operator's store. Records with a
# null key are skipped; no record is late. So a result depends on the records alone, not on where a
# micro-batch was cut.


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
        """True for updates that are results; ``positions``: the window's record counts."""
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
