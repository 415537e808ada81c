"""The physical plan of a topology: its operators in one order, Columns among them. Pure.

`everflow.worker.task_step` runs the operators. Merges are dissolved: a projection behind a merge
exists once per input path, and an operator behind it has several input slots. Projections of the
same records that are computed alike are one operator. Columns that call Python functions are
computed by stages (`everflow.spark.columns.staged`); a worker runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property, partial
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from everflow.columns.key_partitions import MURMUR2
from everflow.errors import TopologyError
from everflow.records import TaskId
from everflow.serdes import BytesSerde, Serde
from everflow.serdes.base import ResultDecoder, decode_one, value_reader
from everflow.serdes.registered import Registered, in_front
from everflow.state.store import StoreSpec
from everflow.topology.arrival import Ways, in_order_of_arrival, together, ways_in_turn, ways_to
from everflow.topology.event_time import (
    Reach,
    Teller,
    fed_back,
    holds_back,
    lags,
    sources_of_sinks,
)
from everflow.topology.graph import (
    AssumedNode,
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
    Operator,
    PrintNode,
    ProcessorOperator,
    ProjectNode,
    SinkNode,
    SourceNode,
    StatefulNode,
    TakeNode,
    TimeFunction,
    TimestampExtractor,
    UnnestNode,
    WriteNode,
    input_name,
)
from everflow.topology.idle_sources import IdleSource, idle_sources, sources_of
from everflow.topology.partitioners import (
    KeyPartitioner,
    assumed_partitioners,
    key_partitioners,
    keyed_sources,
    usual,
)
from everflow.topology.sources import Source
from everflow.topology.subtopologies import cut

# --- the parts ------------------------------------------------------------------------------------

DEAD_LETTER_SLOT = 0
DEAD_LETTER_TYPE = EdgeType(
    pa.binary(),
    pa.struct(
        [
            ("value", pa.binary()),
            ("error", pa.string()),
            ("response", pa.string()),
            ("about", pa.string()),
        ]
    ),
)
"""Records that are left out, as they came: the error, the handler's `Response`, and JSON about it.
"""


@dataclass(frozen=True)
class Slot:
    """One value stream of the plan: the records that a source, a projection or an operator
    gives."""

    id: int
    name: str
    type: EdgeType


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Columns over the records of one slot, by what they make, with its types. Of a ProjectNode:
    which are ``kept``, their ``key``, their ``value``. Of a sink or a source: a ``topic``,
    ``partition`` or ``time``, a field of the output's value beside the value itself."""

    node: ProjectNode | SinkNode | SourceNode
    columns: Mapping[str, tuple[ColumnExpr, pa.DataType]]
    input: int
    output: int


ARROW, CATALYST, PYTHON = "Arrow", "Catalyst", "Python"
"""The execution paths of a Column."""


def why_not_arrow(column: ColumnExpr, kind: pa.DataType) -> str:
    """Why Arrow does not compute a Column of which a ``kind`` is made; empty where it does."""
    if column.arrow is not None and not column.type.equals(kind):
        return f"{column.type} becomes {kind}"
    return column.why if column.arrow is None else ""


def computed_by(found: Projection) -> str:
    columns = found.columns.values()
    if not any(why_not_arrow(*one) for one in columns):
        return ARROW
    return PYTHON if any(column.calls for column, _ in columns) else CATALYST


@dataclass(kw_only=True)
class ColumnsOp:
    """Projections of the records of slot ``input``, or of what an earlier one of them gives, which
    are computed together (one alone, if it calls functions). Only the planner changes it."""

    input: int
    projections: list[Projection] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    """The slots that other operators read."""

    @property
    def name(self) -> str:
        return self.projections[0].node.name

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    @property
    def uses(self) -> frozenset[str]:
        columns = (column for one in self.projections for column, _ in one.columns.values())
        return frozenset(name for column in columns for name in column.uses)


@dataclass(frozen=True, kw_only=True)
class TimeOp:
    """Gives the records of one topic of a SourceNode their times, before inputs are merged.
    ``extractor`` None: the input's value is ``struct<time, value>``."""

    name: str
    source: int
    subtopology: int
    extractor: TimestampExtractor | None
    kept: str | None
    """Under which name the partition time is kept; None: it is not."""
    input: int
    output: int
    where: str | None

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """An operator that takes the records of some slots; ``output``: the slot of its results."""

    name: str
    inputs: tuple[int, ...]
    output: int = -1
    where: str | None = None


