"""Aggregates of sessions: built-in ones and those with functions of the user (KIP-94).

As in Kafka Streams, a window that a record extends or merges away gets a tombstone, then comes the
new window's result; its time is the window's end. Of a micro-batch the last result per window is
given (as the original's cache does: no tombstone for a window that no batch has shown), or, with
``emit_every_update``, every one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import takewhile
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.aggregates.aggregate import AggregateSpec, PythonAggregateSpec
from everflow.operators.aggregates.folds import fold_columns
from everflow.operators.aggregates.windowed_aggregate import (
    FunctionFold,
    Step,
    WindowedAggregate,
    WindowFold,
)
from everflow.operators.fold import Merge
from everflow.operators.grouping import Tasks, TaskTurn, turns_of
from everflow.records import EdgeBatch, Int64, StoreChanges, TasksResult
from everflow.serdes.windowed import (
    SESSION_SUFFIX_BYTES,
    session_key,
    split_session_key,
    windowed_key_type,
)
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.store import Entry, StoreView
from everflow.topology.graph import Inputs
from everflow.windows import SessionWindows

# --- the live sessions of one key in order of time (pure) -----------------------------------------
# In blocks: a key may have 100,000 of them, and one list would move all that lie behind a place for
# each that comes there.


MOST = 1_000
"""Sessions of a block."""
_last = itemgetter(-1)


class SessionOrder:
    """Numbers of sessions by their ends. They neither overlap nor touch, so their starts have the
    same order. A place is a block and a place in it; a change makes the places behind it invalid.
    """

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
        """The sessions from a place on."""
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
        """One session instead of ``count`` of them from a place on."""
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
# Records are taken one by one in processing order, as Kafka Streams takes them: what a record finds
# depends on all before it. `WindowFold`s fold the aggregates over the result.


_FAR_FUTURE_MS = (1 << 56) - 1
"""Two million years: the highest time whose first byte is 0."""


class SessionBook:
    """The sessions of a batch's keys. A session is a number: first those that were stored, then the
    new ones.

    A session that grows keeps its number; one made of several gets a new one. ``keys``, ``starts``,
    ``ends``: by session; ``codes``: the session of each contribution (a record that was not late);
    ``gone``: stored sessions whose window is no more -> the contribution that ended it. With
    ``history`` also ``replaced``, every window that a contribution replaced as (contribution,
    start, end), and ``after``, the window that each contribution went into.
    """

    def __init__(
        self,
        windows: SessionWindows,
        keys: int,
        *,
        retention_ms: int | None = None,
        history: bool = False,
    ) -> None:
        """``keys``: how many keys there are. ``retention_ms``: of the store, None = that of the
        windows. ``stream_time`` (ms) is that of the task whose records come next: set it before
        they do."""
        self.gap_ms, self._open_ms = windows.gap_ms, windows.retention_ms
        self._retention_ms = self._open_ms if retention_ms is None else retention_ms
        self._live = [SessionOrder() for _ in range(keys)]
        self.stream_time = -1
        self.stored = 0
        self.keys: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.codes: list[int] = []
        self.merges: list[Merge] = []
        self.gone: dict[int, int] = {}
        self.replaced: list[tuple[int, int, int]] = []
        self.after: list[tuple[int, int]] = []
        self._history = history

    def load(self, key: int, start: int, end: int) -> None:
        """A stored session, with the next number; call it before any record, in order of time
        within a key."""
        self.stored += 1
        self._live[key].append(self._new(key, start, end), end)

    def add(self, key: int, time: int) -> bool:
        """Take a record; False if it is late: the session it would be in, itself included, is
        closed: stream time is more than gap and grace behind its end."""
        gap = self.gap_ms
        live, starts = self._live[key], self.starts
        # A store shows no session that ends before its retention, though it may still be there (as
        # in Kafka Streams).
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
            return False
        if met:
            session = self._join(live, block, at, met, min(time, starts[met[0]]), end)
        else:
            session = self._new(key, time, time)
            live.insert(block, at, session, time)
        self.codes.append(session)
        if self._history:
            self.after.append((self.starts[session], self.ends[session]))
        return True

    def remove(self, key: int, session: int) -> None:
        """A session whose aggregate became null with the last contribution: there is none there any
        more."""
        self._left(session, len(self.codes) - 1)
        self._live[key].remove(session, self.ends[session])

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
        """The sessions that there are now, in no particular order."""
        for of_key in self._live:
            yield from of_key


def read_sessions(
    book: SessionBook,
    store: StoreView,
    codes: Sequence[int],
    keys: Sequence[bytes],
    first_ms: Sequence[int],
    last_ms: Sequence[int],
) -> list[tuple[bytes, bytes]]:
    """Load the stored sessions that a task's records of ``keys``, whose numbers are ``codes``, can
    meet from ``first_ms`` to ``last_ms``.

    Returns the store's entries, in the order of the sessions' numbers.
    """
    loaded = []
    # No session ends after this; with it, keys that begin with ``key`` and go on with text lie
    # outside.
    end = max(book.stream_time, max(last_ms, default=0), _FAR_FUTURE_MS) + 1
    latest = [last + book.gap_ms for last in last_ms]
    bounds = [
        (session_key(key, 0, max(first - book.gap_ms, 0)), session_key(key, 0, min(to + 1, end)))
        for key, first, to in zip(keys, first_ms, latest, strict=True)
    ]
    found = store.range_many(bounds)
    newest_ms = store.newest_ms
    for code, key, to, (_, behind), entries in zip(codes, keys, latest, bounds, found, strict=True):
        for entry in _of_key(key, entries):
            _, session_start, session_end = split_session_key(entry[0])
            book.load(code, session_start, session_end)
            loaded.append(entry)
        if to >= newest_ms:
            continue
        # Records that are behind: of the sessions that end later one may have begun by then.
        for entry in _of_key(key, store.range(behind, session_key(key, 0, end))):
            _, session_start, session_end = split_session_key(entry[0])
            if session_start > to:
                break
            book.load(code, session_start, session_end)
            loaded.append(entry)
    return loaded


def _of_key(key: bytes, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Without those of longer keys that begin with the same bytes."""
    length = len(key) + SESSION_SUFFIX_BYTES
    return (entry for entry in entries if len(entry[0]) == length)


