"""Operators on one stream that keep a state: `process`, `process_values`, `deduplicate`.

The first two are the user's own (design note 023).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from everflow import serdes
from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import (
    Edge,
    Expression,
    HasEdge,
    default_serde,
    is_column,
    result_serde,
    result_type,
)
from everflow.dsl.functions import (
    key_value_function,
)
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.options.materialized import Materialized
from everflow.dsl.processors.processor_call import ProcessorCall
from everflow.dsl.processors.suppliers import Supplier
from everflow.errors import TopologyError
from everflow.location import user_line
from everflow.operators.deduplicate import DeduplicateSpec
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    PREPARE,
    EdgeType,
    FunctionNode,
    ProjectNode,
    StatefulNode,
    beside,
)
from everflow.windows import Duration, duration_ms

if TYPE_CHECKING:
    from everflow.dsl.kstream import KStream


class Processing(HasEdge):
    """The processor API of `KStream`."""

    graph: GraphBuilder
    node: str
    key_changed: bool

    if TYPE_CHECKING:

        def repartitioned(self, topic: str, where: str | None, operator: str) -> KStream: ...

        def derived(self, node: str, edge: Edge, changes_key: bool = False) -> KStream: ...

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
        call = ProcessorCall("process", processor, stores, name, user_line())
        edge = self.edge
        if returns is not None:
            if not isinstance(returns, tuple) or len(returns) != 2:
                raise TopologyError(
                    "process: a processor forwards keys and values; name both types, e.g. "
                    f"returns=('string', 'double'), found {returns!r}",
                    where=call.where,
                )
            kinds = [result_type(one, call.named, "process", call.where) for one in returns]
            edge = edge.with_types(*kinds).with_serdes(*map(result_serde, returns))
        return call.made(self, edge, tuple(children), keeps_key=False)

    @builder_call
    def process_values(
        self,
        processor: Supplier,
        *,
        returns: object = None,
        stores: Iterable[StoreSpec | str] = (),
        name: str | None = None,
    ) -> KStream:
        """As `process`, of processors that keep the key of the record they were given, so that
        nothing behind has to be repartitioned; ``returns`` is the type of the value. A method that
        a clock calls cannot forward here: it has no record.
        Headers are those that are forwarded."""
        call = ProcessorCall("process_values", processor, stores, name, user_line())
        edge = self.edge
        if returns is not None:
            kind = result_type(returns, call.named, "process_values", call.where)
            edge = edge.with_types(value=kind).with_serdes(value=result_serde(returns))
        made: KStream = call.made(self, edge, (), keeps_key=True)
        return made

    @builder_call
    def deduplicate(
        self,
        within: Duration,
        *,
        by: Expression | None = None,
        returns: object = None,
        grace: Duration | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KStream:
        """Drop records that repeat another one: of those with one key the first in processing
        order goes on, and with it those that are more than ``within`` away, before and after, from
        all that went on. The results are the records as they came.

        ``by``: an id instead of the key, a Column, or a function with ``returns=type``; repetitions
        of an id must have one key, since tasks do not know of each other's. A record without an id
        (or key) goes on. One that is more than ``grace`` (left out: ``within``) behind stream time
        is dropped as ``late``: what it would repeat may be forgotten. Kafka Streams has none
        (KIP-655); after an operator that changes the key the records go through a repartition
        topic called after ``name``, or ``store``. Headers stay.
        """
        where = user_line()
        call = _Deduplication(
            name=name,
            where=where,
            store=self.graph.claim_store(store, "deduplicate", where),
            within_ms=_at_least(1, "within", within, where),
            grace_ms=_at_least(0, "grace", within if grace is None else grace, where),
        )
        return call.made(self, by, returns)


@dataclass(frozen=True, kw_only=True)
class _Deduplication:
    """A call of `deduplicate` while it is lowered."""

    name: str | None
    where: str | None
    store: str
    within_ms: int
    grace_ms: int

    def made(self, stream: Processing, by: Expression | None, returns: object) -> KStream:
        graph, where = stream.graph, self.where
        node_name = graph.node_name(self.name, "KSTREAM-DEDUPLICATE-", where)
        if stream.key_changed:
            topic = graph.check_repartition_name(self.name or self.store, "deduplicate", where)
            stream = stream.repartitioned(topic, where, "deduplicate")
        edge, source = stream.edge, stream.node
        if by is None:
            id_serde = edge.written_key("deduplicate", where)
        else:
            kind, source = self._ids(stream, by, returns, f"{node_name}-ids")
            of_ids = Edge(EdgeType(kind, edge.type.value), default_serde(kind), None)
            id_serde = of_ids.with_serdes(result_serde(returns)).written_key("deduplicate", where)
        spec = DeduplicateSpec(
            store=self.store,
            key_serde=id_serde,
            value_serde=serdes.bytes_(),
            result_key=edge.type.key,
            result=edge.type.value,
            within_ms=self.within_ms,
            grace_ms=self.grace_ms,
            beside=by is not None,
        )
        kept = StoreSpec(
            name=self.store,
            kind="window",
            key_serde=id_serde,
            value_serde=spec.value_serde,
            retention_ms=spec.retention_ms,
            window_size_ms=self.within_ms,
            where=where,
        )
        node = StatefulNode(node_name, (source,), edge.type, where, "DEDUPLICATE", spec, (kept,))
        return stream.derived(graph.add(node), edge)

    def _ids(
        self, stream: Processing, by: Expression, returns: object, name: str
    ) -> tuple[pa.DataType, str]:
        """The ids' type, and the node that puts them beside the values."""
        edge, where, inputs = stream.edge.type, self.where, (stream.node,)
        if not is_column(by, "deduplicate: by", where):
            fn = key_value_function(by, "deduplicate: by", where)
            kind = result_type(returns, by, "deduplicate", where)
            out = EdgeType(edge.key, beside(kind, edge.value))
            node = FunctionNode(name, inputs, out, where, PREPARE, "deduplicate", fn)
            return kind, stream.graph.add(node)
        kind = analyse(by, edge, where).type
        out = EdgeType(edge.key, beside(kind, edge.value))
        both = F.struct(by.alias("answer"), F.col("value").alias("value"))
        value = replace(analyse(both, edge, where), type=out.value)
        return kind, stream.graph.add(
            ProjectNode(name=name, inputs=inputs, out=out, where=where, label=PREPARE, value=value)
        )


def _at_least(least_ms: int, name: str, given: Duration, where: str | None) -> int:
    found = duration_ms(given)
    if found < least_ms:
        raise TopologyError(
            f"deduplicate: {name}={given!r} is {found} ms; it is {least_ms} ms at least",
            where=where,
        )
    return found
