"""The planner cuts a topology into segments (Catalyst) and steps (Python), design D2. Pure.

Decides where each node runs and which records cross from one stage to the next (`physical_plan` has
what comes out).
Merges are dissolved: a projection behind a merge exists once per input path, and an operator behind
it has several input slots.

Level of a node: segment L is Spark's code, then step L is Python. Step -1 decodes. A Column behind
a Python operator of level L opens level L+1; everything else stays as low as its inputs allow.
Operators that share a store run in one step (D5), sinks in the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    DEAD_LETTER_SLOT,
    DEAD_LETTER_TYPE,
    Choice,
    FunctionOp,
    GlobalTable,
    LoadedTable,
    PhysicalPlan,
    PlannedStep,
    PrintOp,
    Projection,
    Segment,
    SinkOp,
    Slot,
    Source,
    StatefulOp,
    StepOp,
    TakeOp,
    TimeOp,
    UnnestOp,
    in_turn,
)
from everflow.topology.shared_stores import together, ways_to
from everflow.topology.sources.idle_sources import idle_sources, sources_of
from everflow.topology.timestamps import TimeFunction, TimestampExtractor

_Graph = TypeVar("_Graph", bound=Graph)

DECODING = -1
"""The level of the step that decodes, before everything."""


def plan(topology: Graph, subtopology_of: Mapping[str, int], application_id: str) -> PhysicalPlan:
    """Cut ``topology`` into segments and steps.

    ``subtopology_of`` maps node names to sub-topology numbers. Raises TopologyError where operators
    on one store cannot run in one step.
    """
    floor: dict[str, int] = {}
    for _ in range(len(topology.nodes) + 1):
        builder = _Planner(topology, subtopology_of, application_id, floor)
        builder.place_all()
        raised = _raised_floor(builder, floor)
        if raised == floor:
            return builder.finish()
        floor = raised
    raise TopologyError(
        "operators that share a store depend on each other through Columns; use Python functions "
        "between them"
    )


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


def _raised_floor(planner: _Planner, floor: dict[str, int]) -> dict[str, int]:
    """Minimum levels for the next round: sharers of a store together, sinks in the last step."""
    raised = dict(floor)
    last = max((level for _, level in planner.step_ops), default=0)
    by_store: dict[str, int] = {}
    for op, level in planner.step_ops:
        if isinstance(op, StatefulOp):
            for spec in op.stores:
                by_store[spec.name] = max(by_store.get(spec.name, 0), level)
    for op, level in planner.step_ops:
        wanted = level
        if isinstance(op, SinkOp):
            wanted = last
        elif isinstance(op, StatefulOp):
            wanted = max([by_store[spec.name] for spec in op.stores], default=level)
        if wanted > floor.get(op.name, 0):
            raised[op.name] = wanted
    return raised


class _Planner:
    """One pass over the nodes in topological order; ``floor`` holds minimum levels found by earlier
    passes."""

    def __init__(
        self, topology: Graph, subtopology_of: Mapping[str, int], app: str, floor: Mapping[str, int]
    ) -> None:
        self._topology = topology
        self._sub = subtopology_of
        self._app = app
        self._floor = floor
        self._together = together(topology)
        self._idle = idle_sources(topology, app)
        self._partitioners = key_partitioners(topology)
        self._keyed = keyed_sources(topology)
        self._slots: list[Slot] = []
        self._slot("dead-letters", DEAD_LETTER_TYPE, DECODING, in_step=True)
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._sources: list[Source] = []
        self._global_tables: list[GlobalTable] = []
        self._loaded_tables: list[LoadedTable] = []
        self._segments: dict[int, list[Projection | Choice]] = {}
        self.step_ops: list[tuple[StepOp, int]] = []
        self.level_of: dict[str, int] = {}
        self._sides: dict[str, tuple[tuple[str, ...], ...]] = {}
        """The nodes that each side of an operator or a sink reads."""

    # -- slots -------------------------------------------------------------------------------------

    def _slot(self, name: str, edge: EdgeType, level: int, in_step: bool) -> int:
        self._slots.append(
            Slot(id=len(self._slots), name=name, type=edge, level=level, in_step=in_step)
        )
        return len(self._slots) - 1

    def _read_in_step(self, slot: int, level: int) -> None:
        self._slots[slot] = replace(
            self._slots[slot], last_step=max(self._slots[slot].last_step, level)
        )

    def _read_in_segment(self, slot: int, level: int) -> None:
        self._slots[slot] = replace(
            self._slots[slot], last_segment=max(self._slots[slot].last_segment, level)
        )

    def _segment(self, level: int) -> list[Projection | Choice]:
        return self._segments.setdefault(level, [])

    def _segment_level(self, slot: int) -> int:
        """Level of the first segment that can read ``slot``."""
        found = self._slots[slot]
        return found.level + 1 if found.in_step else found.level

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
        self.level_of[node.name] = 0
        for topic in node.topics:
            slot = self._slot(node.name, node.out, DECODING, in_step=True)
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
            slot = self._choice(node, "time", extractor, pa.int64(), slot)
        self._read_in_step(slot, 0)
        out = self._slot(node.name, node.out, 0, in_step=True)
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
        self.step_ops.append((op, 0))
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
        level = self._segment_level(slot)
        self._read_in_segment(slot, level)
        out = self._slot(node.name, node.out, level, in_step=False)
        self._segment(level).append(Projection(node, slot, out))
        self.level_of[node.name] = max(self.level_of.get(node.name, 0), level)
        return out

    def _step_level(self, name: str, inputs: tuple[int, ...]) -> int:
        level = max([self._floor.get(name, 0), *(self._slots[slot].level for slot in inputs)])
        self.level_of[name] = level
        for slot in inputs:
            self._read_in_step(slot, level)
        return level

    def _place_step_op(
        self, node: FunctionNode | TakeNode | UnnestNode | StatefulNode
    ) -> Iterator[int]:
        group, links = self._together.get(node.name, ()), tuple[Link, ...]()
        read: tuple[tuple[str, ...], ...] = tuple((name,) for name in node.inputs)
        if group:
            links, others = ways_to(self._topology, node, group)
            read = (others, *read[1:])
        self._sides[node.name] = read
        sides = tuple(tuple(slot for name in side for slot in self._outputs[name]) for side in read)
        inputs = tuple(slot for side in sides for slot in side)
        level = self._step_level(node.name, inputs)
        out = self._slot(node.name, node.out, level, in_step=True)
        op: StepOp
        if isinstance(node, FunctionNode):
            op = FunctionOp(
                name=node.name,
                op=node.op,
                fn=node.fn,
                type=node.out,
                inputs=inputs,
                output=out,
                where=node.where,
            )
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
            )
        self.step_ops.append((op, level))
        yield out

    def _idle_names(self, node: Node) -> tuple[str, ...]:
        if not self._idle:
            return ()
        found = (self._idle.get(source.name, {}) for source in sources_of(self._topology, node))
        return tuple(one.kept for topics in found for one in topics.values())

    def _place_print(self, node: PrintNode) -> None:
        inputs = self._inputs(node)
        self._sides[node.name] = (node.inputs,)
        level = self._step_level(node.name, inputs)
        op = PrintOp(
            name=node.name, title=node.title, rows=node.rows, inputs=inputs, where=node.where
        )
        self.step_ops.append((op, level))

    def _place_sink(self, node: SinkNode) -> None:
        inputs = self._inputs(node)
        self._sides[node.name] = (node.inputs,)
        topic: str | Callable[..., Any] | None
        if isinstance(node.topic, ColumnExpr):
            topic = None
            chosen = node.topic
            inputs = tuple(
                self._choice(node, "topic", chosen, pa.string(), slot) for slot in inputs
            )
        elif isinstance(node.topic, FunctionExpr):
            topic = node.topic.fn
        else:
            topic = f"{self._app}-{node.topic}" if node.kind == "repartition" else node.topic
        partitioner: str | Callable[..., Any] | None = None
        if isinstance(node.partitioner, ColumnExpr):
            said = node.partitioner
            inputs = tuple(
                self._choice(node, "partition", said, said.type, slot) for slot in inputs
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
        self.step_ops.append((op, self._step_level(op.name, inputs)))

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
    ) -> int:
        """The slot of an input's records with what a Column says of each beside its value."""
        level = self._segment_level(slot)
        self._read_in_segment(slot, level)
        edge = self._slots[slot].type
        value = pa.struct([(what, kind), ("value", edge.value)])
        out = self._slot(node.name, EdgeType(edge.key, value), level, in_step=False)
        self._segment(level).append(
            Choice(node=node, what=what, column=column, type=kind, input=slot, output=out)
        )
        return out

    # -- result ------------------------------------------------------------------------------------

    def finish(self) -> PhysicalPlan:
        last = max((level for _, level in self.step_ops), default=0)
        self._read_in_step(DEAD_LETTER_SLOT, last)
        changelogs: dict[str, int] = {}
        for op, level in self.step_ops:
            for spec in op.stores if isinstance(op, StatefulOp) else ():
                if spec.name not in changelogs:
                    changelogs[spec.name] = self._slot(
                        spec.changelog, EdgeType(pa.binary(), pa.binary()), level, in_step=True
                    )
                    self._read_in_step(changelogs[spec.name], last)
        segments = tuple(Segment(level, tuple(self._segment(level))) for level in range(last + 1))
        steps = tuple(
            PlannedStep(level, in_turn([op for op, at in self.step_ops if at == level]))
            for level in range(last + 1)
        )
        topics_of: dict[int, int] = {}
        for source in self._sources:
            topics_of[source.subtopology] = topics_of.get(source.subtopology, 0) + 1
        sources = tuple(
            replace(source, merged=topics_of[source.subtopology] > 1) for source in self._sources
        )
        headers = self._reads_headers(segments) or any(
            map(self._forwards_headers, self._topology.nodes)
        )
        return PhysicalPlan(
            application_id=self._app,
            sources=sources,
            slots=tuple(self._slots),
            segments=segments,
            steps=steps,
            headers=headers,
            changelog_slots=changelogs,
            global_tables=tuple(self._global_tables),
            loaded_tables=tuple(self._loaded_tables),
            ways=ways_in_turn(self._topology.nodes, self._sides, self._together, self._sub),
        )

    def _reads_headers(self, segments: tuple[Segment, ...]) -> bool:
        """Whether a Column, a processor or a timestamp function of the user may read headers."""
        return any(segment.reads_headers for segment in segments) or any(
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