StepNode = FunctionNode | PrintNode | TakeNode | UnnestNode


@dataclass(frozen=True, kw_only=True)
class NodeOp(_Step):
    """A stateless node whose records a step takes as they come."""

    node: StepNode

    @staticmethod
    def of(node: StepNode, inputs: tuple[int, ...], output: int = -1) -> NodeOp:
        return NodeOp(
            name=node.name,
            where=node.where,
            node=node,
            inputs=inputs,
            output=output,
        )


@dataclass(frozen=True, kw_only=True)
class AssumedOp(_Step):
    """An `AssumedNode`: each key is where ``by`` puts it, of the partitions of ``topic`` (its full
    name). ``tasks``: of a topic with more partitions than tasks the number of these."""

    key_serde: Serde
    by: KeyPartitioner
    topic: str
    tasks: int | None = None


@dataclass(frozen=True, kw_only=True)
class AskOp(_Step):
    """A transformer of a table (`Operator.asked`) for rows that are no records of its own."""

    operator: ProcessorOperator
    subtopology: int
    type: EdgeType


@dataclass(frozen=True, kw_only=True)
class Through:
    """What the stateless ``nodes`` behind a store make of rows that were found in it."""

    nodes: tuple[str, ...]
    input: int
    output: int
    ops: tuple[Any, ...]
    """Operators in order; in a step its Columns are prepared."""


@dataclass(frozen=True, kw_only=True)
class StatefulOp:
    """A StatefulNode: runs per task of ``subtopology``."""

    name: str
    operator: Operator
    stores: tuple[StoreSpec, ...]
    reads: tuple[StoreSpec, ...]
    """Stores that it reads as they were before the batch."""
    subtopology: int
    type: EdgeType
    sides: tuple[tuple[int, ...], ...]
    """The slots of each input: one, or a join's left and right."""
    output: int
    where: str | None
    together: tuple[str, ...] = ()
    """It and all processors that share stores with it, as a record reaches them; or empty."""
    links: tuple[Link, ...] = ()
    """The processors among them that hand it records directly."""
    reached: tuple[Reach, ...] = ()
    """By whose times its own goes with ``stream.time=lowest`` (note 076)."""
    idle: tuple[str, ...] = ()
    """The sources whose silence moves its stream time, by the names under which theirs is kept."""
    through: tuple[Through, ...] = ()
    """By `Operator.through`."""
    old_sides: Mapping[int, int] = field(default_factory=dict)
    """By side, the slot of its entries' earlier values (`EdgeBatch.old`)."""
    old: int | None = None
    """The slot of the earlier values of its own results; None: no operator reads them."""
    connector: str = ""
    """See `StatefulNode.connector`."""

    @property
    def inputs(self) -> tuple[int, ...]:
        sides = (slot for side in self.sides for slot in side)
        return (*sides, *self.old_sides.values())

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        return self.operator.looks_up


@dataclass(frozen=True, kw_only=True)
class SinkOp(_Step):
    """A SinkNode. ``topic`` None = the input's value is ``struct<topic, value>``."""

    topic: str | Callable[..., Any] | None
    key_serde: Serde
    value_serde: Serde
    drop_null_keys: bool
    partitioner: KeyPartitioner | Callable[..., Any] | None = None
    """A function; or "column": the input's value is ``struct<partition, value>``; or a
    `KeyPartitioner`. None: as Java does."""


@dataclass(frozen=True, kw_only=True)
class WriteOp(_Step):
    """A WriteNode; ``subtopology``: of its tasks."""

    node: WriteNode
    subtopology: int


StepOp = NodeOp | AssumedOp | AskOp | StatefulOp | SinkOp | WriteOp
PlanOp = ColumnsOp | StepOp


def _made(op: PlanOp) -> tuple[int, ...]:
    if isinstance(op, ColumnsOp):
        return tuple(projection.output for projection in op.projections)
    if isinstance(op, StatefulOp) and op.old is not None:
        return op.output, op.old
    return () if op.output < 0 else (op.output,)


