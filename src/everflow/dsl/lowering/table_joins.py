"""Joins of a table with another: by key, and by a foreign key (KIP-213; design note 022).

``orders.join(customers, on=..., name=...)``: an entry asks the task of its foreign key, through the
topic ``<name>-asks-repartition``; the answer comes back through ``<name>-answers-repartition``.
"""

from __future__ import annotations

from dataclasses import replace

from everflow import serdes
from everflow.dsl.expressions import Edge, Expression
from everflow.dsl.lowering.join_call import JoinCall, with_foreign_key
from everflow.dsl.lowering.stream import Stream, bytes_store
from everflow.dsl.lowering.table_reads import (
    latest_updates,
    mapped,
    read_table,
    specs_of,
    stored_table,
    tells_old,
)
from everflow.dsl.lowering.tables import kept_node, stored
from everflow.operators.joins import JoinedTable, TableTableJoin
from everflow.operators.joins.table_table import (
    SUBSCRIPTION,
    Answers,
    AskAgain,
    ForeignKeys,
    Subscriptions,
    answer_type,
)
from everflow.serdes import Serde
from everflow.topology.graph import (
    Part,
)

_FOREIGN_RESULT = "KTABLE-FK-JOIN-OUTPUT-"
"""How Kafka Streams calls the table that it makes of the results, and its store."""
_NAMES = 13
"""How many names Kafka Streams makes up for one: of its topics, processors and the store of those
who ask; with a name given, too."""


def joined_by_key(call: JoinCall, right: Stream) -> Stream:
    """The join of two tables whose entries have one key."""
    call.check_sides(right)
    left, graph, name = call.left, right.graph, call.name
    merged = graph.node_name(name, "KTABLE-MERGE-")
    sides = [
        latest_updates(graph, one.node, f"{merged}-{side}", call.operator)
        for one, side in ((left, "left"), (right, "right"))
    ]
    tables = [
        read_table(one, call.operator, sides, other.node, f"{merged}-{side}")
        for one, other, side in ((left, right, "left"), (right, left, "right"))
    ]
    parts = tuple(  # the two nodes that Kafka Streams has for the changes of either side
        Part(
            graph.node_name(None if name is None else f"{name}-join-{one}", prefix),
            (side.node,),
            tuple(table.spec.name for table in other.stored),
        )
        for one, prefix, side, other in (
            ("this", "KTABLE-JOINTHIS-", left, tables[1]),
            ("other", "KTABLE-JOINOTHER-", right, tables[0]),
        )
    )
    if call.store is None:
        parts = (*parts, Part(merged, tuple(part.name for part in parts)))
    operator = TableTableJoin(
        left=tables[0],
        right=tables[1],
        kind=call.kind,
        left_first=graph.hands_on_first(left.node, right.node),
    )
    both = left.kept(
        merged if call.store is None else f"{merged}-results",
        "JOIN",
        operator,
        edge=call.edge(left, right),
        sides=tuple(sides),
        reads=specs_of(*tables),
        parts=parts,
    )
    made = call.made(both, table=True)
    return made if call.store is None else stored(made, merged, call.store, call.operator)


def joined_by_foreign_key(call: JoinCall, right: Stream, on: Expression) -> Stream:
    """The join of a table's entries with those that they name by a foreign key."""
    graph = right.graph
    joined = _ForeignKeyJoin(call, right, on).made()
    made = call.made(joined, table=True)
    if call.store is not None:
        return stored(made, f"{joined.node}-kept", call.store, call.operator)
    name = graph.new_name(f"{_FOREIGN_RESULT}STATE-STORE-")
    values = Stream(graph, f"{made.node}-results", made.edge)
    graph.keep_when_asked(kept_node(values, made.node, name, call.operator))
    return made


