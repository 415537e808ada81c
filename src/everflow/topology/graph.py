"""Frozen nodes of a topology: what the DSL produces and everything later reads.

Every node but a sink has one outgoing edge type. Columns and operators are opaque here: this layer
knows neither Spark nor stores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from everflow.columns.computation import ArrowExpression
from everflow.records import HEADERS, ClockCall, EdgeBatch, TasksResult
from everflow.retry import pauses_ms
from everflow.serdes import Serde
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.serdes.base import ResultDecoder
from everflow.sinks.batch import Sink
from everflow.state.store import StoreSpec, StoreView


class RecordContext(NamedTuple):
    """What a function for ``timestamp=`` may receive of a record: topic, partition, offset, time in
    Kafka (ms) and ordered headers."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class TimestampExtractor:
    """Sets the times of a source's records, before a task's partitions are merged by time."""

    @property
    def remembers(self) -> bool:
        """True if the extractor needs the partition time, the highest time of the partition's
        records so far. Of everflow's extractors only `UsePartitionTimeOnInvalidTimestamp` does."""
        return False


class FailOnInvalidTimestamp(TimestampExtractor):
    """Uses the record's time in Kafka. A negative time stops the instance. This is the default."""


class LogAndSkipOnInvalidTimestamp(TimestampExtractor):
    """Uses the record's time in Kafka. A record with a negative time is dropped, counted
    (``negative-timestamp``) and logged."""


class UsePartitionTimeOnInvalidTimestamp(TimestampExtractor):
    """Uses the record's time in Kafka, or, if that is negative, the highest time of the partition
    so far. If the partition has no time yet, a record with a negative time is a bad record
    (`RecordError`)."""

    @property
    def remembers(self) -> bool:
        """True: a record with a negative time gets the time of its partition."""
        return True


class WallclockTimestampExtractor(TimestampExtractor):
    """Uses the time at which the record's micro-batch was planned: all records of a micro-batch
    have the same time, also if it runs again after a failure."""


@dataclass(frozen=True)
class TimeFunction(TimestampExtractor):
    """A function of the user: ``fn(key, value, record, partition_time)``, of which it gets the
    value, or the first ``takes``."""

    fn: Callable[..., Any]
    takes: int

    @property
    def remembers(self) -> bool:
        return self.takes > 3


EXTRACTORS: Mapping[str, type[TimestampExtractor]] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            FailOnInvalidTimestamp,
            LogAndSkipOnInvalidTimestamp,
            UsePartitionTimeOnInvalidTimestamp,
            WallclockTimestampExtractor,
        )
    }
)
"""The extractors that a setting can name."""


def extractor_named(text: str) -> TimestampExtractor | None:
    """The extractor that ``default.timestamp.extractor`` names: a class, with or without a module
    or Java's package before it; None for any other."""
    name = text.replace(":", ".").rpartition(".")[2]
    found = EXTRACTORS.get(name)
    return None if found is None else found()


PREPARE = "PREPARE"
"""Label of a projection that only prepares the value for the node behind it, as whose part
``describe()`` shows it."""
CHILD = "CHILD"
"""Label of a projection to what a processor has forwarded to one of its children."""
JOINER = "JOINER"
"""Label of a node that makes the value of a join's results, as whose part it is shown."""


@dataclass(frozen=True)
class EdgeType:
    """Arrow types of the decoded key and value on an edge (``pa.null()`` where there is none)."""

    key: pa.DataType
    value: pa.DataType


def joined_sides(value: pa.DataType) -> dict[str, pa.DataType]:
    """``left`` and ``right`` of a joined value, which expressions may name; else nothing."""
    if not pa.types.is_struct(value) or [field.name for field in value] != ["left", "right"]:
        return {}
    return {field.name: field.type for field in value}


def columns_in_sight(edge: EdgeType, uses: frozenset[str]) -> pa.Schema:
    seen = {
        "key": edge.key,
        "value": edge.value,
        "timestamp": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "headers": HEADERS,
        **joined_sides(edge.value),
    }
    return pa.schema([(name, kind) for name, kind in seen.items() if name in uses])


