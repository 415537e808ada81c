"""`KGroupedStream` and its windowed forms: ``count``, ``reduce``, ``aggregate``.

An aggregation with built-ins is lowered to a projection of its inputs (in Catalyst) and a
vectorised operator; one with Python functions calls them record by record. Results are tables;
windowed ones have the key ``struct<key, start, end>`` (ms). All calls belong to the thread that
builds the topology; TopologyError, with the user's line and the cure, for what cannot work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from everflow.dsl.aggregation import Aggregation, Windows
from everflow.dsl.builder_call import builder_call
from everflow.dsl.cogrouped import CogroupedKStream
from everflow.dsl.expressions import Edge
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.time_to_live import checked_ttl
from everflow.dsl.kstream import KStream
from everflow.dsl.ktable import KTable
from everflow.dsl.options.materialized import Materialized
from everflow.dsl.suppressed import EmitStrategy
from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.location import user_line
from everflow.operators import agg
from everflow.operators.agg import Aggregator
from everflow.serdes import Serde
from everflow.windows import (
    CountWindows,
    Duration,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # for the type checker only


class _Groups(Telling):
    """What groups have in common, whole, in windows and in sessions."""

    _group: KGroupedStream
    _windows: Windows | None = None
    _emit = EmitStrategy()

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""
        return self._group.stream.graph

    @builder_call
    def count(
        self,
        *,
        store: str | Materialized | None = None,
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> KTable:
        """Number of records per key (and window or session), ``bigint``. Records with a null key
        are skipped; those with a null value where there are no windows, or sliding ones. ``ttl``:
        as in `aggregate`. A result has the headers of the record that made it."""
        aggregation = self._aggregation("count", store, name, user_line(), ttl)
        return aggregation.built_in({"count": agg.count()}, bare=True)

    @builder_call
    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        *,
        store: str | Materialized | None = None,
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> KTable:
        """``reducer(aggregate, value)`` over the values of each key (and window or session); the
        first value is taken as it is, None deletes. Sessions that merge are reduced, too:
        ``reducer(earlier, later)``. ``ttl``: as in `aggregate`.
        A result has the headers of the record that made it."""
        return self._aggregation("reduce", store, name, user_line(), ttl).reduce(reducer)

    def _aggregation(
        self,
        operator: str,
        store: str | Materialized | None,
        name: str | None,
        where: str | None,
        ttl: object = None,
    ) -> Aggregation:
        ttl_ms = None if ttl is None else checked_ttl(ttl, operator, where)
        if ttl_ms is not None and self._windows is not None:
            raise TopologyError(
                f"{operator}: windows and sessions end by themselves, so they take no ttl=; "
                "leave it out, or leave windowed_by(...) out",
                where=where,
            )
        return Aggregation(
            self._group,
            self._windows,
            operator,
            store,
            name,
            where,
            emit=self._emit,
            ttl_ms=ttl_ms,
        )

    @builder_call
    def aggregate(
        self,
        *,
        store: str | Materialized | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        aggregator: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        ttl: Duration | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """Built-ins, ``aggregate(store="s", n=agg.count(), mean=agg.avg("value.delay"))``: the
        value is a struct of the names; or Python functions, ``aggregate(initializer=...,
        aggregator=..., store="s", returns=type or value=serde)``, where ``aggregator`` gets (key,
        value, aggregate) or (value, aggregate) and returns the next aggregate (None deletes).

        Nulls are treated as by ``count``; the key of a windowed result is a `Windowed`. A field may
        be called like an option: it is told by being an aggregate. ``ttl``: without windows, how
        long (stream time) a key's aggregate stays behind its latest record; then it is deleted, the
        table gets a tombstone, and the key's next record begins anew.
        A result has the headers of the record that made it.
        """
        options: dict[str, Any] = {
            "store": store,
            "initializer": initializer,
            "aggregator": aggregator,
        }
        options |= {"returns": returns, "value": value, "name": name, "ttl": ttl}
        return _aggregate(self, options, aggregators, user_line())


class KGroupedStream(_Groups):
    """Records grouped by key. ``name`` is that of the repartition topic, used where the key was
    changed; several aggregations of one grouped stream share the topic."""

    def __init__(self, stream: KStream, name: str | None) -> None:
        self._group, self._stream, self._name = self, stream, name

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | CountWindows
    ) -> TimeWindowedKStream: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream: ...

    @builder_call
    def windowed_by(self, windows: Windows) -> TimeWindowedKStream | SessionWindowedKStream:
        """The same groups, cut into time windows, sliding windows, count windows or sessions."""
        if isinstance(windows, SlidingWindows) and windows.retention_ms == 0:
            raise TopologyError(  # as with sessions below
                "sliding windows of a difference of zero need a grace above zero",
                where=user_line(),
            )
        if isinstance(windows, TimeWindows | SlidingWindows | CountWindows):
            return TimeWindowedKStream(self, windows)
        if isinstance(windows, SessionWindows):
            if (
                windows.retention_ms == 0
            ):  # its store would show nothing: every record would be a session of its own
                raise TopologyError(
                    "sessions with a gap of zero need a grace above zero", where=user_line()
                )
            return SessionWindowedKStream(self, windows)
        raise TopologyError(
            "windowed_by takes TimeWindows, SlidingWindows, CountWindows or SessionWindows, found "
            f"{windows!r}; write TimeWindows.of_size('1 hour').grace('5 minutes'), "
            "SlidingWindows.of_time_difference('10 minutes'), CountWindows.of_size(100) or "
            "SessionWindows.of_inactivity_gap('30 minutes')",
            where=user_line(),
        )

    @builder_call
    def cogroup(self, aggregator: Callable[..., Any]) -> CogroupedKStream:
        """The first of several grouped streams that are aggregated into one table:
        ``orders.group_by_key().cogroup(add_order).cogroup(payments.group_by_key(),
        add_payment).aggregate(dict, store="accounts", returns=...)``. ``aggregator`` gets (key,
        value, aggregate) or (value, aggregate)."""
        return CogroupedKStream(((self, aggregator),))

    def grouped(self, operator: str, where: str | None) -> KStream:
        """The stream in which equal keys meet in one task."""
        if not self._stream.key_changed:
            return self._stream
        known: KStream | None = self.graph.regrouped.get(self)
        if known is not None:
            self.graph.burn(3)
            return known
        assert self._name is not None
        made = self._stream.repartitioned(self._name, where, operator)
        self.graph.regrouped[self] = made
        return made

    @property
    def stream(self) -> KStream:
        """The stream that was grouped."""
        return self._stream

    @property
    def edge(self) -> Edge:
        """The stream's."""
        return self._stream.edge


