"""What operators may expect of any store: the reference in memory and LMDB pass the same tests."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.records import ByteColumn, Int64, StoreChanges, TaskId
from everflow.state.changelog import pack_value
from everflow.state.disk import MEMORY_DIR, MemoryFolder
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import OPEN, InMemoryStore, StoreSpec, StoreView, Version, memory_store
from everflow.state.task_directory import StateDirectory
from unit.builders import store_spec

MINUTE_MS = 60_000
KEY_VALUE = store_spec("s", key=serdes.bytes_(), value=serdes.bytes_())
RAW = serdes.bytes_()
KEPT_MS = 4 * MINUTE_MS
WINDOW = store_spec(
    "s", "window", key=RAW, value=RAW, retention_ms=KEPT_MS, window_size_ms=MINUTE_MS
)
SESSION = store_spec("s", "session", key=RAW, value=RAW, retention_ms=KEPT_MS)

Change = tuple[bytes, bytes | None]


class Store(Protocol):
    def apply(self, changes: Sequence[Change]) -> None: ...
    @contextmanager
    def view(self) -> Iterator[StoreView]: ...


def as_changes(changes: Sequence[Change]) -> StoreChanges:
    return StoreChanges(
        "s",
        [key for key, _ in changes],
        [value for _, value in changes],
        np.arange(len(changes), dtype=np.int64),
    )


class MemoryUnderTest:
    def __init__(self, spec: StoreSpec, path: Path) -> None:
        self._store = InMemoryStore(spec)

    def apply(self, changes: Sequence[Change]) -> None:
        self._store.apply(as_changes(changes))

    @contextmanager
    def view(self) -> Iterator[StoreView]:
        yield self._store


class LmdbUnderTest:
    def __init__(self, spec: StoreSpec, path: Path) -> None:
        self._store = LmdbStore.open(path, kind=spec.kind, retention_ms=spec.retention_ms)
        self._store.claim("i")

    def apply(self, changes: Sequence[Change]) -> None:
        owner = self._store.meta().owner
        self._store.apply(as_changes(changes), position=None, expected=owner, batch="b")

    @contextmanager
    def view(self) -> Iterator[StoreView]:
        with self._store.snapshot() as view:
            yield view


class ColumnsUnderTest(LmdbUnderTest):
    def apply(self, changes: Sequence[Change]) -> None:
        listed = as_changes(changes)
        keys, values = (ByteColumn(pa.array(x, pa.binary())) for x in (listed.keys, listed.values))
        given = StoreChanges("s", keys, values, listed.timestamps)
        self._store.apply(given, position=None, expected=self._store.meta().owner, batch="b")


@pytest.fixture(params=["model", "disk", "columns", "memory"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Makes the store under test: the model, one on disk (of lists, of columns), one in memory."""
    if request.param == "model":
        yield MemoryUnderTest
        return
    if request.param in ("disk", "columns"):
        yield LmdbUnderTest if request.param == "disk" else ColumnsUnderTest
        return
    memory = MemoryFolder(Path(MEMORY_DIR), frozenset({"s"}))
    directory = StateDirectory.open(tmp_path, "app", memory=memory)
    path = directory.store_path(TaskId(0, 0), "s")
    assert path.is_relative_to(memory.root)
    yield lambda spec, _: LmdbUnderTest(spec, path)
    LmdbStore.close_at(path)
    directory.close()
    assert not path.exists()


@pytest.fixture
def store(kind: Callable[..., Store], tmp_path: Path) -> Store:
    return kind(KEY_VALUE, tmp_path / "s-0")


TimeKey = Callable[[bytes, int], bytes]


@pytest.fixture(params=[WINDOW, SESSION], ids=["window", "session"])
def expiring(request: pytest.FixtureRequest) -> StoreSpec:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def windows(kind: Callable[..., Store], expiring: StoreSpec, tmp_path: Path) -> Store:
    return kind(expiring, tmp_path / "s-0")


