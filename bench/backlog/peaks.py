"""The peaks of an instance's processes, each by itself, and of all of them at one moment."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from bench.memory import process_memory_bytes
from bench.memory_growth import kind_of
from everflow.memory import DRIVER_BYTES, FOLLOWING_BYTES, MemoryBudget

SAMPLE_S = 0.05
MIB = 1 << 20


@dataclass(frozen=True)
class Bounds:
    """Bytes that the page says an instance takes at the most, by kind of process."""

    budget: MemoryBudget
    threads: int

    def of(self, kind: str) -> int:
        """Of one process; ``instance``: of all."""
        restoring = self.budget.beside_workers - self.budget.jvm - DRIVER_BYTES - FOLLOWING_BYTES
        return {
            "driver": DRIVER_BYTES + FOLLOWING_BYTES + restoring,
            "jvm": self.budget.jvm,
            "workers": self.budget.worker(self.threads).total,
            "instance": self.budget.total,
        }[kind]


class ProcessPeaks:
    """Samples each process of a tree every 50 ms on a thread of its own, from construction to
    `stop()`. Mapped files are left out: the kernel takes their pages back."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._kinds: dict[int, str | None] = {}
        self._peaks: dict[tuple[str, int], int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-peaks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling. Idempotent."""
        self._stopped.set()
        self._thread.join()

    def largest(self) -> Mapping[str, int]:
        """Bytes of the largest process of each kind, and of the ``instance``."""
        found: dict[str, int] = {}
        for (kind, _), size in self._peaks.items():
            found[kind] = max(found.get(kind, 0), size)
        return found

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        try:
            root = psutil.Process(self._pid)
            processes = [root, *root.children(recursive=True)]
        except psutil.Error:
            return
        total = 0
        for process in processes:
            size = process_memory_bytes(process, own=True)
            total += size
            kind = self._kind(process)
            if kind is not None:
                self._note(kind, process.pid, size)
        self._note("instance", 0, total)

    def _kind(self, process: psutil.Process) -> str | None:
        """One that has none yet may be about to become Spark's JVM: its script does."""
        if self._kinds.get(process.pid) is None:
            self._kinds[process.pid] = kind_of(process, self._pid)
        return self._kinds[process.pid]

    def _note(self, kind: str, pid: int, size: int) -> None:
        self._peaks[kind, pid] = max(self._peaks.get((kind, pid), 0), size)
