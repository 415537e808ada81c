"""The records of a physical plan (design D2): sources, slots, segments, steps; `plan` makes them.

A *slot* is one value stream inside the plan: the output of a source, of one projection, or of one
step operator. A slot that crosses a stage boundary is carried in the hop row
(`everflow.topology.hops`). `everflow.spark.segments` turns segments into Columns,
`everflow.runtime.step.task_step` runs steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import FunctionType
from typing import Any

import pyarrow as pa

from everflow.records import TaskId
from everflow.serdes import BytesSerde, Serde
from everflow.serdes.base import ResultDecoder, value_reader
from everflow.state.store import StoreSpec
from everflow.topology.arrival import Ways
from everflow.topology.graph import (
    ColumnExpr,
    EdgeType,
    Link,
    LoadedTableNode,
    Operator,
    ProcessorOperator,
    ProjectNode,
    SinkNode,
    SourceNode,
)
from everflow.topology.partitioners import KeyPartitioner
from everflow.topology.sources.idle_sources import IdleSource
from everflow.topology.timestamps import TimestampExtractor

DEAD_LETTER_SLOT = 0
"""Slot of undecodable records: key = raw key, value = struct<value: raw value, error: text>."""

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
"""Records as they came that are left out: why, what the handler said (`Response`), and JSON of the
error's class, stack and stage, and of node, task and attempt."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input topic: ``index`` is the ``source`` column of its rows; ``topic`` the full name."""

    index: int
    topic: str
    subtopology: int
    node: str
    key_serde: Serde
    value_serde: Serde
    offset_reset: str | None
    kind: str
    merged: bool
    """True where the sub-topology reads several topics, so that the step has to merge partitions by
    time (D3)."""
    slot: int
    """The slot of its decoded records."""
    own_times: bool = True
    """Whether its records keep the times that they have in Kafka: a negative one stops the
    application."""
    idle: IdleSource | None = None
    """How its silence moves stream time; None: not at all."""
    partitioner: KeyPartitioner | None = None
    """By which its keys are spread over its partitions, where a store relies on that; None: it does
    not matter, or this application writes the topic."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One value stream of the plan. ``level``/``in_step`` say where it is produced (decoding is
    the step of level -1), ``last_step`` the last step that reads it and ``last_segment`` the last
    segment that does (-1 = none)."""

    id: int
    name: str
    type: EdgeType
    level: int
    in_step: bool
    last_step: int = -1
    last_segment: int = -1

    def crosses_into_step(self, level: int) -> bool:
        """Whether the hop from segment ``level`` to step ``level`` carries this slot."""
        produced = self.level < level or (self.level == level and not self.in_step)
        return produced and (self.last_step >= level or self.last_segment > level)

    def crosses_out_of_step(self, level: int) -> bool:
        """Whether the hop from step ``level`` to segment ``level + 1`` carries this slot."""
        return self.level <= level and (self.last_step > level or self.last_segment > level)


@dataclass(frozen=True)
class Projection:
    """A ProjectNode on one input slot."""

    node: ProjectNode
    input: int
    output: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A Column that says something of each record beside its value: a sink's ``topic``, a source's
    ``time``. The output's value is a struct of it, named ``what``, and the value."""

    node: SinkNode | SourceNode
    what: str
    column: ColumnExpr
    type: pa.DataType
    input: int
    output: int


@dataclass(frozen=True)
class Segment:
    """What Spark's code computes on one level, in order."""

    level: int
    projections: tuple[Projection | Choice, ...]

    @property
    def reads_headers(self) -> bool:
        """Whether a Column of the user does."""
        found: list[ColumnExpr | None] = []
        for one in self.projections:
            node = one.node
            if isinstance(one, Choice):
                found.append(one.column)
            elif isinstance(node, ProjectNode):
                found += [node.predicate, node.key, node.value]
        return any("headers" in expr.uses for expr in found if expr is not None)


@dataclass(frozen=True, kw_only=True)
class TimeOp:
    """Gives the records of one topic of a SourceNode their times, before step 0 merges its inputs.
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
        """Its input."""
        return (self.input,)


@dataclass(frozen=True, kw_only=True)
class FunctionOp:
    """A FunctionNode: calls the user's function record by record."""

    name: str
    op: str
    fn: Callable[..., Any]
    type: EdgeType
    inputs: tuple[int, ...]
    output: int
    where: str | None


