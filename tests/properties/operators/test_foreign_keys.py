"""A join by a foreign key comes to the join of both tables, however all is cut and delayed."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.joins import JoinedTable, JoinKind
from everflow.operators.joins.joined_table import MappedTable
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
from everflow.records import EdgeBatch
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.batches import appended
from everflow.topology.graph import Inputs
from properties.operators.operator_batches import edge_batch, rows_of

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
        """Updates of both tables, a batch in each task."""
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
        """The next questions of a foreign key, in one batch."""
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
        """What is shown, and what is asked again."""
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
TASKS = (0, 1)


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
