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
    check_name,
    checked_column,
    column_named,
    fields_from_options,
    in_expressions,
)
from everflow.dsl.graph_builder import Stream, builder_call
from everflow.dsl.lowering import joins, stateless
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
from everflow.dsl.lowering.processors import ProcessorCall, Supplier, Transformer, deduplicated
from everflow.dsl.lowering.tables import TableCall, checked_ttl, store_of, table_of, whole_table
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


class _StreamOrTable(Telling):
    """An error tells whoever takes columns from it, as from a DataFrame, how they are named."""

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
    """A stream of records ``(key, value)``; ``edge`` holds their types and serdes.

    ``key_changed``: an operator before may have changed the key, so that a grouping has to
    repartition first.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.key_changed = stream.key_changed

    # --- one record in, at most one out -----------------------------------------------------------

    @builder_call
    def filter(self, predicate: Expression, *, name: str | None = None) -> KStream:
        """Records for which ``predicate`` is true (a NULL is not). Headers stay."""
        return KStream(stateless.filtered(self._stream, "filter", predicate, name, negate=False))

    @builder_call
    def filter_not(self, predicate: Expression, *, name: str | None = None) -> KStream:
        """The records that ``filter`` would leave out. Headers stay."""
        return KStream(stateless.filtered(self._stream, "filter_not", predicate, name, negate=True))

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
        """New key and value: ``map(key=Column, value=Column)``, a Column ``struct<key, value>``, or
        a function that returns ``(key, value)`` with ``returns=(key type, value type)``. A grouping
        behind it repartitions. Headers stay."""
        for part, column in (("key", key), ("value", value)):
            checked_column(column, part, "map")
        return KStream(stateless.mapped(self._stream, mapper, (key, value), returns, name))

    @builder_call
    def map_values(
        self,
        mapper: Expression | None = None,
        *,
        returns: object = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """A new value under the same key: a Column, ``field=Column`` arguments (a struct), or a
        function with ``returns=``.

        Fields called ``name`` and ``returns`` differ from the options by being Columns.
        Headers stay.
        """
        node_name, returns, fields = fields_from_options(name, returns, fields)
        return KStream(stateless.values_mapped(self._stream, mapper, fields, returns, node_name))

    @builder_call
    def select_key(
        self, mapper: Expression, *, returns: object = None, name: str | None = None
    ) -> KStream:
        """A new key; a grouping behind it repartitions, even where keys turn out equal.
        Headers stay."""
        return KStream(stateless.keyed(self._stream, "select_key", mapper, returns, name))

    @builder_call
    def peek(self, action: Callable[..., object], *, name: str | None = None) -> KStream:
        """Calls ``action`` for every record and passes it on; may run again after a failure, also
        under exactly-once. Headers stay."""
        return KStream(stateless.called_for_effect(self._stream, "PEEK", "peek", action, name))

    @builder_call
    def for_each(self, action: Callable[..., object], *, name: str | None = None) -> None:
        """Calls ``action`` for every record and ends the stream; may run again after a failure,
        also under exactly-once."""
        stateless.called_for_effect(self._stream, "FOREACH", "for_each", action, name)

    # --- one record in, any number out ------------------------------------------------------------

    @builder_call
    def flat_map(
        self,
        mapper: Expression,
        *,
        returns: tuple[object, object] | None = None,
        name: str | None = None,
    ) -> KStream:
        """Any number of records for each: a Column ``array<struct<key, value>>``, or a function
        that returns an iterable of ``(key, value)`` with ``returns=(key type, value type)``. Null
        and empty give none. Headers stay."""
        return KStream(stateless.flat_mapped(self._stream, mapper, returns, name))

    @builder_call
    def flat_map_values(
        self, mapper: Expression, *, returns: object = None, name: str | None = None
    ) -> KStream:
        """Any number of values under the same key: an array Column, or a function that returns an
        iterable of values with ``returns=`` (the type of one value). Headers stay."""
        return KStream(stateless.values_flat_mapped(self._stream, mapper, returns, name))

    # --- several streams --------------------------------------------------------------------------

    @builder_call
    def merge(self, *others: KStream, name: str | None = None) -> KStream:
        """The records of all streams, which must have equal types; there is no order between them
        but record time. A stream merged with itself comes once, as in the original. Headers
        stay."""
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
        """Begin to split the stream: ``.branch(predicate, name=...)`` as often as needed, then
        ``.default_branch(name=...)`` or ``.no_default_branch()``, which give the dict of branches.
        The first predicate that is true takes a record. Headers stay."""
        return BranchedKStream(self._stream, name)

    @builder_call
    def branch(self, default: str | None = None, **predicates: Expression) -> dict[str, KStream]:
        """``split`` in one call: ``stream.branch(big=F.col("value.n") > 9,
        default="rest")["big"]``. Headers stay."""
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
        """Each record with its match: what a table holds for its key, what a global table holds
        under the key ``on`` (a Column, or a function of value or of key and value), or each record
        of another stream with its key in ``windows`` (which needs ``store=``, the name of the two
        window stores). Without a ``joiner`` the value is ``struct<left, right>``; the module
        `everflow.dsl.lowering.joins` tells what a joiner may be.

        A versioned table is looked up as of the record's time. ``grace`` (KIP-923)
        lets a record wait, in ``store=``, until this stream's time has passed it by so much, so
        that updates of the table that come late are seen; a record that is later than that is
        joined at once.

        Behind an operator that changes the key a side goes through a repartition topic called after
        ``name``. Records without a match, a value or a key are left out.
        A result has the headers of the record that made it.
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
        """As `join`, headers included; a record without a match, or without a key, has a null
        ``right``: at once beside a table, else when its window and the grace are over."""
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
        """As `left_join` of two streams, headers included, for both sides."""
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
        call, options = joins.JoinCall.of(self._stream, JoinKind.INNER, locals(), "join_asof")
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
        """Each record with each record of ``other`` that has its key and is at most ``before``
        earlier or ``after`` later, both included; ``how``: ``inner``, ``left`` or ``outer``.

        It is the join of two streams in windows, by another name, headers included:
        ``join(other, windows=JoinWindows(before, after).grace(grace), store=...)``.
        """
        call, options = joins.JoinCall.of(self._stream, JoinKind.INNER, locals(), "join_interval")
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
        """As `left_join` with a table, or with a global table (``on=``), but a record without an
        entry waits in ``store``: until an update brings the entry, at most until this stream's time
        has passed it by more than ``grace``, or until the machine's clock says that it has waited
        for ``timeout`` (one of both is needed; the clock goes on where no records come). Then it
        comes with a null ``right``, or not at all (``on_timeout``: ``emit`` or ``drop``). Of one
        key at most ``most_per_key`` wait: then the one that has waited longest gives way, as if its
        time were over.

        Results have their records' times and headers; those of one key that waited come in order.
        """
        call, options = joins.JoinCall.of(self._stream, JoinKind.LEFT, locals(), "lookup_join")
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
        """Hand each record to a processor of the user's: a `Processor` class, a function that makes
        one, or a function of (record, context); ``context.forward(record)`` hands results on.

        ``returns``: the types of their key and value, ``("string", "bigint")``; left out, those of
        the stream. A grouping behind it repartitions. ``stores``: made by `Stores`, or names of
        stores that are there: another processor's or ``builder.add_state_store``'s, which is then
        shared, a table's or a global table's, to be read as of each record. With ``children``,
        names of streams that ``forward(record, child)`` may choose, the result is the dict of them;
        else it is the stream. Headers are those that are forwarded.
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
        """As `process`, of processors that keep the key of the record they received, so that
        nothing behind has to be repartitioned; ``returns`` is the type of the value. A clock's call
        cannot forward here: it has no record. Headers are those that are forwarded."""
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
        """Drop records that repeat another one: of one key the first in processing order goes on,
        and those more than ``within`` away, before and after, from all that went on.

        ``by``: an id instead of the key, a Column, or a function with ``returns=type``; repetitions
        of an id must have one key, since tasks do not know of each other's. A record without an id
        (or key) goes on. One that is more than ``grace`` (left out: ``within``) behind stream time
        is dropped as ``late``: what it would repeat may be forgotten. Kafka Streams has none
        (KIP-655); after an operator that changes the key the records go through a repartition
        topic called after ``name``, or ``store``. Headers stay.
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
        """Through an internal topic ``<application.id>-<name>-repartition``: equal keys meet in one
        task.

        ``partitions`` fixes the number of partitions, ``partitioner`` says each record's, as in
        `to`. Records with a null key are dropped. Headers stay."""
        checked = self.graph.check_repartition_name(name, "repartition")
        if partitions is not None and (not isinstance(partitions, int) or partitions < 1):
            raise TopologyError(
                f"repartition: partitions is a number above 0, found {partitions!r}"
            )
        stream = self._stream.with_serdes("repartition", key, value)
        chosen = partitions, stateless.partitioner_of(partitioner, self.edge, "repartition")
        return KStream(stream.repartitioned(checked, "repartition", chosen))

    @builder_call
    def group_by(
        self,
        key: Expression,
        *,
        name: str | None = None,
        returns: object = None,
        key_serde: Serde | None = None,
    ) -> KGroupedStream:
        """Group by a new key, through the repartition topic
        ``<application.id>-<name>-repartition``. Headers stay."""
        checked = self.graph.check_repartition_name(name, "group_by")
        keyed = stateless.keyed(self._stream, "group_by", key, returns, checked)
        keyed = keyed.with_serdes("group_by", key_serde, None)
        return KGroupedStream(GroupedStream(keyed, checked))

    @builder_call
    def group_by_key(self, *, name: str | None = None) -> KGroupedStream:
        """Group by the key there is. After an operator that changes the key the records go through
        the repartition topic ``<application.id>-<name>-repartition``, and ``name`` is needed.
        Headers stay."""
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
        """The stream read as a changelog: the last value of each key; null deletes, records with a
        null key are dropped. ``store``, ``ttl``: as in `StreamsBuilder.table`.

        After an operator that changes the key the records go through a repartition topic named
        after ``name``, or ``store``. Headers stay.
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
        """Write to ``topic``: a name, or a Column or function that gives one per record (those
        topics must exist).

        ``key``, ``value``: serdes, by default those the stream has. ``partitioner``: by
        which hash the key's bytes say its partition, ``murmur2``, ``crc32`` or ``fnv1a`` (see
        `StreamsBuilder.stream`); or a Column, or a function of (topic, key, value, number of
        partitions), that gives each record's partition, several of them, none ([]: it is dropped)
        or NULL: as its key says. Left out it is ``murmur2``, of a windowed key without its window,
        so that all windows of a key lie in one partition. Headers stay.
        """
        stateless.written(self._stream, topic, (key, value), partitioner, name)

    @builder_call
    def print_table(
        self, title: str | None = None, *, rows: int = 20, name: str | None = None
    ) -> None:
        """Prints the records as rows of a table where the instance runs, a terminal or a notebook's
        cell: of each committed micro-batch the first ``rows``, and at most as many each half a
        second, with how many more there were. For looking; it writes nothing, and nothing waits for
        it. ``title``: stands above it; left out, the name of what comes before."""
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
    """Branches by name. One that is not there is an UnknownBranchError, which is a KeyError too.

    ``prefix``: the name of their split, which stands before theirs in Kafka Streams' keys."""

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
    """What ``KStream.split`` returns; collects branches until ``default_branch`` or
    ``no_default_branch``.

    Branches are keyed by their ``name``, unnamed ones by their number from 1, an unnamed default by
    ``"0"``, without the name of the split, which only their nodes have in front. A Python
    predicate, or one whose Column calls Python, is asked once about a record, and only if no branch
    before took it.
    """

    def __init__(self, stream: Stream, name: str | None) -> None:
        self.graph, self._split = stream.graph, stateless.Split(stream, name)
        self._branches = Branches(self._split.name)

    @builder_call
    def branch(self, condition: Expression, *, name: str | None = None) -> BranchedKStream:
        """Add a branch for the records that no earlier branch took and for which ``condition`` is
        true. Headers stay."""
        key = name or str(len(self._branches) + 1)
        child = self._claimed(key)
        self._branches[key] = KStream(self._split.branch(child, condition))
        return self

    @builder_call
    def default_branch(self, *, name: str | None = None) -> dict[str, KStream]:
        """The branches, with one for the records that no branch took. Headers stay."""
        key = name or "0"
        child = self._claimed(key)
        self._branches[key] = KStream(self._split.rest(child))
        return self._branches

    @builder_call
    def no_default_branch(self) -> dict[str, KStream]:
        """The branches; records that no branch took are dropped."""
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
    """A changelog stream of ``(key, latest value)``; windowed tables have the key ``struct<key,
    start, end>`` (ms).

    Columns and Python functions are taken as by `KStream`; they are not called for deletions.
    """

    @property
    def queryable_store_name(self) -> str | None:
        """What `KafkaStreams.store` finds its entries by; None where they are in no store, as
        behind a ``filter`` without ``store=``, or behind ``suppress``."""
        spec = store_of(self.graph, self.node)
        return None if spec is None else spec.name

    @builder_call
    def filter(
        self, predicate: Expression, *, store: Store | None = None, name: str | None = None
    ) -> KTable:
        """The entries for which ``predicate`` is true; an entry that fails is forwarded as a
        deletion, if it did not fail before. ``store``: keeps them, for queries and joins. Headers
        stay."""
        return KTable(TableCall(self._stream, "filter", store, name).filtered(predicate))

    @builder_call
    def filter_not(
        self, predicate: Expression, *, store: Store | None = None, name: str | None = None
    ) -> KTable:
        """The entries that ``filter`` would leave out. Headers stay."""
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
        """A new value for every entry: a Column, ``field=Column`` arguments (a struct), or a
        function with ``returns=``. ``store``: keeps the result, for queries and joins.
        Headers stay."""
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
        """A new value for every update by the user's code: a `ValueTransformer` class, a function
        that makes one, or a function of (key, value) or (key, value, context). Called for
        deletions, too, with None. ``returns``: the type of the new value, where it is another one;
        ``stores``: what it may use, as of `KStream.process`; ``store``: keeps the result, for
        queries; joins and groupings need it if there are ``stores`` or a clock. Headers stay."""
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
        """The entries of keys that both tables have, as both change; or, with ``on``, a Column or a
        function of (value) or (key, value), those whose foreign key the other table has, under
        their own keys. Without a ``joiner`` the value is ``struct<left, right>``; the module
        `everflow.dsl.lowering.joins` tells what a joiner may be.

        ``store``: keeps the result in a store of its own. ``on`` needs a ``name``: for the topics
        ``<name>-asks-repartition``, ``<name>-answers-repartition`` and the store ``<name>-asks``.
        A result has the headers of the change that made it.
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
        """As `join`, headers included, for all keys; ``right`` is null where the other has none."""
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
        """As `join`, headers included, for the keys of either table; a missing side is null."""
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
        """Holds updates back: until windows close, ``suppress(Suppressed.until_window_closes(),
        store="final")``, or for some time, ``Suppressed.until_time_limit("1 minute")``.

        ``store``: keeps what is buffered. Stream time advances with records only: the last windows
        wait for the next record, of any key, in the same partition.
        Headers are those of the update.
        """
        return KTable(suppressed_stream(self._stream, suppressed, store, name))

    @builder_call
    def to_stream(self, *, name: str | None = None) -> KStream:
        """The table's changes as a stream; deletions are records with a null value.
        Headers stay."""
        return KStream(stateless.changes_of(self._stream, name))

    @builder_call
    def print_table(
        self, title: str | None = None, *, rows: int = 20, name: str | None = None
    ) -> None:
        """Prints the table's changes as they come, as `KStream.print_table`."""
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
        """The entries grouped anew, through the repartition topic
        ``<application.id>-<name>-repartition``: ``key``, and ``value`` where it is another one, as
        Columns; or a function that returns the key, with ``returns=type``, or key and value, with
        ``returns=(key type, value type)``.

        An entry without a new key or value is in no group. Headers stay.
        """
        checked_column(value, "value", "group_by")
        written = key_serde, value_serde
        return KGroupedTable(grouped_table(self._stream, key, value, returns, name, written))


