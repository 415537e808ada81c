"""A join whose records wait for their entry, under any cut, against a model."""

import struct
from collections import Counter
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
from everflow.operators.grouping import Stores
from everflow.operators.joins import JoinedTable, JoinKind, StreamTableJoin
from everflow.operators.joins.joined_table import NONE, Versions, latest_before
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin, PendingLookups
from everflow.operators.joins.stream_table import AsOfJoin, GraceBuffer, GraceWait
from everflow.operators.joins.table_table import selected_type
from everflow.operators.processors.stores import VersionEntries
from everflow.operators.table import LatestUpdates, VersionedTableSpec
from everflow.records import EdgeBatch, StoreChanges, TasksResult
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import OPEN, InMemoryStore, InMemoryVersions, StoreSpec, memory_store
from everflow.state.versioned_snapshot import version_changes
from everflow.topology.graph import Inputs
from everflow.worker.stores import WholeTable
from properties.operators.operator_batches import apply_all, rows_of
from properties.operators.test_joins import (
    CUTS,
    KEY,
    ROWS,
    TASKS,
    VALUE,
    Result,
    Row,
    Table,
    batches,
    results,
    side,
)
from unit.builders import store_spec

WAITING = store_spec("w", key=serdes.bytes_(), value=serdes.bytes_())


def room(grace_ms: int | None, most: int | None, timeout_ms: int | None = None) -> PendingLookups:
    return PendingLookups(
        store=WAITING,
        key_serde=KEY,
        value_serde=VALUE,
        grace_ms=grace_ms,
        most=most,
        timeout_ms=timeout_ms,
    )


def looked_up(
    kind: JoinKind, own: PendingLookups, rows: Sequence[Row], cuts: Sequence[int]
) -> tuple[list[Result], dict[str, int], int]:
    """Results, what was dropped, and how many entries are left in the store."""
    table = Table("t")
    stores = {task: InMemoryStore(WAITING) for task in TASKS}
    join = LookupJoin(table=table.joined, kind=kind, pending=own)
    times, found, dropped = dict.fromkeys(TASKS, -1), list[Result](), Counter[str]()
    for batch in batches(rows, cuts):
        updates, apply = table.changed(side(batch, left=False))
        views = {task: {"t": table.stores[task], "w": stores[task]} for task in TASKS}
        done = join.run(Inputs([side(batch, left=True), updates], views, times, {}, 0))
        apply()
        times = done.stream_times
        apply_all(done, stores)
        dropped.update(done.dropped)
        found += results(done.output)
    left = sum(1 for store in stores.values() for key, _ in store.range(None, None) if key != b"n")
    return found, dropped, left


def model(
    kind: JoinKind, own: PendingLookups, rows: Sequence[Row]
) -> tuple[list[Result], dict[str, int], int]:
    held = dict[tuple[int, str], int]()
    waiting: dict[int, list[Row]] = {task: [] for task in TASKS}
    latest, found, dropped = dict.fromkeys(TASKS, -1), list[Result](), Counter[str]()
    grace_ms = own.grace_ms or 0
    keeps = kind is JoinKind.LEFT

    def drop(reason: str) -> None:
        dropped[reason] = dropped.get(reason, 0) + 1

    def over(row: Row) -> None:
        if keeps:
            found.append(Result(row.partition, row.key, (row.value, None), row.time))
        else:
            drop("not-found")

    for row in rows:
        task, mine = row.partition, waiting[row.partition]
        if not row.left:
            if row.key is None:
                continue
            held.pop((task, row.key), None)
            if row.value is not None:
                held[task, row.key] = row.value
                for one in [one for one in mine if one.key == row.key]:
                    found.append(Result(task, one.key, (one.value, row.value), one.time))
                    mine.remove(one)
            continue
        if row.value is None:
            drop("null-value")
            continue
        latest[task] = max(latest[task], row.time)
        due = [one for one in mine if one.time + grace_ms < latest[task]]
        for one in sorted(due, key=lambda one: one.time):
            over(one)
            mine[:] = [other for other in mine if other is not one]
        if row.key is None:
            if keeps:
                over(row)
            else:
                drop("null-key")
        elif (task, row.key) in held:
            value = (row.value, held[task, row.key])
            found.append(Result(task, row.key, value, row.time))
        elif row.time + grace_ms < latest[task]:
            over(row)
        else:
            mine.append(row)
            same = [one for one in mine if one.key == row.key]
            if own.most is not None and len(same) > own.most:
                over(same[0])
                mine[:] = [other for other in mine if other is not same[0]]
    return found, dropped, 2 * sum(map(len, waiting.values()))


