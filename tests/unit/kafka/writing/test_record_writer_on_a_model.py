"""Batches against a broker that loses and delays: what is committed is there once and in order."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from everflow.errors import EverflowError, RetriableError, TaskMigratedError, UnknownOutcomeError
from everflow.kafka.errors import RefusedError
from everflow.kafka.writing.record_writer import Deliveries, RecordWriter
from everflow.kafka.writing.transaction import GroupMetadata, OutcomeUnknownError, Transactions
from everflow.records import TopicPartition
from unit.kafka.writing.broker_model import LARGEST_EPOCH, Broker, Faults, ModelLink

CONFIG = {"bootstrap.servers": "nowhere.invalid:1", "batch.size": 200}
TOPICS = {"out": 3, "changelog": 2}
FAULTS = Faults(lost_before=0.03, lost_after=0.03, late=0.04, refused=0.06)
NONE = Faults()
MEMBER = GroupMetadata(1, "group", "member", None).encode()
BATCHES = 12


class History:
    """One writer after the other under one id, until all batches have an outcome."""

    def __init__(self, seed: int, *, second_part: bool, faults: Faults = FAULTS) -> None:
        self.rng = random.Random(seed)
        self.broker = Broker(second_part, TOPICS)
        self.faults = faults
        self.links: list[ModelLink] = []
        self.writer: RecordWriter | None = None
        self.expected: dict[TopicPartition, list[bytes]] = {tp: [] for tp in self.broker.logs}
        self.committed = 0
        self.aborts = 0

    def run(self) -> None:
        """Each batch is tried until it is committed, as a task does it."""
        for number in range(BATCHES):
            wanted = {
                tp: [b"%d-%s-%d" % (number, str(tp).encode(), row) for row in range(count)]
                for tp in self.broker.logs
                if (count := self.rng.choice((0, 1, 3, 40)))
            }
            for _ in range(60):
                if self.attempt(number, wanted):
                    break
            else:
                raise AssertionError("a batch found no end")
            for tp, values in wanted.items():
                self.expected[tp] += values
            self.check(f"after batch {number}")

    def attempt(self, number: int, wanted: dict[TopicPartition, list[bytes]]) -> bool:
        """Whether the batch is committed now."""
        try:
            writer = self.connected()
            writer.begin()
            for tp, values in wanted.items():
                writer.write(tp.topic, values, values, np.arange(len(values)), tp.partition)
            writer.send()
            if self.rng.random() < 0.15:
                raise EverflowError("the gate says no")
            writer.send_offsets([("in", 0, number + 1, "")], MEMBER, 10)
            writer.flush(20)
            with self.outage():
                writer.commit(5)
            return True
        except UnknownOutcomeError:
            self.replaced()
            self.connected()  # which fences the one before
            return self.broker.offsets.get(("in", 0), 0) > number
        except EverflowError:
            self.aborts += 1
            if self.writer is not None:
                try:
                    self.writer.abort()
                except EverflowError:
                    self.replaced()
            if self.writer is not None and not self.writer._kept:
                self.replaced()
            return False

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Now and then every answer is lost, for as long as the commit lasts."""
        link, faults = self.links[-1], self.faults
        if faults != NONE and self.rng.random() < 0.1:
            link.faults = Faults(lost_after=1.0)
        try:
            yield
        finally:
            link.faults = faults

    def connected(self) -> RecordWriter:
        while self.writer is None:
            link: Any = ModelLink(self.broker, self.rng, self.faults)
            if self.links:
                link.late = self.links[-1].late
            self.links.append(link)
            try:
                self.writer = RecordWriter(CONFIG, "id", link=link)
            except EverflowError:
                continue
        return self.writer

    def replaced(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None

    def check(self, when: str) -> None:
        for tp, values in self.expected.items():
            told = [line for link in self.links for line in link.told]
            assert self.broker.values(tp) == values, (when, tp, told[-60:])


@pytest.mark.parametrize("second_part", [True, False], ids=["second part", "first"])
@pytest.mark.parametrize("seed", range(30))
def test_what_is_committed_is_there_once(seed: int, second_part: bool) -> None:
    history = History(seed, second_part=second_part)
    history.run()
    assert history.broker.offsets["in", 0] == BATCHES


@pytest.mark.parametrize("second_part", [True, False], ids=["second part", "first"])
@pytest.mark.parametrize("seed", range(5))
def test_a_producer_without_more_epochs_goes_on(seed: int, second_part: bool) -> None:
    """KAFKA-20090: an epoch has 15 bits, and each abort, or each transaction, takes one."""
    history = History(seed, second_part=second_part)
    history.broker.first_epoch = LARGEST_EPOCH - 3
    history.run()
    assert history.broker.producers_made
    assert history.broker.offsets["in", 0] == BATCHES


@pytest.mark.parametrize("second_part", [True, False], ids=["second part", "first"])
def test_without_faults_nothing_is_aborted(second_part: bool) -> None:
    history = History(1, second_part=second_part, faults=NONE)
    history.rng.random = lambda: 0.99  # type: ignore[method-assign]
    history.run()
    assert history.aborts == 0
    assert len(history.links) == 1
    assert all(not history.broker.pending(tp) for tp in history.broker.logs)


@pytest.mark.parametrize("second_part", [True, False], ids=["second part", "first"])
def test_new_epochs_of_tainted_producers_are_counted_until_told(second_part: bool) -> None:
    history = History(1, second_part=second_part, faults=NONE)
    writer = history.connected()
    value = [b"v"]

    def batch(*, committed: bool) -> int:
        writer.begin()
        writer.write("out", value, value, np.zeros(1, np.int64), 0)
        writer.flush(10)
        writer.commit(5) if committed else writer.abort()
        return writer.renewals

    assert batch(committed=True) == 0
    assert batch(committed=False) == 0
    assert batch(committed=False) == (0 if second_part else 1), "the abort before has tainted it"
    assert batch(committed=True) == (0 if second_part else 2)
    assert batch(committed=True) == 0, "it was told"


def test_without_an_id_records_arrive_in_order_and_none_is_lost() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        broker = Broker(True, TOPICS)
        link: Any = ModelLink(broker, rng, FAULTS)
        writer = RecordWriter(CONFIG, None, link=link)
        writer.begin()
        values = [b"%d" % row for row in range(500)]
        writer.write("out", values, values, np.zeros(500, np.int64), 1)
        writer.flush(60)
        assert broker.values(TopicPartition("out", 1)) == values
        assert writer.positions() == {TopicPartition("out", 1): 500}


def test_a_full_queue_is_waited_for_until_its_deadline() -> None:
    broker = Broker(True, TOPICS)
    link: Any = ModelLink(broker, random.Random(1), NONE)
    writer = RecordWriter({**CONFIG, "queue.buffering.max.kbytes": 1}, "id", link=link)
    writer.begin()
    began, link.faults = link.now(), Faults(lost_before=1.0)
    values = [b"%d" % row for row in range(500)]
    writer.write("out", values, values, np.zeros(500, np.int64), 1)
    with pytest.raises(RetriableError, match=r"full.* 60 s.* out"):
        writer.send()
    assert link.now() - began == pytest.approx(60.0)


def test_partitions_of_another_number_than_the_records_fail_in_that_call() -> None:
    broker = Broker(True, TOPICS)
    link: Any = ModelLink(broker, random.Random(1), NONE)
    writer = RecordWriter(CONFIG, None, link=link)
    writer.begin()
    writer.write("out", [b"k"], [b"v"], [1], [0])
    with pytest.raises(ValueError, match="3"):
        writer.write("out", [b"k"] * 3, [b"w"] * 3, [1, 2, 3], [0, 1])
    writer.flush(10)
    assert writer.positions() == {TopicPartition("out", 0): 1}


def found(second_part: bool) -> bool:
    """Whether some history of a hundred shows a fault."""
    for seed in range(100):
        try:
            History(seed, second_part=second_part).run()
        except AssertionError:
            return True
    return False


def test_a_late_end_meets_the_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Transactions.begin

    async def careless(self: Transactions, deadline: float) -> None:
        self.tainted = False
        await begin(self, deadline)

    monkeypatch.setattr(Transactions, "begin", careless)
    assert found(second_part=False)


def test_a_batch_with_a_new_number_is_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Deliveries._frame

    def renumbered(self: Deliveries, waiting: Any) -> bytes:
        if waiting.frame is not None:
            waiting.frame = None
            waiting.sequence += len(waiting.records)
        return frame(self, waiting)

    monkeypatch.setattr(Deliveries, "_frame", renumbered)
    assert found(second_part=True)


def test_a_commit_without_an_answer_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Transactions.end

    async def sure(self: Transactions, deadline: float, *, committed: bool) -> None:
        try:
            await end(self, deadline, committed=committed)
        except OutcomeUnknownError as failure:
            raise RefusedError(51) from failure

    monkeypatch.setattr(Transactions, "end", sure)
    assert found(second_part=True)


@pytest.mark.parametrize("second_part", [True, False], ids=["second part", "first"])
def test_a_transaction_that_the_broker_ended_is_not_another_owners(second_part: bool) -> None:
    """Jepsen's producer_fence: the coordinator ends what is open for too long by raising the epoch,
    and the client hears of a newer producer, which there is none."""
    broker = Broker(second_part, TOPICS)
    link: Any = ModelLink(broker, random.Random(1), NONE)
    writer = RecordWriter({**CONFIG, "transaction.timeout.ms": 1_000}, "id", link=link)
    writer.begin()
    writer.write("out", [b"k"], [b"v"], np.zeros(1, np.int64), 0)
    writer.flush(10)
    link.turn(1.5)
    known = broker.ids["id"]
    broker._finish(known, committed=False)
    broker._raise_epoch(known)
    with pytest.raises(TaskMigratedError) as fenced:
        writer.commit(5)
    assert "longer than transaction.timeout.ms = 1000" in str(fenced.value)
    writer.close()
