"""Versioned tables and their readers, under any cut, against models (KIP-889, KIP-914, KIP-923)."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.joins import JoinedTable, JoinKind, StreamTableJoin
from everflow.operators.joins.joined_table import NONE, Versions, latest_before
from everflow.operators.joins.stream_table import GraceWait, HeldBack
from everflow.operators.processors.stores import VersionEntries
from everflow.operators.table import LatestUpdates, VersionedTableSpec
from everflow.records import EdgeBatch, StoreChanges, TasksResult
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import OPEN, InMemoryStore, InMemoryVersions, StoreSpec, memory_store
from everflow.state.versioned_snapshot import version_changes
from everflow.topology.graph import Inputs
from properties.operators.operator_batches import apply_all, rows_of
from properties.operators.test_joins import (
    CUTS,
    KEY,
    ROWS,
    TASKS,
    VALUE,
    Result,
    Row,
    batches,
    results,
    side,
)
from unit.builders import store_spec

HISTORIES = st.sampled_from([0, 3, 10, 25, 100])


@dataclass(frozen=True)
class GraceJoin:
    """The two operators of a join with a grace, one behind the other."""

    table: JoinedTable
    kind: JoinKind
    held: HeldBack

    def run(self, inputs: Inputs) -> TasksResult:
        (left, right), stores, stream_times, *_ = inputs
        kept = self.kind.keeps_left
        waited = GraceWait(self.held, kept).run(Inputs([left], stores, stream_times, {}, 0))
        join = StreamTableJoin(self.table, self.kind)
        output = join.run(Inputs((waited.output, right), stores, stream_times)).output
        return TasksResult(output, waited.changes, waited.stream_times, waited.dropped)


Join = Callable[[JoinedTable], tuple[StreamTableJoin | GraceJoin, StoreSpec | None]]


class Table:
    """A versioned table: its operator, and each task's store."""

    def __init__(self, history_ms: int) -> None:
        spec = store_spec("t", "versioned", key=KEY, value=VALUE, retention_ms=history_ms)
        self.operator = VersionedTableSpec("t", KEY, VALUE, history_ms)
        self.joined = JoinedTable(spec, self.operator.results, pa.int64(), as_of=True)
        self.stores = {task: memory_store(spec) for task in TASKS}
        self.stream_times = dict.fromkeys(TASKS, -1)
        self.late = 0

    def changed(self, batch: EdgeBatch) -> tuple[EdgeBatch, Callable[[], None]]:
        views = {task: {"t": store} for task, store in self.stores.items()}
        done = self.operator.run(Inputs((batch,), views, self.stream_times))
        self.late += done.dropped.get("late", 0)

        def apply() -> None:
            self.stream_times |= done.stream_times
            apply_all(done, self.stores)

        return done.output, apply


class Model:
    """RocksDBVersionedStore, as lists of (time, value)."""

    def __init__(self, history_ms: int) -> None:
        self.history_ms = history_ms
        self.observed = dict.fromkeys(TASKS, -1)
        self.versions: dict[tuple[int, str], dict[int, int | None]] = {}
        self.late = 0

    def put(self, row: Row) -> bool | None:
        """Whether it is the latest; None: ignored."""
        if row.time < self.observed[row.partition] - self.history_ms:
            self.late += 1
            return None
        self.observed[row.partition] = max(self.observed[row.partition], row.time)
        assert row.key is not None
        versions = self.versions.setdefault((row.partition, row.key), {})
        latest = row.time >= max(versions, default=-1)
        versions[row.time] = row.value
        return latest

    def get(self, partition: int, key: str, time: int) -> int | None:
        versions = self.versions.get((partition, key), {})
        found = max((one for one in versions if one <= time), default=None)
        if found is None:
            return None
        if time < self.observed[partition] - self.history_ms and found != max(versions):
            return None
        return versions[found]


def run(
    history_ms: int, rows: Sequence[Row], cuts: Sequence[int], join: Join
) -> tuple[list[Result], int]:
    """Results of a join with the table, and how many of its updates were late."""
    table = Table(history_ms)
    operator, kept = join(table.joined)
    buffers = {task: {} if kept is None else {kept.name: InMemoryStore(kept)} for task in TASKS}
    times, found = dict.fromkeys(TASKS, -1), list[Result]()
    for batch in batches(rows, cuts):
        updates, apply = table.changed(side(batch, left=False))
        views = {task: {"t": table.stores[task], **buffers[task]} for task in TASKS}
        done: TasksResult = operator.run(Inputs((side(batch, left=True), updates), views, times))
        times |= done.stream_times
        apply_all(done, buffers)
        apply()
        found += results(done.output)
    return found, table.late