def in_turn(ops: Sequence[PlanOp]) -> tuple[PlanOp, ...]:
    """Each behind those it reads, and those that run together side by side."""
    makers = {slot: op for op in ops for slot in _made(op)}
    by_name = {op.name: op for op in ops if isinstance(op, StatefulOp)}
    found: dict[int, PlanOp] = {}

    def put(op: PlanOp) -> None:
        if id(op) in found:
            return
        group: list[PlanOp] = [op]
        if isinstance(op, StatefulOp) and op.together:
            group = [by_name[name] for name in op.together]
        for one in group:
            for slot in one.inputs:
                if slot in makers and makers[slot] not in group:
                    put(makers[slot])
        found.update({id(one): one for one in group})

    for op in ops:
        put(op)
    return tuple(found.values())


@dataclass(frozen=True)
class GlobalTable:
    """A `GlobalTableNode`: its sub-topology, its store, and its topic, a source without a slot."""

    subtopology: int
    store: StoreSpec
    source: Source


@dataclass(frozen=True)
class LoadedTable:
    """A `LoadedTableNode`, and the number of its sub-topology."""

    subtopology: int
    node: LoadedTableNode

    @property
    def task(self) -> TaskId:
        """The only one that it has."""
        return TaskId(self.subtopology, 0)

    @property
    def store(self) -> StoreSpec:
        return self.node.store


@dataclass(frozen=True, kw_only=True)
class PhysicalPlan:
    """The operators of the whole application; the same for every stream thread."""

    application_id: str
    sources: tuple[Source, ...]
    slots: tuple[Slot, ...]
    times: tuple[ColumnsOp | TimeOp, ...]
    """Gives records their times, before the inputs of tasks are merged."""
    ops: tuple[PlanOp, ...]
    """Behind that, each behind those whose records it reads."""
    headers: bool
    """True if anybody reads or forwards records' headers."""
    global_tables: tuple[GlobalTable, ...] = ()
    loaded_tables: tuple[LoadedTable, ...] = ()
    ways: Mapping[str, Ways] = field(default_factory=dict)
    """The ways of records to operators, in sub-topologies where the ways decide their order (note
    031)."""
    tellers: tuple[Teller, ...] = ()
    """The sinks to repartition topics (note 076)."""

    @property
    def columns(self) -> tuple[ColumnsOp, ...]:
        """As they run; those of looked-up rows behind the records'."""
        found: list[Any] = []
        for op in (*self.times, *self.ops):
            found += [op]
            if isinstance(op, StatefulOp):
                found += [one for through in op.through for one in through.ops]
        return tuple(op for op in found if isinstance(op, ColumnsOp))

    @property
    def stateful(self) -> tuple[StatefulOp, ...]:
        return tuple(op for op in self.ops if isinstance(op, StatefulOp))

    def stores(self) -> dict[int, tuple[StoreSpec, ...]]:
        found: dict[int, dict[str, StoreSpec]] = {}
        for op in self.stateful:
            found.setdefault(op.subtopology, {}).update({spec.name: spec for spec in op.stores})
        return {sub: tuple(specs.values()) for sub, specs in found.items()}

    def whole_stores(self) -> tuple[StoreSpec, ...]:
        tables: list[GlobalTable | LoadedTable] = [*self.global_tables, *self.loaded_tables]
        return tuple(table.store for table in tables)

    @property
    def functions(self) -> bool:
        """True if it calls the user's Python functions: nobody knows what a call costs."""
        return any(map(_has_function, (*self.times, *self.ops)))

    @property
    def asking(self) -> frozenset[int]:
        """All sub-topologies, if an operator calls services: what comes while calls are under way
        is called, too, whichever task it is for (note 070)."""
        nodes = (op.node for op in self.ops if isinstance(op, NodeOp))
        if any(isinstance(node, FunctionNode) and node.calls is not None for node in nodes):
            return frozenset(source.subtopology for source in self.sources)
        return frozenset()

    @property
    def every_ms(self) -> Mapping[int, int]:
        """Sub-topologies whose rows are written at intervals (ms): the longest of their sinks'."""
        found: dict[int, int] = {}
        for op in self.ops:
            if isinstance(op, WriteOp) and op.node.every_ms:
                found[op.subtopology] = max(op.node.every_ms, found.get(op.subtopology, 0))
        return found

    @property
    def wall_clocks(self) -> Mapping[int, int]:
        """Sub-topologies that the wall clock runs, and how often (ms)."""
        found: dict[int, int] = {}
        for op in self.stateful:
            if (every_ms := op.operator.wall_clock_interval_ms) is not None:
                found[op.subtopology] = min(every_ms, found.get(op.subtopology, every_ms))
        return found

    @property
    def idle(self) -> Mapping[int, Mapping[str, IdleSource]]:
        """By sub-topology and input (`input_name`)."""
        found: dict[int, dict[str, IdleSource]] = {}
        for source in self.sources:
            if source.idle is not None:
                name = input_name(source.topic, source.first)
                found.setdefault(source.subtopology, {})[name] = source.idle
        return found

    @property
    def assumed(self) -> tuple[AssumedOp, ...]:
        return tuple(op for op in self.ops if isinstance(op, AssumedOp))

    def value_results(self, store: str) -> ResultDecoder:
        """Reads a store's value bytes (without the 8-byte timestamp) as the table shows them: of
        built-in aggregates the results. KeyError for an unknown store."""
        for whole in self.whole_stores():
            if whole.name == store:
                return whole.value_serde
        for op in self.stateful:
            for spec in op.stores:
                if spec.name == store:
                    return shown_by(op, spec)
        raise KeyError(store)

    def value_decoder(self, store: str) -> Callable[[bytes], Any]:
        """`value_results` for single values."""
        results: Any = self.value_results(store)
        read = value_reader(results) or getattr(results, "decode", None)
        return read or partial(decode_one, results)


