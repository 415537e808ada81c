"""Joins in micro-batches, however they are cut, against models that take record after record."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everflow import serdes
from everflow.columns.key_partitions import java_partitions
from everflow.operators.joins import (
    JoinedTable,
    JoinKind,
    StreamStreamJoin,
    StreamTableJoin,
    TableTableJoin,
)
from everflow.operators.joins.joined_table import MappedTable
from everflow.operators.joins.stream_table import StreamGlobalJoin
from everflow.operators.joins.table_table import (
    SUBSCRIPTION,
    Answers,
    AskAgain,
    ForeignKeys,
    Order,
    Subscriptions,
    selected_type,
)
from everflow.operators.table import TableSpec
from everflow.records import EdgeBatch, StoreChanges
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.batches import appended
from everflow.topology.graph import Inputs
from everflow.windows import JoinWindows
from everflow.worker.stores import WholeTable
from properties.operators.operator_batches import apply_all, edge_batch, rows_of
from unit.builders import store_spec

TASKS = (0, 1)
KEY, VALUE = serdes.string(), serdes.long()


class Row(NamedTuple):
    left: bool
    partition: int
    key: str | None
    value: int | None
    time: int


class Result(NamedTuple):
    partition: int
    key: str | None
    value: tuple[int | None, int | None] | None
    time: int


ROWS = st.lists(
    st.builds(
        Row,
        st.booleans(),
        st.sampled_from(TASKS),
        st.sampled_from(["a", "b", "a", "ab", None]),
        st.sampled_from([1, 2, 3, 4, None]),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=30,
)
CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=12)
KINDS = st.sampled_from(list(JoinKind))


def batches(rows: Sequence[Row], cuts: Sequence[int]) -> list[list[tuple[int, Row]]]:
    found, at, turn = [], 0, 0
    placed = list(enumerate(rows))
    while at < len(placed):
        size = cuts[turn % len(cuts)]
        found.append(placed[at : at + size])
        at, turn = at + size, turn + 1
    return found


def side(rows: Sequence[tuple[int, Row]], left: bool) -> EdgeBatch:
    mine = [(place, row) for place, row in rows if row.left == left]
    batch = edge_batch([(row.key, row.value, row.time) for _, row in mine], pa.int64(), 0)
    batch.seq[:] = [place for place, _ in mine]
    batch.partition[:] = [row.partition for _, row in mine]
    return batch


def results(batch: EdgeBatch) -> list[Result]:
    return [
        Result(task, key, v and (v["left"], v["right"]), time)
        for task, key, v, time in rows_of(batch, "partition key value timestamp")
    ]


class Table:
    """A table beside a join: its operator, and each task's store."""

    def __init__(self, name: str) -> None:
        spec = StoreSpec(name=name, kind="key_value", key_serde=KEY, value_serde=VALUE)
        self.operator = TableSpec(name, KEY, VALUE, emit_every_update=True)
        self.joined = JoinedTable(spec, self.operator.results, pa.int64())
        self.name = name
        self.stores = {task: InMemoryStore(spec) for task in TASKS}

    def changed(self, batch: EdgeBatch) -> tuple[EdgeBatch, Callable[[], None]]:
        views = {task: {self.name: store} for task, store in self.stores.items()}
        done = self.operator.run(Inputs((batch,), views, dict.fromkeys(TASKS, -1)))

        def apply() -> None:
            apply_all(done, self.stores)

        return done.output, apply


def stream_table(kind: JoinKind, rows: Sequence[Row], cuts: Sequence[int]) -> list[Result]:
    table = Table("t")
    join, found = StreamTableJoin(table.joined, kind), list[Result]()
    for batch in batches(rows, cuts):
        updates, apply = table.changed(side(batch, left=False))
        views = {task: {"t": store} for task, store in table.stores.items()}
        done = join.run(Inputs((side(batch, left=True), updates), views, dict.fromkeys(TASKS, -1)))
        apply()
        found += results(done.output)
    return found


