"""Aggregates of sliding windows: built-in ones and those with functions of the user (KIP-450).

As in Kafka Streams, a record is an update of every window that it lies in, and of those that it
makes; records with a null key or a null value are skipped; a result's time is the latest of its
window's records. Of a micro-batch the last result per window is given, or, with
``emit_every_update``, every one. A window's aggregate is that of its records in the order in which
they came: a new window begins with a copy of another's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from everflow.operators.aggregate import AggregateSpec
from everflow.operators.grouping import Tasks
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.sliding.sliding_book import SlidingBook, stored_windows
from everflow.operators.sliding.sliding_fold import (
    Contributions,
    SlidingFold,
    steps_from,
    updates_of,
)
from everflow.operators.turns import Turns, turns_of
from everflow.operators.windowed_aggregate import FunctionFold, Step, WindowedAggregate, WindowFold
from everflow.records import EdgeBatch, Int64, StoreChanges, TasksResult
from everflow.serdes.windowed import window_store_keys, windowed_key_type
from everflow.topology.graph import Inputs
from everflow.windows import SlidingWindows

_LOG_ENTRIES = 1 << 18
"""As many are folded at a time: a record is in as many windows as there are records near it, and
the log of a whole batch of one key would take gigabytes."""


@dataclass(frozen=True)
class SlidingAggregateSpec(WindowedAggregate[AggregateSpec | PythonAggregateSpec]):
    """Aggregates per key and sliding window. A function of the user is called once per record and
    window; None = the window is deleted."""

    windows: SlidingWindows
    retention_ms: int
    """Of the store: what it does not show any more is not extended, as in Kafka Streams."""
    emit_every_update: bool = field(default=False, kw_only=True)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: folds the records into the stored windows; the last result per window, or
        every one."""
        (batch,) = inputs.sides
        views = {partition: views[self.store] for partition, views in inputs.stores.items()}
        run = _Run.begin(batch, self, Tasks(batch.partition, views, inputs.stream_times))
        columns = _Columns(self.layout, run) if isinstance(self.layout, AggregateSpec) else None
        fold = columns or self._functions(run)
        for row in run.take_each_record():
            fold.take(row)
            if len(run.book.windows) >= _LOG_ENTRIES:
                run.end_log(columns)
        run.end_log(columns)
        final = run.final()
        values, shown = fold.results(final.tolist(), run.last_rows[final].tolist())
        changes = run.changes(self.store, final, values)
        if self.emit_every_update:
            return run.every_result(changes, shown)
        return run.last_results(changes, final, shown)

    def _functions(self, run: _Run) -> WindowFold:
        layout, serde = self.layout, self.value_serde
        assert isinstance(layout, PythonAggregateSpec)
        return FunctionFold(
            layout,
            run.batch,
            run.stored,
            steps=run.steps,
            # Aggregates may be changed in place, so a copy is read from bytes.
            begin=lambda _, parents: serde.decode(serde.encode(parents[0])),
            remove=run.book.remove,
            every=self.emit_every_update,
        )


class _Columns:
    """Built-in aggregates of sliding windows, folded as often as the book's log ends: a
    `WindowFold`."""

    def __init__(self, layout: AggregateSpec, run: _Run) -> None:
        known = layout.value_serde.decode_array(pa.array(run.stored, pa.binary()))
        inputs = layout.inputs_of(run.batch.value, lambda column: column)
        self._fold = SlidingFold(layout.columns, layout.state_columns_of(known), inputs)
        self._layout, self._run = layout, run
        self._every: list[pa.Array] = []

    def take(self, row: int) -> None:
        """See `WindowFold`."""

    def take_log(self) -> None:
        """Fold the book's log into the states."""
        run, layout = self._run, self._layout
        log = Contributions.of(run.book, len(self._fold.states[0]))
        with layout.failing(run.batch, log.rows):
            shown = self._fold.take(log, len(run.book.keys), every=run.every)
        if run.every:
            self._every.append(layout.finish(shown))

    def results(
        self, windows: Sequence[int], rows: Sequence[int]
    ) -> tuple[Sequence[bytes | None], pa.Array]:
        layout, at = self._layout, pa.array(windows, pa.int64())
        after = [state.take(at) for state in self._fold.states]
        written = layout.value_serde.encode_array(layout.state_of(after)).to_pylist()
        return written, pa.concat_arrays(self._every) if self._every else layout.finish(after)


