"""A bit of a log on a broker's disk that is not as it was written: no reader hands out other bytes,
and the error says where."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from everflow.errors import LogTruncatedError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.copy_follower import CopyFollower
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import CorruptBatchError
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import OffsetRange, TopicPartition
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker

TP = TopicPartition("damaged", 0)
WHOLE = TopicPartition("damaged", 1)
RECORDS = 30_000
"""In three batches of 10,000; a bit of the second one is flipped."""


def write(settings: dict[str, str], tp: TopicPartition, base: int, count: int) -> None:
    writer = RecordWriter(settings, None)
    writer.begin()
    keys = [b"%08d" % (base + i) for i in range(count)]
    values: list[bytes | None] = [b"v%08d" % (base + i) for i in range(count)]
    writer.write(tp.topic, keys, values, np.arange(count, dtype=np.int64), tp.partition)
    writer.flush(30)
    writer.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker() as one:
        settings = {"bootstrap.servers": one.bootstrap_servers}
        admin = ClusterAdmin(settings)
        admin.wait_until_reachable(30, print)
        admin.create_topics({TP.topic: (2, {})})
        for tp in (TP, WHOLE):
            for base in range(0, RECORDS, 10_000):
                write(settings, tp, base, 10_000)
        segment = one.data_folder / "log" / f"{TP}" / f"{0:020d}.log"
        assert segment.exists(), list(one.data_folder.iterdir())
        at = segment.read_bytes().index(b"v%08d" % 15_000)
        with segment.open("r+b") as log:
            log.seek(at)
            log.write(b"w")
        yield one.bootstrap_servers


PLACE = r"damaged-0, offset \d+: .*checksum"


def test_a_restore_names_the_place(broker: str) -> None:
    with LogReader({"bootstrap.servers": broker}) as reader:
        assert sum(len(chunk) for chunk in reader.read(WHOLE, 0, RECORDS)) == RECORDS
        found: list[bytes | None] = []
        chunks = reader.read(TP, 0, RECORDS, stall_timeout_s=10)
        with pytest.raises(CorruptBatchError, match=PLACE):
            found.extend(value for chunk in chunks for value in chunk.values)
        assert found == [b"v%08d" % i for i in range(len(found))]
        assert len(found) <= 15_000
        # Behind the damage the log can be read.
        rest = list(reader.read(TP, 20_000, RECORDS))
        assert sum(len(chunk) for chunk in rest) == 10_000


def test_a_batch_names_the_place(broker: str) -> None:
    reader = RangeReader({"bootstrap.servers": broker}, True)
    with pytest.raises(CorruptBatchError, match=PLACE):
        reader.read({TP: OffsetRange(0, RECORDS), WHOLE: OffsetRange(0, RECORDS)}, 10.0)
    reader.close()


@pytest.mark.parametrize("bulk_lag", [0, 1 << 40], ids=["in bulk", "near its end"])
def test_a_copy_stops_before_the_place_and_others_go_on(broker: str, bulk_lag: int) -> None:
    follower = CopyFollower({"bootstrap.servers": broker}, bulk_lag=bulk_lag)
    follower.follow({TP: 0, WHOLE: 0})
    told: list[str] = []

    def whole_is_there() -> bool:
        try:
            follower.poll(100_000, 1 << 20, {TP: RECORDS, WHOLE: RECORDS}, 0.5)
        except RetriableError as reason:
            told.append(str(reason))
        return follower.positions[WHOLE] == RECORDS and len(told) >= 3

    wait_until(whole_is_there, 30, "the whole log is not followed, or the damage not told")
    assert follower.positions[TP] <= 15_000
    assert all("damaged-0, offset" in text for text in told)
    follower.close()


def test_checksums_may_be_left_out(broker: str) -> None:
    with LogReader({"bootstrap.servers": broker, "check.crcs": False}) as reader:
        values = [value for chunk in reader.read(TP, 0, RECORDS) for value in chunk.values]
    assert values[15_000] == b"w%08d" % 15_000


def test_a_log_with_other_records_than_were_read_is_told_by_the_broker() -> None:
    """Two records of a first leader and two of a second one; a reader that has had three of the
    first has read what is no longer there."""
    with EmbeddedBroker() as one:
        settings = {"bootstrap.servers": one.bootstrap_servers}
        admin = ClusterAdmin(settings)
        admin.wait_until_reachable(30, print)
        admin.create_topics({TP.topic: (1, {})})
        write(settings, TP, 0, 2)
        first = epoch_behind(settings, 2)
        one.restart()
        admin.wait_until_reachable(30, print)
        write(settings, TP, 2, 2)
        assert epoch_behind(settings, 4) > first, "the broker that came back is another leader"
        tap = FetchTap.over(settings)
        tap.go_to({TP: 3})
        tap._streams[TP]._epoch = first
        with pytest.raises(LogTruncatedError, match=r"damaged-0.*offset 2"):
            tap.take({TP: 4}, 5.0)
        tap.close()


def epoch_behind(settings: dict[str, str], end: int) -> int:
    """The epoch of the leader that wrote the record before ``end``."""
    tap = FetchTap.over(settings)
    tap.go_to({TP: 0})
    while tap.positions[TP] < end:
        assert tap.take({TP: end}, 10.0)
    epoch = tap._streams[TP]._epoch
    tap.close()
    return epoch
