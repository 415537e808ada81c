"""The planner puts the operators of a topology in one order, Columns among them (design D2). Pure.

Merges are dissolved: a projection behind a merge exists once per input path, and an operator behind
it has several input slots. Projections that are computed by the same means, over the same records,
are one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from everflow.columns.key_partitions import MURMUR2
from everflow.errors import TopologyError
from everflow.topology.arrival import in_order_of_arrival, ways_in_turn
from everflow.topology.graph import (
    ColumnExpr,
    EdgeType,
    FunctionExpr,
    FunctionNode,
    GlobalTableNode,
    Graph,
    Link,
    LoadedTableNode,
    MergeNode,
    Node,
    PrintNode,
    ProcessorOperator,
    ProjectNode,
    SinkNode,
    SourceNode,
    StatefulNode,
    TakeNode,
    UnnestNode,
)
from everflow.topology.partitioners import key_partitioners, keyed_sources, usual
from everflow.topology.physical_plan import (
    DEAD_LETTER_TYPE,
    PYTHON,
    AskOp,
    Choice,
    ColumnsOp,
    FunctionOp,
    GlobalTable,
    LoadedTable,
    PhysicalPlan,
    PlanOp,
    PrintOp,
    Projection,
    SinkOp,
    Slot,
    Source,
    StatefulOp,
    StepOp,
    TakeOp,
    Through,
    TimeOp,
    UnnestOp,
    computed_by,
    in_turn,
)
from everflow.topology.shared_stores import together, ways_to
from everflow.topology.sources.idle_sources import idle_sources, sources_of
from everflow.topology.timestamps import TimeFunction, TimestampExtractor

_Graph = TypeVar("_Graph", bound=Graph)


def plan(topology: Graph, subtopology_of: Mapping[str, int], application_id: str) -> PhysicalPlan:
    """The operators of ``topology`` in order. ``subtopology_of`` maps node names to sub-topology
    numbers."""
    planner = _Planner(topology, subtopology_of, application_id)
    planner.place_all()
    return planner.finish()


def emitting_every_update(topology: Graph) -> Graph:
    """The topology with ``emit.every.update``: stateful operators give every intermediate result,
    as Kafka Streams does without its record cache, instead of the last one per key (and window) of
    a micro-batch."""

    def changed(node: Node) -> Node:
        if isinstance(node, StatefulNode) and hasattr(node.operator, "emit_every_update"):
            return replace(node, operator=replace(node.operator, emit_every_update=True))
        return node

    return replace(topology, nodes=tuple(changed(node) for node in topology.nodes))


def with_default_extractor(topology: _Graph, extractor: TimestampExtractor | None) -> _Graph:
    """The topology with ``default.timestamp.extractor`` for the user's topics that have none."""

    def changed(node: Node) -> Node:
        if not isinstance(node, SourceNode) or node.kind == "repartition":
            return node
        own = node.reading.timestamp
        return replace(node, reading=replace(node.reading, timestamp=own or extractor))

    return replace(topology, nodes=tuple(changed(node) for node in topology.nodes))


def _function_op(node: FunctionNode, inputs: tuple[int, ...], output: int) -> FunctionOp:
    return FunctionOp(
        name=node.name,
        op=node.op,
        fn=node.fn,
        type=node.out,
        inputs=inputs,
        output=output,
        where=node.where,
    )


def _is_op_of(op: object, name: str) -> bool:
    return isinstance(op, StatefulOp) and op.name == name


class _Columns:
    """Projections that become one `ColumnsOp`."""

    def __init__(self, given: int) -> None:
        self.input = given
        self.projections: list[Projection | Choice] = []

    def op(self, read: Collection[int]) -> ColumnsOp:
        """``read``: the slots that operators read."""
        made = (projection.output for projection in self.projections)
        return ColumnsOp(
            projections=tuple(self.projections),
            input=self.input,
            outputs=tuple(slot for slot in made if slot in read),
        )