@dataclass(frozen=True)
class TakeOp:
    """A TakeNode."""

    name: str
    taken: bool
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True, kw_only=True)
class PrintOp:
    """A PrintNode."""

    name: str
    title: str
    rows: int
    inputs: tuple[int, ...]
    where: str | None


@dataclass(frozen=True)
class UnnestOp:
    """An UnnestNode."""

    name: str
    keyed: bool
    type: EdgeType
    inputs: tuple[int, ...]
    output: int


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
    """All processors that share stores with it, itself included, in the order in which a record
    reaches them; empty: none does."""
    links: tuple[Link, ...] = ()
    """Those of them that hand it records directly."""
    idle: tuple[str, ...] = ()
    """The sources whose silence moves its stream time, by the names under which theirs is kept."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The slots of all sides."""
        return tuple(slot for side in self.sides for slot in side)

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        """Stores of global tables that it reads."""
        return self.operator.looks_up

    @property
    def clocks(self) -> tuple[str, ...]:
        """See `Operator.marks`."""
        return self.operator.marks

    @property
    def look_every_ms(self) -> int | None:
        """How often the wall clock has to look at its tasks; None: never."""
        return self.operator.look_every_ms


@dataclass(frozen=True, kw_only=True)
class SinkOp:
    """A SinkNode. ``topic`` None = the input's value is ``struct<topic, value>``."""

    name: str
    topic: str | Callable[..., Any] | None
    key_serde: Serde
    value_serde: Serde
    drop_null_keys: bool
    partitioner: str | Callable[..., Any] | None = None
    """A function; or "column": the input's value is ``struct<partition, value>``; or how the bytes
    of the key say it, one of `everflow.columns.key_partitions.BY_HASH`, or `OF_WINDOWS`. None: as
    Java does."""
    inputs: tuple[int, ...]
    where: str | None


StepOp = TimeOp | FunctionOp | TakeOp | UnnestOp | PrintOp | StatefulOp | SinkOp


def in_turn(ops: Sequence[StepOp]) -> tuple[StepOp, ...]:
    """A step's operators, each behind those it reads, and those that run together side by side."""
    makers = {op.output: op for op in ops if not isinstance(op, SinkOp | PrintOp)}
    by_name = {op.name: op for op in ops if isinstance(op, StatefulOp)}
    found: dict[int, StepOp] = {}

    def put(op: StepOp) -> None:
        if id(op) in found:
            return
        group = [op]
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
class PlannedStep:
    """What one Python hop does, in order."""

    level: int
    ops: tuple[StepOp, ...]


@dataclass(frozen=True)
class GlobalTable:
    """A `GlobalTableNode`: the number of its sub-topology, its store, and how its topic is read
    (a source of no slot, whose index is 0)."""

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
        """Of all its rows."""
        return self.node.store


