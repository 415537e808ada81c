"""Sessions equal Kafka Streams' algorithm, record by record, under any cut."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators import (
    AggregateSpec,
    PythonAggregateSpec,
    PythonReducer,
    SessionAggregateSpec,
    agg,
)
from everflow.serdes.base import decode_one
from everflow.serdes.windowed import session_key
from everflow.state.store import InMemoryStore
from everflow.windows import SessionWindows
from properties.operators.operator_batches import (
    AGGREGATES,
    INPUT,
    NOTHING,
    done_by_one_task,
    edge_batch,
    fold,
    items_layout,
    items_step,
    of_type,
    split_of,
    values,
)

BRIDGED = [("a", NOTHING | {"t": t}, time) for t, time in (("later", 10), ("early", 0), ("mid", 5))]
sessions = (
    st.tuples(st.integers(0, 12), st.integers(0, 20))
    .filter(any)
    .map(lambda gap_and_grace: SessionWindows(*gap_and_grace))
)


@dataclass
class Model:
    """KStreamSessionWindowAggregate over a session store, one record at a time."""

    windows: SessionWindows
    step: Callable[[Any, Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    more_ms: int = 0
    """How much longer than its windows take records the store keeps them."""
    stream_time: int = -1
    stored: dict[tuple[str, int, int], Any] = field(default_factory=dict)
    late: int = 0

    def feed(self, key: str, value: Any, time: int) -> list[tuple[tuple[str, int, int], Any]]:
        """Updates (session, aggregate or None) in the order in which they are forwarded."""
        gap, retention_ms = self.windows.gap_ms, self.windows.retention_ms + self.more_ms
        shown_from = self.stream_time - retention_ms
        self.stream_time = max(self.stream_time, time)
        found = sorted(
            (end, start)
            for k, start, end in self.stored
            if k == key and end >= time - gap and start <= time + gap and end > shown_from
        )
        start, end = min([time, *(s for _, s in found)]), max([time, *(e for e, _ in found)])
        if end < self.stream_time - self.windows.grace_ms - gap:
            self.late += 1
            return []
        aggregate, updates = None, []
        for e, s in found:
            before = self.stored.pop((key, s, e))
            aggregate = before if aggregate is None else self.merge(aggregate, before)
            if start < end:
                updates.append(((key, s, e), None))
        aggregate = self.step(key, value, aggregate)
        self.stored.pop((key, start, end), None)
        if aggregate is not None:
            self.stored[key, start, end] = aggregate
        return [*updates, ((key, start, end), aggregate)]


def check(
    spec: Any,
    model: Model,
    split: list[list[tuple[Any, Any, int]]],
    type_: pa.DataType,
    decode: Any,
) -> None:
    """Run both; outputs, positions, drops, stream time and store have to agree after each batch."""
    kept_ms = spec.windows.retention_ms + model.more_ms
    whole, trimmed = InMemoryStore(), InMemoryStore(of_type(spec, "session", kept_ms))
    stream_time, seq = -1, 0
    for rows in split:
        updates = updates_of(model, rows, seq, spec.emit_every_update)
        result = done_by_one_task(spec, edge_batch(rows, type_, seq), trimmed, stream_time)
        output = result.output
        shown = zip(
            output.seq.tolist(),
            map(session_of, output.key.to_pylist()),
            output.value.to_pylist(),
            strict=True,
        )
        assert list(shown) == updates
        assert output.timestamp.tolist() == [update[1][2] for update in updates]
        assert output.offset.tolist() == [update[0] * 2 for update in updates]
        assert (output.key.type, output.value.type) == (spec.result_key, spec.result)
        counts = {
            "null-key": sum(row[0] is None for row in rows),
            "negative-timestamp": sum(row[0] is not None and row[2] < 0 for row in rows),
            "late": model.late,
        }
        assert result.dropped == {reason: count for reason, count in counts.items() if count}
        assert result.stream_time == model.stream_time
        for changes in result.changes:
            whole.apply(changes)
            trimmed.apply(changes)
        stream_time, seq = result.stream_time, seq + len(rows)
    found = {
        key: (int.from_bytes(data[:8], "big"), decode(data[8:]))
        for key, data in whole.range(None, None)
    }
    assert found == {
        session_key(k.encode(), s, e): (e, value) for (k, s, e), value in model.stored.items()
    }


def updates_of(model: Model, rows: list[tuple[Any, Any, int]], seq: int, every: bool) -> list[Any]:
    """What the model gives for a batch: every update, or the last of each session that is new to
    readers."""
    model.late, before = 0, set(model.stored)
    updates = [
        (seq + i, *u)
        for i, row in enumerate(rows)
        if row[0] is not None and row[2] >= 0
        for u in model.feed(*row)
    ]
    if every:
        return updates
    last = {update[1]: index for index, update in enumerate(updates)}
    return [
        update
        for index, update in enumerate(updates)
        if last[update[1]] == index and (update[2] is not None or update[1] in before)
    ]


def session_of(key: dict[str, Any]) -> tuple[str, int, int]:
    return key["key"], key["start"], key["end"]


def merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """The aggregates of two sessions."""

    def both(name: str, merge: Callable[[Any, Any], Any]) -> Any:
        return (
            b[name] if a[name] is None else a[name] if b[name] is None else merge(a[name], b[name])
        )

    total, count = both("sum_x", lambda one, two: one + two), a["n_x"] + b["n_x"]
    return {
        "n": a["n"] + b["n"],
        "n_x": count,
        "sum_i": both("sum_i", lambda one, two: (one + two + 2**63) % 2**64 - 2**63),
        "sum_x": total,
        "min_x": both("min_x", min),
        "max_i": both("max_i", max),
        "mean": None if count == 0 else total / count,
        "first_t": a["first_t"],
        "last_t": b["last_t"],
        "max_t": both("max_t", max),
        "min_t": both("min_t", min),
    }


@given(
    split=split_of(st.none() | values),
    windows=sessions,
    every=st.booleans(),
    more=st.sampled_from([0, 0, 1, 30]),
)
@example(split=[BRIDGED], windows=SessionWindows(5, 9), every=False, more=0)
def test_built_in_aggregates(
    split: list[Any], windows: SessionWindows, every: bool, more: int
) -> None:
    layout = AggregateSpec.of(
        "s", serdes.string(), list(AGGREGATES.values()), list(AGGREGATES), INPUT
    )
    retention_ms = windows.retention_ms + more
    spec = SessionAggregateSpec(layout, windows, retention_ms=retention_ms, emit_every_update=every)

    check(spec, Model(windows, fold, merged, more), split, INPUT, partial(decode_one, spec.results))


@given(split=split_of(st.none() | st.just(True)), windows=sessions, every=st.booleans())
def test_a_bare_count_is_javas_long(split: list[Any], windows: SessionWindows, every: bool) -> None:
    layout = AggregateSpec.of("s", serdes.string(), [agg.count()], None, pa.bool_())
    model = Model(windows, lambda key, value, before: (before or 0) + 1, lambda a, b: a + b)
    check(
        SessionAggregateSpec(layout, windows, emit_every_update=every),
        model,
        split,
        pa.bool_(),
        lambda data: int.from_bytes(data, "big"),
    )


@given(split=split_of(st.none() | st.integers(0, 6)), windows=sessions, every=st.booleans())
@example(
    split=[[("a", 1, 5), ("a", 1, 9)], [("a", 0, 7)]], windows=SessionWindows(5, 5), every=False
)
@example(
    split=[[("a", 1, 5)], [("a", 0, 5), ("a", 1, 5)]], windows=SessionWindows(5, 5), every=False
)
def test_functions_change_in_place(split: list[Any], windows: SessionWindows, every: bool) -> None:
    def merger(key: str, one: Any, two: Any) -> Any:
        one["items"] += ["+", *two["items"]]
        return one

    spec = SessionAggregateSpec(items_layout(), windows, merger, emit_every_update=every)
    model = Model(windows, items_step, lambda a, b: {"items": [*a["items"], "+", *b["items"]]})
    check(spec, model, split, pa.int64(), spec.value_serde.decode)


@given(
    split=split_of(st.none() | st.text("xyz", max_size=1)), windows=sessions, every=st.booleans()
)
def test_a_reducer_reduces_them_too(split: list[Any], windows: SessionWindows, every: bool) -> None:
    def reducer(aggregate: str, value: str | None) -> str | None:
        return None if value in (None, "x") else f"({aggregate}{value})"

    def step(key: str, value: Any, before: Any) -> Any:
        return value if before is None else reducer(before, value)

    layout = PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.string(),
        aggregator=PythonReducer(reducer),
    )
    spec = SessionAggregateSpec(layout, windows, emit_every_update=every)
    check(spec, Model(windows, step, reducer), split, pa.string(), spec.value_serde.decode)
