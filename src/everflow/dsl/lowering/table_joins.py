"""Joins of a table with another: by key, and by a foreign key (KIP-213; design note 022).

``orders.join(customers, on=..., name=...)``: an entry asks the task of its foreign key, through the
topic ``<name>-asks-repartition``; the answer comes back through ``<name>-answers-repartition``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import functions as F

from everflow import serdes
from everflow.dsl.expressions import (
    Expression,
    ForeignKeyOf,
    TableMapper,
    is_column,
    key_value_function,
    unless_deleted,
)
from everflow.dsl.lowering.join_call import JoinCall
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.lowering.table_reads import (
    latest_updates_of_both,
    mapped,
    read_table,
    specs_of,
    stored_table,
    tells_old,
)
from everflow.dsl.lowering.tables import kept_node, stored
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, JoinKind, TableTableJoin
from everflow.operators.joins.foreign_keys import (
    SUBSCRIPTION,
    Answers,
    AskAgain,
    ForeignKeys,
    Subscriptions,
    answer_type,
    selected_type,
)
from everflow.operators.joins.joined_table import TableRead
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    PREPARE,
    EdgeType,
    FunctionNode,
    Node,
    Part,
    ProjectNode,
    StatefulNode,
    same_type,
)

_FOREIGN_RESULT = "KTABLE-FK-JOIN-OUTPUT-"
"""How Kafka Streams calls the table that it makes of the results, and its store."""
_NAMES = 13
"""How many names Kafka Streams makes up for one: of its topics, processors and the store of those
who ask; with a name given, too."""


def joined_by_key(
    left: Stream,
    right: Stream,
    kind: JoinKind,
    call: JoinCall,
    store: object,
    name: str | None,
) -> Stream:
    """The join of two tables whose entries have one key."""
    call.check_sides(left, right)
    graph, where = left.graph, call.where
    merged = graph.node_name(name, "KTABLE-MERGE-", where)
    sides = [*latest_updates_of_both(left, right, merged, call.operator, where)]
    tables = [
        read_table(one, call, sides, other.node, f"{merged}-{side}")
        for one, other, side in ((left, right, "left"), (right, left, "right"))
    ]
    parts = _halves(left, right, tables, name, where)
    if store is None:
        parts = (*parts, Part(merged, tuple(part.name for part in parts)))
    edge = call.edge(left, right)
    both = StatefulNode(
        merged if store is None else f"{merged}-results",
        tuple(sides),
        edge.type,
        where,
        "JOIN",
        TableTableJoin(
            left=tables[0],
            right=tables[1],
            kind=kind,
            left_first=graph.hands_on_first(left.node, right.node),
        ),
        reads=specs_of(*tables),
        parts=parts,
    )
    made = call.made(Stream(graph, graph.add(both), edge), table=True)
    return made if store is None else stored(made, merged, store, call.operator, where)


def _halves(
    left: Stream,
    right: Stream,
    tables: list[TableRead],
    name: str | None,
    where: str | None,
) -> tuple[Part, ...]:
    """The two nodes that Kafka Streams has for the changes of either side."""
    return tuple(
        Part(
            left.graph.node_name(None if name is None else f"{name}-join-{one}", prefix, where),
            (side.node,),
            tuple(table.spec.name for table in other.stored),
        )
        for one, prefix, side, other in (
            ("this", "KTABLE-JOINTHIS-", left, tables[1]),
            ("other", "KTABLE-JOINOTHER-", right, tables[0]),
        )
    )


def joined_by_foreign_key(join: ForeignKeyJoin, store: object) -> Stream:
    """The join of a table's entries with those that they name by a foreign key."""
    call, graph = join.call, join.left.graph
    joined = join.made()
    made = call.made(joined, table=True)
    if store is not None:
        return stored(made, f"{joined.node}-kept", store, call.operator, call.where)
    name = graph.new_name(f"{_FOREIGN_RESULT}STATE-STORE-")
    values = Stream(graph, f"{made.node}-results", made.edge)
    graph.keep_when_asked(kept_node(values, made.node, name, call.operator, call.where))
    return made


