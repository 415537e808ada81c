"""Looks at the processes of an instance, and at its stores, at one moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.memory import process_memory_bytes
from bench.memory_growth import kind_of

MEMORY = ("driver", "jvm", "workers")
FIGURES: Mapping[str, str] = {
    **{f"memory of the {kind}": "MiB" for kind in MEMORY},
    "open files": "files",
    "threads": "threads",
    "stores on disk": "MiB",
}
"""Name -> unit."""


@dataclass(frozen=True)
class SoakSample:
    """``at_s``: seconds since the begin; ``values`` by the names of `FIGURES`."""

    at_s: float
    values: Mapping[str, float]


def sample(at_s: float, pid: int, state: Path) -> SoakSample:
    """Of the instance with this pid, whose stores lie below ``state``."""
    values = dict.fromkeys(FIGURES, 0.0)
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        kind = kind_of(process, pid)
        if kind is None:
            continue
        values[f"memory of the {kind}"] += process_memory_bytes(process, own=True) / 2**20
        try:
            values["open files"] += process.num_fds()
            values["threads"] += process.num_threads()
        except psutil.Error:  # it has just ended
            continue
    values["stores on disk"] = store_bytes(state) / 2**20
    return SoakSample(at_s, values)


class Sampler(threading.Thread):
    """Looks each ``between_s`` seconds, from `start` to `stop`: while a member comes, too.
    ``samples`` are those so far."""

    def __init__(self, pid: int, state: Path, between_s: float) -> None:
        super().__init__(name="soak-samples", daemon=True)
        self._pid, self._state, self._between_s = pid, state, between_s
        self._stop_asked = threading.Event()
        self.samples: list[SoakSample] = []

    def run(self) -> None:
        began = time.monotonic()
        while not self._stop_asked.wait(self._between_s):
            self.samples.append(sample(time.monotonic() - began, self._pid, self._state))

    def stop(self) -> list[SoakSample]:
        """End the thread; all samples."""
        self._stop_asked.set()
        self.join()
        return self.samples


def store_bytes(state: Path) -> int:
    """What the stores' files take on the disk; they have holes."""
    total = 0
    for data in state.glob("*/*/data.mdb"):
        try:
            total += data.stat().st_blocks * 512
        except OSError:  # the task has just gone
            continue
    return total