def stream_table_model(kind: JoinKind, rows: Sequence[Row]) -> list[Result]:
    held: dict[tuple[int, str | None], int | None] = {}
    found = []
    for row in rows:
        place = (row.partition, row.key)
        if not row.left:
            if row.key is not None:
                held[place] = row.value
        elif row.value is not None:
            other = None if row.key is None else held.get(place)
            if other is not None or kind is JoinKind.LEFT:
                found.append(Result(row.partition, row.key, (row.value, other), row.time))
    return found


@given(st.sampled_from([JoinKind.INNER, JoinKind.LEFT]), ROWS, CUTS)
def test_records_see_the_table_as_it_was(kind: JoinKind, rows: list[Row], cuts: list[int]) -> None:
    assert stream_table(kind, rows, cuts) == stream_table_model(kind, rows)


def table_table(
    kind: JoinKind, rows: Sequence[Row], cuts: Sequence[int], every: bool = True
) -> list[list[Result]]:
    left, right = Table("l"), Table("r")
    join = TableTableJoin(
        left=replace(left.joined, side=0), right=right.joined, kind=kind, emit_every_update=every
    )
    found = []
    for batch in batches(rows, cuts):
        lefts, apply_left = left.changed(side(batch, left=True))
        rights, apply_right = right.changed(side(batch, left=False))
        views = {task: {"l": left.stores[task], "r": right.stores[task]} for task in TASKS}
        lefts, rights = (
            replace(one, old=one.with_columns(value=table.joined.before(one, views).values))
            for one, table in ((lefts, left), (rights, right))
        )
        done = join.run(Inputs((lefts, rights), views, dict.fromkeys(TASKS, -1)))
        apply_left()
        apply_right()
        found.append(results(done.output))
    return found


def table_table_model(kind: JoinKind, rows: Sequence[Row]) -> list[Result]:
    """KTableKTableInnerJoin, -LeftJoin, -RightJoin and -OuterJoin of Kafka 4, with old values."""
    held: dict[tuple[bool, int, str], tuple[int, int]] = {}
    found = []
    for row in rows:
        if row.key is None:
            continue
        mine, its = (row.left, row.partition, row.key), (not row.left, row.partition, row.key)
        old = held.pop(mine, (None, -1))[0]
        if row.value is not None:
            held[mine] = (row.value, row.time)
        other, other_time = held.get(its, (None, -1))
        own_kept = kind is JoinKind.OUTER or (kind is JoinKind.LEFT and row.left)
        if other is None and (not own_kept or (row.value is None and old is None)):
            continue
        left, right = (row.value, other) if row.left else (other, row.value)
        there = {
            JoinKind.INNER: left is not None and right is not None,
            JoinKind.LEFT: left is not None,
            JoinKind.OUTER: left is not None or right is not None,
        }[kind]
        value = (left, right) if there else None
        found.append(Result(row.partition, row.key, value, max(row.time, other_time)))
    return found


@given(KINDS, ROWS, CUTS)
def test_two_tables_give_each_change(kind: JoinKind, rows: list[Row], cuts: list[int]) -> None:
    told = [one for batch in table_table(kind, rows, cuts) for one in batch]
    assert told == table_table_model(kind, rows)


@given(KINDS, ROWS, CUTS)
def test_two_tables_give_the_last_change(kind: JoinKind, rows: list[Row], cuts: list[int]) -> None:
    for last, every in zip(
        table_table(kind, rows, cuts, every=False), table_table(kind, rows, cuts), strict=True
    ):
        kept = {(one.partition, one.key): one for one in every}
        assert {(one.partition, one.key): one for one in last} == kept
        assert len(last) == len(kept)


@dataclass
class Waits:
    """A record of the model: it is in its window store, and may wait for a match."""

    row: Row
    number: int
    waits: bool


