"""The stores of processors beside those of queries: the same names, and the same results."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow import Windowed
from everflow.errors import UnknownNameError
from everflow.instance.query.queries import StoreSite
from everflow.instance.query.store_query import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
)
from everflow.operators.processors.stores import (
    Entries,
    KeyValueStore,
    SessionStore,
    StoreClock,
    VersionedStore,
    WindowStore,
)
from everflow.records import StoreChanges
from everflow.serdes.windowed import session_key, window_store_key
from everflow.state.store import StoreSpec, memory_store
from unit.builders import store_spec
from unit.instance.query.query_stores import COUNTS, PARTITIONS, Instance, by_first_letter

FOR_EVER = (1 << 63) - 1
WINDOWS = store_spec("windows", "window", retention_ms=FOR_EVER, window_size_ms=1_000)
SESSIONS = store_spec("sessions", "session", retention_ms=FOR_EVER)
SITES = [
    StoreSite(spec=spec, subtopology=0, partitions=PARTITIONS, decode=spec.value_serde.decode)
    for spec in (COUNTS, WINDOWS, SESSIONS)
]
STORES: list[tuple[type, type]] = [
    (ReadOnlyKeyValueStore, KeyValueStore),
    (ReadOnlyWindowStore, WindowStore),
    (ReadOnlySessionStore, SessionStore),
]
OF_QUERIES = {"behind", "partitions", "to_dataframe"}
KEYS = ["a", "aa", "aaaaaaaaaaaaaaaaaa", "ab", "aé"]
BOUNDS: list[str | None] = [*KEYS, None]


def named(store: type) -> dict[str, list[str]]:
    """The public methods of a class with the names of their parameters."""
    return {
        name: list(inspect.signature(method).parameters)
        for name, method in inspect.getmembers(store, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("asked", "used"), STORES)
def test_what_a_query_has_a_processors_store_has_with_the_same_parameters(
    asked: type, used: type
) -> None:
    there = named(used)
    for name, parameters in named(asked).items():
        if name not in OF_QUERIES:
            assert there[name][: len(parameters)] == parameters, name


def test_versions_have_one_name_in_both() -> None:
    asked, used = named(ReadOnlyVersionedStore), named(VersionedStore)
    for name in ("get_as_of", "versions", "all"):
        assert used[name] == asked[name]


def places(kind: str) -> list[bytes]:
    """Keys as a store of the kind has them: of nested texts, with windows and sessions whose times
    look like letters."""
    times = [0, 1, 3, 97, ord("b") << 56]
    if kind == "key_value":
        return [key.encode() for key in KEYS]
    if kind == "window":
        return [window_store_key(key.encode(), time) for key in KEYS for time in times]
    ends = [(start, end) for start in times for end in times if start <= end]
    return [session_key(key.encode(), *pair) for key in KEYS for pair in ends]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path, sites=SITES)
    yield made
    made.close()


def both(instance: Instance, spec: StoreSpec, made: Any, seed: int) -> tuple[Any, Any]:
    """A processor's store of what was committed and what its batch has changed since, and a query
    of the store behind that batch."""
    drawn = random.Random(seed)
    clock = StoreClock(lambda: 5, lambda: 0)
    committed = {key: drawn.randint(1, 99) for key in places(spec.kind) if drawn.random() < 0.5}
    behind = memory_store(spec)
    values = [spec.value_serde.encode(value) for value in committed.values()]
    times = np.zeros(len(values), np.int64)
    behind.apply(StoreChanges(spec.name, list(committed), values, times))
    entries = Entries(spec, behind)
    for key in places(spec.kind):
        if drawn.random() < 0.4:
            value = drawn.choice([None, drawn.randint(1, 99)])
            entries.put(key, spec.value_serde.encode(value), 5)
            committed.pop(key, None)
            if value is not None:
                committed[key] = value
    instance.put(0, spec, dict(committed))
    return made(entries, clock), instance.store(spec.name, partitioner=by_first_letter)


def require_same(used: Any, asked: Any, name: str, *given: Any) -> None:
    mine, its = getattr(used, name)(*given), getattr(asked, name)(*given)
    if isinstance(its, Iterator):
        mine, its = list(mine), list(its)
    assert mine == its, (name, given)


@pytest.mark.parametrize("seed", range(3))
def test_keys_are_found_as_by_a_query(instance: Instance, seed: int) -> None:
    used, asked = both(instance, COUNTS, KeyValueStore, seed)
    for name in ("all", "reverse_all", "approximate_num_entries", "range", "reverse_range"):
        require_same(used, asked, name)
    for first in BOUNDS:
        for last in BOUNDS:
            require_same(used, asked, "range", first, last)
            require_same(used, asked, "reverse_range", first, last)
    for prefix in ("a", "aa", b"a\xc3", b"", "b"):
        require_same(used, asked, "prefix_scan", prefix)


@pytest.mark.parametrize("seed", range(3))
def test_windows_are_found_as_by_a_query(instance: Instance, seed: int) -> None:
    used, asked = both(instance, WINDOWS, WindowStore, seed)
    spans = [(0, 1 << 70), (1, 97), (97, 97), (3, 1), (-5, -1), (-5, 0)]
    for name in ("all", "reverse_all", "approximate_num_entries"):
        require_same(used, asked, name)
    for span in spans:
        require_same(used, asked, "fetch_all", *span)
        require_same(used, asked, "backward_fetch_all", *span)
        for key in KEYS:
            require_same(used, asked, "fetch", key, *span)
            require_same(used, asked, "backward_fetch", key, *span)
            require_same(used, asked, "fetch_window", key, 97)
            require_same(used, asked, "fetch", key, 97)
            for last in BOUNDS:
                require_same(used, asked, "fetch_range", key, last, *span)
                require_same(used, asked, "backward_fetch_range", last, key, *span)


@pytest.mark.parametrize("seed", range(3))
def test_sessions_are_found_as_by_a_query(instance: Instance, seed: int) -> None:
    used, asked = both(instance, SESSIONS, SessionStore, seed)
    spans = [(0, 1 << 70), (1, 97), (97, 1), (1 << 70, 5), (-5, -1), (-5, 0)]
    for name in ("all", "reverse_all", "approximate_num_entries"):
        require_same(used, asked, name)
    for key in KEYS:
        require_same(used, asked, "fetch", key)
        require_same(used, asked, "backward_fetch", key)
        require_same(used, asked, "fetch_session", key, 1, 97)
        for span in spans:
            require_same(used, asked, "find_sessions", key, *span)
            require_same(used, asked, "backward_find_sessions", key, *span)
        for last in BOUNDS:
            require_same(used, asked, "fetch_range", key, last)
            require_same(used, asked, "backward_fetch_range", last, key)
            for span in spans:
                require_same(used, asked, "find_sessions_range", key, last, *span)
                require_same(used, asked, "backward_find_sessions_range", last, key, *span)


def test_a_result_is_of_the_moment_of_the_call() -> None:
    entries = Entries(WINDOWS, memory_store(WINDOWS))
    store = WindowStore(entries, StoreClock(lambda: 5, lambda: 0))
    store.put("a", 1, 0)
    found = store.fetch("a", 0, 9)
    store.put("a", 2, 0)
    store.put("a", 3, 5)
    assert list(found) == [(Windowed("a", 0, 1000), 1)]


@pytest.mark.parametrize(
    ("store", "name", "here"),
    [
        (KeyValueStore, "reverseRange", "reverse_range"),
        (KeyValueStore, "prefixScan", "prefix_scan"),
        (WindowStore, "backwardFetchAll", "backward_fetch_all"),
        (SessionStore, "backwardFindSessions", "backward_find_sessions"),
    ],
)
def test_javas_name_of_a_method_is_told(store: type, name: str, here: str) -> None:
    with pytest.raises(UnknownNameError, match=here):
        getattr(store, name)
