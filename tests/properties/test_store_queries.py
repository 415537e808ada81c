"""Queries of a store equal those of a sorted dictionary, in any page size, with writes."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everflow import Windowed, serdes
from everflow.errors import StoreMismatchError
from everflow.instance.query.store_query import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    StoreReader,
)
from everflow.operators.aggregates.folds import pack, unpack
from everflow.records import StoreChanges
from everflow.serdes import Serde, SerdeError
from everflow.serdes.arrow_types import column_of
from everflow.serdes.base import decode_one, value_reader
from everflow.serdes.changed import ChangedSerde
from everflow.serdes.windowed import python_keys, session_key, window_store_key
from everflow.snapshots.entry_columns import EntryColumns
from everflow.state.changelog import fold, pack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import InMemoryStore, StoreSpec, Version, memory_store
from everflow.state.store_meta import Owner
from everflow.state.stored_keys import SHORT_BYTES
from properties.drawn_types import keys, present, same, types, values
from unit.builders import store_spec

KEYS = store_spec("keys", key=serdes.bytes_())
WINDOWS = store_spec(
    "windows", "window", key=serdes.bytes_(), retention_ms=400_000, window_size_ms=10
)
SESSIONS = store_spec("sessions", "session", key=serdes.bytes_(), retention_ms=400_000)
LONG = b"p" * SHORT_BYTES

short = st.binary(max_size=3) | st.lists(st.sampled_from([0, 1, 0x61, 0xFF]), max_size=3).map(bytes)
key = st.one_of(
    short,
    short.map(lambda tail: LONG + tail),
    st.sampled_from([bytes(7), bytes(9) + b"a", b"a" + bytes(8)]),
)
# Starts in several time segments, and beginning with bytes that keys end with.
start = st.sampled_from([0, 1, 0x61, 256, 65_535, 70_000, 150_000, 250_000, 300_000])
number = st.integers(-5, 5)
pages = st.sampled_from([1, 2, 3, 1000])


def write(path: Path, spec: StoreSpec, content: Mapping[bytes, int | None]) -> None:
    store = LmdbStore.open(path, kind=spec.kind, retention_ms=spec.retention_ms)
    values = [serdes.long().encode(value) for value in content.values()]
    store.load_chunk(
        list(content),
        values,
        np.zeros(len(content), np.int64),
        (store.position or 0) + len(content),
    )


class OnePlace(StoreReader):
    """One partition whose store may be rebuilt."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rebuilds = folder, 0

    def readable(self) -> list[int]:
        return [0]

    def require_some(self) -> None:
        pass

    def path(self, partition: int = 0) -> Path:
        return self.folder / f"s-{self.rebuilds}"

    def active_paths(self) -> dict[int, Path]:
        return {0: self.path()}

    def home(self, key: bytes) -> int:
        return 0

    def rebuild(self, spec: StoreSpec, content: Mapping[bytes, int]) -> None:
        old = self.path()
        self.rebuilds += 1
        write(self.path(), spec, content)
        LmdbStore.close_at(old)
        shutil.rmtree(old)


@contextmanager
def place(spec: StoreSpec, content: Mapping[bytes, int], page: int) -> Iterator[OnePlace]:
    with tempfile.TemporaryDirectory() as folder:
        made = OnePlace(Path(folder))
        made.page_entries = page
        write(made.path(), spec, content)
        try:
            yield made
        finally:
            LmdbStore.close_at(made.path())


def decode(data: bytes) -> Any:
    return serdes.long().decode(data)


@given(st.dictionaries(key, number, max_size=14), st.none() | key, st.none() | key, short, pages)
def test_keys(
    content: dict[bytes, int], first: bytes | None, last: bytes | None, prefix: bytes, page: int
) -> None:
    model = sorted(content.items())
    between = [(k, v) for k, v in model if k >= (first or b"") and (last is None or k <= last)]
    with place(KEYS, content, page) as access:
        store = ReadOnlyKeyValueStore(KEYS, access, decode)
        assert list(store.all()) == model
        assert list(store.reverse_all()) == model[::-1]
        assert list(store.range(first, last)) == between
        assert list(store.reverse_range(first, last)) == between[::-1]
        assert list(store.prefix_scan(prefix)) == [(k, v) for k, v in model if k.startswith(prefix)]
        for wanted in [first or b"", *content]:
            assert store.get(wanted) == content.get(wanted)


