"""Collects the graph while it is built: nodes in order, names, stores, topics, and their checks.

Node names are Kafka Streams': a prefix and a counter that all nodes of one builder share. It also
advances where the original burns a number, so that unnamed nodes get the same names.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

from everflow.dsl.expressions import Edge, check_name, fitting_serde
from everflow.dsl.stores import Materialized, kept_globally, materialized
from everflow.errors import TopologyError, naming_the_line
from everflow.foreign_names import entry_of
from everflow.serdes import Serde, bytes_
from everflow.state.store import StoreSpec
from everflow.topology.arrival import hands_on_first, reaches_first, require_direct
from everflow.topology.graph import (
    PREPARE,
    CallLimits,
    ColumnExpr,
    EdgeType,
    FunctionNode,
    GlobalTableNode,
    LoadedTableNode,
    Node,
    Operator,
    Part,
    Partitioner,
    ProjectNode,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    StatefulNode,
    WholeTableNode,
)
from everflow.topology.idle_sources import require_metadata_fits
from everflow.topology.partitioners import assumed_partitioners
from everflow.topology.program import Topology
from everflow.travel.refusals import TravelCheck
from everflow.user_program import place, user_line

_AnyNode = TypeVar("_AnyNode", bound=Node)


class GraphBuilder:
    """Owned by one StreamsBuilder. Each call of the DSL holds ``lock``, since all of them use one
    pickler, which is C, and ends the process where two threads use it at once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[str, Node] = {}
        self._travel = TravelCheck()
        self._counter = 0
        self.stores: dict[str, str | None] = {}
        """With the lines that ask for them."""
        self.options: dict[str, Materialized] = {}
        """By the names of their stores."""
        self.declared: dict[str, StoreSpec] = {}
        """The stores of processors, by their names."""
        self._topics: dict[str, str | None] = {}
        self._subscriptions: dict[object, str] = {}
        self._repartitions: dict[str, tuple[RepartitionTopic, str | None]] = {}
        self._unkept: dict[str, StatefulNode] = {}
        self.regrouped: dict[object, str] = {}
        """Groups, and the source node of the repartition topic that each one has."""

    def __str__(self) -> str:
        topics, stores = ", ".join(self._topics) or "no topic yet", ", ".join(self.stores)
        return f"reads {topics}" + (f"; keeps {stores}" if stores else "")

    def new_name(self, prefix: str) -> str:
        name = f"{prefix}{self._counter:010d}"
        self._counter += 1
        return name

    def node_name(self, name: str | None, prefix: str) -> str:
        if name is None:
            return self.new_name(prefix)
        check_name("node", name)
        return name

    def add(self, node: Node) -> str:
        """Append ``node``; its name. TopologyError if that is taken or the node cannot travel."""
        node = _with_line(node)
        taken = self.nodes.get(node.name)
        if taken is not None:
            raise _twice("node name", node.name, taken.where)
        self._travel.require(_travelling(node), getattr(node, "op", node.name), node.where)
        if isinstance(node, StatefulNode):
            node = materialized(node, self.options)
        elif isinstance(node, GlobalTableNode):
            options = self.options.get(node.store.name)
            node = replace(node, store=kept_globally(node.store, options))
        self.nodes[node.name] = node
        return node.name

    def reaches_first(self, first: str, second: str) -> bool:
        return reaches_first(self.nodes.values(), first, second)

    def hands_on_first(self, first: str, second: str) -> bool:
        return hands_on_first(self.nodes.values(), first, second)

    def keep_when_asked(self, node: StatefulNode) -> None:
        """As soon as somebody asks what the table holds (`keep`), ``node``, whose input is what
        gives its values, takes the place of the node of this name."""
        self._unkept[node.name] = _with_line(node)

    def keep(self, name: str) -> None:
        """Somebody asks what the table of this node holds."""
        table_node = self._unkept.pop(name, None)
        if table_node is None:
            return
        for spec in table_node.stores:
            self.claim_store(spec.name, table_node.label, table_node.where)
        replaced: Any = self.nodes[name]
        made: Node = replace(replaced, name=table_node.inputs[0], label=PREPARE)
        nodes = list(self.nodes.values())
        at = nodes.index(replaced)
        nodes[at : at + 1] = made, table_node
        self.nodes = {node.name: node for node in nodes}

    def claim_topics(self, topics: Iterable[str]) -> None:
        """Those of streams: `subscribe`."""
        for topic in topics:
            check_name("topic", topic)
            if topic in self._topics:
                raise TopologyError(
                    f"the topic {topic!r} is read twice (first at {_first(self._topics[topic])}), "
                    "and only streams of exactly the same topics are one source; keep the first "
                    f"stream or table in a variable and use it twice{_or_anew(self._topics[topic])}"
                )
            self._topics[topic] = user_line()

    def subscribe(self, source: SourceNode) -> str:
        """Append the source of a stream; returns its name, or that of the one there is for the same
        topics or pattern. TopologyError for topics that another source reads, or so otherwise."""
        pattern = source.reading.pattern
        for topic in source.topics if pattern is None else ():
            check_name("topic", topic)
        subscribed = frozenset(source.topics) if pattern is None else pattern
        first = self.nodes.get(self._subscriptions.get(subscribed, ""))
        if first is None:
            if pattern is None:
                self.claim_topics(source.topics)
            self._subscriptions[subscribed] = source.name
            return self.add(source)
        assert isinstance(first, SourceNode)
        differing = [what for what, own in _read(source).items() if own != _read(first)[what]]
        if differing:
            raise TopologyError(
                f"stream({', '.join(map(repr, source.topics))}) is read twice (first at "
                f"{_first(first.where)}), and a source has one {differing[0]}; give both the same, "
                f"or keep the first stream in a variable and use it twice{_or_anew(first.where)}"
            )
        return first.name

    def claim_store(self, name: object, operator: str, where: str | None = None) -> str:
        """Register a store, a name or a `Materialized`; returns the name. TopologyError if it has
        none or the name is taken. ``where``: its line, where that is not the call's."""
        options = name if isinstance(name, Materialized) else None
        if options is not None:
            name = options.name
        if name is None:
            raise TopologyError(
                f"{operator} keeps state and its store has no name; write {operator}(..., "
                "store='a-name'). The name is part of the changelog topic's, so it must not "
                "change when the program grows"
            )
        check_name("store", name)
        assert isinstance(name, str)
        if name in self.stores:
            raise _twice("store name", name, self.stores[name])
        self.stores[name] = where or user_line()
        if options is not None:
            self.options[name] = options
        return name

    def declare_store(self, spec: StoreSpec, operator: str) -> StoreSpec:
        """Register a store that processors share. The same one may be declared again."""
        if self.declared.get(spec.name) != spec:
            self.claim_store(spec.name, operator, spec.where)
            self.declared[spec.name] = spec
        return spec

    def node_of_store(self, store: str) -> StatefulNode | GlobalTableNode | None:
        """The node whose store it is; None: there is none."""
        for node in self.nodes.values():
            if isinstance(node, GlobalTableNode) and node.store.name == store:
                return node
            if isinstance(node, StatefulNode) and store in {spec.name for spec in node.stores}:
                return node
        return None

    def claim_beside(self, name: str, store: str, operator: str) -> str:
        """Register a store that goes with ``store``: it lies and is logged as that one is."""
        self.claim_store(name, operator)
        options = self.options.get(store)
        if options is not None:
            self.options[name] = Materialized(
                name, logging=options.logging, in_memory=options.in_memory
            )
        return name

    def claim_each(
        self,
        store: object,
        suffixes: Iterable[str],
        operator: str,
    ) -> tuple[str, ...]:
        """Register several stores, each called after ``store`` and a suffix, with its options."""
        base = self.claim_store(store, operator)
        options = self.options.pop(base, None)
        names = tuple(f"{base}{suffix}" for suffix in suffixes)
        for name in names:
            self.claim_store(name if options is None else replace(options, name=name), operator)
        return names

    def check_repartition_name(self, name: str | None, operator: str) -> str:
        if name is None:
            raise TopologyError(
                f"{operator} needs a repartition topic (the key changes), and it has no name; "
                f"write {operator}(..., name='a-name'). "
                "The name is part of the topic's, so it must not change when the program grows"
            )
        check_name("repartition topic", name)
        if f"{name}-repartition" in self._repartitions:
            first = self._repartitions[f"{name}-repartition"][1]
            raise _twice("repartition name", name, first)
        return name

    def repartition(
        self,
        name: str,
        source: str,
        edge: EdgeType,
        serdes: tuple[Serde, Serde],
        topic_of: tuple[int | None, Partitioner | None] = (None, None),
    ) -> str:
        """Write ``source`` to a new repartition topic; the source node that reads it. ``topic_of``:
        its partitions, and what gives a record's if not its key. The caller burns the numbers."""
        topic = f"{self.check_repartition_name(name, 'repartition')}-repartition"
        partitions, partitioner = topic_of
        self._repartitions[topic] = (RepartitionTopic(topic, partitions), user_line())
        sink = SinkNode(f"{topic}-sink", (source,), edge, topic, *serdes, "repartition")
        self.add(replace(sink, partitioner=partitioner))
        return self.add(
            SourceNode(f"{topic}-source", (), edge, (topic,), *serdes, kind="repartition")
        )

    def internal_topic(self, name: str, serdes: tuple[Serde, Serde], edge: EdgeType) -> str:
        """A repartition topic of one partition that nobody writes; the source node that reads it:
        one task, for what a clock does."""
        topic = f"{self.check_repartition_name(name, 'repartition')}-repartition"
        self._repartitions[topic] = (RepartitionTopic(topic, 1), user_line())
        return self.add(
            SourceNode(f"{topic}-source", (), edge, (topic,), *serdes, kind="repartition")
        )

    def burn(self, numbers: int) -> None:
        self._counter += numbers

    def _require_options_used(self) -> None:
        nodes = [node for node in self.nodes.values() if isinstance(node, StatefulNode)]
        kept = {spec.name for node in nodes for spec in node.stores}
        kept |= {n.store.name for n in self.nodes.values() if isinstance(n, GlobalTableNode)}
        for name in self.options:
            if name not in kept:
                raise TopologyError(
                    f"Materialized({name!r}) is for one store, and here are several, or the "
                    f"table's own topic; write store={name!r}",
                    where=self.stores[name],
                )

    def build(self) -> Topology:
        """The frozen topology. The caller holds ``lock``."""
        if not any(isinstance(node, SourceNode) for node in self.nodes.values()):
            raise TopologyError(
                "the topology reads no topic; begin with builder.stream('topic') or "
                "builder.table('topic')"
            )
        self._require_options_used()
        built = Topology(
            tuple(self.nodes.values()), tuple(topic for topic, _ in self._repartitions.values())
        )
        require_metadata_fits(built)
        require_direct(built)
        assumed_partitioners(built)
        return built


