"""Streams from sources outside Kafka: a planner's task, and tasks that read splits (note 073)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource

from everflow import serdes
from everflow.dsl.expressions import Edge, check_name, default_serde
from everflow.dsl.graph_builder import GraphBuilder, Stream, store_spec
from everflow.dsl.lowering.sinks import check_options, format_class, option_text
from everflow.errors import EverflowError, TopologyError
from everflow.operators.processors.process import ProcessSpec
from everflow.operators.processors.processor import Punctuation, PunctuationType
from everflow.operators.read import SPLIT, Planner, ReadSpec, spread
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.sources.data_source import PythonDataSource, made
from everflow.sources.splits import Source
from everflow.topology.graph import FunctionExpr
from everflow.user_program import did_you_mean
from everflow.windows import Duration, checked_ms

FORMATS: Mapping[str, tuple[str, str]] = {
    "parquet": ("everflow.sources.files", "ParquetFiles"),
    "csv": ("everflow.sources.files", "CsvFiles"),
    "json": ("everflow.sources.files", "JsonFiles"),
    "postgresql": ("everflow.sources.postgresql", "PostgresRanges"),
}
"""Module and class of each."""
MOST_TASKS = 1_000
LEAST_POLL_MS = 100


def read(
    graph: GraphBuilder,
    format: str | type,  # noqa: A002 - PySpark's word
    *,
    streams: bool,
    name: str,
    schema: object,
    key: str | Iterable[str] | None,
    timestamp: str | None,
    tasks: int,
    poll: Duration,
    options: Mapping[str, Any],
) -> Stream:
    operator = "read_stream" if streams else "read"
    check_name("source", name)
    poll_ms = checked_ms(poll, f"{operator}: poll", LEAST_POLL_MS)
    if not isinstance(tasks, int) or isinstance(tasks, bool) or not 1 <= tasks <= MOST_TASKS:
        raise TopologyError(f"{operator}: tasks is from 1 to {MOST_TASKS:,}, found {tasks!r}")
    source = _source(operator, format, schema, options, streams=streams)
    store = graph.claim_store(f"{name}-plan", operator)
    bytes_, text, number = serdes.bytes_(), serdes.string(), serdes.long()
    nothing = Edge.of(bytes_, bytes_)
    written = (bytes_, bytes_)
    plan = Stream(graph, graph.internal_topic(f"{name}-plan", written, nothing.type), nothing)
    value_serde = default_serde(SPLIT)
    assert value_serde is not None
    of_split = Edge.of(number, value_serde)
    kept = store_spec(store, (text, text))
    planner = ProcessSpec(
        supplier=partial(Planner, name, store, source),
        specs=(kept,),
        out=of_split.type,
        punctuations=(Punctuation("plan", poll_ms, PunctuationType.WALL_CLOCK_TIME),),
        key_serde=bytes_,
    )
    splits = plan.kept(f"{name}-plan", "PROCESSOR", planner, (kept,), of_split, connector=name)
    by_turns = FunctionExpr(spread, pa.int64())
    topic = graph.check_repartition_name(f"{name}-splits", operator)
    waiting = splits.repartitioned(topic, operator, (tasks, by_turns))
    edge, columns = _edge(operator, source, key)
    _check_time(operator, source, timestamp)
    spec = ReadSpec(name=name, source=source, out=edge.type, key=columns, timestamp=timestamp)
    rows = waiting.kept(name, "READ", spec, (), edge, connector=name)
    return Stream(graph, rows.node, edge, key_changed=True)


def _source(
    operator: str,
    kind: object,
    schema: object,
    options: Mapping[str, Any],
    *,
    streams: bool,
) -> Source:
    if isinstance(kind, type) and issubclass(kind, DataSource):
        return _data_source(operator, kind, schema, options, streams=streams)
    made = format_class(operator, kind, FORMATS)
    if schema is None:
        raise TopologyError(
            f"{operator}({kind!r}) needs schema=, the columns that are read: "
            f"schema='item string, amount double'"
        )
    check_options(operator, kind, made, options, made.OWN)
    own: dict[str, Any] = {"columns": _columns(operator, schema)}
    if "once" in made.OWN:
        own["once"] = not streams
    elif streams:
        raise TopologyError(
            f"read_stream: {kind} is read once, builder.read({kind!r}, ...); changes of its "
            f"rows come by Debezium: builder.stream(..., value=serdes.debezium(...))"
        )
    source: Source = made(**own, **options)
    return source


def _data_source(
    operator: str,
    kind: type[DataSource],
    schema: object,
    options: Mapping[str, Any],
    *,
    streams: bool,
) -> Source:
    texts = {option: option_text(value) for option, value in options.items()}
    if schema is None:
        try:
            schema = made(kind, texts).schema()
        except Exception as error:
            raise TopologyError(
                f"{operator}: {kind.__name__} does not say its schema ({error!r}); give it: "
                f"schema='item string, amount double'"
            ) from error
    columns = _columns(operator, schema)
    return PythonDataSource(source=kind, options=texts, columns=columns, streams=streams)


def _columns(operator: str, schema: object) -> pa.Schema:
    try:
        found = normal_type(serdes.arrow_type(schema))
    except EverflowError as error:
        raise TopologyError(f"{operator}: schema={schema!r} is none: {error}") from None
    if not pa.types.is_struct(found) or not found.num_fields:
        raise TopologyError(
            f"{operator}: schema names columns, 'item string, amount double', found {schema!r}"
        )
    return pa.schema(list(found))


def _edge(
    operator: str, source: Source, key: str | Iterable[str] | None
) -> tuple[Edge, tuple[str, ...]]:
    value = normal_type(pa.struct(list(source.columns)))
    if key is None:
        no_key = Edge.inside(pa.binary(), value).type
        return Edge(no_key, serdes.bytes_(), default_serde(value)), ()
    names = (key,) if isinstance(key, str) else tuple(key)
    for one in names:
        _require_column(operator, "key", source, one)
    fields = [source.columns.field(one) for one in names]
    kind = fields[0].type if len(fields) == 1 else normal_type(pa.struct(fields))
    return Edge(Edge.inside(kind, value).type, default_serde(kind), default_serde(value)), names


def _check_time(operator: str, source: Source, timestamp: str | None) -> None:
    if timestamp is None:
        return
    _require_column(operator, "timestamp", source, timestamp)
    kind = source.columns.field(timestamp).type
    if not pa.types.is_timestamp(kind) and not pa.types.is_int64(kind):
        raise TopologyError(
            f"{operator}: timestamp names a column of a timestamp, or a bigint of ms; "
            f"{timestamp!r} is {type_text(kind)}"
        )


def _require_column(operator: str, part: str, source: Source, name: object) -> None:
    if name not in source.columns.names:
        raise TopologyError(
            f"{operator}: {part} names a column of {', '.join(source.columns.names)}, found "
            f"{name!r}{did_you_mean(name, source.columns.names)}"
        )
