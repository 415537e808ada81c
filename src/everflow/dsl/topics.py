"""How a program's topics are read and written: what the keywords of sources and sinks may be.

``timestamp=``, ``idle_advance=``, ``offset_reset=`` and ``partitioner=`` of a source; the topic and
``partitioner=`` of a sink. TopologyError, with the user's line and the cure, for what cannot be.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.columns.key_partitions import BY_HASH
from everflow.dsl.expressions import (
    Edge,
    Expression,
    check_name,
    check_parameters,
    function_name,
    is_column,
    key_value_function,
    refuse_calls,
    required_parameters,
)
from everflow.errors import TopologyError
from everflow.serdes.arrow_types import type_text
from everflow.setting_checks import BY_DURATION, offset_reset
from everflow.spark.expressions import analyse
from everflow.topology.graph import (
    EXTRACTORS,
    ColumnExpr,
    FunctionExpr,
    Partitioner,
    TimeFunction,
    TimestampExtractor,
)
from everflow.windows import Duration, checked_ms

Time = TimestampExtractor | ColumnExpr
LEAST_IDLE_MS = 1_000


def time_of(given: object, edge: Edge, operator: str) -> Time | None:
    """``given`` checked; None stays None. TopologyError with the cure for anything else."""
    if given is None:
        return None
    if isinstance(given, str) and given in EXTRACTORS:
        given = EXTRACTORS[given]
    if isinstance(given, type) and issubclass(given, TimestampExtractor):
        given = given()
    if isinstance(given, TimestampExtractor):
        return given
    part = f"{operator}: timestamp"
    if is_column(given, part):
        return _column_time(given, edge, part)
    assert callable(given)
    count = required_parameters(given)
    if count is None or 1 <= count <= 4:
        return TimeFunction(given, 1 if count is None else count)
    raise TopologyError(
        f"{part} calls its function with (value), (key, value), (key, value, record) or (key, "
        f"value, record, partition_time); {function_name(given)} takes {count} arguments"
    )


def idle_ms_of(given: Duration | None, operator: str) -> int | None:
    """``idle_advance`` in ms; None stays None. TopologyError for less than a second."""
    if given is None:
        return None
    cure = "; records are that long on their way: write for example idle_advance='30 seconds'"
    return checked_ms(given, f"{operator}: idle_advance", LEAST_IDLE_MS, cure)


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


def reset_of(given: object) -> str | None:
    """``given`` as ``auto.offset.reset`` has it; None stays None."""
    if given is None:
        return None
    if isinstance(given, timedelta):
        given = f"{BY_DURATION}PT{given.total_seconds():f}S"
    problem = offset_reset(given)
    if problem is not None:
        raise TopologyError(f"offset_reset = {given!r} {problem}")
    return str(given)


def key_partitioner_of(given: object, operator: str) -> str | FunctionExpr | None:
    """``partitioner`` of a source, checked; None stays None."""
    part = f"{operator}: partitioner"
    if given is None:
        return None
    if not callable(given):
        return _by_hash(given, part, "or")
    check_parameters(given, ("topic", "key", "value", "partitions"), part)
    return FunctionExpr(given, pa.int64())


SEVERAL = pa.list_(pa.int64())
"""The type of a Column that says several partitions."""


def target_of(topic: str | Expression, edge: Edge) -> str | ColumnExpr | FunctionExpr:
    """``topic`` of ``to``, checked."""
    if isinstance(topic, str):
        check_name("topic", topic)
        return topic
    if is_column(topic, "to"):
        target = analyse(topic, edge.type, expected=pa.string())
        refuse_calls(target, "to: the topic")
        return target
    return FunctionExpr(key_value_function(topic, "to"), pa.string())


def partitioner_of(
    given: object, edge: Edge, operator: str, topic: object = ""
) -> Partitioner | None:
    """``partitioner`` of ``operator``, checked; None stays None."""
    if given is None:
        return None
    part = f"{operator}: partitioner"
    if isinstance(given, str):
        return _by_hash(given, part, f"a Column, F.col({given!r}), or")
    if not is_column(given, part):
        assert callable(given)
        check_parameters(given, ("topic", "key", "value", "partitions"), part)
        return FunctionExpr(given, SEVERAL)
    if isinstance(topic, ColumnExpr):
        raise TopologyError(
            f"{part} and topic are both Columns; give one of them as a function, as in "
            f"partitioner=lambda topic, key, value, partitions: ..."
        )
    found = analyse(given, edge.type)
    if found.calls:
        raise TopologyError(
            f"{part} cannot be a Column that calls Python functions; pass a function of (topic, "
            f"key, value, partitions)"
        )
    if pa.types.is_integer(found.type):
        is_long = pa.types.is_int64(found.type)
        return found if is_long else analyse(given.cast("bigint"), edge.type)
    if pa.types.is_list(found.type) and pa.types.is_integer(found.type.value_type):
        return analyse(given.cast("array<bigint>"), edge.type)
    raise TopologyError(
        f"{part}: {found.column} is {type_text(found.type)}; it is the number of a partition, e.g. "
        f"F.pmod(F.col('value.customer'), F.lit(4)).cast('int'), or an array of numbers"
    )


def _by_hash(given: object, part: str, others: str) -> str:
    if isinstance(given, str) and given in BY_HASH:
        return given
    raise TopologyError(
        f"{part} is one of {', '.join(BY_HASH)}, {others} a function of (topic, key, value, number "
        f"of partitions) that gives a partition, found {given!r}; 'crc32' is confluent-kafka's "
        f"(librdkafka's consistent_random), 'murmur2' Java's"
    )
