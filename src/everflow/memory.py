"""An instance's memory: its parts, and how much of it a micro-batch takes (note 045).

`MemoryBudget` divides the total, memory that no file backs; `BatchMemory` learns what batches take.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20

JVM_BYTES = 896 * MIB
"""Spark's JVM at the most: what a backlog makes it take of its heap, its classes and compiled
code."""
JVM_BESIDE_HEAP_BYTES = 224 * MIB
"""What a JVM takes that is no heap, with SQL loaded and without a class archive."""
LEAST_HEAP_BYTES, MOST_HEAP_BYTES = 192 * MIB, 1024 * MIB
_HEAP_FROM, _HEAP_SHARE = 640 * MIB, 2
"""Of what a budget has beyond the first number, the heap has one of so many parts."""
DRIVER_BYTES = 176 * MIB
"""The process that the program runs in, without what it restores."""
WORKER_BYTES = 96 * MIB
"""A stream thread's worker before it has read anything, as far as everflow goes: what the
program's own modules add is measured."""
BATCH_BYTES = 384 * MIB
"""The most that a worker takes beyond that by default."""
LEAST_BATCH_BYTES = 64 * MIB
"""Below it a thread could read a few large records at a time only."""
FOLLOWING_BYTES = 72 * MIB
"""Readers of standbys, of warm-ups and of global tables: a queue and two fetches each
(`CopyFollower`)."""
RESTORES = 4
"""Stores that are restored at the same time at the most."""
_FETCHES_IN_MEMORY = 6
"""A restore holds so many times a fetch: one under way, one received, its columns, and the keys
and values of a chunk as objects."""
_LEAST_FETCH, _MOST_FETCH = MIB // 4, 8 * MIB
_RESTORING_SHARE = 10
"""Restores have a tenth of what no process takes anyway, the workers have the rest."""
_LEAST_AHEAD, _MOST_AHEAD = 1 * MIB, 64 * MIB
_LEAST_QUEUE, _MOST_QUEUE = 1 * MIB, 128 * MIB
_LEAST_PAGES, _MOST_PAGES = 1 * MIB, 128 * MIB
_OF_MACHINE = 3, 4
"""Three of four parts: the others are the system's, of the files of the stores above all."""


