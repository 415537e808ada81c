"""Brings encoded batches to the leaders of their partitions: in order, once, or with a reason.

A partition has one batch under way at a time, so a batch that is sent again comes before those
behind it; the broker knows it again by its sequence number (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.protocol.producer import ProduceRequest

from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.errors import UNKNOWN_TOPIC, LinkLostError, RefusedError, passes
from everflow.kafka.writing.record_encoding import EncodedRecords, encode, framed
from everflow.kafka.writing.transaction import (
    CONCURRENT,
    OutOfTimeError,
    Transactions,
    broker_code,
)
from everflow.kafka.writing.writer_settings import WriterSettings
from everflow.records import TopicPartition, by_topic

_REQUEST_BYTES = 4 << 20
_NEWEST_BEFORE_SECOND_PART, _NEWEST = 11, 12  # from 13 on topics go by id
_ALL_REPLICAS = -1
_SEQUENCES = 1 << 31
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.25

CORRUPT, TOO_LARGE, LIST_TOO_LARGE, DUPLICATE = 2, 10, 18, 46
NOT_AUTHORIZED, INVALID_RECORD, INVALID_TIMESTAMP = 29, 87, 32
_FOR_WHAT_IT_IS = frozenset({INVALID_RECORD, INVALID_TIMESTAMP})
_OTHER_LEADER = frozenset({UNKNOWN_TOPIC, 5, 6, 9, 56, 74, 75, 100})


class Undelivered(NamedTuple):
    """Why a record is not in the log: the broker's code (None: no broker answered), its words, and
    the partition."""

    where: TopicPartition
    code: int | None
    text: str
    records: frozenset[tuple[bytes | None, bytes | None, int]] = frozenset()
    """Key, value and time of those of a batch that the broker refuses, where it says which
    (KIP-467)."""


@dataclass
class _Waiting:
    """A batch that is not yet delivered. ``frame`` is made when it is first sent, and stays as it
    is."""

    records: EncodedRecords
    sequence: int
    frame: bytes | None = None


class Deliveries:
    """Batches on their way. On the loop of ``link``, owned by one thread."""

    def __init__(
        self,
        link: BrokerLink,
        transactions: Transactions,
        settings: WriterSettings,
        transactional_id: str | None,
    ) -> None:
        self._link = link
        self._transactions = transactions
        self._settings = settings
        self._transactional_id = transactional_id
        self._queues: dict[TopicPartition, deque[_Waiting]] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._epoch: tuple[int, int] = (-1, -1)
        self._stale: set[str] = set()
        self._unknown_since: dict[TopicPartition, float] = {}
        self._sending = False
        self._stopped = False
        self.bytes = 0
        """The bytes that are not yet delivered."""
        self.failure: Undelivered | None = None
        self.positions: dict[TopicPartition, int] = {}
        """Next offset (last delivered + 1) of each partition since ``begin``."""

    @property
    def settled(self) -> bool:
        """Nothing is under way, nothing will be."""
        return not self._sending

    @property
    def done(self) -> bool:
        """Everything is delivered."""
        return not self._queues and not self._sending

    @property
    def left(self) -> int:
        """Records that are not yet delivered."""
        return sum(len(one.records) for queue in self._queues.values() for one in queue)

    def begin(self) -> None:
        """A new batch of the caller: forget the one before; nothing may be under way."""
        assert not self._sending
        self._queues.clear()
        self._unknown_since.clear()
        self.positions.clear()
        self.bytes, self.failure, self._stopped = 0, None, False
        producer = self._transactions.producer
        if self._epoch != (producer.producer_id, producer.epoch):
            self._epoch = (producer.producer_id, producer.epoch)
            self._sequences.clear()

    def put(self, tp: TopicPartition, records: EncodedRecords) -> None:
        """Behind what waits for the partition already."""
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = (sequence + len(records)) % _SEQUENCES
        self._queues.setdefault(tp, deque()).append(_Waiting(records, sequence))
        self.bytes += records.body.size

    def start(self) -> None:
        """Send what waits, whenever the loop turns."""
        if self._queues and not self._sending and not self._stopped and self.failure is None:
            self._sending = True
            self._link.start(self._send)

    def stop(self) -> None:
        """Send nothing more; what is under way ends (`settled`)."""
        self._stopped = True

    # --- inside -----------------------------------------------------------------------------------

    async def _send(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self._queues and not self._stopped and self.failure is None:
                before = self.bytes
                await self._round()
                if self.bytes < before:
                    pause_s = _FIRST_PAUSE_S
                elif self.failure is None:
                    await self._link.pause(pause_s)
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        except (RefusedError, OutOfTimeError) as failure:
            self._fail(next(iter(self._queues)), broker_code(failure), str(failure))
        finally:
            self._sending = False

    async def _round(self) -> None:
        """The first batches of all partitions, one request to each leader."""
        by_leader = await self._by_leader()
        if not by_leader:
            return
        chosen = [tp for leaders in by_leader.values() for tp in leaders]
        deadline = self._link.now() + self._settings.topic_wait_ms / 1000
        refused = await self._transactions.add(chosen, deadline)
        for tp, code in refused.items():
            self._refused(tp, code, "")
        if refused:
            return
        coming = [
            (partitions, self._answer(node, partitions)) for node, partitions in by_leader.items()
        ]
        for partitions, answer in coming:
            try:
                self._told(partitions, await answer)
            except LinkLostError:
                self._transactions.taint()
                self._stale.update(tp.topic for tp in partitions)

    async def _by_leader(self) -> dict[int, list[TopicPartition]]:
        topics = {tp.topic for tp in self._queues}
        unknown = {tp.topic for tp in self._queues if self._link.leader(tp) is None}
        self._stale = (unknown | self._stale) & topics
        try:
            for topic in sorted(self._stale):
                await self._link.refresh(topic)
            self._stale.clear()
        except LinkLostError:
            return {}  # no broker can be reached: who waits has a deadline
        found: dict[int, list[TopicPartition]] = {}
        sizes: dict[int, int] = {}
        for tp, queue in self._queues.items():
            node = self._link.leader(tp)
            if node is None:
                code = NOT_AUTHORIZED if self._link.forbidden(tp.topic) else UNKNOWN_TOPIC
                self._refused(tp, code, "")
                continue
            size = queue[0].records.body.size
            if sizes.get(node, 0) + size <= _REQUEST_BYTES or node not in sizes:
                sizes[node] = sizes.get(node, 0) + size
                found.setdefault(node, []).append(tp)
        return found

    def _answer(self, node: int, partitions: list[TopicPartition]) -> Awaitable[Any]:
        data = by_topic(partitions, lambda tp: (tp.partition, self._frame(self._queues[tp][0])))
        old = self._transactional_id is not None and not self._transactions.second_part
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._settings.answer_timeout_ms,
            topic_data=data,
            max_version=_NEWEST_BEFORE_SECOND_PART if old else _NEWEST,
        )
        return self._link.started(lambda: self._link.send(node, request))

    def _frame(self, waiting: _Waiting) -> bytes:
        if waiting.frame is None:
            waiting.frame = framed(
                waiting.records,
                self._transactions.producer,
                waiting.sequence,
                self._settings.codec,
                self._settings.level,
            )
        return waiting.frame

    def _told(self, partitions: list[TopicPartition], answer: Any) -> None:
        codes: Mapping[TopicPartition, Any] = {
            TopicPartition(topic.name, one.index): one
            for topic in answer.responses
            for one in topic.partition_responses
        }
        for tp in partitions:
            one = codes.get(tp)
            if one is None:
                self._stale.add(tp.topic)
            elif one.error_code in _FOR_WHAT_IT_IS:
                self._invalid(tp, one)
            elif one.error_code:
                self._refused(tp, one.error_code, one.error_message or "")
            else:
                self._delivered(tp, one.base_offset)

    def _delivered(self, tp: TopicPartition, base_offset: int) -> None:
        if base_offset < 0:
            # A batch that was sent again, beyond what the broker remembers: it is there, but nobody
            # says where.
            self._fail(tp, DUPLICATE, "delivered at an unknown offset")
            return
        self._unknown_since.pop(tp, None)
        queue = self._queues[tp]
        waiting = queue.popleft()
        self.bytes -= waiting.records.body.size
        if not queue:
            del self._queues[tp]
        self.positions[tp] = base_offset + len(waiting.records)

    def _refused(self, tp: TopicPartition, code: int, text: str) -> None:
        waiting = self._queues[tp][0]
        if code in (TOO_LARGE, LIST_TOO_LARGE) and len(waiting.records) > 1:
            self._split(tp)
        elif code == UNKNOWN_TOPIC:
            since = self._unknown_since.setdefault(tp, self._link.now())
            self._stale.add(tp.topic)
            if (self._link.now() - since) * 1000 >= self._settings.topic_wait_ms:
                self._fail(tp, code, text)
        elif code == CORRUPT or passes(code):
            if code in _OTHER_LEADER:
                self._stale.add(tp.topic)
            elif code == CONCURRENT:
                self._transactions.held()
        else:
            self._fail(tp, code, text)

    def _invalid(self, tp: TopicPartition, answer: Any) -> None:
        """The broker refuses a batch for what some of its records are: a compacted topic, those
        without a key; any topic, those whose time is too far from the broker's."""
        columns = self._queues[tp][0].records.columns
        named = [one for one in answer.record_errors or () if one.batch_index < len(columns)]
        rows = [one.batch_index for one in named]
        records = frozenset(
            (columns.keys[row].as_py(), columns.values[row].as_py(), int(columns.timestamps[row]))
            for row in rows
        )
        said = [answer.error_message, *(one.batch_index_error_message for one in named[:1])]
        text = next((one for one in reversed(said) if one), "")
        if self.failure is None:
            self.failure = Undelivered(tp, answer.error_code, text, records)

    def _split(self, tp: TopicPartition) -> None:
        """Two halves in the place of a batch that is too large for its topic; the records keep
        their sequence numbers."""
        waiting = self._queues[tp].popleft()
        columns = waiting.records.columns
        halves = encode(columns, [len(columns) // 2, len(columns)])
        sequence = (waiting.sequence + len(halves[0])) % _SEQUENCES
        self._queues[tp].extendleft(
            [_Waiting(halves[1], sequence), _Waiting(halves[0], waiting.sequence)]
        )
        self.bytes += sum(half.body.size for half in halves) - waiting.records.body.size

    def _fail(self, tp: TopicPartition, code: int | None, text: str) -> None:
        if self.failure is None:
            self.failure = Undelivered(tp, code, text)
