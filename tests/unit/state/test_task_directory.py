"""The state folder: one holder, one application, trust after a crash, rebuilt paths."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow import serdes
from everflow.errors import StateDiskError, StateFormatError, StateLockedError
from everflow.records import Int64, StoreChanges, TaskId
from everflow.serdes.windowed import session_key
from everflow.state import changelog, stored_keys
from everflow.state.changelog import pack_value, unpack_value
from everflow.state.left_out import KeptEntry, as_written, corrected, unpacked
from everflow.state.store import InMemoryStore, OrderedEntries, Overlay
from everflow.state.store_meta import FORMAT, StoreMeta
from everflow.state.task_directory import StateDirectory, content_of
from unit.builders import store_spec

TASK = TaskId(0, 3)


def opened(path: Path, **changes: str) -> StateDirectory:
    return StateDirectory.open(path, "app", **{"boot_id": "boot-1", **changes})  # type: ignore[arg-type]


def make_store(directory: StateDirectory, store: str) -> Path:
    path = directory.store_path(TASK, store)
    path.mkdir(parents=True)
    (path / "data.mdb").write_bytes(b"x")
    return path


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    program = (
        "import sys\n"
        "from everflow.errors import StateLockedError\n"
        "from everflow.state.task_directory import StateDirectory\n"
        "try:\n    StateDirectory.open(sys.argv[1], 'app')\n"
        "except StateLockedError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert f"by process {os.getpid()}" in subprocess.check_output(command, text=True)
    directory.close()
    assert subprocess.check_output(command, text=True) == ""


def test_the_folder_is_private_to_its_user_also_one_that_was_there(tmp_path: Path) -> None:
    """A umask that lets others read is a machine's affair, not that of who may read the records."""
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    there.chmod(0o755)
    before = os.umask(0)
    try:
        for path in (tmp_path / "new", there):
            directory = opened(path)
            assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
            directory.close()
    finally:
        os.umask(before)


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with_first = opened(tmp_path)
    with pytest.raises(StateLockedError, match=r"KafkaStreams\.running\('app'.*one\.close"):
        opened(tmp_path)
    with_first.close()
    opened(tmp_path).close()


def test_a_restart_finds_process_id_and_transactional_ids(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first.previous is None
    first.record_transactional_ids(["app-p-0"])
    first.record_transactional_ids(["app-p-0", "app-p-1"])
    first.close(clean=False)
    second = opened(tmp_path)
    assert second.process_id == first.process_id
    assert second.transactional_ids == ("app-p-0", "app-p-1")
    assert second.previous is not None
    assert not second.previous.clean_close
    second.forget_transactional_ids(["app-p-0"])
    second.close()
    third = opened(tmp_path)
    assert third.previous is not None
    assert third.previous.clean_close
    assert third.transactional_ids == ("app-p-1",)
    third.close()


@pytest.mark.parametrize(
    "wrong", [{"application_id": "other"}, {"format": 99}, {"transactional_ids": 7}]
)
def test_a_foreign_or_newer_folder_is_left_alone(tmp_path: Path, wrong: dict[str, object]) -> None:
    opened(tmp_path).close()
    metadata = tmp_path / "app" / "process-metadata"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **wrong}))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "app").iterdir()}
    with pytest.raises(StateFormatError):
        opened(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "app").iterdir()} == before


@pytest.mark.parametrize(
    ("clean", "boot_id", "sync", "distrusted"),
    [
        (False, "boot-2", "none", True),
        # The process was killed: the operating system has the pages.
        (False, "boot-1", "none", False),
        (True, "boot-2", "none", False),
        (False, "boot-2", "commit", False),
    ],
)
def test_stores_are_distrusted_after_a_crash_of_the_operating_system_only(
    tmp_path: Path, clean: bool, boot_id: str, sync: str, distrusted: bool
) -> None:
    first = opened(tmp_path)
    make_store(first, "counts")
    first.close(clean=clean)
    second = opened(tmp_path, boot_id=boot_id, sync=sync)
    assert (second.distrusted(TASK, "counts") is not None) == distrusted
    second.close()


