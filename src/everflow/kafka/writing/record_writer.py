"""`RecordWriter`: records, offsets and commit of a micro-batch, in columns (note 019).

A worker process has one per transactional id. What is written is gathered and encoded for all
topics and partitions at once, as a call costs more than a record. `Deliveries` sends it to the
leaders: in order, once, or with a reason. A partition has one batch under way, so one that is sent
again comes before those behind it; the broker knows it by its sequence number (KIP-98).
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from kafka.protocol.producer import ProduceRequest

from everflow.columns.key_partitions import java_partitions
from everflow.errors import (
    EverflowError,
    RecordRefusedError,
    RecordTooLargeError,
    RetriableError,
    UnknownOutcomeError,
)
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.errors import (
    PRODUCER_FENCED,
    TOPIC_FORBIDDEN,
    UNKNOWN_TOPIC,
    LinkLostError,
    RefusedError,
    classify,
    is_too_large,
    passes,
)
from everflow.kafka.writing.record_encoding import (
    EncodedRecords,
    RecordColumns,
    batch_ends,
    encode,
    encoded_headers,
    framed,
)
from everflow.kafka.writing.transaction import (
    CONCURRENT,
    GroupMetadata,
    OutcomeUnknownError,
    OutOfTimeError,
    Transactions,
    broker_code,
)
from everflow.kafka.writing.writer_settings import WriterSettings, writer_settings
from everflow.records import Bytes, Int64, TopicPartition, by_topic, rises, run_bounds

_REQUEST_BYTES = 4 << 20
_NEWEST_BEFORE_SECOND_PART, _NEWEST = 11, 12  # from 13 on topics go by id
_ALL_REPLICAS = -1
_SEQUENCES = 1 << 31
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.25

CORRUPT, TOO_LARGE, LIST_TOO_LARGE, DUPLICATE = 2, 10, 18, 46
INVALID_RECORD, INVALID_TIMESTAMP = 87, 32
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


@dataclass(slots=True)
class _Waiting:
    """A batch that is not yet delivered. ``frame`` is made when it is first sent, and stays as it
    is."""

    records: EncodedRecords
    sequence: int
    frame: bytes | None = None


@dataclass(eq=False)
class Deliveries:
    """Batches on their way. On the loop of ``link``, owned by one thread."""

    link: BrokerLink
    transactions: Transactions
    settings: WriterSettings = field(repr=False)
    _queues: dict[TopicPartition, deque[_Waiting]] = field(default_factory=dict, init=False)
    _sequences: dict[TopicPartition, int] = field(default_factory=dict, init=False)
    _epoch: tuple[int, int] = field(default=(-1, -1), init=False)
    _stale: set[str] = field(default_factory=set, init=False)
    _unknown_since: dict[TopicPartition, float] = field(default_factory=dict, init=False)
    _stopped: bool = field(default=False, init=False)
    sending: bool = field(default=False, init=False)
    waiting_bytes: int = field(default=0, init=False)
    failure: Undelivered | None = field(default=None, init=False)
    positions: dict[TopicPartition, int] = field(default_factory=dict, init=False)
    """Next offset (last delivered + 1) of each partition since ``begin``."""

    @property
    def done(self) -> bool:
        """Everything is delivered."""
        return not self._queues and not self.sending

    @property
    def left(self) -> int:
        return sum(len(one.records) for queue in self._queues.values() for one in queue)

    def begin(self) -> None:
        """A new batch of the caller: forget the one before; nothing may be under way."""
        assert not self.sending
        self._queues.clear()
        self._unknown_since.clear()
        self.positions.clear()
        self.waiting_bytes, self.failure, self._stopped = 0, None, False
        producer = self.transactions.producer
        if self._epoch != (producer.producer_id, producer.epoch):
            self._epoch = (producer.producer_id, producer.epoch)
            self._sequences.clear()

    def put(self, tp: TopicPartition, records: EncodedRecords) -> None:
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = (sequence + records.stop - records.start) % _SEQUENCES
        waiting, queue = _Waiting(records, sequence), self._queues.get(tp)
        if queue is None:
            self._queues[tp] = deque((waiting,))
        else:
            queue.append(waiting)
        self.waiting_bytes += records.body.size

    def start(self) -> None:
        if self._queues and not self.sending and not self._stopped and self.failure is None:
            self.sending = True
            self.link.start(self._send)

    def stop(self) -> None:
        """Send nothing more; what is under way ends (`sending`)."""
        self._stopped = True

    async def _send(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self._queues and not self._stopped and self.failure is None:
                before = self.waiting_bytes
                await self._round()
                if self.waiting_bytes < before:
                    pause_s = _FIRST_PAUSE_S
                elif self.failure is None:
                    await self.link.pause(pause_s)
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        except (RefusedError, OutOfTimeError) as failure:
            self._fail(next(iter(self._queues)), broker_code(failure), str(failure))
        finally:
            self.sending = False

    async def _round(self) -> None:
        """The first batches of all partitions, one request to each leader."""
        by_leader = await self._by_leader()
        if not by_leader:
            return
        chosen = [tp for leaders in by_leader.values() for tp in leaders]
        deadline = self.link.now() + self.settings.topic_wait_ms / 1000
        refused = await self.transactions.add(chosen, deadline)
        for tp, code in refused.items():
            self._refused(tp, code, "")
        if refused:
            return
        coming = [
            (partitions, self._answer(node, partitions)) for node, partitions in by_leader.items()
        ]
        for partitions, answer in coming:
            try:
                self._answered(partitions, await answer)
            except LinkLostError:
                self.transactions.tainted = True
                self._stale.update(tp.topic for tp in partitions)

    async def _by_leader(self) -> dict[int, list[TopicPartition]]:
        leaders = {tp: self.link.leader(tp) for tp in self._queues}
        unknown = {tp.topic for tp, node in leaders.items() if node is None}
        if unknown or self._stale:
            self._stale = (unknown | self._stale) & {tp.topic for tp in leaders}
            try:
                for topic in sorted(self._stale):
                    await self.link.refresh(topic)
                self._stale.clear()
            except LinkLostError:
                return {}  # no broker can be reached: who waits has a deadline
            leaders = {tp: self.link.leader(tp) for tp in self._queues}
        found: dict[int, list[TopicPartition]] = {}
        sizes: dict[int, int] = {}
        for tp, queue in self._queues.items():
            node = leaders[tp]
            if node is None:
                code = TOPIC_FORBIDDEN if self.link.forbidden(tp.topic) else UNKNOWN_TOPIC
                self._refused(tp, code, "")
                continue
            size = queue[0].records.body.size
            if sizes.get(node, 0) + size <= _REQUEST_BYTES or node not in sizes:
                sizes[node] = sizes.get(node, 0) + size
                found.setdefault(node, []).append(tp)
        return found

    def _answer(self, node: int, partitions: list[TopicPartition]) -> Awaitable[Any]:
        data = by_topic(partitions, lambda tp: (tp.partition, self._frame(self._queues[tp][0])))
        old = self.transactions.id is not None and not self.transactions.second_part
        request = ProduceRequest(
            transactional_id=self.transactions.id,
            acks=_ALL_REPLICAS,
            timeout_ms=self.settings.answer_timeout_ms,
            topic_data=data,
            max_version=_NEWEST_BEFORE_SECOND_PART if old else _NEWEST,
        )
        return self.link.started(lambda: self.link.send(node, request))

    def _frame(self, waiting: _Waiting) -> bytes:
        if waiting.frame is None:
            waiting.frame = framed(
                waiting.records,
                self.transactions.producer,
                waiting.sequence,
                self.settings.codec,
                self.settings.level,
            )
        return waiting.frame

    def _answered(self, partitions: list[TopicPartition], answer: Any) -> None:
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
            # The broker has this batch, which was sent again, but does not say where.
            self._fail(tp, DUPLICATE, "delivered at an unknown offset")
            return
        if self._unknown_since:
            self._unknown_since.pop(tp, None)
        queue = self._queues[tp]
        records = queue.popleft().records
        self.waiting_bytes -= records.body.size
        if not queue:
            del self._queues[tp]
        self.positions[tp] = base_offset + records.stop - records.start

    def _refused(self, tp: TopicPartition, code: int, text: str) -> None:
        waiting = self._queues[tp][0]
        if code in (TOO_LARGE, LIST_TOO_LARGE) and len(waiting.records) > 1:
            self._split(tp)
        elif code == UNKNOWN_TOPIC:
            since = self._unknown_since.setdefault(tp, self.link.now())
            self._stale.add(tp.topic)
            if (self.link.now() - since) * 1000 >= self.settings.topic_wait_ms:
                self._fail(tp, code, text)
        elif code == CORRUPT or passes(code):
            if code in _OTHER_LEADER:
                self._stale.add(tp.topic)
            elif code == CONCURRENT:
                self.transactions.note_blocked()
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
        halves = encode(columns, [len(columns) // 2, len(columns)], columns.sizes)
        sequence = (waiting.sequence + len(halves[0])) % _SEQUENCES
        self._queues[tp].extendleft(
            [_Waiting(halves[1], sequence), _Waiting(halves[0], waiting.sequence)]
        )
        self.waiting_bytes += sum(half.body.size for half in halves) - waiting.records.body.size

    def _fail(self, tp: TopicPartition, code: int | None, text: str) -> None:
        if self.failure is None:
            self.failure = Undelivered(tp, code, text)


T = TypeVar("T")
_INIT_TIMEOUT_S = 30.0
_QUEUE_TIMEOUT_S = 60.0
_TURN_S = 0.25
_REFRESH_PAUSE_S = 0.025
_CLOSE_S = 1.0
_GATHERED = 16_384
"""Records that are encoded together at most, and..."""
_GATHERED_BYTES = 8 << 20
_SENT_EARLY_BYTES = 256 << 10
"""So much is sent before ``flush``, while more is written."""
_KEYLESS_RUN = 4_096
"""Records without a key that go to one partition in a row, as Java's sticky partitioner does it."""
_UNTIMELY = " (message.timestamp.after.max.ms, message.timestamp.before.max.ms of the topic)"