def stream_table(kind: JoinKind) -> Join:
    return lambda joined: (StreamTableJoin(joined, kind), None)


def grace_join(kind: JoinKind, grace_ms: int) -> Join:
    spec = store_spec("w", key=serdes.bytes_(), value=serdes.bytes_())
    held = HeldBack(store=spec, key_serde=KEY, value_serde=VALUE, grace_ms=grace_ms)
    return lambda joined: (GraceJoin(joined, kind, held), spec)


def model(
    kind: JoinKind, history_ms: int, grace_ms: int | None, rows: Sequence[Row]
) -> tuple[list[Result], int]:
    """KStreamKTableJoinProcessor over a versioned store, with RocksDBTimeOrderedKeyValueBuffer."""
    store, found = Model(history_ms), list[Result]()
    waiting: list[tuple[int, int, str, int, int]] = []
    observed = dict.fromkeys(TASKS, -1)

    def joined(partition: int, key: str | None, value: int, time: int) -> None:
        other = None if key is None else store.get(partition, key, time)
        if other is not None or kind is JoinKind.LEFT:
            found.append(Result(partition, key, (value, other), time))

    for place, row in enumerate(rows):
        if not row.left:
            if row.key is not None:
                store.put(row)
            continue
        if row.value is None or (row.key is None and kind is JoinKind.INNER):
            continue
        if grace_ms is None or row.key is None:
            joined(row.partition, row.key, row.value, row.time)
            continue
        if row.time < observed[row.partition] - grace_ms:
            joined(row.partition, row.key, row.value, row.time)
            continue
        observed[row.partition] = max(observed[row.partition], row.time)
        waiting.append((row.partition, row.time, row.key, place, row.value))
        due = [w for w in waiting if w[0] == row.partition and w[1] <= observed[w[0]] - grace_ms]
        for one in sorted(due, key=lambda one: one[1:4]):
            waiting.remove(one)
            joined(one[0], one[2], one[4], one[1])
    return found, store.late


@given(st.sampled_from([JoinKind.INNER, JoinKind.LEFT]), HISTORIES, ROWS, CUTS)
def test_a_stream_sees_a_versioned_table_as_of_its_own_time(
    kind: JoinKind, history_ms: int, rows: list[Row], cuts: list[int]
) -> None:
    assert run(history_ms, rows, cuts, stream_table(kind)) == model(kind, history_ms, None, rows)


@given(
    st.sampled_from([JoinKind.INNER, JoinKind.LEFT]),
    HISTORIES,
    st.sampled_from([0, 2, 7, 20]),
    ROWS,
    CUTS,
)
def test_a_record_that_waits_sees_what_the_table_heard_late(
    kind: JoinKind, history_ms: int, grace_ms: int, rows: list[Row], cuts: list[int]
) -> None:
    grace_ms = min(grace_ms, history_ms)
    expected = model(kind, history_ms, grace_ms, rows)
    assert run(history_ms, rows, cuts, grace_join(kind, grace_ms)) == expected


