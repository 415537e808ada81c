"""Joins of streams and tables: the checks, the joiner, the nodes (design note 020).

A join gives ``struct<left, right>``. A joiner makes a value of it: a Column over ``left`` and
``right`` (beside ``key``, ``value``, ``timestamp`` ...), ``field=Column`` arguments (a struct), or
a Python function of (left, right) or (key, left, right) with ``returns=``. A side without a match
is null.

Joins with global tables: note 026; lookup joins: note 027; by foreign keys: KIP-213, note 022.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow import serdes
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
from everflow.dsl.graph_builder import Stream, bytes_store, window_store
from everflow.dsl.key_cures import converted, given, key_of_field, key_of_key
from everflow.dsl.lowering.tables import (
    is_versioned,
    kept_node,
    latest_updates,
    mapped,
    read_table,
    specs_of,
    stored,
    stored_table,
    tells_old,
    whole_table,
)
from everflow.errors import TopologyError
from everflow.operators.joins import (
    JoinedTable,
    JoinKind,
    StreamStreamJoin,
    StreamTableJoin,
    TableTableJoin,
    joined_type,
)
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin, PendingLookups
from everflow.operators.joins.stream_table import (
    AsOfJoin,
    GraceBuffer,
    GraceWait,
    StreamGlobalJoin,
    mapped_type,
)
from everflow.operators.joins.table_table import (
    SUBSCRIPTION,
    Answers,
    AskAgain,
    ForeignKeys,
    Subscriptions,
    answer_type,
    selected_type,
)
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import JOINER, PREPARE, EdgeType, Part, same_type, write_alike
from everflow.windows import Duration, JoinWindows, checked_ms, duration_ms

_OPERATORS = {JoinKind.INNER: "join", JoinKind.LEFT: "left_join", JoinKind.OUTER: "outer_join"}
_OPTIONS = (
    *("how", "windows", "grace", "tolerance", "before", "after", "timeout", "on_timeout"),
    *("most_per_key", "returns", "store", "name"),
)
"""Of all joins. Those that are Columns are fields in this order."""
_ON_TIMEOUT = {"emit": JoinKind.LEFT, "drop": JoinKind.INNER}


@dataclass(frozen=True)
class JoinCall:
    """A call of a join on ``left``, as the user gave it."""

    left: Stream
    kind: JoinKind
    operator: str
    joiner: Expression | None
    fields: dict[str, Column]
    returns: object
    store: object
    name: str | None
    mapped: bool = False
    """True if the joiner also takes the mapped key, with which a global table was asked."""

    @staticmethod
    def of(
        left: Stream, kind: JoinKind, arguments: dict[str, Any], operator: str | None = None
    ) -> tuple[JoinCall, dict[str, Any]]:
        """The call with these ``arguments``, and its other options, of which one that is a
        Column is a field of that name. ``operator``: left out, as the ``kind`` is called."""
        operator, joiner = operator or _OPERATORS[kind], arguments["joiner"]
        options = {name: arguments[name] for name in _OPTIONS if name in arguments}
        columns = {name: one for name, one in options.items() if isinstance(one, Column)}
        fields = columns | arguments["fields"]
        options = {name: None if name in fields else one for name, one in options.items()}
        if fields and joiner is not None:
            raise TopologyError(f"{operator} takes one joiner or field=Column arguments, not both")
        common = {name: options.pop(name) for name in ("returns", "store", "name")}
        return JoinCall(left, kind, operator, joiner, fields, **common), options

    def check_builder(self, right: Stream) -> None:
        if right.graph is not self.left.graph:
            raise TopologyError(
                f"{self.operator} takes a stream or a table of the same StreamsBuilder"
            )

    def check_sides(self, right: Stream, *, tables: bool = False) -> None:
        """TopologyError unless both are of one builder, and equal keys are equal bytes. ``tables``:
        both are tables, which keep their keys."""
        self.check_builder(right)
        mine, its = self.left.edge, right.edge
        if not same_type(mine.type.key, its.type.key):
            keys = f"{type_text(mine.type.key)} and {type_text(its.type.key)}"
            cure = self._by_another_key(mine.type.key, its.type.key, tables)
            raise TopologyError(f"{self.operator} matches by key, and the keys are {keys}. {cure}")
        if not write_alike(mine.key_serde, its.key_serde):
            raise TopologyError(
                f"{self.operator} matches by key, and the keys are written as "
                f"{mine.key_serde!r} and {its.key_serde!r}: equal keys lie in different "
                f"partitions. {self._written_anew(its.key_serde, tables)}",
                code="EF-COPARTITION",
            )

    def _by_another_key(self, mine: pa.DataType, its: pa.DataType, tables: bool) -> str:
        found = (key_of_key(its, mine), key_of_field(its))
        made = [one for one in found if one is not None]

        def either(form: str) -> str:
            return ", or ".join(form.format(one) for one in made)

        if not tables:
            return (
                f"Give the left stream the other's key, of its own key or of a field of its value: "
                f"{either('select_key({})')}; then {self.operator}(..., name='a-name')"
            )
        if self.kind is JoinKind.OUTER:
            return (
                f"A table keeps its key. Make one with the other's key, of its own key or of a "
                f"field of its rows: .to_stream(), {either('.select_key({})')}, then "
                f".to_table(store='a-name')"
            )
        return (
            f"A table is joined with one of another key by a foreign key, which its own key or a "
            f"field of its rows is: {self.operator}(..., on=..., name='a-name') with "
            f"{either('on={}')}. If the rows of the other table have this one's key, call "
            f"{self.operator} of the other table"
        )

    def _written_anew(self, serde: Serde | None, tables: bool) -> str:
        if not tables:
            return f"Write the left one anew with .repartition(name='a-name', key={serde!r})"
        anew = (
            f".to_stream().repartition(name='a-name', key={serde!r}).to_table(store='another-name')"
        )
        if self.kind is JoinKind.OUTER:
            return f"Write the left one anew with {anew}"
        return (
            f"Join by a foreign key, {self.operator}(..., on=F.col('key'), name='a-name'), or "
            f"write the left one anew with {anew}"
        )

    def copartitioned(self, side: Stream, suffix: str) -> Stream:
        if not side.key_changed:
            return side
        checked = side.graph.check_repartition_name(self.name, self.operator)
        return side.repartitioned(f"{checked}{suffix}", self.operator)

    def edge(self, left: Stream, right: Stream) -> Edge:
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
            return joined.projected(
                name,
                JOINER,
                edge.with_types(value=value.type),
                value=value,
            )
        made = edge.returning(self.operator, joiner, value=self.returns)
        called = self._function(joiner)
        called = TableMapper(called) if table else called
        return joined.called(name, JOINER, "map_values", called, made)

    def _function(self, joiner: Callable[..., Any]) -> Callable[..., Any]:
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
    """The records as `selected_type`, with the key of ``right`` that ``on`` makes of them, null for
    a null value."""
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
        made = converted(wanted, found, given)
        raise TopologyError(
            f"{operator}: on= is {type_text(found)}, and the other table's keys are "
            f"{type_text(wanted)}; write on={made or key_of_field(wanted)}"
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


# --- of a stream ----------------------------------------------------------------------------------


def joined_with_table(
    call: JoinCall, right: Stream, windows: object, grace: Duration | None = None
) -> Stream:
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
    table = read_table(right, call.operator, sides, stream.node, stream.node, as_of=True)
    edge = call.edge(stream, right)
    prefix = "KSTREAM-LEFTJOIN-" if kind.keeps_left else "KSTREAM-JOIN-"
    node_name = stream.graph.node_name(call.name, prefix)
    reads = specs_of(table)
    stores = tuple(spec.name for spec in reads)
    if grace is not None:
        buffer = _grace_buffer(stream, right, reads, call, grace)
        waiting = GraceWait(buffer, kind.keeps_left)
        stream = stream.kept(f"{node_name}-waiting", PREPARE, waiting, (buffer.store,))
        sides[0] = stream.node
        stores = (*stores, buffer.store.name)
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


def _grace_buffer(
    stream: Stream,
    right: Stream,
    tables: tuple[StoreSpec, ...],
    call: JoinCall,
    grace: Duration,
) -> GraceBuffer:
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
    return _buffer(stream, call, grace_ms, claimed)


def _buffer(stream: Stream, call: JoinCall, grace_ms: int, claimed: str) -> GraceBuffer:
    key_serde, value_serde = stream.edge.serdes(call.operator)
    spec = bytes_store(claimed)
    return GraceBuffer(
        store=spec,
        key_serde=key_serde,
        value_serde=value_serde,
        grace_ms=grace_ms,
    )


def joined_with_stream(
    call: JoinCall, right: Stream, windows: object, grace: object = None
) -> Stream:
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
    return call.made(
        lefts.kept(
            name,
            "JOIN",
            operator,
            stores,
            edge,
            sides=sides,
            parts=parts,
        )
    )


def _stores(
    call: JoinCall, right: Stream, kind: JoinKind, windows: JoinWindows
) -> tuple[StoreSpec, ...]:
    """The left stream's, the right one's, and, if one side is kept, that of the records without a
    match, with Kafka Streams' names. TopologyError for a name that is missing or taken."""
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
    return JoinKind(str(how))


