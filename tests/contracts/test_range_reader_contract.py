"""Exact ranges batch after batch, every way to read: markers, gaps, reading ahead, failures."""

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ClientTopicPartition

from contracts.transactional_log import write_transactions
from everflow.errors import FatalError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.reading.fetch_connection import FetchConnection, FetchPlace
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.range_reader import RangeReader, Read
from everflow.kafka.reading.record_columns import LogChunk
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import fence_all
from everflow.records import OffsetRange, TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]
Opened = Callable[..., RangeReader]


def fetches(
    client: dict[str, str], committed: bool, headers: bool, fetch_bytes: int
) -> RangeReader:
    fetcher = LogFetcher.over(client, read_committed=committed, ahead=True, fetch_bytes=fetch_bytes)
    return RangeReader(client, committed, headers, fetcher=fetcher)


@pytest.fixture(params=["fetches", "small fetches"])
def opened(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Opened]:
    """Opens readers."""
    client = {"bootstrap.servers": bootstrap}
    made: list[RangeReader] = []

    def reader(committed: bool = True, headers: bool = False) -> RangeReader:
        fetch_bytes = 8 << 20 if request.param == "fetches" else 1
        made.append(fetches(client, committed, headers, fetch_bytes))
        return made[-1]

    yield reader
    for one in made:
        one.close()


@pytest.fixture
def log(bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str) -> list[TopicPartition]:
    """Two partitions, each: 0-2 committed, 3 marker, 4-5 aborted, 6 marker, 7-9 committed, 10
    marker."""
    both = [TopicPartition(topic(2), 0)]
    both.append(TopicPartition(both[0].topic, 1))
    rounds: list[tuple[bool, list[bytes | None]]] = [
        (True, [b"a", b"b", b"c"]),
        (False, [b"x", b"x"]),
        (True, [b"d", b"e", None]),
    ]
    write_transactions(bootstrap, admin, name, both, rounds)
    return both


def values_of(read: Read, tp: TopicPartition) -> list[bytes | None]:
    return list(read.columns[tp].values.to_pylist())


def test_ranges_follow_over_markers_and_aborted(opened: Opened, log: list[TopicPartition]) -> None:
    one, two = log
    reader = opened()
    first = reader.read({one: OffsetRange(0, 2), two: OffsetRange(0, 0)}, 10)
    assert (values_of(first, one), values_of(first, two)) == ([b"a", b"b"], [])
    second = reader.read({one: OffsetRange(2, 8), two: OffsetRange(0, 11)}, 10)
    assert (values_of(second, one), values_of(second, two)) == (
        [b"c", b"d"],
        [b"a", b"b", b"c", b"d", b"e", None],
    )
    assert second.columns[two].offsets.tolist() == [0, 1, 2, 7, 8, 9]
    assert second.columns[two].timestamps.tolist() == [1000, 1001, 1002] * 2
    third = reader.read({one: OffsetRange(8, 11), two: OffsetRange(11, 11)}, 10)
    assert (values_of(third, one), values_of(third, two)) == ([b"e", None], [])


def test_at_least_once_sees_aborted_records_too(opened: Opened, log: list[TopicPartition]) -> None:
    read = opened(committed=False).read({log[0]: OffsetRange(0, 11)}, 10)
    assert values_of(read, log[0]) == [b"a", b"b", b"c", b"x", b"x", b"d", b"e", None]


def test_a_range_that_failed_is_read_again(opened: Opened, log: list[TopicPartition]) -> None:
    wanted = {log[0]: OffsetRange(1, 8)}
    reader = opened()
    assert values_of(reader.read(wanted, 10), log[0]) == [b"b", b"c", b"d"]
    assert values_of(reader.read(wanted, 10), log[0]) == [b"b", b"c", b"d"]


def test_partitions_come_and_go(opened: Opened, log: list[TopicPartition]) -> None:
    one, two = log
    reader = opened()
    assert values_of(reader.read({one: OffsetRange(0, 2)}, 10), one) == [b"a", b"b"]
    both = reader.read({one: OffsetRange(2, 7), two: OffsetRange(1, 8)}, 10)
    assert (values_of(both, one), values_of(both, two)) == ([b"c"], [b"b", b"c", b"d"])
    assert values_of(reader.read({two: OffsetRange(8, 11)}, 10), two) == [b"e", None]
    assert values_of(reader.read({one: OffsetRange(7, 11)}, 10), one) == [b"d", b"e", None]


def test_a_warm_up_leaves_no_trace(bootstrap: str, log: list[TopicPartition], name: str) -> None:
    one, two = log
    reader = RangeReader({"bootstrap.servers": bootstrap}, True)
    topics = {one.topic, f"{name}-missing"}
    reader.warm_up(topics, 10)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    writer.write(one.topic, [b"k"] * 3, [b"f", b"g", b"h"], np.full(3, 1000), one.partition)
    writer.flush(10)
    writer.close()
    assert values_of(reader.read({one: OffsetRange(0, 8)}, 10), one) == [b"a", b"b", b"c", b"d"]
    reader.warm_up(topics, 10)
    reader.warm_up(topics, 10)
    both = reader.read({one: OffsetRange(8, 14), two: OffsetRange(0, 3)}, 10)
    assert (values_of(both, one), values_of(both, two)) == (
        [b"e", None, b"f", b"g", b"h"],
        [b"a", b"b", b"c"],
    )
    reader.close()


