"""Joins of a table with another: by key, and by a foreign key (KIP-213; design note 022).

``orders.join(customers, on=..., name=...)``: an entry asks the task of its foreign key, through the
topic ``<name>-asks-repartition``; the answer comes back through ``<name>-answers-repartition``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import functions as F

from everflow import serdes
from everflow.dsl.expressions import Expression, is_column, unless_deleted
from everflow.dsl.functions import ForeignKeyOf, TableMapper, key_value_function
from everflow.dsl.lowering.join_call import JoinCall
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.lowering.tables import kept_node, stored
from everflow.dsl.lowering.value_getters import (
    RowAsker,
    handed_table,
    is_kept,
    joined_tables,
    previous_updates,
)
from everflow.dsl.lowering.versioned import latest_updates_of_both
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, JoinKind, TableTableJoin
from everflow.operators.joins.answers import Answers, AnswersOfRows, AskAgain, StaleNulls
from everflow.operators.joins.foreign_keys import (
    SUBSCRIPTION,
    ForeignKeys,
    answer_type,
    selected_type,
)
from everflow.operators.joins.subscriptions import AskedRows, Subscriptions
from everflow.operators.joins.table_table import TableRows, TableTableRows
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
    tables = joined_tables(left, call), joined_tables(right, call)
    merged = graph.node_name(name, "KTABLE-MERGE-", where)
    parts = _halves(left, right, tables, name, where)
    if store is None:
        parts = (*parts, Part(merged, tuple(part.name for part in parts)))
    edge = call.edge(left, right)
    both = StatefulNode(
        merged if store is None else f"{merged}-results",
        (),
        edge.type,
        where,
        "JOIN",
        TableTableRows(keys=tables[0][0], kind=kind),
        parts=parts,
    )
    updates = latest_updates_of_both(left, right, merged, call.operator, where)
    if is_kept(left) and is_kept(right):
        both = _looking_up(both, left, right, updates, (tables[0][0], tables[1][0]))
    else:
        both = _with_rows(both, left, right, updates, call)
    made = call.made(Stream(graph, graph.add(both), edge), table=True)
    return made if store is None else stored(made, merged, store, call.operator, where)


def _looking_up(
    both: StatefulNode,
    left: Stream,
    right: Stream,
    updates: tuple[str, str],
    tables: tuple[JoinedTable, JoinedTable],
) -> StatefulNode:
    """The join of tables that have stores."""
    graph, rows = left.graph, both.operator
    assert isinstance(rows, TableTableRows)
    operator = TableTableJoin(
        left=tables[0],
        right=tables[1],
        kind=rows.kind,
        left_known=graph.reaches_first(left.node, right.node),
        right_known=graph.reaches_first(right.node, left.node),
        left_first=graph.hands_on_first(left.node, right.node),
    )
    reads = tuple(table.spec for table in tables)
    return replace(both, inputs=updates, operator=operator, reads=reads)


def _with_rows(
    both: StatefulNode, left: Stream, right: Stream, updates: tuple[str, str], call: JoinCall
) -> StatefulNode:
    """The join of tables of which one has no store: what each holds at the other's changes is
    computed beside those."""
    graph, rows, halves = left.graph, both.operator, list[str]()
    assert isinstance(rows, TableTableRows)
    sides = ((left, right, rows.kind.keeps_left), (right, left, rows.kind.keeps_right))
    for (changed, other, keeps), changes in zip(sides, updates, strict=True):
        name = f"{both.name}-of-{len(halves)}"
        asking = RowAsker(call=call, node=changes, comes=changed.node, join=name, as_of=False)
        inputs = [asking.of(graph, other.node)]
        if keeps:
            was = previous_updates(graph, changes, forced=True)
            assert was is not None, "a table that can be asked knows what it was"
            inputs.append(was)
        half = TableRows(rows.kind, of_left=not halves)
        made = (*inputs, changes)
        halves.append(graph.add(StatefulNode(name, made, both.out, call.where, PREPARE, half)))
    rows = replace(rows, left_first=graph.hands_on_first(left.node, right.node))
    return replace(both, inputs=tuple(halves), operator=rows)


def _halves(
    left: Stream,
    right: Stream,
    tables: tuple[tuple[JoinedTable, ...], tuple[JoinedTable, ...]],
    name: str | None,
    where: str | None,
) -> tuple[Part, ...]:
    """The two nodes that Kafka Streams has for the changes of either side."""
    return tuple(
        Part(
            left.graph.node_name(None if name is None else f"{name}-join-{one}", prefix, where),
            (side.node,),
            tuple(one.spec.name for one in other),
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
        """The joined entries."""
        graph, call, where = self.left.graph, self.call, self.call.where
        if self.right.graph is not graph:
            raise TopologyError(
                f"{call.operator} takes a table of the same StreamsBuilder", where=where
            )
        name = graph.check_repartition_name(self.name, f"{call.operator} with on=", where)
        graph.burn(_NAMES)
        tables = handed_table(self.left, call), handed_table(self.right, call)
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
        answers = self._answers(name, (asked, updates[1]), tables[1], key_serde, foreign_serde)
        edge = call.edge(self.left, self.right)
        joined = self._joined(name, (updates[0], answers), tables[0], value_serde)
        return Stream(graph, graph.add(replace(joined, out=edge.type)), edge)

    def _asks(self, name: str, updates: str, written: tuple[Serde, Serde, Serde]) -> str:
        """The node of subscriptions: of what each entry was, and of what it is. ``written``: as
        what its key, its value and foreign keys are."""
        graph, call = self.left.graph, self.call
        before = previous_updates(graph, updates, forced=True)
        assert before is not None, "a table that can be asked knows what it was"
        select = self._selection()
        sides = (
            graph.add(select(f"{name}-old", before)),
            graph.add(select(f"{name}-new", updates)),
        )
        foreign = EdgeType(self.right.edge.type.key, SUBSCRIPTION)
        operator = ForeignKeys(*written, self.kind)
        node = StatefulNode(f"{name}-asking", sides, foreign, call.where, "FK-ASK", operator)
        return graph.add(node)

    def _answers(
        self,
        name: str,
        sides: tuple[str, str],
        table: JoinedTable,
        entry_serde: Serde,
        foreign_serde: Serde,
    ) -> str:
        """The node of answers, read back in the tasks of the entries that asked."""
        graph, call, where = self.left.graph, self.call, self.call.where
        store = graph.claim_store(f"{name}-asks", call.operator, where)
        value = answer_type(self.right.edge.type.value)
        edge = EdgeType(self.left.edge.type.key, value)
        in_rows = not is_kept(self.right)
        if in_rows:
            sides = self._with_rows(name, sides[0]), sides[1]
        operator = Subscriptions(
            store=store,
            table=table,
            entry_serde=entry_serde,
            foreign_serde=foreign_serde,
            kept=self.kind.keeps_left,
            in_rows=in_rows,
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
            sides,
            edge,
            where,
            "FK-ANSWER",
            operator,
            (kept,),
            reads=() if in_rows else (table.spec,),
        )
        written = (entry_serde, serdes.packed(value))
        return graph.repartition(f"{name}-answers", graph.add(node), edge, written, where)

    def _with_rows(self, name: str, asked: str) -> str:
        """The node of subscriptions, each with what a table without a store holds for it."""
        graph, call, right = self.left.graph, self.call, self.right
        kept = self.kind.keeps_left
        asker = RowAsker(
            call=call, node=asked, join=f"{name}-asks", as_of=False, takes_null_keys=kept
        )
        out = EdgeType(right.edge.type.key, AskedRows.type_of(right.edge.type.value))
        sides = (asked, asker.of(graph, right.node))
        return graph.add(
            StatefulNode(f"{name}-asked", sides, out, call.where, PREPARE, AskedRows())
        )

    def _joined(
        self, name: str, sides: tuple[str, str], table: JoinedTable, value_serde: Serde
    ) -> StatefulNode:
        """The node of results; ``sides``: the entries' updates, and the answers."""
        graph, call, (_, answers) = self.left.graph, self.call, sides
        out, kept = graph.node(answers).out, is_kept(self.left)
        reads = (table.spec,) if kept else ()
        operator = Answers(table=table, value_serde=value_serde, kind=self.kind)
        if kept and self.kind.keeps_left:
            return StatefulNode(name, sides, out, call.where, "JOIN", operator, reads=reads)
        asker = RowAsker(call=call, node=answers, join=f"{name}-answers", as_of=False)
        rows: tuple[str, ...] = (asker.of(graph, self.left.node), answers)
        if not self.kind.keeps_left:
            rows = (rows[0], self._asked_again(name, rows, table.spec.name), answers)
        of_rows = AnswersOfRows(answers=operator)
        return StatefulNode(name, rows, out, call.where, "JOIN", of_rows, reads=reads)

    def _asked_again(self, name: str, rows: tuple[str, ...], store: str) -> str:
        """The node of the entries of answers that are stale and say that there is nothing. For what
        each entry is now it asks again: nobody else may tell it, as the question of an inner join
        is answered where there is something (note 022)."""
        graph, call, left = self.left.graph, self.call, self.left.edge.type
        key_serde, value_serde = self.left.edge.serdes(call.operator, call.where)
        found = StatefulNode(
            f"{name}-stale-answers",
            rows,
            EdgeType(left.key, left.value),
            call.where,
            PREPARE,
            StaleNulls(store, value_serde),
        )
        stale = graph.add(self._selection()(f"{name}-stale", graph.add(found)))
        sink = graph.node(f"{name}-asks-repartition-sink")
        again = StatefulNode(
            f"{name}-asking-again",
            (f"{name}-new", stale),
            sink.out,
            call.where,
            "FK-ASK",
            AskAgain(key_serde, value_serde),
        )
        made = graph.add(again)
        graph.add(replace(sink, name=f"{name}-asks-again-sink", inputs=(made,)))
        return stale

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