def joined_as_of(
    call: JoinCall,
    right: Stream,
    how: object,
    grace: Duration | None,
    tolerance: Duration | None,
) -> Stream:
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
    buffer = None
    if grace_ms:
        beside = graph.claim_beside(f"{claimed}-waiting", claimed, call.operator)
        buffer = _buffer(lefts, call, grace_ms, beside)
    operator = AsOfJoin(
        kind=kind,
        right=kept,
        type=rights.edge.type.value,
        tolerance_ms=tolerance_ms,
        buffer=buffer,
        left_first=graph.hands_on_first(lefts.node, rights.node),
    )
    name, edge = graph.node_name(call.name, "KSTREAM-ASOFJOIN-"), call.edge(lefts, rights)
    stores = (kept,) if buffer is None else (kept, buffer.store)
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

    def pending(stream: Stream) -> PendingLookups:
        key_serde, value_serde = stream.edge.serdes("lookup_join")
        return PendingLookups(
            store=bytes_store(stream.graph.claim_store(call.store, "lookup_join")),
            key_serde=key_serde,
            value_serde=value_serde,
            grace_ms=grace_ms,
            most=most_per_key,
            timeout_ms=timeout_ms,
        )

    if not is_global:
        return call.made(_in_table(call, right, pending))
    call.check_builder(right)
    left, lookups = call.left, pending(call.left)
    operator = GlobalLookupJoin(table=whole_table(right), kind=call.kind, pending=lookups)
    node_name = left.graph.node_name(call.name, "KSTREAM-LOOKUPJOIN-")
    selected = with_foreign_key(left, right, on, "lookup_join", f"{node_name}-on")
    edge = left.edge.with_types(value=joined_type(left.edge.type.value, right.edge.type.value))
    return call.made(selected.kept(node_name, "JOIN", operator, (lookups.store,), edge))


