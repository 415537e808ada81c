"""Entries with a time to live, and the tombstones of ended ones, equal a model under any cut."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators import AggregateSpec, PythonAggregateSpec, PythonReducer, TableSpec, agg
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.serdes.base import decode_one
from everflow.state.store import InMemoryStore
from everflow.topology.graph import Inputs
from properties.operators.operator_batches import ONE_TASK, edge_batch, rows_of

Update = tuple[int, str, Any, int]
"""Position, key, what the table shows, time."""

records = st.tuples(
    st.none() | st.sampled_from(["", "a", "aa", "b"]),
    st.none() | st.integers(0, 9),
    st.integers(0, 40) | st.integers(-5, 200),
)
batches = st.lists(st.lists(records, max_size=12), max_size=6)


@dataclass
class Model:
    """One record after the other; ``step`` gives the next value, ``latest``: a table's rules."""

    ttl: int
    step: Callable[[Any, Any], Any]
    latest: bool
    stored: dict[str, tuple[Any, int]] = field(default_factory=dict)
    stream_time: int = -1
    dropped: dict[str, int] = field(default_factory=dict)

    def feed(self, seq: int, key: str | None, value: Any, time: int) -> list[Update]:
        if key is None:
            return self.drop("null-key")
        if value is None and not self.latest:
            return self.drop("null-value")
        self.stream_time = max(self.stream_time, time)
        ended = sorted(
            (at + self.ttl, one)
            for one, (_, at) in self.stored.items()
            if at + self.ttl <= self.stream_time
        )
        updates: list[Update] = []
        for end, one in ended:
            del self.stored[one]
            updates.append((seq, one, None, end))
        old = time + self.ttl <= self.stream_time
        before, at = self.stored.get(key, (None, time))
        if old and (self.latest or key not in self.stored) and value is not None:
            self.drop("late")
            return updates
        after = self.step(before, value)
        known = time if self.latest else max(time, at)
        self.stored.pop(key, None)
        if after is not None:
            self.stored[key] = (after, known)
        return [*updates, (seq, key, after, known)]

    def drop(self, reason: str) -> list[Update]:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        return []


def check(spec: TimeToLiveSpec, model: Model, split: Any, type_: pa.DataType) -> None:
    store, index, stream_time, seq = InMemoryStore(), InMemoryStore(), -1, 0
    for rows in split:
        model.dropped, before = {}, set(model.stored)
        updates = [u for at, row in enumerate(rows) for u in model.feed(seq + at, *row)]
        if not spec.emit_every_update:
            last = {update[1]: at for at, update in enumerate(updates)}
            fed = {seq + at: row[0] for at, row in enumerate(rows)}
            updates = [
                u
                for at, u in enumerate(updates)
                if last[u[1]] == at and (u[1] in before or fed[u[0]] == u[1])
            ]
        batch = edge_batch(rows, type_, seq)
        batch.partition[:] = ONE_TASK
        stores = {ONE_TASK: {"s": store, "s-ttl": index}}
        done = spec.run(Inputs((batch,), stores, {ONE_TASK: stream_time}))
        assert rows_of(done.output) == updates
        assert done.dropped == model.dropped
        for changes in done.changes.get(ONE_TASK, []):
            (store if changes.store == "s" else index).apply(changes)
        stream_time = done.stream_times[ONE_TASK]
        assert stream_time == model.stream_time
        found = {
            key.decode(): (
                decode_one(spec.results, data[8:]),
                int.from_bytes(data[:8], "big", signed=True),
            )
            for key, data in store.range(None, None)
        }
        assert found == model.stored
        seq += len(rows)
    ends = {key[8:] for key, _ in index.range(None, None)}
    assert {key.encode() for key in model.stored} <= ends


ttls = st.integers(1, 40)


@given(split=batches, ttl=ttls, every=st.booleans())
def test_a_count(split: Any, ttl: int, every: bool) -> None:
    inner = AggregateSpec.of("s", serdes.string(), [agg.count()], None, pa.bool_())
    rows = [[(key, None if value is None else True, t) for key, value, t in part] for part in split]
    spec = TimeToLiveSpec(layout=inner, ttl_ms=ttl, emit_every_update=every)

    check(spec, Model(ttl, lambda n, _: (n or 0) + 1, latest=False), rows, pa.bool_())


@given(split=batches, ttl=ttls, every=st.booleans())
def test_a_reducer_that_deletes(split: Any, ttl: int, every: bool) -> None:
    def reduced(before: int | None, value: int) -> int | None:
        if before is None:
            return value
        return None if value == 0 else before + value

    inner = PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.long(),
        aggregator=PythonReducer(reduced),
    )
    spec = TimeToLiveSpec(layout=inner, ttl_ms=ttl, emit_every_update=every)

    check(spec, Model(ttl, reduced, latest=False), split, pa.int64())


@given(split=batches, ttl=ttls, every=st.booleans())
def test_a_table(split: Any, ttl: int, every: bool) -> None:
    spec = TimeToLiveSpec(
        layout=TableSpec("s", serdes.string(), serdes.long()), ttl_ms=ttl, emit_every_update=every
    )

    check(spec, Model(ttl, lambda _, value: value, latest=True), split, pa.int64())