class _Piece(NamedTuple):
    """Records of a call of ``write``; a partition below 0: by the key."""

    topic: str
    keys: Bytes
    values: Bytes
    timestamps: Int64
    partitions: Int64
    headers: Sequence[Any] | None

    def of(self, part: slice) -> _Piece:
        return _Piece(
            self.topic,
            self.keys[part],
            self.values[part],
            self.timestamps[part],
            self.partitions[part],
            None if self.headers is None else self.headers[part],
        )


class RecordWriter:
    """Writes the records of one micro-batch and, under exactly-once, commits them with its offsets.

    Owned by one thread of a worker, with none of its own: records go out while it is called. Order:
    ``begin``, ``write``..., ``flush``; under exactly-once ``send_offsets`` before or after
    ``flush``, then ``commit`` (or ``abort``). After TaskMigratedError, FatalError or
    UnknownOutcomeError it is out of the cache: ``get`` builds a new one, which fences it.
    """

    _writers: dict[tuple[int, str, str | None], RecordWriter] = {}

    def __init__(
        self,
        config: Mapping[str, Any],
        transactional_id: str | None,
        *,
        link: Callable[..., BrokerLink] = BrokerLink,
    ) -> None:
        """``config`` holds librdkafka keys (`writer_settings`). Raises ConfigError, and as
        ``get``."""
        self.transactional_id = transactional_id
        self._name = transactional_id or "at-least-once producer"
        self._bootstrap = str(config["bootstrap.servers"])
        self._settings = writer_settings(config)
        self._pieces: list[_Piece] = []
        self._gathered = self._gathered_bytes = 0
        self._topics: set[str] = set()
        self._kept = True
        self._closed = False
        self._link = link(
            self._settings.connection, self._settings.answer_timeout_ms, _INIT_TIMEOUT_S
        )
        self._transactions = Transactions(
            self._link, transactional_id, self._settings.transaction_timeout_ms
        )
        self._deliveries = Deliveries(self._link, self._transactions, self._settings)
        self._random = random.Random()
        try:
            self._run("starting", _INIT_TIMEOUT_S, self._transactions.start)
        except EverflowError:
            self._end()
            raise

    @staticmethod
    def get(config: Mapping[str, Any], transactional_id: str | None) -> RecordWriter:
        """This process's writer for the id and ``bootstrap.servers``; on first use every other
        writer of the id is fenced.

        Raises RetriableError when the broker does not answer within 30 s.
        """
        key = (os.getpid(), str(config["bootstrap.servers"]), transactional_id)
        writer = RecordWriter._writers.get(key)
        if writer is None:
            writer = RecordWriter._writers[key] = RecordWriter(config, transactional_id)
        return writer

    def begin(self) -> None:
        """Start a batch: a transaction if the writer has an id; forgets positions and errors of the
        batch before."""
        self._taken()
        self._topics.clear()
        self._run("beginning the transaction", _INIT_TIMEOUT_S, self._transactions.begin)
        self._deliveries.begin()

    def write(
        self,
        topic: str,
        keys: Bytes,
        values: Bytes,
        timestamps: Int64 | Sequence[int],
        partition: int | Sequence[int] | Int64 | None = None,
        headers: Sequence[Any] | None = None,
    ) -> None:
        """Take records in order, in columns of one length. Blocks while too much waits for the
        broker (at most 60 s).

        ``keys``, ``values``: binary columns, or sequences of bytes and None. ``timestamps``: ms.
        ``partition``: one for all, one per record, or None for Java's murmur2 of the key (no key:
        random). ``headers``: per record a list of (name, bytes or None), or None.

        RetriableError, FatalError: as classified in ``kafka.errors``. RecordTooLargeError: above
        ``message.max.bytes``.
        """
        times = np.asarray(timestamps, np.int64)
        partitions = np.full(len(times), -1 if partition is None else partition, np.int64)
        piece = _Piece(topic, keys, values, times, partitions, headers)
        for start in range(0, len(times), _GATHERED):
            self._gather(piece.of(slice(start, start + _GATHERED)))

    def send(self) -> None:
        """Let what was written go, and return: it travels while ``send_offsets`` and ``flush``
        wait. Raises as ``write``."""
        self._hand_over()
        self._deliveries.start()
        self._link.push()

    def flush(self, timeout_s: float) -> None:
        """Wait until the broker has every record.

        RetriableError: not delivered within ``timeout_s``, or refused for a passing reason.
        TaskMigratedError: fenced. FatalError: refused for good (topic and partition in the text):
        as RecordTooLargeError, or RecordRefusedError where its topic takes no such record.
        """
        deadline = self._link.now() + timeout_s
        self._hand_over()
        if not self._delivered(lambda: self._deliveries.done, deadline):
            late = (
                f"{self._deliveries.left} records not delivered within {timeout_s:g} s, of those "
                f"written to {self._written}"
            )
            raise self._failed(RetriableError(f"{self._name}: {late}"))

    def positions(self) -> dict[TopicPartition, int]:
        """Next offset (last delivered + 1) of every partition since ``begin``; complete after
        ``flush``."""
        return dict(self._deliveries.positions)

    @property
    def blocked_ms(self) -> float:
        """For so long since ``begin`` the broker was still ending the transaction before."""
        return self._transactions.blocked_s * 1000

    @property
    def renewals(self) -> int:
        """As `Transactions.renewals`."""
        return self._transactions.renewals

    def send_offsets(
        self, offsets: Iterable[tuple[str, int, int, str]], group_metadata: bytes, timeout_s: float
    ) -> None:
        """Add (topic, partition, next offset, metadata text) of the consumer group to the
        transaction; ``group_metadata``: `GroupMetadata.encode`.

        GenerationChanged: its generation is old. TaskMigratedError: member unknown, static member
        or this producer fenced. RetriableError: passing. Without TaskMigratedError: abort and run
        the batch again.
        """
        member = GroupMetadata.decode(group_metadata)
        wanted = list(offsets)
        self._run(
            "sending offsets",
            timeout_s,
            lambda deadline: self._transactions.send_offsets(wanted, member, deadline),
        )

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction.

        UnknownOutcomeError: no answer in time, only the log knows (fence, read stable offsets: D6).
        TaskMigratedError: fenced, nothing was committed. RetriableError: it has to be aborted.
        """
        try:
            self._run(
                f"committing what was written to {self._written}",
                timeout_s,
                lambda deadline: self._transactions.end(deadline, committed=True),
            )
        except OutcomeUnknownError as failure:
            self._end()
            raise UnknownOutcomeError(
                f"{self._name}: no answer to the commit within {timeout_s:g} s ({failure}); "
                "the committed offsets will tell whether it took place"
            ) from failure

    def abort(self, timeout_s: float = 10.0) -> None:
        """Give up the batch, and its transaction if there is one. Raises as ``send_offsets``; then
        ``get`` a new writer."""
        if self._closed:
            return
        deadline = self._link.now() + timeout_s
        self._taken()
        self._deliveries.stop()
        while self._deliveries.sending:
            # A record that arrives after the end of its transaction would belong to none.
            if self._link.now() >= deadline:
                late = f"{self._name}: aborting: records are still under way after {timeout_s:g} s"
                self._end()
                raise RetriableError(late)
            self._link.turn(_TURN_S)
        try:
            self._run(
                "aborting",
                timeout_s,
                lambda deadline: self._transactions.end(deadline, committed=False),
            )
        except EverflowError:
            self._end()
            raise
        if not self._kept:
            self._end()

    def close(self) -> None:
        """Drop the writer and what is not yet sent; `fence_all` ends an open transaction. Waits a
        second at most."""
        self._deliveries.stop()
        deadline = self._link.now() + _CLOSE_S
        while self._deliveries.sending and self._link.now() < deadline:
            self._link.turn(_CLOSE_S / 10)
        self._end()

    def _gather(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._topics.add(piece.topic)
        self._gathered += len(piece.timestamps)
        self._gathered_bytes += _size(piece.keys) + _size(piece.values)
        if self._gathered >= _GATHERED or self._gathered_bytes >= _GATHERED_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        """Encode what is gathered, for all topics and partitions together."""
        pieces = self._taken()
        if not pieces:
            return
        columns = RecordColumns(
            _column([piece.keys for piece in pieces]),
            _column([piece.values for piece in pieces]),
            np.concatenate([piece.timestamps for piece in pieces]),
            _headers(pieces),
        )
        sizes = columns.sizes
        self._require_small(pieces, sizes)
        topics, width, places = self._places(pieces, columns.keys)
        order, numbers, bounds = _runs(places)
        if order is not None:
            columns, sizes = columns.take(order), sizes[order]
        ends: list[int] = []
        owners: list[TopicPartition] = []
        most = self._settings.batch_bytes
        totals = np.add.reduceat(sizes, bounds[:-1]).tolist()
        for i, number in enumerate(numbers):
            start, stop = bounds[i], bounds[i + 1]
            found = (
                [stop]
                if totals[i] <= most
                else [start + end for end in batch_ends(sizes[start:stop], most)]
            )
            ends += found
            owner = TopicPartition(topics[number // width], number % width)
            owners += [owner] * len(found)
        for owner, records in zip(owners, encode(columns, ends, sizes), strict=True):
            self._deliveries.put(owner, records)
        if self._deliveries.waiting_bytes >= _SENT_EARLY_BYTES:
            self._deliveries.start()
            self._link.push()
        self._wait_while_full(pieces)

    def _taken(self) -> list[_Piece]:
        pieces = self._pieces
        self._pieces, self._gathered, self._gathered_bytes = [], 0, 0
        return pieces

    def _require_small(self, pieces: Sequence[_Piece], sizes: Int64) -> None:
        limit, row = self._settings.record_bytes, int(sizes.argmax())
        if sizes[row] <= limit:
            return
        ends = np.cumsum([len(piece.timestamps) for piece in pieces])
        topic = pieces[int(np.searchsorted(ends, row, side="right"))].topic
        text = (
            f"{self._name}: writing to {topic}: a record of {sizes[row]} bytes: "
            f"message size too large, the limit is {limit}"
        )
        raise self._discarded(RecordTooLargeError(text, topics=(topic,), limit=limit))

    def _wait_while_full(self, pieces: Sequence[_Piece]) -> None:
        deadline, most = self._link.now() + _QUEUE_TIMEOUT_S, self._settings.queue_bytes
        if not self._delivered(lambda: self._deliveries.waiting_bytes <= most, deadline):
            topics = ", ".join(sorted({piece.topic for piece in pieces}))
            full = f"the queue stayed full for {_QUEUE_TIMEOUT_S:g} s, writing to {topics}"
            raise self._failed(RetriableError(f"{self._name}: {full}"))

    def _delivered(self, enough: Callable[[], bool], deadline: float) -> bool:
        """Deliver until that is enough; False: it took too long, and nothing more is sent."""
        while True:
            self._check()
            if enough():
                return True
            left_s = deadline - self._link.now()
            if left_s <= 0:
                self._deliveries.stop()
                return False
            self._deliveries.start()
            self._link.turn(min(_TURN_S, left_s))

    def _places(self, pieces: Sequence[_Piece], keys: pa.Array) -> tuple[list[str], int, Int64]:
        """The topics, a width, and for each record ``number of its topic * width + partition``."""
        numbers = {topic: i for i, topic in enumerate(dict.fromkeys(one.topic for one in pieces))}
        rows = [len(piece.timestamps) for piece in pieces]
        partitions = np.concatenate([piece.partitions for piece in pieces])
        open_ = np.flatnonzero(partitions < 0)
        if len(open_):
            counts = [
                self.partition_count(piece.topic) if (piece.partitions < 0).any() else 0
                for piece in pieces
            ]
            whole = len(open_) == len(partitions)
            chosen = keys if whole else keys.take(pa.array(open_))
            partitions[open_] = self._by_key(chosen, np.repeat(counts, rows)[open_])
        width = int(partitions.max()) + 1
        if len(numbers) > 1:
            partitions += np.repeat([numbers[piece.topic] * width for piece in pieces], rows)
        return list(numbers), width, partitions

    def _by_key(self, keys: pa.Array, counts: Int64) -> Int64:
        chosen = java_partitions(keys, counts)
        if keys.null_count:
            without = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
            first = self._random.randrange(_SEQUENCES)
            runs = first + np.arange(len(without)) // _KEYLESS_RUN
            chosen[without] = runs % counts[without]
        return chosen

    def partition_count(self, topic: str) -> int:
        """The number of partitions; waits as long as a topic may be unknown."""
        deadline = self._link.now() + self._settings.topic_wait_ms / 1000
        while not (count := self._link.partitions(topic)):
            away = self._link.run(partial(self._refreshed, topic))
            if self._link.forbidden(topic):
                raise self._refused(TOPIC_FORBIDDEN, "", f"writing to {topic}", [topic])
            if self._link.now() >= deadline:
                unknown = None if away else UNKNOWN_TOPIC
                raise self._refused(unknown, away, f"delivering to {topic}", [topic])
        return count

    async def _refreshed(self, topic: str) -> str:
        """Ask who has the topic, and wait a moment if nobody says; why no broker answered, or
        nothing."""
        try:
            await self._link.refresh(topic)
        except LinkLostError as lost:
            await self._link.pause(_REFRESH_PAUSE_S)
            return str(lost)
        if not self._link.partitions(topic):
            await self._link.pause(_REFRESH_PAUSE_S)
        return ""

    @property
    def _written(self) -> str:
        return ", ".join(sorted(self._topics)) or "no topic"

    def _run(
        self,
        doing: str,
        timeout_s: float,
        coroutine: Callable[[float], Awaitable[T]],
    ) -> T:
        """Run a coroutine that is given its deadline; its errors as everflow's."""
        deadline = self._link.now() + timeout_s
        try:
            return self._link.run(lambda: coroutine(deadline))
        except (OutOfTimeError, LinkLostError, RefusedError) as failure:
            text = "" if isinstance(failure, RefusedError) else f"{failure}"
            raise self._refused(broker_code(failure), text, doing, self._topics) from failure

    def _check(self) -> None:
        failure: Undelivered | None = self._deliveries.failure
        if failure is None:
            return
        where = failure.where
        if failure.records and failure.code is not None:
            text = (
                f"{self._name}: the broker refuses a record for {where}: "
                f"{failure.text or RefusedError(failure.code)}"
                f"{_UNTIMELY if failure.code == INVALID_TIMESTAMP else ''}"
            )
            raise self._discarded(
                RecordRefusedError(
                    text,
                    topics=(where.topic,),
                    records=failure.records,
                    untimely=failure.code == INVALID_TIMESTAMP,
                )
            )
        missing = failure.code == UNKNOWN_TOPIC
        doing = f"delivering to {where.topic if missing else where}"
        raise self._refused(failure.code, failure.text, doing, [where.topic])

    def _refused(
        self, code: int | None, text: str, doing: str, topics: Collection[str]
    ) -> EverflowError:
        where = f"{self._name}: {doing}"
        if code is None:
            return self._failed(RetriableError(f"{where}: {text}"))
        said = f"{RefusedError(code)}: {text}" if text else f"{RefusedError(code)}"
        if code in PRODUCER_FENCED and (
            self.transactional_id is not None and self._transactions.overdue
        ):
            said += (
                f" (the transaction was open for longer than transaction.timeout.ms = "
                f"{self._settings.transaction_timeout_ms}: the broker ends it then)"
            )
        if is_too_large(code, said):
            return self._discarded(
                RecordTooLargeError(f"{where}: {said}", topics=tuple(sorted(topics)))
            )
        return self._failed(classify(RefusedError(code, said), where))

    def _failed(self, error: EverflowError) -> EverflowError:
        """Passing errors keep the writer (it can abort and go on), all others end it."""
        if isinstance(error, RetriableError) and self.transactional_id is not None:
            return error
        return self._discarded(error)

    def _discarded(self, error: EverflowError) -> EverflowError:
        """Out of the cache, and nothing more is sent: it must not arrive after the records of the
        batch's next attempt. ``abort`` still ends the transaction."""
        self._deliveries.stop()
        self._forget()
        return error

    def _end(self) -> None:
        self._closed = True
        self._forget()
        self._link.close()

    def _forget(self) -> None:
        self._kept = False
        key = (os.getpid(), self._bootstrap, self.transactional_id)
        if RecordWriter._writers.get(key) is self:
            del RecordWriter._writers[key]