@given(
    st.dictionaries(st.tuples(key, start), number, max_size=14),
    key,
    key,
    st.tuples(start, start).map(sorted),
    pages,
)
def test_windows(
    content: dict[tuple[bytes, int], int],
    first: bytes,
    last: bytes,
    times: tuple[int, int],
    page: int,
) -> None:
    low, high = times
    stored = {window_store_key(*place): value for place, value in content.items()}
    in_order = sorted(content, key=lambda place: window_store_key(*place))
    in_time = [place for place in in_order if low <= place[1] <= high]

    def entries(places: list[tuple[bytes, int]]) -> list[tuple[Windowed, int]]:
        return [(Windowed(k, s, s + 10), content[k, s]) for k, s in places]

    with place(WINDOWS, stored, page) as access:
        store = ReadOnlyWindowStore(WINDOWS, access, decode)
        assert list(store.all()) == entries(in_order)
        assert list(store.fetch_all(low, high)) == entries(in_time)
        assert list(store.backward_fetch_all(low, high)) == entries(in_time[::-1])
        bounded = [place for place in in_time if first <= place[0] <= last]
        assert list(store.fetch_range(first, last, low, high)) == entries(bounded)
        assert list(store.backward_fetch_range(first, last, low, high)) == entries(bounded[::-1])
        assert list(store.fetch_range(None, last, low, high)) == entries(
            [p for p in in_time if p[0] <= last]
        )
        assert list(store.fetch_range(first, None, low, high)) == entries(
            [p for p in in_time if p[0] >= first]
        )
        for wanted in {first, *(k for k, _ in content)}:
            mine = entries([p for p in in_time if p[0] == wanted])
            assert list(store.fetch(wanted, low, high)) == mine
            assert list(store.backward_fetch(wanted, low, high)) == mine[::-1]
            assert store.fetch_window(wanted, low) == content.get((wanted, low))


@given(
    st.dictionaries(
        st.tuples(key, st.tuples(start, start).map(sorted).map(tuple)), number, max_size=14
    ),
    key,
    key,
    st.tuples(start, start),
    pages,
)
def test_sessions(
    content: dict[tuple[bytes, tuple[int, int]], int],
    first: bytes,
    last: bytes,
    times: tuple[int, int],
    page: int,
) -> None:
    earliest_end, latest_start = times
    stored = {session_key(k, *bounds): value for (k, bounds), value in content.items()}
    in_order = sorted(content, key=lambda place: session_key(place[0], *place[1]))
    touching = [one for one in in_order if one[1][1] >= earliest_end and one[1][0] <= latest_start]

    def entries(places: list[tuple[bytes, tuple[int, int]]]) -> list[tuple[Windowed, int]]:
        return [(Windowed(k, s, e), content[k, (s, e)]) for k, (s, e) in places]

    with place(SESSIONS, stored, page) as access:
        store = ReadOnlySessionStore(SESSIONS, access, decode)
        assert list(store.all()) == entries(in_order)
        assert list(store.reverse_all()) == entries(in_order[::-1])
        bounded = [p for p in in_order if first <= p[0] <= last]
        assert list(store.fetch_range(first, last)) == entries(bounded)
        assert list(store.backward_fetch_range(first, last)) == entries(bounded[::-1])
        assert list(store.fetch_range(None, last)) == entries([p for p in in_order if p[0] <= last])
        found = [p for p in touching if p[0] >= first]
        assert list(store.find_sessions_range(first, None, *times)) == entries(found)
        assert list(store.backward_find_sessions_range(first, None, *times)) == entries(found[::-1])
        for wanted in {first, *(k for k, _ in content)}:
            mine = sorted((p for p in in_order if p[0] == wanted), key=lambda p: (p[1][1], p[1][0]))
            met = [p for p in mine if p in touching]
            assert list(store.fetch(wanted)) == entries(mine)
            assert list(store.backward_fetch(wanted)) == entries(mine[::-1])
            assert list(store.find_sessions(wanted, *times)) == entries(met)
            assert list(store.backward_find_sessions(wanted, *times)) == entries(met[::-1])
            assert store.fetch_session(wanted, *times) == content.get((wanted, times))


