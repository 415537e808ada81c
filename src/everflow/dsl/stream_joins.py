"""Joins of a stream: with a table, and with another stream in windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Edge, Expression
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.held_rows import RowAsker, is_kept, tables_behind
from everflow.dsl.in_time.versioned_tables import is_versioned
from everflow.dsl.joins import JoinCall, Side, in_windows_of, joined_table
from everflow.dsl.lookups.global_tables import GlobalKTable, joined_with_global
from everflow.dsl.options.materialized import Materialized
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, JoinKind, StreamStreamJoin, StreamTableJoin
from everflow.operators.joins.grace_join import GraceWait
from everflow.operators.joins.held_back import HeldBack
from everflow.operators.joins.stream_table import StreamTableRows
from everflow.serdes import bytes_
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import PREPARE, Part, ProjectNode, StatefulNode
from everflow.windows import Duration, JoinWindows, duration_ms

if TYPE_CHECKING:
    from everflow.dsl.kstream import KStream
    from everflow.dsl.ktable import KTable
    from everflow.dsl.topics.sinks import Partitioner


class StreamJoins(Side):
    """The joins of `KStream`."""

    key_changed: bool

    if TYPE_CHECKING:

        def derived(self, node: str, edge: Edge, changes_key: bool = False) -> KStream: ...

        def repartitioned(
            self,
            name: str,
            where: str | None,
            operator: str,
            chosen: tuple[int | None, Partitioner | None] = (None, None),
        ) -> KStream: ...

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
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """Each record with its match: what a table holds for its key, what a global table holds
        under the key ``on`` (a Column, or a function of value or of key and value), or each record
        of another stream with its key in ``windows`` (which needs ``store=``, the name of the two
        window stores). Without a ``joiner`` the value is ``struct<left, right>``; the module
        `everflow.dsl.joins` tells what a joiner may be.

        A versioned table is looked up as of the record's time. ``grace`` (KIP-923)
        lets a record wait, in ``store=``, until this stream's time has passed it by so much, so
        that updates of the table that come late are seen; a record that is later than that is
        joined at once.

        Behind an operator that changes the key a side goes through a repartition topic called after
        ``name``. Records without a match, a value or a key are left out.
        A result has the headers of the record that made it.
        """
        options: dict[str, Any] = {"windows": windows, "grace": grace, "returns": returns}
        options |= {"store": store, "name": name}
        return _joined(self, other, JoinKind.INNER, joiner, options, fields, on)

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
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """As `join`; a record without a match, or without a key, comes with a null ``right``: at
        once beside a table, beside a stream when its window and the grace are over.
        A result has the headers of the record that made it."""
        options: dict[str, Any] = {"windows": windows, "grace": grace, "returns": returns}
        options |= {"store": store, "name": name}
        return _joined(self, other, JoinKind.LEFT, joiner, options, fields, on)

    @builder_call
    def outer_join(
        self,
        other: KStream,
        joiner: Expression | None = None,
        *,
        windows: JoinWindows | Column | None = None,
        returns: object = None,
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """As `left_join` of two streams, for both sides.
        A result has the headers of the record that made it."""
        options: dict[str, Any] = {"windows": windows, "grace": None, "returns": returns}
        options |= {"store": store, "name": name}
        return _joined(self, other, JoinKind.OUTER, joiner, options, fields)


def _joined(
    left: StreamJoins,
    right: object,
    kind: JoinKind,
    joiner: Expression | None,
    options: dict[str, Any],
    fields: dict[str, Column],
    on: Expression | None = None,
) -> KStream:
    call, options = JoinCall.of(kind, joiner, options, fields)
    if isinstance(right, GlobalKTable):
        made, edge = joined_with_global(left, right, kind, call, on, **options)
        return left.derived(made, edge)
    if on is not None:
        raise TopologyError(
            f"{call.operator} matches by the records' keys, and on= is for global tables; choose "
            f"the key first: select_key(...).{call.operator}(..., name='a-name')",
            where=call.where,
        )
    if isinstance(right, left.graph.faces.table):
        return _with_table(left, right, kind, call, **options)
    if isinstance(right, StreamJoins):
        return _with_stream(left, right, kind, call, **options)
    cure = (
        "; make a table of it: builder.global_table_from(dataframe, key=..., store=...)"
        if isinstance(right, DataFrame)
        else ""
    )
    raise TopologyError(
        f"{call.operator} takes a stream or a table, found {right!r}{cure}", where=call.where
    )


def _with_table(
    left: StreamJoins,
    right: KTable,
    kind: JoinKind,
    call: JoinCall,
    windows: object,
    grace: Duration | None,
    store: object,
    name: str | None,
) -> KStream:
    if kind is JoinKind.OUTER:
        raise TopologyError(
            "outer_join is for two streams or two tables: changes of a table give no results here; "
            "use left_join",
            where=call.where,
        )
    if windows is not None or (store is not None and grace is None):
        raise TopologyError(
            f"{call.operator} with a table takes neither windows= nor store=: it looks up what the "
            f"table holds; store= goes with grace=, for the records that wait",
            where=call.where,
        )
    call.check_sides(left, right)
    if grace is not None or not is_kept(right):
        return _with_rows(left, right, kind, call, name, grace, store)
    table = joined_table(right, call)
    stream = copartitioned(left, name, call, "")
    edge = call.edge(stream, right)
    node_name = left.graph.node_name(name, _prefix(kind), call.where)
    node = StatefulNode(
        node_name,
        (stream.node, right.node),
        edge.type,
        call.where,
        "JOIN",
        StreamTableJoin(table, kind, left.graph.reaches_first(right.node, stream.node)),
        reads=(table.spec,),
        parts=(Part(node_name, (stream.node,), (table.spec.name,)),),
    )
    made, edge = call.made(left.graph, left.graph.add(node), edge, table=False)
    return left.graph.faces.stream(left.graph, made, edge)


def _prefix(kind: JoinKind) -> str:
    return "KSTREAM-LEFTJOIN-" if kind.keeps_left else "KSTREAM-JOIN-"


def _with_rows(
    left: StreamJoins,
    right: KTable,
    kind: JoinKind,
    call: JoinCall,
    name: str | None,
    grace: Duration | None,
    store: object,
) -> KStream:
    """The join with a table that has no store of its own, or that is asked when a grace is over."""
    graph, tables = left.graph, tables_behind(right, call)
    stream = copartitioned(left, name, call, "")
    edge, node_name = call.edge(stream, right), graph.node_name(name, _prefix(kind), call.where)
    asking, stores = stream.node, tuple(one.spec.name for one in tables)
    if grace is not None:
        held = _held_back(stream, right, tables, call, grace, store)
        asking = _waiting(stream, held, kind, node_name, call)
        stores = (*stores, held.store.name)
    sides = (asking, rows_for(graph, asking, right, kind, node_name, call))
    node = StatefulNode(
        node_name,
        sides,
        edge.type,
        call.where,
        "JOIN",
        StreamTableRows(kind),
        parts=(Part(node_name, (asking,), stores),),
    )
    made, edge = call.made(graph, graph.add(node), edge, table=False)
    return graph.faces.stream(graph, made, edge)


def rows_for(
    graph: GraphBuilder, asking: str, right: KTable, kind: JoinKind, name: str, call: JoinCall
) -> str:
    """The node of what a table holds for each record that asks, for the join ``name``."""
    asker = RowAsker(call=call, node=asking, join=name, as_of=True, takes_null_keys=kind.keeps_left)
    return asker.of(graph, right.node)


def with_rows(stream: KStream, right: KTable, name: str, call: JoinCall) -> str:
    """The node of a stream's records, each with what a table without a store holds for it."""
    kind, graph = JoinKind.LEFT, stream.graph
    sides = (stream.node, rows_for(graph, stream.node, right, kind, name, call))
    out = call.edge(stream, right).type
    node = StatefulNode(f"{name}-rows", sides, out, call.where, PREPARE, StreamTableRows(kind))
    return graph.add(node)


