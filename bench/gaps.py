"""When committed outputs became visible, per partition, and the longest time without one."""

from __future__ import annotations

import struct
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from bench.topics import end_offsets

# Bounds a fetch that the broker holds back; it answers at once when a commit makes records visible.
FETCH_WAIT_MAX_MS = 50
POLL_TIMEOUT_S = 0.1


class Gap(NamedTuple):
    """Time without a committed output: how long, and since when (s since the epoch)."""

    seconds: float
    began_s: float


def longest_gap(arrivals_s: Sequence[float], start_s: float, end_s: float) -> Gap:
    """The longest time between two neighbouring arrivals that reaches into [start, end], as far as
    it lies before the end.

    `arrivals_s` ascend. Without an arrival before the start, time counts from there.
    """
    longest, before = Gap(0.0, start_s), start_s
    for at_s in (*arrivals_s, end_s):
        if at_s >= start_s:
            longest = max(
                longest, Gap(min(at_s, end_s) - before, before), key=lambda gap: gap.seconds
            )
        if at_s >= end_s:
            break
        before = at_s
    return longest


def gap_lines(gaps: Mapping[int, Gap], since_s: float, steady: Mapping[int, Gap]) -> list[str]:
    """For people: each partition's longest gap, when it began, and its longest one before anything
    happened."""
    return [
        (
            f"  {partition}: {gap.seconds:.2f} s, from {gap.began_s - since_s:+.1f} s on (before "
            f"{steady[partition].seconds:.2f} s)"
        )
        for partition, gap in sorted(gaps.items())
    ]


def worst(gaps: Mapping[int, Gap]) -> float:
    """Seconds of the longest gap of all partitions."""
    return max(gap.seconds for gap in gaps.values())


def committed_reader(bootstrap_servers: str, group: str) -> Consumer:
    """A consumer that notes what is committed as soon as it may be read."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": FETCH_WAIT_MAX_MS,
        }
    )


class OutputProbe:
    """Reads the counts of a topic as a read_committed consumer, on a thread of its own, from the
    present end on.

    Times are seconds since the epoch. Use as a context manager.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer = committed_reader(bootstrap_servers, f"probe-{topic}")
        ends = end_offsets(bootstrap_servers, topic)
        self._arrivals: dict[int, array[float]] = {partition: array("d") for partition in ends}
        self._counts: dict[str, int] = {}
        self._fallen: list[str] = []
        self._error: str | None = None
        self._stopped = threading.Event()
        self._consumer.assign(
            [TopicPartition(topic, partition, end) for partition, end in ends.items()]
        )
        self._thread = threading.Thread(target=self._read, name="output-probe", daemon=True)

    def __enter__(self) -> OutputProbe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()

    def longest_gaps(self, start_s: float, end_s: float) -> dict[int, Gap]:
        """`longest_gap` of every partition."""
        return {
            partition: longest_gap(arrivals.tolist(), start_s, end_s)
            for partition, arrivals in self._arrivals.items()
        }

    def latest(self) -> dict[int, float]:
        """When each partition's latest output came; 0.0 for none. RuntimeError if the topic could
        not be read."""
        if self._error is not None:
            raise RuntimeError(self._error)
        return {
            partition: arrivals[-1] if arrivals else 0.0
            for partition, arrivals in self._arrivals.items()
        }

    def counts(self) -> Mapping[str, int]:
        """Key -> its last count so far. The thread goes on writing until the context is left."""
        return self._counts

    def fallen(self) -> Sequence[str]:
        """What is wrong with counts that did not rise: one text for each."""
        return self._fallen

    def _read(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(POLL_TIMEOUT_S)
            now = time.time()
            if message is None:
                continue
            partition = message.partition()
            if message.error() is not None or partition is None:
                self._error = f"cannot read {message.topic()}: {message.error()}"
                return
            self._arrivals[partition].append(now)
            key = (message.key() or b"").decode()
            (count,) = struct.unpack(">q", message.value() or b"")
            before = self._counts.get(key, 0)
            if count <= before:
                self._fallen.append(f"{key} went from {before} to {count}")
            self._counts[key] = count
