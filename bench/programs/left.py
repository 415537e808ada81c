"""Whether an application has done all there is: its input and its repartition topics."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from bench.topics import REQUEST_TIMEOUT_S

READ_TIMEOUT_S = 30.0
INTERNAL_ENDINGS = ("-repartition", "-topic")
"""Of topics between sub-topologies; Kafka Streams' two of a foreign-key join end with the other."""
# An end further away than this is no row of transaction markers; there is no need to read.
MOST_MARKERS = 20
FETCH_WAIT_MAX_MS = 10


class Leftovers:
    """Looks for records behind the committed offsets of an application's repartition topics.

    An end offset does not tell: under exactly-once a topic ends with transaction markers, which no
    one commits. Used by one thread; the group's input must be committed to its end.
    """

    def __init__(self, bootstrap_servers: str, application_id: str) -> None:
        self._application_id = application_id
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": application_id,
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": FETCH_WAIT_MAX_MS,
            }
        )

    def any(self) -> bool:
        """Whether a record is left. Levels feed each other, so that only a pass during which no
        topic grew counts."""
        ends = self._ends()
        return self._behind(ends) or self._ends() != ends

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def _ends(self) -> dict[tuple[str, int], int]:
        topics = self._reader.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        return {
            (name, partition): self._reader.get_watermark_offsets(
                TopicPartition(name, partition), timeout=REQUEST_TIMEOUT_S
            )[1]
            for name, topic in topics.items()
            if name.startswith(f"{self._application_id}-") and name.endswith(INTERNAL_ENDINGS)
            for partition in topic.partitions
        }

    def _behind(self, ends: dict[tuple[str, int], int]) -> bool:
        asked = [TopicPartition(*place) for place, end in ends.items() if end > 0]
        if not asked:
            return False
        committed = self._reader.committed(asked, timeout=REQUEST_TIMEOUT_S)
        behind = [found for found in committed if found.offset < ends[found.topic, found.partition]]
        if not behind:
            return False
        if any(
            found.offset < max(0, ends[found.topic, found.partition] - MOST_MARKERS)
            for found in behind
        ):
            return True
        self._reader.assign(behind)
        try:
            return self._reads_a_record(len(behind))
        finally:
            self._reader.unassign()

    def _reads_a_record(self, partitions: int) -> bool:
        ended: set[tuple[str, int]] = set()
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(ended) < partitions:
            if time.monotonic() > deadline:
                return True
            message = self._reader.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return True
            if error.name() != "_PARTITION_EOF":
                raise RuntimeError(f"a repartition topic cannot be read: {error}")
            ended.add((str(message.topic()), int(message.partition() or 0)))
        return False
