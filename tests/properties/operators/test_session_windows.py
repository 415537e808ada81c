"""Sessions equal Kafka Streams' algorithm, record by record, under any cut."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators import (
    AggregateSpec,
    PythonAggregateSpec,
    PythonReducer,
    SessionAggregateSpec,
    SlidingAggregateSpec,
    agg,
)
from everflow.operators.aggregates import sliding_aggregate
from everflow.serdes.base import decode_one
from everflow.serdes.windowed import session_key, window_store_key
from everflow.state.store import InMemoryStore
from everflow.windows import SessionWindows, SlidingWindows
from properties.operators import operator_batches
from properties.operators.operator_batches import (
    AGGREGATES,
    INPUT,
    NOTHING,
    done_by_one_task,
    edge_batch,
    entries,
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
    """The model's batch: every update, or the last of each session that is new to readers."""
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


# Sliding windows equal Kafka Streams' algorithm, record by record, under any cut.


Window = tuple[str, int]
Update = tuple[Window, Any, int]

SLIDING_AGGREGATES = operator_batches.AGGREGATES | {"list_i": agg.collect_list("i")}
sliding = st.builds(SlidingWindows, st.integers(0, 12), st.integers(0, 20)).filter(
    lambda windows: windows.retention_ms > 0
)
longer = st.sampled_from([0, 0, 5, 60])
few = st.sampled_from([1, 5, 1 << 18])
"""How many entries of the log are folded at a time."""


@dataclass
class SlidingModel:
    """KStreamSlidingWindowAggregate over a RocksDB window store, one record at a time; the names
    are the original's. ``step(key, value, aggregate)``: aggregate None = there is none yet."""

    windows: SlidingWindows
    retention_ms: int
    step: Callable[[Any, Any, Any], Any]
    stream_time: int = -1
    observed: int = -1
    stored: dict[Window, tuple[Any, int]] = field(default_factory=dict)
    late: int = 0
    updates: list[Update] = field(default_factory=list)

    def feed(self, key: str, value: Any, time: int) -> list[Update]:
        self.updates = []
        self.stream_time = max(self.stream_time, time)
        close = self.stream_time - self.windows.grace_ms
        if time + self.windows.difference_ms < close:
            self.late += 1
        elif time < self.windows.difference_ms:
            self.process_early(key, value, time, close)
        else:
            self.process_reverse(key, value, time, close)
        return self.updates

    def process_reverse(self, key: str, value: Any, time: int, close: int) -> None:
        difference = self.windows.difference_ms
        start_times: set[int] = set()
        left_agg = right_agg = previous = None
        left_created = right_created = False
        for start, found in self.fetch(key, max(0, time - 2 * difference), time + 1)[::-1]:
            start_times.add(start)
            end = start + difference
            if start == time + 1:
                right_created = True
            elif end > time:
                if right_agg is None:
                    right_agg = found
                self.update_window_and_forward(key, start, found, value, time, close)
            elif end == time:
                left_created = True
                self.update_window_and_forward(key, start, found, value, time, close)
                if found[1] < time:
                    previous = found[1]
                else:
                    return
            else:
                left_agg, previous = found, found[1]
                break
        if previous is not None:
            start = previous + 1
            if start not in start_times and start + difference >= time:
                self.update_window_and_forward(key, start, (None, time), value, time, close)
        if not left_created:
            begin = (None, time)
            if previous is not None and time - difference <= previous:
                assert left_agg is not None
                begin = (left_agg[0], time)
            self.update_window_and_forward(key, time - difference, begin, value, time, close)
        if not right_created and right_agg is not None and right_agg[1] > time:
            self.create_current_record_right_window(key, time, right_agg)

    def process_early(self, key: str, value: Any, time: int, close: int) -> None:
        combined = right_agg = previous = None
        right_created = False
        start_times: set[int] = set()
        for start, found in self.fetch(key, 0, time + 1):
            start_times.add(start)
            if start == 0:
                combined = found
                if found[1] < time:
                    previous = found[1]
            elif start <= time:
                right_agg = found
                self.update_window_and_forward(key, start, found, value, time, close)
            else:
                right_created = True
        if right_agg is None and combined is not None and combined[1] > time:
            right_agg = combined
        if not right_created and right_agg is not None and right_agg[1] > time:
            self.create_current_record_right_window(key, time, right_agg)
        if previous is not None and previous + 1 not in start_times:
            self.update_window_and_forward(key, previous + 1, (None, time), value, time, close)
        self.update_window_and_forward(key, 0, combined or (None, time), value, time, close)

    def create_current_record_right_window(
        self, key: str, time: int, right_agg: tuple[Any, int]
    ) -> None:
        self.put(key, time + 1, *right_agg)
        self.updates.append(((key, time + 1), *right_agg))

    def update_window_and_forward(
        self, key: str, start: int, found: tuple[Any, int], value: Any, time: int, close: int
    ) -> None:
        if start + self.windows.difference_ms < close:
            self.late += 1
            return
        old, old_time = found
        new = self.step(key, value, old)
        new_time = time if old is None else max(time, old_time)
        self.put(key, start, new, new_time)
        self.updates.append(((key, start), new, new_time))

    # --- AbstractRocksDBSegmentedBytesStore

    def fetch(self, key: str, time_from: int, time_to: int) -> list[tuple[int, tuple[Any, int]]]:
        actual_from = max(time_from, self.observed - self.retention_ms + 1)
        return sorted(
            (start, found)
            for (k, start), found in self.stored.items()
            if k == key and actual_from <= start <= time_to
        )

    def put(self, key: str, start: int, value: Any, time: int) -> None:
        self.observed = max(self.observed, start)
        self.stored.pop((key, start), None)
        if value is not None:
            self.stored[key, start] = (value, time)

    def shown(self) -> dict[Window, tuple[Any, int]]:
        return {
            window: found
            for window, found in self.stored.items()
            if window[1] > self.observed - self.retention_ms
        }


