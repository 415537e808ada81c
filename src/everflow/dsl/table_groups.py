"""Lowers ``KTable.group_by``: the group and value of what each entry was and of what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column

from everflow.dsl.expressions import (
    Edge,
    Expression,
    fitting_serde,
    is_column,
    result_serde,
    result_type,
    unless_deleted,
)
from everflow.dsl.functions import TableMapper, TablePairs, key_value_function
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.table_updates import previous_updates
from everflow.dsl.in_time.versioned_tables import latest_updates
from everflow.dsl.joins import Side, kept_table
from everflow.errors import TopologyError
from everflow.operators.table_changes import TableChanges
from everflow.serdes.changed import changed_type
from everflow.topology.graph import (
    PREPARE,
    EdgeType,
    FunctionNode,
    Node,
    ProjectNode,
    StatefulNode,
)


@dataclass(frozen=True, kw_only=True)
class GroupCall:
    """A call of ``group_by`` as the user wrote it."""

    key: Expression
    value: Column | None
    returns: object
    key_serde: object
    value_serde: object
    where: str | None

    def made(self, table: Side) -> tuple[GraphBuilder, str, Edge]:
        """The graph, the node of changes, and the edge of groups and values."""
        graph = table.graph
        name = graph.new_name("KTABLE-SELECT-")
        updates = latest_updates(table, name, "group_by", self.where)
        before = previous_updates(graph, updates, forced=True)
        if before is None:
            kept_table(table, "group_by", self.where)  # says what it lacks
            raise AssertionError("a table that can be asked knows what it was")
        return self._changes(table, name, before, updates)

    def _changes(
        self, table: Side, name: str, before: str, updates: str
    ) -> tuple[GraphBuilder, str, Edge]:
        """The node of changes, of what entries were and are."""
        graph = table.graph
        edge, select = self._selection(table.edge)
        sides = (
            graph.add(select(f"{name}-old", before)),
            graph.add(select(f"{name}-new", updates)),
        )
        changes = StatefulNode(
            name,
            sides,
            EdgeType(edge.type.key, changed_type(edge.type.value)),
            self.where,
            "SELECT",
            TableChanges(edge.written_key("group_by", self.where)),
        )
        return graph, graph.add(changes), edge

    def _selection(self, edge: Edge) -> tuple[Edge, Callable[[str, str], Node]]:
        """The edge of groups and values, and what makes the node that selects them."""
        where = self.where
        if is_column(self.key, "group_by", where):
            key = unless_deleted(self.key, edge, where)
            value = None if self.value is None else unless_deleted(self.value, edge, where)
            edge = self._with_serdes(edge.with_types(key.type, value and value.type))

            def projected(name: str, source: str) -> Node:
                return ProjectNode(
                    name=name,
                    inputs=(source,),
                    out=edge.type,
                    where=where,
                    label=PREPARE,
                    key=key,
                    value=value,
                    changes_key=True,
                )

            return edge, projected
        edge, op, fn = self._function(edge)

        def called(name: str, source: str) -> Node:
            return FunctionNode(
                name, (source,), edge.type, where, PREPARE, op, fn, changes_key=True
            )

        return edge, called

    def _function(self, edge: Edge) -> tuple[Edge, str, Callable[..., Any]]:
        where = self.where
        if self.value is not None:
            raise TopologyError(
                "group_by: value= goes with a Column as key; a function returns both, with "
                "returns=(key type, value type)",
                where=where,
            )
        assert callable(self.key)
        fn = key_value_function(self.key, "group_by", where)
        parts = self.returns if isinstance(self.returns, tuple) else (self.returns,)
        types = [result_type(part, fn, "group_by", where) for part in parts]
        if len(types) > 2:
            raise TopologyError(
                f"group_by: returns={self.returns!r} names {len(types)} types; a function returns "
                "the key, or key and value",
                where=where,
            )
        made = edge.with_types(*types).with_serdes(*(result_serde(part) for part in parts))
        made = self._with_serdes(made)
        if len(types) == 1:
            return made, "select_key", TableMapper(fn)
        return made, "map", TablePairs(fn)

    def _with_serdes(self, edge: Edge) -> Edge:
        key, value = (
            fitting_serde(given, type_, part, "group_by", self.where)
            for given, type_, part in (
                (self.key_serde, edge.type.key, "key"),
                (self.value_serde, edge.type.value, "value"),
            )
        )
        return edge.with_serdes(key, value)