def _read(source: SourceNode) -> dict[str, object]:
    """By the arguments that say it; Columns as text: what they answer to ``==`` is a Column."""
    reading = source.reading
    time = reading.timestamp
    return {
        "key serde": source.key_serde,
        "value serde": source.value_serde,
        "offset_reset": reading.offset_reset,
        "timestamp": str(time.column) if isinstance(time, ColumnExpr) else time,
        "idle_advance": reading.idle_ms,
        "partitioner": reading.partitioner,
    }


def _with_line(node: _AnyNode) -> _AnyNode:
    """The node, and its stores, with the user's line that is lowered."""
    found: Any = node if node.where else replace(node, where=user_line())

    def located(spec: StoreSpec) -> StoreSpec:
        return spec if spec.where else replace(spec, where=found.where)

    if isinstance(node, StatefulNode):
        found = replace(found, stores=tuple(map(located, node.stores)))
    if isinstance(node, WholeTableNode):
        found = replace(found, store=located(node.store))
    return cast(_AnyNode, found)


def _first(where: str | None) -> str:
    return "a line that is not known" if where is None else place(where)


def _twice(what: str, name: str, first: str | None) -> TopologyError:
    return TopologyError(
        f"the {what} {name!r} is used twice (first at {_first(first)}); give one of them another "
        f"name{_or_anew(first)}"
    )