def test_distrust_outlives_restarts_until_the_store_is_rebuilt(tmp_path: Path) -> None:
    first = opened(tmp_path)
    make_store(first, "counts")
    first.close(clean=False)
    opened(tmp_path, boot_id="boot-2").close()
    third = opened(tmp_path, boot_id="boot-2")
    assert "operating system" in (third.distrusted(TASK, "counts") or "")
    third.rebuild(TASK, "counts")
    assert third.distrusted(TASK, "counts") is None
    third.close()


def test_a_rebuild_goes_to_a_new_path_and_removes_the_old_one(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    old = make_store(directory, "by-carrier")
    assert old == tmp_path.resolve() / "app" / "0_3" / "by-carrier-0"
    fresh = directory.rebuild(TASK, "by-carrier")
    assert fresh.name == "by-carrier-1"
    assert directory.store_path(TASK, "by-carrier") == fresh
    assert not old.exists()
    assert (directory.tasks(), directory.stores(TASK)) == ([TASK], ["by-carrier"])
    directory.remove_task(TASK)
    assert directory.tasks() == []
    directory.close()


def test_an_interrupted_rebuild_leaves_the_newer_folder_in_charge(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    old = make_store(directory, "counts")
    (old.parent / "counts-1").mkdir()  # killed before the old one was removed
    assert directory.store_path(TASK, "counts").name == "counts-1"
    assert not old.exists()
    directory.close()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00broken", b"\xc3\x28", b"", b"[]", b"{}", b'{"format": 1']
)
def test_metadata_that_was_damaged_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    opened(tmp_path).close()
    metadata = tmp_path / "app" / "process-metadata"
    metadata.write_bytes(content)
    with pytest.raises(StateFormatError, match=r"process-metadata.*damaged"):
        opened(tmp_path)
    assert metadata.read_bytes() == content


def test_a_folder_deleted_under_it_is_noticed_and_anothers_is_left_alone(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.require_locked()
    shutil.rmtree(directory.path)
    with pytest.raises(StateDiskError, match="deleted"):
        directory.require_locked()
    directory.path.mkdir()
    (directory.path / ".lock").write_text("another process")
    with pytest.raises(StateDiskError, match="made anew"):
        directory.require_locked()
    directory.close()
    assert [entry.name for entry in directory.path.iterdir()] == [".lock"]
    directory.require_locked()  # closed: nothing is held, nothing is wrong


def test_a_folder_is_looked_at_without_being_taken_and_deleted_as_a_whole(tmp_path: Path) -> None:
    assert content_of(tmp_path, "app") is None
    directory = opened(tmp_path)
    directory.record_transactional_ids(["app-1-0"])
    make_store(directory, "counts")
    (directory.path / "logs").mkdir()
    (directory.path / "logs" / "everflow.log").write_text("said\n")
    found = content_of(tmp_path, "app")
    assert found is not None
    assert (found.stores, found.transactional_ids) == (1, ("app-1-0",))
    assert found.path == directory.path

    directory.delete()
    assert not directory.path.exists()
    directory.close()
    again = opened(tmp_path)
    assert (again.previous, again.tasks()) == (None, [])
    again.close()


def test_a_folder_that_was_half_deleted_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    make_store(directory, "counts")
    directory.close()
    (directory.path / "process-metadata").unlink()
    found = content_of(tmp_path, "app")
    assert found is not None
    assert found.transactional_ids == ()
    opened(tmp_path).delete()
    assert not directory.path.exists()


# Keys, entries and changes as stores hold them, and what lies over a store.

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


@given(below=st.sets(KEY), actions=st.lists(ACTION, max_size=25))
def test_a_range_is_of_the_moment_of_the_call(below: set[bytes], actions: list[Any]) -> None:
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


@settings(max_examples=30)
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


_LONG = b"p" * stored_keys.SHORT_BYTES
keys = st.one_of(
    st.binary(max_size=6),
    st.builds(lambda tail: _LONG + tail, st.binary(max_size=4)),
    st.builds(lambda tail: b"o" + _LONG[1:] + tail, st.binary(max_size=4)),
    st.builds(lambda tail: b"x" * 600 + tail, st.binary(max_size=2)),
)


def stored_form(keys: set[bytes]) -> list[tuple[bytes, bytes]]:
    buckets: dict[bytes, dict[bytes, bytes]] = {}
    plain = []
    for key in keys:
        if len(key) <= stored_keys.SHORT_BYTES:
            plain.append((stored_keys.encode(key), b"v" + key))
        else:
            buckets.setdefault(stored_keys.encode(key), {})[key[stored_keys.SHORT_BYTES :]] = (
                b"v" + key
            )
    return sorted(
        plain + [(stored, stored_keys.write_bucket(bucket)) for stored, bucket in buckets.items()]
    )


@given(st.sets(keys), st.none() | keys, st.none() | keys)
def test_a_range_of_stored_keys_is_the_range_of_keys_in_key_order(
    present: set[bytes], start: bytes | None, end: bytes | None
) -> None:
    stored = [item for item in stored_form(present) if item[0] >= stored_keys.lower_bound(start)]
    expected = [k for k in sorted(present) if k >= (start or b"") and (end is None or k < end)]
    assert list(stored_keys.in_range(stored, start, end)) == [(key, b"v" + key) for key in expected]
    bound = stored_keys.upper_bound(end)
    below = [item for item in stored_form(present) if bound is None or item[0] <= bound]
    assert list(stored_keys.in_range(below[::-1], start, end, reverse=True)) == [
        (key, b"v" + key) for key in expected[::-1]
    ]


@given(keys)
def test_every_stored_key_is_one_that_lmdb_takes(key: bytes) -> None:
    assert 1 <= len(stored_keys.encode(key)) <= 511
    assert stored_keys.is_bucket(stored_keys.encode(key)) == (len(key) > stored_keys.SHORT_BYTES)


def test_a_long_key_is_never_stored_where_a_short_one_could_be() -> None:
    long_key = _LONG + b"tail"
    assert stored_keys.encode(stored_keys.encode(long_key)[1:]) != stored_keys.encode(long_key)


@given(st.dictionaries(st.binary(max_size=5), st.binary(max_size=5)))
def test_a_bucket_reads_as_written(entries: dict[bytes, bytes]) -> None:
    assert stored_keys.read_bucket(stored_keys.write_bucket(entries)) == entries


def test_no_bucket_has_no_entries() -> None:
    assert stored_keys.read_bucket(None) == {}


CHANGES = StoreChanges(
    "counts", [b"a", b"b", b"a", b"b"], [b"1", b"2", b"3", None], np.array([5, 6, 7, 8])
)


def test_the_fold_keeps_the_last_value_with_its_time_in_front() -> None:
    assert changelog.fold(CHANGES) == {b"a": (7).to_bytes(8, "big") + b"3", b"b": None}


def test_a_null_key_is_skipped() -> None:
    assert changelog.last_values([None, b"a"], [b"1", b"2"], np.array([1, 2])) == {
        b"a": changelog.pack_value(2, b"2")
    }


@pytest.mark.parametrize("timestamp", [-1, 0, 1_700_000_000_000])
def test_a_stored_value_is_a_big_endian_timestamp_and_the_value(timestamp: int) -> None:
    packed = changelog.pack_value(timestamp, b"v")
    assert packed == timestamp.to_bytes(8, "big", signed=True) + b"v"
    assert changelog.unpack_value(packed) == (timestamp, b"v")
    assert changelog.pack_values([b"v", None], np.array([timestamp, 1])) == [packed, None]


def test_as_many_timestamps_as_values_are_demanded() -> None:
    with pytest.raises(ValueError, match="2 values but 1 timestamps"):
        changelog.pack_values([b"a", b"b"], np.array([1]))


def test_expiry_times_are_read_from_the_key_s_end() -> None:
    keys = [b"k" + start.to_bytes(8, "big") + b"\x00\x00\x00\x07" for start in (0, 86_400_000)]
    assert changelog.expiry_times(keys, "window").tolist() == [0, 86_400_000]
    with pytest.raises(ValueError, match="window store key"):
        changelog.expiry_times([b"short"], "window")


def test_sessions_expire_by_their_end_which_stands_before_their_start() -> None:
    keys = [session_key(b"a", 3, 5), session_key(b"", 0, 86_400_000)]
    assert changelog.expiry_times(keys, "session").tolist() == [5, 86_400_000]
    with pytest.raises(ValueError, match=r"session.*key.*15.*16"):
        changelog.expiry_times([bytes(15)], "session")


SPEC = store_spec("s", value=serdes.bytes_(), source_topic="in")


@dataclass(frozen=True)
class Chunk:
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: Int64
    offsets: Int64
    next_position: int

    @property
    def records(self) -> int:
        return len(self.keys)


Row = tuple[bytes | None, bytes | None, bool]
"""Key, value, and whether processing skips it."""
ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"\xff", None]),
        st.sampled_from([b"x", b"y", b"", None]),
        st.booleans(),
    ),
    max_size=30,
)