def test_a_warm_up_says_that_no_broker_answers() -> None:
    reader = RangeReader({"bootstrap.servers": "127.0.0.1:1"}, True)
    with pytest.raises(RetriableError):
        reader.warm_up({"in"}, 0.5)
    reader.close()


def test_nothing_is_asked_of_no_partition(opened: Opened) -> None:
    assert opened().read({}, 10) == Read({}, {})


def test_an_end_that_is_not_there_fails_in_time(opened: Opened, log: list[TopicPartition]) -> None:
    with pytest.raises(RetriableError, match=f"{log[0]}"):
        opened().read({log[0]: OffsetRange(7, 50)}, 1.0)


def test_an_unknown_topic_gives_up_with_a_reason(opened: Opened, name: str) -> None:
    with pytest.raises((RetriableError, FatalError), match=name):
        opened().read({TopicPartition(f"{name}-absent", 0): OffsetRange(0, 9)}, 1.0)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_headers_and_nulls_in_many_batches(
    opened: Opened, bootstrap: str, topic: Topic, compression: str
) -> None:
    tp, count = TopicPartition(topic(1), 0), 3_000
    keys = [None if row % 7 == 0 else b"k%d" % row for row in range(count)]
    values = [None if row % 5 == 0 else b"v" * (row % 200) for row in range(count)]
    heads = [[("one", b"%d" % row), ("none", None)] if row % 3 == 0 else [] for row in range(count)]
    writer = RecordWriter(
        {"bootstrap.servers": bootstrap, "compression.type": compression, "batch.size": 4_000}, None
    )
    writer.begin()
    writer.write(tp.topic, keys, values, np.arange(count, dtype=np.int64) + 1, 0, headers=heads)
    writer.flush(30)
    writer.close()
    reader = opened(headers=True)
    found = [
        reader.read({tp: OffsetRange(at, min(at + 700, count))}, 10).columns[tp]
        for at in range(0, count, 700)
    ]
    assert [key for part in found for key in part.keys.to_pylist()] == keys
    assert [value for part in found for value in part.values.to_pylist()] == values
    expected = [[{"key": name, "value": value} for name, value in row] for row in heads]
    columns = [part.headers for part in found if part.headers is not None]
    assert [row for column in columns for row in column.to_pylist()] == expected
    assert np.concatenate([part.offsets for part in found]).tolist() == list(range(count))
    assert np.concatenate([part.timestamps for part in found]).tolist() == list(range(1, count + 1))


def test_a_read_ends_early_with_enough_bytes(opened: Opened, bootstrap: str, topic: Topic) -> None:
    one = TopicPartition(topic(2), 0)
    two = TopicPartition(one.topic, 1)
    sizes = [10] * 200 + [50_000] * 40 + [10] * 50
    writer = RecordWriter({"bootstrap.servers": bootstrap, "compression.type": "zstd"}, None)
    writer.begin()
    for tp in (one, two):
        keys = [b"%d" % row for row in range(len(sizes))]
        writer.write(
            tp.topic,
            keys,
            [b"v" * size for size in sizes],
            np.ones(len(sizes), np.int64),
            tp.partition,
        )
    writer.flush(30)
    writer.close()
    reader, at, seen, reads = opened(), {one: 0, two: 0}, {one: 0, two: 0}, 0
    while any(position < len(sizes) for position in at.values()):
        read = reader.read(
            {tp: OffsetRange(position, len(sizes)) for tp, position in at.items()}, 10, 200_000
        )
        reads += 1
        taken = sum(one.values.nbytes + one.keys.nbytes for one in read.columns.values())
        assert taken < 200_000 + 2 * 51_000 + 10_000, at
        for tp, position in at.items():
            assert read.columns[tp].offsets.tolist() == list(range(position, read.ends[tp])), tp
            assert read.ends[tp] > position or position == len(sizes), "each range moves on"
            seen[tp] += len(read.columns[tp])
        at = dict(read.ends)
    assert seen == {one: len(sizes), two: len(sizes)}
    assert reads > 15


def test_as_many_logs_as_there_are_are_fetched_at_once(bootstrap: str, topic: Topic) -> None:
    made = topic(12)
    logs = [TopicPartition(made, partition) for partition in range(12)]
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    writer.begin()
    for tp in logs[6:]:
        writer.write(made, [b"k"], [b"v"], np.ones(1, np.int64), tp.partition)
    writer.flush(10)
    writer.close()
    settings = connection_settings({"bootstrap.servers": bootstrap})
    with closing(FetchConnection.opened(settings, "reader", 30, 10_000)) as connection:
        found: dict[TopicPartition, bytes] = {}
        while not found:
            connection.fetch(dict.fromkeys(logs, FetchPlace(0)))
            found = {tp: one.records for tp, one in connection.answers(30).items()}
        assert {tp for tp, records in found.items() if records} == set(logs[6:])


# Exact ranges by every reader.


def opened_exactly(bootstrap: str, fetch_bytes: int = 8 << 20) -> LogReader:
    return LogReader({"bootstrap.servers": bootstrap}, fetch_bytes=fetch_bytes)


@pytest.fixture(params=[8 << 20, 1], ids=["large fetches", "small fetches"])
def reader(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[LogReader]:
    with opened_exactly(bootstrap, request.param) as one:
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
def written_log(bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str) -> TopicPartition:
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


def test_exact_ranges(reader: LogReader, written_log: TopicPartition) -> None:
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
        chunks = list(reader.read(written_log, start, end, stall_timeout_s=10))
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


def test_an_unknown_topic_of_an_exact_range_gives_up_with_a_reason(
    reader: LogReader, name: str
) -> None:
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