def _in_table(
    call: JoinCall, right: Stream, pending_of: Callable[[Stream], PendingLookups]
) -> Stream:
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
    pending = pending_of(stream)
    node_name = stream.graph.node_name(call.name, "KSTREAM-LOOKUPJOIN-")
    first = stream.graph.reaches_first(right.node, stream.node)
    return stream.kept(
        node_name,
        "JOIN",
        LookupJoin(table=table, kind=call.kind, pending=pending, table_first=first),
        (pending.store,),
        call.edge(stream, right),
        sides=tuple(sides),
        reads=reads,
        parts=(
            Part(node_name, (stream.node,), (pending.store.name, *(one.name for one in reads))),
        ),
    )


def joined_with_global(
    call: JoinCall,
    right: Stream,
    on: Expression | None,
    windows: object,
    grace: object = None,
) -> Stream:
    if call.kind is JoinKind.OUTER:
        raise TopologyError(
            "outer_join is for two streams or two tables: changes of a global table give no "
            "results; use left_join"
        )
    if windows is not None or grace is not None or call.store is not None:
        raise TopologyError(
            f"{call.operator} with a global table takes no windows=, grace= or store=: it looks up "
            f"what the table holds now"
        )
    call.check_builder(right)
    left, joiner = call.left, call.joiner
    # Kafka Streams calls both kinds so.
    node_name = left.graph.node_name(call.name, "KSTREAM-LEFTJOIN-")
    selected = with_foreign_key(left, right, on, call.operator, f"{node_name}-on")
    if joiner is not None and not isinstance(joiner, Column) and required_parameters(joiner) == 4:
        call = replace(call, mapped=True)
    types = (left.edge.type.value, right.edge.type.value)
    value = mapped_type(*types, right.edge.type.key) if call.mapped else joined_type(*types)
    operator = StreamGlobalJoin(whole_table(right), call.kind, call.mapped)
    edge = left.edge.with_types(value=value)
    return call.made(selected.kept(node_name, "JOIN", operator, edge=edge))