def sliding_check(
    spec: Any,
    model: SlidingModel,
    split: list[list[tuple[Any, Any, int]]],
    type_: pa.DataType,
    decode: Any,
) -> None:
    size_ms = spec.windows.difference_ms
    store = InMemoryStore(of_type(spec, "window", model.retention_ms, window_size_ms=size_ms))
    stream_time, seq = -1, 0
    for rows in split:
        updates = sliding_updates_of(model, rows, seq, spec.emit_every_update)
        result = done_by_one_task(spec, edge_batch(rows, type_, seq), store, stream_time)
        output = result.output
        key = output.key.to_pylist()
        shown = zip(
            output.seq.tolist(),
            [(one["key"], one["start"]) for one in key],
            output.value.to_pylist(),
            output.timestamp.tolist(),
            strict=True,
        )
        assert list(shown) == updates
        assert all(one["end"] == one["start"] + spec.windows.difference_ms for one in key)
        assert output.offset.tolist() == [update[0] * 2 for update in updates]
        assert (output.key.type, output.value.type) == (spec.result_key, spec.result)
        counts = {
            "null-key": sum(row[0] is None for row in rows),
            "null-value": sum(row[0] is not None and row[1] is None for row in rows),
            "negative-timestamp": sum(None not in row and row[2] < 0 for row in rows),
            "late": model.late,
        }
        assert result.dropped == {reason: count for reason, count in counts.items() if count}
        assert result.stream_time == model.stream_time
        for changes in result.changes:
            store.apply(changes)
        assert store.newest_ms == model.observed
        stream_time, seq = result.stream_time, seq + len(rows)
    found = entries(store, decode)
    assert found == {
        window_store_key(key.encode(), start): entry
        for (key, start), entry in model.shown().items()
    }


