"""`StreamsBuilder`: a program begins here, and ``build`` freezes its topology.

Threads that share a builder wait for one another. TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow import serdes
from everflow.dsl.expressions import (
    Edge,
    Expression,
    bound_serdes,
    checked_serde,
    function_name,
    is_column,
    required_parameters,
)
from everflow.dsl.graph_builder import GraphBuilder, Stream, builder_call, store_spec
from everflow.dsl.lowering import sources
from everflow.dsl.lowering.stateless import key_partitioner_of
from everflow.dsl.lowering.tables import Frame, Key, has_history, loaded_table, table_stores
from everflow.dsl.stores import Store
from everflow.dsl.streams import GlobalKTable, KStream, KTable
from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.serdes.debezium_serde import DebeziumSerde, behind, no_key, of_a_table
from everflow.setting_checks import BY_DURATION, offset_reset
from everflow.spark.expressions import analyse
from everflow.spark.session import start_when_asked
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    EXTRACTORS,
    ColumnExpr,
    GlobalTableNode,
    Reading,
    SourceNode,
    TimeFunction,
    TimestampExtractor,
)
from everflow.topology.program import Topology
from everflow.travel.pickled_objects import Inert, in_worker
from everflow.windows import Duration, checked_ms

Timestamp = TimestampExtractor | type[TimestampExtractor] | Expression


class StreamsBuilder(Telling):
    """Builds one topology. Any thread may use it; concurrent calls wait for one another.

    ``pyspark.sql.functions`` need Spark: once this class is imported, the first Column starts
    Spark, or uses the running one. It raises SetupError if Java is missing.
    """

    def __new__(cls) -> StreamsBuilder:
        """In a Python worker that imports a program: a stand-in that takes every call."""
        return Inert() if in_worker() else super().__new__(cls)  # type: ignore[return-value]

    def __init__(self) -> None:
        start_when_asked()
        self.graph = GraphBuilder()

    def __repr__(self) -> str:
        return f"StreamsBuilder({self.graph})"

    @builder_call
    def stream(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        offset_reset: str | timedelta | None = None,
        timestamp: Timestamp | None = None,
        idle_advance: Duration | None = None,
        partitioner: str | Callable[..., int] | None = None,
    ) -> KStream:
        """Reads one topic, several topics, or all topics whose whole names match a pattern,
        ``re.compile("orders-.*")``, as one stream. A pattern skips Kafka's own topics and the
        application's internal ones. At least one topic must match it when an instance starts;
        topics that are created later are read, too, if the internal topics keep their numbers of
        partitions. ``key``, ``value``: serdes; default: ``serdes.bytes_()``. Keeps headers. Calls
        with the same topics or pattern share one source, which has the first call's name; their
        other arguments must be equal.

        ``offset_reset``: where to start without a committed offset: ``earliest``, ``latest``,
        ``none`` (an error), or a duration before now (a timedelta, ``by_duration:PT12H``); default:
        ``auto.offset.reset``.

        ``timestamp``: where a record's time comes from: a `TimestampExtractor`, a Column (ms, or a
        timestamp), or a function of (value), (key, value), (key, value, record) or (key, value,
        record, partition_time) that returns ms; default: ``default.timestamp.extractor``. A record
        for which a Column or function returns a negative time is dropped and counted.

        ``idle_advance``: how long a partition may be idle before its time advances by the wall
        clock, so that windows close without a record, ``"30 seconds"``; default: the time stands
        still. Later records that are older than the advanced time are late. The advanced time is
        committed with the offsets.

        ``partitioner``: how the producers of the topics choose the partition of a key: ``murmur2``
        (Java's, and the default), ``crc32`` (librdkafka's, so that of confluent-kafka), ``fnv1a``,
        or a function of (topic, key, value, number of partitions) as in `KStream.to`, called with
        None as the value. A stream that is repartitioned to match these records uses the same
        partitioner.
        """
        node, edge = self._source("stream", _topics(topics), name, locals())
        return KStream(Stream(self.graph, node, edge))

    @builder_call
    def table(
        self,
        topic: str,
        *,
        store: Store | None = None,
        key: Serde | None = None,
        value: Serde | None = None,
        ttl: Duration | None = None,
        name: str | None = None,
        offset_reset: str | timedelta | None = None,
        timestamp: Timestamp | None = None,
        idle_advance: Duration | None = None,
        partitioner: str | Callable[..., int] | None = None,
    ) -> KTable:
        """Reads a topic as a changelog and keeps the last value of each key in ``store``, which by
        default has a changelog topic of its own. A null value deletes the row; records with a null
        key are dropped. ``store=Materialized("prices", history="1 hour")`` makes a versioned table
        (KIP-889), which also keeps earlier values for this long (stream time). A stream that joins
        a versioned table reads it as of each record's time; an update older than ``history`` is
        ignored and counted. ``timestamp``, ``idle_advance`` and ``partitioner``: as in `stream`.
        ``ttl``: how long (stream time) a row is kept after its record's time. Then the row is
        deleted and the table emits a tombstone; updates older than ``ttl`` are dropped. Keeps
        headers. ``value=serdes.debezium(...)``: the rows of a database's table, from its change
        data; a change that is none of a row, or has no key, is a bad record.
        """
        if not isinstance(topic, str):
            raise TopologyError(
                f"table reads one topic, found {topic!r}; merge streams and use to_table"
            )
        store = self.graph.claim_store(store, "table")
        source_name = None if name is None else f"{name}-source"
        if name is not None:
            self.graph.burn(1)  # the original burns the source's number where the table has a name
        source, edge = self._source("table", (topic,), source_name, locals())
        partial = isinstance(value, DebeziumSerde)
        stores, operator = table_stores(self.graph, store, edge, "table", ttl, partial=partial)
        node_name = self.graph.node_name(name, "KTABLE-SOURCE-")
        stream = Stream(self.graph, source, edge)
        return KTable(stream.kept(node_name, "SOURCE", operator, stores))

    @builder_call
    def global_table(
        self,
        topic: str,
        *,
        store: Store | None = None,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
    ) -> GlobalKTable:
        """Keeps all partitions of a topic on every instance, in ``store``, for
        ``stream.join(global_table, on=...)`` and queries. An instance reads the topic to its end
        before it processes any record, and then keeps reading it, whatever the times of its
        records. The table has no changelog, and its topic may have any number of partitions.

        Null values delete; records with a null key are dropped.
        """
        if not isinstance(topic, str):
            raise TopologyError(f"global_table reads one topic, found {topic!r}")
        kept = self.graph.claim_store(store, "global_table")
        self.graph.claim_topics((topic,))
        edge = Edge.of(*_serdes("global_table", key, value))
        for serde in (edge.key_serde, edge.value_serde):
            if isinstance(serde, DebeziumSerde):
                raise TopologyError(
                    f"global_table keeps the bytes of its topic, and these are changes: "
                    f"builder.table({topic!r}, ...).to('a-compacted-topic'), and read that one"
                )
        if name is not None:
            self.graph.burn(1)
        source = self.graph.node_name(None if name is None else f"{name}-source", "KSTREAM-SOURCE-")
        written = edge.serdes("global_table")
        node = GlobalTableNode(
            name=self.graph.node_name(name, "KTABLE-SOURCE-"),
            inputs=(),
            out=edge.type,
            source=source,
            topic=topic,
            store=store_spec(kept, written, logging=False),
        )
        return GlobalKTable(Stream(self.graph, self.graph.add(node), edge))

    @builder_call
    def read(
        self,
        format: str | type,  # noqa: A002 - PySpark's word
        *,
        name: str,
        schema: Any = None,
        key: str | Iterable[str] | None = None,
        timestamp: str | None = None,
        tasks: int = 4,
        poll: Duration = "1 second",
        **options: Any,
    ) -> KStream:
        """Reads a source outside Kafka once, as a stream of rows: the value is a struct of the
        columns. The source is planned as splits, which ``tasks`` tasks of the application read;
        each row is there once, whatever fails, if a split gives the same rows in the same order
        each time it is read.

        ``format``: ``"parquet"``, ``"csv"`` (``header``, ``delimiter``) or ``"json"``: the files of
        ``path``, each a split. ``"postgresql"``: a table in ranges of a column (``dsn``, ``table``
        or ``query``, ``partition_column``, ``lower_bound``, ``upper_bound``, ``num_partitions``).
        Or a ``DataSource`` class of PySpark whose ``reader`` is used, with its options.

        ``name``: under which is kept what was planned; with another name the source is read anew.
        ``schema``: DDL text or a StructType; a data source may say it itself. ``key``: the column
        that becomes the record's key, several for a struct; default: null. ``timestamp``: the
        column, a timestamp or a bigint of ms, that is the record's time; default: when its split
        was planned. ``poll``: how often a task asks whether there is something to plan.
        """
        return KStream(sources.read(self.graph, streams=False, **_asked(locals())))

    @builder_call
    def read_stream(
        self,
        format: str | type,  # noqa: A002 - PySpark's word
        *,
        name: str,
        schema: Any = None,
        key: str | Iterable[str] | None = None,
        timestamp: str | None = None,
        tasks: int = 4,
        poll: Duration = "1 second",
        **options: Any,
    ) -> KStream:
        """As `read`, for ever: each ``poll`` the files that are new, or what the stream reader
        (``streamReader``, ``simpleStreamReader``) of a ``DataSource`` class has, which is asked for
        its latest offset. A file must not change once it is there."""
        return KStream(sources.read(self.graph, streams=True, **_asked(locals())))

    @builder_call
    def add_state_store(self, store: StoreSpec) -> StreamsBuilder:
        """Adds a store, made by `Stores`, that several processors share. Each of them names it:
        ``process(..., stores=["seen"])``. These processors belong to one sub-topology. A processor
        reads what all of them have written up to the current record."""
        if not isinstance(store, StoreSpec):
            raise TopologyError(
                "add_state_store takes what Stores makes, Stores.key_value('seen', "
                f"key=serdes.string(), value=serdes.long()), found {store!r}"
            )
        self.graph.declare_store(store, "add_state_store")
        return self

    @builder_call
    def global_table_from(
        self,
        frame: Frame,
        *,
        key: Key,
        refresh: Duration | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalKTable:
        """Makes a `global_table` from the rows of a DataFrame, for ``stream.join(table, on=...)``,
        ``left_join``, ``lookup_join`` and queries. Spark loads the rows when an instance starts,
        before it processes any record, and, if ``refresh`` is given, again at this interval. A
        refresh replaces all rows, between two micro-batches; if it fails, the previous rows stay.

        ``frame`` is a DataFrame, or a function that returns one and is called for each load (a
        DataFrame of files lists the files once). ``key``: a Column of the DataFrame, a name, or a
        list of names (a struct). Two rows may not have the same key; rows with a null key are
        skipped. The value is the row, a struct of all columns.
        """
        return GlobalKTable(loaded_table(self.graph, frame, key, refresh, store, name))

    def build(self) -> Topology:
        """Returns the frozen topology. Raises TopologyError if it is invalid, for example without
        any ``stream`` or ``table``. The builder may be used further and built again."""
        with self.graph.lock:
            return self.graph.build()

    def _source(
        self, operator: str, topics: tuple[str, ...], name: str | None, arguments: dict[str, Any]
    ) -> tuple[str, Edge]:
        if not topics:
            raise TopologyError(f"{operator} needs at least one topic")
        reset = reset_of(arguments["offset_reset"])
        pair = _serdes(operator, arguments["key"], arguments["value"])
        first = topics[0] if not isinstance(arguments.get("topics"), re.Pattern) else None
        key_serde, value_serde = bound_serdes(pair, first)
        if operator == "table":
            completes = not has_history(self.graph, arguments["store"])
            value_serde = of_a_table(value_serde, completes=completes)
        edge = Edge.of(behind(key_serde), behind(value_serde))
        pattern = arguments.get("topics")
        reading = Reading(
            offset_reset=reset,
            timestamp=time_of(arguments["timestamp"], edge, operator),
            pattern=pattern if isinstance(pattern, re.Pattern) else None,
            idle_ms=idle_ms_of(arguments["idle_advance"], operator),
            partitioner=key_partitioner_of(arguments["partitioner"], operator),
        )
        node_name = self.graph.node_name(name, "KSTREAM-SOURCE-")
        node = SourceNode(
            node_name,
            (),
            edge.type,
            topics,
            key_serde,
            value_serde,
            reading=reading,
        )
        if operator == "stream":
            return self.graph.subscribe(node), edge
        self.graph.claim_topics(topics)
        return self.graph.add(node), edge


def _asked(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "self"}


def _serdes(operator: str, key: object | None, value: object | None) -> tuple[Serde, Serde]:
    found = (
        serdes.bytes_() if key is None else checked_serde(key, "key", operator),
        serdes.bytes_() if value is None else checked_serde(value, "value", operator),
    )
    if why := no_key(found[0]):
        raise TopologyError(f"{operator}: key: {why}")
    return found


def _topics(topics: object) -> tuple[str, ...]:
    if isinstance(topics, str):
        return (topics,)
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str) or not topics.pattern:
            raise TopologyError(
                f"stream takes a pattern of text, re.compile('orders-.*'), found {topics!r}"
            )
        return (topics.pattern,)
    if isinstance(topics, Iterable) and not isinstance(topics, bytes | Mapping):
        return tuple(topics)
    raise TopologyError(f"stream takes the name of a topic or a list of names, found {topics!r}")


# --- how topics are read: the keywords of sources -------------------------------------------------


def time_of(
    timestamp: object,
    edge: Edge,
    operator: str,
) -> TimestampExtractor | ColumnExpr | None:
    """``timestamp`` checked; None stays None. TopologyError with the cure for anything else."""
    if timestamp is None:
        return None
    if isinstance(timestamp, str) and timestamp in EXTRACTORS:
        timestamp = EXTRACTORS[timestamp]
    if isinstance(timestamp, type) and issubclass(timestamp, TimestampExtractor):
        timestamp = timestamp()
    if isinstance(timestamp, TimestampExtractor):
        return timestamp
    part = f"{operator}: timestamp"
    if is_column(timestamp, part):
        return _column_time(timestamp, edge, part)
    assert callable(timestamp)
    count = required_parameters(timestamp)
    if count is None or 1 <= count <= 4:
        return TimeFunction(timestamp, 1 if count is None else count)
    raise TopologyError(
        f"{part} calls its function with (value), (key, value), (key, value, record) or (key, "
        f"value, record, partition_time); {function_name(timestamp)} takes {count} arguments"
    )


def idle_ms_of(idle_advance: Duration | None, operator: str) -> int | None:
    """``idle_advance`` in ms; None stays None. TopologyError for less than a second."""
    if idle_advance is None:
        return None
    cure = "; records are that long on their way: write for example idle_advance='30 seconds'"
    return checked_ms(idle_advance, f"{operator}: idle_advance", 1_000, cure)


def _column_time(column: Column, edge: Edge, part: str) -> ColumnExpr:
    """In ms: a whole number is taken as that, a timestamp becomes it."""
    found = analyse(column, edge.type)
    if found.calls:
        raise TopologyError(
            f"{part} cannot be a Column that calls Python functions; pass a function of (key, "
            f"value, record, partition_time) that gives the time in ms"
        )
    if pa.types.is_int64(found.type):
        return found
    if pa.types.is_integer(found.type):
        return analyse(column.cast("bigint"), edge.type)
    if pa.types.is_timestamp(found.type) and found.type.tz is not None:
        return analyse(F.unix_millis(column), edge.type)
    raise TopologyError(
        f"{part}: {found.column} is {type_text(found.type)}; a time is a number of ms since 1970 "
        f"(bigint) or a timestamp, e.g. F.to_timestamp(...), or (F.col('value.seconds') * "
        f"1000).cast('bigint')"
    )


def reset_of(reset: object) -> str | None:
    """``reset`` as ``auto.offset.reset`` has it; None stays None."""
    if reset is None:
        return None
    if isinstance(reset, timedelta):
        reset = f"{BY_DURATION}PT{reset.total_seconds():f}S"
    problem = offset_reset(reset)
    if problem is not None:
        raise TopologyError(f"offset_reset = {reset!r} {problem}")
    return str(reset)