def _or_anew(where: str | None) -> str:
    """For a cell, of whose failed chain the earlier calls are still here."""
    again = (
        "\n  Where that was a chain that failed further on, run the cell of the StreamsBuilder "
        "again, and then this one"
    )
    return again if where is not None and place(where) != where else ""


def _travelling(node: Node) -> dict[str, object]:
    """What of a node goes to the workers: all but Columns, which run in the JVM, and tables."""
    if isinstance(node, LoadedTableNode):
        return {}
    taken = {field.name: getattr(node, field.name) for field in fields(node)}
    if isinstance(node, SourceNode):
        taken["timestamp"] = taken.pop("reading").timestamp
    return {name: value for name, value in taken.items() if not isinstance(value, ColumnExpr)}


# --- a place in the graph, and the stores of operators --------------------------------------------


@dataclass(frozen=True, eq=False)
class Stream:
    """The records of a stream, or the updates of a table, behind a node of the graph that is built.
    ``key_changed``: as of `KStream`."""

    graph: GraphBuilder
    node: str
    edge: Edge
    key_changed: bool = False

    def behind(self, node: str, edge: Edge, changes_key: bool = False) -> Stream:
        return Stream(self.graph, node, edge, self.key_changed or changes_key)

    def projected(
        self,
        name: str,
        label: str,
        edge: Edge | None = None,
        *,
        predicate: ColumnExpr | None = None,
        key: ColumnExpr | None = None,
        value: ColumnExpr | None = None,
        changes_key: bool = False,
    ) -> Stream:
        """The stream behind a new node that computes Columns; ``edge``: left out, this one's."""
        edge = edge or self.edge
        node = ProjectNode(
            name=name,
            inputs=(self.node,),
            out=edge.type,
            label=label,
            predicate=predicate,
            key=key,
            value=value,
            changes_key=changes_key,
        )
        return self.behind(self.graph.add(node), edge, changes_key)

    def called(
        self,
        name: str,
        label: str,
        op: str,
        fn: Callable[..., Any],
        edge: Edge,
        *,
        changes_key: bool = False,
        calls: CallLimits | None = None,
    ) -> Stream:
        node = FunctionNode(name, (self.node,), edge.type, label, op, fn, changes_key, calls)
        return self.behind(self.graph.add(node), edge, changes_key)

    def kept(
        self,
        name: str,
        label: str,
        operator: Operator,
        stores: tuple[StoreSpec, ...] = (),
        edge: Edge | None = None,
        *,
        sides: tuple[str, ...] = (),
        reads: tuple[StoreSpec, ...] = (),
        parts: tuple[Part, ...] = (),
        connector: str = "",
    ) -> Stream:
        """What is behind a new stateful node; ``sides``: all that it reads, left out this one."""
        edge = edge or self.edge
        sides = sides or (self.node,)
        node = StatefulNode(name, sides, edge.type, label, operator, stores, reads, parts)
        node = replace(node, connector=connector)
        return self.behind(self.graph.add(node), edge)

    def with_serdes(self, operator: str, key: object | None, value: object | None) -> Stream:
        """The same, written with other serdes. TopologyError for those of other types."""
        key_serde = fitting_serde(key, self.edge.type.key, "key", operator)
        value_serde = fitting_serde(value, self.edge.type.value, "value", operator)
        return self.behind(self.node, self.edge.with_serdes(key_serde, value_serde))

    def repartitioned(
        self,
        name: str,
        operator: str,
        chosen: tuple[int | None, Partitioner | None] = (None, None),
    ) -> Stream:
        """This stream read back from the new repartition topic ``name`` (already checked)."""
        serdes = self.edge.serdes(operator)
        self.graph.burn(3)  # sink, null-key filter, source
        node = self.graph.repartition(name, self.node, self.edge.type, serdes, chosen)
        return Stream(self.graph, node, self.edge)