@dataclass
class StreamModel:
    """The rule of `stream_stream`, record after record, for one task: Kafka Streams' own, but for
    one that comes within the grace, which waits."""

    kind: JoinKind
    windows: JoinWindows
    stream_time: int = -1
    side_times: dict[bool, int] = field(default_factory=lambda: {True: -1, False: -1})
    there: list[Waits] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    found: list[Result] = field(default_factory=list)

    def kept(self, left: bool) -> bool:
        return self.kind.keeps_left if left else self.kind.keeps_right

    def over(self, row: Row) -> bool:
        ahead = self.windows.after_ms if row.left else self.windows.before_ms
        return row.time + ahead + self.windows.grace_ms < self.stream_time

    def in_store(self, row: Row) -> bool:
        stays = self.windows.size_ms + self.windows.grace_ms
        return row.time + stays >= self.side_times[row.left]

    def give(self, of: Row, other: Row | None, key: str | None, time: int) -> None:
        mine, its = of.value, None if other is None else other.value
        value = (mine, its) if of.left else (its, mine)
        self.found.append(Result(of.partition, key, value, time))

    def count(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def take(self, row: Row) -> None:
        self.stream_time = max(self.stream_time, row.time)
        if row.value is None:
            return self.count("null-value")
        if row.key is None:
            if self.kept(row.left):
                return self.give(row, None, None, row.time)
            return self.count("null-key")
        if row.time == self.stream_time:
            self.close()
        self.side_times[row.left] = max(self.side_times[row.left], row.time)
        self.meet(row)
        return None

    def close(self) -> None:
        closed = [w for w in self.there if w.waits and self.over(w.row)]
        for one in sorted(closed, key=lambda w: (w.row.time, w.row.left, w.row.key, w.number)):
            one.waits = False
            self.give(one.row, None, one.row.key, one.row.time)

    def meet(self, row: Row) -> None:
        back, ahead = self.windows.before_ms, self.windows.after_ms
        if not row.left:
            back, ahead = ahead, back
        met = [
            w
            for w in self.there
            if w.row.left != row.left
            and w.row.key == row.key
            and row.time - back <= w.row.time <= row.time + ahead
            and self.in_store(w.row)
        ]
        for other in sorted(met, key=lambda w: (w.row.time, w.number)):
            other.waits = False
            self.give(row, other.row, row.key, max(row.time, other.row.time))
        kept, there = self.kept(row.left), self.in_store(row)
        if kept and not met and self.over(row):
            self.give(row, None, row.key, row.time)
            self.count("late-unmatched")
        elif not kept and not met and not there:
            self.count("late")
        if there or (kept and not met and not self.over(row)):
            waits = kept and not met and not self.over(row)
            self.there.append(Waits(row, len(self.there), waits))


class StreamJoin:
    def __init__(self, kind: JoinKind, windows: JoinWindows) -> None:
        self.kind, self.windows = kind, windows
        retention = windows.size_ms + windows.grace_ms + 1
        window_stores = [
            store_spec(name, "window", key=KEY, value=VALUE, retention_ms=retention)
            for name in ("l", "r")
        ]
        raw = serdes.bytes_()
        waiting = StoreSpec(name="w", kind="key_value", key_serde=raw, value_serde=raw)
        self.operator = StreamStreamJoin(
            kind,
            windows,
            (window_stores[0], window_stores[1]),
            (pa.int64(), pa.int64()),
            waiting if kind.keeps_left else None,
        )
        self.stores = {
            task: {spec.name: InMemoryStore(spec) for spec in (*window_stores, waiting)}
            for task in TASKS
        }
        self.times = dict.fromkeys(TASKS, -1)
        self.dropped = Counter[str]()

    def run(self, batch: Sequence[tuple[int, Row]]) -> list[Result]:
        there = {row.partition for _, row in batch}
        done = self.operator.run(
            Inputs(
                (side(batch, left=True), side(batch, left=False)),
                {task: self.stores[task] for task in there},
                {task: self.times[task] for task in there},
            )
        )
        self.times.update(done.stream_times)
        apply_all(done, self.stores)
        self.dropped.update(done.dropped)
        return results(done.output)

    def content(self) -> Any:
        return {
            (task, name): list(store.range(None, None))
            for task, stores in self.stores.items()
            for name, store in stores.items()
        }


WINDOWS = st.builds(
    lambda before, size, grace: JoinWindows(before, size - before, grace),
    st.integers(-6, 12),
    st.integers(0, 12),
    st.integers(0, 6),
)


@given(KINDS, WINDOWS, ROWS, CUTS)
def test_two_streams_give_what_one_record_after_the_other_gives(
    kind: JoinKind, windows: JoinWindows, rows: list[Row], cuts: list[int]
) -> None:
    join = StreamJoin(kind, windows)
    models = {task: StreamModel(kind, windows) for task in TASKS}
    for batch in batches(rows, cuts):
        told = join.run(batch)
        for task, model in models.items():
            model.found.clear()
            for _, row in batch:
                if row.partition == task:
                    model.take(row)
            assert [one for one in told if one.partition == task] == model.found
    dropped = Counter[str]()
    for model in models.values():
        dropped.update(model.dropped)
    assert join.dropped == dropped
    one_by_one = StreamJoin(kind, windows)
    for batch in batches(rows, [1]):
        one_by_one.run(batch)
    assert join.content() == one_by_one.content()


def told(join: StreamJoin, rows: Sequence[Row]) -> list[Result]:
    """Of the rows in one micro-batch, and the same one by one, which has to be equal."""
    one_by_one = StreamJoin(join.kind, join.windows)
    found = join.run(list(enumerate(rows)))
    assert [r for batch in batches(rows, [1]) for r in one_by_one.run(batch)] == found
    assert one_by_one.dropped == join.dropped
    return found


@pytest.mark.parametrize("kind", list(JoinKind))
def test_no_record_gives_a_result_with_and_one_without_a_match(kind: JoinKind) -> None:
    """KAFKA-19536: in the original who comes when its window is over is matched once more."""
    join = StreamJoin(kind, JoinWindows.of_time_difference(10).grace(5))
    rows = [
        Row(True, 0, "a", 1, 100),
        Row(False, 0, "b", 2, 113),
        Row(True, 0, "a", 3, 101),
        Row(False, 0, "a", 4, 100),
    ]
    assert told(join, rows) == [Result(0, "a", (1, 4), 100), Result(0, "a", (3, 4), 101)]


@pytest.mark.parametrize("kind", list(JoinKind))
def test_a_late_row_of_the_outer_side_is_emitted_at_once_and_counted(kind: JoinKind) -> None:
    join = StreamJoin(kind, JoinWindows.of_time_difference(10).grace(5))
    rows = [
        Row(False, 0, "b", 1, 200),
        Row(True, 0, "b", 2, 200),
        Row(True, 0, "a", 3, 150),
        Row(False, 0, "a", 4, 100),
    ]
    unmatched = [Result(0, "a", (3, None), 150)] if kind is not JoinKind.INNER else []
    if kind is JoinKind.OUTER:
        unmatched.append(Result(0, "a", (None, 4), 100))
    assert told(join, rows) == [Result(0, "b", (2, 1), 200), *unmatched]
    lost = {JoinKind.INNER: {"late": 2}, JoinKind.LEFT: {"late": 1}, JoinKind.OUTER: {}}[kind]
    assert join.dropped == lost | ({"late-unmatched": len(unmatched)} if unmatched else {})


@pytest.mark.parametrize("kind", list(JoinKind))
def test_a_late_record_meets_what_the_other_store_still_has(kind: JoinKind) -> None:
    """The right record is in the store up to 120 of its own side's time, which does not go on."""
    join = StreamJoin(kind, JoinWindows.of_time_difference(10).grace(0))
    rows = [Row(False, 0, "a", 1, 100), Row(True, 0, "b", 2, 500), Row(True, 0, "a", 3, 95)]
    found = told(join, rows)
    closed = [Result(0, "a", (None, 1), 100)] if kind is JoinKind.OUTER else []
    assert found == [*closed, Result(0, "a", (3, 1), 100)]
    assert join.dropped == {}


@pytest.mark.parametrize("kind", [JoinKind.LEFT, JoinKind.OUTER])
def test_a_late_match_corrects_a_result_without_one(kind: JoinKind) -> None:
    """The left record closed without a match; its store still has it, as Kafka Streams' has."""
    join = StreamJoin(kind, JoinWindows.of_time_difference(10).grace(5))
    rows = [Row(True, 0, "a", 1, 100), Row(True, 0, "b", 2, 116), Row(False, 0, "a", 3, 100)]
    found = told(join, rows)
    assert found == [Result(0, "a", (1, None), 100), Result(0, "a", (1, 3), 100)]
    assert join.dropped == {}


# Joins with global tables against a model.


SPEC = StoreSpec(name="g", kind="key_value", key_serde=KEY, value_serde=VALUE, logging=False)
TABLE = JoinedTable(SPEC, VALUE, pa.int64())
TYPE = selected_type(pa.string(), pa.int64())
KEYS = st.sampled_from(["a", "b", "ab", "", "c"])
CONTENT = st.dictionaries(KEYS, st.integers(-5, 5))
GLOBAL_ROWS = st.lists(
    st.tuples(KEYS | st.none(), KEYS | st.none(), st.integers(0, 9) | st.none(), st.integers(0, 9)),
    max_size=25,
)


def store(entries: Sequence[tuple[str, int]]) -> InMemoryStore:
    found = InMemoryStore(SPEC)
    keys = [key.encode() for key, _ in entries]
    values = [VALUE.encode(value) for _, value in entries]
    found.apply(StoreChanges("g", keys, values, np.arange(len(keys))))
    return found


def model(
    kind: JoinKind, rows: Sequence[tuple[Any, ...]], content: dict[str, int]
) -> tuple[list[Any], dict[str, int]]:
    """KStreamKTableJoinProcessor of Kafka 4, with a key mapper."""
    results, dropped = [], dict[str, int]()
    for key, mapped, value, time in rows:
        if value is None or (mapped is None and kind is JoinKind.INNER):
            reason = "null-value" if value is None else "null-key"
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        other = None if mapped is None else content.get(mapped)
        if other is not None or kind is JoinKind.LEFT:
            results.append((key, (value, other, mapped), time))
    return results, dropped


@given(
    st.sampled_from([JoinKind.INNER, JoinKind.LEFT]), GLOBAL_ROWS, CONTENT, st.booleans(), st.data()
)
def test_each_record_meets_the_entry_of_its_mapped_key(
    kind: JoinKind,
    rows: list[tuple[Any, ...]],
    content: dict[str, int],
    mapped: bool,
    data: st.DataObject,
) -> None:
    parts: list[list[tuple[str, int]]] = [[] for _ in range(data.draw(st.integers(1, 4)))]
    for entry in content.items():
        parts[data.draw(st.integers(0, len(parts) - 1))].append(entry)
    whole = WholeTable([store(part) for part in parts])
    made = [
        (key, None if value is None and at % 2 else {"fk": fk, "value": value}, time)
        for at, (key, fk, value, time) in enumerate(rows)
    ]
    batch = edge_batch(made, TYPE, 0)
    done = StreamGlobalJoin(TABLE, kind, mapped).run(Inputs((batch,), {0: {"g": whole}}))
    found = [
        (key, (value["left"], value["right"], value.get("mapped")), time)
        for key, value, time in rows_of(done.output, "key value timestamp")
    ]
    wanted, dropped = model(kind, rows, content)
    if not mapped:
        wanted = [(key, (*value[:2], None), time) for key, value, time in wanted]
    assert (found, done.dropped) == (wanted, dropped)


@given(st.lists(CONTENT, min_size=1, max_size=4), st.lists(KEYS, max_size=12))
def test_a_key_is_first_of_its_partition(contents: list[dict[str, int]], asked: list[str]) -> None:
    whole = WholeTable([store(list(part.items())) for part in contents])
    keys = [key.encode() for key in asked]

    def wanted(key: bytes) -> bytes | None:
        home = int(java_partitions(pa.array([key], pa.binary()), len(contents))[0])
        order = [home, *(at for at in range(len(contents)) if at != home)]
        found = [contents[at][key.decode()] for at in order if key.decode() in contents[at]]
        return VALUE.encode(found[0]) if found else None

    found = whole.get_many(keys)
    assert [None if one is None else one[8:] for one in found] == [wanted(key) for key in keys]
    listed = [key.decode() for key, _ in whole.range(None, None)]
    assert listed == sorted(set().union(*contents))


# A join by a foreign key comes to the join of both tables, however all is cut and delayed.


TEXT = serdes.string()
ORDER = serdes.json("who string, n bigint")
ORDERS = st.none() | st.fixed_dictionaries(
    {"who": st.sampled_from(["ann", "an", None]), "n": st.integers(0, 3)}
)
CHANGES = st.one_of(
    st.tuples(st.just("order"), st.sampled_from(["1", "2", "12"]), ORDERS),
    st.tuples(st.just("person"), st.sampled_from(["ann", "an"]), st.none() | st.text(max_size=2)),
)
ORDER_CHANGES = st.lists(st.tuples(st.sampled_from(["1", "2", "12"]), ORDERS), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.lists(CHANGES, min_size=1, max_size=5),
        st.tuples(st.sampled_from(["ann", "an", None]), st.integers(1, 4)),
        st.tuples(ORDER_CHANGES, st.integers(1, 4), ORDER_CHANGES),
    ),
    max_size=12,
)
FIRST = [("order", "1", {"who": "ann", "n": 0}), ("person", "ann", "x")]
"""A result that is shown: what then becomes of it is where joins go wrong."""
OTHERS = [("1", {"who": "an", "n": 1})]


