"""What each task of a connector has written, when and where it ran; and what an event cost it."""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor

from confluent_kafka import OFFSET_END, TopicPartition

from bench.gaps import POLL_TIMEOUT_S, committed_reader
from bench.topics import PARTITIONS

QUIET_S = 2.0
"""A task that writes four records a second, and shows none for longer than this, stands still."""


@dataclass
class TaskOutput:
    """Of one task: times of its records (s since the epoch), and its instances, each with the time
    of its first record there. Both ascend."""

    arrivals_s: array[float] = field(default_factory=lambda: array("d"))
    owners: list[tuple[float, str]] = field(default_factory=list)

    def add(self, at_s: float, owner: str) -> None:
        """One more record."""
        self.arrivals_s.append(at_s)
        if not self.owners or self.owners[-1][1] != owner:
            self.owners.append((at_s, owner))

    def stops(self, start_s: float, end_s: float) -> list[float]:
        """The lengths of the times without a record that are longer than ``QUIET_S``, as far as
        they lie between the two moments."""
        first = max(0, bisect_left(self.arrivals_s, start_s) - 1)
        last = bisect_right(self.arrivals_s, end_s)
        seen = [*self.arrivals_s[first:last], end_s] if last else [start_s, end_s]
        found = []
        for before, after in pairwise(seen):
            if after - before > QUIET_S:
                found.append(after - max(before, start_s))
        return found

    def moves(self, start_s: float, end_s: float) -> int:
        """How often it began on another instance between the two moments."""
        return sum(start_s < at_s <= end_s for at_s, _ in self.owners[1:])

    def owner_at(self, at_s: float) -> str:
        """Where it ran last; "" before its first record."""
        at = bisect_right(self.owners, at_s, key=lambda one: one[0])
        return self.owners[at - 1][1] if at else ""


@dataclass(frozen=True)
class Cost:
    """What one event cost: task-seconds in which tasks stood still, tasks that began elsewhere, the
    longest stop of a task that never left an instance that nothing happened to, records/s, and the
    fewest records in a second as a share of the mean before."""

    lost_s: float
    moved: int
    stayed_s: float
    rate: float
    worst_share: float


def cost_of(
    tasks: Iterable[TaskOutput], hit: Sequence[str], start_s: float, end_s: float, before: float
) -> Cost:
    """``hit``: the instances it happened to; ``before``: records/s until then."""
    lost, moved, stayed = 0.0, 0, 0.0
    every: list[float] = []
    for task in tasks:
        stops, moves = task.stops(start_s, end_s), task.moves(start_s, end_s)
        lost += sum(stops)
        moved += moves
        if not moves and task.owner_at(start_s) not in hit:
            stayed = max([stayed, *stops])
        every += task.arrivals_s[
            bisect_left(task.arrivals_s, start_s) : bisect_right(task.arrivals_s, end_s)
        ]
    seconds = [count for _, count in per_second(every, start_s, end_s)]
    rate = len(every) / (end_s - start_s)
    return Cost(lost, moved, stayed, rate, min(seconds, default=0) / before if before else 0.0)


def per_second(
    arrivals_s: Iterable[float], start_s: float, end_s: float
) -> list[tuple[float, int]]:
    """The records in each whole second since the start."""
    counts = [0] * int(end_s - start_s)
    for at_s in arrivals_s:
        second = floor(at_s - start_s)
        if 0 <= second < len(counts):
            counts[second] += 1
    return [(float(second), count) for second, count in enumerate(counts)]


class OutputReader:
    """Reads records ``TASK INSTANCE`` from a topic's end on, on a thread of its own. Use as a
    context manager. RuntimeError, from its methods, if the topic could not be read."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer = committed_reader(bootstrap_servers, f"outputs-{topic}")
        self._consumer.assign(
            [TopicPartition(topic, partition, OFFSET_END) for partition in range(PARTITIONS)]
        )
        self._tasks: dict[str, TaskOutput] = {}
        self._error = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="connect-outputs", daemon=True)

    def __enter__(self) -> OutputReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()

    @property
    def tasks(self) -> dict[str, TaskOutput]:
        """By the names of the tasks, as of now."""
        if self._error:
            raise RuntimeError(self._error)
        return dict(self._tasks)

    def running(self, now_s: float) -> dict[str, str]:
        """The tasks that have written a moment ago, and where."""
        return {
            name: task.owners[-1][1]
            for name, task in self.tasks.items()
            if now_s - task.arrivals_s[-1] <= QUIET_S
        }

    def _read(self, clock: Callable[[], float] = time.time) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(POLL_TIMEOUT_S)
            if message is None:
                continue
            if message.error() is not None:
                self._error = f"cannot read {message.topic()}: {message.error()}"
                return
            task, _, owner = (message.value() or b"").decode().rpartition(" ")
            self._tasks.setdefault(task, TaskOutput()).add(clock(), owner)
