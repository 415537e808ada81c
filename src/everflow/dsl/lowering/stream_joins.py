"""Joins of a stream: with a table, with another stream in windows, and as of a time.

Records of a lookup join wait until their entry is there (design note 027).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from everflow.dsl.expressions import Expression
from everflow.dsl.lowering.global_tables import whole_table
from everflow.dsl.lowering.join_call import JoinCall, in_windows_of, with_foreign_key
from everflow.dsl.lowering.stream import Stream, bytes_store, window_store
from everflow.dsl.lowering.table_reads import is_versioned, read_table, specs_of
from everflow.errors import TopologyError
from everflow.operators.joins import (
    JoinKind,
    StreamStreamJoin,
    StreamTableJoin,
    joined_type,
)
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin, WaitingRoom
from everflow.operators.joins.stream_table import AsOfJoin, GraceWait, HeldBack
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import PREPARE, Part
from everflow.windows import Duration, JoinWindows, checked_ms, duration_ms

_HOW = {kind.value: kind for kind in JoinKind}
_ON_TIMEOUT = {"emit": JoinKind.LEFT, "drop": JoinKind.INNER}


def joined_with_table(
    call: JoinCall, right: Stream, windows: object, grace: Duration | None
) -> Stream:
    """Each record with what a table holds for its key."""
    kind = call.kind
    if kind is JoinKind.OUTER:
        raise TopologyError(
            "outer_join is for two streams or two tables: changes of a table give no results here; "
            "use left_join"
        )
    if windows is not None or (call.store is not None and grace is None):
        raise TopologyError(
            f"{call.operator} with a table takes neither windows= nor store=: it looks up what the "
            f"table holds; store= goes with grace=, for the records that wait"
        )
    call.check_sides(right)
    stream = call.copartitioned(call.left, "")
    sides = [stream.node]
    table = read_table(right, call.operator, sides, stream.node, as_of=True)
    edge = call.edge(stream, right)
    prefix = "KSTREAM-LEFTJOIN-" if kind.keeps_left else "KSTREAM-JOIN-"
    node_name = stream.graph.node_name(call.name, prefix)
    reads = specs_of(table)
    stores = tuple(spec.name for spec in reads)
    if grace is not None:
        held = _held_back(stream, right, reads, call, grace)
        waiting = GraceWait(held, kind.keeps_left)
        stream = stream.kept(f"{node_name}-waiting", PREPARE, waiting, (held.store,))
        sides[0] = stream.node
        stores = (*stores, held.store.name)
    joined = stream.kept(
        node_name,
        "JOIN",
        StreamTableJoin(table, kind),
        edge=edge,
        sides=tuple(sides),
        reads=reads,
        parts=(Part(node_name, (stream.node,), stores),),
    )
    return call.made(joined)


def _held_back(
    stream: Stream,
    right: Stream,
    tables: tuple[StoreSpec, ...],
    call: JoinCall,
    grace: Duration,
) -> HeldBack:
    """Where the stream's records wait for the table, whose entries are made of ``tables``."""
    grace_ms = checked_ms(grace, f"{call.operator}: a grace")
    versioned = f"{call.operator} with grace= takes a versioned table, which knows what was at a "
    if len(tables) > 1:
        raise TopologyError(
            f"{versioned}record's time; a join of tables keeps no history: keep its results, "
            f".to_stream().to_table(store=Materialized('a-name', history='1 hour'))"
        )
    spec = tables[0]
    if not is_versioned(right.graph, right.node):
        raise TopologyError(
            f"{versioned}record's time; {spec.name!r} keeps no history: give "
            f"store=Materialized({spec.name!r}, history='1 hour') in the call that makes it"
        )
    history_ms = spec.retention_ms or 0
    if grace_ms > history_ms:
        raise TopologyError(
            f"{call.operator}: a grace of {grace_ms} ms is longer than the table's history of "
            f"{history_ms} ms, so records would be joined with what is not kept any more; give "
            f"a longer history=, or a shorter grace"
        )
    claimed = stream.graph.claim_store(call.store, call.operator)
    return held_back(stream, call, grace_ms, claimed)


