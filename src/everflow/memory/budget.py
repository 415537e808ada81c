"""Who gets which part of an instance's memory: one budget for everything (note 045). Pure.

Bytes throughout, of memory that no file backs: what the kernel keeps of a store's file it takes
back when it needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

JVM_BYTES = 896 * MIB
"""Spark's JVM: of its heap (1 GiB at the most) what a backlog makes it take, its classes and
compiled code."""
DRIVER_BYTES = 256 * MIB
"""The process that the program runs in, without what it restores."""
WORKER_BYTES = 192 * MIB
"""A stream thread's worker before it has read anything, as far as everflow goes: what the
program's own modules add is measured."""
BATCH_BYTES = 576 * MIB
"""What a worker may take beyond that, where nobody has said how much."""
LEAST_BATCH_BYTES = 64 * MIB
"""Below it a thread could read a few large records at a time only."""
FOLLOWING_BYTES = 72 * MIB
"""Readers of standbys, of warm-ups and of global tables: a queue and two fetches each
(`CopyFollower`)."""
_TAKEN_ANYWAY = JVM_BYTES + DRIVER_BYTES + FOLLOWING_BYTES
RESTORES = 4
"""Stores that are restored at the same time at the most."""
_HELD = 6
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
    def restore_fetch(self) -> int:
        """Bytes that a restore fetches and loads at once."""
        spare = self.total - _TAKEN_ANYWAY
        return _within(_LEAST_FETCH, spare // (_RESTORING_SHARE * RESTORES * _HELD), _MOST_FETCH)

    @property
    def beside_workers(self) -> int:
        """What is no stream thread's."""
        return _TAKEN_ANYWAY + RESTORES * _HELD * self.restore_fetch

    def worker(self, threads: int) -> WorkerMemory:
        """What each of so many threads' workers may have."""
        share = (self.total - self.beside_workers) // max(1, threads)
        return WorkerMemory(max(WORKER_BYTES + LEAST_BATCH_BYTES, share))


@dataclass(frozen=True)
class WorkerMemory:
    """``total``: of one stream thread's worker, all told."""

    total: int

    @property
    def ahead(self) -> int:
        """What is fetched before a batch asks for it; up to three times as much is held: under way,
        received, and in columns."""
        return _within(_LEAST_AHEAD, self._batch // 12, _MOST_AHEAD)

    @property
    def queue(self) -> int:
        """What may wait for the brokers; a batch's writer waits where it is more."""
        return _within(_LEAST_QUEUE, self._batch // 8, _MOST_QUEUE)

    @property
    def pages(self) -> int:
        """What its stores may hold, from one batch to the next, of the pages that they have changed
        (`RetainedPages`)."""
        return _within(_LEAST_PAGES, self._batch // 8, _MOST_PAGES)

    def room(self, idle: int) -> int:
        """What a batch may take of it, everything that is made of its records included. ``idle``:
        what the worker takes without one."""
        return max(LEAST_BATCH_BYTES, self.total - idle)

    @property
    def _batch(self) -> int:
        return self.room(WORKER_BYTES)


def least_budget(threads: int) -> int:
    """Less is no budget for so many stream threads."""
    workers = threads * (WORKER_BYTES + LEAST_BATCH_BYTES)
    return _TAKEN_ANYWAY - (-workers * _RESTORING_SHARE // (_RESTORING_SHARE - 1))


def usual_budget(threads: int, machine: int | None) -> int:
    """Where nobody has said how much. ``machine``: bytes that there are for this process and all
    others; None: not known."""
    restores = RESTORES * _HELD * _MOST_FETCH
    wanted = _TAKEN_ANYWAY + restores + threads * (WORKER_BYTES + BATCH_BYTES)
    part, parts = _OF_MACHINE
    there = wanted if machine is None else machine * part // parts
    return max(least_budget(threads), min(wanted, there))


def _within(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))
