"""Keyed operators that take a batch of several tasks at once do what they do task by task."""

from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import agg, serdes
from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    PythonAggregateSpec,
    PythonReducer,
)
from everflow.operators.aggregates.windowed_aggregate import SessionAggregateSpec
from everflow.operators.table import DeduplicateSpec, TableSpec
from everflow.records import EdgeBatch, TasksResult
from everflow.state.store import InMemoryStore
from everflow.topology.graph import Inputs, Operator
from everflow.windows import SessionWindows, TimeWindows
from properties.operators.operator_batches import apply_all, edge_batch, of_type, rows_of

SESSIONS = SessionWindows.of_inactivity_gap("5 seconds").grace("5 seconds")
WINDOW = TimeWindows.of_size("10 seconds").grace("5 seconds")
Make = Callable[[bool], Any]


def _count(every: bool) -> Any:
    return AggregateSpec.of(
        "s", serdes.string(), [agg.count()], None, pa.bool_(), emit_every_update=every
    )


def _windowed(every: bool) -> Any:
    input_type = pa.struct([("x", pa.int64())])
    return AggregateSpec.of(
        "s",
        serdes.string(),
        [agg.count(), agg.avg("x"), agg.last("x")],
        ["n", "mean", "last"],
        input_type,
        window=WINDOW,
        emit_every_update=every,
    )


def _reduced(every: bool) -> Any:
    return PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.long(),
        aggregator=PythonReducer(
            lambda total, value: None if total is None or value in (3, None) else total + value
        ),
        window=WINDOW,
        emit_every_update=every,
    )


def _table(every: bool) -> Any:
    return TableSpec("s", serdes.string(), serdes.long(), emit_every_update=every)


def _sessions(every: bool) -> Any:
    return SessionAggregateSpec(_windowed(every), SESSIONS, emit_every_update=every)


def _reduced_sessions(every: bool) -> Any:
    return SessionAggregateSpec(_reduced(every), SESSIONS, emit_every_update=every)


def _deduplicated(every: bool) -> Any:
    return DeduplicateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.bytes_(),
        within_ms=10_000,
        grace_ms=5_000,
        beside=False,
    )


VALUES: dict[Make, Callable[[int | None], Any]] = {
    _count: lambda x: None if x is None else True,
    _windowed: lambda x: None if x is None else {"x": x},
    _reduced: lambda x: x,
    _table: lambda x: x,
    _sessions: lambda x: None if x is None else {"x": x},
    _reduced_sessions: lambda x: x,
    _deduplicated: lambda x: x,
}
TYPES: dict[Make, pa.DataType] = {
    _count: pa.bool_(),
    _windowed: pa.struct([("x", pa.int64())]),
    _reduced: pa.int64(),
    _table: pa.int64(),
    _sessions: pa.struct([("x", pa.int64())]),
    _reduced_sessions: pa.int64(),
    _deduplicated: pa.int64(),
}
ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b", "c", "longer"]),
        st.none() | st.integers(0, 5),
        st.integers(0, 60_000),
    ),
    min_size=1,
    max_size=40,
)


class Stores:
    """Each task's store, and its stream time."""

    def __init__(self, spec: Any) -> None:
        sessions = getattr(spec, "windows", None)
        kind, kept_ms = ("session", sessions.retention_ms) if sessions else ("key_value", None)
        kept = of_type(spec, kind, kept_ms)
        self.stores = {partition: InMemoryStore(kept) for partition in range(5)}
        self.times = dict.fromkeys(range(5), -1)

    def run(self, spec: Operator, batch: EdgeBatch) -> TasksResult:
        there = np.unique(batch.partition).tolist()
        inputs = Inputs(
            (batch,),
            {partition: {"s": self.stores[partition]} for partition in there},
            {partition: self.times[partition] for partition in there},
        )
        done = spec.run(inputs)
        apply_all(done, self.stores)
        self.times.update(done.stream_times)
        return done

    def content(self) -> Any:
        return {p: list(store.range(None, None)) for p, store in self.stores.items()}, self.times


def told(batch: EdgeBatch) -> list[Any]:
    return rows_of(batch, "key value timestamp seq partition offset")


def by_partition(batch: EdgeBatch) -> list[EdgeBatch]:
    return [batch.take(np.flatnonzero(batch.partition == p)) for p in np.unique(batch.partition)]


@pytest.mark.parametrize("make", VALUES, ids=lambda make: make.__name__.strip("_"))
@given(batches=st.lists(ROWS, min_size=1, max_size=3), every=st.booleans())
def test_together_is_as_one_after_the_other(batches: Any, every: bool, make: Make) -> None:
    spec = make(every)
    together, apart = Stores(spec), Stores(spec)
    seq = 0
    for rows in batches:
        shown = [(key, VALUES[make](value), time) for key, value, time in rows]
        batch = edge_batch(shown, TYPES[make], seq)
        seq += len(rows)
        one = together.run(spec, batch)
        others = [apart.run(spec, part) for part in by_partition(batch)]
        assert told(one.output) == sorted(
            (record for other in others for record in told(other.output)), key=itemgetter(3)
        )
        assert one.dropped == sum((Counter(other.dropped) for other in others), Counter())
        assert together.content() == apart.content()
