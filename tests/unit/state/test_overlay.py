"""Changes on top of a store: read lazily, and of the moment of the call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow.records import StoreChanges
from everflow.state.changelog import pack_value, unpack_value
from everflow.state.overlay import Overlay
from everflow.state.store import InMemoryStore, OrderedEntries

KEY = st.sampled_from([b"", b"a", b"a\0", b"ab", b"b", b"c\xff", b"d"])
BOUND = st.none() | KEY
CHANGE = st.tuples(KEY, st.none() | st.sampled_from([b"1", b"2"]))
ACTION = CHANGE | st.tuples(BOUND, BOUND, st.booleans(), st.integers(0, 4))


class Counted(InMemoryStore):
    read = 0

    def _counted(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for entry in entries:
            self.read += 1
            yield entry

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._counted(super().range(start, end, reverse=reverse))


def filled(store: InMemoryStore, keys: Sequence[bytes]) -> InMemoryStore:
    values: list[bytes | None] = [b"v"] * len(keys)
    store.apply(StoreChanges("s", list(keys), values, np.zeros(len(keys), np.int64)))
    return store


def between(model: dict[bytes, bytes], start: bytes | None, end: bytes | None) -> list[Any]:
    return [
        (key, value)
        for key, value in sorted(model.items())
        if (start is None or key >= start) and (end is None or key < end)
    ]


@settings(max_examples=150, deadline=None)
@given(below=st.sets(KEY), actions=st.lists(ACTION, max_size=25))
def test_a_range_is_of_the_moment_of_the_call_however_late_it_is_read(
    below: set[bytes], actions: list[Any]
) -> None:
    overlay = Overlay(filled(InMemoryStore(), sorted(below)), lambda e: unpack_value(e)[1])
    model = dict.fromkeys(below, b"v")
    begun: list[tuple[Iterator[Any], list[Any]]] = []
    for action in actions:
        if len(action) == 2:
            key, value = action
            overlay.put(key, value)
            model.pop(key, None)
            if value is not None:
                model[key] = value
            continue
        start, end, reverse, first = action
        found = overlay.range(start, end, reverse=reverse)
        wanted = between(model, start, end)[:: -1 if reverse else 1]
        assert [next(found) for _ in wanted[:first]] == wanted[:first]
        begun.append((found, wanted[first:]))
        assert overlay.entries() == len(model)
    for found, wanted in begun:
        assert list(found) == wanted


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_many_entries_are_not_copied_and_stay_those_of_the_call(data: Any) -> None:
    entries: OrderedEntries[int] = OrderedEntries()
    model: dict[bytes, int] = {}
    begun = []
    for number in range(data.draw(st.integers(1, 4))):
        for at in data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=200)):
            key = b"%03d" % at
            if at % 3 == number % 3:
                entries.remove(key)
                model.pop(key, None)
            else:
                entries.put(key, number)
                model[key] = number
        begun.append((entries.range(None, None), sorted(model.items())))
        assert list(entries.range(b"1", b"2", reverse=True)) == [
            one for one in sorted(model.items(), reverse=True) if b"1" <= one[0] < b"2"
        ]
        assert len(entries) == len(model)
    for found, wanted in begun:
        assert list(found) == wanted


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [50, 500])
def test_a_queue_reads_each_entry_once(count: int, reverse: bool) -> None:
    store = Counted()
    filled(store, [b"%04d" % at for at in range(count)])
    overlay = Overlay(store, bytes)
    for at in range(40):
        key, _ = next(overlay.range(None, None, reverse=reverse))
        assert key == b"%04d" % (count - 1 - at if reverse else at)
        overlay.put(key, None)
        overlay.put(b"x%04d" % at if not reverse else b"%04d" % -at, pack_value(0, b"w"))
        if reverse:
            overlay.put(b"%04d" % -at, None)
    assert store.read <= 2 * 40