def held_back(stream: Stream, call: JoinCall, grace_ms: int, claimed: str) -> HeldBack:
    """The buffer of a stream whose records wait, in a store whose name is ``claimed``."""
    key_serde, value_serde = stream.edge.serdes(call.operator)
    spec = bytes_store(claimed)
    return HeldBack(store=spec, key_serde=key_serde, value_serde=value_serde, grace_ms=grace_ms)


def joined_with_stream(call: JoinCall, right: Stream, windows: object, grace: object) -> Stream:
    """Each record with those of another stream in windows."""
    if grace is not None:
        raise TopologyError(
            f"{call.operator} of two streams has its grace in the windows; write "
            f"windows=JoinWindows.of_time_difference('5 minutes').grace('1 minute')"
        )
    if not isinstance(windows, JoinWindows):
        raise TopologyError(
            f"{call.operator} of two streams takes windows=, found {windows!r}; write "
            f"windows=JoinWindows.of_time_difference('5 minutes')"
        )
    return joined_in_windows(call, right, call.kind, windows)


def joined_in_windows(
    call: JoinCall, right: Stream, kind: JoinKind, windows: JoinWindows
) -> Stream:
    """The join of two streams."""
    call.check_sides(right)
    graph = right.graph
    stores = _stores(call, right, kind, windows)
    lefts, rights = call.copartitioned(call.left, "-left"), call.copartitioned(right, "-right")
    key = in_windows_of(lefts.edge, rights.edge)
    if key is not None:  # with keys as the left one's serde reads them
        edge = rights.edge.with_serdes(key=lefts.edge.key_serde)
        ends = analyse(key, rights.edge.type)
        rights = rights.projected(f"{stores[0].name}-windows", PREPARE, edge, key=ends)
    parts = _parts(call, lefts.node, rights.node, kind, [store.name for store in stores])
    operator = StreamStreamJoin(
        kind,
        windows,
        (stores[0], stores[1]),
        (lefts.edge.type.value, rights.edge.type.value),
        stores[2] if kind.keeps_left else None,
        left_first=graph.hands_on_first(lefts.node, rights.node),
    )
    name, edge, sides = parts[-1].name, call.edge(lefts, rights), (lefts.node, rights.node)
    return call.made(lefts.kept(name, "JOIN", operator, stores, edge, sides=sides, parts=parts))


def _stores(
    call: JoinCall, right: Stream, kind: JoinKind, windows: JoinWindows
) -> tuple[StoreSpec, ...]:
    """The left stream's, the right one's, and, if one side is kept, that of the records without a
    match: called as Kafka Streams calls them after ``StreamJoined.withStoreName``. TopologyError
    for a name that is missing or taken."""
    this = "outer-this" if kind.keeps_right else "this"
    other = "outer-other" if kind.keeps_left else "other"
    suffixes = [f"-{this}-join-store", f"-{other}-join-store"]
    if kind.keeps_left:
        suffixes.append(f"-{'outer' if kind.keeps_right else 'left'}-shared-join-store")
    names = call.left.graph.claim_each(call.store, suffixes, call.operator)
    # A record is there for as long as stream time is not beyond, not only below.
    kept_ms = windows.size_ms + windows.grace_ms + 1
    found = [
        window_store(name, side.edge.serdes(call.operator), kept_ms, windows.size_ms)
        for name, side in zip(names, (call.left, right), strict=False)
    ]
    return (*found, *(bytes_store(name, private=True) for name in names[2:]))