def sliding_updates_of(
    model: SlidingModel, rows: list[tuple[Any, Any, int]], seq: int, every: bool
) -> list[Any]:
    model.late = 0
    updates = [
        (seq + i, *u)
        for i, row in enumerate(rows)
        if None not in row and row[2] >= 0
        for u in model.feed(*row)
    ]
    last = {update[1]: index for index, update in enumerate(updates)}
    return updates if every else [u for i, u in enumerate(updates) if last[u[1]] == i]


def add(key: str, value: Any, before: dict[str, Any] | None) -> dict[str, Any]:
    listed = [] if before is None else before["list_i"] or []
    more = [] if value["i"] is None else [value["i"]]
    return operator_batches.fold(key, value, before) | {"list_i": [*listed, *more]}


CROWDED = [("a", {"i": at, "x": at / 10, "t": None}, 20 + at % 7) for at in range(12)]


@given(
    split=split_of(st.none() | values),
    windows=sliding,
    every=st.booleans(),
    more=longer,
    entries=few,
)
@example(split=[CROWDED, CROWDED], windows=SlidingWindows(5, 3), every=True, more=0, entries=30)
def test_built_in_aggregates_of_sliding_windows(
    split: list[Any], windows: SlidingWindows, every: bool, more: int, entries: int
) -> None:
    layout = AggregateSpec.of(
        "s", serdes.string(), list(SLIDING_AGGREGATES.values()), list(SLIDING_AGGREGATES), INPUT
    )
    retention_ms = windows.retention_ms + more
    spec = SlidingAggregateSpec(layout, windows, retention_ms, emit_every_update=every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliding_aggregate, "_LOG_ENTRIES", entries)
        sliding_check(
            spec,
            SlidingModel(windows, retention_ms, add),
            split,
            INPUT,
            partial(decode_one, spec.results),
        )


@given(split=split_of(st.none() | st.just(True)), windows=sliding, every=st.booleans())
def test_a_bare_count_of_sliding_windows_is_javas_long(
    split: list[Any], windows: SlidingWindows, every: bool
) -> None:
    layout = AggregateSpec.of("s", serdes.string(), [agg.count()], None, pa.bool_())
    retention_ms = windows.retention_ms
    model = SlidingModel(windows, retention_ms, lambda key, value, before: (before or 0) + 1)
    sliding_check(
        SlidingAggregateSpec(layout, windows, retention_ms, emit_every_update=every),
        model,
        split,
        pa.bool_(),
        lambda data: int.from_bytes(data, "big"),
    )


@given(
    split=split_of(st.none() | st.integers(0, 6)), windows=sliding, every=st.booleans(), entries=few
)
def test_functions_of_sliding_windows_change_in_place(
    split: list[Any], windows: SlidingWindows, every: bool, entries: int
) -> None:
    retention_ms = windows.retention_ms
    spec = SlidingAggregateSpec(items_layout(), windows, retention_ms, emit_every_update=every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliding_aggregate, "_LOG_ENTRIES", entries)
        model = SlidingModel(windows, retention_ms, items_step)
        sliding_check(spec, model, split, pa.int64(), spec.value_serde.decode)


@given(split=split_of(st.none() | st.text("xyz", max_size=1)), windows=sliding, every=st.booleans())
def test_a_reducer_takes_the_first(split: list[Any], windows: SlidingWindows, every: bool) -> None:
    def reducer(aggregate: str, value: str) -> str | None:
        return None if value == "x" else f"({aggregate}{value})"

    def step(key: str, value: Any, before: Any) -> Any:
        return value if before is None else reducer(before, value)

    layout = PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.string(),
        aggregator=PythonReducer(reducer),
    )
    retention_ms = windows.retention_ms
    spec = SlidingAggregateSpec(layout, windows, retention_ms, emit_every_update=every)
    sliding_check(
        spec, SlidingModel(windows, retention_ms, step), split, pa.string(), spec.value_serde.decode
    )
