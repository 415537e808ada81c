"""A real broker gives a reader no record of another topic than the one with the id."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from everflow.errors import OtherTopicError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import OffsetRange, TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
SOON_S = 20.0
AT = np.array([1_700_000_000_000], dtype=np.int64)


def id_of(admin: ClusterAdmin, topic: str) -> str:
    return admin.describe_topics([topic])[topic].topic_id


def reader_of(bootstrap: str) -> RangeReader:
    return RangeReader({"bootstrap.servers": bootstrap}, True)


def read(reader: RangeReader, topic: str, start: int, end: int, ids: dict[str, str]) -> int:
    tp = TopicPartition(topic, 0)
    found = reader.read({tp: OffsetRange(start, end)}, SOON_S, ids=ids)
    return len(found.columns[tp])


def write(bootstrap: str, topic: str, records: int) -> None:
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    try:
        writer.begin()
        writer.write(topic, [None] * records, [b"v"] * records, AT.repeat(records), 0)
        writer.flush(SOON_S)
    finally:
        writer.close()


@pytest.mark.parametrize("records", [0, 3])
def test_a_log_of_another_topic_of_that_name_is_not_read(
    bootstrap: str, topic: Callable[[int], str], admin: ClusterAdmin, records: int
) -> None:
    """By what the broker answers, not by what is in the log: an empty one too. A reader whose
    session is older than the new topic, and a new reader."""
    name = topic(2)
    known = {name: id_of(admin, name)}
    write(bootstrap, name, 3)
    with closing(reader_of(bootstrap)) as old, closing(reader_of(bootstrap)) as new:
        assert read(old, name, 0, 3, known) == 3
        admin.delete_topics([name])
        wait_until(lambda: not admin.describe_topics([name]), SOON_S, "the end of the topic")
        with pytest.raises(RetriableError) as gone:
            read(old, name, 3, 4, known)
        assert gone.value.partitions == {TopicPartition(name, 0)}
        admin.create_topics({name: (2, {})})
        write(bootstrap, name, records)
        for reader in (old, new):
            with pytest.raises(OtherTopicError) as other:
                read(reader, name, 0, 1, known)
            assert other.value.partitions == {TopicPartition(name, 0)}
    with closing(reader_of(bootstrap)) as now:
        assert read(now, name, 0, records, {name: id_of(admin, name)}) == records
