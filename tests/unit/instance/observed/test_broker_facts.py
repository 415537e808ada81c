"""What the brokers are asked about transactions: rarely, while somebody looks, and with an age."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import pytest

from everflow.clock import ManualClock
from everflow.errors import RetriableError
from everflow.instance.observer import WATCHED_MS, BrokerFacts, Standing, standing
from everflow.kafka.admin import TransactionState
from everflow.records import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Brokers:
    """They know the ends, and the state of one id."""

    def __init__(self) -> None:
        self.ends, self.stables = {A: 10}, {A: 4}
        self.told: dict[str, TransactionState] = {"app-0": TransactionState("Ongoing", 1_000)}
        self.refuses = 0
        self.asked: list[str] = []

    def known_ends(
        self, asked: Collection[TopicPartition], isolation: str
    ) -> Mapping[TopicPartition, int]:
        written = isolation == "read_uncommitted"
        self.asked.append("written" if written else "stable")
        return {tp: (self.ends if written else self.stables)[tp] for tp in asked}

    def transactions(self, ids: Collection[str]) -> Mapping[str, TransactionState]:
        self.asked.append("states")
        if self.refuses:
            raise RetriableError("away")
        return {name: self.told[name] for name in ids if name in self.told}


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(5_000)


@pytest.fixture
def known(brokers: Brokers, clock: ManualClock) -> BrokerFacts:
    return BrokerFacts(
        known_ends=brokers.known_ends,
        transactions=brokers.transactions,
        inputs=lambda: [A],
        ids=lambda: {"app-0": 0},
        clock=clock,
    )


def test_an_offset_that_stands_while_records_wait_behind_it_has_an_age() -> None:
    first = standing({}, {A: 10, B: 5}, {A: 4, B: 5}, 1_000)
    assert first == {A: Standing(4, 6, 1_000), B: Standing(5, 0, 1_000)}
    second = standing(first, {A: 30, B: 9}, {A: 4, B: 5}, 6_000)
    assert second[A] == Standing(4, 26, 1_000)
    assert second[B] == Standing(5, 4, 6_000), "nothing was held back before"
    assert standing(second, {A: 40}, {A: 31}, 9_000) == {A: Standing(31, 9, 9_000)}


def test_what_came_between_the_two_questions_is_not_held_back() -> None:
    assert standing({}, {A: 10}, {A: 12}, 0)[A].records == 0


def test_a_partition_whose_leader_is_silent_is_left_out() -> None:
    assert standing({}, {A: 10, B: 1}, {A: 10}, 0).keys() == {A}


def test_where_the_log_ends_is_asked_for_first(known: BrokerFacts, brokers: Brokers) -> None:
    known.ask()
    assert brokers.asked == ["written", "stable", "states"]


def test_an_open_transaction_has_the_time_since_its_begin(
    known: BrokerFacts, brokers: Brokers, clock: ManualClock
) -> None:
    (writer,) = known.writers()
    assert (writer.state, writer.open_s) == (None, None), "nobody has asked"
    known.ask()
    (writer,) = known.writers()
    assert (writer.transactional_id, writer.state, writer.open_s) == ("app-0", "Ongoing", 4.0)
    brokers.told = {"app-0": TransactionState("Empty")}
    known.ask()
    assert known.writers()[0].open_s == 0
    brokers.told = {"app-0": TransactionState("Ongoing", 9_000)}
    known.ask()
    assert known.writers()[0].open_s == 0, "a broker whose clock is ahead"


def test_a_transaction_is_open_for_as_long_as_it_was_when_it_was_asked_for(
    known: BrokerFacts, brokers: Brokers, clock: ManualClock
) -> None:
    """It has mostly ended since: a batch takes milliseconds, and the next question comes in 5 s."""
    brokers.told = {"app-0": TransactionState("Ongoing", 4_900)}
    known.ask()
    clock.advance(2_200)
    (writer,) = known.writers()
    assert (writer.open_s, known.age_s(clock.monotonic_ms())) == (0.1, 2.2)
    brokers.refuses = 1
    with pytest.raises(RetriableError):
        known.ask()
    assert known.writers()[0].open_s == 0.1, "nothing new was told"


def test_without_an_answer_the_last_one_holds_and_grows_old(
    known: BrokerFacts, brokers: Brokers, clock: ManualClock
) -> None:
    known.ask()
    clock.advance(8_000)
    known.ask()
    brokers.refuses = 1
    brokers.ends = {}
    clock.advance(30_000)
    with pytest.raises(KeyError):
        known.ask()
    now_ms = clock.monotonic_ms()
    assert known.age_s(now_ms) == 30.0
    assert known.held_back()["a", 0] == (6, 4, 8.0), "it may have moved since"


def test_brokers_that_do_not_tell_states_tell_offsets(known: BrokerFacts, brokers: Brokers) -> None:
    brokers.refuses = 1
    with pytest.raises(RetriableError):
        known.ask()
    assert known.held_back()["a", 0].records == 6
    assert known.age_s(5_000) == 0.0


class Turns(threading.Event):
    """A stop that comes after so many turns; between them time passes."""

    def __init__(self, clock: ManualClock, turns: int, each_ms: float) -> None:
        super().__init__()
        self.clock, self.left, self.each_ms = clock, turns, each_ms

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        self.clock.advance(self.each_ms)
        return self.left < 0


def test_nobody_is_asked_while_nobody_looks(
    known: BrokerFacts, brokers: Brokers, clock: ManualClock
) -> None:
    known.run(Turns(clock, 20, 5_000))
    assert brokers.asked == []
    known.watched()
    known.run(Turns(clock, 20, 5_000))
    assert brokers.asked.count("written") == WATCHED_MS / 5_000