changes = st.dictionaries(short, st.none() | number, max_size=6)


@given(
    st.dictionaries(short, number, min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(1, 4), changes, st.booleans()), max_size=4),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
)
def test_a_scan_with_writes_and_rebuilds_half_way(
    content: dict[bytes, int],
    steps: list[tuple[int, dict[bytes, int | None], bool]],
    page: int,
    reverse: bool,
) -> None:
    """In order, nothing twice, all that stays; an entry is as at some moment of the scan."""
    history: list[dict[bytes, int]] = [dict(content)]
    seen: list[tuple[bytes, int]] = []
    with place(KEYS, content, page) as access:
        store = ReadOnlyKeyValueStore(KEYS, access, decode)
        entries = store.reverse_all() if reverse else store.all()
        for count, change, rebuilt in steps:
            seen += [entry for _, entry in zip(range(count), entries, strict=False)]
            now = {**history[-1], **change}
            history.append({k: v for k, v in now.items() if v is not None})
            write(access.path(), KEYS, change)
            if rebuilt:
                access.rebuild(KEYS, history[-1])
        seen += entries
    shown = f"history {history}, seen {seen}"
    keys = [k for k, _ in seen]
    assert keys == sorted(set(keys), reverse=reverse), shown
    assert all(any(moment.get(k) == v for moment in history) for k, v in seen), shown
    assert {k for k in history[0] if all(k in moment for moment in history)} <= set(keys), shown


# LmdbStore against the reference store.


MINUTE_MS = 60_000
_LONG = b"p" * SHORT_BYTES
any_key = st.one_of(
    st.binary(max_size=2),
    st.builds(lambda tail: _LONG + tail, st.binary(max_size=2)),
    st.builds(lambda tail: b"q" * 700 + tail, st.binary(max_size=1)),
)
value = st.none() | st.binary(max_size=3)


class Crash(BaseException):
    """The process dies here."""


def crash(name: str) -> None:
    raise Crash(name)