def processed(rows: Sequence[Row], ends: Sequence[int]) -> tuple[InMemoryStore, list[Chunk]]:
    """The store, and the log of what was left out: what batches that end at ``ends`` have made."""
    store, log = InMemoryStore(), list[Chunk]()
    for begin, end in zip([0, *ends], [*ends, len(rows)], strict=True):
        skipped = dict[bytes, None]()
        for offset in range(begin, end):
            key, value, skips = rows[offset]
            if key is None:
                continue
            (written,) = as_written([key], SPEC.key_serde)
            assert written is not None
            if skips:
                skipped[written] = None
            else:
                store.apply(StoreChanges("s", [written], [value], np.array([offset])))
        for key in skipped:
            entry = KeptEntry.of(end - 1, store.get_many([key])[0], 99)
            log.append(
                Chunk([key], [entry.packed()], np.array([entry.time]), np.array([0]), len(log) + 1)
            )
    return store, log


@given(ROWS, st.data())
def test_a_restored_store_is_what_was_processed(rows: list[Row], data: st.DataObject) -> None:
    places = st.lists(st.integers(0, len(rows)), max_size=4).map(sorted)
    wanted, log = processed(rows, data.draw(places))
    left_out = unpacked(log)
    clean, forgets = data.draw(st.integers(0, len(rows))), data.draw(st.booleans())
    last = {key: offset for offset, (key, _, _) in enumerate(rows[:clean])}
    kept = [
        offset
        for offset, (key, value, _) in enumerate(rows)
        if offset >= clean
        or (last[key] == offset and key is not None and not (forgets and value is None))
    ]
    chunks = []
    cuts = [0, *data.draw(places), len(rows)]
    for begin, end in pairwise(cuts):
        mine = [offset for offset in kept if begin <= offset < end]
        keys, values = [rows[at][0] for at in mine], [rows[at][1] for at in mine]
        times = np.array(mine, np.int64)
        chunks.append(Chunk(keys, values, times, times, end))
    found = InMemoryStore()
    for chunk in corrected(chunks, 0, left_out, SPEC):
        rows_ = [row for row, key in enumerate(chunk.keys) if key is not None]
        found.apply(
            StoreChanges(
                "s",
                [key for key in chunk.keys if key is not None],
                [chunk.values[row] for row in rows_],
                chunk.timestamps[rows_],
            )
        )
    assert dict(found.range(None, None)) == dict(wanted.range(None, None))


