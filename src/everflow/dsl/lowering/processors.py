"""Operators on one stream that keep a state: `process`, `process_values`, `deduplicate`.

The first two are the user's own (design note 023), and so are the value transformers of tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F

from everflow import serdes
from everflow.dsl.expressions import (
    Edge,
    Expression,
    FunctionSupplier,
    check_name,
    check_parameters,
    default_serde,
    function_name,
    is_column,
    key_value_function,
    predicate,
    refuse_awaited,
    refuse_pyspark,
    required_parameters,
    result_serde,
    result_type,
)
from everflow.dsl.graph_builder import Stream, window_store
from everflow.dsl.lowering.stateless import with_answer
from everflow.dsl.stores import Store
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable
from everflow.operators.processors.process import ProcessSpec, tagged
from everflow.operators.processors.processor import (
    FunctionProcessor,
    FunctionTransformer,
    Processor,
    ProcessorContext,
    Record,
    ValueTransformer,
    punctuations,
)
from everflow.operators.processors.stores import index_of
from everflow.operators.suppress import SuppressSpec
from everflow.operators.table import DeduplicateSpec
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    CHILD,
    EdgeType,
    GlobalTableNode,
    Part,
    ProcessorOperator,
    StatefulNode,
)
from everflow.windows import Duration, checked_ms

Supplier = type[Processor] | Callable[[], Processor] | Callable[[Record, ProcessorContext], None]
Transformer = type[ValueTransformer] | Callable[..., Any]


@dataclass(frozen=True)
class Form:
    """What an operator takes: ``base``: the class of what is made; ``function``: what calls a plain
    function, and ``parameters``: those that it has (the last one may be left out if ``optional``).
    """

    base: type[Any]
    function: type[FunctionProcessor | FunctionTransformer]
    parameters: tuple[str, ...]
    optional: bool = False

    @property
    def taken(self) -> str:
        return (
            f"a {self.base.__name__} class, a function without arguments that makes one, or a "
            f"function of ({', '.join(self.parameters)})"
        )


PROCESSORS = Form(Processor, FunctionProcessor, ("record", "context"))
TRANSFORMERS = Form(ValueTransformer, FunctionTransformer, ("key", "value", "context"), True)


def supplier(
    form: Form, factory: object, operator: str
) -> tuple[Callable[[], Processor], type[Processor]]:
    """What makes processors, and their class. TopologyError for what makes none."""
    if isinstance(factory, Processor):
        raise TopologyError(
            f"{operator} found a {type(factory).__name__}; each task needs a processor of its own: "
            f"pass the class, or a function that makes one, lambda: {type(factory).__name__}(...)"
        )
    refuse_pyspark(factory, operator)
    if not callable(factory):
        raise TopologyError(f"{operator} takes {form.taken}, found {factory!r}")
    makes = isinstance(factory, type) or required_parameters(factory) == 0
    if not makes:
        names = form.parameters
        if form.optional and required_parameters(factory) != len(names):
            names = names[:-1]
        check_parameters(factory, names, operator)
        return FunctionSupplier(form.function, factory), form.function
    for method in ("process", "transform"):
        if callable(called := getattr(factory, method, None)):
            refuse_awaited(called, operator)
    if inspect.isabstract(factory):
        missing = ", ".join(sorted(getattr(factory, "__abstractmethods__", ())))
        raise TopologyError(
            f"{operator}: {function_name(factory)} is no whole {form.base.__name__}, it lacks "
            f"{missing}"
        )
    try:
        made = factory()
    except Exception as error:
        raise TopologyError(
            f"{operator}: {function_name(factory)}() makes no processor: {error!r}; pass a "
            f"function that does, lambda: {function_name(factory)}(...)"
        ) from error
    transforms = isinstance(made, ValueTransformer)
    if not isinstance(made, form.base) or transforms != (form.base is ValueTransformer):
        raise TopologyError(
            f"{operator} takes {form.taken}; {function_name(factory)}() gave {made!r}"
        )
    return factory, type(made)


_TAKES = (
    "stores takes what Stores makes, stores=[Stores.key_value('seen', key=serdes.string(), "
    "value=serdes.long())], and names of stores that are there"
)


class ConnectedStores:
    """The ``stores`` of a processor behind ``stream``. ``nodes``: those of the tables
    that it reads, in the order of ``tables``. TopologyError for what is no store."""

    def __init__(self, stream: Stream, stores: Iterable[object], operator: str) -> None:
        if isinstance(stores, str | StoreSpec):
            raise TopologyError(
                f"{operator}: stores takes a list, stores=[...]; found {stores!r:.100}"
            )
        self._stream, self._graph, self._operator = stream.node, stream.graph, operator
        self.specs: list[StoreSpec] = []
        self.tables: list[JoinedTable] = []
        self.nodes: list[str] = []
        self.global_tables: list[StoreSpec] = []
        for one in stores:
            self._add(one)
        names = [*self.names, *(spec.name for spec in self.global_tables)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TopologyError(f"{operator}: stores names {twice[0]!r} twice")

    @property
    def reads(self) -> tuple[StoreSpec, ...]:
        return tuple(one.spec for one in self.tables)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stores that bind the processor to a task."""
        return tuple(one.name for one in (*self.specs, *self.reads))

    def _add(self, one: object) -> None:
        graph, operator = self._graph, self._operator
        spec = graph.declared.get(one) if isinstance(one, str) else one
        if isinstance(spec, StoreSpec):  # one of processors, and what goes with it
            index = index_of(spec)
            for own in (spec,) if index is None else (spec, index):
                self.specs.append(graph.declare_store(own, operator))
            return
        if not isinstance(one, str):
            raise TopologyError(f"{operator}: {_TAKES}, found {one!r}")
        node = graph.node_of_store(one)
        if isinstance(node, GlobalTableNode):
            self.global_tables.append(node.store)
            return
        if node is None:
            there = f"are {', '.join(graph.stores)}" if graph.stores else "is none yet"
            raise TopologyError(
                f"{operator}: no store is called {one!r}; there {there}. Declare it before: "
                f"builder.add_state_store(Stores.key_value({one!r}, key=..., value=...)), or give "
                "a table this store="
            )
        inner: Any = node.operator
        others = ProcessorOperator | SuppressSpec | DeduplicateSpec
        if inner.joins or isinstance(inner, others) or node.stores[0].name != one:
            raise TopologyError(
                f"{operator}: {one!r} is a store of {node.label.lower()} alone, in a form of its "
                "own; processors read the stores of tables"
            )
        # It gives every update from now on, as a table that is joined.
        graph.nodes[node.name] = node.giving_every_update()
        first = graph.reaches_first(node.name, self._stream)
        self.tables.append(
            JoinedTable(
                node.stores[0],
                inner.results,
                node.out.value,
                first=first,
            )
        )
        self.nodes.append(node.name)


