"""Resident memory of a whole process tree, sampled while it runs, and its processor time."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

SAMPLE_INTERVAL_S = 0.5
CLOCK_TICKS = float(os.sysconf("SC_CLK_TCK"))
C2_THREADS = "C2 CompilerThre"
"""Linux cuts a thread's name at 15 bytes."""
_PSS_ANONYMOUS_LINE = re.compile(rb"^Pss_Anon:\s+(\d+) kB", re.MULTILINE)
_PSS_LINE = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


def tree_memory_mib(pid: int) -> float:
    """MiB resident in the process and all its descendants.

    Proportional set size where Linux gives it, so that pages shared by forked workers count once;
    else RSS.
    """
    return sum(process_memory_bytes(process) for process in process_tree(pid)) / 2**20


def memory_parts_mib(pid: int) -> dict[str, float]:
    """MiB as `tree_memory_mib`, by kind of process: ``jvm``; ``driver``, the process that was
    started, where that is no JVM; ``workers``, all others; and of all of them what no file backs
    (``private``)."""
    parts: dict[str, float] = {}
    for process in process_tree(pid):
        try:
            is_java = Path(process.exe()).name == "java"
        except psutil.Error:
            continue
        kind = "jvm" if is_java else "driver" if process.pid == pid else "workers"
        own = process_memory_bytes(process, own=True) / 2**20
        parts[kind] = parts.get(kind, 0.0) + process_memory_bytes(process) / 2**20
        parts["private"] = parts.get("private", 0.0) + own
    return parts


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and all its living descendants; empty if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def process_memory_bytes(process: psutil.Process, *, own: bool = False) -> int:
    """Bytes resident in one process (see `tree_memory_mib`); 0 if it has ended. With ``own``
    without mapped files: a library's share grows when another process on the machine that has it
    loaded ends."""
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_bytes()
    except OSError:
        rollup = b""
    found = (own and _PSS_ANONYMOUS_LINE.search(rollup)) or _PSS_LINE.search(rollup)
    if found:
        return int(found.group(1)) * 1024
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def tree_processor_s(pid: int) -> float:
    """Processor seconds, user and system, of the process and its living descendants and of those
    that they waited for."""
    total = 0.0
    for process in process_tree(pid):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def compiler_processor_s(pid: int) -> float:
    """Processor seconds of the threads of the JVM's optimising compiler, C2, in process ``pid``; 0
    where Linux' /proc does not show its threads."""
    total = 0.0
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            name, seconds = thread_use(stat.read_text(errors="replace"))
        except OSError:
            continue
        total += seconds if name.startswith(C2_THREADS) else 0.0
    return total


def thread_use(stat: str, ticks_per_s: float = CLOCK_TICKS) -> tuple[str, float]:
    """Name of a thread and its processor seconds, user and system, by `/proc/PID/task/TID/stat`.
    The name may itself hold blanks and brackets."""
    head, _, rest = stat.rpartition(")")
    fields = rest.split()
    return head.partition("(")[2], (int(fields[11]) + int(fields[12])) / ticks_per_s


class ProcessorUse:
    """Samples the processor seconds of one process tree, or what `of` counts for it, every half
    second on a thread of its own, from construction to `stop()`."""

    def __init__(self, pid: int, of: Callable[[int], float] = tree_processor_s) -> None:
        self._pid = pid
        self._of = of
        # What a process used before it was watched: differences hold from here on.
        self._seconds: list[tuple[float, float]] = [(time.monotonic(), of(pid))]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tree-samples", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling. Idempotent."""
        self._stopped.set()
        self._thread.join()

    def processor_s(self, at: float) -> float:
        """Processor seconds used at a monotonic time, between two samples in proportion; for a time
        behind the last sample that sample's. After `stop`."""
        times, seconds = zip(*self._seconds, strict=True)
        return float(np.interp(at, times, seconds))

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        used = self._of(self._pid)
        # Processes that ended are no longer counted.
        self._seconds.append((time.monotonic(), max(used, self._seconds[-1][1])))


class MemoryPeak(ProcessorUse):
    """Samples memory too. Reading a large process' pages holds it up for some milliseconds: not
    beside a latency."""

    def __init__(self, pid: int) -> None:
        self.peak_mib = 0.0
        super().__init__(pid)

    def _sample(self) -> None:
        self.peak_mib = max(self.peak_mib, tree_memory_mib(self._pid))
        super()._sample()


class StateUse(ProcessorUse):
    """Samples what a system with much state uses, too: the bytes that the tree read from and wrote
    to disks, as the kernel counts them (a page when it is fetched, and when it gets dirty), and its
    memory without mapped files."""

    def __init__(self, pid: int) -> None:
        self.own_peak_mib = 0.0
        self._disk: dict[int, tuple[int, int]] = {}
        super().__init__(pid)

    def stop(self) -> None:
        """End the sampling, with a last sample: the tree should be alive still. Idempotent."""
        if not self._stopped.is_set():
            super().stop()
            self._sample()

    @property
    def read_bytes(self) -> int:
        """Read by all processes so far."""
        return sum(read for read, _ in self._disk.values())

    @property
    def written_bytes(self) -> int:
        """Written by all processes so far."""
        return sum(written for _, written in self._disk.values())

    def _sample(self) -> None:
        own = 0
        for process in process_tree(self._pid):
            own += process_memory_bytes(process, own=True)
            try:
                used = process.io_counters()
            except (psutil.Error, AttributeError):
                continue
            self._disk[process.pid] = (used.read_bytes, used.write_bytes)
        self.own_peak_mib = max(self.own_peak_mib, own / 2**20)
        super()._sample()
