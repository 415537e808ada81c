"""Joins of two streams as people look for them: as of a time, and in an interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Expression
from everflow.dsl.joins import JoinCall
from everflow.dsl.options.materialized import Materialized
from everflow.dsl.stream_joins import (
    StreamJoins,
    checked_grace,
    copartitioned,
    held_back,
    joined_in_windows,
)
from everflow.errors import TopologyError
from everflow.operators.joins import JoinKind
from everflow.operators.joins.asof import AsOfJoin
from everflow.state.store import StoreSpec
from everflow.topology.graph import StatefulNode
from everflow.windows import Duration, JoinWindows, duration_ms

if TYPE_CHECKING:
    from everflow.dsl.kstream import KStream

_KINDS = {kind.value: kind for kind in JoinKind}


class TimedJoins(StreamJoins):
    """The joins of `KStream` by time."""

    @builder_call
    def join_asof(
        self,
        other: KStream,
        joiner: Expression | None = None,
        *,
        tolerance: Duration | Column | None = None,
        grace: Duration | Column = 0,
        how: str | Column = "inner",
        returns: object = None,
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """Each record with the latest record of ``other`` that has its key and is not later, and
        at most ``tolerance`` earlier; ``how``: ``inner``, or ``left``, which gives records without
        a match, too, with a null ``right``. Without a ``joiner`` the value is
        ``struct<left, right>``.

        With ``grace`` a record waits until stream time, which both sides share, has passed it by so
        much, so that records of ``other`` that come late are seen; without, it meets what has come
        before it. One that is later than that is joined at once.

        ``store``: keeps the other side's records for tolerance and grace; what waits is in
        ``<store>-waiting``, which lies and is logged as ``store`` is. Behind an operator that
        changes the key a side goes through a repartition topic called after ``name``. A result has
        the left record's headers.
        """
        options: dict[str, Any] = {"how": how, "grace": grace, "tolerance": tolerance}
        options |= {"returns": returns, "store": store, "name": name}
        call, options = JoinCall.of(JoinKind.INNER, joiner, options, fields, "join_asof")
        return _as_of(self, _stream(self, other, call), call, **options)

    @builder_call
    def join_interval(
        self,
        other: KStream,
        joiner: Expression | None = None,
        *,
        before: Duration | Column = 0,
        after: Duration | Column = 0,
        grace: Duration | Column = 0,
        how: str | Column = "inner",
        returns: object = None,
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """Each record with each record of ``other`` that has its key and is at most ``before``
        earlier or ``after`` later, both included; ``how``: ``inner``, ``left`` or ``outer``.

        It is the join of two streams in windows, by another name:
        ``join(other, windows=JoinWindows(before, after).grace(grace), store=...)``.
        A result has the headers of the record that made it.
        """
        options: dict[str, Any] = {"how": how, "grace": grace, "before": before, "after": after}
        options |= {"returns": returns, "store": store, "name": name}
        call, options = JoinCall.of(JoinKind.INNER, joiner, options, fields, "join_interval")
        kind = _kind(options.pop("how"), ("inner", "left", "outer"), call)
        bounds = tuple(duration_ms(options.pop(end) or 0) for end in ("before", "after"))
        grace_ms = checked_grace(options.pop("grace") or 0, call.operator, call.where)
        windows = JoinWindows(bounds[0], bounds[1], grace_ms)
        return joined_in_windows(self, _stream(self, other, call), kind, call, windows, **options)


def _stream(left: StreamJoins, other: object, call: JoinCall) -> StreamJoins:
    if isinstance(other, StreamJoins):
        return other
    cure = (
        "a table is looked up as of each record's time by stream.join(table), where "
        "history= keeps what it was"
        if isinstance(other, left.graph.faces.table)
        else "give it what builder.stream(...) returned"
    )
    raise TopologyError(
        f"{call.operator} takes a stream, found {other!r}; {cure}", where=call.where
    )


def _kind(how: object, known: tuple[str, ...], call: JoinCall) -> JoinKind:
    if how is None:  # the name is that of a field
        return JoinKind.INNER
    if how not in known:
        raise TopologyError(
            f"{call.operator}: how= is {' or '.join(map(repr, known))}, found {how!r}",
            where=call.where,
        )
    return _KINDS[str(how)]


def _as_of(
    left: StreamJoins,
    right: StreamJoins,
    call: JoinCall,
    how: object,
    grace: Duration | None,
    store: object,
    name: str | None,
    tolerance: Duration | None,
) -> KStream:
    kind = _kind(how, ("inner", "left"), call)
    graph, where = left.graph, call.where
    grace_ms = checked_grace(grace or 0, call.operator, where)
    tolerance_ms = _tolerance(tolerance, call)
    call.check_sides(left, right)
    claimed = graph.claim_store(store, call.operator, where)
    lefts = copartitioned(left, name, call, "-left")
    rights = copartitioned(right, name, call, "-right")
    key_serde, value_serde = rights.edge.serdes(call.operator, where)
    kept = StoreSpec(
        name=claimed,
        kind="window",
        key_serde=key_serde,
        value_serde=value_serde,
        # A record is there for as long as stream time is not beyond, not only below.
        retention_ms=tolerance_ms + grace_ms + 1,
        where=where,
    )
    held = None
    if grace_ms:
        beside = graph.claim_beside(f"{claimed}-waiting", claimed, call.operator, where)
        held = held_back(lefts, call, grace_ms, beside)
    edge = call.edge(lefts, rights)
    operator = AsOfJoin(
        kind=kind,
        right=kept,
        type=rights.edge.type.value,
        tolerance_ms=tolerance_ms,
        held=held,
        left_first=graph.hands_on_first(lefts.node, rights.node),
    )
    node = StatefulNode(
        graph.node_name(name, "KSTREAM-ASOFJOIN-", where),
        (lefts.node, rights.node),
        edge.type,
        where,
        "JOIN",
        operator,
        (kept,) if held is None else (kept, held.store),
    )
    made, edge = call.made(graph, graph.add(node), edge, table=False)
    return graph.faces.stream(graph, made, edge)


def _tolerance(tolerance: Any, call: JoinCall) -> int:
    """In ms; TopologyError for a negative one, or none."""
    if tolerance is None:
        raise TopologyError(
            f"{call.operator} keeps the other side's records for as long as they can be met; say "
            f"how much earlier a match may be: {call.operator}(..., tolerance='5 minutes')",
            where=call.where,
        )
    tolerance_ms = duration_ms(tolerance)
    if tolerance_ms < 0:
        raise TopologyError(
            f"{call.operator}: a tolerance may not be negative, found {tolerance_ms} ms",
            where=call.where,
        )
    return tolerance_ms
