"""A broker as a writer meets it, with both transaction protocols, and with requests that are lost,
refused, or carried out late. Time is counted, not waited for."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.record import MemoryRecords

from everflow.kafka.errors import LinkLostError, RefusedError
from everflow.records import TopicPartition

LARGEST_EPOCH = 2**15 - 2
OUT_OF_ORDER, OLD_EPOCH, BAD_STATE, FENCED, CONCURRENT = 45, 47, 48, 90, 51
NOT_LEADER, LOADING, NOT_COORDINATOR = 6, 14, 16
COORDINATOR_FAULTS = (CONCURRENT, LOADING, NOT_COORDINATOR)


class Given(dict):  # type: ignore[type-arg]
    """An answer, its fields as attributes."""

    __getattr__ = dict.__getitem__


@dataclass
class Partition:
    """A log: (producer id, epoch, values, transactional), and what it knows of producers."""

    entries: list[list[Any]] = field(default_factory=list)
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id -> its epoch, and the next sequence number."""
    batches: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(producer id, epoch, first sequence number) -> base offset of what is in the log."""
    size: int = 0


@dataclass
class Transaction:
    """What the coordinator knows of a transactional id."""

    producer_id: int
    epoch: int
    open: bool = False
    last: bool | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    pending: dict[tuple[str, int], int] = field(default_factory=dict)
    previous_epoch: int = -1


class Broker:
    """One node that leads everything."""

    def __init__(self, second_part: bool, partitions: Mapping[str, int]) -> None:
        self.second_part = second_part
        self.first_epoch = 0
        self.producers_made = 0
        """Producer ids that took the place of one whose epochs had come to their end."""
        self.topics = dict(partitions)
        self.logs = {
            TopicPartition(topic, number): Partition()
            for topic, count in partitions.items()
            for number in range(count)
        }
        self.ids: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self._producer_ids = itertools.count(1000)

    def values(self, tp: TopicPartition) -> list[bytes]:
        """What a read_committed reader sees."""
        return [value for entry in self.logs[tp].entries if entry[4] for value in entry[2]]

    def pending(self, tp: TopicPartition) -> int:
        """Batches of transactions without an end."""
        return sum(entry[4] is None for entry in self.logs[tp].entries)

    def handle(self, request: Any) -> Any:
        handler: Callable[[Any], Any] = {
            InitProducerIdRequest: self._init,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_offsets,
            ProduceRequest: self._produce,
            TxnOffsetCommitRequest: self._commit_offsets,
            EndTxnRequest: self._end,
        }[type(request)]
        return handler(request)

    # --- the coordinator --------------------------------------------------------------------------

    def _init(self, request: Any) -> Any:
        if request.transactional_id is None:
            return Given(error_code=0, producer_id=next(self._producer_ids), producer_epoch=0)
        known = self.ids.get(request.transactional_id)
        if known is None:
            known = Transaction(next(self._producer_ids), self.first_epoch - 1)
            self.ids[request.transactional_id] = known
        asked = request.producer_id or -1
        if asked >= 0 and request.producer_epoch != known.epoch:
            return Given(error_code=FENCED, producer_id=-1, producer_epoch=-1)
        if known.open:
            self._finish(known, committed=False)
        self._raise_epoch(known)
        known.previous_epoch, known.last = -1, None
        return Given(error_code=0, producer_id=known.producer_id, producer_epoch=known.epoch)

    def _owner(self, name: str, producer_id: int, epoch: int) -> int:
        known = self.ids.get(name)
        if known is None or known.producer_id != producer_id:
            return 49
        return 0 if known.epoch == epoch else OLD_EPOCH

    def _add_partitions(self, request: Any) -> Any:
        name = request.v3_and_below_transactional_id
        code = self._owner(
            name, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        )
        if not code:
            known = self.ids[name]
            known.open = True
            known.partitions |= {
                TopicPartition(topic, number)
                for topic, numbers in request.v3_and_below_topics
                for number in numbers
            }
        return Given(
            results_by_topic_v3_and_below=[
                Given(
                    name=topic,
                    results_by_partition=[
                        Given(partition_index=number, partition_error_code=code)
                        for number in numbers
                    ],
                )
                for topic, numbers in request.v3_and_below_topics
            ]
        )

    def _add_offsets(self, request: Any) -> Any:
        name = request.transactional_id
        code = self._owner(name, request.producer_id, request.producer_epoch)
        if not code:
            self.ids[name].open = True
        return Given(error_code=code)

    def _commit_offsets(self, request: Any) -> Any:
        name = request.transactional_id
        code = self._owner(name, request.producer_id, request.producer_epoch)
        if not code:
            known = self.ids[name]
            if not known.open and not self.second_part:
                code = BAD_STATE
            else:
                known.open = True
                for topic, rows in request.topics:
                    for partition, offset, *_ in rows:
                        known.pending[topic, partition] = offset
        return Given(
            topics=[
                Given(partitions=[Given(partition_index=0, error_code=code)])
                for _ in request.topics
            ]
        )

    def _end(self, request: Any) -> Any:
        known = self.ids[request.transactional_id]
        answer = Given(error_code=0, producer_id=known.producer_id, producer_epoch=known.epoch)
        if self.second_part and request.producer_epoch == known.previous_epoch:
            again = known.last == request.committed and not known.open
            return answer if again else Given(answer, error_code=BAD_STATE)
        if request.producer_epoch != known.epoch:
            return Given(answer, error_code=FENCED)
        if not known.open:
            # Asked for again, or an abort of what never began.
            fine = known.last == request.committed or (self.second_part and not request.committed)
            if not fine:
                return Given(answer, error_code=BAD_STATE)
        self._finish(known, committed=request.committed)
        if self.second_part:
            known.previous_epoch = known.epoch
            self._raise_epoch(known)
        return Given(answer, producer_id=known.producer_id, producer_epoch=known.epoch)

    def _raise_epoch(self, known: Transaction) -> None:
        """The largest epochs are the coordinator's own: then there is another producer id."""
        known.epoch += 1
        if known.epoch >= LARGEST_EPOCH:
            known.producer_id, known.epoch = next(self._producer_ids), 0
            self.producers_made += 1

    def _finish(self, known: Transaction, *, committed: bool) -> None:
        for tp in known.partitions:
            for entry in self.logs[tp].entries:
                if entry[0] == known.producer_id and entry[4] is None:
                    entry[4] = committed
            self.logs[tp].size += 1  # the marker
        if committed:
            self.offsets.update(known.pending)
        known.partitions, known.pending = set(), {}
        known.open, known.last = False, committed

    # --- the leader -------------------------------------------------------------------------------

    def _produce(self, request: Any) -> Any:
        return Given(
            responses=[
                Given(
                    name=topic,
                    partition_responses=[
                        Given(
                            self._append(
                                TopicPartition(topic, index), records, request.transactional_id
                            ),
                            index=index,
                            error_message=None,
                        )
                        for index, records in rows
                    ],
                )
                for topic, rows in request.topic_data
            ]
        )

    def _append(self, tp: TopicPartition, data: bytes, name: str | None) -> dict[str, int]:
        records = MemoryRecords(data)
        batch = records.next_batch()
        assert batch.validate_crc()
        assert records.next_batch() is None
        values = [record.value for record in batch]
        log, producer_id, epoch = self.logs[tp], batch.producer_id, batch.producer_epoch
        sequence = batch.base_sequence
        known = log.batches.get((producer_id, epoch, sequence))
        if known is not None:
            return {"error_code": 0, "base_offset": known}
        seen, following = log.producers.get(producer_id, (epoch, 0))
        if epoch < seen:
            return {"error_code": OLD_EPOCH, "base_offset": -1}
        if name is not None:
            refused = self._entered(tp, name, producer_id, epoch)
            if refused:
                return {"error_code": refused, "base_offset": -1}
        if sequence != (following if epoch == seen else 0):
            return {"error_code": OUT_OF_ORDER, "base_offset": -1}
        base = log.size
        log.entries.append([producer_id, epoch, values, name, None if name else True])
        log.size += len(values)
        log.producers[producer_id] = (epoch, sequence + len(values))
        log.batches[producer_id, epoch, sequence] = base
        return {"error_code": 0, "base_offset": base}

    def _entered(self, tp: TopicPartition, name: str, producer_id: int, epoch: int) -> int:
        """Kafka verifies that a partition is in the transaction (KIP-890), or puts it there."""
        code = self._owner(name, producer_id, epoch)
        if code:
            return code
        known = self.ids[name]
        if self.second_part:
            known.open = True
            known.partitions.add(tp)
        return 0 if known.open and tp in known.partitions else BAD_STATE


