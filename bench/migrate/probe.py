"""Notes each committed output of some topics with the time when it could be read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Message, TopicPartition

from bench.gaps import POLL_TIMEOUT_S, Gap, committed_reader, longest_gap
from bench.migrate.books import Update
from everflow.columns.key_partitions import java_partitions

MOST = 10_000


class Seen(NamedTuple):
    """``at_s``: since the epoch, when it was read."""

    at_s: float
    partition: int
    offset: int
    key: bytes
    value: bytes


class OutputLog:
    """A read_committed consumer on a thread of its own, from the beginning of each topic. Use as a
    context manager."""

    def __init__(self, bootstrap_servers: str, topics: Sequence[str], partitions: int) -> None:
        self._seen: dict[str, list[Seen]] = {topic: [] for topic in topics}
        self._error: str | None = None
        self._stopped = threading.Event()
        self._consumer = committed_reader(bootstrap_servers, f"log-{topics[0]}")
        self._consumer.assign(
            [
                TopicPartition(topic, partition, 0)
                for topic in topics
                for partition in range(partitions)
            ]
        )
        self._thread = threading.Thread(target=self._read, name="output-log", daemon=True)

    def __enter__(self) -> OutputLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()

    def seen(self, topic: str) -> Sequence[Seen]:
        """All outputs so far, in the order of each partition; RuntimeError if the topics cannot be
        read. The thread goes on writing."""
        if self._error is not None:
            raise RuntimeError(self._error)
        return self._seen[topic]

    def updates(self, topic: str) -> Iterator[Update]:
        """`seen`, decoded."""
        for one in self.seen(topic):
            yield Update(one.at_s, one.key, json.loads(one.value))

    def _read(self) -> None:
        while not self._stopped.is_set():
            first = self._consumer.poll(POLL_TIMEOUT_S)
            if first is None:
                continue
            now = time.time()
            for message in (first, *self._consumer.consume(MOST, 0)):
                self._note(message, now)

    def _note(self, message: Message, now_s: float) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if message.error() is not None or topic is None or partition is None or offset is None:
            self._error = f"cannot read {topic}: {message.error()}"
            self._stopped.set()
            return
        key, value = message.key() or b"", message.value() or b""
        self._seen[topic].append(Seen(now_s, partition, offset, key, value))


def gaps_of_tasks(
    seen: Sequence[Seen], start_s: float, end_s: float, tasks: int, window_bytes: int = 0
) -> dict[int, Gap]:
    """`longest_gap` of each of so many tasks, told by the keys of its outputs."""
    if not seen:
        return {task: Gap(end_s - start_s, start_s) for task in range(tasks)}
    keys = [one.key[: len(one.key) - window_bytes] for one in seen]
    chosen = java_partitions(pa.array(keys, pa.binary()), tasks)
    times = np.array([one.at_s for one in seen])
    return {
        task: longest_gap(np.unique(times[chosen == task]).tolist(), start_s, end_s)
        for task in range(tasks)
    }


def batch_s(seen: Sequence[Seen], start_s: float, end_s: float) -> float:
    """The median time between two commits of a task, while each has its own output partition: the
    marker of a transaction takes an offset, which no consumer sees."""
    last: dict[int, Seen] = {}
    began: dict[int, float] = {}
    lengths = []
    for one in seen:
        if not start_s <= one.at_s <= end_s:
            continue
        before = last.get(one.partition)
        if before is not None and one.offset > before.offset + 1:
            if one.partition in began:
                lengths.append(one.at_s - began[one.partition])
            began[one.partition] = one.at_s
        last[one.partition] = one
    return float(np.median(lengths)) if lengths else end_s - start_s