class Join:
    """Both tables in a task each, and the two topics between them: of the questions a partition for
    each foreign key, of the answers one."""

    def __init__(self, kind: JoinKind, every: bool) -> None:
        self.stores = {name: InMemoryStore() for name in ("orders", "people", "asks")}
        self.specs = {
            "orders": TableSpec("orders", TEXT, ORDER, emit_every_update=True),
            "people": TableSpec("people", TEXT, TEXT, emit_every_update=True),
        }
        orders, people = (
            JoinedTable(
                StoreSpec(name=name, kind="key_value", key_serde=TEXT, value_serde=serde),
                serde,
                serde.type,
            )
            for name, serde in (("orders", ORDER), ("people", TEXT))
        )
        self.kind, self.every = kind, every
        self.orders = orders
        self.asking = ForeignKeys(TEXT, ORDER, TEXT, kind, emit_every_update=every)
        self.answering = Subscriptions(
            store="asks", table=people, entry_serde=TEXT, foreign_serde=TEXT, kept=kind.keeps_left
        )
        self.joined = Answers(
            table=replace(orders, side=0),
            selected=None if kind.keeps_left else mapped(replace(orders, side=0)),
            value_serde=ORDER,
            kind=kind,
            emit_every_update=every,
        )
        self.asks: dict[str | None, list[EdgeBatch]] = {"ann": [], "an": [], None: []}
        self.answers = list[EdgeBatch]()
        self.shown: dict[str, Any] = {}
        self.content: dict[str, dict[str, Any]] = {"orders": {}, "people": {}}
        self.seq = 0

    def feed(self, changes: list[Any]) -> None:
        orders, people = (
            [(key, value) for what, key, value in changes if what == kind]
            for kind in ("order", "person")
        )
        if orders:
            self.deliver_answers(orders, 0, [])
        if people:
            updates, store = self._table("people", [self._rows("people", people)])
            self._answer(None, updates)
            self.stores["people"].apply(store)

    def deliver_asks(self, foreign: str | None, count: int) -> None:
        for asks in self._next(self.asks[foreign], count):
            self._answer(asks, None)

    def deliver_answers(self, before: list[Any], count: int, after: list[Any]) -> None:
        """The next answers, in one batch with changes of orders before and behind them."""
        first = self._rows("orders", before)
        answers = [self._sent(one) for one in self._next(self.answers, count)]
        rows = [first, self._rows("orders", after)]
        updates, store = self._table("orders", rows)
        was = self.orders.before(updates, self._views("orders")).values
        side = replace(selected(updates), old=selected(updates.with_columns(value=was)))
        asks = [self.asking.run(Inputs([side])).output]
        for one in answers:
            done, again = self._results(updates, one)
            self.shown.update(zip(done.key.to_pylist(), done.value.to_pylist(), strict=True))
            asks += again
        if store is not None:
            self.stores["orders"].apply(store)
        for foreign, queue in self.asks.items():
            for sent in asks:
                mine = [row for row, key in enumerate(sent.key.to_pylist()) if key == foreign]
                if mine:
                    queue.append(self._sent(sent.take(np.array(mine, np.int64))))

    def _results(self, updates: EdgeBatch, answers: EdgeBatch) -> tuple[EdgeBatch, list[EdgeBatch]]:
        views = self._views("orders")
        inputs = Inputs((updates, answers), views, through=lambda nodes, rows: selected(rows))
        shown = self.joined.run(inputs).output
        if self.kind.keeps_left:
            return shown, []
        ask_again = AskAgain(
            table=self.orders, selected=mapped(self.orders), key_serde=TEXT, value_serde=ORDER
        )
        inputs = inputs._replace(sides=(selected(updates), updates, answers))
        return shown, [ask_again.run(inputs).output]

    def _next(self, queue: list[EdgeBatch], count: int) -> list[EdgeBatch]:
        """The next records of a topic, in one batch; none where there are none."""
        if not queue or not count:
            return []
        waiting = appended(queue)
        taken, rest = (
            waiting.take(np.arange(begin, end))
            for begin, end in ((0, min(count, len(waiting))), (count, max(count, len(waiting))))
        )
        queue[:] = [rest] if len(rest) else []
        return [taken]

    def _rows(self, name: str, changes: list[Any]) -> EdgeBatch:
        self.content[name].update(changes)
        rows = [(key, value, 0) for key, value in changes]
        return self._sent(edge_batch(rows, self.specs[name].value_serde.type, 0))

    def _table(self, name: str, rows: list[EdgeBatch]) -> tuple[EdgeBatch, Any]:
        """A table's updates, and what changes in its store behind the batch."""
        done = self.specs[name].run(Inputs((appended(rows),), self._views(name), {0: -1}))
        return done.output, next(iter(done.changes.get(0, [])), None)

    def _sent(self, batch: EdgeBatch) -> EdgeBatch:
        """As read from a topic: each record has a place of its own."""
        seq = np.arange(self.seq, self.seq + len(batch), dtype=np.int64)
        self.seq += len(batch)
        return replace(batch, seq=seq, partition=np.zeros(len(batch), np.int32))

    def _answer(self, asks: EdgeBatch | None, updates: EdgeBatch | None) -> None:
        none = edge_batch([], pa.string(), 0)
        if asks is None:
            none_at_all = edge_batch([], WANTED, 0)
            empty = self.asking.run(Inputs([replace(none_at_all, old=none_at_all)]))
            asks = empty.output
        done = self.answering.run(
            Inputs(
                (asks, none if updates is None else updates), self._views("asks", "people"), {0: -1}
            )
        )
        for changes in done.changes.get(0, []):
            self.stores["asks"].apply(changes)
        if len(done.output):
            self.answers.append(self._sent(done.output))

    def _views(self, *names: str) -> Any:
        return {0: {name: self.stores[name] for name in names}}


