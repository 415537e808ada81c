"""The vectorised aggregates equal a per-record model, wherever the micro-batches are cut."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators import AggregateSpec, PythonAggregateSpec, PythonReducer, TableSpec, agg
from everflow.serdes.base import decode_one
from everflow.serdes.windowed import window_store_key
from everflow.state.store import InMemoryStore
from everflow.windows import TimeWindows
from properties.operators.operator_batches import (
    AGGREGATES,
    INPUT,
    done_by_one_task,
    edge_batch,
    entries,
    fold,
    items_layout,
    items_step,
    rows_of,
    values,
)
from unit.builders import store_spec

Spec = AggregateSpec | PythonAggregateSpec
Update = tuple[bytes, Any, Any, int]
"""Store key, output key, aggregate, timestamp."""

records = st.tuples(
    st.none() | st.sampled_from(["", "a", "aa", "b"]), st.none() | values, st.integers(0, 60)
)
batches = st.lists(st.lists(records, max_size=12), max_size=5)
windows = st.none() | st.builds(
    lambda size, hop, grace: TimeWindows(size, min(size, hop), grace),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 15),
)


@dataclass
class Model:
    """Kafka Streams' rules, one record at a time."""

    window: TimeWindows | None
    step: Callable[[Any, Any, Any], Any]
    stream_time: int = -1
    stored: dict[bytes, tuple[Any, int]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def feed(self, key: Any, value: Any, timestamp: int) -> list[Update]:
        """The updates that a record makes, in their order."""
        if key is None:
            return self.drop("null-key")
        if self.window is None:
            if value is None:
                return self.drop("null-value")
            self.stream_time = max(self.stream_time, timestamp)
            return [self.update(key.encode(), key, key, value, timestamp)]
        self.stream_time = max(self.stream_time, timestamp)
        window, updates = self.window, []
        start = (
            max(0, timestamp - window.size_ms + window.advance_ms)
            // window.advance_ms
            * window.advance_ms
        )
        while start <= timestamp:
            end = start + window.size_ms
            if end > self.stream_time - window.grace_ms:
                shown = {"key": key, "start": start, "end": end}
                updates.append(
                    self.update(window_store_key(key.encode(), start), shown, key, value, timestamp)
                )
            else:
                self.drop("late")
            start += window.advance_ms
        return updates

    def update(self, store_key: bytes, shown: Any, key: Any, value: Any, timestamp: int) -> Update:
        before, before_time = self.stored.get(store_key, (None, timestamp))
        after, time = self.step(key, value, before), max(timestamp, before_time)
        if after is None:
            self.stored.pop(store_key, None)
        else:
            self.stored[store_key] = (after, time)
        return store_key, shown, after, time

    def drop(self, reason: str) -> list[Update]:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        return []


def check(
    spec: Spec, model: Model, split: Any, value_type: pa.DataType, decode: Callable[[bytes], Any]
) -> None:
    """Run both; outputs, times, positions, drops, stream time and store have to agree."""
    retention = None if spec.window is None else spec.window.retention_ms
    kind = "key_value" if retention is None else "window"
    whole = InMemoryStore()
    trimmed = InMemoryStore(
        store_spec("s", kind, key=spec.key_serde, value=spec.value_serde, retention_ms=retention)
    )
    stream_time, seq = -1, 0
    for rows in split:
        batch = edge_batch(rows, value_type, seq)
        model.dropped = {}
        updates = [(seq + i, *u) for i, row in enumerate(rows) for u in model.feed(*row)]
        if not spec.emit_every_update:
            last = {u[1]: index for index, u in enumerate(updates)}
            updates = [u for index, u in enumerate(updates) if last[u[1]] == index]
        result = done_by_one_task(spec, batch, trimmed, stream_time)
        assert result.output.key.to_pylist() == [u[2] for u in updates]
        assert result.output.value.to_pylist() == [u[3] for u in updates]
        assert result.output.timestamp.tolist() == [u[4] for u in updates]
        assert result.output.seq.tolist() == [u[0] for u in updates]
        assert result.output.offset.tolist() == [u[0] * 2 for u in updates]
        assert result.output.source.tolist() == [u[0] % 3 for u in updates]
        assert result.output.key.type == spec.result_key
        assert result.output.value.type == spec.result
        assert result.dropped == model.dropped
        assert result.stream_time == model.stream_time
        for changes in result.changes:
            assert changes.store == "s"
            whole.apply(changes)
            trimmed.apply(changes)
        stream_time, seq = result.stream_time, seq + len(rows)
    found = entries(whole, decode)
    assert found == model.stored


@given(split=batches, window=windows, every=st.booleans())
def test_built_in_aggregates(split: Any, window: TimeWindows | None, every: bool) -> None:
    spec = AggregateSpec.of(
        "s",
        serdes.string(),
        list(AGGREGATES.values()),
        list(AGGREGATES),
        INPUT,
        window=window,
        emit_every_update=every,
    )
    check(spec, Model(window, fold), split, INPUT, partial(decode_one, spec.results))


@given(split=batches, window=windows, every=st.booleans())
def test_a_bare_count_is_javas_long(split: Any, window: TimeWindows | None, every: bool) -> None:
    spec = AggregateSpec.of(
        "s",
        serdes.string(),
        [agg.count()],
        None,
        pa.bool_(),
        window=window,
        emit_every_update=every,
    )
    rows = [[(key, None if value is None else True, t) for key, value, t in part] for part in split]
    model = Model(window, lambda key, value, before: (before or 0) + 1)
    check(spec, model, rows, pa.bool_(), lambda data: int.from_bytes(data, "big"))


numbers = st.none() | st.integers(0, 9)
number_batches = st.lists(
    st.lists(
        st.tuples(st.none() | st.sampled_from(["a", "b"]), numbers, st.integers(0, 60)), max_size=12
    ),
    max_size=5,
)


@given(split=number_batches, window=windows, every=st.booleans())
def test_functions_delete_and_change(split: Any, window: TimeWindows | None, every: bool) -> None:
    spec = items_layout(window=window, emit_every_update=every)
    check(spec, Model(window, items_step), split, pa.int64(), spec.value_serde.decode)


@given(split=number_batches, window=windows, every=st.booleans())
def test_reduce_takes_the_first_value(split: Any, window: TimeWindows | None, every: bool) -> None:
    def step(key: Any, value: Any, before: Any) -> Any:
        return value if before is None else reducer(before, value)

    def reducer(aggregate: Any, value: Any) -> Any:
        return None if value in (0, None) else aggregate * 2 + value

    spec = PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.long(),
        aggregator=PythonReducer(reducer),
        window=window,
        emit_every_update=every,
    )
    # wrap-around is not the reducer's business: keep the numbers small enough for a long
    short = [part[:6] for part in split]
    check(spec, Model(window, step), short, pa.int64(), spec.value_serde.decode)