class KeyValueMachine(RuleBasedStateMachine):
    spec = store_spec("s", key=serdes.bytes_(), value=serdes.bytes_())
    keys = any_key

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "s-0"
        self.model = InMemoryStore(self.spec)
        self.store = self.opened()
        self.position = 0
        self.batches = 0
        self.stream_time = 0
        self.owner = Owner("", "")

    def opened(self) -> LmdbStore:
        # The smallest map that LMDB takes, so that it has to grow on the way.
        return LmdbStore.open(
            self.path, kind=self.spec.kind, retention_ms=self.spec.retention_ms, map_bytes=1 << 16
        )

    def teardown(self) -> None:
        self.store.close()
        self._folder.cleanup()

    def changes_of(self, drawn: list[tuple[bytes, bytes | None]]) -> StoreChanges:
        times = np.full(len(drawn), self.stream_time, dtype=np.int64)
        return StoreChanges("s", [key for key, _ in drawn], [value for _, value in drawn], times)

    def draw_changes(self, data: st.DataObject) -> StoreChanges:
        return self.changes_of(data.draw(st.lists(st.tuples(self.keys, value), max_size=8)))

    @rule(incarnation=st.sampled_from(["i1", "i2"]))
    def claim(self, incarnation: str) -> None:
        self.store.claim(incarnation)
        self.owner = Owner(incarnation, "")

    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        changes = self.draw_changes(data)
        self.batches += 1
        self.position += len(changes)
        batch = f"{self.owner.incarnation}.{self.batches}.0"
        self.store.apply(changes, position=self.position, expected=self.owner, batch=batch)
        self.model.apply(changes)
        self.owner = Owner(self.owner.incarnation, batch)

    @rule(data=st.data())
    def apply_a_large_value(self, data: st.DataObject) -> None:
        changes = self.changes_of([(data.draw(self.keys), b"x" * 40_000)])
        self.store.apply(changes, position=None, expected=self.owner, batch=self.owner.last_batch)
        self.model.apply(changes)

    @rule(data=st.data())
    def crash_in_the_middle_and_reopen(self, data: st.DataObject) -> None:
        changes = self.changes_of(
            data.draw(st.lists(st.tuples(self.keys, value), min_size=1, max_size=8))
        )
        with pytest.raises(Crash):
            self.store.apply(
                changes,
                position=self.position + 99,
                expected=self.owner,
                batch="dead",
                reached=crash,
            )
        self.reopen()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule(
        data=st.data(),
        wrong=st.sampled_from([Owner("orphan", ""), Owner("i1", "older"), Owner("", "older")]),
    )
    def a_stalled_orphan_is_refused(self, data: st.DataObject, wrong: Owner) -> None:
        with pytest.raises(StoreMismatchError):
            self.store.apply(self.draw_changes(data), position=10**9, expected=wrong, batch="late")

    @rule(data=st.data())
    def restore_a_chunk(self, data: st.DataObject) -> None:
        changes = self.draw_changes(data)
        self.position += len(changes) + 1
        self.store.load_chunk(changes.keys, changes.values, changes.timestamps, self.position)
        self.model.apply(changes)

    @precondition(lambda self: self.position > 0)
    @rule()
    def history_never_runs_backwards(self) -> None:
        with pytest.raises(StoreMismatchError):
            self.store.load_chunk([b""], [b""], np.array([0]), self.position - 1)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(self.keys, max_size=6))
        start, end = data.draw(st.none() | self.keys), data.draw(st.none() | self.keys)
        with self.store.snapshot() as view:
            assert view.get_many(keys) == self.model.get_many(keys)
            assert [view.get(key) for key in keys] == view.get_many(keys)
            assert list(view.range(start, end)) == list(self.model.range(start, end))
            assert (
                list(view.range(start, end, reverse=True))
                == list(self.model.range(start, end))[::-1]
            )

    @invariant()
    def content_position_and_owner_agree(self) -> None:
        meta = self.store.meta()
        assert meta.owner == self.owner
        assert (meta.position or 0) == self.position
        with self.store.snapshot() as view:
            assert list(view.range(None, None)) == list(self.model.range(None, None))


class WindowMachine(KeyValueMachine):
    raw, kept_ms = serdes.bytes_(), 5 * MINUTE_MS
    spec = store_spec(
        "s", "window", key=raw, value=raw, retention_ms=kept_ms, window_size_ms=MINUTE_MS
    )
    keys = st.builds(
        lambda key, minute: key + (minute * MINUTE_MS).to_bytes(8, "big") + bytes(4),
        st.binary(max_size=1),
        st.integers(0, 40),
    )

    @rule(minutes=st.integers(0, 9))
    def time_passes(self, minutes: int) -> None:
        self.stream_time += minutes * MINUTE_MS

    def changes_of(self, drawn: list[tuple[bytes, bytes | None]]) -> StoreChanges:
        """Windows start at stream time at the latest."""
        started = [
            (key, value)
            for key, value in drawn
            if int.from_bytes(key[-12:-4], "big") <= self.stream_time
        ]
        return super().changes_of(
            started or [(b"k" + self.stream_time.to_bytes(8, "big") + bytes(4), b"v")]
        )

    def draw_changes(self, data: st.DataObject) -> StoreChanges:
        return self.changes_of(
            data.draw(st.lists(st.tuples(self.keys, value), min_size=1, max_size=8))
        )


_budget = settings(max_examples=30, stateful_step_count=25, suppress_health_check=list(HealthCheck))
TestKeyValueStore = KeyValueMachine.TestCase
TestKeyValueStore.settings = _budget
TestWindowStore = WindowMachine.TestCase
TestWindowStore.settings = _budget


# What is written is read again, value by value as in columns.


SIZE_MS = 10
"""Drawing a type takes its time on a loaded machine."""


def drawn(data: Any, type_: pa.DataType, most: int = 4) -> list[Any]:
    return data.draw(st.lists(values(type_), max_size=most))  # type: ignore[no-any-return]


