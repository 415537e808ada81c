"""`KStream`, `KTable`, their groups and branches: the classes that users write programs with.

Each method checks its own arguments and wraps what `everflow.dsl.lowering` appends.

Every operator that takes an expression takes a pyspark Column over ``key, value, timestamp (ms),
topic, partition, offset, headers`` (compiled by Spark) or a Python function (called record by
record). A Python function with one required parameter gets the value, with two the key and the
value; structs arrive as dicts, windowed keys as `Windowed`. Functions that make a new value need
``returns=``: DDL text, an Arrow type, a StructType or a serde. Columns and functions of tables are
not called for deletions: a null deletes, and is passed on.

Streams are immutable descriptions; all calls belong to the thread that builds the topology and
raise TopologyError, with the user's line and the cure, for whatever cannot work.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pyspark.sql import Column, DataFrame

from everflow.dsl.expressions import (
    Expression,
    calls_from_options,
    check_name,
    checked_column,
    column_named,
    fields_from_options,
    in_expressions,
)
from everflow.dsl.graph_builder import Stream, builder_call
from everflow.dsl.key_cures import key_of_field, key_of_key
from everflow.dsl.lowering import joins, sinks, stateless
from everflow.dsl.lowering.aggregation import (
    Aggregation,
    CogroupedStreams,
    GroupedStream,
    GroupedTable,
    Member,
    Windows,
    aggregate_fields,
    check_aggregates,
    grouped_table,
)
from everflow.dsl.lowering.partitioning import assumed
from everflow.dsl.lowering.processors import ProcessorCall, Supplier, Transformer, deduplicated
from everflow.dsl.lowering.tables import (
    TableCall,
    checked_ttl,
    enveloped,
    store_of,
    table_of,
    whole_table,
)
from everflow.dsl.lowering.tables import suppressed as suppressed_stream
from everflow.dsl.stores import EmitStrategy, Store, Suppressed
from everflow.errors import TopologyError, UnknownBranchError, UnknownNameError, naming_the_line
from everflow.foreign_names import Telling, entry_of
from everflow.operators import agg
from everflow.operators.agg import Aggregator
from everflow.operators.joins import JoinKind
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.state.store import StoreSpec
from everflow.topology.graph import same_type, write_alike
from everflow.windows import (
    CountWindows,
    Duration,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
)

UPSERTS, CHANGES = "upserts", "changes"
"""How a table is written to a topic."""


class _StreamOrTable(Telling):
    """Its columns are not attributes, as a DataFrame's are: an error says how they are named."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.graph, self.node, self.edge = stream.graph, stream.node, stream.edge

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.node}: {type_text(self.edge.type.key)} -> "
            f"{type_text(self.edge.type.value)})"
        )

    if not TYPE_CHECKING:
        __iter__ = None  # else Python would ask for [0]

        @naming_the_line
        def __getattr__(self, name: str) -> Any:
            owner, edge = type(self).__name__, vars(self).get("edge")
            if (
                edge is None
                or entry_of(owner, name) is not None
                or (column := column_named(name, edge.type)) is None
            ):
                return super().__getattr__(name)
            raise UnknownNameError(f"{owner} has no {name}: {in_expressions(column)}", name=name)

        @naming_the_line
        def __getitem__(self, name: object) -> Any:
            owner = type(self).__name__
            if isinstance(name, Column):
                cure = "records are chosen by filter(condition)"
            else:
                cure = in_expressions(
                    (column_named(name, self.edge.type) if isinstance(name, str) else None)
                    or "value"
                )
            raise TopologyError(f"{owner} has no [...]: {cure}")