WANTED = selected_type(pa.string(), ORDER.type)


def mapped(orders: JoinedTable) -> MappedTable:
    return MappedTable(orders, ("orders-new",), WANTED)


def selected(batch: EdgeBatch) -> EdgeBatch:
    chosen = [
        None if value is None else {"fk": value["who"], "value": value}
        for value in batch.value.to_pylist()
    ]
    return batch.with_columns(value=pa.array(chosen, WANTED))


@given(
    first=st.sampled_from([[], FIRST]),
    steps=STEPS,
    kind=st.sampled_from([JoinKind.INNER, JoinKind.LEFT]),
    every=st.booleans(),
)
# The answer to the first value comes while the entry is another's, in the middle of a batch that
# gives it back, or deletes it; what it is in the middle is asked for by nobody.
@example(
    first=[*FIRST, ("person", "an", "y")],
    steps=[[("person", "ann", None)], (OTHERS, 1, [("1", {"who": "ann", "n": 2})])],
    kind=JoinKind.INNER,
    every=False,
)
@example(
    first=FIRST,
    steps=[[("order", "1", None)], ("ann", 1), (OTHERS, 1, [("1", None)])],
    kind=JoinKind.INNER,
    every=False,
)
def test_it_comes_to_the_join_of_both(first: Any, steps: Any, kind: JoinKind, every: bool) -> None:
    join = Join(kind, every)
    join.feed(first)
    come_to_rest(join)
    for step in steps:
        if isinstance(step, list):
            join.feed(step)
        elif len(step) == 2:
            join.deliver_asks(*step)
        else:
            join.deliver_answers(*step)
        # What is shown was right for the entry that there is, or for one before it.
        orders = join.content["orders"]
        assert all(value is None or key in orders for key, value in join.shown.items())
    come_to_rest(join)
    wanted = {
        key: {"left": order, "right": join.content["people"].get(order["who"])}
        for key, order in join.content["orders"].items()
        if order is not None
    }
    if kind is JoinKind.INNER:
        wanted = {key: both for key, both in wanted.items() if both["right"] is not None}
    assert {key: value for key, value in join.shown.items() if value is not None} == wanted
    kept = [order["who"] for order in join.content["orders"].values() if order is not None]
    assert len(join.stores["asks"]) == sum(who is not None for who in kept)


