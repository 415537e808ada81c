"""What joins of streams and tables share: the checks, the joiner, the nodes (design note 020).

A join gives ``struct<left, right>``. A joiner makes a value of it: a Column over ``left`` and
``right`` (beside ``key``, ``value``, ``timestamp`` ...), ``field=Column`` arguments (a struct), or
a Python function of (left, right) or (key, left, right) with ``returns=``. A side without a match
is null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.expressions import (
    Edge,
    Expression,
    OfMappedSides,
    OfSides,
    TableMapper,
    check_parameters,
    default_serde,
    is_column,
    required_parameters,
    result_serde,
    result_type,
    struct_of,
    unless_deleted,
)
from everflow.dsl.lowering.stream import Stream
from everflow.errors import TopologyError
from everflow.operators.joins import JoinKind, joined_type
from everflow.serdes.arrow_types import type_text
from everflow.spark.expressions import analyse
from everflow.topology.graph import (
    JOINER,
    EdgeType,
    FunctionNode,
    ProjectNode,
    same_type,
    write_alike,
)
from everflow.user_program import user_line

_OPERATORS = {JoinKind.INNER: "join", JoinKind.LEFT: "left_join", JoinKind.OUTER: "outer_join"}


@dataclass(frozen=True, kw_only=True)
class JoinCall:
    """A call of a join: its name, the joiner as the user gave it, the line."""

    operator: str
    joiner: Expression | None
    returns: object
    fields: dict[str, Column]
    where: str | None
    mapped: bool = False
    """True if the joiner also takes the mapped key, with which a global table was asked."""

    @staticmethod
    def of(
        kind: JoinKind,
        joiner: Expression | None,
        options: dict[str, Any],
        fields: dict[str, Column],
        operator: str | None = None,
    ) -> tuple[JoinCall, dict[str, Any]]:
        """The call (of the ``operator``, or what a join of the ``kind`` is called), and its
        options: one that is a Column is a field of that name."""
        operator, where = operator or _OPERATORS[kind], user_line()
        fields = {name: one for name, one in options.items() if isinstance(one, Column)} | fields
        options = {name: None if name in fields else one for name, one in options.items()}
        if fields and joiner is not None:
            raise TopologyError(
                f"{operator} takes one joiner or field=Column arguments, not both", where=where
            )
        call = JoinCall(
            operator=operator,
            joiner=joiner,
            returns=options.pop("returns"),
            fields=fields,
            where=where,
        )
        return call, options

    def check_sides(self, left: Stream, right: Stream) -> None:
        """TopologyError unless both are of one builder, and equal keys are equal bytes."""
        if right.graph is not left.graph:
            raise TopologyError(
                f"{self.operator} takes a stream or a table of the same StreamsBuilder",
                where=self.where,
            )
        mine, its = left.edge.type.key, right.edge.type.key
        if not same_type(mine, its):
            raise TopologyError(
                f"{self.operator} matches by key, and the keys are {type_text(mine)} and "
                f"{type_text(its)}; give the left one the other's with "
                f"select_key(F.col('key').cast({type_text(its)!r}))",
                where=self.where,
            )
        if not write_alike(left.edge.key_serde, right.edge.key_serde):
            raise TopologyError(
                f"{self.operator} matches by key, and the keys are written as "
                f"{left.edge.key_serde!r} and {right.edge.key_serde!r}: equal keys lie in "
                f"different partitions; write one side anew with .repartition(name='a-name', "
                f"key={right.edge.key_serde!r})",
                where=self.where,
                code="EF-COPARTITION",
            )

    def edge(self, left: Stream, right: Stream) -> Edge:
        """Of the joined records, before the joiner."""
        value = joined_type(left.edge.type.value, right.edge.type.value)
        return Edge(EdgeType(left.edge.type.key, value), left.edge.key_serde, default_serde(value))

    def made(self, joined: Stream, *, table: bool) -> Stream:
        """What the joiner makes of the joined records; ``table``: deletions pass it."""
        edge = joined.edge
        joiner = struct_of(self.fields, self.operator, self.where) if self.fields else self.joiner
        if joiner is None:
            return joined
        name, inputs = f"{joined.node}-joiner", (joined.node,)
        if is_column(joiner, self.operator, self.where):
            value = (
                unless_deleted(joiner, edge, self.where)
                if table
                else analyse(joiner, edge.type, self.where)
            )
            made = edge.with_types(value=value.type)
            projected = ProjectNode(
                name=name,
                inputs=inputs,
                out=made.type,
                where=self.where,
                label=JOINER,
                value=value,
            )
            return joined.behind(joined.graph.add(projected), made)
        made = edge.with_types(
            value=result_type(self.returns, joiner, self.operator, self.where)
        ).with_serdes(value=result_serde(self.returns))
        called = self._function(joiner)
        called = TableMapper(called) if table else called
        function = FunctionNode(name, inputs, made.type, self.where, JOINER, "map_values", called)
        return joined.behind(joined.graph.add(function), made)

    def _function(self, joiner: Callable[..., Any]) -> Callable[..., Any]:
        """The joiner as a function of (key, joined value)."""
        if self.mapped:
            check_parameters(
                joiner, ("key", "mapped_key", "left", "right"), self.operator, self.where
            )
            return OfMappedSides(joiner)
        keyed = required_parameters(joiner) == 3
        names = ("key", "left", "right") if keyed else ("left", "right")
        check_parameters(joiner, names, self.operator, self.where)
        return OfSides(joiner, keyed)


def in_windows_of(wanted: Edge, other: Edge) -> Column | None:
    """The key of ``other`` with the windows of ``wanted``, of which both have the starts alone in
    their bytes; None where they are the same already."""
    mine, its = wanted.key_serde, other.key_serde
    return None if mine is None or mine == its else _with_ends(F.col("key"), mine)


def _with_ends(key: Column, serde: Any) -> Column | None:
    """``key`` with the ends that ``serde`` reads; None where windows are not all that is in it."""
    if serde.kind not in ("time_windowed", "session_windowed"):
        return None
    inner = _with_ends(key["key"], serde.inner)
    start, end = key["start"], key["end"]
    if serde.kind == "time_windowed":
        end = start + F.lit(serde.size_ms).cast("bigint")
    elif inner is None:
        return None
    parts = [key["key"] if inner is None else inner, start, end]
    named = [part.alias(name) for part, name in zip(parts, ("key", "start", "end"), strict=True)]
    return F.when(key.isNotNull(), F.struct(*named))