def _parts(
    call: JoinCall, left: str, right: str, kind: JoinKind, stores: list[str]
) -> tuple[Part, ...]:
    """The five nodes that Kafka Streams has for it, in its order of names."""
    graph, name = call.left.graph, call.name

    def named(suffix: str, prefix: str) -> str:
        return graph.node_name(None if name is None else f"{name}{suffix}", prefix)

    this_windowed = named("-this-windowed", "KSTREAM-WINDOWED-")
    other_windowed = named("-other-windowed", "KSTREAM-WINDOWED-")
    this, other = ("OUTERTHIS" if kind.keeps_right else "JOINTHIS"), "JOINOTHER"
    other = "OUTEROTHER" if kind.keeps_left else other
    # These two numbers are used up, whether the nodes have names or not.
    generated = [graph.new_name(f"KSTREAM-{one}-") for one in (this, other)]
    suffixes = (
        "-outer-this-join" if kind.keeps_right else "-this-join",
        "-outer-other-join" if kind.keeps_left else "-other-join",
    )
    joins = generated if name is None else [f"{name}{suffix}" for suffix in suffixes]
    of_left, of_right, *waiting = stores
    return (
        Part(this_windowed, (left,), (of_left,)),
        Part(other_windowed, (right,), (of_right,)),
        Part(joins[0], (this_windowed,), (of_right, *waiting)),
        Part(joins[1], (other_windowed,), (of_left, *waiting)),
        Part(named("-merge", "KSTREAM-MERGE-"), (joins[0], joins[1])),
    )


def joined_in_interval(
    call: JoinCall,
    right: Stream,
    how: object,
    grace: Duration | None,
    before: Duration | None,
    after: Duration | None,
) -> Stream:
    """The join of two streams in windows, as an interval before and after each record."""
    kind = _kind(how, ("inner", "left", "outer"), call)
    before_ms, after_ms = duration_ms(before or 0), duration_ms(after or 0)
    grace_ms = checked_ms(grace or 0, "join_interval: a grace")
    return joined_in_windows(call, right, kind, JoinWindows(before_ms, after_ms, grace_ms))


def _kind(how: object, known: tuple[str, ...], call: JoinCall) -> JoinKind:
    if how is None:  # the name is that of a field
        return JoinKind.INNER
    if how not in known:
        raise TopologyError(
            f"{call.operator}: how= is {' or '.join(map(repr, known))}, found {how!r}"
        )
    return _HOW[str(how)]


def joined_as_of(
    call: JoinCall,
    right: Stream,
    how: object,
    grace: Duration | None,
    tolerance: Duration | None,
) -> Stream:
    """Each record with the latest one of another stream that is not later."""
    kind = _kind(how, ("inner", "left"), call)
    graph = right.graph
    grace_ms = checked_ms(grace or 0, "join_asof: a grace")
    if tolerance is None:
        raise TopologyError(
            "join_asof keeps the other side's records for as long as they can be met; say how much "
            "earlier a match may be: join_asof(..., tolerance='5 minutes')"
        )
    tolerance_ms = checked_ms(tolerance, "join_asof: a tolerance")
    call.check_sides(right)
    claimed = graph.claim_store(call.store, call.operator)
    lefts, rights = call.copartitioned(call.left, "-left"), call.copartitioned(right, "-right")
    # A record is there for as long as stream time is not beyond, not only below.
    kept = window_store(claimed, rights.edge.serdes(call.operator), tolerance_ms + grace_ms + 1)
    held = None
    if grace_ms:
        beside = graph.claim_beside(f"{claimed}-waiting", claimed, call.operator)
        held = held_back(lefts, call, grace_ms, beside)
    operator = AsOfJoin(
        kind=kind,
        right=kept,
        type=rights.edge.type.value,
        tolerance_ms=tolerance_ms,
        held=held,
        left_first=graph.hands_on_first(lefts.node, rights.node),
    )
    name, edge = graph.node_name(call.name, "KSTREAM-ASOFJOIN-"), call.edge(lefts, rights)
    stores = (kept,) if held is None else (kept, held.store)
    sides = (lefts.node, rights.node)
    return call.made(lefts.kept(name, "JOIN", operator, stores, edge, sides=sides))