@dataclass(frozen=True, kw_only=True)
class ColumnExpr:
    """A pyspark Column, or the text of one in SQL, over ``key, value, timestamp (bigint, ms),
    topic, partition, offset, headers`` of an edge, and of a join's ``left, right``.

    Analysed at build time; ``type`` is its Arrow type; ``uses`` the root columns it reads.
    """

    column: Any
    type: pa.DataType
    uses: frozenset[str] = frozenset()
    calls: bool = False
    """True if it calls Python functions (``F.udf``, ``F.pandas_udf``, ``F.arrow_udf``)."""
    skips_null: bool = False
    """Null where the record's value is, so that no function has to be called for it."""
    arrow: ArrowExpression | None = None
    """The same on Arrow, where that is exact (design note 016)."""
    why: str = ""
    """Why it has no Arrow expression."""


@dataclass(frozen=True)
class FunctionExpr:
    """A Python function of the user; ``returns`` the Arrow type of its result."""

    fn: Callable[..., Any]
    returns: pa.DataType


Partitioner = ColumnExpr | FunctionExpr | str
"""Gives each record's partition, several or none, or names a hash of `key_partitions.BY_HASH`."""


@dataclass(frozen=True)
class Node:
    """Base: ``name`` unique in the topology, ``where``: file and line of the user's call."""

    name: str
    inputs: tuple[str, ...]
    out: EdgeType
    where: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a source is read, as the user said it.

    Attributes:
        offset_reset: None: ``auto.offset.reset`` says it.
        timestamp: where the records' time comes from; None: ``default.timestamp.extractor`` says
            it. Those of a repartition topic have the time with which they were written.
        pattern: which topics are read (`everflow.topology.patterns`); None: those that
            are named.
        idle_ms: how long a partition is silent before its time goes on by the wall clock (note
            025); None: it never does.
        partitioner: by which the producers of the topics spread their keys, a name or a function of
            (topic, key, None, number of partitions); None: Java's, ``murmur2``.
    """

    offset_reset: str | None = None
    timestamp: TimestampExtractor | ColumnExpr | None = None
    pattern: re.Pattern[str] | None = None
    idle_ms: int | None = None
    partitioner: str | FunctionExpr | None = None


@dataclass(frozen=True)
class SourceNode(Node):
    """Reads topics. ``kind``: ``stream`` or ``repartition`` (an internal topic, named without the
    application id prefix). ``firsts``: of topics with more partitions than tasks, what a task's
    number is added to for each partition that it reads (note 067); of all others ``(0,)``."""

    topics: tuple[str, ...]
    key_serde: Serde
    value_serde: Serde
    kind: str = "stream"
    reading: Reading = field(default_factory=lambda: Reading())
    firsts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def firsts_of(self, topic: str) -> tuple[int, ...]:
        return dict(self.firsts).get(topic, (0,))

    @property
    def extractor(self) -> TimestampExtractor | ColumnExpr | None:
        """Gives the records their times; None if they keep their own."""
        timestamp = self.reading.timestamp
        return None if isinstance(timestamp, FailOnInvalidTimestamp) else timestamp

    def partition_times(self) -> dict[str, str]:
        """The inputs (`input_name`) whose partition time is kept, and the name under which."""
        found = self.extractor
        if not isinstance(found, TimestampExtractor) or not found.remembers:
            return {}
        return self.names_of_topics()

    def names_of_topics(self, what: str = "") -> dict[str, str]:
        alone = len(self.topics) == 1 and self.reading.pattern is None
        return {
            input_name(topic, first): input_name(
                self.name if alone else f"{self.name}/{topic}", first
            )
            + what
            for topic in self.topics
            for first in self.firsts_of(topic)
        }


def input_name(topic: str, first: int) -> str:
    """One of a task's inputs: of ``topic`` the partition ``first`` + the task's number."""
    return f"{topic}+{first}" if first else topic  # no topic's name has a plus


@dataclass(frozen=True, kw_only=True)
class ProjectNode(Node):
    """Rows where ``predicate`` is true (NULL is false), with a new key, value (None: unchanged)."""

    label: str  # FILTER, MAP, MAPVALUES, KEY-SELECT, BRANCHCHILD ...
    predicate: ColumnExpr | None = None
    key: ColumnExpr | None = None
    value: ColumnExpr | None = None
    changes_key: bool = False


class CallLimits(NamedTuple):
    """Calls of an operator's function within a micro-batch (note 070): ``concurrency`` of them at a
    time, each attempt of ``timeout_ms`` at most, with ``retries`` of what may pass. ``awaited``: an
    ``async def``; else a plain function, called on threads."""

    concurrency: int
    timeout_ms: int
    retries: int
    awaited: bool

    @property
    def longest_ms(self) -> float:
        """Of one record: all attempts and the pauses between them."""
        return self.timeout_ms * (self.retries + 1) + sum(islice(pauses_ms(), self.retries))


@dataclass(frozen=True)
class FunctionNode(Node):
    """Stateless Python operator, runs in a step. ``op`` is one of filter, filter_not, map,
    map_values, flat_map, flat_map_values, select_key, peek, for_each, branch, deduplicate.

    ``fn(key, value)`` gets Python objects (dicts for structs, a `Windowed` for a windowed key).
    Results: filter*, branch -> truthy; map -> (key, value); map_values -> value; select_key ->
    key; flat_map -> iterable of (key, value); flat_map_values -> iterable of values; deduplicate ->
    an id. What branch and deduplicate give goes on `beside` the value. ``calls``: side by side;
    None: one after the other.
    """

    label: str
    op: str
    fn: Callable[..., Any]
    changes_key: bool = False
    calls: CallLimits | None = None


def beside(answer: pa.DataType, value: pa.DataType) -> pa.DataType:
    """The type of a value that has an answer of the user's function about it beside it."""
    return pa.struct([("answer", answer), ("value", value)])


