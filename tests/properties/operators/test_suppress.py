"""A suppressed table equals one update after the other under any cut; its buffer has the rest."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.errors import BufferFullError
from everflow.operators.suppress import BufferBounds, SuppressSpec
from everflow.records import EdgeBatch, StoreChanges
from everflow.serdes.windowed import windowed_key_type
from everflow.state.store import InMemoryStore
from everflow.topology.graph import Inputs
from properties.operators.operator_batches import apply_all, rows_of

TASKS = (0, 1)
SIZE_MS = 10
PLAIN = st.tuples(
    st.sampled_from(["a", "b", "c", "bb"]),
    st.none() | st.integers(0, 9),
    st.integers(-20, 60),
    st.sampled_from(TASKS),
)
SPLITS = st.lists(st.lists(PLAIN, min_size=1, max_size=12), min_size=1, max_size=4)
BOUNDS = st.sampled_from(
    [BufferBounds(), BufferBounds(records=1), BufferBounds(records=2), BufferBounds(bytes=40)]
)


def spec(wait_ms: int, by_window: bool, bounds: BufferBounds) -> SuppressSpec:
    key: Any = serdes.time_windowed(serdes.string(), SIZE_MS) if by_window else serdes.string()
    return SuppressSpec(
        store="s",
        where="program.py:1",
        key_serde=key,
        value_serde=serdes.long(),
        wait_ms=wait_ms,
        by_window=by_window,
        bounds=bounds,
    )


class Model:
    """Kafka Streams' processor of one task, with Python objects: (place, key bytes) -> update."""

    def __init__(self, wait_ms: int, by_window: bool, bounds: BufferBounds) -> None:
        self.wait_ms, self.by_window, self.bounds = wait_ms, by_window, bounds
        self.held: dict[tuple[int, bytes], tuple[Any, Any, int]] = {}
        self.stream_time = -1

    def feed(self, seq: int, key: Any, key_bytes: bytes, value: Any, time: int) -> list[Any]:
        self.stream_time = max(self.stream_time, time)
        place = next((at for at, held in self.held if held == key_bytes), None)
        if place is None:
            place = key["end"] if self.by_window else time
        self.held[place, key_bytes] = (key, value, time)
        out = []
        while self.held and min(self.held)[0] <= self.stream_time - self.wait_ms:
            out.append(self.held.pop(min(self.held)))
        while self.bounds.over(len(self.held), self.size):
            out.append(self.held.pop(min(self.held)))
        return [(seq, *one) for one in out if one[1] is not None or not self.by_window]

    @property
    def size(self) -> int:
        return sum(8 + len(k) + (0 if v is None else 8) for (_, k), (_, v, _) in self.held.items())


def batch_of(rows: list[Any], keys: pa.Array, seq: int) -> EdgeBatch:
    count = len(rows)
    return EdgeBatch(
        key=keys,
        value=pa.array([row[1] for row in rows], pa.int64()),
        timestamp=np.array([row[2] for row in rows], np.int64),
        seq=np.arange(seq, seq + count, dtype=np.int64),
        source=np.zeros(count, np.int32),
        partition=np.array([row[3] for row in rows], np.int32),
        offset=np.arange(seq, seq + count, dtype=np.int64),
    )