def through(serde: Serde, rows: list[Any]) -> None:
    """Written and read in a column, cut, and one by one."""
    column = column_of(rows, serde.type)
    encoded = serde.encode_array(column)
    assert encoded.to_pylist() == [serde.encode(row) for row in rows]
    assert same(serde.decode_array(encoded), column)
    alone = [serde.decode(one) for one in encoded.to_pylist()]
    assert repr(alone) == repr(python_keys(column))
    cut = len(rows) // 2
    assert serde.encode_array(column[cut:]).equals(encoded[cut:])
    assert same(serde.decode_array(encoded[cut:]), column[cut:])


@given(data=st.data(), type_=types)
def test_every_type_round_trips_through_every_serde(data: Any, type_: pa.DataType) -> None:
    rows = drawn(data, type_)
    through(serdes.json(type_), rows)
    through(serdes.from_type(type_), rows)
    through(
        serdes.packed(pa.struct([("f", type_), ("n", pa.int32())])),
        [None, *({"f": row, "n": None} for row in rows)],
    )
    through(serdes.list_(serdes.json(type_)), [rows, None, []])
    through(serdes.list_(serdes.from_type(type_)), [rows])
    changes = [{"new": row, "old": other} for row, other in itertools.pairwise(rows)]
    changed = ChangedSerde(serdes.from_type(type_))
    there = [row for row in changes if row != {"new": None, "old": None}]
    column = column_of(there, changed.type)
    assert same(changed.decode_array(changed.encode_array(column)), column)


@given(data=st.data(), type_=types)
def test_every_type_round_trips_as_a_windowed_key(data: Any, type_: pa.DataType) -> None:
    if pa.types.is_null(type_):
        return  # no key
    rows = data.draw(st.lists(present(type_), max_size=3))
    starts = data.draw(st.lists(st.integers(0, 2**62), min_size=3, max_size=3))
    keyed = [Windowed(row, at, at + SIZE_MS) for row, at in zip(rows, starts, strict=False)]
    for inner in (serdes.json(type_), serdes.from_type(type_)):
        through(serdes.time_windowed(inner, SIZE_MS), keyed)
        through(serdes.session_windowed(inner), keyed)


@given(data=st.data(), type_=types)
def test_lists_of_every_type_round_trip_as_states(data: Any, type_: pa.DataType) -> None:
    lists = column_of([drawn(data, type_), None, []], pa.list_(type_))
    assert same(unpack(pack(lists), lists.type), lists)


def stored_key(kind: str, key: bytes, at: int) -> bytes:
    if kind == "window":
        return window_store_key(key, at)
    return session_key(key, at, at + 1) if kind == "session" else key


@pytest.mark.parametrize("kind", ["key_value", "window", "session", "versioned"])
@settings(max_examples=12)
@given(data=st.data(), key_type=keys, value_type=types)
def test_every_type_comes_back_from_every_store_and_changelog(
    kind: str, data: Any, key_type: pa.DataType, value_type: pa.DataType
) -> None:
    spec = StoreSpec(
        name="s",
        kind=kind,
        key_serde=serdes.from_type(key_type),
        value_serde=serdes.packed(pa.struct([("v", value_type)])),
        retention_ms=None if kind == "key_value" else 1_000_000,
        window_size_ms=SIZE_MS if kind == "window" else None,
    )
    drawn_keys = data.draw(
        st.lists(present(key_type), min_size=1, max_size=3, unique_by=spec.key_serde.encode)
    )
    rows = [{"v": data.draw(values(value_type))} for _ in drawn_keys]
    times = np.arange(len(rows), dtype=np.int64)
    written = [spec.value_serde.encode(row) for row in rows]
    raw = [
        stored_key(kind, spec.key_serde.encode(key) or b"", int(at))
        for key, at in zip(drawn_keys, times, strict=True)
    ]
    changes = StoreChanges("s", raw, written, times)
    memory = memory_store(spec)
    memory.apply(changes)
    expected = sorted(zip(raw, drawn_keys, rows, strict=True), key=lambda one: one[0])
    shown = EntryColumns(spec, spec.value_serde)
    with tempfile.TemporaryDirectory() as folder:
        store = LmdbStore.open(Path(folder) / "s", kind=kind, retention_ms=spec.retention_ms)
        try:
            store.claim("i")
            owner = store.meta().owner
            store.apply(changes, position=None, expected=owner, batch="b")
            with store.snapshot() as view:
                for found in (memory.get_many(raw), view.get_many(raw)):
                    assert found == [
                        pack_value(int(at), value or b"")
                        for at, value in zip(times, written, strict=True)
                    ]
        finally:
            store.close()
    if kind == "versioned":
        page = [
            (key, Version(int(at), int(at) + 1, value))
            for key, value, at in zip(raw, written, times, strict=True)
        ]
        batch = shown.versions(sorted(page, key=lambda one: one[0]), 0, repr)
    else:
        batch = shown.entries([(k, v or b"") for k, v in sorted(fold(changes).items())], 0, repr)
    key_column = column_of([key for _, key, _ in expected], spec.key_serde.type)
    assert same(batch.column("key"), key_column)
    assert same(
        batch.column("value"), column_of([row for _, _, row in expected], spec.value_serde.type)
    )


