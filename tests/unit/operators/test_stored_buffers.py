"""Buffers read the bytes that the first release wrote (``stored_buffers.json``), and write them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.due_index import Changes, DueIndex, DueQueue
from everflow.operators.joins import JoinedTable, JoinKind, StreamStreamJoin
from everflow.operators.joins.lookup_join import LookupJoin, PendingLookups
from everflow.operators.joins.stream_table import GraceBuffer, GraceWait
from everflow.operators.suppress import BufferBounds, EarlyResults, SuppressSpec
from everflow.operators.table import TableSpec
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.records import HEADERS, EdgeBatch, StoreChanges, TasksResult
from everflow.serdes.windowed import windowed_key_type
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.graph import Inputs
from everflow.windows import JoinWindows

FIXTURE = Path(__file__).with_name("stored_buffers.json")
KEY, VALUE, RAW = serdes.string(), serdes.long(), serdes.bytes_()
WINDOWED = serdes.time_windowed(KEY, 10)
HEADER = [{"key": "h", "value": b"x"}, {"key": "none", "value": None}]
Views = Mapping[int, Mapping[str, InMemoryStore]]
Row = tuple[Any, Any, int]
"""Key, value and time (ms)."""


def spec(name: str, kind: str = "key_value", retention_ms: int | None = None) -> StoreSpec:
    plain = kind == "key_value"
    return StoreSpec(
        name=name,
        kind=kind,
        key_serde=RAW if plain else KEY,
        value_serde=RAW if plain else VALUE,
        retention_ms=retention_ms,
    )


def batch_of(rows: list[Row], first: int = 0, key: pa.DataType | None = None) -> EdgeBatch:
    """Records of task 0; every second one has headers."""
    seq = np.arange(first, first + len(rows), dtype=np.int64)
    return EdgeBatch(
        key=pa.array([row[0] for row in rows], key or pa.string()),
        value=pa.array([row[1] for row in rows], pa.int64()),
        timestamp=np.array([row[2] for row in rows], np.int64),
        seq=seq,
        source=np.zeros(len(rows), np.int32),
        partition=np.zeros(len(rows), np.int32),
        offset=seq,
        headers=pa.array([HEADER if at % 2 else [] for at in range(len(rows))], HEADERS),
    )


Run = Callable[[list[Row], Views, Mapping[int, int]], TasksResult]


def in_grace(rows: list[Row], views: Views, times: Mapping[int, int]) -> TasksResult:
    held = GraceBuffer(store=spec("w"), key_serde=KEY, value_serde=VALUE, grace_ms=10)
    return GraceWait(held, True).run(Inputs([batch_of(rows)], views, times, {}, 0))


def lookup(timeout_ms: int | None) -> Run:
    room = PendingLookups(
        store=spec("w"),
        key_serde=KEY,
        value_serde=VALUE,
        grace_ms=10,
        most=3,
        timeout_ms=timeout_ms,
    )
    table = StoreSpec(name="t", kind="key_value", key_serde=KEY, value_serde=VALUE)
    joined = JoinedTable(table, TableSpec("t", KEY, VALUE).results, pa.int64())
    join = LookupJoin(table=joined, kind=JoinKind.LEFT, pending=room)

    def run(rows: list[Row], views: Views, times: Mapping[int, int]) -> TasksResult:
        """The table gets an entry of the last row's key, behind all rows."""
        updates = batch_of([(rows[-1][0], 7, 0)] if rows[-1][1] is None else [], len(rows))
        there = {0: {**views[0], "t": InMemoryStore(table)}}
        left = [row for row in rows if row[1] is not None]
        now_ms = 1_000 + 10 * len(rows)
        return join.run(Inputs([batch_of(left), updates], there, times, {}, now_ms))

    return run


def unmatched(rows: list[Row], views: Views, times: Mapping[int, int]) -> TasksResult:
    """The values above 2 are of the right side."""
    join = StreamStreamJoin(
        JoinKind.OUTER,
        JoinWindows.of_time_difference(5).grace(5),
        (spec("l", "window", 21), spec("r", "window", 21)),
        (pa.int64(), pa.int64()),
        spec("w"),
    )
    whole = batch_of(rows)
    of_right = np.array([row[1] > 2 for row in rows])
    sides = [whole.take(np.flatnonzero(one)) for one in (~of_right, of_right)]
    return join.run(Inputs((sides[0], sides[1]), views, times))


