"""A real broker says whether a log is of the topic with an id, whatever lies in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.topic_ids import TopicIds
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
SOON_S = 20.0
AT = np.array([1_700_000_000_000], dtype=np.int64)


@pytest.fixture
def ids(bootstrap: str) -> Iterator[TopicIds]:
    asked = TopicIds.over({"bootstrap.servers": bootstrap})
    yield asked
    asked.close()


def id_of(admin: ClusterAdmin, topic: str) -> str:
    return admin.describe_topics([topic])[topic].topic_id


def write(bootstrap: str, topic: str, records: int) -> None:
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    try:
        writer.begin()
        writer.write(topic, [None] * records, [b"v"] * records, AT.repeat(records), 0)
        writer.flush(SOON_S)
    finally:
        writer.close()


@pytest.mark.parametrize("records", [0, 3])
def test_a_log_of_the_topic_is_told_apart_from_one_of_another_topic_of_that_name(
    bootstrap: str, topic: Callable[[int], str], ids: TopicIds, admin: ClusterAdmin, records: int
) -> None:
    """By what the broker answers, not by what is in the log: an empty one too."""
    name = topic(2)
    logs = [TopicPartition(name, 0), TopicPartition(name, 1)]
    known = {name: id_of(admin, name)}
    write(bootstrap, name, 3)
    for _ in range(2):
        ids.ask(logs, known)
        ids.require(SOON_S)
    admin.delete_topics([name])
    wait_until(lambda: not admin.describe_topics([name]), SOON_S, "the end of the topic")
    ids.ask(logs, known)
    with pytest.raises(RetriableError) as gone:
        ids.require(1.0)
    assert gone.value.partitions <= set(logs)
    admin.create_topics({name: (2, {})})
    if records:
        write(bootstrap, name, records)
    ids.ask(logs, known)
    with pytest.raises(RetriableError, match=known[name]) as other:
        ids.require(SOON_S)
    assert other.value.partitions == set(logs)
    ids.ask(logs, {name: id_of(admin, name)})
    ids.require(SOON_S)


def test_a_topic_without_a_known_id_is_not_asked_about(ids: TopicIds) -> None:
    ids.ask([TopicPartition("nowhere", 0)], {})
    ids.require(0.0)