def store_spec(
    name: str, serdes: tuple[Serde, Serde], kind: str = "key_value", **how: Any
) -> StoreSpec:
    """The store of an operator on the user's line; ``how``: as of `StoreSpec`."""
    key, value = serdes
    where = user_line()
    return StoreSpec(
        name=name,
        kind=kind,
        key_serde=key,
        value_serde=value,
        where=where,
        **how,
    )


def bytes_store(name: str, *, private: bool = False) -> StoreSpec:
    return store_spec(name, (bytes_(), bytes_()), private=private)


def window_store(
    name: str, serdes: tuple[Serde, Serde], retention_ms: int, size_ms: int | None = None
) -> StoreSpec:
    return store_spec(
        name,
        serdes,
        "window",
        retention_ms=retention_ms,
        window_size_ms=size_ms,
    )


# --- calls of the DSL -----------------------------------------------------------------------------


OTHER_KEYWORDS = {
    "materialized": "store",
    "store_name": "store",
    "named": "name",
    "key_serde": "key",
    "value_serde": "value",
    "keySerde": "key",
    "valueSerde": "value",
    "consumed": "key",
    "produced": "key",
    "return_type": "returns",
    "returnType": "returns",
    "num_partitions": "partitions",
    "numPartitions": "partitions",
}


