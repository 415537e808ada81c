"""The index of what waits for a time."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.dsl.graph_builder import bytes_store
from everflow.operators.due_index import Changes, DueIndex, DueQueue
from everflow.operators.joins.stream_table import GraceBuffer, GraceWait
from everflow.records import StoreChanges
from everflow.state.store import InMemoryStore
from everflow.topology.graph import Inputs
from unit.builders import edge_batch

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


def test_a_negative_time_waits_in_the_grace_as_zero_does() -> None:
    types = {"key_serde": serdes.string(), "value_serde": serdes.long()}
    wait = GraceWait(GraceBuffer(store=bytes_store("w"), grace_ms=10, **types), True)
    store, found = InMemoryStore(), []
    times: Mapping[int, int] = {0: -1}
    for time in (-5, 9, 10):
        batch = edge_batch(["a"], [1], timestamp=np.array([time]))
        done = wait.run(Inputs([batch], {0: {"w": store}}, times, {}, 0))
        for changes in done.changes.get(0, []):
            store.apply(changes)
        times = done.stream_times
        found.append(done.output.timestamp.tolist())
    assert found == [[], [], [-5]]