@dataclass(frozen=True)
class TakeNode(Node):
    """The records whose answer `beside` the value is ``taken``, without it. Runs in a step."""

    label: str
    taken: bool


@dataclass(frozen=True, kw_only=True)
class PrintNode(Node):
    """Prints rows of its input where the instance runs, under a ``title``; runs in a step."""

    title: str
    rows: int
    label: str = "PRINTER"


@dataclass(frozen=True, kw_only=True)
class WriteNode(Node):
    """Gives its records to a sink outside Kafka, a call per task and micro-batch (note 072).

    ``key``: the names of the columns that the key becomes beside the fields of the value (or
    ``value``); a field of the value of the same name is a copy of it, and a row in which they
    differ is a bad record. Empty: the key is left out. None: the rows have what expressions see.
    ``one_input``: it names a batch by a number, which only a task with one input has.
    ``every_ms``: how often its tasks run, where there is less than a whole batch.
    """

    sink: Sink
    key: tuple[str, ...] | None
    one_input: bool = False
    every_ms: int = 0
    label: str = "SINK"


@dataclass(frozen=True)
class UnnestNode(Node):
    """Unnests the list in the input's value, in a step. ``keyed``: elements are ``struct<key,
    value>`` and replace the key too; null or empty lists emit nothing."""

    keyed: bool = False
    changes_key: bool = False


@dataclass(frozen=True, kw_only=True)
class AssumedNode(Node):
    """Passes on records whose keys are said to be in the partitions of their tasks already, and
    checks it for each (KIP-759, note 077).

    ``key_serde`` writes the keys. ``by``: the field of the key that alone says the partition, and
    its serde; None: the whole key. ``partitioner``: by which; None: that of the topics in front.
    """

    key_serde: Serde
    by: tuple[str, Serde] | None = None
    partitioner: str | FunctionExpr | None = None
    label: str = "PARTITION-PRESERVE"

    @property
    def spread_alone(self) -> str:
        """Stands for its topics where it says itself how its keys are spread; else empty. No
        topic's name has a space."""
        said = self.by is not None or self.partitioner is not None
        return f"{self.name} (assumed)" if said else ""


