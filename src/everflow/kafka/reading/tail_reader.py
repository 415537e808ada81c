"""Reads small ranges of several partitions through librdkafka: batches at the tail of a topic.

Unlike `LogReader` it stays assigned and fetches ahead, so the records are here already when the driver asks for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.client_log import client_log
from everflow.kafka.errors import classify, classify_exception
from everflow.kafka.reading.log_columns import Budget, Read
from everflow.kafka.reading.messages import columns_of, offset_of
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TopicPartition

_DEFAULTS: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A tail of transaction markers is only reported by an empty fetch; a fetch with records returns at once whatever this says. It
    # is also how often an idle reader asks. (Pausing an idle reader was tried: librdkafka takes a second to fetch again.)
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,
}
_MOST_AT_ONCE = 10_000
_WAIT_S = 0.05
_WARM_UP_S = 5.0


class TailReader:
    """One consumer over the partitions it is asked for; owned by one thread. ``client`` are librdkafka properties."""

    def __init__(self, client: Mapping[str, Any], group: str, read_committed: bool, headers: bool) -> None:
        isolation = "read_committed" if read_committed else "read_uncommitted"
        # librdkafka wants a group id; the group is never joined and nothing is committed to it.
        settings = {**_DEFAULTS, **client, "group.id": group, "isolation.level": isolation}
        self._consumer = Consumer(settings, logger=client_log)
        self._headers = headers
        self._ahead: dict[TopicPartition, deque[Message]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._next: dict[TopicPartition, int] = {}
        self._end_seen: dict[TopicPartition, int] = {}

    def read(self, ranges: Mapping[TopicPartition, OffsetRange], timeout_s: float, most_bytes: int = UNBOUNDED_BYTES) -> Read:
        """See `RangeReader.read`."""
        self.go_to({tp: wanted.start for tp, wanted in ranges.items()})
        deadline = time.monotonic() + timeout_s
        budget = Budget(most_bytes, len(ranges))
        enough = budget.share()
        pending = {tp for tp, wanted in ranges.items() if not self._reached(tp, wanted, enough)}
        while pending:
            if time.monotonic() > deadline:
                missing = ", ".join(f"{tp} to {ranges[tp].end}" for tp in sorted(pending))
                raise RetriableError(f"no records for {timeout_s:g} s though the log says there are: {missing}")
            self._fetch()
            pending = {tp for tp in pending if not self._reached(tp, ranges[tp], enough)}
        columns = {}
        for tp, wanted in ranges.items():
            columns[tp] = columns_of(self._take(tp, wanted, enough), self._headers)
        return Read(columns, {tp: self._next[tp] for tp in ranges})

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect to the brokers that lead partitions of these topics, for at most ``timeout_s`` s, and let one partition of each
        answer. Reads nothing, and gives up what was read ahead. The first partition of a consumer otherwise waits up to a second
        for addresses, a connection and librdkafka's threads to turn to it; later ones come within 20 ms.

        Raises RetriableError if no broker answers; one leader that does not is no error, and waited for no longer than 5 s.
        """
        self.rest()
        try:
            of_leader = {
                facts.leader: (topic, partition)
                for topic in topics
                for partition, facts in self._consumer.list_topics(topic, timeout_s).topics[topic].partitions.items()
                if facts.leader >= 0
            }
            waiting = set(of_leader.values())
            asked = [ClientTopicPartition(topic, partition, OFFSET_END) for topic, partition in waiting]
            self._consumer.incremental_assign(asked)
            deadline = time.monotonic() + min(timeout_s, _WARM_UP_S)
            while waiting and time.monotonic() < deadline:
                answer = self._consumer.poll(_WAIT_S)  # a record or the end, either of which shows that it is fetched
                if answer is not None:
                    waiting.discard((answer.topic(), answer.partition()))
            self._consumer.incremental_unassign(asked)
        except KafkaException as failure:
            raise classify_exception(failure, "connecting the reader") from failure

    def rest(self) -> None:
        """Read nothing for now: another reader goes on. The connection stays."""
        self.go_to({})

    def close(self) -> None:
        """Drop the consumer."""
        self._consumer.close()

    def go_to(self, starts: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions ahead from these offsets on, and no others. What is read already and goes on where it is, is left
        alone: assigning it anew would let its tasks wait whenever another task comes or goes (I4)."""
        moved = {tp: start for tp, start in starts.items() if self._next.get(tp) != start}
        gone = [tp for tp in self._next if tp in moved or tp not in starts]
        try:
            if gone:
                self._consumer.incremental_unassign([ClientTopicPartition(tp.topic, tp.partition) for tp in gone])
            for tp in gone:
                del self._next[tp]
                self._ahead.pop(tp, None)
                self._bytes.pop(tp, None)
                self._end_seen.pop(tp, None)
            if moved:
                self._consumer.incremental_assign(
                    [ClientTopicPartition(tp.topic, tp.partition, start) for tp, start in moved.items()]
                )
        except KafkaException as failure:
            raise classify_exception(failure, "assigning input partitions") from failure
        for tp, start in moved.items():
            self._next[tp] = start
            self._ahead[tp] = deque()
            self._bytes[tp] = 0

    def _reached(self, tp: TopicPartition, wanted: OffsetRange, enough: int) -> bool:
        if wanted.end <= wanted.start or self._end_seen.get(tp, -1) >= wanted.end:
            return True
        ahead = self._ahead[tp]
        return bool(ahead) and (offset_of(ahead[-1]) >= wanted.end - 1 or self._bytes[tp] >= enough)

    def _fetch(self) -> None:
        # `consume` waits for all it was asked for; so one record is waited for, and then what is there is taken.
        first = self._consumer.poll(_WAIT_S)
        if first is None:
            return
        self._add(first)
        for message in self._consumer.consume(_MOST_AT_ONCE, 0):
            self._add(message)

    def _add(self, message: Message) -> None:
        error = message.error()
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and partition is not None and TopicPartition(topic, partition) not in self._next:
            return  # fetched before it was given up
        if error is None:
            assert topic is not None and partition is not None  # noqa: PT018
            tp = TopicPartition(topic, partition)
            self._ahead[tp].append(message)
            self._bytes[tp] += _size(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            assert topic is not None and partition is not None and offset is not None  # noqa: PT018
            self._end_seen[TopicPartition(topic, partition)] = offset
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise LogStartMovedError(f"{topic}-{partition}: offset {offset} is outside the log ({error.str()})")
        elif not error.retriable() or error.fatal():
            raise classify(error, f"reading {topic}-{partition}")

    def _take(self, tp: TopicPartition, wanted: OffsetRange, enough: int) -> list[Message]:
        ahead = self._ahead[tp]
        taken: list[Message] = []
        held = 0
        while ahead and offset_of(ahead[0]) < wanted.end and held < enough:
            taken.append(ahead.popleft())
            held += _size(taken[-1])
        self._bytes[tp] -= held
        behind = offset_of(taken[-1]) + 1 if taken else wanted.start
        self._next[tp] = wanted.end if self._nothing_before(tp, wanted.end) else behind
        return taken

    def _nothing_before(self, tp: TopicPartition, end: int) -> bool:
        """Whether no record before ``end`` is left. Where the bytes were enough, more may come though none is here."""
        ahead = self._ahead[tp]
        return offset_of(ahead[0]) >= end if ahead else self._end_seen.get(tp, -1) >= end


def _size(message: Message) -> int:
    return len(message) + len(message.key() or b"")