longs = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = "n bigint, i int, h smallint, y tinyint, s string, x double, f float, b boolean, raw binary"
plains = st.fixed_dictionaries(
    {
        "n": st.none() | longs,
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "h": st.none() | st.integers(-(2**15), 2**15 - 1),
        "y": st.none() | st.integers(-(2**7), 2**7 - 1),
        "s": st.none() | text,
        "x": st.none() | finite,
        "f": st.none() | st.floats(width=32, allow_nan=False),
        "b": st.none() | st.booleans(),
        "raw": st.none() | st.binary(max_size=5),
    }
)


def said(read: Callable[[bytes], Any], data: bytes) -> str:
    """What comes of it; as text, as NaN differs from itself."""
    try:
        return repr(read(data))
    except SerdeError as error:
        return f"{error} at {error.index}"


@given(row=plains, cut=st.integers(0, 60), put=st.binary(max_size=3), drop=st.integers(0, 3))
def test_damaged_values_as_in_columns(row: dict[str, Any], cut: int, put: bytes, drop: int) -> None:
    serde = serdes.packed(PLAIN)
    read = value_reader(serde)
    whole = serde.encode(row)
    assert read is not None
    assert whole is not None
    assert read(whole) == row
    data = whole[:cut] + put + whole[cut + drop :]
    assert said(read, data) == said(lambda one: decode_one(serde, one), data)


def test_values_with_fields_that_columns_alone_read_have_no_reader() -> None:
    for fields in ("t timestamp", "a array<int>", "d decimal(9,2)"):
        assert value_reader(serdes.packed(fields)) is None
    assert value_reader(serdes.json("n int")) is None
    assert value_reader(serdes.long()) is not None


TEXTS = ChangedSerde(serdes.string())


@pytest.mark.parametrize(
    ("new", "old", "data"),
    [
        (None, "old", b"old\x00"),
        ("new", None, b"new\x01"),
        ("new", "old", b"\x06newold\x02"),
        ("", "", b"\x00\x02"),
        ("n" * 64, "o", b"\x80\x01" + b"n" * 64 + b"o\x02"),
        (None, None, None),
    ],
)
def test_the_bytes_are_javas(new: str | None, old: str | None, data: bytes | None) -> None:
    assert TEXTS.encode({"new": new, "old": old}) == data
    if data is not None:
        assert TEXTS.decode(data) == {"new": new, "old": old}


@given(st.lists(st.none() | st.tuples(st.none() | st.text(), st.none() | st.text(max_size=200))))
def test_what_is_written_is_read(pairs: list[Any]) -> None:
    values = [None if pair is None else {"new": pair[0], "old": pair[1]} for pair in pairs]
    read = TEXTS.decode_array(TEXTS.encode_array(pa.array(values, TEXTS.type)))
    nothing = {"new": None, "old": None}
    assert read.to_pylist() == [None if value == nothing else value for value in values]


@pytest.mark.parametrize("data", [b"", b"x\x07", b"\x40short\x02", b"\xff\xff\xff\xff\xff\x02"])
def test_what_is_no_change_names_its_row(data: bytes) -> None:
    with pytest.raises(SerdeError, match="change of") as error:
        TEXTS.decode_array(pa.array([b"x\x01", data]))
    assert error.value.index == 1
