"""`RecordWriter`: one librdkafka producer for records, offsets and commit of a micro-batch.

A worker process has one per transactional id.

``produce`` is called record by record: it takes a timestamp, ``produce_batch`` of confluent-kafka
2.16 refuses one. Measured with a local broker, 100-byte records: 1.1-1.8 M/s into the queue,
0.9-1.5 M/s delivered, commit 2-5 ms. A delivery callback for every record would cost much of that,
so only the last record of a write or of a tracked partition has one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.errors import EverflowError, RecordTooLargeError, RetriableError, UnknownOutcomeError
from everflow.kafka.client_log import client_log
from everflow.kafka.errors import classify, classify_exception, is_too_large, kafka_error
from everflow.records import Int64, TopicPartition

_DEFAULTS: dict[str, Any] = {
    "enable.idempotence": True,
    # Java's DefaultPartitioner for keys; librdkafka's own default is CRC32
    "partitioner": "murmur2_random",
    # flush() overrides it, so it only sizes requests while a batch is being written
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 500_000,
    # per stream thread: memory is bounded by configuration (I9)
    "queue.buffering.max.kbytes": 131_072,
    "compression.type": "none",
}
_TRANSACTIONAL: dict[str, Any] = {"transaction.timeout.ms": 10_000}
# Without a transaction nothing else tells of a record lost in the middle of a partition: the
# callback sits on the last record only. With the gapless guarantee any gap is a fatal error of the
# producer, except for records that time out, so they never do: flush()'s own time-out ends the
# batch. log_level: librdkafka warns of the setting.
_AT_LEAST_ONCE: dict[str, Any] = {
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,
    "log_level": 3,
}
_MESSAGE_MAX_BYTES = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""
_COORDINATOR_TOPIC = "__transaction_state"
_FENCED_AT_ONCE = 8
_INIT_TIMEOUT_S = 30.0
_ROOM_TIMEOUT_S = 60.0
_POLL_S = 0.05
_FLUSH_SLICE_S = 0.25


def group_metadata(generation: int, group: str, member_id: str, instance_id: str | None) -> bytes:
    """The bytes librdkafka's ``send_offsets_to_transaction`` takes as a member's identity (its
    format ``CGMDv2:``).

    Any process can build them, so the sink in a worker commits in the name of the member in the
    driver (KIP-447, D6). ``generation`` is the member's at the moment of the commit. The broker
    refuses a stale generation, an unknown member and a wrong static member; it accepts (-1, "")
    **unfenced**, hence the commit gate.
    """
    head = b"CGMDv2:" + generation.to_bytes(4, "little", signed=True)
    static = b"\x01" if instance_id is None else b"\x00" + instance_id.encode() + b"\x00"
    return head + group.encode() + b"\x00" + member_id.encode() + b"\x00" + static


def producer_config(config: Mapping[str, Any], transactional_id: str | None) -> dict[str, Any]:
    """librdkafka's settings: everflow's defaults, then the user's, then what exactly-once needs."""
    guarantee = _AT_LEAST_ONCE if transactional_id is None else _TRANSACTIONAL
    merged = {**_DEFAULTS, **guarantee, **config, "enable.idempotence": True}
    if transactional_id is not None:
        merged["transactional.id"] = transactional_id
    return merged


def _init_transactions(producer: Producer, timeout_s: float) -> None:
    """Once a broker is connected: where none is yet, librdkafka looks for the coordinator again
    after half a second only."""
    producer.list_topics(_COORDINATOR_TOPIC, timeout_s)
    producer.init_transactions(timeout_s)


