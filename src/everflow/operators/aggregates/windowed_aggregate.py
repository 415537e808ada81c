"""Aggregates over windows that depend on the records before: sessions, sliding and count windows.

An assigner, the book, says which windows each record goes into. The values are folded over that: in
columns for built-in aggregates, record by record with functions of the user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow import serdes
from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    FunctionFold,
    PythonAggregateSpec,
    Step,
)
from everflow.operators.grouping import (
    AroundTable,
    Groups,
    KeyedRows,
    changes_by_task,
    grouped,
    stored,
    stream_times,
    turns_of,
    windowed_keys,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int64, StoreChanges, TasksResult, valid
from everflow.serdes.windowed import START_BYTES, STORE_SUFFIX_BYTES, python_keys, windowed_key_type
from everflow.topology.graph import Inputs

Layout = AggregateSpec | PythonAggregateSpec


@dataclass(frozen=True)
class WindowedAggregate(AroundTable):
    """``layout``: the aggregate without these windows. The last result per window, or every one."""

    layout: Layout
    emit_every_update: bool = field(default=False, kw_only=True)

    @property
    def result_key(self) -> pa.DataType:
        return windowed_key_type(self.key_serde.type)

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        layout = self.layout
        run = self._begin(batch, inputs)
        if isinstance(layout, AggregateSpec):
            for _ in run.take_each_record():
                pass
            final = run.final()
            return run.result(final, *run.folded(layout, final.windows))
        rows = np.arange(len(batch), dtype=np.int64)
        keys, values = python_keys(batch.key), batch.value.to_pylist()
        fold = FunctionFold(layout, batch, rows, keys, values, run.known().to_pylist())
        fold.take(
            run.steps(),
            begin=self._copied,
            remove=lambda _, window: run.book.remove(window),
            every=self.emit_every_update,
        )
        final = run.final()
        return run.result(final, *fold.results(final.windows.tolist(), final.rows.tolist()))

    def _begin(self, batch: EdgeBatch, inputs: Inputs) -> WindowRun:
        raise NotImplementedError

    def _copied(self, key: Any, parents: list[Any]) -> Any:
        """The aggregate of a new window that begins with those of its parents."""
        raise NotImplementedError


class Book(ABC):
    """The windows of a batch's keys: intervals, no values. A window is a number: first those that
    were stored, then the new ones.

    ``keys``, ``starts``: by window. ``stream_time`` and ``newest_ms`` (ms) are those of the task
    whose records come next, and of its store. ``late``: how much was dropped.
    """

    def __init__(self) -> None:
        self.stream_time = self.newest_ms = -1
        self.late = 0
        self.keys: list[int] = []
        self.starts: list[int] = []

    @abstractmethod
    def add(self, key: int, time: int, row: int) -> bool:
        """Take a record; False if it is late."""

    @abstractmethod
    def remove(self, window: int) -> None:
        """A window whose aggregate became null with the record that was taken last."""


class Final(NamedTuple):
    """The windows that the batch has updated: number, last update and row of each."""

    windows: Int64
    at: Int64
    rows: Int64


class WindowRun(ABC):
    """One batch: its keys, its book, and how results are shaped. Tasks take turns."""

    book: Book

    def __init__(
        self, spec: WindowedAggregate, batch: EdgeBatch, inputs: Inputs, *, skip_null_values: bool
    ) -> None:
        self.batch, self.spec, self.every = batch, spec, spec.emit_every_update
        self.found = turns_of(
            batch, spec.key_serde, spec.store, skip_null_values=skip_null_values
        )
        self.views = {one: views[spec.store] for one, views in inputs.stores.items()}
        self.stored: list[bytes] = []
        """Stored value bytes, by window."""
        self.stream_times = dict(inputs.stream_times)
        self._newest_ms = {partition: view.newest_ms for partition, view in self.views.items()}

    def known(self) -> pa.Array:
        """The stored values, by window."""
        return self.spec.value_serde.decode_array(pa.array(self.stored, pa.binary()))

    def take_each_record(self) -> Iterator[int]:
        """Puts every record into its windows; yields the row of each that is not late."""
        book = self.book
        for turn in self.found.turns:
            book.stream_time = self.stream_times[turn.partition]
            book.newest_ms = self._newest_ms[turn.partition]
            times = self.batch.timestamp[turn.rows].tolist()
            for row, code, time in zip(turn.rows.tolist(), turn.codes.tolist(), times, strict=True):
                if book.add(code, time, row):
                    yield row
            self.stream_times[turn.partition] = book.stream_time

    @abstractmethod
    def steps(self) -> Iterator[Step]:
        """What each record does to windows, as `take_each_record` takes it."""

    @abstractmethod
    def final(self) -> Final:
        """What the batch has come to. Two windows may be the same: one that the store showed no
        more, and one that began anew; the newer one counts."""

    @abstractmethod
    def folded(self, layout: AggregateSpec, windows: Int64) -> tuple[pa.Array, pa.Array]:
        """Stored bytes of these windows, and what is shown: their results, or each update's."""

    @abstractmethod
    def result(self, final: Final, entries: pa.Array, shown: pa.Array) -> TasksResult:
        """Of what `folded` has given."""

    def changes(
        self, keys: Int64, stored_keys: pa.Array, entries: pa.Array, times: Int64
    ) -> dict[int, list[StoreChanges]]:
        """Each task's changes; ``keys``: the codes of the keys."""
        return changes_by_task(
            self.spec.store, self.found.owners[keys], stored_keys, entries, np.ascontiguousarray(times)
        )

    def shaped(
        self,
        changes: dict[int, list[StoreChanges]],
        rows: Int64,
        bounds: tuple[Int64, Int64],
        times: Int64,
        values: pa.Array,
    ) -> TasksResult:
        batch = self.batch.take(rows)
        output = batch.with_columns(windowed_keys(batch.key, *bounds), values)
        output.timestamp = np.ascontiguousarray(times)
        dropped = {**self.found.dropped, "late": self.book.late}
        return TasksResult(output, changes, self.stream_times, dropped)


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
class CountWindowSpec(AroundTable):
    """``layout``: the aggregate, whose windows are over record numbers; ``numbers``: the store of
    how many records of each key there were.

    ``early``: of a window that is not complete each ``early``-th update is a result, 0: none; `
    EACH_UPDATE`: all, as with ``emit_every_update``. The update that completes a window
    is always one, and then the window leaves the store. A result has the latest time of its
    window's records.
    """

    layout: Layout
    numbers: str
    early: int = EACH_UPDATE
    emit_every_update: bool = False

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`; a result has the headers of the record that made it."""
        (batch,) = inputs.sides
        windows = self.layout.window
        assert windows is not None
        rows = np.flatnonzero(valid(batch.key))
        dropped = {"null-key": batch.key.null_count}
        owners = batch.partition[rows]
        _, after = stream_times(batch.timestamp[rows], owners, inputs.stream_times)
        keys = written_bytes(self.key_serde, batch.key, self.store, batch).take(rows)
        by_key = grouped(KeyedRows(rows, keys, owners, None), None, after, dropped)
        numbers, counted = self._numbered(batch, by_key, inputs)
        at, starts = windows.expand(numbers)
        given = KeyedRows(rows[at], keys.take(at), owners[at], starts)
        groups = grouped(given, windows, after, dropped)
        # The keys of a key-value store: without a window store's sequence number.
        groups.keys = [key[:-_SEQUENCE_BYTES] for key in groups.keys]
        positions = numbers[at] - starts + 1
        every = self.emit_every_update or self.early > EACH_UPDATE
        done = replace(self.layout, emit_every_update=every).folded(batch, groups, inputs)
        last = positions if every else positions[np.sort(groups.last)]
        shown = done.output.take(np.flatnonzero(self._shown(last, windows.size_ms)))
        complete = positions[groups.last] == windows.size_ms
        changes = {
            partition: [*_without(done.changes[partition], complete[part]), *counted[partition]]
            for partition, part in groups.parts
        }
        return TasksResult(shown, changes, after, dropped)

    def _numbered(
        self, batch: EdgeBatch, groups: Groups, inputs: Inputs
    ) -> tuple[Int64, dict[int, list[StoreChanges]]]:
        """The number of each record among its key's, and the changes of the numbers' store."""
        known = stored(groups.entries(inputs, self.numbers), _COUNT)
        counts: Int64 = known.values.fill_null(0).to_numpy().astype(np.int64)
        order = np.argsort(groups.codes, kind="stable")
        many = np.bincount(groups.codes, minlength=len(groups))
        first = np.repeat(np.cumsum(many) - many, many)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order)) - first
        numbers += counts[groups.codes]
        times = known.timestamps
        np.maximum.at(times, groups.codes, batch.timestamp[groups.rows])
        written = _COUNT.encode_array(pa.array(counts + many)).to_pylist()
        return numbers, groups.changes(self.numbers, written, times)

    def _shown(self, positions: Int64, size: int) -> npt.NDArray[np.bool_]:
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