@dataclass(frozen=True)
class MergeNode(Node):
    """All records of all inputs, in merge order. The planner dissolves it."""

    label: str = "MERGE"


class Inputs(NamedTuple):
    """What an operator gets in one micro-batch: the records and stores of several tasks, by their
    partitions.

    Attributes:
        sides: the records of each input, in merge order; ``seq`` tells the order of all of them.
        stores: of each task, by name. Its own stores show committed content and the batch's earlier
            changes; those of tables that it reads show their entries *before* the batch, whose
            changes are the records of the table's side; global tables are `WholeView`, the same for
            each task.
        stream_times: the highest record time (ms) that the operator has seen in each task, -1 =
            none yet.
        clocks: of each task the numbers named in `Operator.marks`, -1 = none yet.
        now_ms: the wall clock (epoch ms).
        through: makes of rows that were found in a table what the stateless nodes of these names
            make of the table's records (`Operator.through`), row by row.
    """

    sides: Sequence[EdgeBatch]
    stores: Mapping[int, Mapping[str, StoreView]] = MappingProxyType({})
    stream_times: Mapping[int, int] = MappingProxyType({})
    clocks: Mapping[int, Mapping[str, int]] = MappingProxyType({})
    now_ms: int = 0
    through: Callable[[tuple[str, ...], EdgeBatch], EdgeBatch] | None = None


class Operator:
    """The operator of a `StatefulNode`: a frozen dataclass that workers get by pickle. One that
    gives every intermediate result on demand has a field ``emit_every_update``."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    joins: ClassVar[bool] = False
    """True if the records of all its sides make results, in one order (a join). Else those behind
    the first side are updates of tables that it looks up."""
    passes_on: ClassVar[bool] = False
    """True if its results are updates of the table that it reads."""
    old_from: ClassVar[tuple[int, ...]] = ()
    """As `old_sides`, where its own results are asked what they were: it gives their ``old``
    itself. Empty: its store tells."""
    in_pieces: ClassVar[bool] = False
    """True if a record's results may come in several batches: its marks say how far they are. It
    does not run on some of a batch's records, without them."""
    old_input: ClassVar[bool] = False
    """True if the last input is no side, but what its first one's entries were, row by row."""

    def run(self, inputs: Inputs) -> TasksResult:
        """Results and changes of several tasks' records, and the tasks' new stream times. Writes
        nothing. It costs what the records cost, not the tasks. Raises UserFunctionError,
        SerdeError."""
        raise NotImplementedError

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult | None:
        """Results of tasks whose stream time reaches that of their row in ``ticks``, which lies
        behind all records and is none: its key and value are null (note 025). ``inputs``: the
        batch's records, which the operator has had; stores show what became of them, those of other
        tables as before the batch; stream times are those after them. None: nothing waits here."""
        return None

    @property
    def lag_ms(self) -> int:
        """How far behind its stream time its results may lie (ms, note 076); beyond that lies only
        what comes of late records."""
        return 0

    @property
    def takes_null_keys(self) -> bool:
        """True if a record without a key gives a result (KIP-962)."""
        return False

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        """The stores of global tables that it reads, which bind it to no sub-topology."""
        return ()

    @property
    def wall_clock_interval_ms(self) -> int | None:
        """Interval (ms) at which the wall clock runs every task; None: never."""
        return None

    @property
    def marks(self) -> tuple[str, ...]:
        """Names of the numbers that it keeps beside its stream times."""
        return ()

    @property
    def one_result(self) -> bool:
        return False

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        """Names of stateless nodes, in order, that lie between a store that it reads and the table
        that it looks up: a value getter of Kafka Streams (note 035)."""
        return ()

    @property
    def old_sides(self) -> tuple[int, ...]:
        """The sides whose updates come with what each entry was (`EdgeBatch.old`)."""
        return ()

    @property
    def asked(self) -> Operator | None:
        """The same for rows that are looked up and no records of its own; None where it keeps
        something of its records."""
        return None

    def meets(self, sides: int) -> Iterable[Iterable[int]]:
        """Groups of its sides whose records need one order."""
        return (range(sides),)