class Future:
    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        while not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True)
class Faults:
    lost_before: float = 0.0
    lost_after: float = 0.0
    late: float = 0.0
    """Lost for the writer, and carried out at some later time."""
    refused: float = 0.0


class ModelLink:
    """`BrokerLink` on a `Broker`, on a loop of its own."""

    def __init__(self, broker: Broker, rng: random.Random, faults: Faults) -> None:
        self.broker, self.rng, self.faults = broker, rng, faults
        self.late: list[Any] = []
        self.told: list[str] = []
        self.closed = False
        self._now = 0.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Any]] = []

    def __call__(self, *_: Any) -> ModelLink:
        """As a class would be: the writer connects."""
        return self

    # --- the loop ---------------------------------------------------------------------------------

    def now(self) -> float:
        return self._now

    def run(self, coroutine: Callable[[], Awaitable[Any]]) -> Any:
        future: Any = self.started(coroutine)
        while not future.done:
            self.turn(0.25)
        if future.error is not None:
            raise future.error
        return future.value

    def start(self, coroutine: Callable[[], Awaitable[None]]) -> None:
        self.started(coroutine)

    def started(self, coroutine: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        future = Future()

        async def outcome() -> None:
            try:
                future.value = await coroutine()
            except Exception as error:
                future.error = error
            future.done = True

        self._later(0.0, outcome().__await__())
        return future

    def turn(self, wait_s: float) -> None:
        end = self._now + wait_s
        if self._due and self._due[0][0] <= end:
            at, _, task = heapq.heappop(self._due)
            self._now = max(self._now, at)
            self._step(task)
        else:
            self._now = end

    def push(self) -> None:
        for _ in range(self.rng.randrange(4)):
            self.turn(0)

    async def pause(self, seconds: float) -> None:
        future = Future()
        end = self._now + seconds
        while self._now < end:
            await _Until(end)
        future.done = True

    def close(self) -> None:
        self.closed = True

    def _step(self, task: Any) -> None:
        try:
            waits_for = next(task)
        except StopIteration:
            return
        at = waits_for.at - self._now if isinstance(waits_for, _Until) else 0.001
        self._later(max(0.0, at), task)

    def _later(self, seconds: float, task: Any) -> None:
        heapq.heappush(self._due, (self._now + seconds, next(self._numbers), task))

    # --- coroutines -------------------------------------------------------------------------------

    async def send(self, node: int, request: Any, timeout_s: float | None = None) -> Any:
        await self.pause(0.001)
        self._let_late_ones_in()
        what, drawn = type(request).__name__, self.rng.random()
        for fault in ("lost_before", "lost_after", "late", "refused"):
            drawn -= getattr(self.faults, fault)
            if drawn < 0:
                self.told.append(f"{what} {fault}")
                return self._faulty(fault, request)
        answer = self.broker.handle(request)
        self.told.append(f"{what} -> {answer}")
        return answer

    def _faulty(self, fault: str, request: Any) -> Any:
        if fault == "lost_after":
            self.broker.handle(request)
        elif fault == "late":
            self.late.append(request)
        elif fault == "refused":
            return self._refusal(request)
        raise LinkLostError("the connection broke", sent=True)

    def _refusal(self, request: Any) -> Any:
        if not isinstance(request, ProduceRequest):
            raise RefusedError(self.rng.choice(COORDINATOR_FAULTS))
        code = self.rng.choice((NOT_LEADER, CONCURRENT))
        return Given(
            responses=[
                Given(
                    name=topic,
                    partition_responses=[
                        Given(index=index, error_code=code, base_offset=-1, error_message=None)
                        for index, _ in rows
                    ],
                )
                for topic, rows in request.topic_data
            ]
        )

    def _let_late_ones_in(self) -> None:
        while self.late and self.rng.random() < 0.3:
            request = self.late.pop(self.rng.randrange(len(self.late)))
            self.told.append(f"late: {type(request).__name__} -> {self.broker.handle(request)}")

    def leader(self, tp: TopicPartition) -> int | None:
        return 1 if tp in self.broker.logs else None

    async def refresh(self, topic: str | None = None) -> None:
        await self.pause(0.001)
        if self.rng.random() < 5 * self.faults.lost_before:
            raise LinkLostError("no broker can be reached", sent=False)

    def partitions(self, topic: str) -> int:
        return self.broker.topics.get(topic, 0)

    def forbidden(self, topic: str) -> bool:
        return False

    async def coordinator(self, kind: str, key: str) -> int:
        return 1

    def forget_coordinator(self, kind: str, key: str) -> None:
        pass

    def any_node(self) -> int:
        return 1

    async def transaction_version(self) -> int:
        return 2 if self.broker.second_part else 1


class _Until:
    def __init__(self, at: float) -> None:
        self.at = at

    def __await__(self) -> Generator[Any, None, None]:
        yield self
