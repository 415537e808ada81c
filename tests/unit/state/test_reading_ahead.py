"""Where pages are missing, many keys are read by threads; else nothing is read twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
import pytest

from everflow.state import store_snapshot
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_snapshot import KEYS_MIN, PROBES, ReadingAhead
from everflow.testing.waiting import wait_until

KEYS = [b"%05d" % number for number in range(4 * KEYS_MIN)]


class Reads:
    """Transactions that note who reads what; each read of the caller's thread waits, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, missing: bool) -> None:
        self.own: list[bytes] = []
        self.others: list[bytes] = []
        self._caller = threading.get_ident()
        monkeypatch.setattr(store_snapshot, "_waits", lambda: len(self.own) if missing else 7)

    @contextmanager
    def transactions(self) -> Iterator[Reads]:
        yield self

    def get(self, key: bytes, default: None, database: object) -> None:
        assert database == "db"
        (self.own if threading.get_ident() == self._caller else self.others).append(key)


def test_missing_pages_are_fetched_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=True)
    ReadingAhead(reads.transactions).fetch(KEYS, "db")
    assert 0 < len(reads.own) <= PROBES
    assert sorted(reads.others) == KEYS


def test_what_is_in_memory_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=False)
    ReadingAhead(reads.transactions).fetch(KEYS, "db")
    assert len(reads.own) <= PROBES
    assert reads.others == []


def test_a_few_keys_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=True)
    ReadingAhead(reads.transactions).fetch(KEYS[: KEYS_MIN - 1], "db")
    assert reads.own + reads.others == []


def test_a_failed_read_is_the_callers_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=True)
    opened: list[int] = []

    @contextmanager
    def once() -> Iterator[Reads]:
        opened.append(1)
        if len(opened) > 1:
            raise OSError("the disk is gone")
        yield reads

    with pytest.raises(OSError, match="gone"):
        ReadingAhead(once).fetch(KEYS, "db")


def test_a_store_that_another_made_larger_is_read_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def resized() -> Iterator[Reads]:
        raise lmdb.MapResizedError("mdb_txn_begin")
        yield

    ReadingAhead(resized).fetch(KEYS, "db")


def test_a_reader_does_not_wait_for_a_write_that_waits_for_it(tmp_path: Path) -> None:
    """The map has to grow, and that waits until the reader has left."""
    store = LmdbStore.open(tmp_path / "store", kind="key_value", map_bytes=1 << 20)
    times = np.zeros(len(KEYS), dtype=np.int64)
    writing = threading.Thread(
        target=lambda: store.load_chunk(KEYS, [b"x" * 2_000] * len(KEYS), times, len(KEYS))
    )
    try:
        with store.snapshot() as snapshot:
            writing.start()
            wait_until(lambda: store._env._resizing, 60, "the map to grow")
            assert snapshot.get_many(KEYS) == [None] * len(KEYS)
            assert store._env._resizing
        writing.join(60)
        with store.snapshot() as snapshot:
            assert all(snapshot.get_many(KEYS))
    finally:
        store.close()


def _cold_store(path: Path) -> LmdbStore:
    """40,000 entries, none of whose pages is in memory, where the file system has that."""
    store = LmdbStore.open(path, kind="key_value")
    keys = [b"%08d" % number for number in range(40_000)]
    times = np.zeros(len(keys), dtype=np.int64)
    store.load_chunk(keys, [b"x" * 100] * len(keys), times, len(keys))
    store._env._env.sync(True)
    store.close()
    file = os.open(path / "data.mdb", os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    return LmdbStore.open(path)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="pages cannot be dropped here")
@pytest.mark.parametrize("ahead", [True, False])
def test_a_thread_does_not_wait_for_each_page_of_a_store_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    store = _cold_store(tmp_path / "store")
    asked = [b"%08d" % (number * 7919 % 40_000) for number in range(2_000)]
    if not ahead:
        monkeypatch.setattr(ReadingAhead, "fetch", lambda *_: None)
    try:
        before = store_snapshot._waits()
        with store.snapshot() as snapshot:
            assert all(snapshot.get_many(asked))
        waited = store_snapshot._waits() - before
    finally:
        store.close()
    # Some 1,100 pages of leaves: those of the probes and above them, or nearly all.
    if ahead:
        assert waited < 150
    elif waited < 500:
        pytest.skip("this file system keeps pages in memory, or reads them around others")