class GlobalKTable(_StreamOrTable):
    """A table that every instance has as a whole. It has no operators: streams are joined with it,
    ``stream.join(global_table, on=...)``, and `KafkaStreams.store` reads it."""

    @property
    def queryable_store_name(self) -> str:
        """What `KafkaStreams.store` finds it by."""
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
        """Number of records per key (and window or session), ``bigint``. Null keys are skipped;
        null values without windows or in sliding ones. ``ttl``, headers: as in `aggregate`."""
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
        """``reducer(aggregate, value)`` over the values of each key (and window or session); the
        first value is taken as it is, None deletes. Sessions that merge are reduced, too:
        ``reducer(earlier, later)``. ``ttl`` and headers: as in `aggregate`."""
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
        """Built-ins, ``aggregate(store="s", n=agg.count(), mean=agg.avg("value.delay"))``: the
        value is a struct of the names; or Python functions, ``aggregate(initializer=...,
        aggregator=..., store="s", returns=type or value=serde)``, where ``aggregator`` gets (key,
        value, aggregate) or (value, aggregate) and returns the next aggregate (None deletes).

        Nulls are treated as by ``count``; the key of a windowed result is a `Windowed`. A field may
        be called like an option. ``ttl``: without windows, how long (stream time) a key's aggregate
        stays behind its latest record; then it is deleted, the table gets a tombstone, and the
        key's next record begins anew. A result has the headers of the record that made it.
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
    """Records grouped by key. ``name`` is that of the repartition topic, used where the key was
    changed; several aggregations of one grouped stream share the topic."""

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | CountWindows
    ) -> TimeWindowedKStream: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream: ...

    @builder_call
    def windowed_by(self, windows: Windows) -> TimeWindowedKStream | SessionWindowedKStream:
        """The same groups, cut into time windows, sliding windows, count windows or sessions."""
        _check_windows(windows)
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self._group, windows)
        return TimeWindowedKStream(self._group, windows)

    @builder_call
    def cogroup(self, aggregator: Callable[..., Any]) -> CogroupedKStream:
        """The first of several grouped streams that are aggregated into one table:
        ``orders.group_by_key().cogroup(add_order).cogroup(payments.group_by_key(),
        add_payment).aggregate(dict, store="accounts", returns=...)``. ``aggregator`` gets (key,
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
        """When the windows give results: ``EmitStrategy.on_window_close()`` gives one, the final
        one, in time order; what is not closed yet is kept in the store ``<store>-final`` beside the
        aggregate's own. ``EmitStrategy.every(100)`` and ``every("10 seconds")`` also give early
        ones, kept in ``<store>-early``. A result has the headers of the record that let it out.
        """
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
    """Groups cut into time windows, sliding windows or count windows. Null keys are skipped; so are
    null values, in sliding windows alone, as in Kafka Streams. Late records, by the operator's own
    stream time and the window's grace, are dropped; count windows drop none for being late."""


class SessionWindowedKStream(_WindowedKStream):
    """Groups cut into sessions, which grow and merge with the records (KIP-94). Nulls and late
    records are treated as in `TimeWindowedKStream`. Where a session gets another window, the old
    one gets a tombstone; a result's time is the end of its session."""

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
        """As `KGroupedStream.aggregate`, headers included, per session; ``merger``, for two that
        meet, gets (key, aggregate, aggregate) or (aggregate, aggregate), the earlier one first."""
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
        """The table of the aggregates, which begin with ``initializer()``; nulls as in
        `KGroupedStream.aggregate`. ``returns``: the aggregate's type, or ``value``: its serde. In
        windows the table's keys are `Windowed`, and null values reach the aggregators (not those of
        sliding windows). A result has the headers of the record that made it."""
        return self._aggregated(locals())


class CogroupedKStream(_OneAggregator):
    """Grouped streams, each with its aggregator: ``grouped.cogroup(aggregator).cogroup(other,
    its_aggregator).aggregate(...)``."""

    @builder_call
    def cogroup(self, grouped: KGroupedStream, aggregator: Callable[..., Any]) -> CogroupedKStream:
        """And another stream, of the same keys; ``aggregator`` gets (key, value, aggregate) or
        (value, aggregate)."""
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
            raise TopologyError(
                f"cogroup brings equal keys together, and the keys are "
                f"{type_text(mine.type.key)} written as {mine.key_serde!r} and "
                f"{type_text(its.type.key)} written as {its.key_serde!r}; group one side anew with "
                f"group_by(..., name='a-name', key_serde={mine.key_serde!r})",
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
        """The same streams, cut into time windows, sliding windows, count windows or sessions."""
        _check_windows(windows)
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._members, windows)
        return TimeWindowedCogroupedKStream(self._members, windows)


class TimeWindowedCogroupedKStream(_OneAggregator):
    """Cogrouped streams in time, sliding or count windows; late is what is late for all of them."""


class SessionWindowedCogroupedKStream(_Cogroups):
    """Cogrouped streams in sessions; late is what is late for all of them together."""

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
        """As `CogroupedKStream.aggregate`, headers included, per session. ``merger`` gets (key,
        aggregate, aggregate) or (aggregate, aggregate), the earlier one first, to make one."""
        return self._aggregated(locals())


class KGroupedTable(Telling):
    """Entries of a table by group. Several aggregations of one grouped table share its repartition
    topic."""

    def __init__(self, group: GroupedTable) -> None:
        self._group, self.graph = group, group.graph

    @builder_call
    def count(self, *, store: Store | None = None, name: str | None = None) -> KTable:
        """Entries per group, ``bigint``; 0 for one that lost all. Headers: as in `aggregate`."""
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
        """``subtractor(aggregate, old)`` for what an entry was, ``adder(aggregate, new)`` for what
        it is; the first value is taken as it is, None deletes. Headers: as in `aggregate`."""
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
        """Built-ins that can take back, ``aggregate(store="s", n=agg.count(),
        total=agg.sum("value.amount"), mean=agg.avg("value.amount"))``; or Python functions,
        ``aggregate(initializer=..., adder=..., subtractor=..., store="s", returns=type)``, which
        get (key, value, aggregate) or (value, aggregate).

        A group that has lost all its entries has the count 0, the sum and the mean null; None of a
        function deletes. A field may be called like an option. Headers are those of the change.
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
        aggregation = Aggregation(self._group, None, "aggregate", options["store"], options["name"])
        return KTable(aggregation.aggregate(fields, options))
