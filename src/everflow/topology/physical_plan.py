"""The parts of a physical plan (design D2): sources, slots, operators in order; `plan` makes them.

A *slot* is one value stream inside the plan: the output of a source, of one projection, or of one
operator. `everflow.runtime.step.task_step` runs the operators.
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
    """True where the sub-topology reads several topics, so that its partitions are merged by time
    (D3)."""
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


@dataclass(frozen=True)
class Slot:
    """One value stream of the plan: the records that a source, a projection or an operator
    gives."""

    id: int
    name: str
    type: EdgeType


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


ARROW, CATALYST, PYTHON = "Arrow", "Catalyst", "Python"
"""What computes a Column: an Arrow expression, Spark's generated code, a Python function."""


def columns_of(found: Projection | Choice) -> tuple[tuple[ColumnExpr, pa.DataType], ...]:
    """Its Columns, with the types of what is made of them."""
    if isinstance(found, Choice):
        return ((found.column, found.type),)
    node = found.node
    listed = (
        (node.predicate, pa.bool_()),
        (node.key, node.out.key),
        (node.value, node.out.value),
    )
    return tuple((given, kind) for given, kind in listed if given is not None)


def why_not_arrow(column: ColumnExpr, kind: pa.DataType) -> str:
    """Why Arrow does not compute a Column of which a ``kind`` is made; empty where it does."""
    if column.twin is not None and not column.type.equals(kind):
        return f"{column.type} becomes {kind}"
    return column.why if column.twin is None else ""


def computed_by(found: Projection | Choice) -> str:
    """`ARROW`, `CATALYST` or `PYTHON`."""
    columns = columns_of(found)
    if not any(why_not_arrow(*one) for one in columns):
        return ARROW
    return PYTHON if any(column.calls for column, _ in columns) else CATALYST


@dataclass(frozen=True, kw_only=True)
class ColumnsOp:
    """Columns over the records of slot ``input``: projections of them, or of what an earlier one
    of these projections gives, which are computed together (one alone, if it calls functions)."""

    projections: tuple[Projection | Choice, ...]
    input: int
    outputs: tuple[int, ...] = ()
    """The slots that other operators read."""

    @property
    def name(self) -> str:
        """Of the first node."""
        return self.projections[0].node.name

    @property
    def inputs(self) -> tuple[int, ...]:
        """Its input."""
        return (self.input,)

    @property
    def uses(self) -> frozenset[str]:
        """Which of what a user sees its Columns read."""
        columns = (column for one in self.projections for column, _ in columns_of(one))
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


@dataclass(frozen=True, kw_only=True)
class AskOp:
    """A transformer of a table (`Operator.asked`) for rows that are no records of its own."""

    name: str
    operator: ProcessorOperator
    subtopology: int
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
class Through:
    """What makes of rows in slot ``input``, which were found in a store, what the stateless
    ``nodes`` behind it make of its records; it is in slot ``output``."""

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
    """All processors that share stores with it, itself included, in the order in which a record
    reaches them; empty: none does."""
    links: tuple[Link, ...] = ()
    """Those of them that hand it records directly."""
    idle: tuple[str, ...] = ()
    """The sources whose silence moves its stream time, by the names under which theirs is kept."""
    through: tuple[Through, ...] = ()
    """By `Operator.through`."""
    old_sides: Mapping[int, int] = field(default_factory=dict)
    """By side, the slot of what its entries were (`EdgeBatch.old`)."""
    old: int | None = None
    """The slot of what the entries of its own results were; None: nobody asks."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The slots of all sides."""
        sides = (slot for side in self.sides for slot in side)
        return (*sides, *self.old_sides.values())

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


StepOp = FunctionOp | AskOp | TakeOp | UnnestOp | PrintOp | StatefulOp | SinkOp
PlanOp = ColumnsOp | StepOp


def _made(op: PlanOp) -> tuple[int, ...]:
    if isinstance(op, ColumnsOp):
        return tuple(projection.output for projection in op.projections)
    if isinstance(op, StatefulOp) and op.old is not None:
        return op.output, op.old
    return () if isinstance(op, SinkOp | PrintOp) else (op.output,)


def in_turn(ops: Sequence[PlanOp]) -> tuple[PlanOp, ...]:
    """Operators, each behind those it reads, and those that run together side by side."""
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
    """The operators of the whole application; the same for every stream thread."""

    application_id: str
    sources: tuple[Source, ...]
    slots: tuple[Slot, ...]
    times: tuple[ColumnsOp | TimeOp, ...]
    """What gives records their times, before the inputs of tasks are merged."""
    ops: tuple[PlanOp, ...]
    """Behind that, each behind those whose records it reads."""
    headers: bool
    """Whether anybody reads or forwards records' headers."""
    global_tables: tuple[GlobalTable, ...] = ()
    loaded_tables: tuple[LoadedTable, ...] = ()
    ways: Mapping[str, Ways] = field(default_factory=dict)
    """How records come to the operators of sub-topologies where that tells their order (note
    031)."""

    @property
    def columns(self) -> tuple[ColumnsOp, ...]:
        """All that compute Columns, in the order in which they run; those of rows that an operator
        looks up behind the operator's records."""
        found: list[Any] = []
        for op in (*self.times, *self.ops):
            found += [op]
            if isinstance(op, StatefulOp):
                found += [one for through in op.through for one in through.ops]
        return tuple(op for op in found if isinstance(op, ColumnsOp))

    @property
    def stateful(self) -> tuple[StatefulOp, ...]:
        """All that may have stores."""
        return tuple(op for op in self.ops if isinstance(op, StatefulOp))

    def stores(self) -> dict[int, tuple[StoreSpec, ...]]:
        """Stores by sub-topology."""
        found: dict[int, dict[str, StoreSpec]] = {}
        for op in self.stateful:
            found.setdefault(op.subtopology, {}).update({spec.name: spec for spec in op.stores})
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
        return any(map(_has_function, (*self.times, *self.ops)))

    @property
    def wall_clocks(self) -> Mapping[int, int]:
        """Sub-topologies that the wall clock has to look at, and how often (ms): as often as the
        fastest of their operators."""
        found: dict[int, int] = {}
        for op in self.stateful:
            if (every_ms := op.look_every_ms) is not None:
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
        for op in self.stateful:
            for spec in op.stores:
                if spec.name == store:
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