def looked_up(
    call: JoinCall,
    right: Stream,
    is_global: bool,
    on: Expression | None,
    grace: Duration | None,
    timeout: Duration | None,
    on_timeout: object,
    most_per_key: object,
) -> Stream:
    """Each record with its entry, once that is there. TopologyError for what cannot be."""
    if on is not None and not is_global:
        raise TopologyError(
            "lookup_join matches by the records' keys, and on= is for global tables; choose the "
            "key first: select_key(...).lookup_join(..., name='a-name')"
        )
    on_timeout = "emit" if on_timeout is None else on_timeout  # a field may be called so
    if on_timeout not in _ON_TIMEOUT:
        raise TopologyError(f"lookup_join: on_timeout is 'emit' or 'drop', found {on_timeout!r}")
    if most_per_key is not None and (
        not isinstance(most_per_key, int) or isinstance(most_per_key, bool) or most_per_key < 1
    ):
        raise TopologyError(
            f"lookup_join: most_per_key is a whole number from 1 on, found {most_per_key!r}"
        )
    if grace is None and timeout is None:
        raise TopologyError(
            "lookup_join needs grace=, how long a record waits for its entry by the stream's "
            "time, or timeout=, by the machine's clock: grace='10 minutes'"
        )
    call = replace(call, kind=_ON_TIMEOUT[str(on_timeout)])
    timeout_ms = None if timeout is None else checked_ms(timeout, "lookup_join: timeout", 1)
    grace_ms = None if grace is None else checked_ms(grace, "lookup_join: a grace")

    def room(stream: Stream) -> WaitingRoom:
        key_serde, value_serde = stream.edge.serdes("lookup_join")
        return WaitingRoom(
            store=bytes_store(stream.graph.claim_store(call.store, "lookup_join")),
            key_serde=key_serde,
            value_serde=value_serde,
            grace_ms=grace_ms,
            most=most_per_key,
            timeout_ms=timeout_ms,
        )

    found = _in_global(call, right, on, room) if is_global else _in_table(call, right, room)
    return call.made(found)


def _in_table(call: JoinCall, right: Stream, room_of: Callable[[Stream], WaitingRoom]) -> Stream:
    call.check_sides(right)
    stream = call.copartitioned(call.left, "")
    sides = [stream.node, right.node]
    table = read_table(right, "lookup_join", sides, stream.node)
    reads = specs_of(table)
    history = next((spec.name for spec in reads if spec.versioned), None)
    if history is not None:
        raise TopologyError(
            f"lookup_join waits for what is there now, and {history!r} keeps a history: write "
            f"join(table, grace=..., store='a-name') to wait for late updates of it"
        )
    room = room_of(stream)
    node_name = stream.graph.node_name(call.name, "KSTREAM-LOOKUPJOIN-")
    first = stream.graph.reaches_first(right.node, stream.node)
    return stream.kept(
        node_name,
        "JOIN",
        LookupJoin(table=table, kind=call.kind, room=room, table_first=first),
        (room.store,),
        call.edge(stream, right),
        sides=tuple(sides),
        reads=reads,
        parts=(Part(node_name, (stream.node,), (room.store.name, *(one.name for one in reads))),),
    )


def _in_global(
    call: JoinCall,
    right: Stream,
    on: Expression | None,
    room_of: Callable[[Stream], WaitingRoom],
) -> Stream:
    call.check_builder(right)
    left, room = call.left, room_of(call.left)
    operator = GlobalLookupJoin(table=whole_table(right), kind=call.kind, room=room)
    node_name = left.graph.node_name(call.name, "KSTREAM-LOOKUPJOIN-")
    selected = with_foreign_key(left, right, on, "lookup_join", f"{node_name}-on")
    edge = left.edge.with_types(value=joined_type(left.edge.type.value, right.edge.type.value))
    return selected.kept(node_name, "JOIN", operator, (room.store,), edge)