# --- of a table -----------------------------------------------------------------------------------

_FOREIGN_RESULT = "KTABLE-FK-JOIN-OUTPUT-"
"""How Kafka Streams calls the table that it makes of the results, and its store."""
_NAMES = 13
"""How many names Kafka Streams makes up for one; with a name of the user's, too."""


def joined_by_key(call: JoinCall, right: Stream) -> Stream:
    call.check_sides(right, tables=True)
    left, graph, name = call.left, right.graph, call.name
    merged = graph.node_name(name, "KTABLE-MERGE-")
    sides = [
        latest_updates(graph, one.node, f"{merged}-{side}", call.operator)
        for one, side in ((left, "left"), (right, "right"))
    ]
    tables = [
        read_table(one, call.operator, sides, other.node, f"{merged}-{side}")
        for one, other, side in ((left, right, "left"), (right, left, "right"))
    ]
    parts = tuple(  # the two nodes that Kafka Streams has for the changes of either side
        Part(
            graph.node_name(None if name is None else f"{name}-join-{one}", prefix),
            (side.node,),
            tuple(table.spec.name for table in other.stored),
        )
        for one, prefix, side, other in (
            ("this", "KTABLE-JOINTHIS-", left, tables[1]),
            ("other", "KTABLE-JOINOTHER-", right, tables[0]),
        )
    )
    if call.store is None:
        parts = (*parts, Part(merged, tuple(part.name for part in parts)))
    operator = TableTableJoin(
        left=tables[0],
        right=tables[1],
        kind=call.kind,
        left_first=graph.hands_on_first(left.node, right.node),
    )
    both = left.kept(
        merged if call.store is None else f"{merged}-results",
        "JOIN",
        operator,
        edge=call.edge(left, right),
        sides=tuple(sides),
        reads=specs_of(*tables),
        parts=parts,
    )
    made = call.made(both, table=True)
    return made if call.store is None else stored(made, merged, call.store, call.operator)


def joined_by_foreign_key(call: JoinCall, right: Stream, on: Expression) -> Stream:
    graph = right.graph
    joined = _ForeignKeyJoin(call, right, on).made()
    made = call.made(joined, table=True)
    if call.store is not None:
        return stored(made, f"{joined.node}-kept", call.store, call.operator)
    name = graph.new_name(f"{_FOREIGN_RESULT}STATE-STORE-")
    values = Stream(graph, f"{made.node}-results", made.edge)
    graph.keep_when_asked(kept_node(values, made.node, name, call.operator))
    return made


