"""What ``timestamp=`` and ``idle_advance=`` of a source may be.

A time is what an extractor, a Column or a Python function says.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.expressions import Edge, is_column
from everflow.dsl.functions import function_name, required_parameters
from everflow.errors import TopologyError
from everflow.spark.expressions import analyse
from everflow.topology.graph import ColumnExpr
from everflow.topology.timestamps import EXTRACTORS, TimeFunction, TimestampExtractor
from everflow.topology.types import type_text
from everflow.windows import Duration, duration_ms

Time = TimestampExtractor | ColumnExpr
LEAST_IDLE_MS = 1_000


def time_of(given: object, edge: Edge, operator: str, where: str | None) -> Time | None:
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
    if is_column(given, part, where):
        return _column_time(given, edge, part, where)
    return _function_time(given, part, where)


def idle_ms_of(given: Duration | None, operator: str, where: str | None) -> int | None:
    """``idle_advance`` in ms; None stays None. TopologyError for less than a second."""
    if given is None:
        return None
    idle_ms = duration_ms(given)
    if idle_ms < LEAST_IDLE_MS:
        raise TopologyError(
            f"{operator}: idle_advance says how long a partition is silent before its time goes on "
            f"by the wall clock, and is at least 1 second, as records are that long on their way; "
            f"found {idle_ms} ms; write for example idle_advance='30 seconds'",
            where=where,
        )
    return idle_ms


def _column_time(column: Column, edge: Edge, part: str, where: str | None) -> ColumnExpr:
    """In ms: a whole number is taken as that, a timestamp becomes it."""
    found = analyse(column, edge.type, where)
    if found.calls:
        raise TopologyError(
            f"{part} cannot be a Column that calls Python functions; pass a function of (key, "
            f"value, record, partition_time) that gives the time in ms",
            where=where,
        )
    if pa.types.is_int64(found.type):
        return found
    if pa.types.is_integer(found.type):
        return analyse(column.cast("bigint"), edge.type, where)
    if pa.types.is_timestamp(found.type) and found.type.tz is not None:
        return analyse(F.unix_millis(column), edge.type, where)
    raise TopologyError(
        f"{part}: {found.column} is {type_text(found.type)}; a time is a number of ms since 1970 "
        f"(bigint) or a timestamp, e.g. F.to_timestamp(...), or (F.col('value.seconds') * "
        f"1000).cast('bigint')",
        where=where,
    )


def _function_time(fn: Any, part: str, where: str | None) -> TimeFunction:
    count = required_parameters(fn)
    if count is None or 1 <= count <= 4:
        return TimeFunction(fn, 1 if count is None else count)
    raise TopologyError(
        f"{part} calls its function with (value), (key, value), (key, value, record) or (key, "
        f"value, record, partition_time); {function_name(fn)} takes {count} arguments",
        where=where,
    )