# --- the operator ---------------------------------------------------------------------------------


TOMBSTONE = -1


@dataclass(frozen=True)
class SessionAggregateSpec(WindowedAggregate[AggregateSpec | PythonAggregateSpec]):
    """Aggregates per key and session. Null keys are skipped, null values are not, as in time
    windows. Where sessions merge, their aggregates are folded in order of time: ``first`` is the
    earliest one's.

    Functions of the user: ``merger(key, one, two)`` is called where sessions merge; unlike the
    original it is not called to merge with a fresh aggregate. None = the session is deleted.
    """

    windows: SessionWindows
    merger: Callable[[Any, Any, Any], Any] | None = None
    retention_ms: int | None = field(default=None, kw_only=True)
    """Of the store, None = that of the windows: what it does not show any more is not extended, as
    in Kafka Streams."""
    emit_every_update: bool = field(default=False, kw_only=True)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: folds the records into the stored sessions; the last result per window,
        or every one."""
        (batch,) = inputs.sides
        views = {partition: views[self.store] for partition, views in inputs.stores.items()}
        tasks = Tasks(batch.partition, views, inputs.stream_times)
        run = _Run.begin(batch, self, tasks, self.emit_every_update)
        fold = self._fold(run)
        for row in run.take_each_record():
            fold.take(row)
        final = run.final()
        values, shown = fold.results(final.sessions, [run.rows[at] for at in final.at])
        changes = run.changes(self.store, final, values)
        if self.emit_every_update:
            return run.every_result(changes, shown)
        return run.last_results(changes, final, shown)

    def _fold(self, run: _Run) -> WindowFold:
        layout, every = self.layout, self.emit_every_update
        if isinstance(layout, AggregateSpec):
            return _Columns(layout, run, every)
        return FunctionFold(
            layout,
            run.batch,
            run.stored,
            steps=run.steps,
            begin=self._merged,
            remove=run.remove,
            every=every,
            write_each=True,
        )

    def _merged(self, key: Any, parents: list[Any]) -> Any:
        assert self.merger is not None
        return reduce(partial(self.merger, key), parents)


@dataclass(frozen=True)
class _Columns:
    """Built-in aggregates of sessions, folded once all records are in theirs: a `WindowFold`."""

    layout: AggregateSpec
    run: _Run
    every: bool

    def take(self, row: int) -> None:
        """See `WindowFold`."""

    def results(
        self, windows: Sequence[int], rows: Sequence[int]
    ) -> tuple[Sequence[bytes | None], pa.Array]:
        layout, run, book = self.layout, self.run, self.run.book
        known = layout.value_serde.decode_array(pa.array(run.stored, pa.binary()))
        count = len(book.keys)
        states = pa.concat_arrays([known, pa.nulls(count - len(known), known.type)])
        at = pa.array(run.rows, pa.int64())
        with layout.failing(run.batch, run.rows):
            folded, every = fold_columns(
                layout.columns,
                layout.state_columns_of(states),
                np.arange(count) < book.stored,
                np.array(book.codes, np.int64),
                layout.inputs_of(run.batch.value, lambda column: column.take(at)),
                book.merges,
                every=self.every,
            )
        sessions = pa.array(windows, pa.int64())
        after = [column.take(sessions) for column in folded]
        written = layout.value_serde.encode_array(layout.state_of(after)).to_pylist()
        return written, layout.finish(every if self.every else after)


@dataclass(frozen=True)
class ReducerMerger:
    """The merger of a reducer: it reduces the aggregates themselves."""

    reducer: Callable[[Any, Any], Any]

    def __call__(self, key: Any, one: Any, two: Any) -> Any:
        """``one`` is of the earlier session."""
        return self.reducer(one, two)


@dataclass
class _Final:
    """The sessions with a record of this batch that are there after it, the contribution ``at``
    which each got its last one, and their store keys; ``gone``: stored sessions whose windows are
    no more, and the contributions that ended them."""

    sessions: list[int]
    at: list[int]
    keys: list[bytes]
    gone: list[tuple[int, int]]


@dataclass(kw_only=True)
class _Run:
    """One batch: its keys, its book of sessions, and how results are shaped. Tasks take turns.

    ``keys``: the distinct key bytes of each task, ``owners``: their tasks; both by code, the codes
    of a task lie together. ``stored``: stored value bytes and ``stored_keys`` store keys, by
    session; ``rows``: the row of each contribution; ``stream_times``: of the tasks.
    """

    batch: EdgeBatch
    turns: list[TaskTurn]
    keys: list[bytes]
    owners: list[int]
    book: SessionBook
    stored: list[bytes]
    stored_keys: list[bytes]
    stream_times: dict[int, int]
    rows: list[int]
    dropped: dict[str, int]

    @staticmethod
    def begin(batch: EdgeBatch, spec: SessionAggregateSpec, tasks: Tasks, every: bool) -> _Run:
        """Tell the keys apart and read what is stored of them."""
        found = turns_of(batch, spec.key_serde, spec.store, tasks, skip_null_values=False)
        run = _Run(
            batch=batch,
            turns=found.turns,
            keys=found.keys,
            owners=found.owners,
            book=SessionBook(
                spec.windows, len(found.keys), retention_ms=spec.retention_ms, history=every
            ),
            stored=[],
            stored_keys=[],
            stream_times=dict(tasks.stream_times),
            rows=[],
            dropped=dict(found.dropped),
        )
        for partition, part in found.parts:
            run._read(partition, part, tasks.stores[partition], found.first[part], found.last[part])
        return run

    def _read(
        self, partition: int, part: slice, store: StoreView, first: Int64, last: Int64
    ) -> None:
        """Load what the records of a task's keys, from ``first`` to ``last`` ms, can meet."""
        self.book.stream_time = self.stream_times[partition]
        codes = range(part.start, part.stop)
        for key, value in read_sessions(
            self.book, store, codes, self.keys[part], first.tolist(), last.tolist()
        ):
            self.stored_keys.append(key)
            self.stored.append(value[TIMESTAMP_BYTES:])

    def steps(self) -> tuple[Step, ...]:
        """Of the record that was taken last."""
        codes, merges = self.book.codes, self.book.merges
        merged = merges and merges[-1].at == len(codes) - 1
        return ((codes[-1], merges[-1].parents if merged else (), True, True),)

    def remove(self, session: int) -> None:
        """A session whose aggregate has become None."""
        self.book.remove(self.book.keys[session], session)

    def take_each_record(self) -> Iterator[int]:
        """Put every record into its session, and count the late ones; yields the row of each that
        is not late, once it is in its session."""
        late = 0
        for turn in self.turns:
            self.book.stream_time = self.stream_times[turn.partition]
            times = self.batch.timestamp[turn.rows]
            for row, code, time in zip(
                turn.rows.tolist(), turn.codes.tolist(), times.tolist(), strict=True
            ):
                if self.book.add(code, time):
                    self.rows.append(row)
                    yield row
                else:
                    late += 1
            self.stream_times[turn.partition] = self.book.stream_time
        if late:
            self.dropped["late"] = late

    def final(self) -> _Final:
        """What the batch has come to.

        Two sessions may have the same window: one that the store showed no more, and one that began
        anew. The newer one counts.
        """
        book = self.book
        live = set(book.live())
        last = {session: at for at, session in enumerate(book.codes) if session in live}
        of_window = {
            (book.keys[session], book.starts[session], book.ends[session]): session
            for session in sorted(last)
        }
        gone = [
            (session, at)
            for session, at in book.gone.items()
            if (book.keys[session], *self._stored_window(session)) not in of_window
        ]
        sessions = list(of_window.values())
        keys = [session_key(self.keys[code], start, end) for code, start, end in of_window]
        return _Final(sessions, [last[session] for session in sessions], keys, gone)

    def changes(
        self, store: str, final: _Final, values: Sequence[bytes | None]
    ) -> dict[int, list[StoreChanges]]:
        """Each task's deletes of the windows that are no more, then its sessions' ``values``."""
        book, tasks = self.book, _ByTask()
        for session, _ in final.gone:
            _, end = self._stored_window(session)
            tasks.add(self._owner(session), self.stored_keys[session], None, end)
        for session, key, value in zip(final.sessions, final.keys, values, strict=True):
            tasks.add(self._owner(session), key, value, book.ends[session])
        return tasks.changes(store)

    def last_results(
        self, changes: dict[int, list[StoreChanges]], final: _Final, values: pa.Array
    ) -> TasksResult:
        """A tombstone for each window that is no more, and ``values``, the results of the
        sessions."""
        gone = [(at, TOMBSTONE, *self._stored_window(session)) for session, at in final.gone]
        sessions = np.array(final.sessions, np.int64)
        starts, ends = (
            np.array(bounds, np.int64)[sessions] for bounds in (self.book.starts, self.book.ends)
        )
        places = np.arange(len(sessions), dtype=np.int64)
        live = np.stack([np.array(final.at, np.int64), places, starts, ends])
        return self._result(changes, np.concatenate([_shown(gone), live], axis=1), values)

    def every_result(self, changes: dict[int, list[StoreChanges]], values: pa.Array) -> TasksResult:
        """``values``, the result of each contribution, behind the tombstones of the windows that it
        replaced."""
        shown = [(at, TOMBSTONE, start, end) for at, start, end in self.book.replaced]
        shown += [(at, at, start, end) for at, (start, end) in enumerate(self.book.after)]
        return self._result(changes, _shown(shown), values)

    def _result(
        self, changes: dict[int, list[StoreChanges]], shown: Int64, values: pa.Array
    ) -> TasksResult:
        """What is ``shown`` (see `_shown`), in the order of the records that made it, tombstones
        first."""
        at, place, starts, ends = shown
        rows = np.array(self.rows, np.int64)[at] if len(at) else at
        order = np.lexsort((place != TOMBSTONE, rows))
        rows, place, starts, ends = (column[order] for column in (rows, place, starts, ends))
        batch = self.batch.take(rows)
        columns = [batch.key, pa.array(starts), pa.array(ends)]
        key = pa.StructArray.from_arrays(
            columns, fields=list(windowed_key_type(self.batch.key.type))
        )
        output = batch.with_columns(key, values.take(pa.array(place, mask=place == TOMBSTONE)))
        output.timestamp = np.ascontiguousarray(ends)
        return TasksResult(output, changes, self.stream_times, self.dropped)

    def _owner(self, session: int) -> int:
        return self.owners[self.book.keys[session]]

    def _stored_window(self, session: int) -> tuple[int, int]:
        """Start and end of a stored session, as they were before the batch."""
        return split_session_key(self.stored_keys[session])[1:]


def _shown(results: list[tuple[int, int, int, int]]) -> Int64:
    """Four rows, a column for each result: the contribution that made it, the place of its value
    (or TOMBSTONE), and the start and end of its session."""
    return np.ascontiguousarray(np.array(results, np.int64).reshape(-1, 4).T)


class _ByTask:
    """Changes of one store, put together task by task."""

    def __init__(self) -> None:
        self._columns: dict[int, tuple[list[bytes], list[bytes | None], list[int]]] = {}

    def add(self, partition: int, key: bytes, value: bytes | None, time: int) -> None:
        keys, values, times = self._columns.setdefault(partition, ([], [], []))
        keys.append(key)
        values.append(value)
        times.append(time)

    def changes(self, store: str) -> dict[int, list[StoreChanges]]:
        """The added rows, in that order."""
        return {
            partition: [StoreChanges(store, keys, values, np.array(times, np.int64))]
            for partition, (keys, values, times) in self._columns.items()
        }