class _ForeignKeyJoin:
    def __init__(self, call: JoinCall, right: Stream, on: Expression) -> None:
        self.call, self.left, self.right, self.on = call, call.left, right, on
        self.graph, self.operator, self.kind = right.graph, call.operator, call.kind

    def made(self) -> Stream:
        graph, call, operator = self.graph, self.call, self.operator
        call.check_builder(self.right)
        name = graph.check_repartition_name(call.name, f"{operator} with on=")
        graph.burn(_NAMES)
        mine = latest_updates(graph, self.left.node, f"{name}-left", operator)
        its = latest_updates(graph, self.right.node, f"{name}-right", operator)
        key_serde, value_serde = self.left.edge.serdes(operator)
        foreign_serde = self.right.edge.written_key(operator)
        asks = self._asks(name, mine, (key_serde, value_serde, foreign_serde))
        written = foreign_serde, serdes.packed(SUBSCRIPTION)
        asked = graph.repartition(f"{name}-asks", asks.node, asks.edge.type, written)
        answers = self._answers(name, [asked, its], key_serde, foreign_serde)
        return self._joined(name, answers, value_serde)

    def _asks(self, name: str, updates: str, written: tuple[Serde, Serde, Serde]) -> Stream:
        """The subscriptions. ``written``: the serdes of its key, its value and foreign keys."""
        if not tells_old(self.graph, updates, forced=True):
            stored_table(self.graph, self.left.node, self.operator)  # says what it lacks
            raise AssertionError("a table that can be looked up knows what it was")
        source = self.left.behind(updates, self.left.edge)
        new = with_foreign_key(source, self.right, self.on, self.operator, f"{name}-new")
        edge = Edge.inside(self.right.edge.type.key, SUBSCRIPTION)
        return new.kept(
            f"{name}-asking",
            "FK-ASK",
            ForeignKeys(*written, self.kind),
            edge=edge,
        )

    def _answers(
        self, name: str, sides: list[str], entry_serde: Serde, foreign_serde: Serde
    ) -> str:
        """The node of answers, read back in the tasks of the entries that asked."""
        store = self.graph.claim_store(f"{name}-asks", self.operator)
        edge = Edge.inside(self.left.edge.type.key, answer_type(self.right.edge.type.value))
        table = read_table(self.right, self.operator, sides, sides[0], f"{name}-right")
        operator = Subscriptions(
            store=store,
            table=table,
            entry_serde=entry_serde,
            foreign_serde=foreign_serde,
            kept=self.kind.keeps_left,
        )
        inputs, called = tuple(sides), f"{name}-answering"
        made = self.right.kept(
            called,
            "FK-ANSWER",
            operator,
            (bytes_store(store, private=True),),
            edge,
            sides=inputs,
            reads=specs_of(table),
            parts=() if isinstance(table, JoinedTable) else (Part(called, inputs, (store,)),),
        )
        written = entry_serde, serdes.packed(edge.type.value)
        return self.graph.repartition(f"{name}-answers", made.node, edge.type, written)

    def _joined(self, name: str, answers: str, value_serde: Serde) -> Stream:
        sides = list[str]()
        table = read_table(self.left, self.operator, sides, answers, f"{name}-left")
        selected = None
        if not self.kind.keeps_left:
            selected = mapped(table, self.graph.nodes[f"{name}-new"])
            self._ask_again(name, answers, value_serde)
        inputs = (*sides, answers)
        return self.left.kept(
            name,
            "JOIN",
            Answers(table=table, selected=selected, value_serde=value_serde, kind=self.kind),
            edge=self.call.edge(self.left, self.right),
            sides=inputs,
            reads=specs_of(table),
            parts=() if isinstance(table, JoinedTable) else (Part(name, inputs),),
        )

    def _ask_again(self, name: str, answers: str, value_serde: Serde) -> None:
        """The node that asks again for what the entries of stale answers are now: nobody else may
        tell it, as the question of an inner join is answered where there is something (note
        022)."""
        sides = [f"{name}-new"]
        table = read_table(self.left, self.operator, sides, answers, f"{name}-left")
        operator = AskAgain(
            table=table,
            selected=mapped(table, self.graph.nodes[sides[0]]),
            key_serde=self.left.edge.written_key(self.operator),
            value_serde=value_serde,
        )
        called, inputs = f"{name}-asking-again", (*sides, answers)
        sink = self.graph.nodes[f"{name}-asks-repartition-sink"]
        edge = Edge(sink.out, None, None)
        parts, reads = (Part(called, inputs),), specs_of(table)
        made = self.left.kept(
            called, "FK-ASK", operator, edge=edge, sides=inputs, reads=reads, parts=parts
        )
        self.graph.add(replace(sink, name=f"{name}-asks-again-sink", inputs=(made.node,)))
