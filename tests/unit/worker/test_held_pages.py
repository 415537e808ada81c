"""What LMDB holds of changed pages stays within bounds, however many stores there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from everflow.records import StoreChanges
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from everflow.worker import ports
from everflow.worker.ports import PAGE_BYTES, RetainedPages, WorkerPorts

LARGE = 1 << 40


def test_the_fullest_stores_are_closed_until_the_rest_is_within_the_bound() -> None:
    held, most = RetainedPages(), 10 * PAGE_BYTES
    assert held.wrote("a", 4, LARGE, most) == []
    assert held.wrote("b", 6, LARGE, most) == []
    assert held.wrote("c", 5, LARGE, most) == ["b"]
    assert held.wrote("c", 2, LARGE, most) == [], "what is held is held for the next one"
    assert held.wrote("b", 1, LARGE, most) == []
    assert held.wrote("d", 20, LARGE, most) == ["d"], "no store is closed for another's pages"


def test_no_more_pages_are_held_than_there_are() -> None:
    held = RetainedPages()
    assert held.wrote("a", 1_000, 3 * PAGE_BYTES, 4 * PAGE_BYTES) == []
    assert held.wrote("b", 1_000, 3 * PAGE_BYTES, 4 * PAGE_BYTES) == ["a"]


def test_a_worker_closes_a_store_and_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_held", RetainedPages())
    path = str(tmp_path / "s")
    before = LmdbStore.open(path, kind="key_value")
    before.claim("i")
    keys = [b"%d" % number for number in range(100)]
    for batch, most in (("1", LARGE), ("2", PAGE_BYTES)):
        given = StoreChanges("s", keys, [batch.encode()] * 100, np.zeros(100, np.int64))
        expected = Owner("i", "" if batch == "1" else "1")
        WorkerPorts(held_bytes=most).apply(path, given, None, expected, batch, {})
        assert (LmdbStore.open(path) is before) == (most == LARGE)
    with LmdbStore.open(path).snapshot() as view:
        assert view.get_many(keys) == [bytes(8) + b"2"] * 100
    LmdbStore.close_at(path)