class _Planner:
    """One pass over the nodes in topological order."""

    def __init__(self, topology: Graph, subtopology_of: Mapping[str, int], app: str) -> None:
        self._topology = topology
        self._sub = subtopology_of
        self._app = app
        self._together = together(topology)
        self._idle = idle_sources(topology, app)
        self._partitioners = key_partitioners(topology)
        self._keyed = keyed_sources(topology)
        self._slots: list[Slot] = []
        self._slot("dead-letters", DEAD_LETTER_TYPE)
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._sources: list[Source] = []
        self._global_tables: list[GlobalTable] = []
        self._loaded_tables: list[LoadedTable] = []
        self._times: list[_Columns | TimeOp] = []
        self._ops: list[_Columns | StepOp] = []
        self._through: list[tuple[str, Through]] = []
        """With the names of the nodes whose operators look rows up."""
        self._columns: dict[tuple[int, str], _Columns] = {}
        """By a slot, and by what computes them, the Columns over it that others may join."""
        self._sides: dict[str, tuple[tuple[str, ...], ...]] = {}
        """The nodes that each side of an operator or a sink reads."""
        self._old: dict[str, int] = {}
        """By a table's node, the slot of what its entries were before its updates."""

    # -- slots -------------------------------------------------------------------------------------

    def _slot(self, name: str, edge: EdgeType) -> int:
        self._slots.append(Slot(len(self._slots), name, edge))
        return len(self._slots) - 1

    def _project(self, found: Projection | Choice, ops: list[Any]) -> int:
        """Put a projection to those that are computed with it, or behind ``ops``; its output."""
        by = computed_by(found)
        columns = self._columns.get((found.input, by))
        if columns is None:
            columns = _Columns(found.input)
            ops.append(columns)
        columns.projections.append(found)
        if by != PYTHON:  # a call would see what a filter beside it drops
            self._columns.setdefault((columns.input, by), columns)
            self._columns[found.output, by] = columns
        return found.output

    def _inputs(self, node: Node) -> tuple[int, ...]:
        return tuple(slot for name in node.inputs for slot in self._outputs[name])

    # -- placing -----------------------------------------------------------------------------------

    def place_all(self) -> None:
        """Place every node, inputs first."""
        for node in self._topology.nodes:
            self._outputs[node.name] = tuple(self._place(node))

    def _place(self, node: Node) -> Iterator[int]:
        match node:
            case SourceNode():
                yield from self._place_source(node)
            case MergeNode():
                for name in in_order_of_arrival(self._topology.nodes, node):
                    yield from self._outputs[name]
            case ProjectNode(predicate=None, key=None, value=None):
                yield from self._inputs(node)  # it only names a place (to_stream, split)
            case ProjectNode():
                for slot in self._inputs(node):
                    yield self._place_projection(node, slot)
            case SinkNode():
                self._place_sink(node)
            case PrintNode():
                self._place_print(node)
            case GlobalTableNode():
                self._global_tables.append(self._global_table(node))
            case LoadedTableNode():
                self._loaded_tables.append(LoadedTable(self._sub[node.name], node))
            case FunctionNode() | TakeNode() | UnnestNode() | StatefulNode():
                yield from self._place_step_op(node)
            case _:
                raise TopologyError(
                    f"no place in the plan for {type(node).__name__} {node.name}", where=node.where
                )

    def _place_source(self, node: SourceNode) -> Iterator[int]:
        for topic in node.topics:
            slot = self._slot(node.name, node.out)
            self._sources.append(
                Source(
                    index=len(self._sources),
                    topic=f"{self._app}-{topic}" if node.kind == "repartition" else topic,
                    subtopology=self._sub[node.name],
                    node=node.name,
                    key_serde=node.key_serde,
                    value_serde=node.value_serde,
                    offset_reset=node.reading.offset_reset,
                    kind=node.kind,
                    merged=False,
                    slot=slot,
                    own_times=node.extractor is None,
                    idle=self._idle.get(node.name, {}).get(topic),
                    partitioner=self._partitioners.get(topic) if self._looked_at(node) else None,
                )
            )
            yield slot if node.extractor is None else self._place_times(node, topic, slot)

    def _looked_at(self, node: SourceNode) -> bool:
        """Whether somebody else writes keys that a store relies on."""
        return node.kind != "repartition" and node.name in self._keyed

    def _place_times(self, node: SourceNode, topic: str, slot: int) -> int:
        """The slot of a topic's records with the times that the source's extractor gives them."""
        extractor = node.extractor
        if isinstance(extractor, ColumnExpr):
            slot = self._choice(node, "time", extractor, pa.int64(), slot, self._times)
        out = self._slot(node.name, node.out)
        op = TimeOp(
            name=node.name,
            source=self._sources[-1].index,
            subtopology=self._sources[-1].subtopology,
            extractor=None if isinstance(extractor, ColumnExpr) else extractor,
            kept=node.partition_times().get(topic),
            input=slot,
            output=out,
            where=node.where,
        )
        self._times.append(op)
        return out

    def _global_table(self, node: GlobalTableNode) -> GlobalTable:
        source = Source(
            index=0,
            topic=node.topic,
            subtopology=self._sub[node.name],
            node=node.source,
            key_serde=node.store.key_serde,
            value_serde=node.store.value_serde,
            offset_reset=None,
            kind="global",
            merged=False,
            slot=-1,
        )
        return GlobalTable(source.subtopology, node.store, source)

    def _place_projection(self, node: ProjectNode, slot: int) -> int:
        return self._project(Projection(node, slot, self._slot(node.name, node.out)), self._ops)

    def _place_step_op(
        self, node: FunctionNode | TakeNode | UnnestNode | StatefulNode
    ) -> Iterator[int]:
        group, links = self._together.get(node.name, ()), tuple[Link, ...]()
        given = node.inputs
        if isinstance(node, StatefulNode) and node.operator.old_input:
            given = given[:-1]
        read: tuple[tuple[str, ...], ...] = tuple((name,) for name in given)
        if group:
            links, others = ways_to(self._topology, node, group)
            read = (others, *read[1:])
        self._sides[node.name] = read
        sides = tuple(tuple(slot for name in side for slot in self._outputs[name]) for side in read)
        inputs = tuple(slot for side in sides for slot in side)
        out = self._slot(node.name, node.out)
        op: StepOp
        if isinstance(node, FunctionNode):
            op = _function_op(node, inputs, out)
        elif isinstance(node, TakeNode):
            op = TakeOp(node.name, node.taken, inputs, out)
        elif isinstance(node, UnnestNode):
            op = UnnestOp(node.name, node.keyed, node.out, inputs, out)
        else:
            op = StatefulOp(
                name=node.name,
                operator=node.operator,
                stores=node.stores,
                reads=node.reads,
                subtopology=self._sub[node.name],
                type=node.out,
                sides=sides,
                output=out,
                where=node.where,
                together=group,
                links=links,
                idle=self._idle_names(node),
                old_sides=self._old_sides(node, node.operator.old_sides),
            )
        self._ops.append(op)
        if isinstance(node, StatefulNode):
            for names in dict.fromkeys(node.operator.through):
                self._through.append((node.name, self._place_through(node, names)))
        yield out

    # -- tables that are asked (note 035) ----------------------------------------------------------

    def _place_through(self, node: StatefulNode, names: tuple[str, ...]) -> Through:
        """The stateless nodes ``names`` on slots of their own, for rows that ``node`` looks up."""
        stages = [self._topology.node(name) for name in names]
        source = self._topology.node(stages[0].inputs[0])
        given = slot = self._slot(names[0], source.out)
        ops: list[Any] = []
        for stage in stages:
            slot = self._again(stage, slot, ops, self._sub[node.name])
        return Through(nodes=names, input=given, output=slot, ops=tuple(ops))

    def _again(self, node: Node, given: int, ops: list[Any], subtopology: int) -> int:
        """A stateless node of a table once more, on other rows; its output."""
        out = self._slot(node.name, node.out)
        match node:
            case ProjectNode(predicate=None, key=None, value=None):
                return given
            case ProjectNode():
                self._project(Projection(node, given, out), ops)
            case FunctionNode():
                ops.append(_function_op(node, (given,), out))
            case StatefulNode():
                assert isinstance(node.operator.asked, ProcessorOperator)
                ask = AskOp(
                    name=node.name,
                    operator=node.operator.asked,
                    subtopology=subtopology,
                    type=node.out,
                    inputs=(given,),
                    output=out,
                    where=node.where,
                )
                ops.append(ask)
        return out

    def _old_sides(self, node: StatefulNode, sides: tuple[int, ...]) -> dict[int, int]:
        if node.operator.old_input:
            (slot,) = self._outputs[node.inputs[-1]]
            return {0: slot}
        return {side: self._old_of(node.inputs[side]) for side in sides}

    def _old_of(self, name: str) -> int:
        """The slot of what a table's entries were before its updates, row by row, where an operator
        asks for it: Kafka Streams' ``enableSendingOldValues``."""
        if name in self._old:
            return self._old[name]
        node = self._topology.node(name)
        if isinstance(node, StatefulNode) and node.operator.asked is None:
            self._old[name] = self._slot(name, node.out)
            sides = self._old_sides(node, node.operator.old_from)
            at = next(n for n, op in enumerate(self._ops) if _is_op_of(op, name))
            op = self._ops[at]
            assert isinstance(op, StatefulOp)
            self._ops[at] = replace(op, old=self._old[name], old_sides={**op.old_sides, **sides})
        else:
            given = self._old_of(node.inputs[0])
            self._old[name] = self._again(node, given, self._ops, self._sub[name])
        return self._old[name]

    def _idle_names(self, node: Node) -> tuple[str, ...]:
        if not self._idle:
            return ()
        found = (self._idle.get(source.name, {}) for source in sources_of(self._topology, node))
        return tuple(one.kept for topics in found for one in topics.values())

    def _place_print(self, node: PrintNode) -> None:
        inputs = self._inputs(node)
        self._sides[node.name] = (node.inputs,)
        op = PrintOp(
            name=node.name, title=node.title, rows=node.rows, inputs=inputs, where=node.where
        )
        self._ops.append(op)

    def _place_sink(self, node: SinkNode) -> None:
        inputs = self._inputs(node)
        self._sides[node.name] = (node.inputs,)
        topic: str | Callable[..., Any] | None
        if isinstance(node.topic, ColumnExpr):
            topic = None
            chosen = node.topic
            inputs = tuple(
                self._choice(node, "topic", chosen, pa.string(), slot, self._ops) for slot in inputs
            )
        elif isinstance(node.topic, FunctionExpr):
            topic = node.topic.fn
        else:
            topic = f"{self._app}-{node.topic}" if node.kind == "repartition" else node.topic
        partitioner: str | Callable[..., Any] | None = None
        if isinstance(node.partitioner, ColumnExpr):
            said = node.partitioner
            inputs = tuple(
                self._choice(node, "partition", said, said.type, slot, self._ops) for slot in inputs
            )
            partitioner = "column"
        elif isinstance(node.partitioner, FunctionExpr):
            partitioner = node.partitioner.fn
        elif node.kind == "repartition":
            by = self._partitioners.get(str(node.topic), MURMUR2)
            partitioner = None if by == MURMUR2 else by
        else:
            by = node.partitioner or usual(node.key_serde)
            partitioner = None if by == MURMUR2 else by
        op = SinkOp(
            name=node.name,
            topic=topic,
            partitioner=partitioner,
            key_serde=node.key_serde,
            value_serde=node.value_serde,
            drop_null_keys=node.kind == "repartition" and not self._null_keys_are_taken(node),
            inputs=inputs,
            where=node.where,
        )
        self._ops.append(op)

    def _null_keys_are_taken(self, sink: SinkNode) -> bool:
        """Whether a join that takes null keys is anywhere behind the repartition topic."""
        behind, topics = set[str](), {sink.topic}
        for node in self._topology.nodes:  # inputs, and those who write a topic, first
            reads = topics & set(node.topics) if isinstance(node, SourceNode) else set(node.inputs)
            if not reads & (behind | topics):
                continue
            behind.add(node.name)
            if isinstance(node, SinkNode) and node.kind == "repartition":
                topics.add(node.topic)
            if isinstance(node, StatefulNode) and node.operator.takes_null_keys:
                return True
        return False

    def _choice(
        self,
        node: SinkNode | SourceNode,
        what: str,
        column: ColumnExpr,
        kind: pa.DataType,
        slot: int,
        ops: list[Any],
    ) -> int:
        """The slot of an input's records with what a Column says of each beside its value."""
        edge = self._slots[slot].type
        value = pa.struct([(what, kind), ("value", edge.value)])
        out = self._slot(node.name, EdgeType(edge.key, value))
        found = Choice(node=node, what=what, column=column, type=kind, input=slot, output=out)
        return self._project(found, ops)

    # -- result ------------------------------------------------------------------------------------

    def finish(self) -> PhysicalPlan:
        through = [one for _, one in self._through]
        read = {one.output for one in through}
        for op in (*self._times, *self._ops, *(op for one in through for op in one.ops)):
            read.update([op.input] if isinstance(op, _Columns) else op.inputs)
        times = [one.op(read) if isinstance(one, _Columns) else one for one in self._times]
        ops = [self._finished(one, read) for one in self._ops]
        topics_of: dict[int, int] = {}
        for source in self._sources:
            topics_of[source.subtopology] = topics_of.get(source.subtopology, 0) + 1
        sources = tuple(
            replace(source, merged=topics_of[source.subtopology] > 1) for source in self._sources
        )
        columns = (op for op in (*times, *ops) if isinstance(op, ColumnsOp))  # a getter sees none
        headers = (
            any("headers" in op.uses for op in columns)
            or self._reads_headers()
            or any(map(self._forwards_headers, self._topology.nodes))
        )
        return PhysicalPlan(
            application_id=self._app,
            sources=sources,
            slots=tuple(self._slots),
            times=tuple(times),
            ops=in_turn(ops),
            headers=headers,
            global_tables=tuple(self._global_tables),
            loaded_tables=tuple(self._loaded_tables),
            ways=ways_in_turn(self._topology.nodes, self._sides, self._together, self._sub),
        )

    def _finished(self, op: _Columns | StepOp, read: Collection[int]) -> PlanOp:
        if isinstance(op, _Columns):
            return op.op(read)
        mine = [one for name, one in self._through if name == op.name]
        if not isinstance(op, StatefulOp) or not mine:
            return op
        return replace(
            op,
            through=tuple(
                replace(one, ops=tuple(self._finished(stage, read) for stage in one.ops))
                for one in mine
            ),
        )

    def _reads_headers(self) -> bool:
        """Whether a processor or a timestamp function of the user may read headers."""
        return any(
            (isinstance(node, StatefulNode) and isinstance(node.operator, ProcessorOperator))
            or (
                isinstance(node, SourceNode)
                and isinstance(node.reading.timestamp, TimeFunction)
                and node.reading.timestamp.takes > 2
            )
            for node in self._topology.nodes
        )

    def _forwards_headers(self, sink: Node) -> bool:
        """Whether records reach a sink from a topic of others, through repartition topics too: a
        result has the headers of the record that made it."""
        if not isinstance(sink, SinkNode) or sink.kind == "repartition":
            return False
        todo, seen = list(sink.inputs), set[str]()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            found = self._topology.node(name)
            if isinstance(found, SourceNode) and found.kind == "repartition":
                writers = [
                    n
                    for n in self._topology.nodes
                    if isinstance(n, SinkNode) and n.topic in found.topics
                ]
                todo.extend(name for writer in writers for name in writer.inputs)
            elif isinstance(found, SourceNode):
                return True
            else:
                todo.extend(found.inputs)
        return False
