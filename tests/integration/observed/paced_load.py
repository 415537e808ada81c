"""A load for instances that come and go."""

from __future__ import annotations

import threading
import time
from collections import Counter

from confluent_kafka import Producer

from integration.lifecycle.lifecycle_cluster import Cluster

SLOW_COUNT = """
import time

from everflow import StreamsBuilder, serdes


def slow(value):
    time.sleep({pause_s})
    return value


builder = StreamsBuilder()
(
    builder.stream({source!r}, key=serdes.string(), value=serdes.string())
    .map_values(slow, returns="string")
    .group_by_key()
    .count(store="counts")
    .to_stream()
    .to({sink!r})
)
"""
"""The program that is scaled: it counts, and takes ``pause_s`` seconds for each record."""


class PacedLoad:
    """Writes records at a pace until it is told to stop; knows how many of each of 40 keys."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, per_s: float) -> None:
        self._cluster, self._topic = cluster, topic
        self._partitions, self._per_s = partitions, per_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written: Counter[str] = Counter()

    def __enter__(self) -> PacedLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap, "linger.ms": 5})
        began, number = time.monotonic(), 0
        while not self._stop.wait(0.05):
            while number < (time.monotonic() - began) * self._per_s:
                key = f"k{number % 40}"
                producer.produce(self._topic, b"v", key.encode(), number % 40 % self._partitions)
                self.written[key] += 1
                number += 1
            producer.poll(0)
        assert producer.flush(30) == 0
