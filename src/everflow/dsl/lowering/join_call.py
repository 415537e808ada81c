"""What joins of streams and tables share: the checks, the joiner, the nodes (design note 020).

A join gives ``struct<left, right>``. A joiner makes a value of it: a Column over ``left`` and
``right`` (beside ``key``, ``value``, ``timestamp`` ...), ``field=Column`` arguments (a struct), or
a Python function of (left, right) or (key, left, right) with ``returns=``. A side without a match
is null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.expressions import (
    Edge,
    Expression,
    ForeignKeyOf,
    OfMappedSides,
    OfSides,
    TableMapper,
    check_parameters,
    default_serde,
    is_column,
    key_value_function,
    required_parameters,
    struct_of,
    unless_deleted,
)
from everflow.dsl.lowering.stream import Stream
from everflow.errors import TopologyError
from everflow.operators.joins import JoinKind, joined_type
from everflow.operators.joins.table_table import selected_type
from everflow.serdes.arrow_types import type_text
from everflow.spark.expressions import analyse
from everflow.topology.graph import (
    JOINER,
    PREPARE,
    EdgeType,
    same_type,
    write_alike,
)

_OPERATORS = {JoinKind.INNER: "join", JoinKind.LEFT: "left_join", JoinKind.OUTER: "outer_join"}


@dataclass(frozen=True, kw_only=True)
class JoinCall:
    """A call of a join on ``left``: its name, the joiner, the store and the node's name, as the
    user gave them."""

    left: Stream
    kind: JoinKind
    operator: str
    joiner: Expression | None
    returns: object
    fields: dict[str, Column]
    store: object
    name: str | None
    mapped: bool = False
    """True if the joiner also takes the mapped key, with which a global table was asked."""

    @staticmethod
    def of(
        left: Stream,
        kind: JoinKind,
        joiner: Expression | None,
        options: dict[str, Any],
        fields: dict[str, Column],
        operator: str | None = None,
    ) -> tuple[JoinCall, dict[str, Any]]:
        """The call (of the ``operator``, or what a join of the ``kind`` is called), and its other
        options. An option that is a Column is a field of that name."""
        operator = operator or _OPERATORS[kind]
        fields = {name: one for name, one in options.items() if isinstance(one, Column)} | fields
        options = {name: None if name in fields else one for name, one in options.items()}
        if fields and joiner is not None:
            raise TopologyError(f"{operator} takes one joiner or field=Column arguments, not both")
        call = JoinCall(
            left=left,
            kind=kind,
            operator=operator,
            joiner=joiner,
            returns=options.pop("returns"),
            fields=fields,
            store=options.pop("store"),
            name=options.pop("name"),
        )
        return call, options

    def check_builder(self, right: Stream) -> None:
        if right.graph is not self.left.graph:
            raise TopologyError(
                f"{self.operator} takes a stream or a table of the same StreamsBuilder"
            )

    def check_sides(self, right: Stream) -> None:
        """TopologyError unless both are of one builder, and equal keys are equal bytes."""
        self.check_builder(right)
        left = self.left
        mine, its = left.edge.type.key, right.edge.type.key
        if not same_type(mine, its):
            raise TopologyError(
                f"{self.operator} matches by key, and the keys are {type_text(mine)} and "
                f"{type_text(its)}; give the left one the other's with "
                f"select_key(F.col('key').cast({type_text(its)!r}))"
            )
        if not write_alike(left.edge.key_serde, right.edge.key_serde):
            raise TopologyError(
                f"{self.operator} matches by key, and the keys are written as "
                f"{left.edge.key_serde!r} and {right.edge.key_serde!r}: equal keys lie in "
                f"different partitions; write one side anew with .repartition(name='a-name', "
                f"key={right.edge.key_serde!r})",
                code="EF-COPARTITION",
            )

    def copartitioned(self, side: Stream, suffix: str) -> Stream:
        """The side's stream, behind a repartition topic if its key may have changed."""
        if not side.key_changed:
            return side
        checked = side.graph.check_repartition_name(self.name, self.operator)
        return side.repartitioned(f"{checked}{suffix}", self.operator)

    def edge(self, left: Stream, right: Stream) -> Edge:
        """Of the joined records, before the joiner."""
        value = joined_type(left.edge.type.value, right.edge.type.value)
        return Edge(EdgeType(left.edge.type.key, value), left.edge.key_serde, default_serde(value))

    def made(self, joined: Stream, *, table: bool = False) -> Stream:
        """What the joiner makes of the joined records; ``table``: deletions pass it."""
        edge = joined.edge
        joiner = struct_of(self.fields, self.operator) if self.fields else self.joiner
        if joiner is None:
            return joined
        name = f"{joined.node}-joiner"
        if is_column(joiner, self.operator):
            value = unless_deleted(joiner, edge) if table else analyse(joiner, edge.type)
            return joined.projected(name, JOINER, edge.with_types(value=value.type), value=value)
        made = edge.returning(self.operator, joiner, value=self.returns)
        called = self._function(joiner)
        called = TableMapper(called) if table else called
        return joined.called(name, JOINER, "map_values", called, made)

    def _function(self, joiner: Callable[..., Any]) -> Callable[..., Any]:
        """The joiner as a function of (key, joined value)."""
        if self.mapped:
            check_parameters(joiner, ("key", "mapped_key", "left", "right"), self.operator)
            return OfMappedSides(joiner)
        keyed = required_parameters(joiner) == 3
        names = ("key", "left", "right") if keyed else ("left", "right")
        check_parameters(joiner, names, self.operator)
        return OfSides(joiner, keyed)


def with_foreign_key(
    left: Stream, right: Stream, on: Expression | None, operator: str, name: str
) -> Stream:
    """The records as `selected_type`, with the key of ``right`` that ``on`` makes of them; for a
    null value none is made. ``name``: of the node."""
    edge, wanted = left.edge, right.edge.type.key
    if on is None:
        raise TopologyError(
            f"{operator} needs on=, the key to look up: on=F.col('value.a_field'), or "
            f"on=F.col('key') for the records' own"
        )
    out = Edge.inside(edge.type.key, selected_type(wanted, edge.type.value))
    if not is_column(on, f"{operator}: on"):
        selected = TableMapper(ForeignKeyOf(key_value_function(on, f"{operator}: on")))
        return left.called(name, PREPARE, "map_values", selected, out)
    found = unless_deleted(on, edge).type
    if not same_type(found, wanted):
        raise TopologyError(
            f"{operator}: on= is {type_text(found)}, and the other table's keys are "
            f"{type_text(wanted)}; write on=(...).cast({type_text(wanted)!r})"
        )
    both = F.struct(on.alias("fk"), F.col("value").alias("value"))
    value = replace(unless_deleted(both, edge), type=out.type.value)
    return left.projected(name, PREPARE, out, value=value)


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