class TableOperator(Operator):
    """An `Operator` whose results are a table, which it keeps in its store."""

    if TYPE_CHECKING:  # dataclass fields in some operators, properties in others

        @property
        def key_serde(self) -> Serde:
            """Serde of the stored keys, without their windows or sessions."""

        @property
        def value_serde(self) -> Serde:
            """Serde of the stored values, which are also the changelog's."""

        @property
        def result_key(self) -> pa.DataType:
            """Arrow type of the output's key."""

        @property
        def result(self) -> pa.DataType:
            """Arrow type of the output's value."""

    @property
    def results(self) -> ResultDecoder:
        """Reads the table's store as the table shows it."""
        return self.value_serde


class Surroundings(NamedTuple):
    """What a processor gets beside its records: the application, the task's sub-topology, the
    names of the input topics by ``source``, the machine's clock (epoch ms), calls to leave out.
    ``firsts``: `SourceNode.firsts`, by ``source``."""

    application_id: str
    subtopology: int
    topics: Mapping[int, str]
    wall_clock_ms: int
    skipped: frozenset[ClockCall] = frozenset()
    firsts: Mapping[int, int] = MappingProxyType({})


class Link(NamedTuple):
    """A processor of those that share stores that hands its results on directly: all, or those that
    are for its child of this number."""

    processor: str
    child: int | None


@dataclass(frozen=True, kw_only=True)
class SharingProcessor:
    """A processor as it is run. The clocks of its ``inputs`` say when each of ``wall_clocks`` was
    last due.

    ``links``: who hands it records while they run. ``idle``: to what stream time is moved behind
    the records, in tasks whose sources are silent.
    """

    name: str
    operator: ProcessorOperator
    inputs: Inputs
    links: tuple[Link, ...] = ()
    idle: Mapping[int, int] = field(default_factory=dict)

    @property
    def batch(self) -> EdgeBatch:
        return self.inputs.sides[0]


class ProcessorOperator(Operator):
    """A processor (notes 023, 040). Its first input are its records, the others the tables that it
    reads. It runs with all that share stores with it, by `run_together`, not by `run`."""

    if TYPE_CHECKING:

        @property
        def children(self) -> tuple[str, ...]:
            """The names of the streams behind it that it can choose."""

        @property
        def wall_clocks(self) -> Mapping[str, int]:
            """The methods that the wall clock calls, and how often (ms)."""

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(self.wall_clocks)

    @property
    def wall_clock_interval_ms(self) -> int | None:
        return min(self.wall_clocks.values(), default=None)

    def run_together(
        self, members: Sequence[SharingProcessor], surroundings: Surroundings
    ) -> list[TasksResult]:
        """Run all processors that share stores, this one among them, record by record, in the order
        in which a record reaches them; the results of each. As `Operator.run`, with headers."""
        raise NotImplementedError


@dataclass(frozen=True)
class Part:
    """One of several nodes as which Kafka Streams describes a node. ``inputs``: parts, or inputs of
    the node. Nodes that read the node read those that no part reads."""

    name: str
    inputs: tuple[str, ...]
    stores: tuple[str, ...] = ()


@dataclass(frozen=True)
class StatefulNode(Node):
    """A stateful operator, runs in a step. A join has two inputs, left and right."""

    label: str  # AGGREGATE, REDUCE, TOTABLE, SOURCE (table), JOIN ...
    operator: Operator
    stores: tuple[StoreSpec, ...] = ()
    reads: tuple[StoreSpec, ...] = ()
    """Stores of tables that it reads and others write."""
    parts: tuple[Part, ...] = ()
    """The nodes that ``describe()`` shows for it; empty: itself."""
    connector: str = ""
    """The source outside Kafka that it plans or reads (note 073); empty: none."""

    def giving_every_update(self) -> StatefulNode:
        operator: Any = self.operator
        if not hasattr(operator, "emit_every_update"):
            return self
        return replace(self, operator=replace(operator, emit_every_update=True))


