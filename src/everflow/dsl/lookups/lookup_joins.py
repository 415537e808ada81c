"""Lookup joins: records of a stream wait until their entry is there (design note 027).

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Edge, Expression
from everflow.dsl.in_time.held_rows import is_kept, tables_behind, told_behind
from everflow.dsl.in_time.timed_joins import TimedJoins
from everflow.dsl.joins import JoinCall
from everflow.dsl.lookups.global_tables import GlobalKTable, with_mapped_key
from everflow.dsl.options.materialized import Materialized
from everflow.dsl.stream_joins import checked_grace, copartitioned, with_rows
from everflow.errors import TopologyError
from everflow.operators.joins import JoinKind, joined_type
from everflow.operators.lookups import GlobalLookupJoin, LookupJoin, WaitingRoom
from everflow.serdes import bytes_
from everflow.state.store import StoreSpec
from everflow.topology.graph import Part, StatefulNode
from everflow.windows import Duration, duration_ms

if TYPE_CHECKING:
    from everflow.dsl.kstream import KStream
    from everflow.dsl.ktable import KTable

_KINDS = {"emit": JoinKind.LEFT, "drop": JoinKind.INNER}


class LookupJoins(TimedJoins):
    """The joins of `KStream`, with those whose records wait."""

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
        store: str | Materialized | Column | None = None,
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

        Results have their records' times; those of one key that have waited come in their order.
        A result has its record's headers.
        """
        options: dict[str, Any] = {"grace": grace, "timeout": timeout, "on_timeout": on_timeout}
        options |= {"most_per_key": most_per_key}
        options |= {"returns": returns, "store": store, "name": name}
        call, options = JoinCall.of(JoinKind.LEFT, joiner, options, fields)
        call = replace(call, operator="lookup_join")
        kept, called = options.pop("store"), options.pop("name")
        lookup = _Lookup.of(self, table, call, on, kept, **options)
        if isinstance(table, GlobalKTable):
            return self.derived(*call.made(self.graph, *lookup.with_global(called), table=False))
        made, edge = call.made(self.graph, *lookup.with_table(called), table=False)
        return self.graph.faces.stream(self.graph, made, edge)


@dataclass(frozen=True, kw_only=True)
class _Lookup:
    """A call of ``lookup_join`` that was checked."""

    left: LookupJoins
    right: Any
    call: JoinCall
    on: Expression | None
    kind: JoinKind
    store: object
    grace_ms: int | None
    timeout_ms: int | None
    most: int | None

    @staticmethod
    def of(
        left: LookupJoins,
        right: object,
        call: JoinCall,
        on: Expression | None,
        store: object,
        grace: Duration | None,
        timeout: Duration | None,
        on_timeout: object,
        most_per_key: object,
    ) -> _Lookup:
        """TopologyError for what cannot be."""
        where = call.where
        kind = _checked(left, right, call, on, most_per_key, on_timeout)
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
        return _Lookup(
            left=left,
            right=right,
            call=call,
            on=on,
            kind=kind,
            store=store,
            grace_ms=None if grace is None else checked_grace(grace, call.operator, where),
            timeout_ms=timeout_ms,
            most=most_per_key if isinstance(most_per_key, int) else None,
        )

    def with_table(self, name: str | None) -> tuple[str, Edge]:
        """The node of the join, and its edge."""
        call, right, graph, where = self.call, self.right, self.left.graph, self.call.where
        call.check_sides(self.left, right)
        tables = tables_behind(right, call)
        history = next((one.spec.name for one in tables if one.spec.versioned), None)
        if history is not None:
            raise TopologyError(
                f"lookup_join waits for what is there now, and {history!r} keeps a "
                f"history: write join(table, grace=..., store='a-name') to wait for late updates "
                f"of it",
                where=where,
            )
        stream = copartitioned(self.left, name, call, "")
        room = self._room(stream)
        node_name = graph.node_name(name, "KSTREAM-LOOKUPJOIN-", where)
        in_rows, first = not is_kept(right), graph.reaches_first(right.node, stream.node)
        asking, reads = stream.node, tuple(one.spec for one in tables)
        if in_rows:
            asking = with_rows(stream, right, node_name, call)
        operator = LookupJoin(
            table=told_behind(right, call),
            kind=self.kind,
            room=room,
            table_first=first,
            in_rows=in_rows,
        )
        edge = call.edge(stream, right)
        stores = (room.store.name, *(one.name for one in reads))
        node = StatefulNode(
            node_name,
            (asking, right.node),
            edge.type,
            where,
            "JOIN",
            operator,
            (room.store,),
            reads=() if in_rows else reads,
            parts=(Part(node_name, (stream.node,), stores),),
        )
        return graph.add(node), edge

    def with_global(self, name: str | None) -> tuple[str, Edge]:
        """As `with_table`, of a global table."""
        left, right, where = self.left, self.right, self.call.where
        graph = left.graph
        if right.graph is not graph:
            raise TopologyError(
                "lookup_join takes a global table of the same StreamsBuilder", where=where
            )
        room = self._room(left)
        operator = GlobalLookupJoin(table=right.joined, kind=self.kind, room=room)
        node_name = graph.node_name(name, "KSTREAM-LOOKUPJOIN-", where)
        selected = with_mapped_key(left, right, self.on, "lookup_join", node_name, where)
        edge = left.edge.with_types(value=joined_type(left.edge.type.value, right.edge.type.value))
        node = StatefulNode(
            node_name, (selected,), edge.type, where, "JOIN", operator, (room.store,)
        )
        return graph.add(node), edge

    def _room(self, stream: LookupJoins | KStream) -> WaitingRoom:
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
    left: LookupJoins,
    right: object,
    call: JoinCall,
    on: Expression | None,
    most_per_key: object,
    on_timeout: object,
) -> JoinKind:
    """What becomes of records whose time is over. TopologyError for what cannot be."""
    where = call.where
    if not isinstance(right, GlobalKTable) and not isinstance(right, left.graph.faces.table):
        raise TopologyError(
            f"lookup_join takes a table or a global table, found {right!r}", where=where
        )
    if on is not None and not isinstance(right, GlobalKTable):
        raise TopologyError(
            "lookup_join matches by the records' keys, and on= is for global tables; choose the "
            "key first: select_key(...).lookup_join(..., name='a-name')",
            where=where,
        )
    on_timeout = "emit" if on_timeout is None else on_timeout  # a field may be called so
    if on_timeout not in _KINDS:
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
    return _KINDS[str(on_timeout)]
