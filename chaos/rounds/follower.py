"""Reads outputs and changelogs, committed records only, while they appear; and once more at the
end."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition

from bench.topics import end_offsets
from chaos.rounds.analyses import Read

AT_ONCE = 5_000
POLL_S = 0.1
READ_S = 180.0
Reads = Mapping[str, Mapping[int, Sequence[Read]]]
"""Topic -> partition -> what was read, in this order."""


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-follower",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500,
            "fetch.message.max.bytes": 4_000_000,
            "log_level": 0,
        }
    )


class Follower(threading.Thread):
    """Reads ``topics`` from their beginnings, again and again; any thread may look."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        super().__init__(name="chaos-follower", daemon=True)
        self._servers, self._topics = bootstrap, topics
        self._reads: dict[str, dict[int, list[Read]]] = {
            name: {number: [] for number in range(count)} for name, count in topics.items()
        }
        self._stop_asked = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        consumer = _consumer(self._servers)
        try:
            consumer.assign(
                [
                    TopicPartition(name, number, 0)
                    for name, count in self._topics.items()
                    for number in range(count)
                ]
            )
            while not self._stop_asked.is_set():
                _take(consumer, self._reads)
        except BaseException as error:
            self.failure = error
        finally:
            consumer.close()

    def reads(self) -> Reads:
        """Everything so far; lists that only grow."""
        return self._reads

    def flat(self, topic: str) -> list[Read]:
        """All partitions of a topic."""
        return [read for found in self._reads[topic].values() for read in list(found)]

    def stop(self) -> None:
        """End the thread; RuntimeError if it had failed."""
        self._stop_asked.set()
        self.join()
        if self.failure is not None:
            raise RuntimeError("the follower failed") from self.failure


def read_all(bootstrap: str, topics: Mapping[str, int]) -> Reads:
    """What is there now. RuntimeError where it cannot be read in time."""
    reads: dict[str, dict[int, list[Read]]] = defaultdict(lambda: defaultdict(list))
    consumer = _consumer(bootstrap)
    try:
        ends = {
            (name, number): end
            for name in topics
            for number, end in end_offsets(bootstrap, name).items()
        }
        consumer.assign([TopicPartition(name, number, 0) for name, number in ends])
        deadline = time.monotonic() + READ_S
        while any(end > 0 for end in ends.values()):
            _take(consumer, reads)
            for there in consumer.position([TopicPartition(*place) for place in ends]):
                if there.offset >= ends[there.topic, there.partition]:
                    ends[there.topic, there.partition] = 0
            if time.monotonic() > deadline:
                raise RuntimeError(f"could not read to the ends {ends}")
    finally:
        consumer.close()
    return reads


def begun_at(bootstrap: str, topic: str, partitions: int) -> int:
    """The sum of the offsets at which the partitions begin now."""
    consumer = _consumer(bootstrap)
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return sum(consumer.get_watermark_offsets(place, READ_S)[0] for place in places)
    finally:
        consumer.close()


def _take(consumer: Consumer, reads: Mapping[str, Mapping[int, list[Read]]]) -> None:
    for message in consumer.consume(AT_ONCE, timeout=POLL_S):
        error = message.error()
        if error is not None:
            if error.fatal():
                raise RuntimeError(str(error))
            continue
        read = Read(
            message.partition() or 0,
            message.offset() or 0,
            message.key(),
            message.value(),
            message.timestamp()[1],
        )
        reads[message.topic() or ""][read.partition].append(read)