@given(HISTORIES, ROWS, CUTS)
def test_only_the_latest_updates_go_on(history_ms: int, rows: list[Row], cuts: list[int]) -> None:
    table, store = Table(history_ms), Model(history_ms)
    latest = LatestUpdates(table.joined)
    found, dropped = list[tuple[int, str, int | None, int]](), 0
    for batch in batches(rows, cuts):
        updates, apply = table.changed(side(batch, left=False))
        views = {task: {"t": one} for task, one in table.stores.items()}
        done = latest.run(Inputs((updates,), views, dict.fromkeys(TASKS, -1)))
        apply()
        dropped += done.dropped.get("out-of-order", 0)
        found += rows_of(done.output, "partition key value timestamp")
    put = [(row, store.put(row)) for row in rows if not row.left and row.key is not None]
    assert found == [(row.partition, row.key, row.value, row.time) for row, is_ in put if is_]
    assert dropped == sum(1 for _, is_ in put if is_ is False)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(-1, 40)), max_size=60),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 40)), max_size=30),
)
def test_the_version_that_counts_is_the_last_before_the_place(
    known: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    """Also where so many came later that halving steps look for it."""
    columns = np.array(known, np.int64).reshape(-1, 3).T
    asks = np.array(asked, np.int64).reshape(-1, 3).T
    found = latest_before(asks[0], asks[1], asks[2], Versions(columns[0], columns[1], columns[2]))
    for (code, time, place), row in zip(asked, found.tolist(), strict=True):
        fits = [(t, p) for c, t, p in known if c == code and t <= time and p < place]
        assert (None if row == NONE else known[row][1:]) == max(fits, default=None)


# A processor's versioned store, and LMDB's versions, beside the reference.


HISTORY_MS = 30
TIMES = struct.Struct(">qq")
SPEC = store_spec(
    "s", "versioned", key=serdes.bytes_(), value=serdes.bytes_(), retention_ms=HISTORY_MS
)
KEYS = [b"a", b"ab"]
PUT = st.tuples(
    st.sampled_from(KEYS), st.sampled_from([b"1", b"2", None]), st.integers(0, 2 * HISTORY_MS)
)
PUTS = st.lists(PUT, max_size=12)
ASKED = [(key, first, first + more) for key in KEYS for first in range(0, 65, 4) for more in (0, 7)]


def changes(puts: list[Any]) -> StoreChanges:
    return StoreChanges(
        "s",
        [key for key, _, _ in puts],
        [value for _, value, _ in puts],
        np.array([time for _, _, time in puts], np.int64),
    )


def with_values(view: Any) -> list[Any]:
    """A deletion that is older than the history is nobody's to see."""
    return [[one for one in found if one.value] for found in view.versions_many(ASKED)]


def everything(view: Any) -> list[Any]:
    return [
        view.versions_many(ASKED),
        view.latest_many(KEYS),
        [view.begins_after(key, time) for key in KEYS for time in range(0, 65, 5)],
        list(view.range(None, None)),
        list(view.range(None, None, reverse=True)),
        view.stream_time,
    ]


@given(committed=PUTS, batch=PUTS)
def test_a_processor_sees_what_applying_its_puts_gives(committed: Any, batch: Any) -> None:
    below, applied = InMemoryVersions(SPEC), InMemoryVersions(SPEC)
    below.apply(changes(committed))
    applied.apply(changes(committed))
    entries = VersionEntries(SPEC, below)
    for put in batch:
        end = entries.put(*put)
        applied.apply(changes([put]))
        kept = put[2] >= applied.stream_time - HISTORY_MS
        assert end == (applied.begins_after(put[0], put[2]) if kept else None)
        assert with_values(entries) == with_values(applied)
        shown = [(key, stored[8:]) for key, stored in applied.range(None, None)]
        assert list(entries.latest()) == shown
        for key, was in zip(KEYS, applied.latest_many(KEYS), strict=True):
            if was is not None:
                assert entries.latest_many([key]) == [was]


@given(batches=st.lists(PUTS, max_size=5))
def test_versions_are_written_to_disk_as_to_the_reference(batches: Any) -> None:
    reference = InMemoryVersions(SPEC)
    with TemporaryDirectory() as folder:
        store = LmdbStore.open(Path(folder) / "s", kind="versioned", retention_ms=HISTORY_MS)
        try:
            for number, puts in enumerate(batches, 1):
                reference.apply(changes(puts))
                listed = changes(puts)
                store.load_chunk(listed.keys, listed.values, listed.timestamps, number)
                with store.snapshot() as view:
                    assert everything(view) == everything(reference)
        finally:
            store.close()


def test_a_version_before_all_ends_with_the_first_one() -> None:
    below = InMemoryVersions(SPEC)
    below.apply(changes([(b"a", b"1", 20), (b"a", b"2", 25)]))
    entries = VersionEntries(SPEC, below)
    assert (entries.put(b"a", b"0", 10), entries.put(b"a", b"3", 40)) == (20, OPEN)


class CountedView:
    def __init__(self, view: Any) -> None:
        self._view, self.read = view, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def versions_many(self, asked: Any) -> Any:
        found = self._view.versions_many(asked)
        self.read += sum(map(len, found))
        return found


@pytest.mark.parametrize("count", [20, 200])
def test_a_late_version_reads_those_around_it(count: int, tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "s", kind="versioned", retention_ms=10 * count)
    try:
        kept = changes([(b"a", b"v", 10 * at) for at in range(1, count)])
        store.load_chunk(kept.keys, kept.values, kept.timestamps, 1)
        late = changes([(b"a", b"w", 25), (b"a", b"w", 3), (b"a", b"w", 10 * count)])
        with store.snapshot() as view:
            counted: Any = CountedView(view)
            latest, earlier = version_changes(counted, late.keys, late.values, late.timestamps)
        assert counted.read == 1
        assert sorted(end for end, _ in map(TIMES.unpack, (key[1:] for key in earlier))) == sorted(
            [10, 25, 30, 30, 10 * count]
        )
        assert list(latest) == [b"a"]
    finally:
        store.close()