@pytest.fixture
def time_key(expiring: StoreSpec) -> TimeKey:
    """A store's key by the time at which it expires: a window's start, a session's end."""
    if expiring is WINDOW:
        return lambda key, start: key + start.to_bytes(8, "big") + bytes(4)
    return lambda key, end: (
        key + end.to_bytes(8, "big") + max(0, end - 100 * MINUTE_MS).to_bytes(8, "big")
    )


def keys_in(store: Store, start: bytes | None = None, end: bytes | None = None) -> list[bytes]:
    with store.view() as view:
        return [key for key, _ in view.range(start, end)]


def require_both_ways(view: StoreView, bounds: Sequence[tuple[bytes, bytes]]) -> None:
    forward = [list(view.range(first, last)) for first, last in bounds]
    assert [list(view.range(first, last, reverse=True))[::-1] for first, last in bounds] == forward
    assert view.last_many(bounds) == [listed[-1] if listed else None for listed in forward]


def test_values_come_back_in_the_order_asked_with_their_time_in_front(store: Store) -> None:
    store.apply([(b"b", b"1"), (b"a", b"2")])
    with store.view() as view:
        assert view.get_many([b"a", b"none", b"b", b"a"]) == [
            pack_value(1, b"2"),
            None,
            pack_value(0, b"1"),
            pack_value(1, b"2"),
        ]
        assert view.get_many([]) == []


def test_the_last_change_of_a_key_wins(store: Store) -> None:
    store.apply(
        [(b"a", b"1"), (b"a", None), (b"b", b"1"), (b"b", b"2"), (b"c", b"1"), (b"c", None)]
    )
    with store.view() as view:
        assert view.get_many([b"a", b"b", b"c"]) == [None, pack_value(3, b"2"), None]


def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    store.apply([(b"a", None)])
    assert keys_in(store) == []


def test_the_empty_key_and_the_empty_value_are_ordinary(store: Store) -> None:
    store.apply([(b"", b""), (b"\x00", b"z")])
    with store.view() as view:
        assert list(view.range(None, None)) == [
            (b"", pack_value(0, b"")),
            (b"\x00", pack_value(1, b"z")),
        ]


@pytest.mark.parametrize("length", [477, 478, 479, 510, 511, 512, 5000])
def test_keys_of_any_length_are_kept_apart_and_in_order(store: Store, length: int) -> None:
    keys = [b"k" * length + tail for tail in (b"", b"a", b"b", b"\xff")]
    store.apply([(key, key[-1:]) for key in reversed(keys)])
    assert keys_in(store) == keys
    assert keys_in(store, keys[1], keys[3]) == keys[1:3]
    store.apply([(keys[2], None)])
    with store.view() as view:
        assert [value is not None for value in view.get_many(keys)] == [True, True, False, True]


def test_a_range_is_half_open_and_in_key_order(store: Store) -> None:
    store.apply([(bytes([byte]), b"v") for byte in (5, 1, 3, 255, 0)])
    assert keys_in(store) == [b"\x00", b"\x01", b"\x03", b"\x05", b"\xff"]
    assert keys_in(store, b"\x01", b"\x05") == [b"\x01", b"\x03"]
    assert keys_in(store, b"\x02") == [b"\x03", b"\x05", b"\xff"]
    assert keys_in(store, None, b"\x01") == [b"\x00"]
    assert keys_in(store, b"\x05", b"\x01") == []


