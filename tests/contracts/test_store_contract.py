"""What operators may expect of any store: the reference in memory and LMDB pass the same tests."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.records import ByteColumn, StoreChanges, TaskId
from everflow.state.changelog import pack_value
from everflow.state.disk import MEMORY_DIR, MemoryFolder
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import InMemoryStore, StoreSpec, StoreView
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
    """Most lie between two keys, one behind the other, where nothing is stored."""
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
