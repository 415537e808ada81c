"""Aggregates over windows that depend on the records before: sessions, sliding and count
windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import chain, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from everflow import serdes
from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    FunctionFold,
    PythonAggregateSpec,
    PythonReducer,
    Step,
)
from everflow.operators.aggregates.folds import GroupValues, Merge
from everflow.operators.grouping import (
    AroundTable,
    Flags,
    Groups,
    KeyedRows,
    changes_by_task,
    counted,
    extent,
    grouped,
    rows_by_task,
    stored,
    stream_times,
    windowed_keys,
)
from everflow.operators.user_code import written_bytes
from everflow.records import LATE, EdgeBatch, Int64, StoreChanges, TasksResult, valid
from everflow.serdes.windowed import (
    SESSION_SUFFIX_BYTES,
    START_BYTES,
    STORE_SUFFIX_BYTES,
    python_keys,
    session_key,
    split_session_key,
    windowed_key_type,
)
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.store import Entry, StoreView
from everflow.topology.graph import Inputs
from everflow.windows import SessionWindows

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
        rows, dropped = counted(batch, skip_null_values)
        keys = written_bytes(spec.key_serde, batch.key, spec.store, batch)
        rows = rows[valid(keys)[rows]]  # a serde may write nothing
        negative = batch.timestamp[rows] < 0
        dropped["negative-timestamp"] = int(np.count_nonzero(negative))
        rows = rows[~negative]
        keys = keys if len(rows) == len(batch) else keys.take(rows)
        keyed = KeyedRows(rows, keys, batch.partition[rows], None)
        self.stream_times = dict(inputs.stream_times)
        self.found = grouped(keyed, None, self.stream_times, dropped, by_key=False)
        times = batch.timestamp[rows]
        self.times_of = extent(self.found.codes, len(self.found), times, times)
        """The first and the last time (ms) of each key's records."""
        self.views = {one: views[spec.store] for one, views in inputs.stores.items()}
        self.stored: list[bytes] = []
        """Stored value bytes, by window."""
        self._newest_ms = {partition: view.newest_ms for partition, view in self.views.items()}

    def known(self) -> pa.Array:
        return self.spec.value_serde.decode_array(pa.array(self.stored, pa.binary()))

    def take_each_record(self) -> Iterator[int]:
        """Puts every record into its windows; yields the row of each that is not late."""
        book = self.book
        for partition, at in rows_by_task(self.batch.partition[self.found.rows]):
            book.stream_time = self.stream_times[partition]
            book.newest_ms = self._newest_ms[partition]
            rows = self.found.rows[at]
            columns = rows, self.found.codes[at], self.batch.timestamp[rows]
            for row, code, time in zip(*(one.tolist() for one in columns), strict=True):
                if book.add(code, time, row):
                    yield row
            self.stream_times[partition] = book.stream_time

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
        """The result, from the output of `folded`."""

    def changes(
        self, keys: Int64, stored_keys: pa.Array, entries: pa.Array, times: Int64
    ) -> dict[int, list[StoreChanges]]:
        return changes_by_task(
            self.spec.store,
            self.found.owners[keys],
            stored_keys,
            entries,
            np.ascontiguousarray(times),
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
        dropped = {**self.found.dropped, LATE: self.book.late}
        return TasksResult(output, changes, self.stream_times, dropped)


# --- sessions (KIP-94): first the live ones of one key in order of time (pure) --------------------
# In blocks: a key may have 100,000 of them, and one list would move all behind a new one's place.


MOST = 1_000
"""Sessions of a block."""
_last = itemgetter(-1)


class SessionOrder:
    """Numbers of sessions by their ends, and so by their starts: they neither overlap nor touch. A
    place is a block and a place in it; a change makes the places behind it invalid."""

    __slots__ = ("ends", "sessions")

    def __init__(self) -> None:
        self.ends: list[list[int]] = [[]]
        self.sessions: list[list[int]] = [[]]

    def first_from(self, end: int) -> tuple[int, int]:
        """The place of the first session that ends at ``end`` or later."""
        blocks = self.ends
        if len(blocks) == 1:
            return 0, bisect_left(blocks[0], end)
        block = bisect_left(blocks, end, key=_last)
        if block == len(blocks):
            return block - 1, len(blocks[-1])
        return block, bisect_left(blocks[block], end)

    def following(self, block: int, at: int) -> Iterator[int]:
        yield from self.sessions[block][at:]
        for further in self.sessions[block + 1 :]:
            yield from further

    def insert(self, block: int, at: int, session: int, end: int) -> None:
        ends, sessions = self.ends[block], self.sessions[block]
        ends.insert(at, end)
        sessions.insert(at, session)
        if len(ends) > MOST:
            half = len(ends) // 2
            self.ends[block : block + 1] = [ends[:half], ends[half:]]
            self.sessions[block : block + 1] = [sessions[:half], sessions[half:]]

    def append(self, session: int, end: int) -> None:
        self.insert(len(self.ends) - 1, len(self.ends[-1]), session, end)

    def replace(self, block: int, at: int, count: int, session: int, end: int) -> None:
        self.ends[block][at], self.sessions[block][at] = end, session
        self._delete(block, at + 1, count - 1)

    def remove(self, session: int, end: int) -> None:
        """Take out a session that is there and ends at ``end``; others may end then, too."""
        block, at = self.first_from(end)
        for found in self.following(block, at):
            if at == len(self.ends[block]):
                block, at = block + 1, 0
            if found == session:
                self._delete(block, at, 1)
                return
            at += 1

    def _delete(self, block: int, at: int, count: int) -> None:
        while count:
            ends, sessions = self.ends[block], self.sessions[block]
            here = min(count, len(ends) - at)
            del ends[at : at + here], sessions[at : at + here]
            count -= here
            if ends or len(self.ends) == 1:
                block += 1
            else:
                del self.ends[block], self.sessions[block]
            at = 0

    def __iter__(self) -> Iterator[int]:
        return self.following(0, 0)


# --- which sessions a batch's records open, extend and merge: intervals, no values (pure; KIP-94) -
# Records are taken one by one in processing order: what a record finds depends on all before it.


_FAR_FUTURE_MS = (1 << 56) - 1
"""Two million years: the highest time whose first byte is 0."""


class SessionBook(Book):
    """The sessions of a batch's keys.

    A session that grows keeps its number; one made of several gets a new one. ``ends``: by session;
    ``codes``: the session of each contribution (a record that was not late), ``rows``: its row;
    ``gone``: stored sessions whose window is no more -> the contribution that ended it. With
    ``history`` also ``replaced``, every window that a contribution replaced as (contribution,
    start, end), and ``after``, the window that each contribution went into.
    """

    def __init__(
        self, windows: SessionWindows, retention_ms: int | None, keys: int, *, history: bool
    ) -> None:
        """``retention_ms``: of the store, None = that of the windows."""
        super().__init__()
        self.gap_ms, self._open_ms = windows.gap_ms, windows.retention_ms
        self._retention_ms = self._open_ms if retention_ms is None else retention_ms
        self._live = [SessionOrder() for _ in range(keys)]
        self.stored = 0
        self.ends: list[int] = []
        self.codes: list[int] = []
        self.rows: list[int] = []
        self.merges: list[Merge] = []
        self.gone: dict[int, int] = {}
        self.replaced: list[tuple[int, int, int]] = []
        self.after: list[tuple[int, int]] = []
        self._history = history

    def load(self, key: int, start: int, end: int) -> None:
        """The next stored session; call it before any record, in order of time within a key."""
        self.stored += 1
        self._live[key].append(self._new(key, start, end), end)

    def add(self, key: int, time: int, row: int) -> bool:
        """See `Book`. A record is late if the session it would be in, itself included, is closed:
        stream time is more than gap and grace behind its end."""
        gap = self.gap_ms
        live, starts = self._live[key], self.starts
        # As in Kafka Streams, no session that ends before the store's retention is shown.
        earliest = max(time - gap, self.stream_time - self._retention_ms + 1)
        if time > self.stream_time:
            self.stream_time = time
        ends, sessions = live.ends[-1], live.sessions[-1]
        if ends and ends[-1] >= earliest and starts[sessions[-1]] <= time:
            # The usual case: it belongs to the latest session, which is no other's neighbour.
            block, at, met = len(live.ends) - 1, len(ends) - 1, [sessions[-1]]
        else:
            block, at = live.first_from(earliest)
            sessions, latest = live.sessions[block], time + gap
            if at < len(sessions) and starts[sessions[at]] <= latest:
                met = list(takewhile(lambda s: starts[s] <= latest, live.following(block, at)))
            else:
                met = []
        end = max(time, self.ends[met[-1]]) if met else time
        if end < self.stream_time - self._open_ms:
            self.late += 1
            return False
        if met:
            session = self._join(live, block, at, met, min(time, starts[met[0]]), end)
        else:
            session = self._new(key, time, time)
            live.insert(block, at, session, time)
        self.codes.append(session)
        self.rows.append(row)
        if self._history:
            self.after.append((self.starts[session], self.ends[session]))
        return True

    def remove(self, window: int) -> None:
        self._left(window, len(self.codes) - 1)
        self._live[self.keys[window]].remove(window, self.ends[window])

    def _new(self, key: int, start: int, end: int) -> int:
        self.keys.append(key)
        self.starts.append(start)
        self.ends.append(end)
        return len(self.keys) - 1

    def _join(
        self, live: SessionOrder, block: int, at: int, met: list[int], start: int, end: int
    ) -> int:
        """Let the sessions ``met`` of a key, from a place on, become one with these bounds."""
        contribution = len(self.codes)
        if self._history and start < end:
            self.replaced += [(contribution, self.starts[one], self.ends[one]) for one in met]
        session = met[0]
        if len(met) == 1:
            if (start, end) == (self.starts[session], self.ends[session]):
                return session
            self._left(session, contribution)
            self.starts[session], self.ends[session] = start, end
        else:
            for parent in met:
                self._left(parent, contribution)
            session = self._new(self.keys[session], start, end)
            self.merges.append(Merge(contribution, session, tuple(met)))
        live.replace(block, at, len(met), session, end)
        return session

    def _left(self, session: int, contribution: int) -> None:
        if session < self.stored:
            self.gone.setdefault(session, contribution)

    def live(self) -> Iterator[int]:
        for of_key in self._live:
            yield from of_key


def read_sessions(
    run: _SessionRun,
    part: slice,
    store: StoreView,
) -> Iterator[tuple[bytes, bytes]]:
    """Loads the sessions that a task's records can meet; yields their entries, by number."""
    book, keys = run.book, run.found.keys[part]
    first, last = (times[part] for times in run.times_of)
    # No session ends after this; longer keys that begin with ``key`` lie outside.
    end = max(book.stream_time, int(last.max(initial=0)), _FAR_FUTURE_MS) + 1
    latest = (last + book.gap_ms).tolist()
    bounds = [
        (session_key(key, 0, max(begin - book.gap_ms, 0)), session_key(key, 0, min(to + 1, end)))
        for key, begin, to in zip(keys, first.tolist(), latest, strict=True)
    ]
    listed, newest_ms = store.range_many(bounds), store.newest_ms
    codes = range(part.start, part.stop)
    for code, key, to, (_, behind), entries in zip(
        codes, keys, latest, bounds, listed, strict=True
    ):
        # Records that are behind: of the sessions that end later one may have begun by then.
        more = store.range(behind, session_key(key, 0, end)) if to < newest_ms else ()
        for entry in chain(_of_key(key, entries), takewhile(_began(to), _of_key(key, more))):
            _, session_start, session_end = split_session_key(entry[0])
            book.load(code, session_start, session_end)
            yield entry


def _began(latest: int) -> Callable[[Entry], bool]:
    return lambda entry: split_session_key(entry[0])[1] <= latest


def _of_key(key: bytes, entries: Iterable[Entry]) -> Iterator[Entry]:
    length = len(key) + SESSION_SUFFIX_BYTES
    return (entry for entry in entries if len(entry[0]) == length)


TOMBSTONE = -1


@dataclass(frozen=True)
class SessionAggregateSpec(WindowedAggregate):
    """Aggregates per key and session; null keys are skipped, null values are not. Where sessions
    merge, their aggregates are folded in order of time: ``first`` is the earliest one's.

    As in Kafka Streams, a window that a record extends or merges away gets a tombstone, then comes
    the new window's result; its time is the window's end. Of a micro-batch the last result of a
    window is emitted (no tombstone of one not shown), or, with ``emit_every_update``, all.

    ``merger(key, one, two)`` of the user is called where sessions merge; unlike the original not to
    merge with a fresh aggregate. A reducer reduces the aggregates. None = the session is deleted.
    """

    windows: SessionWindows
    merger: Callable[[Any, Any, Any], Any] | None = None
    retention_ms: int | None = field(default=None, kw_only=True)
    """Of the store, None = that of the windows: what it does not show any more is not extended, as
    in Kafka Streams."""

    @property
    def lag_ms(self) -> int:
        return self.windows.gap_ms  # a session that a record extends ended so long before it

    def _begin(self, batch: EdgeBatch, inputs: Inputs) -> WindowRun:
        return _SessionRun(self, batch, inputs)

    def _copied(self, key: Any, parents: list[Any]) -> Any:
        assert isinstance(self.layout, PythonAggregateSpec)
        aggregator = self.layout.aggregator
        if isinstance(aggregator, PythonReducer):
            return reduce(aggregator.reducer, parents)
        assert self.merger is not None
        return reduce(partial(self.merger, key), parents)


class _SessionRun(WindowRun):
    """``stored_keys``: store keys, by session."""

    book: SessionBook

    def __init__(self, spec: SessionAggregateSpec, batch: EdgeBatch, inputs: Inputs) -> None:
        super().__init__(spec, batch, inputs, skip_null_values=False)
        count = len(self.found.keys)
        self.book = SessionBook(spec.windows, spec.retention_ms, count, history=self.every)
        self.stored_keys: list[bytes] = []
        for partition, part in self.found.parts:
            self.book.stream_time = self.stream_times[partition]
            for key, entry in read_sessions(self, part, self.views[partition]):
                self.stored_keys.append(key)
                self.stored.append(entry[TIMESTAMP_BYTES:])

    def steps(self) -> Iterator[Step]:
        codes, merges = self.book.codes, self.book.merges
        for row in self.take_each_record():
            merged = merges and merges[-1].at == len(codes) - 1
            yield row, codes[-1], merges[-1].parents if merged else (), True, True

    def final(self) -> Final:
        book = self.book
        live = set(book.live())
        last = {session: at for at, session in enumerate(book.codes) if session in live}
        of_window = {
            (book.keys[session], book.starts[session], book.ends[session]): session
            for session in sorted(last)
        }
        self._windows = of_window
        at = np.array([last[session] for session in of_window.values()], np.int64)
        rows = np.array(book.rows, np.int64)[at]
        return Final(np.array(list(of_window.values()), np.int64), at, rows)

    def folded(self, layout: AggregateSpec, windows: Int64) -> tuple[pa.Array, pa.Array]:
        book, count, known = self.book, len(self.book.keys), self.known()
        states = pa.concat_arrays([known, pa.nulls(count - len(known), known.type)])
        rows = np.array(book.rows, np.int64)
        group_values = GroupValues(
            stored=layout.state_columns_of(states),
            present=np.arange(count) < book.stored,
            codes=np.array(book.codes, np.int64),
            values=layout.inputs_of(self.batch.value, lambda column: column.take(rows)),
            merges=book.merges,
        )
        columns, every = layout.fold(self.batch, rows, group_values, every=self.every)
        after = [column.take(windows) for column in columns]
        return layout.written(after), layout.finish(every if self.every else after)

    def result(self, final: Final, entries: pa.Array, shown: pa.Array) -> TasksResult:
        """Tombstones of the windows that are no more, or that a contribution has replaced, each in
        front of its record's result."""
        book, windows = self.book, final.windows
        gone = [
            (session, at, *bounds)
            for session, at in book.gone.items()
            if (book.keys[session], *(bounds := self._stored_window(session))) not in self._windows
        ]
        left, left_at, left_starts, left_ends = _columns(gone, 4)
        keys = np.array(book.keys, np.int64)
        starts, ends = (np.array(one, np.int64)[windows] for one in (book.starts, book.ends))
        stored_keys = [self.stored_keys[session] for session in left.tolist()]
        stored_keys += [session_key(self.found.keys[key], *two) for key, *two in self._windows]
        changes = self.changes(
            keys[np.concatenate([left, windows])],
            pa.array(stored_keys, pa.binary()),
            pa.concat_arrays([pa.nulls(len(left), pa.binary()), entries.cast(pa.binary())]),
            np.concatenate([left_ends, ends]),
        )
        if self.every:
            left_at, left_starts, left_ends = _columns(book.replaced, 3)
            starts, ends = _columns(book.after, 2)
            at = np.arange(len(starts), dtype=np.int64)
        else:
            at = final.at
        is_result = np.arange(len(left_at) + len(at)) >= len(left_at)
        place = np.concatenate([np.full(len(left_at), TOMBSTONE), np.arange(len(at))])
        rows = np.array(book.rows, np.int64)[np.concatenate([left_at, at])]
        order = np.lexsort((is_result, rows))
        starts, ends = (
            np.concatenate(both)[order] for both in ((left_starts, starts), (left_ends, ends))
        )
        place = place[order]
        values = shown.take(pa.array(place, mask=place == TOMBSTONE))
        return self.shaped(changes, rows[order], (starts, ends), ends, values)

    def _stored_window(self, session: int) -> tuple[int, int]:
        return split_session_key(self.stored_keys[session])[1:]


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> Int64:
    return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, width).T)