class _ForeignKeyJoin:
    """A join of the call's entries with those of ``right`` under the key ``on``."""

    def __init__(self, call: JoinCall, right: Stream, on: Expression) -> None:
        self.call, self.left, self.right, self.on = call, call.left, right, on
        self.graph, self.operator, self.kind = right.graph, call.operator, call.kind

    def made(self) -> Stream:
        graph, call, operator = self.graph, self.call, self.operator
        call.check_builder(self.right)
        name = graph.check_repartition_name(call.name, f"{operator} with on=")
        graph.burn(_NAMES)
        mine = latest_updates(graph, self.left.node, f"{name}-left", operator)
        its = latest_updates(graph, self.right.node, f"{name}-right", operator)
        key_serde, value_serde = self.left.edge.serdes(operator)
        foreign_serde = self.right.edge.written_key(operator)
        asks = self._asks(name, mine, (key_serde, value_serde, foreign_serde))
        written = foreign_serde, serdes.packed(SUBSCRIPTION)
        asked = graph.repartition(f"{name}-asks", asks.node, asks.edge.type, written)
        answers = self._answers(name, [asked, its], key_serde, foreign_serde)
        return self._joined(name, answers, value_serde)

    def _asks(self, name: str, updates: str, written: tuple[Serde, Serde, Serde]) -> Stream:
        """The subscriptions: of what each entry was, and of what it is. ``written``: as what its
        key, its value and foreign keys are."""
        if not tells_old(self.graph, updates, forced=True):
            stored_table(self.graph, self.left.node, self.operator)  # says what it lacks
            raise AssertionError("a table that can be looked up knows what it was")
        source = self.left.behind(updates, self.left.edge)
        new = with_foreign_key(source, self.right, self.on, self.operator, f"{name}-new")
        edge = Edge.inside(self.right.edge.type.key, SUBSCRIPTION)
        return new.kept(f"{name}-asking", "FK-ASK", ForeignKeys(*written, self.kind), edge=edge)

    def _answers(
        self, name: str, sides: list[str], entry_serde: Serde, foreign_serde: Serde
    ) -> str:
        """The node of answers, read back in the tasks of the entries that asked."""
        store = self.graph.claim_store(f"{name}-asks", self.operator)
        edge = Edge.inside(self.left.edge.type.key, answer_type(self.right.edge.type.value))
        table = read_table(self.right, self.operator, sides, sides[0], f"{name}-right")
        operator = Subscriptions(
            store=store,
            table=table,
            entry_serde=entry_serde,
            foreign_serde=foreign_serde,
            kept=self.kind.keeps_left,
        )
        inputs, called = tuple(sides), f"{name}-answering"
        made = self.right.kept(
            called,
            "FK-ANSWER",
            operator,
            (bytes_store(store, private=True),),
            edge,
            sides=inputs,
            reads=specs_of(table),
            parts=() if isinstance(table, JoinedTable) else (Part(called, inputs, (store,)),),
        )
        written = entry_serde, serdes.packed(edge.type.value)
        return self.graph.repartition(f"{name}-answers", made.node, edge.type, written)

    def _joined(self, name: str, answers: str, value_serde: Serde) -> Stream:
        sides = list[str]()
        table = read_table(self.left, self.operator, sides, answers, f"{name}-left")
        selected = None
        if not self.kind.keeps_left:
            selected = mapped(table, self.graph.node(f"{name}-new"))
            self._ask_again(name, answers, value_serde)
        inputs = (*sides, answers)
        return self.left.kept(
            name,
            "JOIN",
            Answers(table=table, selected=selected, value_serde=value_serde, kind=self.kind),
            edge=self.call.edge(self.left, self.right),
            sides=inputs,
            reads=specs_of(table),
            parts=() if isinstance(table, JoinedTable) else (Part(name, inputs),),
        )

    def _ask_again(self, name: str, answers: str, value_serde: Serde) -> None:
        """The node that asks again for what the entries of stale answers are now: nobody else may
        tell it, as the question of an inner join is answered where there is something (note
        022)."""
        sides = [f"{name}-new"]
        table = read_table(self.left, self.operator, sides, answers, f"{name}-left")
        operator = AskAgain(
            table=table,
            selected=mapped(table, self.graph.node(sides[0])),
            key_serde=self.left.edge.written_key(self.operator),
            value_serde=value_serde,
        )
        called, inputs = f"{name}-asking-again", (*sides, answers)
        sink = self.graph.node(f"{name}-asks-repartition-sink")
        edge = Edge(sink.out, None, None)
        parts, reads = (Part(called, inputs),), specs_of(table)
        made = self.left.kept(
            called, "FK-ASK", operator, edge=edge, sides=inputs, reads=reads, parts=parts
        )
        self.graph.add(replace(sink, name=f"{name}-asks-again-sink", inputs=(made.node,)))