def _waiting(stream: KStream, held: HeldBack, kind: JoinKind, name: str, call: JoinCall) -> str:
    """The node of records whose grace is over."""
    node = StatefulNode(
        f"{name}-waiting",
        (stream.node,),
        stream.edge.type,
        call.where,
        PREPARE,
        GraceWait(held, kind.keeps_left),
        (held.store,),
    )
    return stream.graph.add(node)


def _held_back(
    stream: KStream,
    right: KTable,
    tables: tuple[JoinedTable, ...],
    call: JoinCall,
    grace: Duration,
    store: object,
) -> HeldBack:
    """Where the stream's records wait for the table, whose entries are made of ``tables``."""
    grace_ms = checked_grace(grace, call.operator, call.where)
    if len(tables) > 1:
        raise TopologyError(
            f"{call.operator} with grace= takes a versioned table, which knows what was at a "
            f"record's time; a join of tables keeps no history: keep its results, "
            f".to_stream().to_table(store=Materialized('a-name', history='1 hour'))",
            where=call.where,
        )
    table = tables[0]
    if not is_versioned(right.graph, right.node):
        raise TopologyError(
            f"{call.operator} with grace= takes a versioned table, which knows what was at a "
            f"record's time; {table.spec.name!r} keeps no history: give "
            f"store=Materialized({table.spec.name!r}, history='1 hour') in the call that makes it",
            where=call.where,
        )
    history_ms = table.spec.retention_ms or 0
    if grace_ms > history_ms:
        raise TopologyError(
            f"{call.operator}: a grace of {grace_ms} ms is longer than the table's history of "
            f"{history_ms} ms, so records would be joined with what is not kept any more; give "
            f"a longer history=, or a shorter grace",
            where=call.where,
        )
    claimed = stream.graph.claim_store(store, call.operator, call.where)
    return held_back(stream, call, grace_ms, claimed)