class _WindowedKStream(_Groups):
    def __init__(
        self,
        group: KGroupedStream,
        windows: Windows,
        emit: EmitStrategy | None = None,
    ) -> None:
        self._group, self._windows = group, windows
        self._emit = self._emit if emit is None else emit

    @builder_call
    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """When the windows give results: ``EmitStrategy.on_window_close()`` gives one, the final
        one, in time order; what is not closed yet is kept in the store ``<store>-final`` beside the
        aggregate's own. ``EmitStrategy.every(100)`` and ``every("10 seconds")`` also give early
        ones, kept in ``<store>-early``. A result has the headers of the record that let it out.
        """
        if not isinstance(strategy, EmitStrategy):
            raise TopologyError(
                "emit_strategy takes EmitStrategy.on_window_close(), EmitStrategy.every(100) or "
                f"EmitStrategy.on_window_update(), found {strategy!r}",
                where=user_line(),
            )
        if strategy.early is not None:
            self._check_early(strategy.early.wait_ms is not None)
        assert self._windows is not None
        return type(self)(self._group, self._windows, strategy)

    def _check_early(self, by_time: bool) -> None:
        if isinstance(self._windows, SessionWindows):
            raise TopologyError(
                "EmitStrategy.every is for windows that stay where they are, and a session becomes "
                "another one with each record; write EmitStrategy.on_window_close(), or use "
                "TimeWindows",
                where=user_line(),
            )
        if by_time and isinstance(self._windows, CountWindows):
            raise TopologyError(
                "count windows go by records, not by time; write EmitStrategy.every(10)",
                where=user_line(),
            )


class TimeWindowedKStream(_WindowedKStream):
    """Groups cut into time windows, sliding windows or count windows. In time windows only null
    keys are skipped: a null value reaches the aggregate, and ``count()`` counts it; sliding windows
    skip null values, too: both as in Kafka Streams. Late records, by the operator's own stream time
    and the window's grace, are dropped. Count windows take what time windows take, and drop nothing
    for being late. A result has the headers of the record that made it."""


class SessionWindowedKStream(_WindowedKStream):
    """Groups cut into sessions, which grow and merge with the records (KIP-94). Nulls and late
    records are treated as in `TimeWindowedKStream`. Where a session gets another window, the old
    one gets a tombstone; a result's time is the end of its session."""

    @builder_call
    def aggregate(
        self,
        *,
        store: str | Materialized | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        aggregator: Callable[..., Any] | Aggregator | None = None,
        merger: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        ttl: Duration | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """As `KGroupedStream.aggregate`, per session. With functions also ``merger``, called with
        (key, aggregate, aggregate) or (aggregate, aggregate), the earlier session's first, where
        two become one. A result has the headers of the record that made it."""
        options: dict[str, Any] = {
            "store": store,
            "initializer": initializer,
            "aggregator": aggregator,
            "merger": merger,
        }
        options |= {"returns": returns, "value": value, "name": name, "ttl": ttl}
        return _aggregate(self, options, aggregators, user_line())


def _aggregate(
    groups: _Groups,
    options: dict[str, Any],
    aggregators: dict[str, Aggregator],
    where: str | None,
) -> KTable:
    fields = {
        name: given for name, given in options.items() if isinstance(given, Aggregator)
    } | aggregators
    options = {name: None if name in fields else given for name, given in options.items()}
    if callable(fields.get("merger")):
        raise TopologyError(
            "merger= is for sessions: only they merge; leave it out here", where=where
        )
    if options.get("merger") is not None and options["aggregator"] is None:
        raise TopologyError(
            (
                "merger= goes with initializer= and aggregator= functions; built-ins merge by "
                "themselves"
            ),
            where=where,
        )
    uses_functions = options["initializer"] is not None or options["aggregator"] is not None
    if uses_functions == bool(fields):
        raise TopologyError(
            (
                "aggregate takes either built-ins, e.g. n=agg.count(), or initializer= and "
                "aggregator= "
                "functions"
            ),
            where=where,
        )
    for name, given in fields.items():
        if not isinstance(given, Aggregator):
            raise TopologyError(
                (
                    f"aggregate: {name}={given!r} is not an aggregate; write for example "
                    f"{name}=agg.sum('value.amount')"
                ),
                where=where,
            )
    aggregation = groups._aggregation(
        "aggregate", options["store"], options["name"], where, options.get("ttl")
    )
    if fields:
        return aggregation.built_in(fields, bare=False)
    return aggregation.functions(options)