class KStream(_StreamOrTable):
    """A stream of records ``(key, value)``.

    ``edge``: the types and serdes of key and value. ``key_changed``: an earlier operator may have
    changed the key, so a grouping has to repartition first.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.key_changed = stream.key_changed

    # --- one record in, at most one out -----------------------------------------------------------

    @builder_call
    def filter(
        self,
        predicate: Expression,
        *,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        name: str | None = None,
    ) -> KStream:
        """Keeps the records for which ``predicate`` is true; NULL is not true. Keeps headers.
        Calls: as in `map_values`."""
        return KStream(
            stateless.filtered(
                self._stream,
                "filter",
                predicate,
                name,
                negate=False,
                calls=(concurrency, timeout, retries),
            )
        )

    @builder_call
    def filter_not(
        self,
        predicate: Expression,
        *,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        name: str | None = None,
    ) -> KStream:
        """Keeps the records that ``filter`` drops, also with a NULL predicate. Keeps headers.
        Calls: as in `map_values`."""
        return KStream(
            stateless.filtered(
                self._stream,
                "filter_not",
                predicate,
                name,
                negate=True,
                calls=(concurrency, timeout, retries),
            )
        )

    @builder_call
    def map(
        self,
        mapper: Expression | None = None,
        *,
        key: Column | None = None,
        value: Column | None = None,
        returns: tuple[object, object] | None = None,
        name: str | None = None,
    ) -> KStream:
        """Computes a new key and value: ``map(key=Column, value=Column)``, a Column ``struct<key,
        value>``, or a function that returns ``(key, value)`` with ``returns=(key type, value
        type)``. A later grouping repartitions the records. Keeps headers."""
        for part, column in (("key", key), ("value", value)):
            checked_column(column, part, "map")
        return KStream(stateless.mapped(self._stream, mapper, (key, value), returns, name))

    @builder_call
    def map_values(
        self,
        mapper: Expression | None = None,
        *,
        returns: object = None,
        concurrency: int | Column | None = None,
        timeout: Duration | Column | None = None,
        retries: int | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """Computes a new value under the same key, from a Column, ``field=Column`` arguments (a
        struct), or a function with ``returns=``.

        ``concurrency``: an ``async def`` or a plain function, which waits for a service, is called
        for up to so many records of a micro-batch at a time; results keep the order of the records.
        A plain function is then called by several threads at once. A call that takes longer than
        ``timeout`` (30 s) fails with TimeoutError; what may pass, as in `RetryOutages`, is tried
        again ``retries`` times (0), after 0.1 s, 0.2 s, ... 5 s. After a failure of the batch
        a call may be made again, also under exactly-once.

        An argument such as ``name`` or ``returns`` that is a Column is a field; otherwise it is the
        option. Keeps headers.
        """
        node_name, returns, fields = fields_from_options(name, returns, fields)
        calls, fields = calls_from_options((concurrency, timeout, retries), fields)
        return KStream(
            stateless.values_mapped(
                self._stream,
                mapper,
                fields,
                returns,
                node_name,
                calls,
            )
        )

    @builder_call
    def select_key(
        self, mapper: Expression, *, returns: object = None, name: str | None = None
    ) -> KStream:
        """Computes a new key. A later grouping repartitions the records, even if keys are equal to
        the old ones. Keeps headers."""
        return KStream(stateless.keyed(self._stream, "select_key", mapper, returns, name))

    @builder_call
    def peek(
        self,
        action: Callable[..., object],
        *,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        name: str | None = None,
    ) -> KStream:
        """Calls ``action`` for every record and passes the record on. After a failure ``action``
        may be called again for a record, also under exactly-once. Keeps headers. Calls: as in
        `map_values`."""
        calls = (concurrency, timeout, retries)
        return KStream(
            stateless.called_for_effect(self._stream, "PEEK", "peek", action, name, calls)
        )

    @builder_call
    def for_each(
        self,
        action: Callable[..., object],
        *,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        name: str | None = None,
    ) -> None:
        """Calls ``action`` for every record; returns no stream. After a failure ``action`` may be
        called again for a record, also under exactly-once. Calls: as in `map_values`."""
        calls = (concurrency, timeout, retries)
        stateless.called_for_effect(self._stream, "FOREACH", "for_each", action, name, calls)

    # --- one record in, any number out ------------------------------------------------------------

    @builder_call
    def flat_map(
        self,
        mapper: Expression,
        *,
        returns: tuple[object, object] | None = None,
        name: str | None = None,
    ) -> KStream:
        """Emits any number of records per record, from a Column ``array<struct<key, value>>``, or a
        function that returns an iterable of ``(key, value)`` with ``returns=(key type, value
        type)``. A null or empty result emits no record. Keeps headers."""
        return KStream(stateless.flat_mapped(self._stream, mapper, returns, name))

    @builder_call
    def flat_map_values(
        self,
        mapper: Expression,
        *,
        returns: object = None,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        name: str | None = None,
    ) -> KStream:
        """Emits any number of values per record under the same key, from an array Column, or a
        function that returns an iterable of values with ``returns=`` (the type of one value). Keeps
        headers. Calls: as in `map_values`; an async generator gives its values."""
        calls = (concurrency, timeout, retries)
        return KStream(stateless.values_flat_mapped(self._stream, mapper, returns, name, calls))

    # --- several streams --------------------------------------------------------------------------

    @builder_call
    def merge(self, *others: KStream, name: str | None = None) -> KStream:
        """Emits the records of all streams, which must have equal types, as one stream, in the
        processing order of the task. A stream that is merged with itself is emitted once, as in
        Kafka Streams. Keeps headers."""
        if not others:
            raise TopologyError("merge needs at least one other stream")
        for other in others:
            if not isinstance(other, KStream):
                raise TopologyError(
                    f"merge takes streams, found {other!r}; a table gives one with to_stream()"
                )
        return KStream(stateless.merged((self._stream, *(s._stream for s in others)), name))

    @builder_call
    def split(self, *, name: str | None = None) -> BranchedKStream:
        """Starts to split the stream: call ``.branch(predicate, name=...)`` for each branch, then
        ``.default_branch(name=...)`` or ``.no_default_branch()``, which return a dict of the
        branches. A record is emitted to the first branch whose predicate is true. Keeps headers."""
        return BranchedKStream(self._stream, name)

    @builder_call
    def branch(
        self,
        default: str | None = None,
        **predicates: Expression,
    ) -> dict[str, KStream]:
        """Splits the stream as `split` does, in one call that returns the dict of branches:
        ``stream.branch(big=F.col("value.n") > 9, default="rest")["big"]``. Keeps headers."""
        branched = BranchedKStream(self._stream, None)
        for name, condition in predicates.items():
            branched.branch(condition, name=name)
        return (
            branched.no_default_branch()
            if default is None
            else branched.default_branch(name=default)
        )

    # --- joins ------------------------------------------------------------------------------------

    @builder_call
    def join(
        self,
        other: KStream | KTable | GlobalKTable,
        joiner: Expression | None = None,
        *,
        on: Expression | None = None,
        windows: JoinWindows | Column | None = None,
        grace: Duration | Column | None = None,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """Emits each record with each of its matches. ``other`` is a table (matched by the record's
        key), a global table (matched by the key ``on``: a Column, or a function of (value) or (key,
        value)), or another stream (matched with all its records of the same key within ``windows``;
        needs ``store=``, the prefix of the names of the join's stores). The result is
        ``struct<left, right>``, or what ``joiner`` computes: a Column over ``left`` and ``right``,
        ``field=Column`` arguments, or a function of (left, right) or (key, left, right) with
        ``returns=``.

        A versioned table is looked up as of the record's time. With ``grace`` (KIP-923), a record
        waits in ``store=`` until this stream's time reaches the record's time plus ``grace``, so
        that late updates of the table are seen. A record that arrives later than that is joined at
        once.

        If the key was changed, the records pass through a repartition topic named after ``name``.
        Records without a match, a value or a key are dropped. A result has the headers of the
        record that caused it.
        """
        return self._joined(JoinKind.INNER, locals())

    @builder_call
    def left_join(
        self,
        other: KStream | KTable | GlobalKTable,
        joiner: Expression | None = None,
        *,
        on: Expression | None = None,
        windows: JoinWindows | Column | None = None,
        grace: Duration | Column | None = None,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """As `join`, but a record without a match or key is emitted with a null ``right``. In a
        join of two streams, an unmatched record is emitted when its window and grace are over. A
        result has the headers of the record that triggered it (with a table: its own)."""
        return self._joined(JoinKind.LEFT, locals())

    @builder_call
    def outer_join(
        self,
        other: KStream,
        joiner: Expression | None = None,
        *,
        windows: JoinWindows | Column | None = None,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """As `left_join` of two streams, but unmatched records of both sides are emitted. A result
        has the headers of the record that triggered it."""
        return self._joined(JoinKind.OUTER, locals())

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
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """Emits each record with the latest record of ``other`` that has the same key, is not later
        than the record, and is at most ``tolerance`` (required) earlier. With ``how="left"``
        (default: ``"inner"``) a record without a match is emitted with a null ``right``. The result
        is ``struct<left, right>``, or what ``joiner`` computes, as in `join`.

        With ``grace`` a record waits until stream time, which both sides share, reaches the
        record's time plus ``grace``, so that late records of ``other`` are seen; a record that
        arrives later than that is joined at once. Without ``grace`` a record matches the records of
        ``other`` that were processed before it.

        ``store``: keeps the records of ``other`` for tolerance and grace. Waiting records are in
        the store ``<store>-waiting``, which has the same options. If the key was changed, the
        records of that side pass through a repartition topic named after ``name``. A result has the
        left record's headers.
        """
        call, options = joins.JoinCall.of(
            self._stream,
            JoinKind.INNER,
            locals(),
            "join_asof",
        )
        return KStream(joins.joined_as_of(call, _stream_of(other, call), **options))

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
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """Emits each record with each record of ``other`` that has the same key and is at most
        ``before`` earlier or ``after`` later, both included. ``how``: ``"inner"``, ``"left"`` or
        ``"outer"``.

        It is another name for the join of two streams in windows: ``join(other,
        windows=JoinWindows(before, after).grace(grace), store=...)``. Headers: as in `join`.
        """
        call, options = joins.JoinCall.of(
            self._stream,
            JoinKind.INNER,
            locals(),
            "join_interval",
        )
        return KStream(joins.joined_in_interval(call, _stream_of(other, call), **options))

    @builder_call
    def lookup_join(
        self,
        table: KTable | GlobalKTable,
        joiner: Expression | None = None,
        *,
        on: Expression | None = None,
        grace: Duration | Column | None = None,
        timeout: Duration | Column | None = None,
        on_timeout: str | Column = "emit",
        most_per_key: int | Column | None = None,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """As `left_join` with a table or a global table (``on=``), but a record without a matching
        row waits in ``store``. It waits until an update of the table adds the row, until this
        stream's time is more than ``grace`` after the record's time, or until it has waited for
        ``timeout`` by the wall clock, also while no records arrive. ``grace`` or ``timeout`` is
        required. When the wait ends without a row, the record is emitted with a null ``right``, or
        dropped with ``on_timeout="drop"``. If more than ``most_per_key`` records of a key wait, the
        wait of the oldest one ends.

        Results have their records' times and headers. Waiting records of one key are emitted in
        order.
        """
        call, options = joins.JoinCall.of(
            self._stream,
            JoinKind.LEFT,
            locals(),
            "lookup_join",
        )
        if not isinstance(table, KTable | GlobalKTable):
            raise TopologyError(f"lookup_join takes a table or a global table, found {table!r}")
        is_global = isinstance(table, GlobalKTable)
        return KStream(joins.looked_up(call, table._stream, is_global, on, **options))

    def _joined(self, kind: JoinKind, arguments: dict[str, Any]) -> KStream:
        call, options = joins.JoinCall.of(self._stream, kind, arguments)
        other, on = arguments["other"], arguments.get("on")
        if isinstance(other, GlobalKTable):
            return KStream(joins.joined_with_global(call, other._stream, on, **options))
        if on is not None:
            raise TopologyError(
                f"{call.operator} matches by the records' keys, and on= is for global tables; "
                f"choose the key first: select_key(...).{call.operator}(..., name='a-name')"
            )
        if isinstance(other, KTable):
            return KStream(joins.joined_with_table(call, other._stream, **options))
        if isinstance(other, KStream):
            return KStream(joins.joined_with_stream(call, other._stream, **options))
        cure = (
            "; make a table of it: builder.global_table_from(dataframe, key=..., store=...)"
            if isinstance(other, DataFrame)
            else ""
        )
        raise TopologyError(f"{call.operator} takes a stream or a table, found {other!r}{cure}")

    # --- processors -------------------------------------------------------------------------------

    @builder_call
    def process(
        self,
        processor: Supplier,
        *,
        returns: tuple[object, object] | None = None,
        stores: Iterable[StoreSpec | str] = (),
        children: Iterable[str] = (),
        name: str | None = None,
    ) -> Any:
        """Passes each record to your processor: a `Processor` class, a function that makes one, or
        a function of (record, context). ``context.forward(record)`` emits results.

        ``returns``: the types of the results' key and value, ``("string", "bigint")``; default:
        those of the stream. A later grouping repartitions the records. ``stores``: stores made by
        `Stores`, or names of existing stores: of another processor or ``builder.add_state_store``
        (the store is then shared), of a table or of a global table (read as of each record). With
        ``children``, the names of streams that ``forward(record, child)`` may choose, the method
        returns a dict of these streams, otherwise one stream. A result has the headers of the
        forwarded record.
        """
        call = ProcessorCall("process", processor, stores, name)
        edge = self.edge
        if returns is not None:
            if not isinstance(returns, tuple) or len(returns) != 2:
                raise TopologyError(
                    "process: a processor forwards keys and values; name both types, e.g. "
                    f"returns=('string', 'double'), found {returns!r}"
                )
            key, value = returns
            edge = edge.returning("process", call.named, key=key, value=value)
        made = call.made(self._stream, edge, tuple(children), keeps_key=False)
        if isinstance(made, Stream):
            return KStream(made)
        return {child: KStream(stream) for child, stream in made.items()}

    @builder_call
    def process_values(
        self,
        processor: Supplier,
        *,
        returns: object = None,
        stores: Iterable[StoreSpec | str] = (),
        name: str | None = None,
    ) -> KStream:
        """As `process`, for processors that keep the key of the record, so no later operator has to
        repartition. ``returns`` is the type of the value. A punctuator cannot forward records,
        because it has no current record. A result has the headers of the forwarded record."""
        call = ProcessorCall("process_values", processor, stores, name)
        edge = self.edge
        if returns is not None:
            edge = edge.returning("process_values", call.named, value=returns)
        made = call.made(self._stream, edge, (), keeps_key=True)
        assert isinstance(made, Stream)
        return KStream(made)

    @builder_call
    def deduplicate(
        self,
        within: Duration,
        *,
        by: Expression | None = None,
        returns: object = None,
        grace: Duration | None = None,
        store: Store | None = None,
        name: str | None = None,
    ) -> KStream:
        """Drops records that repeat another record of the same key (or id, ``by``). The first
        record in processing order is emitted; a further one only if its time differs by more than
        ``within`` from the times of all records of the key that were emitted before. A record more
        than ``grace`` (default: ``within``) behind stream time is dropped as ``late``.

        ``by``: an id instead of the key, as a Column, or a function with ``returns=type``. Records
        of one id must have one key, since tasks do not share their state. A record without an id
        (or key) is emitted. Kafka Streams has no such operator (KIP-655). If the key was changed,
        the records pass through a repartition topic named after ``name`` or ``store``. Keeps
        headers.
        """
        found = deduplicated(self._stream, within, grace, by, returns, store, name)
        return KStream(found)

    # --- keys, groups, tables ---------------------------------------------------------------------

    @builder_call
    def repartition(
        self,
        *,
        name: str | None = None,
        partitions: int | None = None,
        key: Serde | None = None,
        value: Serde | None = None,
        partitioner: Expression | str | None = None,
    ) -> KStream:
        """Sends the records through the internal topic ``<application.id>-<name>-repartition``, by
        default so that records with equal keys reach the same task.

        ``partitions`` sets the number of partitions, ``partitioner`` chooses each record's, as in
        `to`. Records with a null key are dropped. Keeps headers.
        """
        checked = self.graph.check_repartition_name(name, "repartition")
        if partitions is not None and (not isinstance(partitions, int) or partitions < 1):
            raise TopologyError(
                f"repartition: partitions is a number above 0, found {partitions!r}"
            )
        stream = self._stream.with_serdes("repartition", key, value)
        chosen = partitions, stateless.partitioner_of(partitioner, self.edge, "repartition")
        return KStream(stream.repartitioned(checked, "repartition", chosen))

    @builder_call
    def assume_partitioned(
        self,
        *,
        by: str | None = None,
        partitioner: str | Callable[..., int] | None = None,
        name: str | None = None,
    ) -> KStream:
        """The records are in the partitions of their new keys already, so what follows needs no
        repartition topic: KIP-759, ``markAsPartitioned``. Without an earlier change of the key this
        changes nothing.

        ``by``: the field of the key that alone says the partition, with the type of the topics'
        keys: ``assume_partitioned(by='customer')`` of records that are written by customer, and
        grouped by customer and item. ``partitioner``: how the topic's producers choose the
        partition of such a key, as in `StreamsBuilder.stream`; default: as said there, or
        ``murmur2``.

        Each record is checked: a key in the partition of another is a bad record, of which the
        processing exception handler decides; by default the instance stops. Joins and queries look
        for keys where they are. Keeps headers.
        """
        return KStream(assumed(self._stream, by, partitioner, name))

    @builder_call
    def group_by(
        self,
        key: Expression,
        *,
        name: str | None = None,
        returns: object = None,
        key_serde: Serde | None = None,
    ) -> KGroupedStream:
        """Groups the records by a new key, through the repartition topic
        ``<application.id>-<name>-repartition``. Keeps headers."""
        checked = self.graph.check_repartition_name(name, "group_by")
        keyed = stateless.keyed(self._stream, "group_by", key, returns, checked)
        keyed = keyed.with_serdes("group_by", key_serde, None)
        return KGroupedStream(GroupedStream(keyed, checked))

    @builder_call
    def group_by_key(self, *, name: str | None = None) -> KGroupedStream:
        """Groups the records by their key. If the key was changed, the records pass through the
        repartition topic ``<application.id>-<name>-repartition``, and ``name`` is required. Keeps
        headers."""
        if self.key_changed:
            name = self.graph.check_repartition_name(name, "group_by_key")
        return KGroupedStream(GroupedStream(self._stream, name))

    @builder_call
    def to_table(
        self,
        *,
        store: Store | None = None,
        key: Serde | None = None,
        value: Serde | None = None,
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> KTable:
        """Reads the stream as a changelog and keeps the last value of each key. A null value
        deletes the row; records with a null key are dropped. ``store``, ``ttl``: as in
        `StreamsBuilder.table`.

        If the key was changed, the records pass through a repartition topic named after ``name`` or
        ``store``. Keeps headers.
        """
        return KTable(table_of(self._stream, store, key, value, ttl, name))

    # --- what ends a stream -----------------------------------------------------------------------

    @builder_call
    def to(
        self,
        topic: str | Expression,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        partitioner: Expression | str | None = None,
    ) -> None:
        """Writes the records to ``topic``: a name, or a Column or function that returns the topic
        of each record. The topics must exist.

        ``key``, ``value``: serdes; default: those of the stream. ``partitioner``: a hash of the
        key's bytes, ``murmur2`` (the default), ``crc32`` or ``fnv1a`` (see
        `StreamsBuilder.stream`); or a Column, or a function of (topic, key, value, number of
        partitions), that returns each record's partition, several partitions, an empty list (the
        record is dropped) or NULL (the partition of the key). A windowed key is hashed without its
        window by default, so all windows of a key are in one partition. Keeps headers.
        """
        stateless.written(self._stream, topic, (key, value), partitioner, name)

    @builder_call
    def write_stream(
        self,
        format: str | type,  # noqa: A002 - PySpark's word
        *,
        name: str,
        key: str | Iterable[str] | None = None,
        every: Duration | None = None,
        **options: Any,
    ) -> None:
        """Writes the records as rows to another system: one transaction per task and micro-batch.
        The columns are the fields of the value, or one column ``value``.

        ``format``: ``"postgresql"`` (``dsn``, ``table``, ``mode="append" | "upsert" | "scd2"``),
        ``"delta"`` (``path``, ``storage_options``, ``partition_by``: a list of columns),
        ``"iceberg"`` (``table``, ``catalog``, ``properties``), ``"parquet"`` (``path``,
        ``compression``): each row is there once, whatever fails. Or ``"http"`` (``url``,
        ``headers``, ``timeout_s``, in seconds), or a ``DataSource`` class of PySpark whose
        ``streamWriter`` is used, with its options: at least once.

        ``name``: under which the sink keeps which offsets it has; it belongs to the rows for good.
        ``key``: the column that the key becomes, several for a struct's fields; by default the key
        is not written. A field of the value of that name and type is the same column; a row in
        which they differ is a bad record. With ``mode="upsert"`` it is required; a null value
        deletes the key's row. So it is with ``"scd2"``, which keeps a row for each version of a
        key, with ``valid_from``, ``valid_to`` (null: current) and ``is_current``; a null value ends
        the current version.
        ``every``: how often the sink's tasks run while they have less than a whole batch, as
        Spark's ``trigger(processingTime=...)``; by default as soon as there are records. It holds
        for all that the same tasks do: ``repartition`` gives the sink tasks of its own.
        Raises SetupError if a package is missing.
        """
        sinks.written(self._stream, format, name, key, every, options)

    @builder_call
    def for_each_batch(self, action: Callable[..., object], *, name: str | None = None) -> None:
        """Calls ``action(rows)`` or ``action(rows, batch)`` once for each task and micro-batch that
        has rows, before the micro-batch is committed; returns no stream.

        ``rows``: a ``pyarrow.Table`` in processing order, whose columns are named as in
        expressions: ``key`` (or ``key.field``), ``value`` (or ``value.field``), ``timestamp``
        (ms), ``topic``, ``partition``, ``offset`` (-1 if a clock has made the row). If the first
        parameter is annotated ``pandas.DataFrame``, it is one. ``batch``: a `SinkBatch`, with task,
        id and offsets. After a failure rows may come again, in other batches: `SinkBatch.to_write`
        is for functions that need each row once.
        """
        sinks.called_for_batch(self._stream, action, name)

    @builder_call
    def print_table(
        self, title: str | None = None, *, rows: int = 20, name: str | None = None
    ) -> None:
        """Prints records as a table in the terminal or notebook cell where the instance runs: the
        first ``rows`` records of each committed micro-batch, at most ``rows`` per half second, and
        the number of records left out. It writes to no topic and does not delay processing.
        ``title``: the heading; default: the name of the preceding operator."""
        stateless.printed(self._stream, title, rows, name)


def _stream_of(other: object, call: joins.JoinCall) -> Stream:
    if isinstance(other, KStream):
        return other._stream
    cure = (
        "a table is looked up as of each record's time by stream.join(table), where "
        "history= keeps what it was"
        if isinstance(other, KTable)
        else "give it what builder.stream(...) returned"
    )
    raise TopologyError(f"{call.operator} takes a stream, found {other!r}; {cure}")


class Branches(dict[str, KStream]):
    """Branches by name. An unknown name raises UnknownBranchError, which is a KeyError too.

    ``prefix``: the name of their split, which Kafka Streams puts in front of its keys.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    @naming_the_line
    def __missing__(self, name: object) -> KStream:
        alone = str(name).removeprefix(self._prefix)
        near = [alone] if alone in self else difflib.get_close_matches(str(name), self, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownBranchError(
            f"no branch is called {name!r}; there are {', '.join(map(repr, self))}{hint}"
        )


class BranchedKStream(Telling):
    """Collects the branches of ``KStream.split`` until ``default_branch`` or ``no_default_branch``
    is called.

    The key of a branch is its ``name``; an unnamed branch has its number from 1, an unnamed default
    branch ``"0"``. The name of the split is not in the key, only in the nodes' names. A Python
    predicate, or a Column that calls Python, is called once per record, and only if no earlier
    branch matched.
    """

    def __init__(self, stream: Stream, name: str | None) -> None:
        self.graph, self._split = stream.graph, stateless.Split(stream, name)
        self._branches = Branches(self._split.name)

    @builder_call
    def branch(self, condition: Expression, *, name: str | None = None) -> BranchedKStream:
        """Adds a branch for the records for which ``condition`` is true and that match no earlier
        branch. Keeps headers."""
        key = name or str(len(self._branches) + 1)
        child = self._claimed(key)
        self._branches[key] = KStream(self._split.branch(child, condition))
        return self

    @builder_call
    def default_branch(self, *, name: str | None = None) -> dict[str, KStream]:
        """Adds a branch for all other records, and returns the dict of branches. Keeps headers."""
        key = name or "0"
        child = self._claimed(key)
        self._branches[key] = KStream(self._split.rest(child))
        return self._branches

    @builder_call
    def no_default_branch(self) -> dict[str, KStream]:
        """Returns the dict of all branches. Records that match no branch are dropped."""
        if not self._branches:
            raise TopologyError("split() without a branch; add .branch(predicate, name=...)")
        return self._branches

    def _claimed(self, key: str) -> str:
        check_name("branch", key)
        if key in self._branches:
            raise TopologyError(f"two branches are called {key!r}; give one of them another name")
        self.graph.burn(1)
        return f"{self._split.name}{key}"


class KTable(_StreamOrTable):
    """A changelog stream of ``(key, latest value)``. The key of a windowed table is ``struct<key,
    start, end>``, with times in ms.

    Columns and Python functions are used as by `KStream`; they are not called for deletions.
    """

    @property
    def queryable_store_name(self) -> str | None:
        """The store name under which `KafkaStreams.store` finds the rows. None if the rows are in
        no store, for example after ``suppress`` or after a ``filter`` without ``store=``."""
        spec = store_of(self.graph, self.node)
        return None if spec is None else spec.name

    @builder_call
    def filter(
        self, predicate: Expression, *, store: Store | None = None, name: str | None = None
    ) -> KTable:
        """Keeps the rows for which ``predicate`` is true. A row that no longer matches is forwarded
        as a deletion, if it matched before. ``store``: keeps the result, for queries. Keeps
        headers."""
        return KTable(TableCall(self._stream, "filter", store, name).filtered(predicate))

    @builder_call
    def filter_not(
        self, predicate: Expression, *, store: Store | None = None, name: str | None = None
    ) -> KTable:
        """Keeps the rows that ``filter`` drops. Keeps headers."""
        return KTable(TableCall(self._stream, "filter_not", store, name).filtered(predicate))

    @builder_call
    def map_values(
        self,
        mapper: Expression | None = None,
        *,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """Computes a new value for every row, from a Column, ``field=Column`` arguments (a struct),
        or a function with ``returns=``. ``store``: keeps the result, for queries. Keeps headers."""
        node_name, returns, fields = fields_from_options(name, returns, fields)
        if isinstance(store, Column):
            fields, store = {**fields, "store": store}, None
        call = TableCall(self._stream, "map_values", store, node_name)
        return KTable(call.mapped(mapper, fields, returns))

    @builder_call
    def transform_values(
        self,
        transformer: Transformer,
        *,
        returns: object = None,
        stores: Iterable[StoreSpec | str] = (),
        store: Store | None = None,
        name: str | None = None,
    ) -> KTable:
        """Computes a new value for every update with your code: a `ValueTransformer` class, a
        function that makes one, or a function of (key, value) or (key, value, context). It is also
        called for deletions, with None. ``returns``: the type of the new value, if it differs;
        ``stores``: the stores that it may use, as in `KStream.process`; ``store``: keeps the
        result, for queries; joins and groupings need it if there are ``stores`` or a punctuator.
        Keeps headers."""
        call = TableCall(self._stream, "transform_values", store, name)
        return KTable(call.transformed(transformer, returns, stores))

    @builder_call
    def join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        on: Expression | None = None,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """Joins the rows of two tables by key; a change of either table updates the result. With
        ``on``, a foreign key (a Column, or a function of (value) or (key, value)), each row is
        joined with the row of ``other`` that has this key, and the result has this table's keys.
        The result is ``struct<left, right>``, or what ``joiner`` computes, as in `KStream.join`.

        ``store``: keeps the result in a store of its own. ``on`` needs a ``name``, for the topics
        ``<name>-asks-repartition`` and ``<name>-answers-repartition`` and the store
        ``<name>-asks``. A result has the headers of the change that caused it.
        """
        return self._joined(JoinKind.INNER, locals())

    @builder_call
    def left_join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        on: Expression | None = None,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """As `join`, for all keys of this table; ``right`` is null if ``other`` has no row. A
        result has the headers of the change that caused it."""
        return self._joined(JoinKind.LEFT, locals())

    @builder_call
    def outer_join(
        self,
        other: KTable,
        joiner: Expression | None = None,
        *,
        returns: object = None,
        store: Store | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """As `join` by key, for the keys of either table; the side without a row is null. A result
        has the headers of the change that caused it."""
        return self._joined(JoinKind.OUTER, locals())

    def _joined(self, kind: JoinKind, arguments: dict[str, Any]) -> KTable:
        call, _ = joins.JoinCall.of(self._stream, kind, arguments)
        other, on = arguments["other"], arguments.get("on")
        if not isinstance(other, KTable):
            raise TopologyError(
                f"{call.operator} of a table takes a table, found {other!r}; a stream is enriched "
                f"by stream.{call.operator}(table), by a global table with on=..."
            )
        if on is None:
            return KTable(joins.joined_by_key(call, other._stream))
        return KTable(joins.joined_by_foreign_key(call, other._stream, on))

    @builder_call
    def suppress(
        self, suppressed: Suppressed, *, store: Store | None = None, name: str | None = None
    ) -> KTable:
        """Buffers updates until windows close, ``suppress(Suppressed.until_window_closes(),
        store="final")``, or for some time, ``Suppressed.until_time_limit("1 minute")``.

        ``store``: keeps what is buffered. Stream time advances with records only: the last windows
        wait for the next record, of any key, in the same partition. Headers are those of the
        update.
        """
        return KTable(suppressed_stream(self._stream, suppressed, store, name))

    @builder_call
    def to_stream(self, *, name: str | None = None) -> KStream:
        """Emits the table's changes as a stream; deletions have a null value. Keeps headers."""
        return KStream(stateless.changes_of(self._stream, name))

    @builder_call
    def to(
        self,
        topic: str | Expression,
        *,
        as_: str = "upserts",
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        partitioner: Expression | str | None = None,
    ) -> None:
        """Writes the table's changes to ``topic``. ``as_``: ``upserts``, the new value of each key,
        and null for a deletion; or ``changes``, as Debezium writes them: ``struct<before, after,
        op, ts_ms>``, with ``op`` c, u or d and the time of the update, and after each d a null
        value. A micro-batch has one change of a key, from what it was before to what it is after.

        ``key``, ``value``, ``partitioner`` and the topics: as in `KStream.to`; with ``changes``,
        ``value`` is the serde of the envelope, for example `serdes.debezium`. ``changes`` needs a
        table that has a store, or is made of one that has. Keeps headers.
        """
        if as_ not in (UPSERTS, CHANGES):
            raise TopologyError(f"to: as_ is {UPSERTS!r} or {CHANGES!r}, found {as_!r}")
        changed = (
            enveloped(self._stream, "to")
            if as_ == CHANGES
            else stateless.changes_of(self._stream, None)
        )
        stateless.written(changed, topic, (key, value), partitioner, name)

    @builder_call
    def print_table(
        self, title: str | None = None, *, rows: int = 20, name: str | None = None
    ) -> None:
        """Prints the table's changes, as `KStream.print_table` prints records."""
        self.to_stream().print_table(title, rows=rows, name=name)

    @builder_call
    def group_by(
        self,
        key: Expression,
        value: Column | None = None,
        *,
        returns: object = None,
        name: str | None = None,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
    ) -> KGroupedTable:
        """Groups the rows by a new key, through the repartition topic
        ``<application.id>-<name>-repartition``. Pass ``key``, and ``value`` if it changes, as
        Columns; or a function that returns the key, with ``returns=type``, or key and value, with
        ``returns=(key type, value type)``.

        A row without a new key or value is in no group. Keeps headers.
        """
        checked_column(value, "value", "group_by")
        written = key_serde, value_serde
        return KGroupedTable(grouped_table(self._stream, key, value, returns, name, written))


class GlobalKTable(_StreamOrTable):
    """A table of which every instance has all rows. It has no operators: streams are joined with
    it, ``stream.join(global_table, on=...)``, and `KafkaStreams.store` reads it."""

    @property
    def queryable_store_name(self) -> str:
        """The store name under which `KafkaStreams.store` finds the table."""
        return whole_table(self._stream).spec.name


class _Groups(Telling):
    _windows: Windows | None = None
    _emit = EmitStrategy()

    def __init__(self, group: GroupedStream) -> None:
        self._group, self.graph = group, group.graph

    @builder_call
    def count(
        self, *, store: Store | None = None, ttl: Duration | None = None, name: str | None = None
    ) -> KTable:
        """Counts the records per key (and window or session), as ``bigint``. Null keys are skipped.
        Null values are skipped without windows and in sliding windows, and counted in other
        windows. ``ttl`` and headers: as in `aggregate`."""
        aggregation = self._aggregation("count", store, name, ttl)
        return KTable(aggregation.built_in({"count": agg.count()}, bare=True))

    @builder_call
    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        *,
        store: Store | None = None,
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> KTable:
        """Combines the values of each key (and window or session) with ``reducer(aggregate,
        value)``. The first value is the first aggregate; a result of None deletes the row. If
        sessions merge, their aggregates are combined with ``reducer(earlier, later)``. ``ttl`` and
        headers: as in `aggregate`."""
        aggregation = self._aggregation("reduce", store, name, ttl)
        return KTable(aggregation.reduce(reducer))

    @builder_call
    def aggregate(
        self,
        *,
        store: Store | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        aggregator: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        ttl: Duration | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """Aggregates the records of each key (and window or session). With built-ins,
        ``aggregate(store="s", n=agg.count(), mean=agg.avg("value.delay"))``, the value is a struct
        with these fields. A field may have the name of a parameter:
        ``name=agg.last("value.name")``. With Python functions, ``aggregate(initializer=...,
        aggregator=..., store="s", returns=type or value=serde)``, ``aggregator`` receives (key,
        value, aggregate) or (value, aggregate) and returns the next aggregate; None deletes the
        row. Null keys and values are treated as in ``count``; the key of a windowed result is a
        `Windowed`. ``ttl``: without windows, how long (stream time) a key's aggregate is kept after
        its latest record. Then the row is deleted, the table emits a tombstone, and the key's next
        record starts a new aggregate. A result has the headers of the record that caused it.
        """
        return self._aggregate(locals())

    def _aggregation(
        self, operator: str, store: Store | None, name: str | None, ttl: object = None
    ) -> Aggregation:
        ttl_ms = None if ttl is None else checked_ttl(ttl, operator)
        if ttl_ms is not None and self._windows is not None:
            raise TopologyError(
                f"{operator}: windows and sessions end by themselves, so they take no ttl=; "
                "leave it out, or leave windowed_by(...) out"
            )
        return Aggregation(
            self._group, self._windows, operator, store, name, emit=self._emit, ttl_ms=ttl_ms
        )

    def _aggregate(self, arguments: dict[str, Any]) -> KTable:
        functions = ("initializer", "aggregator", "merger")
        fields, options = aggregate_fields(
            arguments, ("store", *functions, "returns", "value", "name", "ttl")
        )
        check_aggregates(fields, options)
        store, name, ttl = (options[key] for key in ("store", "name", "ttl"))
        return KTable(self._aggregation("aggregate", store, name, ttl).aggregate(fields, options))


class KGroupedStream(_Groups):
    """Records grouped by key. Several aggregations of one grouped stream share its repartition
    topic."""

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | CountWindows
    ) -> TimeWindowedKStream: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream: ...

    @builder_call
    def windowed_by(self, windows: Windows) -> TimeWindowedKStream | SessionWindowedKStream:
        """Groups the records also by time windows, sliding windows, count windows or sessions."""
        _check_windows(windows)
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self._group, windows)
        return TimeWindowedKStream(self._group, windows)

    @builder_call
    def cogroup(self, aggregator: Callable[..., Any]) -> CogroupedKStream:
        """Starts to aggregate several grouped streams into one table, for example
        ``orders.group_by_key().cogroup(add_order).cogroup(payments.group_by_key(),
        add_payment).aggregate(dict, store="accounts", returns=...)``. ``aggregator`` receives (key,
        value, aggregate) or (value, aggregate)."""
        return CogroupedKStream(((self._group, aggregator),))


def _check_windows(windows: object) -> None:
    if isinstance(windows, SlidingWindows) and windows.retention_ms == 0:
        raise TopologyError(  # as with sessions below
            "sliding windows of a difference of zero need a grace above zero"
        )
    if isinstance(windows, TimeWindows | SlidingWindows | CountWindows):
        return
    if isinstance(windows, SessionWindows):
        # Its store would show nothing: every record would be a session of its own.
        if windows.retention_ms == 0:
            raise TopologyError("sessions with a gap of zero need a grace above zero")
        return
    raise TopologyError(
        "windowed_by takes TimeWindows, SlidingWindows, CountWindows or SessionWindows, found "
        f"{windows!r}; write TimeWindows.of_size('1 hour').grace('5 minutes'), "
        "SlidingWindows.of_time_difference('10 minutes'), CountWindows.of_size(100) or "
        "SessionWindows.of_inactivity_gap('30 minutes')"
    )


_Windowed = TypeVar("_Windowed", bound="_WindowedKStream")


class _WindowedKStream(_Groups):
    def __init__(
        self,
        group: GroupedStream,
        windows: Windows,
        emit: EmitStrategy | None = None,
    ) -> None:
        super().__init__(group)
        self._windows, self._emit = windows, emit or self._emit

    @builder_call
    def emit_strategy(self: _Windowed, strategy: EmitStrategy) -> _Windowed:
        """Sets when windows emit results: one final result, ``EmitStrategy.on_window_close()``, or
        early ones, too, ``EmitStrategy.every(100)`` or ``every("10 seconds")``. ``every`` is not
        for sessions, and a duration not for count windows. The store ``<store>-final`` (``every``:
        ``<store>-early``) keeps results that are not emitted yet; count windows need none. A result
        has the headers of the record that triggered it."""
        if not isinstance(strategy, EmitStrategy):
            raise TopologyError(
                "emit_strategy takes EmitStrategy.on_window_close(), EmitStrategy.every(100) or "
                f"EmitStrategy.on_window_update(), found {strategy!r}"
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
                "TimeWindows"
            )
        if by_time and isinstance(self._windows, CountWindows):
            raise TopologyError(
                "count windows go by records, not by time; write EmitStrategy.every(10)"
            )


class TimeWindowedKStream(_WindowedKStream):
    """Groups by key and time window, sliding window or count window. Null keys are skipped; null
    values are skipped in sliding windows only, as in Kafka Streams. A record is dropped as late if
    its windows and grace are over by the operator's own stream time; not in count windows."""


class SessionWindowedKStream(_WindowedKStream):
    """Groups by key and session; sessions grow and merge with the records (KIP-94). Nulls and late
    records are treated as in `TimeWindowedKStream`. When an emitted session gets another start or
    end, a tombstone is emitted for the old session. A result's time is the end of its session."""

    @builder_call
    def aggregate(
        self,
        *,
        store: Store | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        aggregator: Callable[..., Any] | Aggregator | None = None,
        merger: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        ttl: Duration | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """As `KGroupedStream.aggregate`, per session. If sessions merge, ``merger`` receives (key,
        aggregate, aggregate) or (aggregate, aggregate), the earlier session's first. A result has
        the headers of the record that caused it."""
        return self._aggregate(locals())


class _Cogroups(Telling):
    def __init__(self, members: tuple[Member, ...], windows: Windows | None = None) -> None:
        self._members, self._windows = members, windows
        self.graph = members[0][0].graph

    def _aggregated(self, arguments: dict[str, Any]) -> KTable:
        union, store, name = CogroupedStreams(self._members), arguments["store"], arguments["name"]
        return KTable(
            Aggregation(union, self._windows, "aggregate", store, name).functions(arguments)
        )


class _OneAggregator(_Cogroups):
    @builder_call
    def aggregate(
        self,
        initializer: Callable[[], Any],
        *,
        store: Store | None = None,
        returns: object = None,
        value: Serde | None = None,
        name: str | None = None,
    ) -> KTable:
        """Returns the table of the aggregates, which start with ``initializer()``. ``returns``: the
        aggregate's type, or ``value``: its serde. Nulls are treated as in
        `KGroupedStream.aggregate`; in windows, except sliding ones, null values reach the
        aggregators. The keys of a windowed table are `Windowed`. A result has the headers of the
        record that caused it."""
        return self._aggregated(locals())


class CogroupedKStream(_OneAggregator):
    """Several grouped streams, each with its aggregator:
    ``grouped.cogroup(aggregator).cogroup(other, its_aggregator).aggregate(...)``."""

    @builder_call
    def cogroup(
        self,
        grouped: KGroupedStream,
        aggregator: Callable[..., Any],
    ) -> CogroupedKStream:
        """Adds another grouped stream with the same type of key. ``aggregator`` receives (key,
        value, aggregate) or (value, aggregate)."""
        first = self._members[0][0]
        if not isinstance(grouped, KGroupedStream) or grouped.graph is not first.graph:
            raise TopologyError(
                f"cogroup takes a grouped stream of the same StreamsBuilder, found {grouped!r}; "
                "write other.group_by_key()"
            )
        mine, its = first.edge, grouped._group.edge
        if not same_type(mine.type.key, its.type.key) or not write_alike(
            mine.key_serde, its.key_serde
        ):
            made = key_of_key(mine.type.key, its.type.key) or key_of_field(mine.type.key)
            raise TopologyError(
                f"cogroup brings equal keys together, and the keys are "
                f"{type_text(mine.type.key)} written as {mine.key_serde!r} and "
                f"{type_text(its.type.key)} written as {its.key_serde!r}; group the second one "
                f"anew with group_by({made}, name='a-name', key_serde={mine.key_serde!r})",
                code="EF-COPARTITION",
            )
        return CogroupedKStream((*self._members, (grouped._group, aggregator)))

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | CountWindows
    ) -> TimeWindowedCogroupedKStream: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream: ...

    @builder_call
    def windowed_by(
        self, windows: Windows
    ) -> TimeWindowedCogroupedKStream | SessionWindowedCogroupedKStream:
        """Groups all streams also by time windows, sliding windows, count windows or sessions."""
        _check_windows(windows)
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._members, windows)
        return TimeWindowedCogroupedKStream(self._members, windows)


class TimeWindowedCogroupedKStream(_OneAggregator):
    """Cogrouped streams in time, sliding or count windows, with one stream time for all streams."""


class SessionWindowedCogroupedKStream(_Cogroups):
    """Cogrouped streams in sessions, with one stream time for all streams."""

    @builder_call
    def aggregate(
        self,
        initializer: Callable[[], Any],
        merger: Callable[..., Any],
        *,
        store: Store | None = None,
        returns: object = None,
        value: Serde | None = None,
        name: str | None = None,
    ) -> KTable:
        """As `CogroupedKStream.aggregate`, per session. When two sessions merge, ``merger``
        receives (key, aggregate, aggregate) or (aggregate, aggregate), the earlier session's first,
        and returns one aggregate. A result has the headers of the record that caused it."""
        return self._aggregated(locals())


class KGroupedTable(Telling):
    """Rows of a table, grouped by a new key. Several aggregations of one grouped table share its
    repartition topic."""

    def __init__(self, group: GroupedTable) -> None:
        self._group, self.graph = group, group.graph

    @builder_call
    def count(self, *, store: Store | None = None, name: str | None = None) -> KTable:
        """Counts the rows of each group, as ``bigint``; a group that has lost all its rows has 0.
        Headers: as in `aggregate`."""
        aggregation = Aggregation(self._group, None, "count", store, name)
        return KTable(aggregation.built_in({"count": agg.count()}, bare=True))

    @builder_call
    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        *,
        store: Store | None = None,
        name: str | None = None,
    ) -> KTable:
        """Combines the values of each group: ``subtractor(aggregate, old)`` retracts a row's old
        value, ``adder(aggregate, new)`` adds its new one. The first value is the first aggregate; a
        result of None deletes the group's row. Headers: as in `aggregate`."""
        aggregation = Aggregation(self._group, None, "reduce", store, name)
        return KTable(aggregation.reduce(adder, subtractor))

    @builder_call
    def aggregate(
        self,
        *,
        store: Store | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        adder: Callable[..., Any] | Aggregator | None = None,
        subtractor: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """Aggregates the rows of each group, with built-ins that can retract,
        ``aggregate(store="s", n=agg.count(), total=agg.sum("value.amount"),
        mean=agg.avg("value.amount"))``, or with Python functions, ``aggregate(initializer=...,
        adder=..., subtractor=..., store="s", returns=type)``. ``adder`` and ``subtractor`` receive
        (key, value, aggregate) or (value, aggregate). In a group that has lost all its rows, the
        count is 0 and sum and mean are null. A function that returns None deletes the group's row.
        A field of the built-ins' struct may have the name of a parameter: ``name=agg.count()``. A
        result has the headers of the change that caused it.
        """
        functions = ("initializer", "adder", "subtractor")
        fields, options = aggregate_fields(
            locals(), ("store", "name", *functions, "returns", "value")
        )
        if any(options[one] is not None for one in functions) == bool(fields):
            raise TopologyError(
                "aggregate of a grouped table takes either built-ins, e.g. n=agg.count(), or "
                "initializer=, adder= and subtractor= functions"
            )
        aggregation = Aggregation(
            self._group,
            None,
            "aggregate",
            options["store"],
            options["name"],
        )
        return KTable(aggregation.aggregate(fields, options))