def test_what_is_not_one_of_its_records_is_an_error() -> None:
    chunk = Chunk([b"a"], [b"1234"], np.array([0]), np.array([0]), 1)
    with pytest.raises(ValueError, match="no record"):
        unpacked([chunk])
    entry = KeptEntry.of(7, pack_value(5, b"v"), 0)
    assert unpacked([replace(chunk, values=[entry.packed()], timestamps=np.array([5]))]) == {
        b"a": KeptEntry(7, b"v", 5)
    }


def test_a_store_of_an_earlier_release_opens_and_is_written_in_this_ones_format() -> None:
    """An earlier release then says that it cannot read it, and fails over no field."""
    written = json.loads(StoreMeta(kind="key_value", position=7).encode())
    earlier = {name: value for name, value in written.items() if name != "inputs"} | {"format": 1}
    meta = StoreMeta.decode(json.dumps(earlier).encode(), "here")
    assert (meta.position, meta.inputs) == (7, {})
    again = json.loads(meta.encode())
    assert "inputs" in again
    assert again["format"] == FORMAT


def test_a_time_of_a_clock_that_was_ahead_gives_way_to_the_right_one() -> None:
    meta = StoreMeta(kind="key_value", updated_ms=1_000_000)
    assert meta.followed(-1) == 1_000_000
    assert meta.followed(999_000) == 1_000_000, "noted late"
    assert meta.followed(1_001_000) == 1_001_000
    assert meta.followed(900_000) == 900_000, "the clock was wrong"