def fence(config: Mapping[str, Any], transactional_id: str, timeout_s: float) -> None:
    """End whatever still writes under ``transactional_id``: raise its epoch, abort its open
    transaction, close.

    Afterwards a zombie's writes and commits are refused, and readers of its partitions are no
    longer held back (0.6 s instead of 15.8 s after a kill -9 at a 10 s transaction time-out).
    Idempotent; safe from any thread.

    Raises:
        RetriableError: the broker did not answer within ``timeout_s`` seconds.
    """
    producer = Producer(producer_config(config, transactional_id), logger=client_log)
    try:
        _init_transactions(producer, timeout_s)
    except KafkaException as failure:
        raise classify_exception(
            failure, f"fencing transactional.id {transactional_id}"
        ) from failure


def fence_all(
    config: Mapping[str, Any], transactional_ids: Collection[str], timeout_s: float
) -> None:
    """`fence` all of these ids, at the same time: while a broker still aborts one's transaction,
    librdkafka asks again only after half a second, and who waits for the last would wait for them
    all. Blocks until all were tried; raises the first failure."""
    if transactional_ids:
        with ThreadPoolExecutor(min(len(transactional_ids), _FENCED_AT_ONCE)) as pool:
            list(
                pool.map(
                    lambda transactional_id: fence(config, transactional_id, timeout_s),
                    sorted(transactional_ids),
                )
            )