@dataclass(kw_only=True)
class _Run:
    """One batch: its keys, its book of windows, and how results are shaped. Tasks take turns.

    ``stored``: stored value bytes, by window. ``last_rows``, ``last_times`` and ``last_turns``: of
    the last update of each window, its record, the window's latest record time, and its number
    among all updates, -1 = none. ``logged``, ``copied``: entries and copies of the book's log whose
    steps were taken. ``shown``: windows, rows and times of all updates, kept where every one is
    given.
    """

    batch: EdgeBatch
    span_ms: int
    every: bool
    found: Turns
    book: SlidingBook
    stored: list[bytes]
    newest_ms: dict[int, int]
    stream_times: dict[int, int]
    last_rows: Int64
    last_times: Int64
    last_turns: Int64
    updates: int = 0
    logged: int = 0
    copied: int = 0
    shown: list[Int64] = field(default_factory=list)

    @staticmethod
    def begin(batch: EdgeBatch, spec: SlidingAggregateSpec, tasks: Tasks) -> _Run:
        """Tell the keys apart and read what is stored of them."""
        found = turns_of(batch, spec.key_serde, spec.store, tasks, skip_null_values=True)
        book = SlidingBook(spec.windows, spec.retention_ms, len(found.keys))
        stored: list[bytes] = []
        for partition, part in found.parts:
            stored += stored_windows(book, spec.windows, found, part, tasks.stores[partition])
        none = np.empty(0, np.int64)
        return _Run(
            batch=batch,
            span_ms=spec.windows.difference_ms,
            every=spec.emit_every_update,
            found=found,
            book=book,
            stored=stored,
            newest_ms={partition: store.newest_ms for partition, store in tasks.stores.items()},
            stream_times=dict(tasks.stream_times),
            last_rows=none,
            last_times=none,
            last_turns=none,
        )

    def take_each_record(self) -> Iterator[int]:
        """Put every record into its windows; yields the row of each once its updates are in the
        book's log."""
        book = self.book
        for turn in self.found.turns:
            book.stream_time = self.stream_times[turn.partition]
            book.newest_ms = self.newest_ms[turn.partition]
            times = self.batch.timestamp[turn.rows].tolist()
            for row, code, time in zip(turn.rows.tolist(), turn.codes.tolist(), times, strict=True):
                book.add(code, time, row)
                yield row
            self.stream_times[turn.partition] = book.stream_time

    def steps(self) -> list[Step]:
        """Of the record that was taken last."""
        book, logged, copied = self.book, self.logged, self.copied
        self.logged, self.copied = len(book.windows), len(book.copies)
        return steps_from(book, logged, copied)

    def end_log(self, columns: _Columns | None) -> None:
        """Begin another log, when the updates in this one are noted and folded."""
        self._note_updates()
        if columns is not None:
            columns.take_log()
        self.book.begin_log()
        self.logged = self.copied = 0

    def _note_updates(self) -> None:
        """Remember the updates in the book's log: the last one of each window, or all."""
        windows, rows, times = updates = updates_of(self.book)
        more = len(self.book.keys) - len(self.last_rows)
        for name, last in zip(
            ("last_rows", "last_times", "last_turns"),
            (rows, times, self.updates + np.arange(len(rows))),
            strict=True,
        ):
            known = np.concatenate([getattr(self, name), np.full(more, -1)])
            known[windows] = last  # the last assignment wins
            setattr(self, name, known)
        self.updates += len(rows)
        if self.every:
            self.shown.append(np.stack(updates))

    def final(self) -> Int64:
        """The windows with an update, in the order of their last ones. Two may be the same: one
        that the store showed no more, and one that began anew; the newer one counts."""
        changed = np.flatnonzero(self.last_turns >= 0)
        keys, starts = self._bounds(changed)
        order = np.lexsort((changed, starts, keys))
        newest = np.ones(len(order), bool)
        newest[:-1] = (np.diff(keys[order]) != 0) | (np.diff(starts[order]) != 0)
        found = changed[order[newest]]
        return found[np.lexsort((self.last_turns[found], self.last_rows[found]))]

    def changes(
        self, store: str, final: Int64, values: Sequence[bytes | None]
    ) -> dict[int, list[StoreChanges]]:
        """Each task's ``values`` of its windows."""
        keys, starts = self._bounds(final)
        own = pa.array(self.found.keys, pa.binary()).take(pa.array(keys))
        stored_keys = window_store_keys(own, starts).to_pylist()
        owners = np.array(self.found.owners, np.int64)[keys]
        changes: dict[int, list[StoreChanges]] = {}
        for partition in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == partition)
            places = mine.tolist()
            changes[partition] = [
                StoreChanges(
                    store,
                    [stored_keys[at] for at in places],
                    [values[at] for at in places],
                    self.last_times[final[mine]],
                )
            ]
        return changes

    def last_results(
        self, changes: dict[int, list[StoreChanges]], final: Int64, values: pa.Array
    ) -> TasksResult:
        """``values``, the results of the windows ``final``."""
        return self._result(changes, final, self.last_rows[final], self.last_times[final], values)

    def every_result(self, changes: dict[int, list[StoreChanges]], values: pa.Array) -> TasksResult:
        """``values``, what each update shows."""
        shown = [np.empty((3, 0), np.int64), *self.shown]
        windows, rows, times = np.concatenate(shown, axis=1)
        order = np.argsort(rows, kind="stable")
        values = values.take(pa.array(order))
        return self._result(changes, windows[order], rows[order], times[order], values)

    def _result(
        self,
        changes: dict[int, list[StoreChanges]],
        windows: Int64,
        rows: Int64,
        times: Int64,
        values: pa.Array,
    ) -> TasksResult:
        _, starts = self._bounds(windows)
        batch = self.batch.take(rows)
        columns = [batch.key, pa.array(starts), pa.array(starts + self.span_ms)]
        key = pa.StructArray.from_arrays(
            columns, fields=list(windowed_key_type(self.batch.key.type))
        )
        output = batch.with_columns(key, values)
        output.timestamp = np.ascontiguousarray(times)
        dropped = dict(self.found.dropped)
        if self.book.late:
            dropped["late"] = self.book.late
        return TasksResult(output, changes, self.stream_times, dropped)

    def _bounds(self, windows: Int64) -> tuple[Int64, Int64]:
        """Codes of the keys, and the starts, of windows."""
        keys, starts = (np.array(column, np.int64) for column in (self.book.keys, self.book.starts))
        return keys[windows], starts[windows]