@dataclass(frozen=True)
class MemoryBudget:
    """``total``: of all processes of an instance (``max.memory.bytes``)."""

    total: int

    @property
    def heap(self) -> int:
        """Bytes of the heap of the JVM that everflow starts (``-Xmx``)."""
        return _within(LEAST_HEAP_BYTES, (self.total - _HEAP_FROM) // _HEAP_SHARE, MOST_HEAP_BYTES)

    @property
    def jvm(self) -> int:
        """Bytes of that JVM, all in all."""
        return min(JVM_BYTES, self.heap + JVM_BESIDE_HEAP_BYTES)

    @property
    def restore_fetch(self) -> int:
        """Bytes that a restore fetches and loads at once."""
        spare = self.total - self._taken_anyway
        return _within(
            _LEAST_FETCH, spare // (_RESTORING_SHARE * RESTORES * _FETCHES_IN_MEMORY), _MOST_FETCH
        )

    @property
    def beside_workers(self) -> int:
        return self._taken_anyway + RESTORES * _FETCHES_IN_MEMORY * self.restore_fetch

    @property
    def _taken_anyway(self) -> int:
        return self.jvm + DRIVER_BYTES + FOLLOWING_BYTES

    def worker(self, threads: int) -> WorkerMemory:
        share = (self.total - self.beside_workers) // max(1, threads)
        return WorkerMemory(max(WORKER_BYTES + LEAST_BATCH_BYTES, share))


@dataclass(frozen=True)
class WorkerMemory:
    """``total``: of one stream thread's worker, all in all."""

    total: int

    @property
    def ahead(self) -> int:
        """Bytes fetched before a batch asks for them; three times as many may be in memory."""
        return _within(_LEAST_AHEAD, self._batch // 12, _MOST_AHEAD)

    @property
    def queue(self) -> int:
        """Bytes that may wait for the brokers; beyond that a batch's writer waits."""
        return _within(_LEAST_QUEUE, self._batch // 8, _MOST_QUEUE)

    @property
    def pages(self) -> int:
        """Bytes of changed pages that its stores may keep from one batch to the next."""
        return _within(_LEAST_PAGES, self._batch // 8, _MOST_PAGES)

    def batch_bytes(self, idle: int) -> int:
        """Bytes for a batch and what is made of it. ``idle``: what the worker takes without one."""
        return max(LEAST_BATCH_BYTES, self.total - idle)

    @property
    def _batch(self) -> int:
        return self.batch_bytes(WORKER_BYTES)


def budget_of(total: object, threads: object) -> MemoryBudget:
    """By settings that nobody has checked yet; ``None``, and what is no number, as left out."""
    found: list[int | None] = []
    for one in (total, threads):
        try:
            found.append(None if one is None else int(str(one)))
        except ValueError:
            found.append(None)
    given, count = found
    usual = usual_budget(max(1, count or os.cpu_count() or 1), machine_memory())
    return MemoryBudget(usual if given is None else given)


def least_budget(threads: int) -> int:
    """Less is no budget for so many stream threads."""
    workers = threads * (WORKER_BYTES + LEAST_BATCH_BYTES)
    others = (
        DRIVER_BYTES + FOLLOWING_BYTES - (-workers * _RESTORING_SHARE // (_RESTORING_SHARE - 1))
    )
    with_least_heap = others + LEAST_HEAP_BYTES + JVM_BESIDE_HEAP_BYTES
    with_its_share = _HEAP_SHARE * (others + JVM_BESIDE_HEAP_BYTES) - _HEAP_FROM
    return min(max(with_least_heap, with_its_share), others + JVM_BYTES)


def usual_budget(threads: int, machine: int | None) -> int:
    """The default. ``machine``: bytes for this process and all others; None: not known."""
    restores = RESTORES * _FETCHES_IN_MEMORY * _MOST_FETCH
    wanted = (
        JVM_BYTES
        + DRIVER_BYTES
        + FOLLOWING_BYTES
        + restores
        + threads * (WORKER_BYTES + BATCH_BYTES)
    )
    part, parts = _OF_MACHINE
    there = wanted if machine is None else machine * part // parts
    return max(least_budget(threads), min(wanted, there))


def _within(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))


FIRST_TIMES = 8.0
"""Bytes of memory for each byte of records, until one batch has been seen: JSON in columns takes
three to five."""
MOST_TIMES = 1_000.0
AIMED_AT = 0.75
"""The part of those bytes that a batch is planned to take: the next one's records may differ."""
TELLING_SHARE = 4
"""A batch tells something from a fourth of the most on: what a small one takes are the buffers that
the large ones left."""
OUTGROWN_SHARE = 8
"""A batch must outgrow the process by this part; else its peak is only an upper bound."""
_LEAST_RECORD_BYTES = 1_024


class Taken(NamedTuple):
    """Bytes that a worker used: without a batch, when its records had been read, and at the
    most."""

    idle: int
    before: int
    peak: int


@dataclass(frozen=True)
class BatchMemory:
    """Learnt by a stream thread. ``times``: bytes for a byte of records; ``idle``: without any."""

    times: float = FIRST_TIMES
    idle: int = WORKER_BYTES

    def most_bytes(self, limit: int, worker: WorkerMemory) -> int:
        """Bytes of records that the next batch may take; ``limit``: ``max.batch.bytes``."""
        fitting = int(worker.batch_bytes(self.idle) * AIMED_AT / self.times)
        return min(limit, max(_LEAST_RECORD_BYTES, fitting))

    def after(self, raw_bytes: int, most_bytes: int, taken: Taken | None) -> BatchMemory:
        """After one more batch, whose limit was ``most_bytes``. It rises at once and falls by
        half."""
        if taken is None or raw_bytes * TELLING_SHARE < most_bytes or raw_bytes <= 0:
            return self if taken is None else replace(self, idle=taken.idle)
        needed = max(0, taken.peak - taken.idle)
        seen = min(MOST_TIMES, max(1.0, needed / raw_bytes))
        outgrown = (taken.peak - taken.before) * OUTGROWN_SHARE >= needed
        if seen > self.times:
            return BatchMemory(seen if outgrown else self.times, taken.idle)
        return BatchMemory((self.times + seen) / 2, taken.idle)

    def doubted(self) -> BatchMemory:
        """After a worker that died: it may have had no memory."""
        return replace(self, times=min(MOST_TIMES, 2 * self.times))


_ROOT = Path("/")


def machine_memory(root: Path = _ROOT) -> int | None:
    """Bytes that this process and the others beside it may have; None: the system does not say. A
    container's limit is that of its control group (version 1 or 2) and of those above it."""
    found = [limit for limit in _limits(root) if limit > 0]
    return min(found, default=None)


def _limits(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, AttributeError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            if kinds == "":
                yield from _of_groups(groups, group, "memory.max")
            elif "memory" in kinds.split(","):
                yield from _of_groups(groups / "memory", group, "memory.limit_in_bytes")


def _of_groups(mounted: Path, group: str, file: str) -> Iterator[int]:
    """The limits of a group and of those above it. In a container its own may be the mount."""
    parts = [part for part in group.split("/") if part]
    for depth in range(len(parts) + 1):
        with suppress(OSError, ValueError):  # "max" is no number: there is no limit
            yield int(mounted.joinpath(*parts[:depth], file).read_text())


WORTH_LOOKING_BYTES = 1 << 20
"""Below so many bytes of records a batch tells nothing, and looking costs 0.1 ms."""
_FIELD = re.compile(rb"^(VmHWM|RssAnon|RssFile|RssShmem):\s+(\d+) kB", re.MULTILINE)
_RESET_MARK = "5"


class PeakMemory:
    """Peak memory of one process, used by its main thread: the kernel's high-water mark without
    files' pages, exact to those mapped since. Only on Linux. ``folder``: its own in ``/proc``."""

    def __init__(self, folder: Path = Path("/proc/self")) -> None:
        self._folder = folder
        self._idle: int | None = None
        self._before = self._peak = 0
        self._watched = False

    def settle(self) -> None:
        used = self._used()
        if used is not None:
            self._idle = used if self._idle is None else min(self._idle, used)

    def begin(self, raw_bytes: int) -> None:
        self._watched = False
        if raw_bytes < WORTH_LOOKING_BYTES or self._idle is None:
            return
        used = self._used()
        if used is not None:
            self._before = self._peak = used
            self._watched = self._reset()

    def taken(self) -> Taken | None:
        """The peak since `begin`; None if not known. Called before and after mapping files."""
        if not self._watched or self._idle is None:
            return None
        found = self._fields()
        files = found.get(b"RssFile", 0) + found.get(b"RssShmem", 0)
        marked = found.get(b"VmHWM", 0) - files
        self._peak = max(self._peak, marked, found.get(b"RssAnon", 0))
        self._reset()
        return Taken(self._idle, self._before, self._peak)

    def _used(self) -> int | None:
        return self._fields().get(b"RssAnon")

    def _fields(self) -> dict[bytes, int]:
        try:
            text = (self._folder / "status").read_bytes()
        except OSError:
            return {}
        return {name: int(kib) << 10 for name, kib in _FIELD.findall(text)}

    def _reset(self) -> bool:
        try:
            (self._folder / "clear_refs").write_text(_RESET_MARK)
        except OSError:
            return False
        return True


@lru_cache(maxsize=1)
def of_this_process(pid: int) -> PeakMemory:
    """The one of the process, whose number is ``pid``: a fork has another."""
    return PeakMemory()


M_ARENA_MAX = -8
"""A constant of glibc's ``malloc.h``."""
EVERY_S = 60.0
"""Taking 128 MiB anew costs some 30 ms: a two-thousandth of that time at the most."""


def trim_of_libc() -> Callable[[int], object] | None:
    return _of_libc("malloc_trim")


def share_one_area() -> None:
    """Threads that first ask for memory from now on share the areas there are (before there are
    threads: one). Not with another C library, nor where the user has set ``MALLOC_ARENA_MAX``."""
    mallopt = _of_libc("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, 1)


def _of_libc(name: str) -> Callable[..., object] | None:
    try:
        function: Callable[..., object] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    return function


class SpareMemory:
    """Gives freed memory back to the system, used by one thread of the process; ``trim`` is called
    without the interpreter's lock. glibc keeps freed memory up to `MALLOC_TRIM_THRESHOLD_`, and
    never gives back what lies below a live block: a worker would stay as large as its largest
    batch."""

    def __init__(
        self,
        trim: Callable[[int], object] | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trim, self._clock_s = trim, clock_s
        self._next_s = clock_s() + EVERY_S

    def trim_if_due(self) -> None:
        now_s = self._clock_s()
        if self._trim is not None and now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._trim(0)