def come_to_rest(join: Join) -> None:
    for _ in range(1_000):
        if not join.answers and not any(join.asks.values()):
            return
        for foreign in join.asks:
            join.deliver_asks(foreign, 3)
        join.deliver_answers([], 2, [])
    raise AssertionError("questions and answers without an end")


ASKS = st.tuples(
    st.sampled_from(["ann", "an", None]),
    st.sampled_from([b"1", b"12"]),
    st.sampled_from([b"x", b"y"]),
    st.sampled_from(list(Order)),
)
UPDATES = st.tuples(st.sampled_from(["ann", "an"]), st.none() | st.text(max_size=2))


@given(
    rows=st.lists(st.tuples(st.sampled_from(TASKS), ASKS | UPDATES), min_size=1, max_size=20),
    cuts=st.lists(st.integers(1, 8), min_size=1, max_size=5),
)
def test_asks_and_updates_of_one_batch_are_taken_in_their_order(rows: Any, cuts: Any) -> None:
    assert asked(rows, cuts) == asked(rows, [1])


def asked(rows: list[Any], cuts: list[int]) -> tuple[list[Any], list[Any]]:
    """The answers, and what is remembered, where the rows come in batches of these sizes."""
    found: list[Any] = []
    people = JoinedTable(
        StoreSpec(name="people", kind="key_value", key_serde=TEXT, value_serde=TEXT),
        TEXT,
        TEXT.type,
    )
    spec = TableSpec("people", TEXT, TEXT, emit_every_update=True)
    answering = Subscriptions(
        store="asks", table=people, entry_serde=TEXT, foreign_serde=TEXT, kept=True
    )
    stores = {task: {name: InMemoryStore() for name in ("asks", "people")} for task in TASKS}
    begin, sizes = 0, itertools.cycle(cuts)
    while begin < len(rows):
        end = begin + next(sizes)
        part, begin = list(enumerate(rows[begin:end], begin)), end
        asks = placed([one for one in part if len(one[1][1]) == 4], None)
        updates = placed([one for one in part if len(one[1][1]) == 2], pa.string())
        times = dict.fromkeys(TASKS, -1)
        table = spec.run(Inputs((updates,), stores, times))
        done = answering.run(Inputs((asks, table.output), stores, times))
        for changes in (table.changes, done.changes):
            for task, listed in changes.items():
                for one in listed:
                    stores[task][one.store].apply(one)
        found += rows_of(done.output, "seq partition key value timestamp")
    return found, [list(stores[task]["asks"].range(None, None)) for task in TASKS]


def placed(part: list[Any], value: pa.DataType | None) -> EdgeBatch:
    """Rows as they were drawn, each with its place; subscriptions where there is no type."""
    names = [field.name for field in SUBSCRIPTION]
    rows = [
        (what[0], what[1] if value else dict(zip(names, what[1:], strict=True)), place)
        for place, (_, what) in part
    ]
    return replace(
        edge_batch(rows, value or SUBSCRIPTION, 0),
        seq=np.array([place for place, _ in part], np.int64),
        partition=np.array([task for _, (task, _) in part], np.int32),
    )
