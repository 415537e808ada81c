"""Where a sink writes: its topic, and its partitioner."""

from __future__ import annotations

import pyarrow as pa

from everflow.columns.key_partitions import BY_HASH
from everflow.dsl.expressions import Edge, Expression, is_column, refuse_calls
from everflow.dsl.functions import check_parameters, key_value_function
from everflow.dsl.graph_builder import check_name
from everflow.errors import TopologyError
from everflow.spark.expressions import analyse
from everflow.topology.graph import ColumnExpr, FunctionExpr
from everflow.topology.types import type_text

SEVERAL = pa.list_(pa.int64())
"""The type of a Column that says several partitions."""
Partitioner = ColumnExpr | FunctionExpr | str


def target_of(
    topic: str | Expression, edge: Edge, where: str | None
) -> str | ColumnExpr | FunctionExpr:
    """``topic`` of ``to``, checked."""
    if isinstance(topic, str):
        check_name("topic", topic, where)
        return topic
    if is_column(topic, "to", where):
        target = analyse(topic, edge.type, where, expected=pa.string())
        refuse_calls(target, "to: the topic", where)
        return target
    return FunctionExpr(key_value_function(topic, "to", where), pa.string())


def partitioner_of(
    given: object, edge: Edge, operator: str, where: str | None, topic: object = ""
) -> Partitioner | None:
    """``partitioner`` of ``operator``, checked; None stays None."""
    if given is None:
        return None
    part = f"{operator}: partitioner"
    if isinstance(given, str):
        return _by_hash(given, part, where)
    if not is_column(given, part, where):
        assert callable(given)
        check_parameters(given, ("topic", "key", "value", "partitions"), part, where)
        return FunctionExpr(given, SEVERAL)
    if isinstance(topic, ColumnExpr):
        raise TopologyError(
            f"{part} and topic are both Columns; give one of them as a function, as in "
            f"partitioner=lambda topic, key, value, partitions: ...",
            where=where,
        )
    found = analyse(given, edge.type, where)
    if found.calls:
        raise TopologyError(
            f"{part} cannot be a Column that calls Python functions; pass a function of (topic, "
            f"key, value, partitions)",
            where=where,
        )
    if pa.types.is_integer(found.type):
        return found if pa.types.is_int64(found.type) else _cast(given, "bigint", edge, where)
    if pa.types.is_list(found.type) and pa.types.is_integer(found.type.value_type):
        return _cast(given, "array<bigint>", edge, where)
    raise TopologyError(
        f"{part}: {found.column} is {type_text(found.type)}; it is the number of a partition, e.g. "
        f"F.pmod(F.col('value.customer'), F.lit(4)).cast('int'), or an array of numbers",
        where=where,
    )


def _by_hash(given: str, part: str, where: str | None) -> str:
    if given in BY_HASH:
        return given
    raise TopologyError(
        f"{part} is one of {', '.join(BY_HASH)}, a Column, or a function of (topic, key, value, "
        f"number of partitions), found {given!r}; for a Column write F.col({given!r})",
        where=where,
    )


def _cast(column: object, kind: str, edge: Edge, where: str | None) -> ColumnExpr:
    return analyse(column.cast(kind), edge.type, where)  # type: ignore[attr-defined]