@given(split=number_batches, every=st.booleans())
def test_tables_keep_the_last_value(split: Any, every: bool) -> None:
    spec = TableSpec("s", serdes.string(), serdes.long(), emit_every_update=every)
    store, content, stream_time, seq = InMemoryStore(), {}, -1, 0
    for rows in split:
        updates = [(seq + i, *row) for i, row in enumerate(rows) if row[0] is not None]
        for _, key, value, time in updates:
            content[key.encode()] = (value, time)
        if not every:
            last = {u[1]: u[0] for u in updates}
            updates = [u for u in updates if last[u[1]] == u[0]]
        result = done_by_one_task(spec, edge_batch(rows, pa.int64(), seq), store, stream_time)
        assert rows_of(result.output) == updates
        nulls = sum(row[0] is None for row in rows)
        assert result.dropped == ({"null-key": nulls} if nulls else {})
        for changes in result.changes:
            store.apply(changes)
        stream_time, seq = result.stream_time, seq + len(rows)
    found = entries(store, spec.value_serde.decode)
    assert found == {key: entry for key, entry in content.items() if entry[0] is not None}


@given(st.lists(st.none() | st.floats(width=64), max_size=20), st.integers(0, 20), st.booleans())
def test_nan_is_the_largest_number(numbers: list[float | None], cut: int, every: bool) -> None:
    type_, both = pa.struct([("x", pa.float64())]), [agg.min("x"), agg.max("x")]
    spec = AggregateSpec.of(
        "s", serdes.string(), both, ["low", "high"], type_, emit_every_update=every
    )
    store, shown = InMemoryStore(), {"low": None, "high": None}
    for part in (numbers[:cut], numbers[cut:]):
        rows = [("k", {"x": x}, 0) for x in part]
        result = done_by_one_task(spec, edge_batch(rows, type_, 0), store, -1)
        for changes in result.changes:
            store.apply(changes)
        if len(result.output):
            shown = result.output.value[-1].as_py()
    known = sorted(
        (x for x in numbers if x is not None),
        key=lambda x: (math.isnan(x), 0 if math.isnan(x) else x),
    )
    expected = {"low": known[0], "high": known[-1]} if known else {"low": None, "high": None}
    assert {k: repr(v).replace("-0.0", "0.0") for k, v in shown.items()} == {
        k: repr(v).replace("-0.0", "0.0") for k, v in expected.items()
    }