def shown_by(op: StatefulOp, spec: StoreSpec) -> ResultDecoder:
    """Reads the values of one of an operator's stores as `PhysicalPlan.value_results`."""
    operator: Any = op.operator
    beside = spec is not op.stores[0] and not operator.joins  # the one that the table shows
    if isinstance(operator, ProcessorOperator) or beside:
        return spec.value_serde
    if getattr(operator, "value_serde", None) != spec.value_serde:
        return BytesSerde()  # no table shows them
    results: ResultDecoder = operator.results
    return results


def _has_function(value: Any) -> bool:
    """True if there is a function, or a processor, of somebody else in it."""
    if isinstance(value, ColumnExpr):
        return value.calls
    if isinstance(value, ProcessorOperator):
        return True
    if isinstance(value, FunctionType):
        return value.__module__ is None or not value.__module__.startswith("everflow.")
    if isinstance(value, tuple | list | Mapping):
        return any(map(_has_function, value.values() if isinstance(value, Mapping) else value))
    return is_dataclass(value) and any(map(_has_function, vars(value).values()))


class Ticket(NamedTuple):
    """Stands for Columns that are prepared at the first request: a socket of the driver, and what
    to ask for there (`everflow.spark.columns.prepared_later`)."""

    door: str
    number: int


@dataclass(frozen=True)
class Compute:
    """Spark's code, which has this ``number`` in the instance's JVM, makes the columns ``made``."""

    number: int | Ticket
    made: pa.Schema


@dataclass(frozen=True)
class Pick:
    """Columns as they are, or fields of structs: each by its column and the ordinals inside."""

    paths: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Chain:
    """``g(f(x))``: functions with the Spark types of their results, the innermost first.
    ``arguments``: the name of each (None: by position) and its column among the inputs."""

    functions: tuple[tuple[Callable[..., Any], Any], ...]
    arguments: tuple[tuple[str | None, int], ...]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Functions of one kind over the columns behind the first ``kept``. Their results ``made``
    replace these."""

    eval_type: int
    """PySpark's `PythonEvalType`."""
    chains: tuple[Chain, ...]
    kept: int
    settings: Mapping[str, str]
    """The session's settings that PySpark's workers get."""
    input_type: str
    """The inputs' types, Spark's JSON of a struct."""
    made: pa.Schema
    pickled: tuple[int, int] | None = None
    """The JVM's numbers for pickled arguments and for results; None where both are Arrow."""


Stage = Compute | Pick | Call


# --- the planner ----------------------------------------------------------------------------------

_Graph = TypeVar("_Graph", bound=Graph)


def plan(
    topology: Graph,
    subtopology_of: Mapping[str, int],
    application_id: str,
) -> PhysicalPlan:
    return _Planner(topology, subtopology_of, application_id).finish()


