"""Joins of a table with another, and tables that get a store of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Edge, Expression
from everflow.dsl.foreign_key_joins import FOREIGN_RESULT, ForeignKeyJoin
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.held_rows import RowAsker, is_kept, tables_behind
from everflow.dsl.in_time.table_updates import previous_updates
from everflow.dsl.in_time.versioned_tables import latest_updates_of_both
from everflow.dsl.joins import JoinCall, Side
from everflow.dsl.options.materialized import Materialized
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, JoinKind, TableTableJoin
from everflow.operators.joins.table_table import TableRows, TableTableRows
from everflow.operators.table import TableSpec
from everflow.state.store import StoreSpec
from everflow.topology.graph import PREPARE, Part, StatefulNode

if TYPE_CHECKING:
    from everflow.dsl.ktable import KTable


class TableJoins(Side):
    """The joins of `KTable`."""

    @builder_call
    def join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        on: Expression | None = None,
        returns: object = None,
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """The entries of keys that both tables have, as both change; or, with ``on``, a Column or a
        function of (value) or (key, value), those whose foreign key the other table has, under
        their own keys. Without a ``joiner`` the value is ``struct<left, right>``; the module
        `everflow.dsl.joins` tells what a joiner may be.

        ``store``: keeps the result in a store of its own. ``name``: with
        ``on`` it is needed, for the topics ``<name>-asks-repartition`` and
        ``<name>-answers-repartition`` and the store ``<name>-asks``.
        A result has the headers of the change that made it.
        """
        options = {"returns": returns, "store": store, "name": name}
        return _joined(self, other, JoinKind.INNER, joiner, options, fields, on)

    @builder_call
    def left_join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        on: Expression | None = None,
        returns: object = None,
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """As `join`, for all keys of this table; ``right`` is null where the other has none.
        A result has the headers of the change that made it."""
        options = {"returns": returns, "store": store, "name": name}
        return _joined(self, other, JoinKind.LEFT, joiner, options, fields, on)

    @builder_call
    def outer_join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        returns: object = None,
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """As `join`, for the keys of either table; the side that has none is null.
        A result has the headers of the change that made it."""
        options = {"returns": returns, "store": store, "name": name}
        return _joined(self, other, JoinKind.OUTER, joiner, options, fields)


def _joined(
    left: TableJoins,
    right: object,
    kind: JoinKind,
    joiner: Expression | None,
    options: dict[str, Any],
    fields: dict[str, Column],
    on: Expression | None = None,
) -> KTable:
    call, options = JoinCall.of(kind, joiner, options, fields)
    if not isinstance(right, TableJoins):
        raise TopologyError(
            f"{call.operator} of a table takes a table, found {right!r}; a stream is enriched by "
            f"stream.{call.operator}(table), by a global table with on=...",
            where=call.where,
        )
    if on is not None:
        joined_on = ForeignKeyJoin(
            call=call, kind=kind, left=left, right=right, on=on, name=options["name"]
        )
        return _by_foreign_key(joined_on, options["store"])
    call.check_sides(left, right)
    graph, store, name, where = left.graph, options["store"], options["name"], call.where
    tables = tables_behind(left, call), tables_behind(right, call)
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
    made, edge = call.made(graph, graph.add(both), edge, table=True)
    if store is not None:
        made = stored(graph, made, edge, merged, store, call.operator, where)
    return graph.faces.table(graph, made, edge)


def _looking_up(
    both: StatefulNode,
    left: Side,
    right: Side,
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
    both: StatefulNode, left: Side, right: Side, updates: tuple[str, str], call: JoinCall
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
    left: Side,
    right: Side,
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


def _by_foreign_key(join: ForeignKeyJoin, store: object) -> KTable:
    call, graph = join.call, join.left.graph
    node, edge = join.made()
    made, edge = call.made(graph, node, edge, table=True)
    if store is not None:
        made = stored(graph, made, edge, f"{node}-kept", store, call.operator, call.where)
        return graph.faces.table(graph, made, edge)
    name = graph.new_name(f"{FOREIGN_RESULT}STATE-STORE-")
    kept = kept_node(made, f"{made}-results", edge, name, call.operator, call.where)
    graph.keep_when_asked(kept)
    return graph.faces.table(graph, made, edge)


def stored(
    graph: GraphBuilder,
    node: str,
    edge: Edge,
    name: str,
    store: object,
    operator: str,
    where: str | None,
    *,
    only_visible: bool = False,
) -> str:
    """The node ``name`` that keeps the table of ``node`` in a ``store``; ``only_visible``: see
    `TableSpec`."""
    claimed = graph.claim_store(store, operator, where)
    node_of = kept_node(name, node, edge, claimed, operator, where, only_visible=only_visible)
    return graph.add(node_of)


def kept_node(
    name: str,
    node: str,
    edge: Edge,
    store: str,
    operator: str,
    where: str | None,
    *,
    only_visible: bool = False,
) -> StatefulNode:
    """As `stored`; adds nothing to the graph."""
    key_serde, value_serde = edge.serdes(operator, where)
    spec = StoreSpec(
        name=store, kind="key_value", key_serde=key_serde, value_serde=value_serde, where=where
    )
    operator_spec = TableSpec(store, key_serde, value_serde, only_visible=only_visible)
    return StatefulNode(name, (node,), edge.type, where, "MATERIALIZED", operator_spec, (spec,))
