"""Reads of a store that does not fit in memory: several at once instead of one after the other.

A page that is not in memory is a page fault, for which the thread waits some 0.1 ms, key by key: a
batch of 10,000 keys waits for a second. Disks serve many such reads at once. Whether pages are
missing is not asked but seen: some of many keys are read, and where they had to wait, threads read
all of them, for nothing but their pages.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import lmdb

KEYS_MIN = 500
"""For fewer the threads are not worth their start."""
PROBES = 32
WAITS_MIN = 4
"""For the pages of the probes."""
THREADS = 16
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)

Transactions = Callable[[], AbstractContextManager[Any]]


class ReadingAhead:
    """Of one environment. ``transactions`` opens read transactions beside the one that the caller
    holds (`StoreEnvironment.read_beside`). Any thread."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def fetch(self, keys: Sequence[bytes], database: Any) -> None:
        """Get the pages of these stored keys, which are read or written next, into memory, where
        they are many and not there; blocks meanwhile. A hint: what it leaves out, or another
        process writes in between, is fetched when it is needed."""
        if len(keys) < KEYS_MIN:
            return
        before = _waits()
        try:
            self._read(keys[:: -(-len(keys) // PROBES)], database)
            if _waits() - before >= WAITS_MIN:
                self._read_at_once(keys, database)
        except (lmdb.MapResizedError, lmdb.ReadersFullError):
            return  # another process has just made the store larger, or too many read

    def _read(self, keys: Sequence[bytes], database: Any) -> None:
        """In a transaction of its own, as LMDB wants it for each thread."""
        with self._transactions() as txn:
            for key in keys:
                txn.get(key, None, database)

    def _read_at_once(self, keys: Sequence[bytes], database: Any) -> None:
        share = -(-len(keys) // THREADS)
        parts = [keys[first : first + share] for first in range(0, len(keys), share)]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="everflow-read-ahead") as pool:
            for done in [pool.submit(self._read, part, database) for part in parts]:
                done.result()


def _waits() -> int:
    """How often this thread has waited for a page of a file so far."""
    return resource.getrusage(_WHOSE).ru_majflt
