"""One store, several processes: killed writers, readers, forks, growth, rebuilds (scenario 18)."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from everflow.errors import FatalError
from everflow.records import StoreChanges
from everflow.state import lmdb_env
from everflow.state.changelog import pack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from everflow.testing.waiting import wait_until

_PRELUDE = """
import sys
import numpy as np
from everflow.records import StoreChanges
from everflow.worker.crash_points import reached
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
path = sys.argv[1]
def changes(keys, value):
    return StoreChanges("s", keys, [value] * len(keys), np.zeros(len(keys), dtype=np.int64))
"""
KEYS = [b"key-%05d" % number for number in range(2_000)]


def changes(keys: list[bytes], value: bytes | None) -> StoreChanges:
    return StoreChanges("s", keys, [value] * len(keys), np.zeros(len(keys), dtype=np.int64))


def content(store: LmdbStore) -> dict[bytes, bytes]:
    with store.snapshot() as view:
        return dict(view.range(None, None))


@contextmanager
def child(program: str, path: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + program, str(path)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "s-0", kind="key_value")
    opened.claim("i1")
    opened.apply(changes(KEYS, b"old"), position=10, expected=Owner("i1", ""), batch="i1.1.0")
    yield opened
    opened.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_kill_9_in_an_apply_leaves_the_old_and_no_lock(store: LmdbStore, tmp_path: Path) -> None:
    points = tmp_path / "points"
    points.mkdir()
    (points / "applying").touch()
    before = content(store)
    program = (
        "keys = [b'key-%05d' % number for number in range(5_000)]\n"
        "LmdbStore.open(path).apply(changes(keys, b'new'), position=99, expected=Owner('i1', "
        "'i1.1.0'),\n"
        "                           batch='i1.2.0', reached=reached)\n"
    )
    with child(program, store.path, EVERFLOW_CRASH_POINTS=str(points)) as writer:
        wait_until((points / "applying.reached").exists, 20, "the writer to be in the middle")
        assert (points / "applying.reached").read_text() == str(writer.pid)
        assert content(store) == before  # readers go on beside it
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(10)
    assert content(store) == before
    assert (store.position, store.meta().last_batch) == (10, "i1.1.0")
    store.apply(changes(KEYS, b"next"), position=20, expected=Owner("i1", "i1.1.0"), batch="i1.2.1")
    assert set(content(store).values()) == {pack_value(0, b"next")}


def test_readers_in_other_processes_see_whole_batches_only(store: LmdbStore) -> None:
    program = (
        "import select\n"
        "store, seen = LmdbStore.open(path), 0\n"
        "print('ready', flush=True)\n"
        "while not select.select([sys.stdin], [], [], 0)[0] or seen == 0:\n"
        "    with store.snapshot() as view:\n"
        "        values = {value for _, value in view.range(None, None)}\n"
        "    assert len(values) == 1, values\n"
        "    seen += 1\n"
        "print(seen, values.pop()[8:].decode(), flush=True)\n"
    )
    with child(program, store.path) as one, child(program, store.path) as other:
        assert [line_of(one), line_of(other)] == ["ready", "ready"]
        batch = "i1.1.0"
        for number in range(2, 40):
            following = f"i1.{number}.0"
            store.apply(
                changes(KEYS, b"%d" % number),
                position=number * 10,
                expected=Owner("i1", batch),
                batch=following,
            )
            batch = following
        for reader in (one, other):
            assert reader.stdin is not None
            reader.stdin.write("stop\n")
            reader.stdin.flush()
            count, _ = line_of(reader).split()
            assert int(count) > 0


def test_a_late_apply_of_a_stalled_worker_is_refused(store: LmdbStore) -> None:
    """Scenario 3: the task went away and came back while the worker stood still."""
    program = (
        "from everflow.errors import StoreMismatchError\n"
        "store = LmdbStore.open(path)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    store.apply(changes([b'key-00000'], b'stale'), position=11, expected=Owner('i1', "
        "'i1.1.0'), batch='i1.2.0')\n"
        "except StoreMismatchError as error:\n"
        "    print(error.code, flush=True)\n"
    )
    with child(program, store.path) as worker:
        assert line_of(worker) == "ready"
        store.claim("i2")
        store.apply(
            changes([b"key-00000"], b"newer"), position=12, expected=Owner("i2", ""), batch="i2.1.0"
        )
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
        assert line_of(worker) == "EF-STORE-MISMATCH"
    assert content(store)[b"key-00000"] == pack_value(0, b"newer")


def test_growth_by_one_process_is_seen_by_the_others(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "s-0", kind="key_value", map_bytes=1 << 20)
    program = (
        "store = LmdbStore.open(path, map_bytes=1 << 20)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "with store.snapshot() as view:\n"
        "    print(sum(1 for _ in view.range(None, None)), flush=True)\n"
        "store.apply(changes([b'from the child'], b'v'), position=2, expected=Owner('', ''), "
        "batch='')\n"
        "print('written', flush=True)\n"
    )
    with child(program, store.path) as other:
        assert line_of(other) == "ready"
        store.load_chunk(KEYS, [b"x" * 2_000] * len(KEYS), np.zeros(len(KEYS), dtype=np.int64), 1)
        assert other.stdin is not None
        other.stdin.write("go\n")
        other.stdin.flush()
        assert [line_of(other), line_of(other)] == [str(len(KEYS)), "written"]
    assert store.position == 2
    store.close()


def test_growing_waits_for_the_readers_of_this_process(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "s-0", kind="key_value", map_bytes=1 << 20)
    store.load_chunk([b"a"], [b"1"], np.zeros(1, dtype=np.int64), 1)
    big = threading.Thread(
        target=store.load_chunk,
        args=(KEYS, [b"x" * 2_000] * len(KEYS), np.zeros(len(KEYS), dtype=np.int64), 2),
    )
    with store.snapshot() as view:
        big.start()
        wait_until(lambda: store._env._resizing, 10, "the writer to want a larger map")
        assert list(view.range(None, None)) == [(b"a", pack_value(0, b"1"))]
        assert big.is_alive()
    big.join(10)
    assert len(content(store)) == len(KEYS) + 1
    store.close()


def in_fork(body: Callable[[], str]) -> str:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, body().encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as said:
        return said.read()


def test_a_forked_child_opens_the_store_again_and_the_parent_s_is_whole(store: LmdbStore) -> None:
    def body() -> str:
        mine = LmdbStore.open(store.path)
        mine.apply(
            changes([b"child"], b"v"), position=11, expected=Owner("i1", "i1.1.0"), batch="i1.2.0"
        )
        return "different" if mine is not store else "same"

    assert in_fork(lambda: str(store.position)).startswith(FatalError.__name__), "the parent's"
    assert in_fork(body) == "different"
    assert content(store)[b"child"] == pack_value(0, b"v")
    assert store.meta().last_batch == "i1.2.0"


def test_colliding_long_keys_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everflow.state.stored_keys._digest", lambda key: b"h" * 32)
    store = LmdbStore.open(tmp_path / "s-0", kind="key_value")
    long_keys = [b"l" * 600 + bytes([byte]) for byte in range(4)]
    timestamps = np.zeros(4, dtype=np.int64)
    store.load_chunk(long_keys, [b"0", b"1", b"2", b"3"], timestamps, 1)
    store.load_chunk(long_keys[:1], [None], timestamps[:1], 2)
    with store.snapshot() as view:
        assert view.get_many(long_keys) == [
            None,
            *(pack_value(0, b"%d" % number) for number in (1, 2, 3)),
        ]
        assert [key for key, _ in view.range(None, None)] == long_keys[1:]
        assert view.entries() == 1
    store.close()


def test_a_dead_reader_s_slot_is_freed(store: LmdbStore) -> None:
    """Scenario 18: a dead reader would pin the pages of its moment until the map is full."""
    program = (
        "with LmdbStore.open(path).snapshot() as view:\n    print('reading', flush=True)\n   "
        " sys.stdin.readline()\n"
    )
    with child(program, store.path) as reader:
        assert line_of(reader) == "reading"
        reader.kill()
        reader.wait(10)
    assert store._env._env.reader_check() == 1
    assert store._env._env.reader_check() == 0


def test_flushing_at_commit_is_kept_in_the_folder_for_every_process(tmp_path: Path) -> None:
    LmdbStore.open(tmp_path / "a-0", kind="key_value", sync="commit").close()
    assert LmdbStore.open(tmp_path / "a-0")._env._env.flags()["sync"]
    assert not LmdbStore.open(tmp_path / "b-0", kind="key_value")._env._env.flags()["sync"]
    assert (tmp_path / "a-0" / lmdb_env.FLUSH_MARKER).exists()
    LmdbStore.close_at(tmp_path / "a-0")
    LmdbStore.close_at(tmp_path / "b-0")
