"""Exact ranges by every reader: aborted records left out, markers read, nothing waits for ever."""

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ClientTopicPartition

from contracts.transactional_log import write_transactions
from everflow.errors import RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.record_columns import LogChunk
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import fence_all
from everflow.records import TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


def opened(bootstrap: str, fetch_bytes: int = 8 << 20) -> LogReader:
    return LogReader({"bootstrap.servers": bootstrap}, fetch_bytes=fetch_bytes)


@pytest.fixture(params=[8 << 20, 1], ids=["large fetches", "small fetches"])
def reader(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[LogReader]:
    with opened(bootstrap, request.param) as one:
        yield one


def read_by_librdkafka(
    bootstrap: str, tp: TopicPartition, start: int, end: int
) -> list[bytes | None]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "readers",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
    found: list[bytes | None] = []
    with closing(Consumer(settings)) as consumer:
        consumer.assign([ClientTopicPartition(*tp, start)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                return found
            if (message.offset() or 0) >= end:
                return found
            found.append(message.value())


@pytest.fixture
def log(bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str) -> TopicPartition:
    """Offsets: 0-2 committed, 3 marker, 4-5 aborted, 6 marker, 7-9 committed, 10 marker, 11-12
    aborted, 13 marker."""
    tp = TopicPartition(topic(1), 0)
    rounds: list[tuple[bool, list[bytes | None]]] = [
        (True, [b"a", b"b", None]),
        (False, [b"x", b"x"]),
        (True, [b"c", b"d", b"e"]),
        (False, [b"x", b"x"]),
    ]
    write_transactions(bootstrap, admin, name, [tp], rounds)
    return tp


def values(chunks: list[LogChunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


def test_exact_ranges(reader: LogReader, log: TopicPartition) -> None:
    everything = {0: b"a", 1: b"b", 2: None, 7: b"c", 8: b"d", 9: b"e"}
    for start, end in [
        (0, 14),
        (1, 9),
        (0, 5),
        (3, 7),
        (11, 14),
        (13, 14),
        (9, 11),
        (5, 5),
        (0, 3),
    ]:
        chunks = list(reader.read(log, start, end, stall_timeout_s=10))
        expected = [value for offset, value in everything.items() if start <= offset < end]
        assert values(chunks) == expected, (start, end)
        assert [one.next_position for one in chunks][-1:] == [end][: start < end], (start, end)


def write(bootstrap: str, topic: str, keys: list[bytes], **config: str) -> None:
    writer = RecordWriter(
        {
            "bootstrap.servers": bootstrap,
            **{key.replace("_", "."): value for key, value in config.items()},
        },
        None,
    )
    writer.begin()
    writer.write(topic, keys, [b"v" * 92] * len(keys), np.arange(len(keys), dtype=np.int64), 0)
    writer.flush(30)
    writer.close()


def test_chunks_are_bound_and_lose_nothing(reader: LogReader, bootstrap: str, topic: Topic) -> None:
    tp = TopicPartition(topic(1), 0)
    keys = [b"%08d" % i for i in range(20_000)]
    write(bootstrap, tp.topic, keys)
    chunks = list(reader.read(tp, 0, len(keys), chunk_bytes=200_000))
    assert [key for chunk in chunks for key in chunk.keys] == keys
    at = np.concatenate([chunk.timestamps for chunk in chunks])
    assert np.array_equal(at, np.arange(len(keys)))
    assert len(chunks) > 5
    assert max(100 * len(chunk) for chunk in chunks) < 400_000
    assert [one.next_position for one in chunks] == np.cumsum([len(one) for one in chunks]).tolist()


def test_a_range_behind_an_open_transaction_gives_up_with_a_reason(
    reader: LogReader, bootstrap: str, topic: Topic, name: str
) -> None:
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    writer.begin()
    writer.write(tp.topic, [b"k"], [b"v"], np.zeros(1, np.int64), 0)
    writer.flush(10)
    with pytest.raises(RetriableError, match=r"A transaction.*0"):
        list(reader.read(tp, 0, 1, stall_timeout_s=0.5))
    fence_all({"bootstrap.servers": bootstrap}, [name], 10)


def test_ranges_begin_and_end_in_batches(reader: LogReader, bootstrap: str, topic: Topic) -> None:
    tp = TopicPartition(topic(1, message_timestamp_type="LogAppendTime"), 0)
    keys = [b"k%d" % i for i in range(100)]
    write(bootstrap, tp.topic, keys)
    chunks = list(reader.read(tp, 30, 60))
    assert [key for chunk in chunks for key in chunk.keys] == keys[30:60]
    assert chunks[-1].next_position == 60
    assert min(chunks[0].timestamps) > 10**12, "the broker's time counts where the topic says so"


def test_an_unknown_topic_gives_up_with_a_reason(reader: LogReader, name: str) -> None:
    with pytest.raises(RetriableError, match=name) as error:
        list(reader.read(TopicPartition(f"{name}-absent", 0), 0, 1, stall_timeout_s=0.5))
    assert "ransaction" not in str(error.value)


@pytest.mark.slow
def test_compacted(reader: LogReader, bootstrap: str, admin: ClusterAdmin, topic: Topic) -> None:
    soon = {"segment_ms": 100, "min_cleanable_dirty_ratio": 0.001, "max_compaction_lag_ms": 100}
    tp = TopicPartition(
        topic(1, cleanup_policy="compact", message_timestamp_type="LogAppendTime", **soon), 0
    )
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)

    def write_some(count: int) -> None:
        writer.begin()
        keys, written = [b"k%d" % (i % 3) for i in range(count)], [b"v%d" % i for i in range(count)]
        writer.write(tp.topic, keys, written, np.ones(count, np.int64), 0)
        writer.flush(10)

    write_some(100)

    def compacted() -> bool:
        write_some(1)  # rolls the segment, which is not compacted while it is written to
        end = admin.end_offsets([tp], "read_committed")[tp]
        return len(read_by_librdkafka(bootstrap, tp, 0, end)) < end - 50

    wait_until(compacted, 90, "compaction")
    writer.close()
    end = admin.end_offsets([tp], "read_committed")[tp]
    for start in range(0, end, 1 + end // 10):  # many of these offsets are gone

        def same(start: int = start) -> bool:
            before = read_by_librdkafka(bootstrap, tp, start, end)
            chunks = list(reader.read(tp, start, end))
            if before != read_by_librdkafka(bootstrap, tp, start, end):
                return False  # compacted again meanwhile
            assert chunks[-1].next_position == end
            assert values(chunks) == before, (start, end)
            return True

        wait_until(same, 30, "two equal readings")
