"""Lookup joins: records of a stream wait until the table has their entry (design note 027).

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Expression
from everflow.dsl.in_time.timed_joins import TimedJoins
from everflow.dsl.joins import JoinCall, joined_table
from everflow.dsl.stream_joins import checked_grace, copartitioned
from everflow.errors import TopologyError
from everflow.operators.joins import JoinKind
from everflow.operators.lookups import LookupJoin, WaitingRoom
from everflow.serdes import bytes_
from everflow.state.store import StoreSpec
from everflow.topology.graph import Part, StatefulNode
from everflow.windows import Duration

if TYPE_CHECKING:
    from everflow.dsl.kstream import KStream
    from everflow.dsl.ktable import KTable

_KINDS = {"emit": JoinKind.LEFT, "drop": JoinKind.INNER}


class LookupJoins(TimedJoins):
    """The joins of `KStream`, with those whose records wait."""

    @builder_call
    def lookup_join(
        self,
        table: KTable,
        joiner: Expression | None = None,
        *,
        grace: Duration | Column | None = None,
        on_timeout: str | Column = "emit",
        most_per_key: int | Column | None = None,
        returns: object = None,
        store: str | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KStream:
        """As `left_join` with a table, but a record without an entry waits in ``store``: until an
        update brings the entry, at most until this stream's time has passed it by more than
        ``grace``. Then it comes with a null ``right``, or not at all (``on_timeout``: ``emit`` or
        ``drop``). Of one key at most ``most_per_key`` wait: then the one that has waited longest
        gives way, as if its time were over.

        Results have their records' times; those of one key that have waited come in their order.
        """
        options: dict[str, Any] = {"grace": grace, "on_timeout": on_timeout, "returns": returns}
        options |= {"most_per_key": most_per_key, "store": store, "name": name}
        call, options = JoinCall.of(JoinKind.LEFT, joiner, options, fields)
        call = replace(call, operator="lookup_join")
        return _looked_up(self, table, call, **options)


def _looked_up(
    left: LookupJoins,
    right: KTable,
    call: JoinCall,
    grace: Duration,
    on_timeout: object,
    most_per_key: int | None,
    store: object,
    name: str | None,
) -> KStream:
    graph, where = left.graph, call.where
    on_timeout = "emit" if on_timeout is None else on_timeout  # a field may be called so
    how = _checked(left, right, grace, on_timeout, most_per_key, where)
    call.check_sides(left, right)
    table = joined_table(right, call)
    if table.spec.versioned:
        raise TopologyError(
            f"lookup_join waits for what is there now, and {table.spec.name!r} keeps a history: "
            f"write join(table, grace=..., store='a-name') to wait for late updates of it",
            where=where,
        )
    stream = copartitioned(left, name, call, "")
    key_serde, value_serde = stream.edge.serdes(call.operator, where)
    spec = StoreSpec(
        name=graph.claim_store(store, call.operator, where),
        kind="key_value",
        key_serde=bytes_(),
        value_serde=bytes_(),
        where=where,
    )
    room = WaitingRoom(
        store=spec,
        key_serde=key_serde,
        value_serde=value_serde,
        grace_ms=checked_grace(grace, call.operator, where),
        most=most_per_key,
    )
    operator = LookupJoin(
        table=table,
        kind=how,
        room=room,
        table_first=graph.reaches_first(right.node, stream.node),
    )
    node_name = graph.node_name(name, "KSTREAM-LOOKUPJOIN-", where)
    edge = call.edge(stream, right)
    node = StatefulNode(
        node_name,
        (stream.node, right.node),
        edge.type,
        where,
        "JOIN",
        operator,
        (spec,),
        reads=(table.spec,),
        parts=(Part(node_name, (stream.node,), (spec.name, table.spec.name)),),
    )
    made, edge = call.made(graph, graph.add(node), edge, table=False)
    return graph.faces.stream(graph, made, edge)


def _checked(
    left: LookupJoins,
    right: object,
    grace: object,
    on_timeout: object,
    most_per_key: object,
    where: str | None,
) -> JoinKind:
    """What becomes of records whose time is over. TopologyError for what cannot be."""
    if not isinstance(right, left.graph.faces.table):
        raise TopologyError(
            f"lookup_join takes a table, found {right!r}; a global table is looked up by "
            f"join(global_table, on=...), and its records do not wait",
            where=where,
        )
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
    if grace is None:
        raise TopologyError(
            "lookup_join needs grace=, how long a record waits for its entry: grace='10 minutes'",
            where=where,
        )
    return _KINDS[str(on_timeout)]
