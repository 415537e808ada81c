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
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.aggregate import AggregateSpec
from everflow.operators.folds.folding import parts
from everflow.operators.folds.over_layout import Layout, OverLayout
from everflow.operators.grouping import Tasks
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.sliding.sliding_book import SlidingBook, stored_windows
from everflow.operators.sliding.sliding_fold import Contributions, SlidingFold, in_turn, updates_of
from everflow.operators.turns import Turns, turns_of
from everflow.operators.user_code import function_failure, require_users
from everflow.records import EdgeBatch, Int64, StoreChanges, TasksResult
from everflow.serdes.windowed import python_keys, window_store_keys, windowed_key_type
from everflow.topology.graph import Inputs
from everflow.windows import SlidingWindows

_LOG_ENTRIES = 1 << 18
"""As many are folded at a time: a record is in as many windows as there are records near it, and
the log of a whole batch of one key would take gigabytes."""


@dataclass(frozen=True)
class _Sliding(OverLayout[Layout]):
    """What both have in common: ``layout`` is the same aggregate without windows."""

    windows: SlidingWindows
    retention_ms: int
    """Of the store: what it does not show any more is not extended, as in Kafka Streams."""
    emit_every_update: bool = field(default=False, kw_only=True)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: folds the records into the stored windows; the last result per
        window, or every one."""
        (batch,) = inputs.sides
        views = {partition: views[self.store] for partition, views in inputs.stores.items()}
        return self._results(
            _Run.begin(batch, self, Tasks(batch.partition, views, inputs.stream_times))
        )

    def _results(self, run: _Run) -> TasksResult:
        raise NotImplementedError


@dataclass(frozen=True)
class SlidingAggregateSpec(_Sliding[AggregateSpec]):
    """Built-in aggregates per key and sliding window."""

    def _results(self, run: _Run) -> TasksResult:
        layout, book = self.layout, run.book
        known = layout.value_serde.decode_array(pa.array(run.stored, pa.binary()))
        inputs = layout.inputs_of(run.batch.value, lambda column: column)
        states = layout.state_columns_of(known)
        folds = [
            SlidingFold(layout.columns[part], states[part], inputs[part])
            for part in parts(layout.columns)
        ]
        every: list[pa.Array] = []
        for _ in run.take_each_record():
            if len(book.windows) >= _LOG_ENTRIES:
                self._fold(run, folds, every)
        self._fold(run, folds, every)
        final = run.final()
        after = [state.take(pa.array(final)) for one in folds for state in one.states]
        written = layout.value_serde.encode_array(layout.state_of(after)).to_pylist()
        changes = run.changes(self.store, final, written)
        if self.emit_every_update:
            return run.every_result(changes, pa.concat_arrays(every))
        return run.last_results(changes, final, layout.finish(after))

    def _fold(self, run: _Run, folds: list[SlidingFold], every: list[pa.Array]) -> None:
        """Fold the book's log into the states; what its updates show comes to ``every``."""
        run.note_updates()
        log = Contributions.of(run.book, len(folds[0].states[0]))
        shown: list[pa.Array] = []
        with self.layout.failing(run.batch, log.rows):
            for one in folds:
                shown += one.take(log, len(run.book.keys), every=run.every)
        if run.every:
            every.append(self.layout.finish(shown))
        run.book.begin_log()


@dataclass(frozen=True)
class SlidingFunctionSpec(_Sliding[PythonAggregateSpec]):
    """Functions of the user per key and sliding window, one call per record and window. None = the
    window is deleted. Raises UserFunctionError naming the record."""

    def _results(self, run: _Run) -> TasksResult:
        """Calls the functions record by record."""
        batch, book, serde = run.batch, run.book, self.value_serde
        known = serde.decode_array(pa.array(run.stored, pa.binary())).to_pylist()
        states: dict[int, Any] = dict(enumerate(known))
        every: list[bytes | None] = []
        keys, values = python_keys(batch.key), batch.value.to_pylist()
        aggregator = self.layout.aggregator
        logged = copied = 0
        for row in run.take_each_record():
            try:
                for copy in book.copies[copied:]:
                    # Aggregates may be changed in place, so a copy is read from bytes.
                    states[copy.child] = serde.decode(serde.encode(states[copy.parent]))
                for window, is_copy in in_turn(book, logged, copied):
                    if not is_copy:
                        before = states.get(window)
                        states[window] = after = aggregator(keys[row], values[row], before)
                        if after is None:
                            book.remove(window)
                    if self.emit_every_update:
                        every.append(serde.encode(states[window]))
            except BaseException as error:
                require_users(error)
                raise function_failure(self.store, batch, row, error) from error
            logged, copied = len(book.windows), len(book.copies)
            if logged >= _LOG_ENTRIES:
                run.note_updates()
                book.begin_log()
                logged = copied = 0
        run.note_updates()
        final = run.final()
        after = self._written(run, final, [states[window] for window in final.tolist()])
        changes = run.changes(self.store, final, after)
        if self.emit_every_update:
            return run.every_result(changes, serde.decode_array(pa.array(every, pa.binary())))
        return run.last_results(changes, final, serde.decode_array(pa.array(after, pa.binary())))

    def _written(self, run: _Run, final: Int64, states: list[Any]) -> list[bytes | None]:
        found: list[bytes | None] = []
        try:
            for state in states:
                found.append(self.value_serde.encode(state))
        except BaseException as error:
            require_users(error)
            row = int(run.last_rows[final[len(found)]])
            raise function_failure(self.store, run.batch, row, error) from error
        return found


@dataclass(kw_only=True)
class _Run:
    """One batch: its keys, its book of windows, and how results are shaped. Tasks take turns.

    ``stored``: stored value bytes, by window. ``last_rows``, ``last_times`` and ``last_turns``: of
    the last update of each window, its record, the window's latest record time, and its number
    among all updates, -1 = none. ``shown``: windows, rows and times of all updates, kept where
    every one is given.
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
    shown: list[Int64] = field(default_factory=list)

    @staticmethod
    def begin(batch: EdgeBatch, spec: _Sliding[Any], tasks: Tasks) -> _Run:
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

    def note_updates(self) -> None:
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
