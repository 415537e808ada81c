"""Joins of a stream: with a table, with another stream in windows, and as of a time.

Records of a lookup join wait until their entry is there (design note 027).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everflow.dsl.expressions import Expression
from everflow.dsl.lowering.global_tables import whole_table, with_mapped_key
from everflow.dsl.lowering.join_call import JoinCall, in_windows_of
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.lowering.table_reads import is_versioned, read_table, specs_of
from everflow.errors import TopologyError
from everflow.operators.joins import (
    JoinKind,
    StreamStreamJoin,
    StreamTableJoin,
    joined_type,
)
from everflow.operators.joins.asof import AsOfJoin
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin, WaitingRoom
from everflow.operators.joins.stream_table import GraceWait, HeldBack
from everflow.serdes import bytes_
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import PREPARE, Part, ProjectNode, StatefulNode
from everflow.windows import Duration, JoinWindows, duration_ms

_HOW = {kind.value: kind for kind in JoinKind}
_ON_TIMEOUT = {"emit": JoinKind.LEFT, "drop": JoinKind.INNER}


def joined_with_table(
    left: Stream,
    right: Stream,
    kind: JoinKind,
    call: JoinCall,
    windows: object,
    grace: Duration | None,
    store: object,
    name: str | None,
) -> Stream:
    """Each record with what a table holds for its key."""
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
    graph = left.graph
    stream = copartitioned(left, name, call, "")
    sides = [stream.node]
    table = read_table(right, call, sides, stream.node, as_of=True)
    edge = call.edge(stream, right)
    prefix = "KSTREAM-LEFTJOIN-" if kind.keeps_left else "KSTREAM-JOIN-"
    node_name = graph.node_name(name, prefix, call.where)
    reads = specs_of(table)
    stores = tuple(spec.name for spec in reads)
    if grace is not None:
        held = _held_back(stream, right, reads, call, grace, store)
        sides[0] = _waiting(stream, held, kind, node_name, call)
        stores = (*stores, held.store.name)
    node = StatefulNode(
        node_name,
        tuple(sides),
        edge.type,
        call.where,
        "JOIN",
        StreamTableJoin(table, kind),
        reads=reads,
        parts=(Part(node_name, (sides[0],), stores),),
    )
    return call.made(Stream(graph, graph.add(node), edge), table=False)


def _waiting(stream: Stream, held: HeldBack, kind: JoinKind, name: str, call: JoinCall) -> str:
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
    stream: Stream,
    right: Stream,
    tables: tuple[StoreSpec, ...],
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
    spec = tables[0]
    if not is_versioned(right.graph, right.node):
        raise TopologyError(
            f"{call.operator} with grace= takes a versioned table, which knows what was at a "
            f"record's time; {spec.name!r} keeps no history: give "
            f"store=Materialized({spec.name!r}, history='1 hour') in the call that makes it",
            where=call.where,
        )
    history_ms = spec.retention_ms or 0
    if grace_ms > history_ms:
        raise TopologyError(
            f"{call.operator}: a grace of {grace_ms} ms is longer than the table's history of "
            f"{history_ms} ms, so records would be joined with what is not kept any more; give "
            f"a longer history=, or a shorter grace",
            where=call.where,
        )
    claimed = stream.graph.claim_store(store, call.operator, call.where)
    return held_back(stream, call, grace_ms, claimed)


def held_back(stream: Stream, call: JoinCall, grace_ms: int, claimed: str) -> HeldBack:
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


def joined_with_stream(
    left: Stream,
    right: Stream,
    kind: JoinKind,
    call: JoinCall,
    windows: object,
    grace: object,
    store: object,
    name: str | None,
) -> Stream:
    """Each record with those of another stream in windows."""
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
    left: Stream,
    right: Stream,
    kind: JoinKind,
    call: JoinCall,
    windows: JoinWindows,
    store: object,
    name: str | None,
) -> Stream:
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
        StreamStreamJoin(
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
    return call.made(Stream(left.graph, left.graph.add(node), edge), table=False)


def _in_its_windows(lefts: Stream, rights: Stream, call: JoinCall, name: str) -> Stream:
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
    return rights.behind(graph.add(node), edge)


def copartitioned(side: Stream, name: str | None, call: JoinCall, suffix: str) -> Stream:
    """The side's stream, behind a repartition topic if its key may have changed."""
    if not side.key_changed:
        return side.behind(side.node, side.edge)
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
        left: Stream,
        right: Stream,
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

        def window_store(side: Stream, name: str) -> StoreSpec:
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
    left: Stream,
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


def joined_in_interval(
    left: Stream,
    right: Stream,
    call: JoinCall,
    how: object,
    grace: Duration | None,
    before: Duration | None,
    after: Duration | None,
    store: object,
    name: str | None,
) -> Stream:
    """The join of two streams in windows, as an interval before and after each record."""
    kind = _kind(how, ("inner", "left", "outer"), call)
    before_ms, after_ms = duration_ms(before or 0), duration_ms(after or 0)
    windows = JoinWindows(before_ms, after_ms, checked_grace(grace or 0, call.operator, call.where))
    return joined_in_windows(left, right, kind, call, windows, store, name)


def _kind(how: object, known: tuple[str, ...], call: JoinCall) -> JoinKind:
    if how is None:  # the name is that of a field
        return JoinKind.INNER
    if how not in known:
        raise TopologyError(
            f"{call.operator}: how= is {' or '.join(map(repr, known))}, found {how!r}",
            where=call.where,
        )
    return _HOW[str(how)]


def joined_as_of(
    left: Stream,
    right: Stream,
    call: JoinCall,
    how: object,
    grace: Duration | None,
    store: object,
    name: str | None,
    tolerance: Duration | None,
) -> Stream:
    """Each record with the latest one of another stream that is not later."""
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
    return call.made(Stream(graph, graph.add(node), edge), table=False)


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