def keys_of(rows: list[Any], by_window: bool) -> pa.Array:
    if not by_window:
        return pa.array([row[0] for row in rows], pa.string())
    starts = [max(row[2], 0) // SIZE_MS * SIZE_MS for row in rows]
    windows = [
        {"key": row[0], "start": start, "end": start + SIZE_MS}
        for row, start in zip(rows, starts, strict=True)
    ]
    return pa.array(windows, windowed_key_type(pa.string()))


@given(split=SPLITS, wait_ms=st.integers(0, 30), by_window=st.booleans(), bounds=BOUNDS)
def test_it_gives_the_same(split: Any, wait_ms: int, by_window: bool, bounds: BufferBounds) -> None:
    operator = spec(wait_ms, by_window, bounds)
    stores = {task: InMemoryStore() for task in TASKS}
    models = {task: Model(wait_ms, by_window, bounds) for task in TASKS}
    times, seq = dict.fromkeys(TASKS, -1), 0
    for rows in split:
        keys = keys_of(rows, by_window)
        written = operator.key_serde.encode_array(keys).to_pylist()
        wanted = [
            found
            for at, (row, key, data) in enumerate(zip(rows, keys.to_pylist(), written, strict=True))
            for found in models[row[3]].feed(seq + at, key, data, row[1], row[2])
        ]
        there = sorted({row[3] for row in rows})
        done = operator.run(
            Inputs(
                (batch_of(rows, keys, seq),),
                {task: {"s": stores[task]} for task in there},
                {task: times[task] for task in there},
            )
        )
        seq += len(rows)
        assert rows_of(done.output) == wanted
        times.update(done.stream_times)
        apply_all(done, stores)
        for task, model in models.items():
            assert times[task] == model.stream_time
            booked = 1 if bounds.limited and model.held else 0
            assert len(stores[task]) == len(model.held) * (1 if by_window else 2) + booked
    # What is left comes out in its order, with the values it had.
    for task, model in models.items():
        if not model.held:
            continue
        last = (("z", None, 1_000, task),)
        keys = keys_of(list(last), by_window)
        key_bytes = operator.key_serde.encode_array(keys)[0].as_py()
        wanted = model.feed(seq, keys[0].as_py(), key_bytes, None, 1_000)
        done = operator.run(
            Inputs(
                (batch_of(list(last), keys, seq),), {task: {"s": stores[task]}}, {task: times[task]}
            )
        )
        assert done.output.value.to_pylist() == [one[2] for one in wanted]


def test_a_full_buffer_that_is_to_stop_says_where_and_what_to_do() -> None:
    operator = spec(10, True, BufferBounds(records=1, stops=True))
    rows = [("a", 1, 5, 0), ("b", 2, 5, 0)]
    batch = batch_of(rows, keys_of(rows, True), 0)
    with pytest.raises(BufferFullError, match="emit_early_when_full") as error:
        operator.run(Inputs((batch,), {0: {"s": InMemoryStore()}}, {0: -1}))
    assert "'s' of suppress (program.py:1) holds 2 records" in str(error.value)
    assert "hold 1 records" in str(error.value)


FULL = BufferBounds(records=2)
HELD, BOOKED = b"\x00", b"\x02"


def put(operator: SuppressSpec, store: InMemoryStore, rows: list[Any]) -> list[Any]:
    """The values that come out with these rows of task 0."""
    batch = batch_of(rows, keys_of(rows, operator.by_window), 0)
    done = operator.run(Inputs((batch,), {0: {"s": store}}, {0: -1}))
    for changes in done.changes.get(0, []):
        store.apply(changes)
    return list(done.output.value.to_pylist())


def without_book(store: InMemoryStore) -> InMemoryStore:
    """As a release before the entry has written it."""
    found = InMemoryStore()
    kept = [(key, entry) for key, entry in store.range(None, None) if key != BOOKED]
    times = [int.from_bytes(entry[:8], "big", signed=True) for _, entry in kept]
    keys, values = [key for key, _ in kept], [entry[8:] for _, entry in kept]
    found.apply(StoreChanges("s", keys, list(values), np.array(times, np.int64)))
    return found


class Counted(InMemoryStore):
    def __init__(self, held: InMemoryStore) -> None:
        super().__init__()
        self._entries = held._entries
        self.read = 0

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().range(start, end, reverse=reverse):
            self.read += 1
            yield entry


def test_a_store_without_count_and_bytes_is_counted_once() -> None:
    operator, store = spec(1_000, False, FULL), InMemoryStore()
    assert put(operator, store, [("a", 1, 5, 0), ("b", 2, 6, 0)]) == []
    older = without_book(store)
    assert len(older) == len(store) - 1
    assert put(operator, older, [("c", 3, 7, 0)]) == [1]
    assert older.get_many([BOOKED]) != [None]
    assert put(operator, older, [("d", 4, 8, 0)]) == [2]


@pytest.mark.parametrize("bounds", [BufferBounds(), BufferBounds(records=2)])
def test_what_others_have_changed_since_is_counted_anew(bounds: BufferBounds) -> None:
    operator, store = spec(1_000, False, FULL), InMemoryStore()
    assert put(operator, store, [("a", 1, 5, 0), ("b", 2, 6, 0)]) == []
    if bounds.limited:
        more = spec(1_000, False, BufferBounds(records=10))
        older = without_book(store)
        put(more, older, [("c", 3, 7, 0)])
        (book,) = store.get_many([BOOKED])
        assert book is not None
        older.apply(StoreChanges("s", [BOOKED], [book[8:]], np.array([0], np.int64)))
        store = older
    else:
        put(spec(1_000, False, bounds), store, [("c", 3, 7, 0)])
        assert store.get_many([BOOKED]) == [None]
    assert put(operator, store, [("d", 4, 8, 0)]) == [1, 2]


@pytest.mark.parametrize("by_window", [False, True])
def test_a_bounded_buffer_reads_what_goes(by_window: bool) -> None:
    bounds = BufferBounds(records=500, stops=by_window)
    operator, store = spec(1_000, by_window, bounds), InMemoryStore()
    many = [(f"k{at:03}", at, 5 + at % 7, 0) for at in range(500 if not by_window else 400)]
    assert put(operator, store, many) == []
    counted = Counted(store)
    assert put(operator, counted, [("x", 1, 20, 0)]) == ([] if by_window else [0])
    assert counted.read <= 4


def test_an_emptied_buffer_has_no_book() -> None:
    operator, store = spec(0, True, FULL), InMemoryStore()
    put(operator, store, [("a", 1, 5, 0)])
    assert len(store) == 2
    put(operator, store, [("a", None, 100, 0)])
    put(operator, store, [("a", 1, 1_000, 0)])
    assert [key[:1] for key, _ in store.range(None, None)] == [HELD, BOOKED]