def unique(rows: Sequence[Row]) -> list[Row]:
    """Rows that are objects of their own, each with a value of its own."""
    return [
        row._replace(value=None if row.value is None else row.value + 10 * at)
        for at, row in enumerate(rows)
    ]


@given(
    st.sampled_from([JoinKind.INNER, JoinKind.LEFT]),
    st.sampled_from([0, 3, 10, 100]),
    st.sampled_from([None, 1, 2]),
    ROWS,
    CUTS,
)
def test_a_record_waits_for_its_entry_as_one_record_after_the_other_would(
    kind: JoinKind, grace_ms: int, most: int | None, rows: list[Row], cuts: list[int]
) -> None:
    own, records = room(grace_ms, most), unique(rows)
    assert looked_up(kind, own, records, cuts) == model(kind, own, records)


def test_an_empty_batch_gives_nothing() -> None:
    table, own = Table("t"), room(5, None)
    join = LookupJoin(table=table.joined, kind=JoinKind.LEFT, pending=own)
    views = {task: {"t": table.stores[task], "w": InMemoryStore(WAITING)} for task in TASKS}
    updates, _ = table.changed(side([], left=False))
    times = dict.fromkeys(TASKS, -1)
    done = join.run(Inputs([side([], left=True), updates], views, times, {}, 0))
    assert (len(done.output), done.changes, done.dropped) == (0, {}, {})
    assert done.output.value.type == pa.struct([("left", pa.int64()), ("right", pa.int64())])


# Records that wait for an entry of a global table, or by the clock, against a model.


GLOBAL = StoreSpec(name="g", kind="key_value", key_serde=KEY, value_serde=VALUE, logging=False)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.dictionaries(st.sampled_from(["a", "b", "ab"]), st.integers(1, 4) | st.none()),
    ),
    min_size=1,
    max_size=12,
)
"""Before each batch: by how much the clock goes on, and what changes in the table."""
KINDS = st.sampled_from([JoinKind.INNER, JoinKind.LEFT])
LIMIT = st.sampled_from([None, 0, 3, 10])
PATIENCE = st.sampled_from([None, 1, 5, 20])
MOST = st.sampled_from([None, 1, 2])


class Told:
    """Results, what was dropped, and how many wait at the end."""

    def __init__(self) -> None:
        self.found: list[Result] = []
        self.dropped: dict[str, int] = {}
        self.left = 0

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def give(self, row: Row, other: int | None) -> None:
        self.found.append(Result(row.partition, row.key, (row.value, other), row.time))

    def all(self) -> tuple[list[Result], dict[str, int], int]:
        return self.found, self.dropped, self.left


