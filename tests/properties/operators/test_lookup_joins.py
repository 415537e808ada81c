"""A join whose records wait for their entry, under any cut, against a model."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.grouping import Stores
from everflow.operators.joins import JoinedTable, JoinKind
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin, WaitingRoom
from everflow.operators.joins.stream_table import AsOfJoin, HeldBack
from everflow.operators.joins.table_table import selected_type
from everflow.records import StoreChanges
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.graph import Inputs
from everflow.worker.stores import WholeTable
from properties.operators.operator_batches import apply_all
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


def room(grace_ms: int | None, most: int | None, timeout_ms: int | None = None) -> WaitingRoom:
    return WaitingRoom(
        store=WAITING,
        key_serde=KEY,
        value_serde=VALUE,
        grace_ms=grace_ms,
        most=most,
        timeout_ms=timeout_ms,
    )


def looked_up(
    kind: JoinKind, own: WaitingRoom, rows: Sequence[Row], cuts: Sequence[int]
) -> tuple[list[Result], dict[str, int], int]:
    """Results, what was dropped, and how many entries are left in the store."""
    table = Table("t")
    stores = {task: InMemoryStore(WAITING) for task in TASKS}
    join = LookupJoin(table=table.joined, kind=kind, room=own)
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
    kind: JoinKind, own: WaitingRoom, rows: Sequence[Row]
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
    join = LookupJoin(table=table.joined, kind=JoinKind.LEFT, room=own)
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
    own: WaitingRoom,
    rows: Sequence[Row],
    cuts: Sequence[int],
    steps: Sequence[tuple[int, dict[str, int | None]]],
) -> Told:
    table = [InMemoryStore(GLOBAL), InMemoryStore(GLOBAL)]
    stores = {task: InMemoryStore(WAITING) for task in TASKS}
    join = GlobalLookupJoin(table=JoinedTable(GLOBAL, VALUE, pa.int64()), kind=kind, room=own)
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
    own: WaitingRoom,
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
    """Nothing but the clock ends it: each record comes once, with its entry, or when its time is
    over."""
    own, table = room(None, None, timeout_ms), Table("t")
    stores = {task: InMemoryStore(WAITING) for task in TASKS}
    join = LookupJoin(table=table.joined, kind=kind, room=own)
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
    held = HeldBack(store=waits, key_serde=KEY, value_serde=VALUE, grace_ms=grace)
    join = AsOfJoin(
        kind=kind,
        right=right,
        type=pa.int64(),
        tolerance_ms=tolerance,
        held=held if grace else None,
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