_Method = TypeVar("_Method", bound=Callable[..., Any])


def builder_call(method: _Method) -> _Method:
    """A method of a class with ``graph``. It takes effect as a whole, or raises and the graph is as
    before. TopologyError, with the user's line, also for arguments that do not fit."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        try:
            signature.bind(self, *args, **keywords)
        except TypeError:
            said = _misfit(type(self).__name__, method.__name__, signature, args, keywords)
            raise TopologyError(said) from None
        graph: GraphBuilder = self.graph
        with graph.lock:  # a call that raises leaves everything as it was before
            state = {name: value for name, value in vars(graph).items() if name != "lock"}
            before = {name: copy(value) for name, value in state.items()}
            try:
                return method(self, *args, **keywords)
            except BaseException:
                vars(graph).update(before)
                raise

    return naming_the_line(call)  # type: ignore[return-value]


def _misfit(
    owner: str,
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> str:
    parameters = list(signature.parameters.values())[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_place = [p.name for p in parameters if p.kind in positional]
    by_name = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    known = [*by_place, *(p.name for p in by_name)]
    listed = ", ".join([*by_place, *(f"{p.name}=" for p in by_name)]) or "no arguments"
    for keyword in keywords:
        if keyword not in known:
            near = OTHER_KEYWORDS.get(keyword, "")
            theirs = None if near in known else entry_of("everflow", keyword)
            if theirs is not None:
                return f"{name} takes no {keyword}=; {theirs}"
            close = [near] if near in known else difflib.get_close_matches(keyword, known, n=1)
            hint = f"did you mean {close[0]}=?" if close else f"it takes {listed}"
            return f"{name} takes no {keyword}=; {hint}"
    if len(args) > len(by_place):
        extra = args[len(by_place)]
        functions = [p.name for p in by_name if "Callable" in str(p.annotation)]
        functions_by_place = sum(map(callable, args[len(by_place) :]))
        if callable(extra) and functions_by_place <= len(functions):
            named = ", ".join(f"{function}=..." for function in functions[:functions_by_place])
            return f"{name} takes {listed}; functions are given by name: {name}({named})"
        example = entry_of(owner, name)
        like = f", as in {example.advice}" if example is not None and example.here == name else ""
        function = inspect.isfunction(extra)
        shown = f"the function {extra.__name__}" if function else f"{extra!r:.100}"
        return f"{name} takes {listed}; {shown} is one too many: give it by name{like}"
    doubled = [keyword for keyword in keywords if keyword in by_place[: len(args)]]
    if doubled:
        return f"{name}: {doubled[0]} is given twice, by place and by name"
    return f"{name} takes {listed}; {by_place[len(args)]} is missing"