@pytest.mark.parametrize("length", [3, 477, 480, 5000])
def test_many_ranges_are_those_of_one_each(store: Store, length: int) -> None:
    keys = [b"k" * length + tail for tail in (b"", b"a", b"ab", b"b", b"\xff")] + [
        b"k" * (length // 2),
        b"z",
    ]
    store.apply([(key, key[-1:]) for key in keys])
    bounds = [(first, last) for first in keys for last in [*keys, b"\xff"]]
    with store.view() as view:
        assert view.range_many(bounds) == [list(view.range(first, last)) for first, last in bounds]
        require_both_ways(view, bounds)
        assert view.range_many([]) == []


def test_many_ranges_in_any_order_are_those_of_one_each(store: Store) -> None:
    chance = random.Random(7)
    texts = [bytes(chance.choices(b"abc", k=chance.randint(1, 3))) for _ in range(60)]
    store.apply([(key, key) for key in texts[:12]])
    bounds = [(chance.choice(texts), chance.choice(texts)) for _ in range(400)]
    bounds += sorted((key, key + b"\x00") for key in texts)
    with store.view() as view:
        assert view.range_many(bounds) == [list(view.range(first, last)) for first, last in bounds]
        require_both_ways(view, bounds)


def test_many_ranges_of_windows_are_those_of_one_each(windows: Store, time_key: TimeKey) -> None:
    keys = [time_key(key, minute * MINUTE_MS) for key in (b"a", b"ab", b"b") for minute in range(9)]
    windows.apply([(key, b"v") for key in keys])
    bounds = [(first, last) for first in keys[::4] for last in keys[::3]]
    with windows.view() as view:
        assert view.range_many(bounds) == [list(view.range(first, last)) for first, last in bounds]
        require_both_ways(view, bounds)
        assert any(view.range_many(bounds))


def test_a_range_that_is_read_in_part_is_of_the_moment_of_the_call(store: Store) -> None:
    keys = [b"%03d" % number for number in range(200)]
    store.apply([(key, b"v") for key in keys])
    with store.view() as view:
        assert view.entries() == len(keys)
        begun = view.range(None, None), view.range(None, None, reverse=True)
        assert [next(one)[0] for one in begun] == [keys[0], keys[-1]]
        assert [len(list(one)) for one in begun] == [199, 199]


def test_windows_are_found_in_all_segments_in_key_order(windows: Store, time_key: TimeKey) -> None:
    keys = [time_key(key, minute * MINUTE_MS) for key in (b"a", b"b") for minute in range(4)]
    windows.apply([(key, b"v") for key in keys])
    assert keys_in(windows) == keys
    with windows.view() as view:
        assert None not in view.get_many([keys[7], keys[0], keys[3]])


def test_windows_behind_retention_go_from_any_segment(windows: Store, time_key: TimeKey) -> None:
    keys = [time_key(b"a", minute * MINUTE_MS) for minute in range(12)]
    for key in keys:
        windows.apply([(key, b"v")])
    assert keys_in(windows) == keys[8:]
    with windows.view() as view:
        assert [value is not None for value in view.get_many(keys)] == [False] * 8 + [True] * 4


def test_older_windows_expire_and_late_writes_stay_out(windows: Store, time_key: TimeKey) -> None:
    windows.apply([(time_key(b"a", 0), b"v")])
    windows.apply([(time_key(b"b", 100 * MINUTE_MS), None)])
    windows.apply([(time_key(b"a", 0), b"late")])
    assert keys_in(windows) == []
    with windows.view() as view:
        assert view.newest_ms == 100 * MINUTE_MS, "a deletion is written, too"


# A versioned store: the reference in memory and LMDB show the same whatever is put (KIP-889).


HISTORY_MS = 4 * MINUTE_MS

Put = tuple[bytes, bytes | None, int]


def spec_of(history_ms: int) -> StoreSpec:
    raw = serdes.bytes_()
    return store_spec("s", "versioned", key=raw, value=raw, retention_ms=history_ms)


class VersionedStore(Protocol):
    def put(self, puts: Sequence[Put]) -> None: ...
    @contextmanager
    def view(self) -> Iterator[Any]: ...


def versioned_as_changes(puts: Sequence[Put]) -> StoreChanges:
    times: Int64 = np.array([time for _, _, time in puts], np.int64)
    return StoreChanges("s", [key for key, _, _ in puts], [value for _, value, _ in puts], times)


class Memory:
    def __init__(self, history_ms: int, path: Path) -> None:
        self._store = memory_store(spec_of(history_ms))

    def put(self, puts: Sequence[Put]) -> None:
        self._store.apply(versioned_as_changes(puts))

    @contextmanager
    def view(self) -> Iterator[Any]:
        yield self._store


class Lmdb:
    """``restored``: puts come as chunks of a changelog."""

    def __init__(self, history_ms: int, path: Path, *, restored: bool = False) -> None:
        self.store = LmdbStore.open(
            path, kind="versioned", retention_ms=history_ms, map_bytes=1 << 22
        )
        self.store.claim("i")
        self._restored = restored

    def put(self, puts: Sequence[Put]) -> None:
        changes = versioned_as_changes(puts)
        if self._restored:
            self.store.load_chunk(
                changes.keys,
                changes.values,
                changes.timestamps,
                (self.store.position or 0) + len(puts),
            )
        else:
            owner = self.store.meta().owner
            self.store.apply(changes, position=None, expected=owner, batch="b")

    @contextmanager
    def view(self) -> Iterator[Any]:
        with self.store.snapshot() as view:
            yield view


@pytest.fixture(params=[Memory, Lmdb], ids=["memory", "lmdb"])
def versioned_store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionedStore:
    return request.param(HISTORY_MS, tmp_path / "s-0")  # type: ignore[no-any-return]


def versions(
    versioned_store: VersionedStore, key: bytes = b"a", first: int = 0, last: int = OPEN - 1
) -> list[Version]:
    with versioned_store.view() as view:
        found: list[Version] = view.versions_many([(key, first, last)])[0]
        return found


def test_a_version_is_valid_until_the_next_one(versioned_store: VersionedStore) -> None:
    versioned_store.put([(b"a", b"1", 10), (b"a", b"3", 30)])
    versioned_store.put([(b"a", b"2", 20)])
    assert versions(versioned_store) == [(10, 20, b"1"), (20, 30, b"2"), (30, OPEN, b"3")]
    assert versions(versioned_store, first=20, last=29) == [(20, 30, b"2")]
    assert versions(versioned_store, first=19, last=20) == [(10, 20, b"1"), (20, 30, b"2")]
    assert versions(versioned_store, first=0, last=9) == []


def test_a_view_shows_the_latest_values_whatever_came_last(versioned_store: VersionedStore) -> None:
    versioned_store.put([(b"b", b"1", 30), (b"b", b"0", 10), (b"a", b"2", 20), (b"c", b"3", 5)])
    versioned_store.put([(b"c", None, 6)])
    with versioned_store.view() as view:
        assert view.get_many([b"b", b"x", b"a", b"c"]) == [
            pack_value(30, b"1"),
            None,
            pack_value(20, b"2"),
            None,
        ]
        assert list(view.range(None, None)) == [
            (b"a", pack_value(20, b"2")),
            (b"b", pack_value(30, b"1")),
        ]
        assert view.latest_many([b"b", b"x", b"c"]) == [(30, b"1"), None, (6, None)]
        assert view.stream_time == 30


def test_a_deletion_is_a_version(versioned_store: VersionedStore) -> None:
    versioned_store.put([(b"a", b"1", 10), (b"a", None, 20)])
    assert versions(versioned_store) == [(10, 20, b"1"), (20, OPEN, None)]
    versioned_store.put([(b"a", b"0", 15)])
    assert versions(versioned_store)[1:] == [(15, 20, b"0"), (20, OPEN, None)]
    versioned_store.put([(b"a", b"3", 30), (b"a", None, 12), (b"a", b"2", 25)])
    assert versions(versioned_store) == [
        (10, 12, b"1"),
        (12, 15, None),
        (15, 20, b"0"),
        (20, 25, None),
        (25, 30, b"2"),
        (30, OPEN, b"3"),
    ]


def test_a_version_of_the_same_time_takes_the_place_of_the_other(
    versioned_store: VersionedStore,
) -> None:
    versioned_store.put([(b"a", b"1", 10), (b"a", b"2", 20), (b"a", b"x", 10), (b"a", None, 20)])
    assert versions(versioned_store) == [(10, 20, b"x"), (20, OPEN, None)]
    versioned_store.put([(b"a", b"y", 20)])
    assert versions(versioned_store) == [(10, 20, b"x"), (20, OPEN, b"y")]


def test_what_is_older_than_the_history_is_ignored(versioned_store: VersionedStore) -> None:
    versioned_store.put([(b"a", b"1", HISTORY_MS + 10), (b"a", b"late", 9), (b"a", b"0", 10)])
    assert versions(versioned_store) == [(10, HISTORY_MS + 10, b"0"), (HISTORY_MS + 10, OPEN, b"1")]


def test_what_ended_before_the_history_goes_and_the_latest_stays(
    versioned_store: VersionedStore,
) -> None:
    versioned_store.put([(b"a", b"1", 10), (b"a", b"2", 20), (b"b", None, 15), (b"c", b"3", 5)])
    versioned_store.put([(b"d", None, HISTORY_MS + 20)])
    assert versions(versioned_store) == [(20, OPEN, b"2")]
    assert versions(versioned_store, b"b") == []
    versioned_store.put([(b"x", b"", 100 * HISTORY_MS)])
    assert [versions(versioned_store, key) for key in (b"a", b"b", b"c")] == [
        [(20, OPEN, b"2")],
        [],
        [(5, OPEN, b"3")],
    ]


@pytest.mark.parametrize("length", [460, 477, 478, 500, 5000])
def test_keys_of_any_length_have_versions(versioned_store: VersionedStore, length: int) -> None:
    keys = [b"k" * length + tail for tail in (b"", b"a", bytes(8), b"\xff")]
    versioned_store.put([(key, key[-1:], time) for time in (30, 10, 20) for key in reversed(keys)])
    for key in keys:
        assert versions(versioned_store, key) == [
            (10, 20, key[-1:]),
            (20, 30, key[-1:]),
            (30, OPEN, key[-1:]),
        ]


KEYS = [b"", b"a", b"ab", b"a" + bytes(8), b"k" * 500, b"k" * 500 + b"x"]
BATCHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(KEYS), st.sampled_from([None, b"", b"1", b"2"]), st.integers(0, 30)
        ),
        max_size=8,
    ),
    min_size=1,
    max_size=8,
)


@given(BATCHES, st.sampled_from([0, 3, 10]), st.sampled_from([1, MINUTE_MS // 5, MINUTE_MS]))
def test_all_show_the_same_for_any_put(batches: list[list[Put]], history: int, unit: int) -> None:
    """``unit``: of times, so that versions lie in one or in many segments; restored, too."""
    with TemporaryDirectory() as folder:
        memory = Memory(history * unit, Path(folder) / "m")
        applied = Lmdb(history * unit, Path(folder) / "a")
        restored = Lmdb(history * unit, Path(folder) / "r", restored=True)
        for turn, batch in enumerate(batches):
            puts = [(key, value, (time + 2 * turn) * unit) for key, value, time in batch]
            found = []
            for versioned_store in (memory, applied, restored):
                versioned_store.put(puts)
                with versioned_store.view() as view:
                    asked = [
                        (key, (at + turn) * unit, (at + 9) * unit) for key in KEYS for at in (0, 9)
                    ]
                    found.append(
                        (
                            list(view.range(None, None)),
                            view.latest_many(KEYS),
                            view.versions_many(asked),
                            view.stream_time,
                        )
                    )
            assert found[0] == found[1] == found[2]
        for opened in (applied, restored):
            opened.store.close()