def _column(parts: Sequence[Bytes]) -> pa.Array:
    if len(parts) == 1:
        return _as_binary(parts[0])
    if all(not isinstance(part, pa.Array) for part in parts):
        return pa.array([value for part in parts for value in part], pa.binary())
    return pa.concat_arrays([_as_binary(part) for part in parts])


def _as_binary(part: Bytes) -> pa.Array:
    if not isinstance(part, pa.Array):
        return pa.array(part, pa.binary())
    return part if part.type == pa.binary() else part.cast(pa.binary())


def _size(part: Bytes) -> int:
    return part.nbytes if isinstance(part, pa.Array) else 0


def _headers(pieces: Sequence[_Piece]) -> pa.Array | None:
    if all(piece.headers is None for piece in pieces):
        return None
    return encoded_headers(
        [own for piece in pieces for own in (piece.headers or [None] * len(piece.timestamps))]
    )


def _runs(places: Int64) -> tuple[Int64 | None, list[int], list[int]]:
    """An order in which equal numbers stand together (None: as is), the numbers, their bounds."""
    order = None
    if not rises(places):
        few = int(places.max()) < 1 << 16
        # of 16 bits: a radix sort
        order = np.argsort(places.astype(np.uint16) if few else places, kind="stable")
        places = places[order]
    bounds = run_bounds(places)
    return order, places[bounds[:-1]].tolist(), bounds