@dataclass(frozen=True, kw_only=True)
class PhysicalPlan:
    """Segments and steps of the whole application; the same for every stream thread."""

    application_id: str
    sources: tuple[Source, ...]
    slots: tuple[Slot, ...]
    segments: tuple[Segment, ...]
    steps: tuple[PlannedStep, ...]
    headers: bool
    changelog_slots: Mapping[str, int]
    """Store -> slot of its changes (key and value bytes), which travel to the sink in the last
    step."""
    global_tables: tuple[GlobalTable, ...] = ()
    loaded_tables: tuple[LoadedTable, ...] = ()
    ways: Mapping[str, Ways] = field(default_factory=dict)
    """How records come to the operators of sub-topologies where that tells their order (note
    031)."""

    @property
    def levels(self) -> int:
        """Number of Python hops of a micro-batch."""
        return len(self.steps)

    def into_step(self, level: int) -> tuple[Slot, ...]:
        """Slots carried from segment ``level`` into step ``level``."""
        return tuple(slot for slot in self.slots if slot.crosses_into_step(level))

    def out_of_step(self, level: int) -> tuple[Slot, ...]:
        """Slots carried from step ``level`` (-1: decoding) into segment ``level + 1``."""
        return tuple(slot for slot in self.slots if slot.crosses_out_of_step(level))

    def stores(self) -> dict[int, tuple[StoreSpec, ...]]:
        """Stores by sub-topology."""
        found: dict[int, dict[str, StoreSpec]] = {}
        for step in self.steps:
            for op in step.ops:
                if isinstance(op, StatefulOp):
                    found.setdefault(op.subtopology, {}).update(
                        {spec.name: spec for spec in op.stores}
                    )
        return {sub: tuple(specs.values()) for sub, specs in found.items()}

    def whole_stores(self) -> tuple[StoreSpec, ...]:
        """The stores of global tables, of topics and of DataFrames."""
        return (
            *(table.store for table in self.global_tables),
            *(table.store for table in self.loaded_tables),
        )

    @property
    def functions(self) -> bool:
        """Whether it calls the user's Python functions: nobody knows what a call costs."""
        columns = (one for segment in self.segments for one in segment.projections)
        return any(map(_has_function, (*(op for step in self.steps for op in step.ops), *columns)))

    @property
    def wall_clocks(self) -> Mapping[int, int]:
        """Sub-topologies that the wall clock has to look at, and how often (ms): as often as the
        fastest of their operators."""
        found: dict[int, int] = {}
        for step in self.steps:
            for op in step.ops:
                every_ms = op.look_every_ms if isinstance(op, StatefulOp) else None
                if isinstance(op, StatefulOp) and every_ms is not None:
                    found[op.subtopology] = min(every_ms, found.get(op.subtopology, every_ms))
        return found

    @property
    def idle(self) -> Mapping[int, Mapping[str, IdleSource]]:
        """Inputs whose silence moves stream time, by sub-topology and topic."""
        found: dict[int, dict[str, IdleSource]] = {}
        for source in self.sources:
            if source.idle is not None:
                found.setdefault(source.subtopology, {})[source.topic] = source.idle
        return found

    def value_results(self, store: str) -> ResultDecoder:
        """`value_decoder` in columns. KeyError for an unknown store."""
        for whole in self.whole_stores():
            if whole.name == store:
                return whole.value_serde
        return shown_by(*self._owner(store))

    def value_decoder(self, store: str) -> Callable[[bytes], Any]:
        """Reads a store's value bytes (without the 8-byte timestamp) as the table shows them: of
        built-in aggregates the results, not the state that is kept for them. KeyError for an
        unknown store."""
        for whole in self.whole_stores():
            if whole.name == store:
                return whole.value_serde.decode
        op, spec = self._owner(store)
        if isinstance(op.operator, ProcessorOperator) or _beside(op, spec):
            return spec.value_serde.decode
        results = self.value_results(store)
        quick = None if isinstance(results, BytesSerde) else value_reader(results)
        return quick or op.operator.decode_result

    def _owner(self, store: str) -> tuple[StatefulOp, StoreSpec]:
        """The first operator that keeps a store."""
        for step in self.steps:
            for op in step.ops:
                for spec in op.stores if isinstance(op, StatefulOp) else ():
                    if spec.name == store and isinstance(op, StatefulOp):
                        return op, spec
        raise KeyError(store)


def shown_by(op: StatefulOp, spec: StoreSpec) -> ResultDecoder:
    """Reads the values of one of an operator's stores as `PhysicalPlan.value_results`."""
    if isinstance(op.operator, ProcessorOperator) or _beside(op, spec):
        return spec.value_serde
    operator: Any = op.operator
    if getattr(operator, "value_serde", None) != spec.value_serde:
        return BytesSerde()  # no table shows them
    results: ResultDecoder = operator.results
    return results


def _beside(op: StatefulOp, spec: StoreSpec) -> bool:
    """Whether it is a store beside the one that an operator's table shows."""
    return spec is not op.stores[0] and not op.operator.joins


def _has_function(value: Any) -> bool:
    """Whether there is a function, or a processor, of somebody else in it."""
    if isinstance(value, ColumnExpr):
        return value.calls
    if isinstance(value, ProcessorOperator):
        return True
    if isinstance(value, FunctionType):
        return value.__module__ is None or not value.__module__.startswith("everflow.")
    if isinstance(value, tuple | list | Mapping):
        return any(map(_has_function, value.values() if isinstance(value, Mapping) else value))
    return is_dataclass(value) and any(map(_has_function, vars(value).values()))
