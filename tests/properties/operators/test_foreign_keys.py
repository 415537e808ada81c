"""A join by a foreign key comes to the join of both tables, however updates, questions and answers
are cut and delayed; and no answer for a value that is gone is shown."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.joins import JoinedTable, JoinKind
from everflow.operators.joins.answers import Answers
from everflow.operators.joins.foreign_keys import (
    SUBSCRIPTION,
    ForeignKeys,
    Order,
    selected_type,
)
from everflow.operators.joins.subscriptions import Subscriptions
from everflow.operators.table import TableSpec
from everflow.operators.table_changes import PreviousValues
from everflow.records import EdgeBatch
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.hops import appended
from properties.operators.operator_batches import edge_batch

TEXT = serdes.string()
ORDER = serdes.json("who string, n bigint")
ORDERS = st.none() | st.fixed_dictionaries(
    {"who": st.sampled_from(["ann", "an", None]), "n": st.integers(0, 3)}
)
CHANGES = st.one_of(
    st.tuples(st.just("order"), st.sampled_from(["1", "2", "12"]), ORDERS),
    st.tuples(st.just("person"), st.sampled_from(["ann", "an"]), st.none() | st.text(max_size=2)),
)
STEPS = st.lists(
    st.one_of(
        st.lists(CHANGES, min_size=1, max_size=5),
        st.tuples(st.sampled_from(["asks", "answers"]), st.integers(1, 4)),
    ),
    max_size=12,
)


class Join:
    """Both tables in a task each, and the two topics between them."""

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
        self.before = PreviousValues(orders, pa.string())
        self.asking = ForeignKeys(TEXT, ORDER, kind, emit_every_update=every)
        self.answering = Subscriptions(
            store="asks",
            table=people,
            entry_serde=TEXT,
            foreign_serde=TEXT,
            kept=kind.keeps_left,
        )
        self.joined = Answers(table=orders, value_serde=ORDER, kind=kind, emit_every_update=True)
        self.asks, self.answers = list[EdgeBatch](), list[EdgeBatch]()
        self.shown: dict[str, Any] = {}
        self.content: dict[str, dict[str, Any]] = {"orders": {}, "people": {}}
        self.seq = 0

    def feed(self, changes: list[Any]) -> None:
        """Updates of both tables, a batch in each task."""
        for name, kind in (("orders", "order"), ("people", "person")):
            rows = [(key, value, 0) for what, key, value in changes if what == kind]
            self.content[name].update({key: value for key, value, _ in rows})
            if not rows:
                continue
            updates = self._table(name, rows)
            if name == "orders":
                old = self.before.process_tasks(updates, self._views("orders"), {0: -1}).output
                asks = self.asking.join_tasks(selected(old), selected(updates), {}, {}).output
                self._apply("orders", updates)
                self.asks.append(self._sent(asks))
            else:
                self._answer(None, updates)
                self._apply("people", updates)

    def deliver(self, topic: str, count: int) -> None:
        """The next records of a topic, in one batch."""
        queue = self.asks if topic == "asks" else self.answers
        if not queue:
            return
        waiting = appended(queue)
        taken, rest = (
            waiting.take(np.arange(begin, end))
            for begin, end in ((0, min(count, len(waiting))), (count, max(count, len(waiting))))
        )
        queue[:] = [rest] if len(rest) else []
        if topic == "asks":
            self._answer(taken, None)
        else:
            none = edge_batch([], ORDER.type, 0)
            done = self.joined.join_tasks(none, taken, self._views("orders"), {}).output
            self.shown.update(zip(done.key.to_pylist(), done.value.to_pylist(), strict=True))

    def _table(self, name: str, rows: list[Any]) -> EdgeBatch:
        batch = self._sent(edge_batch(rows, self.specs[name].value_serde.type, 0))
        return self.specs[name].process_tasks(batch, self._views(name), {0: -1}).output

    def _sent(self, batch: EdgeBatch) -> EdgeBatch:
        """As read from a topic: each record has a place of its own."""
        seq = np.arange(self.seq, self.seq + len(batch), dtype=np.int64)
        self.seq += len(batch)
        return replace(batch, seq=seq, partition=np.zeros(len(batch), np.int32))

    def _answer(self, asks: EdgeBatch | None, updates: EdgeBatch | None) -> None:
        none = edge_batch([], pa.string(), 0)
        if asks is None:
            empty = self.asking.join_tasks(*[edge_batch([], WANTED, 0)] * 2, {}, {})  # type: ignore[arg-type,call-arg]
            asks = empty.output
        done = self.answering.join_tasks(
            asks, none if updates is None else updates, self._views("asks", "people"), {0: -1}
        )
        for changes in done.changes.get(0, []):
            self.stores["asks"].apply(changes)
        if len(done.output):
            self.answers.append(self._sent(done.output))

    def _views(self, *names: str) -> Any:
        return {0: {name: self.stores[name] for name in names}}

    def _apply(self, name: str, updates: EdgeBatch) -> None:
        rows = zip(updates.key.to_pylist(), updates.value.to_pylist(), strict=True)
        done = self.specs[name].process_tasks(
            self._sent(
                edge_batch([(k, v, 0) for k, v in rows], self.specs[name].value_serde.type, 0)
            ),
            self._views(name),
            {0: -1},
        )
        for changes in done.changes.get(0, []):
            self.stores[name].apply(changes)


WANTED = selected_type(pa.string(), ORDER.type)


def selected(batch: EdgeBatch) -> EdgeBatch:
    chosen = [
        None if value is None else {"fk": value["who"], "value": value}
        for value in batch.value.to_pylist()
    ]
    return batch.with_columns(value=pa.array(chosen, WANTED))


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, kind=st.sampled_from([JoinKind.INNER, JoinKind.LEFT]), every=st.booleans())
def test_it_comes_to_the_join_of_both_tables(steps: Any, kind: JoinKind, every: bool) -> None:
    join = Join(kind, every)
    for step in steps:
        if isinstance(step, list):
            join.feed(step)
        else:
            join.deliver(*step)
        # What is shown was right for the entry that there is, or for one before it.
        orders = join.content["orders"]
        assert all(value is None or key in orders for key, value in join.shown.items())
    while join.asks or join.answers:
        join.deliver("asks", 3)
        join.deliver("answers", 2)
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


ASKS = st.tuples(
    st.sampled_from(["ann", "an", None]),
    st.sampled_from([b"1", b"12"]),
    st.sampled_from([b"x", b"y"]),
    st.sampled_from(list(Order)),
)
UPDATES = st.tuples(st.sampled_from(["ann", "an"]), st.none() | st.text(max_size=2))
TASKS = (0, 1)


@settings(max_examples=300, deadline=None)
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
        table = spec.process_tasks(updates, stores, times)
        done = answering.join_tasks(asks, table.output, stores, times)
        for changes in (table.changes, done.changes):
            for task, listed in changes.items():
                for one in listed:
                    stores[task][one.store].apply(one)
        found += zip(
            done.output.seq.tolist(),
            done.output.partition.tolist(),
            done.output.key.to_pylist(),
            done.output.value.to_pylist(),
            done.output.timestamp.tolist(),
            strict=True,
        )
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