def joined(
    kind: JoinKind,
    own: PendingLookups,
    rows: Sequence[Row],
    cuts: Sequence[int],
    steps: Sequence[tuple[int, dict[str, int | None]]],
) -> Told:
    table = [InMemoryStore(GLOBAL), InMemoryStore(GLOBAL)]
    stores = {task: InMemoryStore(WAITING) for task in TASKS}
    join = GlobalLookupJoin(table=JoinedTable(GLOBAL, VALUE, pa.int64()), kind=kind, pending=own)
    times, clocks = dict.fromkeys(TASKS, -1), {task: {"seen": -1} for task in TASKS}
    told, now_ms = Told(), 1_000
    for at, batch in enumerate(batches(rows, cuts)):
        by, changed = steps[at % len(steps)]
        now_ms += by
        for key, value in changed.items():
            data = None if value is None else VALUE.encode(value)
            table[key == "a"].apply(StoreChanges("g", [key.encode()], [data], np.array([0])))
        whole = WholeTable(table)
        given = side(batch, left=True)
        given = given.with_columns(
            value=pa.StructArray.from_arrays(
                [given.key, given.value], fields=list(selected_type(pa.string(), pa.int64()))
            )
        )
        views: Stores = {task: {"g": whole, "w": stores[task]} for task in TASKS}
        done = join.run(Inputs([given], views, times, clocks, now_ms))
        times = done.stream_times
        for task, marks in done.clocks.items():
            clocks[task] = marks
        apply_all(done, stores)
        for reason, count in done.dropped.items():
            told.drop(reason, count)
        told.found += results(done.output)
    each = 2 if own.timeout_ms is None else 3
    told.left = sum(len(s) - (s.get_many([b"n"]) != [None]) for s in stores.values()) // each
    return told


class Waiter:
    def __init__(self, row: Row, came: int) -> None:
        self.row, self.came = row, came


def global_model(
    kind: JoinKind,
    own: PendingLookups,
    rows: Sequence[Row],
    cuts: Sequence[int],
    steps: Sequence[tuple[int, dict[str, int | None]]],
) -> Told:
    table, told, now_ms = dict[str, int | None](), Told(), 1_000
    waiting: dict[int, list[Waiter]] = {task: [] for task in TASKS}
    latest = dict.fromkeys(TASKS, -1)

    def over(row: Row) -> None:
        if kind is JoinKind.LEFT:
            told.give(row, None)
        else:
            told.drop("not-found")

    for at, batch in enumerate(batches(rows, cuts)):
        by, changed = steps[at % len(steps)]
        now_ms += by
        table.update(changed)
        held = {key: value for key, value in table.items() if value is not None}
        for task in TASKS:
            mine = waiting[task]
            for key in sorted(held):
                for one in [one for one in mine if one.row.key == key]:
                    told.give(one.row, held[key])
                    mine.remove(one)
        for _, row in batch:
            mine = waiting[row.partition]
            if not row.left:
                continue
            if row.value is None:
                told.drop("null-value")
                continue
            latest[row.partition] = max(latest[row.partition], row.time)
            limit = None if own.grace_ms is None else latest[row.partition] - own.grace_ms
            for one in sorted(mine, key=lambda one: one.row.time):
                if limit is not None and one.row.time < limit:
                    over(one.row)
                    mine.remove(one)
            if row.key is None:
                told.give(row, None) if kind is JoinKind.LEFT else told.drop("null-key")
            elif row.key in held:
                told.give(row, held[row.key])
            elif limit is not None and row.time < limit:
                over(row)
            else:
                mine.append(Waiter(row, now_ms))
                same = [one for one in mine if one.row.key == row.key]
                if own.most is not None and len(same) > own.most:
                    over(same[0].row)
                    mine.remove(same[0])
        for task in TASKS:
            for one in list(waiting[task]):
                if own.timeout_ms is not None and one.came + own.timeout_ms <= now_ms:
                    over(one.row)
                    waiting[task].remove(one)
    told.left = sum(map(len, waiting.values()))
    return told


@given(KINDS, LIMIT, PATIENCE, MOST, ROWS, CUTS, STEPS)
def test_a_record_waits_for_an_entry_of_a_global_table(
    kind: JoinKind,
    grace_ms: int | None,
    timeout_ms: int | None,
    most: int | None,
    rows: list[Row],
    cuts: list[int],
    steps: list[tuple[int, dict[str, int | None]]],
) -> None:
    own, records = room(grace_ms, most, timeout_ms), unique(rows)
    told, expected = (run(kind, own, records, cuts, steps) for run in (joined, global_model))
    assert told.all() == expected.all()