@dataclass(frozen=True, kw_only=True)
class ForeignKeyJoin:
    """A join of ``left``'s entries with those of ``right`` under the key ``on``."""

    call: JoinCall
    kind: JoinKind
    left: Stream
    right: Stream
    on: Expression
    name: str | None

    def made(self) -> Stream:
        graph, call, where = self.left.graph, self.call, self.call.where
        if self.right.graph is not graph:
            raise TopologyError(
                f"{call.operator} takes a table of the same StreamsBuilder", where=where
            )
        name = graph.check_repartition_name(self.name, f"{call.operator} with on=", where)
        graph.burn(_NAMES)
        updates = latest_updates_of_both(self.left, self.right, name, call.operator, where)
        key_serde, value_serde = self.left.edge.serdes(call.operator, where)
        foreign_serde = self.right.edge.written_key(call.operator, where)
        asks = self._asks(name, updates[0], (key_serde, value_serde, foreign_serde))
        asked = graph.repartition(
            f"{name}-asks",
            asks,
            EdgeType(self.right.edge.type.key, SUBSCRIPTION),
            (foreign_serde, serdes.packed(SUBSCRIPTION)),
            where,
        )
        answers = self._answers(name, [asked, updates[1]], key_serde, foreign_serde)
        edge = call.edge(self.left, self.right)
        joined = self._joined(name, answers, edge.type)
        return Stream(graph, graph.add(joined), edge)

    def _asks(self, name: str, updates: str, written: tuple[Serde, Serde, Serde]) -> str:
        """The node of subscriptions: of what each entry was, and of what it is. ``written``: as
        what its key, its value and foreign keys are."""
        graph, call = self.left.graph, self.call
        if not tells_old(graph, updates, forced=True):
            stored_table(graph, self.left.node, call.operator, call.where)  # says what it lacks
            raise AssertionError("a table that can be looked up knows what it was")
        sides = (graph.add(self._selection()(f"{name}-new", updates)),)
        foreign = EdgeType(self.right.edge.type.key, SUBSCRIPTION)
        operator = ForeignKeys(*written, self.kind)
        node = StatefulNode(f"{name}-asking", sides, foreign, call.where, "FK-ASK", operator)
        return graph.add(node)

    def _answers(
        self, name: str, sides: list[str], entry_serde: Serde, foreign_serde: Serde
    ) -> str:
        """The node of answers, read back in the tasks of the entries that asked."""
        graph, call, where = self.left.graph, self.call, self.call.where
        store = graph.claim_store(f"{name}-asks", call.operator, where)
        value = answer_type(self.right.edge.type.value)
        edge = EdgeType(self.left.edge.type.key, value)
        table = read_table(self.right, call, sides, sides[0], f"{name}-right")
        operator = Subscriptions(
            store=store,
            table=table,
            entry_serde=entry_serde,
            foreign_serde=foreign_serde,
            kept=self.kind.keeps_left,
        )
        kept = StoreSpec(
            name=store,
            kind="key_value",
            key_serde=serdes.bytes_(),
            value_serde=serdes.bytes_(),
            where=where,
            private=True,
        )
        node = StatefulNode(
            f"{name}-answering",
            tuple(sides),
            edge,
            where,
            "FK-ANSWER",
            operator,
            (kept,),
            reads=specs_of(table),
        )
        if not isinstance(table, JoinedTable):
            node = replace(node, parts=(Part(node.name, node.inputs, (store,)),))
        written = (entry_serde, serdes.packed(value))
        return graph.repartition(f"{name}-answers", graph.add(node), edge, written, where)

    def _joined(self, name: str, answers: str, out: EdgeType) -> StatefulNode:
        value_serde = self.left.edge.serdes(self.call.operator, self.call.where)[1]
        sides = list[str]()
        table = read_table(self.left, self.call, sides, answers, f"{name}-left")
        selected = None
        if not self.kind.keeps_left:
            selected = mapped(table, self.left.graph.node(f"{name}-new"))
            self._ask_again(name, answers, value_serde)
        operator = Answers(table=table, selected=selected, value_serde=value_serde, kind=self.kind)
        inputs, reads = (*sides, answers), specs_of(table)
        node = StatefulNode(name, inputs, out, self.call.where, "JOIN", operator, reads=reads)
        if isinstance(table, JoinedTable):
            return node
        return replace(node, parts=(Part(name, inputs),))

    def _ask_again(self, name: str, answers: str, value_serde: Serde) -> None:
        """The node that asks again for what the entries of stale answers are now: nobody else may
        tell it, as the question of an inner join is answered where there is something (note
        022)."""
        graph, call = self.left.graph, self.call
        sides = [f"{name}-new"]
        table = read_table(self.left, call, sides, answers, f"{name}-left")
        operator = AskAgain(
            table=table,
            selected=mapped(table, graph.node(sides[0])),
            key_serde=self.left.edge.serdes(call.operator, call.where)[0],
            value_serde=value_serde,
        )
        sink = graph.node(f"{name}-asks-repartition-sink")
        called, inputs = f"{name}-asking-again", (*sides, answers)
        again = StatefulNode(
            called,
            inputs,
            sink.out,
            call.where,
            "FK-ASK",
            operator,
            reads=specs_of(table),
            parts=(Part(called, inputs),),
        )
        made = graph.add(again)
        graph.add(replace(sink, name=f"{name}-asks-again-sink", inputs=(made,)))

    def _selection(self) -> Callable[[str, str], Node]:
        """What makes the node that gives an entry with its foreign key."""
        edge, where, on = self.left.edge, self.call.where, self.on
        wanted = self.right.edge.type.key
        out = EdgeType(edge.type.key, selected_type(wanted, edge.type.value))
        if not is_column(on, f"{self.call.operator}: on", where):
            fn = key_value_function(on, f"{self.call.operator}: on", where)
            selected = TableMapper(ForeignKeyOf(fn))

            def called(name: str, source: str) -> Node:
                return FunctionNode(name, (source,), out, where, PREPARE, "map_values", selected)

            return called
        found = unless_deleted(on, edge, where).type
        if not same_type(found, wanted):
            raise TopologyError(
                f"{self.call.operator}: on= is {type_text(found)}, and the other table's keys are "
                f"{type_text(wanted)}; write on=(...).cast({type_text(wanted)!r})",
                where=where,
            )
        both = F.struct(on.alias("fk"), F.col("value").alias("value"))
        value = replace(unless_deleted(both, edge, where), type=out.value)

        def projected(name: str, source: str) -> Node:
            return ProjectNode(
                name=name, inputs=(source,), out=out, where=where, label=PREPARE, value=value
            )

        return projected
