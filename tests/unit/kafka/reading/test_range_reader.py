"""Records that are read again because their batch ended before them, and that come meanwhile."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.fake_log_fetcher import FakeLog, FakeLogFetcher
from everflow.kafka.reading.range_reader import RangeReader, Read
from everflow.records import OffsetRange, TopicPartition

ONE, TWO = TopicPartition("log", 0), TopicPartition("log", 1)


def opened(*logs: FakeLog) -> tuple[RangeReader, Any]:
    fetcher: Any = FakeLogFetcher(dict(zip((ONE, TWO), logs, strict=False)))
    return RangeReader({}, True, fetcher=fetcher), fetcher


def log(end: int, *gone: int) -> FakeLog:
    """A record for each offset but those."""
    return FakeLog({at: b"%d" % at for at in range(end) if at not in gone}, end)


def offsets(read: Read, tp: TopicPartition = ONE) -> list[int]:
    return list(read.columns[tp].offsets.tolist())


def test_what_is_given_back_is_not_fetched_again() -> None:
    reader, fetcher = opened(log(10, 5), log(4))
    read = reader.read({ONE: OffsetRange(0, 8), TWO: OffsetRange(0, 4)}, 1)
    assert reader.give_back(read.columns, {ONE: 3, TWO: 4}) == 4
    fetcher.asked.clear()
    read = reader.read({ONE: OffsetRange(3, 10), TWO: OffsetRange(4, 4)}, 1)
    assert fetcher.asked == [{ONE: (8, 10)}]
    assert (offsets(read), offsets(read, TWO)) == ([3, 4, 6, 7, 8, 9], [])
    assert read.ends == {ONE: 10, TWO: 4}


def test_a_range_of_less_leaves_the_rest_of_what_was_given_back() -> None:
    reader, fetcher = opened(log(10))
    read = reader.read({ONE: OffsetRange(0, 8)}, 1)
    reader.give_back(read.columns, {ONE: 2})
    fetcher.asked.clear()
    read = reader.read({ONE: OffsetRange(2, 4)}, 1, latest_ends={ONE: 5})
    assert (offsets(read), read.ends, fetcher.asked) == ([2, 3, 4], {ONE: 5}, [])
    read = reader.read({ONE: OffsetRange(5, 9)}, 1)
    assert (offsets(read), fetcher.asked) == ([5, 6, 7, 8], [{ONE: (8, 9)}])


def test_a_range_that_begins_elsewhere_is_fetched() -> None:
    reader, fetcher = opened(log(10))
    read = reader.read({ONE: OffsetRange(0, 8)}, 1)
    reader.give_back(read.columns, {ONE: 3})
    read = reader.read({ONE: OffsetRange(1, 8)}, 1)
    assert offsets(read) == list(range(1, 8))
    assert fetcher.asked[-1] == {ONE: (1, 8)}


def test_further_records_are_those_that_are_here() -> None:
    reader, fetcher = opened(log(10))
    reader.read({ONE: OffsetRange(0, 4)}, 1)
    found = reader.further({ONE: 6}, 1 << 20)
    assert (offsets(found), found.ends) == ([4, 5], {ONE: 6})
    assert reader.further({ONE: 6}, 1 << 20).columns == {}
    assert fetcher.now == 0.0


@given(cuts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_over_all_batches_each_record_is_read_in_order(cuts: list[tuple[int, int]]) -> None:
    """``cuts``: how much of a batch is asked for, and committed of it."""
    reader, _ = opened(log(40, 3, 4, 17))
    start, seen = 0, list[int]()
    for wanted, taken in [*cuts, (40, 40)]:
        end = min(40, start + wanted)
        read = reader.read({ONE: OffsetRange(start, end)}, 1)
        after = min(read.ends[ONE], start + taken)
        seen += [at for at in offsets(read) if at < after]
        reader.give_back(read.columns, {ONE: after})
        start = after
    assert seen == [at for at in range(40) if at not in (3, 4, 17)]