@dataclass(frozen=True, kw_only=True)
class WholeTableNode(Node):
    """A table that every instance has as a whole, in ``store``. ``source``: what Kafka Streams
    calls the node that reads it. Nothing of it runs in a batch: nodes look its store up."""

    source: str
    store: StoreSpec


@dataclass(frozen=True, kw_only=True)
class GlobalTableNode(WholeTableNode):
    """The records of all partitions of ``topic``."""

    topic: str


@dataclass(frozen=True, kw_only=True)
class LoadedTableNode(WholeTableNode):
    """A table of ``rows``, read as a whole at the start and again every ``refresh_ms`` (None:
    never; note 033): keys and values in the types of the edge, as they are when it is called in the
    instance's process; it raises anything."""

    rows: Callable[[], Iterator[tuple[pa.Array, pa.Array]]]
    refresh_ms: int | None

    @property
    def schedule(self) -> str:
        if self.refresh_ms is None:
            return "loaded at the start"
        return f"loaded every {self.refresh_ms / 1000:g} s"


@dataclass(frozen=True)
class SinkNode(Node):
    """``topic``: a name, what gives one per record, or for ``kind='repartition'`` one without the
    application id. That kind drops null keys, unless a join behind it takes those (KIP-962)."""

    topic: str | ColumnExpr | FunctionExpr
    key_serde: Serde
    value_serde: Serde
    kind: str = "sink"
    partitioner: Partitioner | None = None
    """None: by its key, as in Kafka Streams."""


@dataclass(frozen=True)
class RepartitionTopic:
    """An internal topic; ``name`` without the application id prefix, with ``-repartition``."""

    name: str
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Graph:
    """The whole program, as data. ``nodes`` in topological order (inputs first)."""

    nodes: tuple[Node, ...]
    repartition_topics: tuple[RepartitionTopic, ...] = ()

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def before(self, name: str) -> set[str]:
        """The node called ``name`` and all whose records reach it in its sub-topology."""
        found, by_name = set[str](), {node.name: node for node in self.nodes}
        todo = [name]
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += by_name[one].inputs
        return found


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    return bool(normal_type(left) == normal_type(right))


def write_alike(one: Serde | None, other: Serde | None) -> bool:
    """True if two serdes write equal values as equal bytes, so that equal keys meet: whatever they
    do not write, as the size of time windows, or which fields of a JSON type may be null."""
    if one is None or other is None:
        return one is other
    if one == other:
        return True
    if one.kind != other.kind:
        return False
    if one.kind in ("time_windowed", "session_windowed", "list"):  # the inner ones tell all
        mine, its = (getattr(serde, "inner", None) for serde in (one, other))
        if mine is not None:
            return write_alike(mine, its)
    if one.kind in ("json", "packed"):
        return same_type(one.type, other.type)
    return _same_of_users(one, other)


def _same_of_users(one: Any, other: Any) -> bool:
    """True if two serdes of the user's are of one class, with the same in them."""
    mine, its = getattr(one, "own", one), getattr(other, "own", other)
    if type(mine) is not type(its) or not same_type(one.type, other.type):
        return False
    try:
        return bool(vars(mine) == vars(its))
    except Exception:  # without a __dict__, or with values that cannot be compared
        return False


def column_names(key: pa.DataType, value: pa.DataType) -> list[str]:
    """For messages: with types; of structs one level deep."""
    names: list[str] = []
    for root, type_ in (("key", key), ("value", value)):
        if pa.types.is_struct(type_):
            names.append(f"{root} struct")
            names += [f"{root}.{field.name} {type_text(field.type)}" for field in type_]
        else:
            names.append(f"{root} {type_text(type_)}")
    return [
        *names,
        "timestamp bigint (ms)",
        "topic string",
        "partition int",
        "offset bigint",
        "headers array<struct<key:string,value:binary>>",
    ]
