"""A leader that does not answer, or is not known, hides no other's offset."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import OffsetSpec

from everflow.errors import FatalError, RetriableError
from everflow.kafka.admin_answers import offset_answers, stale, unanswered
from everflow.records import TopicPartition

LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
ONE, TWO, THREE = (TopicPartition("log", number) for number in range(3))
NO_LEADER = KafkaException(KafkaError(KafkaError._NOENT))


class Told(NamedTuple):
    offset: int


class Client:
    """librdkafka as it is: one log without a leader, and nothing is told of any."""

    def __init__(self, offsets: dict[TopicPartition, int], leaderless: set[TopicPartition]) -> None:
        self.offsets, self.leaderless = offsets, leaderless
        self.asked: list[int] = []

    def __call__(
        self, specs: dict[ClientTopicPartition, OffsetSpec]
    ) -> dict[ClientTopicPartition, Future[Any]]:
        self.asked.append(len(specs))
        futures: dict[ClientTopicPartition, Future[Any]] = {}
        wanted = {named: TopicPartition(named.topic, named.partition) for named in specs}
        for named, tp in wanted.items():
            futures[named] = Future()
            if self.leaderless & set(wanted.values()):
                futures[named].set_exception(NO_LEADER)
            else:
                futures[named].set_result(Told(self.offsets[tp]))
        return futures


def answers(client: Client) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Exception]]:
    specs = dict.fromkeys((ONE, TWO, THREE), LATEST)
    return offset_answers(client, specs, lambda future: future.result(0))


def test_a_leader_that_is_silent_is_one_log_less() -> None:
    client = Client({ONE: 1, TWO: OFFSET_INVALID, THREE: 3}, set())
    told, refused = answers(client)
    assert told == {ONE: 1, THREE: 3}
    assert refused.keys() == {TWO}
    assert client.asked == [3]
    assert stale(refused.values()), "it may ask one that leads no more"
    error = unanswered(refused)
    assert isinstance(error, RetriableError)
    assert error.partitions == {TWO}
    assert str(error) == "asking for offsets of log-1: no answer in time"


def test_a_client_that_was_refused_ends_with_its_last_reference() -> None:
    client = Client({ONE: 1, THREE: 3}, {TWO})
    lives = weakref.ref(client)
    gc.disable()
    try:
        assert answers(client)[1].keys() == {TWO}
        del client
        assert lives() is None
    finally:
        gc.enable()


def test_where_one_log_has_no_leader_each_is_asked_about_by_itself() -> None:
    client = Client({ONE: 1, THREE: 3}, {TWO})
    told, refused = answers(client)
    assert told == {ONE: 1, THREE: 3}
    assert refused == {TWO: NO_LEADER}
    assert client.asked == [3, 1, 1, 1]
    assert stale(refused.values())


def test_what_will_not_pass_is_said_first() -> None:
    forbidden = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    error = unanswered({ONE: NO_LEADER, TWO: forbidden})
    assert isinstance(error, FatalError)
    assert "log-1" in str(error)


@pytest.mark.parametrize("topics", [1, 3])
def test_of_very_many_logs_each_topic_is_asked_about(topics: int) -> None:
    logs = [TopicPartition(f"t{number % topics}", number) for number in range(300)]
    client = Client(dict.fromkeys(logs, 5), {logs[0]})
    told, refused = offset_answers(
        client, dict.fromkeys(logs, LATEST), lambda future: future.result(0)
    )
    assert client.asked == [300, *[300 // topics] * topics]
    assert len(told) == 300 - 300 // topics
    assert len(refused) == 300 // topics