@dataclass(frozen=True)
class ProcessorCall:
    operator: str
    processor: object
    stores: Iterable[object]
    name: str | None

    @property
    def named(self) -> Callable[..., Any]:
        """For messages."""
        return self.processor if callable(self.processor) else type(self.processor)

    def made(
        self, stream: Stream, edge: Edge, children: tuple[str, ...], *, keeps_key: bool
    ) -> Stream | dict[str, Stream]:
        for child in children:
            check_name("child", child)
        if len(set(children)) < len(children):
            raise TopologyError(
                f"{self.operator}: two children have one name: {', '.join(children)}"
            )
        prefix = "KSTREAM-PROCESSVALUES-" if keeps_key else "KSTREAM-PROCESSOR-"
        name = stream.graph.node_name(self.name, prefix)
        node = self.node(stream, name, edge, PROCESSORS, children, keeps_key=keeps_key)
        if not children:
            return stream.behind(node.name, edge, changes_key=not keeps_key)
        output = stream.behind(node.name, Edge(node.out, None, None), changes_key=True)
        return {
            child: self._child(output, edge, number, child) for number, child in enumerate(children)
        }

    def node(
        self,
        stream: Stream,
        name: str,
        edge: Edge,
        form: Form,
        children: tuple[str, ...] = (),
        *,
        keeps_key: bool = True,
        label: str = "PROCESSOR",
    ) -> StatefulNode:
        made_by, kind = supplier(form, self.processor, self.operator)
        kept = ConnectedStores(stream, self.stores, self.operator)
        spec = ProcessSpec(
            supplier=made_by,
            specs=tuple(kept.specs),
            tables=tuple(kept.tables),
            looks_up=tuple(kept.global_tables),
            out=edge.type,
            children=children,
            keeps_key=keeps_key,
            punctuations=punctuations(kind),
            key_serde=stream.edge.key_serde,
            transforms=form is TRANSFORMERS,
        )
        node = StatefulNode(
            name,
            (stream.node, *kept.nodes),
            EdgeType(edge.type.key, tagged(edge.type.value, children)),
            label,
            spec,
            spec.specs,
            reads=kept.reads,
            parts=(Part(name, (stream.node,), kept.names),) if kept.nodes else (),
        )
        stream.graph.add(node)
        return node

    def _child(self, output: Stream, edge: Edge, number: int, child: str) -> Stream:
        chosen = F.coalesce(F.col("value.child") == F.lit(number), F.lit(True))
        wanted = predicate(chosen, output.edge)
        value = analyse(F.col("value.value"), output.edge.type)
        return output.projected(
            f"{output.node}-{child}", CHILD, edge, predicate=wanted, value=value
        )


def deduplicated(
    stream: Stream,
    within: Duration,
    grace: Duration | None,
    by: Expression | None,
    returns: object,
    store: Store | None,
    name: str | None,
) -> Stream:
    graph = stream.graph
    kept = graph.claim_store(store, "deduplicate")
    within_ms = checked_ms(within, "deduplicate: within", 1)
    grace_ms = checked_ms(within if grace is None else grace, "deduplicate: grace")
    node_name = graph.node_name(name, "KSTREAM-DEDUPLICATE-")
    if stream.key_changed:
        topic = graph.check_repartition_name(name or kept, "deduplicate")
        stream = stream.repartitioned(topic, "deduplicate")
    edge, with_ids = stream.edge, stream
    if by is None:
        id_serde = edge.written_key("deduplicate")
    else:
        if is_column(by, "deduplicate: by"):
            kind = analyse(by, edge.type).type
        else:
            kind = result_type(returns, by, "deduplicate")
            by = key_value_function(by, "deduplicate: by")
        with_ids = with_answer(stream, f"{node_name}-ids", "deduplicate", by, kind)
        ids_edge = Edge(EdgeType(kind, edge.type.value), default_serde(kind), None)
        id_serde = ids_edge.with_serdes(result_serde(returns)).written_key("deduplicate")
    spec = DeduplicateSpec(
        store=kept,
        key_serde=id_serde,
        value_serde=serdes.bytes_(),
        within_ms=within_ms,
        grace_ms=grace_ms,
        beside=by is not None,
    )
    ids = window_store(kept, (id_serde, spec.value_serde), spec.retention_ms, within_ms)
    return with_ids.kept(node_name, "DEDUPLICATE", spec, (ids,), edge)