class RecordWriter:
    """Writes the records of one micro-batch and, under exactly-once, commits them with its offsets.

    Owned by one thread of a worker process. Order: ``begin``, ``write``..., ``flush``, then under
    exactly-once ``send_offsets`` and ``commit`` (or ``abort``). After TaskMigratedError, FatalError
    or UnknownOutcomeError the writer is out of the cache: ``get`` builds a new one, which fences
    this one.
    """

    _writers: dict[tuple[int, str, str | None], RecordWriter] = {}

    def __init__(self, config: Mapping[str, Any], transactional_id: str | None) -> None:
        self.transactional_id = transactional_id
        self._name = transactional_id or "at-least-once producer"
        self._bootstrap = str(config["bootstrap.servers"])
        self._positions: dict[TopicPartition, int] = {}
        self._failures: list[tuple[str, KafkaError]] = []
        self._topics: set[str] = set()
        self._largest = int(config.get("message.max.bytes", _MESSAGE_MAX_BYTES))
        # The callback holds the list, not the writer: no cycle, so a dropped writer's threads end
        # at once.
        fatal: list[KafkaError] = []
        self._fatals = fatal
        note = partial(_note_fatal, fatal)
        self._producer = Producer(
            {**producer_config(config, transactional_id), "error_cb": note}, logger=client_log
        )
        if transactional_id is not None:
            self._call("starting", _init_transactions, self._producer, _INIT_TIMEOUT_S)

    @staticmethod
    def get(config: Mapping[str, Any], transactional_id: str | None) -> RecordWriter:
        """This process's writer for the id and ``bootstrap.servers``; init_transactions on first
        use.

        ``config`` holds librdkafka keys. Raises RetriableError when the broker does not answer
        within 30 s.
        """
        key = (os.getpid(), str(config["bootstrap.servers"]), transactional_id)
        writer = RecordWriter._writers.get(key)
        if writer is None:
            writer = RecordWriter._writers[key] = RecordWriter(config, transactional_id)
        return writer

    def begin(self) -> None:
        """Start a batch: a transaction if the writer has an id; forgets positions and errors of the
        batch before."""
        self._positions.clear()
        self._failures.clear()
        self._topics.clear()
        if self.transactional_id is not None:
            self._call("beginning the transaction", self._producer.begin_transaction)

    def write(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64,
        partition: int | Sequence[int] | Int64 | None = None,
        headers: Sequence[Any] | None = None,
        track: bool = False,
    ) -> None:
        """Queue records in order; all columns have one length. Blocks while the queue is full (at
        most 60 s).

        Args:
            timestamps: record times in ms. 0 is written as 1: librdkafka takes 0 for "now".
            partition: one for all, one per record, or None for Java's murmur2 of the key (no key:
            random).
            headers: per record a list of (name, bytes or None), or None.
            track: note the partition's next offset for ``positions``; needs explicit partitions.

        Raises:
            RetriableError, FatalError: as classified in ``kafka.errors``. RecordTooLargeError:
            above ``message.max.bytes``.
        """
        count = len(timestamps)
        if count == 0:
            return
        partitions = _partitions(partition, count)
        last = (
            self._last_of_each(topic, partition, count)
            if track
            else {count - 1: partitions[count - 1]}
        )
        told = self._on_tracked if track else self._on_last
        self._topics.add(topic)
        stamps = np.where(timestamps == 0, 1, timestamps).tolist()
        start = 0
        columns = (values, keys, partitions, stamps)
        # The records with a callback (the last one, or the last of each tracked partition) cut the
        # loop: the others pay nothing.
        for stop in [*sorted(last), count]:
            part = slice(start, stop)
            cut = [column[part] for column in columns]
            self._queue(topic, zip(*cut, _headers(headers, part, stop - start), strict=True))
            if stop < count:
                extra = None if headers is None else headers[stop]
                self._produce(
                    topic, values[stop], keys[stop], last[stop], stamps[stop], extra, told
                )
            start = stop + 1
        self._call(f"writing to {topic}", self._producer.poll, 0)

    def flush(self, timeout_s: float) -> None:
        """Wait until the broker has every queued record.

        Raises:
            RetriableError: not delivered within ``timeout_s``, or a record was refused for a
            passing reason.
            TaskMigratedError: fenced. FatalError: a record was refused for good (topic and
            partition in the text);
                RecordTooLargeError: it was too large for its topic.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # In slices: after a fatal error librdkafka keeps the records, and one long flush would
            # wait for them.
            slice_s = max(0.0, min(_FLUSH_SLICE_S, deadline - time.monotonic()))
            left = self._call("flushing", self._producer.flush, slice_s)
            if self._fatal is not None:
                raise self._discarded(
                    self._classified(self._fatal, "delivering records", self._topics)
                )
            if self._failures:
                where, error = self._failures[0]
                topics = [
                    topic
                    for topic in self._topics
                    if where == topic or where.startswith(f"{topic}-")
                ]
                raise self._failed(self._classified(error, f"delivering to {where}", topics))
            if not left:
                return
            if time.monotonic() >= deadline:
                late = (
                    f"{left} records not delivered within {timeout_s:g} s, of those written to "
                    f"{self._written}"
                )
                raise self._failed(RetriableError(f"{self._name}: {late}"))

    def positions(self) -> dict[TopicPartition, int]:
        """Next offset (last delivered + 1) of every tracked partition since ``begin``; complete
        after ``flush``."""
        return dict(self._positions)

    def send_offsets(
        self, offsets: Iterable[tuple[str, int, int, str]], group_metadata: bytes, timeout_s: float
    ) -> None:
        """Add (topic, partition, next offset, metadata text) of the consumer group to the
        transaction.

        Raises:
            GenerationChanged: the generation in ``group_metadata`` is old; abort and run the batch
            again.
            TaskMigratedError: member unknown, static member fenced, or this producer fenced.
            RetriableError: anything passing; abort and run the batch again.
        """
        positions = [
            ClientTopicPartition(topic, partition, offset, metadata)
            for topic, partition, offset, metadata in offsets
        ]
        self._call(
            "sending offsets",
            self._producer.send_offsets_to_transaction,
            positions,
            group_metadata,
            timeout_s,
        )

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction.

        Raises:
            UnknownOutcomeError: no answer in time; only the log knows (fence, read stable offsets:
            D6).
            TaskMigratedError: fenced; nothing was committed. RetriableError: it has to be aborted.
        """
        try:
            self._producer.commit_transaction(timeout_s)
        except KafkaException as failure:
            error = kafka_error(failure)
            assert error is not None
            # Anything that neither asks for an abort nor is fatal leaves the request on its way.
            if error.txn_requires_abort() or error.fatal():
                doing = f"committing what was written to {self._written}"
                raise self._failed(self._classified(error, doing, self._topics)) from failure
            raise self._discarded(
                UnknownOutcomeError(
                    f"{self._name}: no answer to the commit within {timeout_s:g} s "
                    f"({error.name()}); "
                    "the committed offsets will tell whether it took place"
                )
            ) from failure

    def abort(self, timeout_s: float = 10.0) -> None:
        """Give up the transaction; a no-op under at-least-once. Raises as ``send_offsets``; then
        ``get`` a new writer."""
        if self.transactional_id is None:
            return
        try:
            self._producer.abort_transaction(timeout_s)
        except KafkaException as failure:
            raise self._discarded(
                classify_exception(failure, f"{self._name}: aborting")
            ) from failure

    def close(self) -> None:
        """Drop the writer and whatever is still queued; an open transaction is left to
        ``fence``."""
        self._forget()
        # Not Producer.close(): it aborts and flushes without a time-out, for ever when the broker
        # is away.
        self._producer.flush(1.0)

    # --- inside -----------------------------------------------------------------------------------

    def _queue(self, topic: str, records: Iterable[Any]) -> None:
        # The stubs know neither None for the callbacks nor how hot this loop is: arguments go by
        # position.
        produce: Any = self._producer.produce
        try:
            for value, key, partition, timestamp, headers in records:
                try:
                    if headers:
                        produce(topic, value, key, partition, None, None, timestamp, headers)
                    else:
                        produce(topic, value, key, partition, None, None, timestamp)
                except BufferError:
                    self._produce(topic, value, key, partition, timestamp, headers, None)
        except KafkaException as failure:
            raise self._not_sent(failure, topic) from failure

    def _produce(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        timestamp: int,
        headers: Any,
        callback: Any,
    ) -> None:
        """Queue one record, serving deliveries while the queue is full."""
        deadline = time.monotonic() + _ROOM_TIMEOUT_S
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, callback, None, timestamp, headers or []
                )
                return
            except BufferError:
                self._call(f"writing to {topic}", self._producer.poll, _POLL_S)
                if time.monotonic() > deadline:
                    full = (
                        f"{self._name}: the queue stayed full for {_ROOM_TIMEOUT_S:g} s, "
                        f"writing to {topic}"
                    )
                    raise self._failed(RetriableError(full)) from None
            except KafkaException as failure:
                raise self._not_sent(failure, topic) from failure

    def _not_sent(self, failure: KafkaException, topic: str) -> EverflowError:
        """What the client itself refused."""
        error = kafka_error(failure)
        if error is None or not is_too_large(error):
            return self._refused(failure, f"writing to {topic}")
        text = f"{self._name}: writing to {topic}: {error.str()}"
        return self._discarded(RecordTooLargeError(text, topics=(topic,), limit=self._largest))

    def _last_of_each(
        self, topic: str, partition: int | Sequence[int] | Int64 | None, count: int
    ) -> dict[int, int]:
        """Index of the last record of each partition -> the partition."""
        if partition is None:
            raise ValueError(f"tracking {topic} needs explicit partitions")
        if isinstance(partition, int):
            return {count - 1: partition}
        backwards, first = np.unique(np.asarray(partition)[::-1], return_index=True)
        return {count - 1 - int(i): int(p) for p, i in zip(backwards, first, strict=True)}

    def _on_last(self, error: KafkaError | None, message: Message) -> None:
        """The last record of an untracked write: refused records then have a place and a reason,
        not only a number at the commit. A topic that does not exist refuses them all."""
        if error is not None:
            partition = message.partition()
            topic = str(message.topic())
            where = (
                topic
                if partition is None or partition < 0
                else str(TopicPartition(topic, partition))
            )
            self._failures.append((where, error))

    def _on_tracked(self, error: KafkaError | None, message: Message) -> None:
        where = TopicPartition(str(message.topic()), int(message.partition() or 0))
        offset = message.offset()
        if error is not None:
            self._on_last(error, message)
        elif offset is None or offset < 0:
            # A retry that the broker answered as a duplicate beyond its cache: delivered, but
            # nobody says where.
            unknown = KafkaError(KafkaError._TIMED_OUT, "delivered at an unknown offset")
            self._failures.append((str(where), unknown))
        else:
            self._positions[where] = max(offset + 1, self._positions.get(where, 0))

    @property
    def _written(self) -> str:
        """The batch's topics: all that can be said of the place where a record without a callback
        was refused."""
        return ", ".join(sorted(self._topics)) or "no topic"

    @property
    def _fatal(self) -> KafkaError | None:
        return self._fatals[0] if self._fatals else None

    def _call(self, doing: str, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except KafkaException as failure:
            raise self._refused(failure, doing) from failure
        except SystemError as failure:
            # After a fatal error confluent-kafka sets an exception of its own and runs the next
            # delivery callback while that is pending: Python refuses the callback's first call with
            # a SystemError, and chains what was pending to it.
            with suppress(SystemError, KafkaException):
                # The error's callback may still be queued, and says more than "fatal error".
                self._producer.poll(0)
            pending = _pending(failure)
            cause = self._fatal or (kafka_error(pending) if pending is not None else None)
            text = f"{self._name}: {doing}"
            if cause is not None:
                raise self._discarded(self._classified(cause, doing, self._topics)) from failure
            what = f"{failure}" if pending is None else f"{type(pending).__name__}: {pending}"
            raise self._discarded(RetriableError(f"{text}: {what}")) from failure

    def _refused(self, failure: KafkaException, doing: str) -> EverflowError:
        error = kafka_error(failure)
        if error is not None and error.code() == KafkaError._FATAL:
            # "fatal error" only says that there was one; its callback has it.
            self._producer.poll(0)
            error = self._fatal or error
        return self._failed(
            self._classified(error, doing, self._topics)
            if error
            else classify_exception(failure, doing)
        )

    def _classified(self, error: KafkaError, doing: str, topics: Collection[str]) -> EverflowError:
        text = f"{self._name}: {doing}"
        if is_too_large(error):
            return RecordTooLargeError(f"{text}: {error.str()}", topics=tuple(sorted(topics)))
        return classify(error, text)

    def _failed(self, error: EverflowError) -> EverflowError:
        """Passing errors keep the writer (it can abort and go on), all others end it."""
        if (
            isinstance(error, RetriableError)
            and self._fatal is None
            and self.transactional_id is not None
        ):
            return error
        return self._discarded(error)

    def _discarded(self, error: EverflowError) -> EverflowError:
        self._forget()
        return error

    def _forget(self) -> None:
        # Records still queued must not arrive after the ones of the batch's next attempt.
        self._producer.purge(blocking=False)
        RecordWriter._writers.pop((os.getpid(), self._bootstrap, self.transactional_id), None)


def _partitions(partition: int | Sequence[int] | Int64 | None, count: int) -> Sequence[int]:
    if partition is None:
        return [-1] * count
    if isinstance(partition, int):
        return [partition] * count
    return partition.tolist() if isinstance(partition, np.ndarray) else partition


def _headers(headers: Sequence[Any] | None, part: slice, count: int) -> Iterable[Any]:
    return repeat(None, count) if headers is None else headers[part]


def _pending(failure: SystemError) -> BaseException | None:
    """The exception that was pending when Python made this SystemError: the first in its chain that
    is none itself."""
    found: BaseException | None = failure
    while isinstance(found, SystemError):
        found = found.__cause__ or found.__context__
    return found


def _note_fatal(fatals: list[KafkaError], error: KafkaError) -> None:
    if error.fatal():
        fatals.append(error)
