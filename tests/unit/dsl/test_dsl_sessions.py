"""Session windows in the DSL: what the topology is made of."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from everflow import SessionWindows, StreamsBuilder, agg, serdes
from everflow.dsl.streams import SessionWindowedKStream
from everflow.operators import PythonAggregateSpec, SessionAggregateSpec
from everflow.topology.graph import StatefulNode

SESSIONS = SessionWindows.of_inactivity_gap("5 minutes").grace("1 minute")


@pytest.fixture
def builder() -> StreamsBuilder:
    return StreamsBuilder()


@pytest.fixture
def sessions(builder: StreamsBuilder) -> SessionWindowedKStream:
    orders = builder.stream(
        "orders", key=serdes.string(), value=serdes.json("item string, amount double")
    )
    return orders.group_by_key().windowed_by(SESSIONS)


def last(builder: StreamsBuilder) -> StatefulNode:
    node = builder.build().nodes[-1]
    assert isinstance(node, StatefulNode)
    return node


def test_a_count_has_a_session_store_and_session_keys(
    sessions: SessionWindowedKStream, builder: StreamsBuilder
) -> None:
    table = sessions.count(store="visits")
    node = last(builder)
    assert node.label == "AGGREGATE"
    assert [field.name for field in node.out.key] == ["key", "start", "end"]
    store = node.stores[0]
    assert (store.kind, store.retention_ms, store.window_size_ms, store.expires) == (
        "session",
        360_000,
        None,
        True,
    )
    assert table.edge.key_serde == serdes.session_windowed(serdes.string())
    assert isinstance(node.operator, SessionAggregateSpec)
    assert node.operator.windows == SESSIONS


@pytest.mark.parametrize(
    "merger", [lambda one, two: one + two, lambda key, one, two: one + two, operator.add]
)
def test_functions_may_do_without_the_key(
    merger: Any, sessions: SessionWindowedKStream, builder: StreamsBuilder
) -> None:
    sessions.aggregate(
        initializer=int,
        aggregator=lambda value, n: n + 1,
        merger=merger,
        store="n",
        returns="bigint",
    )
    spec = last(builder).operator
    assert isinstance(spec, SessionAggregateSpec)
    assert isinstance(spec.layout, PythonAggregateSpec)
    assert spec.merger is not None
    assert spec.merger("k", 3, 4) == 7
    assert spec.layout.aggregator("k", {}, None) == 1


def test_a_field_may_be_called_merger(
    sessions: SessionWindowedKStream, builder: StreamsBuilder
) -> None:
    sessions.aggregate(store="n", merger=agg.count())
    assert [field.name for field in last(builder).out.value] == ["merger"]


def test_a_built_in_function_merges_the_aggregates_not_the_key(
    sessions: SessionWindowedKStream, builder: StreamsBuilder
) -> None:
    sessions.aggregate(
        initializer=int, aggregator=lambda value, n: n + 1, merger=max, store="n", returns="bigint"
    )
    spec = last(builder).operator
    assert isinstance(spec, SessionAggregateSpec)
    assert spec.merger is not None
    assert spec.merger("k", 3, 4) == 4