def held_back(stream: KStream, call: JoinCall, grace_ms: int, claimed: str) -> HeldBack:
    """The buffer of a stream whose records wait, in a store whose name is ``claimed``."""
    key_serde, value_serde = stream.edge.serdes(call.operator, call.where)
    spec = StoreSpec(
        name=claimed,
        kind="key_value",
        key_serde=bytes_(),
        value_serde=bytes_(),
        where=call.where,
    )
    return HeldBack(store=spec, key_serde=key_serde, value_serde=value_serde, grace_ms=grace_ms)


def checked_grace(grace: Duration, operator: str, where: str | None) -> int:
    """In ms; TopologyError for a negative one."""
    grace_ms = duration_ms(grace)
    if grace_ms < 0:
        raise TopologyError(
            f"{operator}: a grace may not be negative, found {grace_ms} ms", where=where
        )
    return grace_ms


def _with_stream(
    left: StreamJoins,
    right: StreamJoins,
    kind: JoinKind,
    call: JoinCall,
    windows: object,
    grace: object,
    store: object,
    name: str | None,
) -> KStream:
    if grace is not None:
        raise TopologyError(
            f"{call.operator} of two streams has its grace in the windows; write "
            f"windows=JoinWindows.of_time_difference('5 minutes').grace('1 minute')",
            where=call.where,
        )
    if not isinstance(windows, JoinWindows):
        raise TopologyError(
            f"{call.operator} of two streams takes windows=, found {windows!r}; write "
            f"windows=JoinWindows.of_time_difference('5 minutes')",
            where=call.where,
        )
    return joined_in_windows(left, right, kind, call, windows, store, name)


def joined_in_windows(
    left: StreamJoins,
    right: StreamJoins,
    kind: JoinKind,
    call: JoinCall,
    windows: JoinWindows,
    store: object,
    name: str | None,
) -> KStream:
    """The join of two streams. TopologyError for sides that do not fit, or names that are missing
    or taken."""
    call.check_sides(left, right)
    stores = _Stores.claimed(left, right, kind, call, windows, store)
    lefts = copartitioned(left, name, call, "-left")
    rights = copartitioned(right, name, call, "-right")
    rights = _in_its_windows(lefts, rights, call, f"{stores.left.name}-windows")
    parts = _parts(left, lefts.node, rights.node, kind, stores, name, call)
    edge = call.edge(lefts, rights)
    node = StatefulNode(
        parts[-1].name,
        (lefts.node, rights.node),
        edge.type,
        call.where,
        "JOIN",
        StreamStreamJoin.of(
            kind,
            windows,
            (stores.left, stores.right),
            (lefts.edge.type.value, rights.edge.type.value),
            stores.waiting,
            left_first=left.graph.hands_on_first(lefts.node, rights.node),
        ),
        stores.all,
        parts=parts,
    )
    made, edge = call.made(left.graph, left.graph.add(node), edge, table=False)
    return left.graph.faces.stream(left.graph, made, edge)


