"""What ``stores=`` of a processor names: its own stores, shared ones, and those of tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from everflow.dsl.graph_builder import GraphBuilder
from everflow.errors import TopologyError
from everflow.operators.deduplicate import DeduplicateSpec
from everflow.operators.joins import JoinedTable
from everflow.operators.processors.ending_entries import index_of
from everflow.operators.processors.table_stores import ReadTable
from everflow.operators.suppress import SuppressSpec
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    GlobalTableNode,
    JoinOperator,
    Node,
    ProcessorOperator,
    StatefulNode,
)

_TAKES = (
    "stores takes what Stores makes, stores=[Stores.key_value('seen', key=serdes.string(), "
    "value=serdes.long())], and names of stores that are there"
)


@dataclass
class ConnectedStores:
    """The stores of one processor. ``nodes``: those of the tables that it reads, in the order of
    ``tables``."""

    specs: list[StoreSpec] = field(default_factory=list)
    tables: list[ReadTable] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    global_tables: list[StoreSpec] = field(default_factory=list)

    @property
    def reads(self) -> tuple[StoreSpec, ...]:
        """The stores of tables."""
        return tuple(one.table.spec for one in self.tables)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stores that bind the processor to a task."""
        return tuple(one.name for one in (*self.specs, *self.reads))


def connected(
    graph: GraphBuilder, stream: str, given: Iterable[object], operator: str, where: str | None
) -> ConnectedStores:
    """The stores that a processor behind the node ``stream`` was given. TopologyError for what is
    none."""
    if isinstance(given, str | StoreSpec):
        raise TopologyError(
            f"{operator}: stores takes a list, stores=[...]; found {given!r:.100}", where=where
        )
    found = ConnectedStores()
    for one in given:
        if isinstance(one, StoreSpec):
            _own(graph, one, operator, found)
        elif isinstance(one, str):
            _named(graph, stream, one, operator, where, found)
        else:
            raise TopologyError(f"{operator}: {_TAKES}, found {one!r}", where=where)
    names = [*found.names, *(spec.name for spec in found.global_tables)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TopologyError(f"{operator}: stores names {twice[0]!r} twice", where=where)
    return found


def _own(graph: GraphBuilder, spec: StoreSpec, operator: str, found: ConnectedStores) -> None:
    """A store of processors, and what goes with it."""
    index = index_of(spec)
    for one in (spec,) if index is None else (spec, index):
        found.specs.append(graph.declare_store(one, operator))


def _named(
    graph: GraphBuilder,
    stream: str,
    name: str,
    operator: str,
    where: str | None,
    found: ConnectedStores,
) -> None:
    declared = graph.declared_store(name)
    if declared is not None:
        _own(graph, declared, operator, found)
        return
    node = graph.keeper_of(name)
    if isinstance(node, GlobalTableNode):
        found.global_tables.append(node.store)
        return
    if node is None:
        raise TopologyError(
            f"{operator}: no store is called {name!r}; there "
            f"{'are ' + ', '.join(graph.stores) if graph.stores else 'is none yet'}. Declare it "
            f"before: builder.add_state_store(Stores.key_value({name!r}, key=..., value=...)), or "
            f"give a table this store=",
            where=where,
        )
    found.tables.append(_table(graph, stream, node, name, operator, where))
    found.nodes.append(node.name)


def _table(
    graph: GraphBuilder, stream: str, node: Node, name: str, operator: str, where: str | None
) -> ReadTable:
    """A table, which gives every update from now on, as one that is joined."""
    assert isinstance(node, StatefulNode)
    inner: Any = node.operator
    others = JoinOperator | ProcessorOperator | SuppressSpec | DeduplicateSpec
    if isinstance(inner, others) or node.stores[0].name != name:
        raise TopologyError(
            f"{operator}: {name!r} is a store of {node.label.lower()} alone, in a form of its own; "
            f"processors read the stores of tables",
            where=where,
        )
    graph.replace(replace(node, operator=replace(inner, emit_every_update=True)))
    first = graph.reaches_first(node.name, stream)
    return ReadTable(JoinedTable(node.stores[0], inner.results, node.out.value), first)