@dataclass(frozen=True, kw_only=True)
class LookupCall:
    """A call of ``lookup_join`` that was checked."""

    left: Stream
    right: Stream
    is_global: bool
    call: JoinCall
    on: Expression | None
    kind: JoinKind
    store: object
    grace_ms: int | None
    timeout_ms: int | None
    most: int | None

    @staticmethod
    def of(
        left: Stream,
        right: Stream,
        is_global: bool,
        call: JoinCall,
        on: Expression | None,
        store: object,
        grace: Duration | None,
        timeout: Duration | None,
        on_timeout: object,
        most_per_key: object,
    ) -> LookupCall:
        """TopologyError for what cannot be."""
        where = call.where
        kind = _checked(call, None if is_global else on, most_per_key, on_timeout)
        if grace is None and timeout is None:
            raise TopologyError(
                "lookup_join needs grace=, how long a record waits for its entry by the stream's "
                "time, or timeout=, by the machine's clock: grace='10 minutes'",
                where=where,
            )
        timeout_ms = None if timeout is None else duration_ms(timeout)
        if timeout_ms is not None and timeout_ms < 1:
            raise TopologyError(
                f"lookup_join: timeout is above 0, found {timeout_ms} ms", where=where
            )
        return LookupCall(
            left=left,
            right=right,
            is_global=is_global,
            call=call,
            on=on,
            kind=kind,
            store=store,
            grace_ms=None if grace is None else checked_grace(grace, call.operator, where),
            timeout_ms=timeout_ms,
            most=most_per_key if isinstance(most_per_key, int) else None,
        )

    def joined(self, name: str | None) -> Stream:
        """Each record with its entry, once that is there."""
        made = self._with_global(name) if self.is_global else self._with_table(name)
        return self.call.made(made, table=False)

    def _with_table(self, name: str | None) -> Stream:
        call, right, graph, where = self.call, self.right, self.left.graph, self.call.where
        call.check_sides(self.left, right)
        stream = copartitioned(self.left, name, call, "")
        sides = [stream.node, right.node]
        table = read_table(right, call, sides, stream.node)
        reads = specs_of(table)
        history = next((spec.name for spec in reads if spec.versioned), None)
        if history is not None:
            raise TopologyError(
                f"lookup_join waits for what is there now, and {history!r} keeps a "
                f"history: write join(table, grace=..., store='a-name') to wait for late updates "
                f"of it",
                where=where,
            )
        room = self._room(stream)
        node_name = graph.node_name(name, "KSTREAM-LOOKUPJOIN-", where)
        first = graph.reaches_first(right.node, stream.node)
        operator = LookupJoin(table=table, kind=self.kind, room=room, table_first=first)
        edge = call.edge(stream, right)
        stores = (room.store.name, *(one.name for one in reads))
        node = StatefulNode(
            node_name,
            tuple(sides),
            edge.type,
            where,
            "JOIN",
            operator,
            (room.store,),
            reads=reads,
            parts=(Part(node_name, (stream.node,), stores),),
        )
        return Stream(graph, graph.add(node), edge)

    def _with_global(self, name: str | None) -> Stream:
        left, right, where = self.left, self.right, self.call.where
        graph = left.graph
        if right.graph is not graph:
            raise TopologyError(
                "lookup_join takes a global table of the same StreamsBuilder", where=where
            )
        room = self._room(left)
        operator = GlobalLookupJoin(table=whole_table(right), kind=self.kind, room=room)
        node_name = graph.node_name(name, "KSTREAM-LOOKUPJOIN-", where)
        selected = with_mapped_key(left, right, self.on, "lookup_join", node_name, where)
        edge = left.edge.with_types(value=joined_type(left.edge.type.value, right.edge.type.value))
        node = StatefulNode(
            node_name, (selected,), edge.type, where, "JOIN", operator, (room.store,)
        )
        return left.behind(graph.add(node), edge)

    def _room(self, stream: Stream) -> WaitingRoom:
        call, where = self.call, self.call.where
        key_serde, value_serde = stream.edge.serdes(call.operator, where)
        spec = StoreSpec(
            name=self.left.graph.claim_store(self.store, call.operator, where),
            kind="key_value",
            key_serde=bytes_(),
            value_serde=bytes_(),
            where=where,
        )
        return WaitingRoom(
            store=spec,
            key_serde=key_serde,
            value_serde=value_serde,
            grace_ms=self.grace_ms,
            most=self.most,
            timeout_ms=self.timeout_ms,
        )


def _checked(
    call: JoinCall,
    on: Expression | None,
    most_per_key: object,
    on_timeout: object,
) -> JoinKind:
    """What becomes of records whose time is over. TopologyError for what cannot be."""
    where = call.where
    if on is not None:
        raise TopologyError(
            "lookup_join matches by the records' keys, and on= is for global tables; choose the "
            "key first: select_key(...).lookup_join(..., name='a-name')",
            where=where,
        )
    on_timeout = "emit" if on_timeout is None else on_timeout  # a field may be called so
    if on_timeout not in _ON_TIMEOUT:
        raise TopologyError(
            f"lookup_join: on_timeout is 'emit' or 'drop', found {on_timeout!r}", where=where
        )
    if most_per_key is not None and (
        not isinstance(most_per_key, int) or isinstance(most_per_key, bool) or most_per_key < 1
    ):
        raise TopologyError(
            f"lookup_join: most_per_key is a whole number from 1 on, found {most_per_key!r}",
            where=where,
        )
    return _ON_TIMEOUT[str(on_timeout)]