@given(KINDS, PATIENCE, ROWS, CUTS)
def test_the_clock_ends_the_wait_for_a_table_of_the_same_tasks(
    kind: JoinKind, timeout_ms: int | None, rows: list[Row], cuts: list[int]
) -> None:
    own, table = room(None, None, timeout_ms), Table("t")
    stores = {task: InMemoryStore(WAITING) for task in TASKS}
    join = LookupJoin(table=table.joined, kind=kind, pending=own)
    times, came, records = dict.fromkeys(TASKS, -1), dict[int, int](), unique(rows)
    now_ms, told = 0, list[tuple[int, Result]]()
    for batch in [*batches(records, cuts), [], []]:
        now_ms += 4
        came |= {row.value: now_ms for _, row in batch if row.left and row.value is not None}
        updates, apply = table.changed(side(batch, left=False))
        views = {task: {"t": table.stores[task], "w": stores[task]} for task in TASKS}
        done = join.run(Inputs([side(batch, left=True), updates], views, times, {}, now_ms))
        apply()
        apply_all(done, stores)
        times = done.stream_times
        told += [(now_ms, one) for one in results(done.output)]
    assert len({one.value for _, one in told}) == len(told)
    for at, one in told:
        left, right = one.value or (None, None)
        assert left is not None
        waited = at - came[left]
        if right is None and one.key is not None:
            assert timeout_ms is not None
            assert waited >= timeout_ms
        # An entry that comes in the batch in which the time is over is before its end.
        assert timeout_ms is None or waited < timeout_ms + 4
    kept = sum(len(store) - (store.get_many([b"n"]) != [None]) for store in stores.values())
    if timeout_ms is not None and timeout_ms <= 8:
        assert kept == 0


# As-of joins of two streams, under any cut, against a model of record after record.


TOLERANCES, GRACES = st.sampled_from([0, 3, 10, 50]), st.sampled_from([0, 1, 5, 20])


def run(
    kind: JoinKind, tolerance: int, grace: int, rows: Sequence[Row], cuts: Sequence[int]
) -> tuple[list[Result], dict[str, int]]:
    right = store_spec("r", "window", key=KEY, value=VALUE, retention_ms=tolerance + grace + 1)
    waits = store_spec("w", key=serdes.bytes_(), value=serdes.bytes_())
    held = GraceBuffer(store=waits, key_serde=KEY, value_serde=VALUE, grace_ms=grace)
    join = AsOfJoin(
        kind=kind,
        right=right,
        type=pa.int64(),
        tolerance_ms=tolerance,
        buffer=held if grace else None,
    )
    stores = {task: {"r": InMemoryStore(right), "w": InMemoryStore(waits)} for task in TASKS}
    times, found, dropped = dict.fromkeys(TASKS, -1), list[Result](), Counter[str]()
    for batch in batches(rows, cuts):
        done = join.run(Inputs((side(batch, True), side(batch, False)), stores, times))
        times |= done.stream_times
        apply_all(done, stores)
        dropped.update(done.dropped)
        found += results(done.output)
    return found, dropped


def asof_model(
    kind: JoinKind, tolerance: int, grace: int, rows: Sequence[Row]
) -> tuple[list[Result], dict[str, int]]:
    kept: dict[tuple[int, str], dict[int, int]] = {}
    waiting: list[tuple[int, int, str, int, int]] = []
    observed, found = dict.fromkeys(TASKS, -1), list[Result]()
    dropped = dict.fromkeys(("null-value", "null-key", "late"), 0)

    def joined(task: int, key: str | None, value: int, time: int, until: int) -> None:
        match = None
        if key is not None:
            first = max(time - tolerance, until - tolerance - grace)
            fits = {at: v for at, v in kept.get((task, key), {}).items() if first <= at <= time}
            match = fits[max(fits)] if fits else None
        if match is not None or kind is JoinKind.LEFT:
            found.append(Result(task, key, (value, match), time))

    for place, row in enumerate(rows):
        if row.value is None:
            dropped["null-value"] += 1
            continue
        if row.key is None:
            if row.left and kind is JoinKind.LEFT:
                joined(row.partition, None, row.value, row.time, 0)
            else:
                dropped["null-key"] += 1
            continue
        until = observed[row.partition]
        now = observed[row.partition] = max(until, row.time)
        if row.left:
            waiting.append((row.partition, row.time, row.key, place, row.value))
        elif row.time < now - tolerance - grace:
            dropped["late"] += 1
        else:
            kept.setdefault((row.partition, row.key), {})[row.time] = row.value
        due = [one for one in waiting if one[0] == row.partition and one[1] + grace <= now]
        for one in sorted(due, key=lambda one: one[1:4]):
            waiting.remove(one)
            joined(one[0], one[2], one[4], one[1], until)
    return found, {reason: count for reason, count in dropped.items() if count}