def suppressed(by_window: bool, bounds: BufferBounds, early: EarlyResults | None = None) -> Run:
    windowed = by_window or early is not None
    operator = SuppressSpec(
        store="w",
        where=None,
        key_serde=WINDOWED if windowed else KEY,
        value_serde=VALUE,
        wait_ms=10,
        by_window=by_window,
        bounds=bounds,
        early=early,
    )

    def run(rows: list[Row], views: Views, times: Mapping[int, int]) -> TasksResult:
        batch = batch_of(rows)
        if windowed:
            starts = [row[2] // 10 * 10 for row in rows]
            keys = [
                {"key": row[0], "start": start, "end": start + 10}
                for row, start in zip(rows, starts, strict=True)
            ]
            batch = batch.with_columns(key=pa.array(keys, windowed_key_type(pa.string())))
        return operator.run(Inputs((batch,), views, times))

    return run


def ending(rows: list[Row], views: Views, times: Mapping[int, int]) -> TasksResult:
    operator = TimeToLiveSpec(layout=TableSpec("w", KEY, VALUE), ttl_ms=20)
    return operator.run(Inputs((batch_of(rows),), views, times))


@dataclass(frozen=True)
class Buffer:
    """An operator, its stores, and two batches of records."""

    run: Run
    stores: tuple[StoreSpec, ...] = (spec("w"),)
    first: tuple[Row, ...] = (("a", 1, 15), ("bb", 2, 12), ("a", 2, 15), ("", 1, 16), ("c", 2, 14))
    then: tuple[Row, ...] = (("bb", 2, 17), ("d", 1, 27), ("a", 2, 29), ("c", None, 40))


VALUES = (("bb", 3, 17), ("d", 1, 27), ("a", 2, 29), ("c", 1, 40))
STREAMS = (spec("w"), spec("l", "window", 21), spec("r", "window", 21))
FEW = BufferBounds(records=3)
BUFFERS: Mapping[str, Buffer] = {
    "grace": Buffer(in_grace, then=VALUES),
    "lookup": Buffer(lookup(None)),
    "lookup with a timeout": Buffer(lookup(50)),
    "unmatched": Buffer(unmatched, STREAMS, then=VALUES),
    "suppress by time": Buffer(suppressed(False, BufferBounds())),
    "suppress by time, bounded": Buffer(suppressed(False, FEW)),
    "suppress by window": Buffer(suppressed(True, BufferBounds())),
    "suppress by window, bounded": Buffer(suppressed(True, FEW)),
    "early results": Buffer(suppressed(False, BufferBounds(), EarlyResults(records=3, wait_ms=8))),
    "time to live": Buffer(ending, (spec("w"), spec("w-ttl"))),
}


def shown(done: TasksResult) -> list[Any]:
    """Key, value, time, place and headers of the results, as JSON can say it."""
    out = done.output
    headers = [[]] * len(out) if out.headers is None else out.headers.to_pylist()
    rows = zip(
        out.key.to_pylist(),
        out.value.to_pylist(),
        out.timestamp.tolist(),
        out.seq.tolist(),
        [[one["key"] for one in listed] for listed in headers],
        strict=True,
    )
    return [json.loads(json.dumps(row)) for row in rows]


def apply(stores: Mapping[str, InMemoryStore], done: TasksResult) -> None:
    for changes in done.changes.get(0, []):
        stores[changes.store].apply(changes)


def content(stores: Mapping[str, InMemoryStore]) -> dict[str, dict[str, str]]:
    return {
        name: {key.hex(): entry.hex() for key, entry in store.range(None, None)}
        for name, store in stores.items()
    }


def filled(buffer: Buffer, entries: Mapping[str, Mapping[str, str]]) -> dict[str, InMemoryStore]:
    stores = {one.name: InMemoryStore(one) for one in buffer.stores}
    for name, stored in entries.items():
        keys = [bytes.fromhex(key) for key in stored]
        found = [bytes.fromhex(entry) for entry in stored.values()]
        times = [int.from_bytes(entry[:8], "big", signed=True) for entry in found]
        values = [entry[8:] for entry in found]
        stores[name].apply(StoreChanges(name, keys, list(values), np.array(times, np.int64)))
    return stores


def runs(buffer: Buffer) -> dict[str, Any]:
    """What both batches give and leave."""
    stores = filled(buffer, {})
    first = buffer.run(list(buffer.first), {0: stores}, {0: -1})
    apply(stores, first)
    time = first.stream_times[0]
    found = {"first": shown(first), "stored": content(stores), "times": time}
    then = buffer.run(list(buffer.then), {0: stores}, {0: time})
    apply(stores, then)
    return {**found, "then": shown(then), "left": content(stores)}


@pytest.mark.parametrize("name", BUFFERS)
def test_what_an_earlier_commit_stored_is_read(name: str) -> None:
    buffer, known = BUFFERS[name], json.loads(FIXTURE.read_text())[name]
    stores = filled(buffer, known["stored"])
    done = buffer.run(list(buffer.then), {0: stores}, {0: known["times"]})
    apply(stores, done)
    assert shown(done) == known["then"]
    assert content(stores) == known["left"]


@pytest.mark.parametrize("name", BUFFERS)
def test_the_same_bytes_are_written(name: str) -> None:
    assert runs(BUFFERS[name]) == json.loads(FIXTURE.read_text())[name]


def test_the_fixture_has_entries_of_each_buffer() -> None:
    known = json.loads(FIXTURE.read_text())
    assert list(known) == list(BUFFERS)
    assert all(known[name]["stored"]["w"] and known[name]["then"] for name in known)


def test_a_negative_time_waits_in_the_grace_as_zero_does() -> None:
    stores = filled(BUFFERS["grace"], {})
    first = in_grace([("a", 1, -5)], {0: stores}, {0: -1})
    apply(stores, first)
    assert len(first.output) == 0
    times = first.stream_times
    assert shown(in_grace([("b", 2, 9)], {0: stores}, times)) == []
    then = in_grace([("b", 2, 10)], {0: stores}, times)
    assert [row[:3] for row in shown(then)] == [["a", 1, -5]]


# The index of what waits.

PLAIN, SIGNED = DueIndex(b"t"), DueIndex(b"t", signed=True)
ENTRIES = st.lists(st.tuples(st.integers(-20, 20), st.binary(max_size=9)), max_size=20, unique=True)


def store_of(index: DueIndex, entries: list[tuple[int, bytes]]) -> InMemoryStore:
    """Other keys of the store stand before and behind the index."""
    store, count = InMemoryStore(), len(entries)
    keys = [b"s\xff", b"u", *(index.key(time, rest) for time, rest in entries)]
    times = np.zeros(count + 2, np.int64)
    store.apply(StoreChanges("s", keys, [b"v"] * (count + 2), times))
    return store


@given(ENTRIES, st.integers(-30, 30), st.none() | st.integers(-30, 30))
def test_a_range_has_the_entries_between_its_times(
    entries: list[tuple[int, bytes]], last: int, after: int | None
) -> None:
    wanted = sorted(one for one in entries if one[0] <= last and (after is None or one[0] > after))
    found = [key for key, _ in SIGNED.stored(store_of(SIGNED, entries), last, after)]
    assert [(SIGNED.time_of(key), SIGNED.rest_of(key)) for key in found] == wanted
    assert found == [SIGNED.key(*one) for one in wanted]


def test_without_signs_a_negative_time_is_never_due() -> None:
    store = store_of(PLAIN, [(-5, b"a"), (0, b"b"), (3, b"c")])
    assert [PLAIN.rest_of(key) for key, _ in PLAIN.stored(store, 3)] == [b"b", b"c"]
    assert list(PLAIN.stored(store, -1)) == []


@pytest.mark.parametrize("index", [PLAIN, SIGNED])
def test_the_largest_time_has_a_key(index: DueIndex) -> None:
    last = 2**63 - 1
    assert index.time_of(index.key(last + 1)) == last


@given(ENTRIES, ENTRIES, st.integers(-30, 30))
def test_a_queue_merges_what_is_stored_with_what_comes(
    stored: list[tuple[int, bytes]], put: list[tuple[int, bytes]], now: int
) -> None:
    queue = DueQueue(index=SIGNED, view=store_of(SIGNED, stored))
    loaded = queue.load(now)
    for time, rest in put:
        queue.put(time, rest)
    found = []
    while due := queue.pop(now):
        found.append((due.time, due.rest))
    assert len(loaded) == sum(time <= now for time, _ in stored)
    assert found == sorted(one for one in [*stored, *put] if one[0] <= now)
    while True:
        while queue.read_on() is not None:
            pass
        due = queue.pop()
        if due is None:
            break
        found.append((due.time, due.rest))
    assert sorted(found) == sorted([*stored, *put])
    behind = [one for one in found if one[0] > now]
    assert behind == sorted(behind)


def test_of_one_time_the_tails_decide_first_where_they_are_asked_for() -> None:
    one, other = b"a" + bytes(7) + b"\x02", b"b" + bytes(7) + b"\x01"
    store = store_of(SIGNED, [(1, one), (1, other), (2, b"a" + bytes(8))])
    queue = DueQueue(index=SIGNED, view=store, by_tail=True)
    queue.put(1, one)
    read = []
    while (entry := queue.read_on()) is not None:
        read.append(SIGNED.rest_of(entry[0]))
    assert read == [one, other]
    assert queue.pop() == (1, other)


def test_changes_are_those_of_a_store_or_nothing() -> None:
    changes = Changes()
    assert changes.of("s") == []
    changes.add(b"k", b"v", 3)
    changes.add(b"l", None, 4)
    (made,) = changes.of("s")
    assert (made.store, made.keys, made.values) == ("s", [b"k", b"l"], [b"v", None])
    assert made.timestamps.tolist() == [3, 4]