# --- aggregates of windows over the records of a key: built-in ones and those with functions ------
# A key's records are numbered from 0, in processing order, in place of times (note 036); the
# operator's store has the aggregates of incomplete windows. Null keys are skipped; none is late.


_SEQUENCE_BYTES = STORE_SUFFIX_BYTES - START_BYTES
_COUNT = serdes.long()
EACH_UPDATE = 1


@dataclass(frozen=True, kw_only=True)
class CountWindowSpec(AroundTable):
    """``layout``: the aggregate; ``numbers``: the store of how many records of each key there were.

    ``early``: of a window that is not complete each ``early``-th update is a result, 0: none,
    `EACH_UPDATE`: all. The update that completes a window is always one, and then the window leaves
    the store. A result has the latest time of its window's records.
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
        expanded = KeyedRows(rows[at], keys.take(at), owners[at], starts)
        groups = grouped(expanded, windows, after, dropped)
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

    def _shown(self, positions: Int64, size: int) -> Flags:
        shown: Flags = positions == size
        return shown | (positions % self.early == 0) if self.early else shown


def _without(changes: list[StoreChanges], complete: Flags) -> list[StoreChanges]:
    (one,) = changes
    values = [
        None if is_complete else value
        for value, is_complete in zip(one.values, complete.tolist(), strict=True)
    ]
    return [replace(one, values=values)]
