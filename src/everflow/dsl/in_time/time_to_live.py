"""Tables whose entries end: ``ttl=`` (design note 030).

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from typing import Any

from everflow import serdes
from everflow.dsl.graph_builder import GraphBuilder
from everflow.errors import TopologyError
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.table import TableSpec
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.state.store import StoreSpec
from everflow.windows import duration_ms


def checked_ttl(ttl: Any, operator: str, where: str | None) -> int:
    """In ms; TopologyError for what is not above zero."""
    ttl_ms = duration_ms(ttl)
    if ttl_ms < 1:
        raise TopologyError(
            f"{operator}: ttl says how long an entry stays behind its latest record, and is above "
            f"0; found {ttl_ms} ms; write for example ttl='30 days'",
            where=where,
        )
    return ttl_ms


def with_ttl(
    graph: GraphBuilder,
    operator: AggregateSpec | PythonAggregateSpec | TableSpec,
    store: StoreSpec,
    ttl_ms: int,
    called: str,
) -> tuple[TimeToLiveSpec, tuple[StoreSpec, ...]]:
    """The operator whose entries end, and its stores: the entries, and when they end."""
    spec = TimeToLiveSpec(inner=operator, ttl_ms=ttl_ms)
    index = StoreSpec(
        name=graph.claim_beside(spec.index, store.name, called, store.where),
        kind="key_value",
        key_serde=serdes.bytes_(),
        value_serde=serdes.bytes_(),
        where=store.where,
    )
    return spec, (store, index)