def emitting_every_update(topology: Graph) -> Graph:
    """The topology with ``emit.every.update``: each result, not the last of a micro-batch."""
    nodes = (
        node.giving_every_update() if isinstance(node, StatefulNode) else node
        for node in topology.nodes
    )
    return replace(topology, nodes=tuple(nodes))


def with_default_extractor(topology: _Graph, extractor: TimestampExtractor | None) -> _Graph:
    """The topology with ``default.timestamp.extractor`` for the user's topics that have none."""
    nodes = list(topology.nodes)
    for at, node in enumerate(nodes):
        if isinstance(node, SourceNode) and node.kind != "repartition":
            time = node.reading.timestamp or extractor
            nodes[at] = replace(node, reading=replace(node.reading, timestamp=time))
    return replace(topology, nodes=tuple(nodes))


class _Planner:
    def __init__(self, topology: Graph, subtopology_of: Mapping[str, int], app: str) -> None:
        self._topology = topology
        self._sub = subtopology_of
        self._app = app
        self._together = together(topology)
        self._idle = idle_sources(topology, app)
        self._partitioners = key_partitioners(topology)
        self._assumed = assumed_partitioners(topology)
        self._keyed = keyed_sources(topology)
        self._slots: list[Slot] = []
        self._slot("dead-letters", DEAD_LETTER_TYPE)
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._sources: list[Source] = []
        self._global_tables: list[GlobalTable] = []
        self._loaded_tables: list[LoadedTable] = []
        self._times: list[ColumnsOp | TimeOp] = []
        self._ops: list[PlanOp] = []
        self._columns: dict[tuple[int, str], ColumnsOp] = {}
        """Columns that others may join, by their input slot and execution path."""
        self._sides: dict[str, tuple[tuple[str, ...], ...]] = {}
        """The nodes that each side of an operator or a sink reads."""
        self._old: dict[str, int] = {}
        """By a table's node, the slot of what its entries were before its updates."""

    def _slot(self, name: str, edge: EdgeType) -> int:
        self._slots.append(Slot(len(self._slots), name, edge))
        return len(self._slots) - 1

    def _project(self, node: ProjectNode, input_slot: int, ops: list[Any]) -> int:
        """The slot of its results; the same where it only names a place (to_stream, split)."""
        listed = (
            ("kept", node.predicate, pa.bool_()),
            ("key", node.key, node.out.key),
            ("value", node.value, node.out.value),
        )
        columns = {what: (column, kind) for what, column, kind in listed if column is not None}
        if not columns:
            return input_slot
        out = self._slot(node.name, node.out)
        return self._computed(
            Projection(node=node, columns=columns, input=input_slot, output=out), ops
        )

    def _computed(self, found: Projection, ops: list[Any]) -> int:
        """Put it to those that are computed with it, or behind ``ops``; its output."""
        by = computed_by(found)
        columns = self._columns.get((found.input, by))
        if columns is None:
            columns = ColumnsOp(input=found.input)
            ops.append(columns)
        columns.projections.append(found)
        if by != PYTHON:  # a call would see what a filter beside it drops
            self._columns.setdefault((columns.input, by), columns)
            self._columns[found.output, by] = columns
        return found.output

    def _inputs(self, node: Node) -> tuple[int, ...]:
        return tuple(slot for name in node.inputs for slot in self._outputs[name])

    def _place(self, node: Node) -> Iterator[int]:
        match node:
            case SourceNode():
                yield from self._place_source(node)
            case MergeNode():
                for name in in_order_of_arrival(self._topology.nodes, node):
                    yield from self._outputs[name]
            case ProjectNode():
                for slot in self._inputs(node):
                    yield self._project(node, slot, self._ops)
            case SinkNode():
                self._place_sink(node)
            case PrintNode():
                self._sides[node.name] = (node.inputs,)
                self._ops.append(NodeOp.of(node, self._inputs(node)))
            case WriteNode():
                self._sides[node.name] = (node.inputs,)
                self._ops.append(
                    WriteOp(
                        name=node.name,
                        where=node.where,
                        node=node,
                        inputs=self._inputs(node),
                        subtopology=self._sub[node.name],
                    )
                )
            case AssumedNode():
                yield self._place_assumed(node)
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

    def _place_assumed(self, node: AssumedNode) -> int:
        self._sides[node.name] = (node.inputs,)
        names = {source.name for source in sources_of(self._topology, node)}
        # Topics with different numbers of partitions are refused in front of a store.
        source = next(one for one in self._sources if one.node in names and not one.first)
        out = self._slot(node.name, node.out)
        self._ops.append(
            AssumedOp(
                name=node.name,
                where=node.where,
                key_serde=node.key_serde,
                by=self._assumed[node.name],
                topic=source.topic,
                tasks=source.until,
                inputs=self._inputs(node),
                output=out,
            )
        )
        return out

    def _place_source(self, node: SourceNode) -> Iterator[int]:
        # Somebody else writes keys that a store relies on.
        relied_on = node.kind != "repartition" and node.name in self._keyed
        for topic in node.topics:
            firsts = node.firsts_of(topic)
            for first, until in zip(firsts, (*firsts[1:], None), strict=True):
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
                        slot=slot,
                        own_times=node.extractor is None,
                        idle=self._idle.get(node.name, {}).get(input_name(topic, first)),
                        partitioner=self._partitioners.get(topic) if relied_on else None,
                        first=first,
                        until=until,
                    )
                )
                yield slot if node.extractor is None else self._place_times(node, topic, slot)

    def _place_times(self, node: SourceNode, topic: str, slot: int) -> int:
        extractor, source = node.extractor, self._sources[-1]
        if isinstance(extractor, ColumnExpr):
            slot = self._choice(node, "time", extractor, pa.int64(), slot, self._times)
        out = self._slot(node.name, node.out)
        op = TimeOp(
            name=node.name,
            source=source.index,
            subtopology=source.subtopology,
            extractor=None if isinstance(extractor, ColumnExpr) else extractor,
            kept=node.partition_times().get(input_name(topic, source.first)),
            input=slot,
            output=out,
            where=node.where,
        )
        self._times.append(op)
        return out

    def _global_table(self, node: GlobalTableNode) -> GlobalTable:
        source = Source(
            topic=node.topic,
            subtopology=self._sub[node.name],
            node=node.source,
            key_serde=node.store.key_serde,
            value_serde=node.store.value_serde,
            kind="global",
        )
        return GlobalTable(source.subtopology, node.store, source)

    def _place_step_op(
        self, node: FunctionNode | TakeNode | UnnestNode | StatefulNode
    ) -> Iterator[int]:
        group, links = self._together.get(node.name, ()), tuple[Link, ...]()
        input_names = node.inputs
        if isinstance(node, StatefulNode) and node.operator.old_input:
            input_names = input_names[:-1]
        read: tuple[tuple[str, ...], ...] = tuple((name,) for name in input_names)
        if group:
            links, others = ways_to(self._topology, node, group)
            read = (others, *read[1:])
        self._sides[node.name] = read
        sides = tuple(tuple(slot for name in side for slot in self._outputs[name]) for side in read)
        inputs = tuple(slot for side in sides for slot in side)
        out = self._slot(node.name, node.out)
        if not isinstance(node, StatefulNode):
            self._ops.append(NodeOp.of(node, inputs, out))
            yield out
            return
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
            through=tuple(
                self._place_through(node, names) for names in dict.fromkeys(node.operator.through)
            ),
            connector=node.connector,
        )
        self._ops.append(op)
        yield out

    # -- tables that are asked (note 035) ----------------------------------------------------------

    def _place_through(self, node: StatefulNode, names: tuple[str, ...]) -> Through:
        """The stateless nodes ``names`` on slots of their own, for rows that ``node`` looks up."""
        stages = [self._topology.node(name) for name in names]
        source = self._topology.node(stages[0].inputs[0])
        input_slot = slot = self._slot(names[0], source.out)
        ops: list[Any] = []
        for stage in stages:
            slot = self._again(stage, slot, ops, self._sub[node.name])
        return Through(nodes=names, input=input_slot, output=slot, ops=tuple(ops))

    def _again(self, node: Node, input_slot: int, ops: list[Any], subtopology: int) -> int:
        """A stateless node of a table once more, on other rows; its output."""
        if isinstance(node, ProjectNode):
            return self._project(node, input_slot, ops)
        out = self._slot(node.name, node.out)
        match node:
            case FunctionNode():
                ops.append(NodeOp.of(node, (input_slot,), out))
            case StatefulNode():
                assert isinstance(node.operator.asked, ProcessorOperator)
                ask = AskOp(
                    name=node.name,
                    operator=node.operator.asked,
                    subtopology=subtopology,
                    type=node.out,
                    inputs=(input_slot,),
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
        """The slot of what entries were: Kafka Streams' ``enableSendingOldValues``."""
        if name in self._old:
            return self._old[name]
        node = self._topology.node(name)
        if isinstance(node, StatefulNode) and node.operator.asked is None:
            self._old[name] = self._slot(name, node.out)
            sides = self._old_sides(node, node.operator.old_from)
            for at, op in enumerate(self._ops):
                if isinstance(op, StatefulOp) and op.name == name:
                    sides = {**op.old_sides, **sides}
                    self._ops[at] = replace(op, old=self._old[name], old_sides=sides)
        else:
            input_slot = self._old_of(node.inputs[0])
            self._old[name] = self._again(node, input_slot, self._ops, self._sub[name])
        return self._old[name]

    def _idle_names(self, node: Node) -> tuple[str, ...]:
        if not self._idle:
            return ()
        found = (self._idle.get(source.name, {}) for source in sources_of(self._topology, node))
        return tuple(one.kept for topics in found for one in topics.values())

    def _place_sink(self, node: SinkNode) -> None:
        inputs = self._inputs(node)
        self._sides[node.name] = (node.inputs,)
        repartition = node.kind == "repartition"

        def chosen(what: str, column: ColumnExpr, kind: pa.DataType) -> tuple[int, ...]:
            return tuple(
                self._choice(
                    node,
                    what,
                    column,
                    kind,
                    one,
                    self._ops,
                )
                for one in inputs
            )

        topic: str | Callable[..., Any] | None
        if isinstance(node.topic, ColumnExpr):
            topic, inputs = None, chosen("topic", node.topic, pa.string())
        elif isinstance(node.topic, FunctionExpr):
            topic = node.topic.fn
        else:
            topic = f"{self._app}-{node.topic}" if repartition else node.topic
        partitioner: KeyPartitioner | Callable[..., Any] | None
        if isinstance(node.partitioner, ColumnExpr):
            partitioner = "column"
            inputs = chosen("partition", node.partitioner, node.partitioner.type)
        elif isinstance(node.partitioner, FunctionExpr):
            partitioner = node.partitioner.fn
        elif repartition:
            partitioner = self._partitioners.get(str(node.topic))
        else:
            partitioner = node.partitioner or usual(node.key_serde)
        op = SinkOp(
            name=node.name,
            topic=topic,
            partitioner=None if partitioner == MURMUR2 else partitioner,
            key_serde=in_front(node.key_serde) if repartition else node.key_serde,
            value_serde=in_front(node.value_serde) if repartition else node.value_serde,
            drop_null_keys=repartition and not self._null_keys_are_taken(node),
            inputs=inputs,
            where=node.where,
        )
        self._ops.append(op)

    def _null_keys_are_taken(self, sink: SinkNode) -> bool:
        behind, topics = set[str](), {sink.topic}
        for node in self._topology.nodes:  # inputs, and those who write a topic, first
            reads = topics & set(node.topics) if isinstance(node, SourceNode) else set(node.inputs)
            if isinstance(node, StatefulNode) and node.parts:
                # As in Kafka Streams, whose join of a stream with a table is behind the stream.
                reads = {name for part in node.parts for name in part.inputs}
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
        edge = self._slots[slot].type
        value = pa.struct([(what, kind), ("value", edge.value)])
        out = self._slot(node.name, EdgeType(edge.key, value))
        columns = {what: (column, kind)}
        return self._computed(
            Projection(
                node=node,
                columns=columns,
                input=slot,
                output=out,
            ),
            ops,
        )

    def finish(self) -> PhysicalPlan:
        for node in self._topology.nodes:
            self._outputs[node.name] = tuple(self._place(node))
        stateful = (op for op in self._ops if isinstance(op, StatefulOp))
        through = [one for op in stateful for one in op.through]
        every = [*self._times, *self._ops, *(op for one in through for op in one.ops)]
        read = {one.output for one in through}.union(*(op.inputs for op in every))
        for op in every:
            if isinstance(op, ColumnsOp):
                op.outputs = tuple(one.output for one in op.projections if one.output in read)
        topics_of: dict[int, int] = {}
        for source in self._sources:
            topics_of[source.subtopology] = topics_of.get(source.subtopology, 0) + 1
        sources = self._timed_sources(topics_of)
        for op in self._ops:
            if isinstance(op, WriteOp) and op.node.one_input and topics_of[op.subtopology] > 1:
                raise TopologyError(
                    f"{op.name} numbers its batches by the offsets of one input, and its task "
                    f"reads {topics_of[op.subtopology]}: write .repartition(name=...) in front",
                    where=op.where,
                )
            if isinstance(op, WriteOp):
                self._require_whole_records(op)
        ops = (*self._times, *self._ops)
        columns = (op for op in ops if isinstance(op, ColumnsOp))  # a getter sees no headers
        headers = self._needs_headers() or any("headers" in op.uses for op in columns)
        return PhysicalPlan(
            application_id=self._app,
            sources=sources,
            slots=tuple(self._slots),
            times=tuple(self._times),
            ops=in_turn(self._timed_ops()),
            headers=headers,
            global_tables=tuple(self._global_tables),
            loaded_tables=tuple(self._loaded_tables),
            ways=ways_in_turn(self._topology.nodes, self._sides, self._together, self._sub),
            tellers=tuple(
                Teller(self._sub[name], name, self._reached_by(name, mine))
                for name, mine in sources_of_sinks(self._topology).items()
            ),
        )

    def _timed_sources(self, topics_of: Mapping[int, int]) -> tuple[Source, ...]:
        holding = {sub.index for sub in cut(self._topology).subtopologies if holds_back(sub)}
        circles = fed_back(self._topology)
        found = []
        for source in self._sources:
            node = self._topology.node(source.node)
            assert isinstance(node, SourceNode)
            names = node.names_of_topics()
            repartition = source.kind == "repartition"
            topic = source.topic.removeprefix(f"{self._app}-") if repartition else source.topic
            found.append(
                replace(
                    source,
                    merged=topics_of[source.subtopology] > 1,
                    timed=names[input_name(topic, source.first)],
                    held=repartition and source.subtopology in holding,
                    fed_back=source.node in circles,
                )
            )
        return tuple(found)

    def _timed_ops(self) -> list[PlanOp]:
        return [
            replace(op, reached=self._reached(op.name)) if isinstance(op, StatefulOp) else op
            for op in self._ops
        ]

    @cached_property
    def _lags(self) -> dict[str, dict[str, int]]:
        return lags(self._topology)

    def _reached(self, name: str) -> tuple[Reach, ...]:
        return self._reached_by(name, self._lags[name])

    def _reached_by(self, name: str, nodes: Collection[str]) -> tuple[Reach, ...]:
        mine = self._lags[name]
        found = (one for one in self._sources if one.node in nodes)
        return tuple(Reach(one.index, mine[one.node]) for one in found)

    def _require_whole_records(self, op: WriteOp) -> None:
        """TopologyError where a batch may have a part of what comes of a record: a sink knows what
        it has by the records' offsets."""
        for name in self._topology.before(op.name):
            node = self._topology.node(name)
            if isinstance(node, StatefulNode) and node.operator.in_pieces:
                raise TopologyError(
                    f"{op.name} knows its rows by the offsets of records, and {name} reads a split "
                    f"in pieces, which share one: write .repartition(name=...) in front",
                    where=op.where,
                )

    def _needs_headers(self) -> bool:
        return any(
            (isinstance(node, StatefulNode) and isinstance(node.operator, ProcessorOperator))
            or (isinstance(node, SinkNode) and node.kind != "repartition")
            or (isinstance(node, SourceNode) and _may_have_ids(node))
            or (
                isinstance(node, SourceNode)
                and isinstance(node.reading.timestamp, TimeFunction)
                and node.reading.timestamp.takes > 2
            )
            for node in self._topology.nodes
        )


def _may_have_ids(source: SourceNode) -> bool:
    """Ids of a schema registry may stand in the headers of its records."""
    serdes = (source.key_serde, source.value_serde)
    return any(isinstance(one, Registered) and one.registry is not None for one in serdes)