@given(KINDS, TOLERANCES, GRACES, ROWS, CUTS)
def test_each_record_meets_the_latest_that_is_not_later(
    kind: JoinKind, tolerance: int, grace: int, rows: list[Row], cuts: list[int]
) -> None:
    assert run(kind, tolerance, grace, rows, cuts) == asof_model(kind, tolerance, grace, rows)


@given(TOLERANCES, st.lists(ROWS, min_size=1, max_size=1), st.randoms(use_true_random=False))
def test_in_grace_no_order_matters(tolerance: int, drawn: list[list[Row]], dice: object) -> None:
    """Of times that differ; behind them comes one that lets all out."""
    rows = list({(row.left, row.partition, row.key, row.time): row for row in drawn[0]}.values())
    last = [Row(True, task, "z", 1, 1_000) for task in TASKS]
    shuffled = list(rows)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    ordered = sorted(rows, key=lambda row: row.time)
    a, b = (run(JoinKind.LEFT, tolerance, 41, [*some, *last], [3]) for some in (shuffled, ordered))
    assert sorted(map(str, a[0])) == sorted(map(str, b[0]))


# Versioned tables and their readers, under any cut, against models (KIP-889, KIP-914, KIP-923).


HISTORIES = st.sampled_from([0, 3, 10, 25, 100])


@dataclass(frozen=True)
class GraceJoin:
    """The two operators of a join with a grace, one behind the other."""

    table: JoinedTable
    kind: JoinKind
    held: GraceBuffer

    def run(self, inputs: Inputs) -> TasksResult:
        (left, right), stores, stream_times, *_ = inputs
        kept = self.kind.keeps_left
        waited = GraceWait(self.held, kept).run(Inputs([left], stores, stream_times, {}, 0))
        join = StreamTableJoin(self.table, self.kind)
        output = join.run(Inputs((waited.output, right), stores, stream_times)).output
        return TasksResult(output, waited.changes, waited.stream_times, waited.dropped)


Join = Callable[[JoinedTable], tuple[StreamTableJoin | GraceJoin, StoreSpec | None]]


class VersionedTable:
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


def versioned_run(
    history_ms: int, rows: Sequence[Row], cuts: Sequence[int], join: Join
) -> tuple[list[Result], int]:
    """Results of a join with the table, and how many of its updates were late."""
    table = VersionedTable(history_ms)
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
    held = GraceBuffer(store=spec, key_serde=KEY, value_serde=VALUE, grace_ms=grace_ms)
    return lambda joined: (GraceJoin(joined, kind, held), spec)


def versioned_model(
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
    assert versioned_run(history_ms, rows, cuts, stream_table(kind)) == versioned_model(
        kind, history_ms, None, rows
    )


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
    expected = versioned_model(kind, history_ms, grace_ms, rows)
    assert versioned_run(history_ms, rows, cuts, grace_join(kind, grace_ms)) == expected


@given(HISTORIES, ROWS, CUTS)
def test_only_the_latest_updates_go_on(history_ms: int, rows: list[Row], cuts: list[int]) -> None:
    table, store = VersionedTable(history_ms), Model(history_ms)
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
