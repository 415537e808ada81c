"""Records that wait for an entry of a global table, or by the clock, against a model."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow.operators.grouping import Stores
from everflow.operators.joins import JoinedTable, JoinKind
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin, WaitingRoom
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
from properties.operators.test_lookup_joins import WAITING, room, unique

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


def model(
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
    told, expected = (run(kind, own, records, cuts, steps) for run in (joined, model))
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
