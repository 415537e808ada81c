"""Pages that LMDB writes in a commit: a store alone, without a broker, so that a commit's bytes are
told apart from all others.

A commit is one `LmdbStore` transaction. Its pages are the bytes that this very thread gave to
`write` and the like meanwhile (`wchar` in `/proc/thread-self/io`), by the size of a page: nothing
else writes on this thread. That is what LMDB hands to the page cache; without a flush at commit the
kernel may write a page that changes again soon but once.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.limits import CannotMeasureError
from bench.load.latency_schedule import scattered
from bench.results import Measurement
from bench.systems import EVERFLOW
from bench.topics import LOAD_SEED, key_of
from everflow.state.lmdb_store import LmdbStore

PAGE_BYTES = 4096
CHUNK = 100_000
COMMITS = 9
TIME_MS = 1_700_000_000_000
COUNT_BYTES = 8
THREAD_IO = Path("/proc/thread-self/io")


@dataclass(frozen=True)
class Commit:
    """One commit: pages written, and seconds."""

    pages: float
    seconds: float


def measure(keys: Sequence[int], changed: Sequence[int]) -> Iterator[Measurement]:
    """For each number of keys a store of counts, in which so many keys drawn evenly change in a
    commit; medians of some commits, after two that the free pages of the fill serve."""
    if not THREAD_IO.exists():
        raise CannotMeasureError(
            f"Pages are counted with {THREAD_IO}, which this system does not have. Leave pages out "
            "of --dimensions."
        )
    for held in keys:
        with tempfile.TemporaryDirectory(prefix="bench-pages-") as folder:
            store = LmdbStore.open(f"{folder}/store", kind="key_value")
            try:
                fill_s = _fill(store, held)
                size = (Path(folder) / "store" / "data.mdb").stat().st_size
                print(
                    f"{held:,} keys: {size / 2**20:,.0f} MiB, filled in {fill_s:.1f} s", flush=True
                )
                for one in (some for some in changed if some <= held):
                    yield from _figures(held, one, _commits(store, held, one))
            finally:
                store.close()


def _figures(held: int, changed: int, commits: Sequence[Commit]) -> Iterator[Measurement]:
    pages = statistics.median(commit.pages for commit in commits)
    took_ms = statistics.median(commit.seconds for commit in commits) * 1e3
    entry_bytes = len(key_of(0)) + COUNT_BYTES + COUNT_BYTES
    case = f"{held:,} keys, {changed:,} changed"
    figures = (
        ("pages_per_commit", "pages", pages),
        ("write_amplification", "times", pages * PAGE_BYTES / (changed * entry_bytes)),
        ("commit_time", "ms", took_ms),
    )
    print(f"{case}: {pages:,.0f} pages a commit, {took_ms:.2f} ms", flush=True)
    for metric, unit, value in figures:
        yield Measurement("growth", case, EVERFLOW, "", metric, unit, value)


def _fill(store: LmdbStore, held: int) -> float:
    began = time.monotonic()
    for first in range(0, held, CHUNK):
        last = min(held, first + CHUNK)
        _write(store, [scattered(number, held) for number in range(first, last)], 1)
    return time.monotonic() - began


def _commits(store: LmdbStore, held: int, changed: int) -> list[Commit]:
    rng = np.random.default_rng(LOAD_SEED)
    commits = []
    for count in range(2, COMMITS + 4):
        drawn = rng.choice(held, size=changed, replace=False).tolist()
        before, began = _written(), time.monotonic()
        _write(store, drawn, count)
        took = time.monotonic() - began
        commits.append(Commit((_written() - before) / PAGE_BYTES, took))
    return commits[2:]


def _write(store: LmdbStore, indexes: Sequence[int], count: int) -> None:
    keys = [key_of(index).encode() for index in indexes]
    values = [count.to_bytes(COUNT_BYTES, "big")] * len(keys)
    times = np.full(len(keys), TIME_MS, dtype=np.int64)
    store.load_chunk(keys, values, times, (store.position or 0) + len(keys))


def _written() -> int:
    """Bytes that this thread has given to `write` so far."""
    for line in THREAD_IO.read_text().splitlines():
        name, value = line.split(": ")
        if name == "wchar":
            return int(value)
    raise CannotMeasureError(f"{THREAD_IO} has no wchar")