def _in_its_windows(lefts: KStream, rights: KStream, call: JoinCall, name: str) -> KStream:
    """The right stream with keys as the left one's serde reads them."""
    key = in_windows_of(lefts.edge, rights.edge)
    if key is None:
        return rights
    graph, edge = rights.graph, rights.edge.with_serdes(key=lefts.edge.key_serde)
    node = ProjectNode(
        name=name,
        inputs=(rights.node,),
        out=edge.type,
        where=call.where,
        label=PREPARE,
        key=analyse(key, rights.edge.type, call.where),
    )
    return rights.derived(graph.add(node), edge)


def copartitioned(side: StreamJoins, name: str | None, call: JoinCall, suffix: str) -> KStream:
    """The side's stream, behind a repartition topic if its key may have changed."""
    if not side.key_changed:
        return side.derived(side.node, side.edge)
    checked = side.graph.check_repartition_name(name, call.operator, call.where)
    return side.repartitioned(f"{checked}{suffix}", call.where, call.operator)


class _Stores:
    """The stores of a join of two streams, called as Kafka Streams calls them after
    ``StreamJoined.withStoreName``."""

    def __init__(self, left: StoreSpec, right: StoreSpec, waiting: StoreSpec | None) -> None:
        self.left, self.right, self.waiting = left, right, waiting

    @property
    def all(self) -> tuple[StoreSpec, ...]:
        return (self.left, self.right, *(() if self.waiting is None else (self.waiting,)))

    @staticmethod
    def claimed(
        left: StreamJoins,
        right: StreamJoins,
        kind: JoinKind,
        call: JoinCall,
        windows: JoinWindows,
        store: object,
    ) -> _Stores:
        """TopologyError for a name that is missing or taken."""
        this = "outer-this" if kind.keeps_right else "this"
        other = "outer-other" if kind.keeps_left else "other"
        suffixes = [f"-{this}-join-store", f"-{other}-join-store"]
        if kind.keeps_left:
            outer = "outer" if kind.keeps_right else "left"
            suffixes.append(f"-{outer}-shared-join-store")
        names = left.graph.claim_each(store, suffixes, call.operator, call.where)

        def window_store(side: StreamJoins, name: str) -> StoreSpec:
            key_serde, value_serde = side.edge.serdes(call.operator, call.where)
            return StoreSpec(
                name=name,
                kind="window",
                key_serde=key_serde,
                value_serde=value_serde,
                # A record is there for as long as stream time is not beyond, not only below.
                retention_ms=windows.size_ms + windows.grace_ms + 1,
                window_size_ms=windows.size_ms,
                where=call.where,
            )

        waiting = [
            StoreSpec(
                name=name,
                kind="key_value",
                key_serde=bytes_(),
                value_serde=bytes_(),
                where=call.where,
                private=True,
            )
            for name in names[2:]
        ]
        return _Stores(
            window_store(left, names[0]),
            window_store(right, names[1]),
            waiting[0] if waiting else None,
        )


def _parts(
    left: StreamJoins,
    left_node: str,
    right_node: str,
    kind: JoinKind,
    stores: _Stores,
    name: str | None,
    call: JoinCall,
) -> tuple[Part, ...]:
    """The five nodes that Kafka Streams has for it, in its order of names."""

    def named(suffix: str, prefix: str) -> str:
        given = None if name is None else f"{name}{suffix}"
        return left.graph.node_name(given, prefix, call.where)

    this_windowed = named("-this-windowed", "KSTREAM-WINDOWED-")
    other_windowed = named("-other-windowed", "KSTREAM-WINDOWED-")
    this, other = ("OUTERTHIS" if kind.keeps_right else "JOINTHIS"), "JOINOTHER"
    other = "OUTEROTHER" if kind.keeps_left else other
    # These two numbers are used up, whether the nodes have names or not.
    generated = [left.graph.new_name(f"KSTREAM-{one}-") for one in (this, other)]
    suffixes = (
        "-outer-this-join" if kind.keeps_right else "-this-join",
        "-outer-other-join" if kind.keeps_left else "-other-join",
    )
    joins = generated if name is None else [f"{name}{suffix}" for suffix in suffixes]
    waiting = () if stores.waiting is None else (stores.waiting.name,)
    return (
        Part(this_windowed, (left_node,), (stores.left.name,)),
        Part(other_windowed, (right_node,), (stores.right.name,)),
        Part(joins[0], (this_windowed,), (stores.right.name, *waiting)),
        Part(joins[1], (other_windowed,), (stores.left.name, *waiting)),
        Part(named("-merge", "KSTREAM-MERGE-"), (joins[0], joins[1])),
    )
