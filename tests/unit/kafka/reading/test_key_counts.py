"""`everflow topic keys`: what is counted, and in which order it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.kafka.reading.key_counts import KeyCounts, busiest, frequent, latest
from everflow.kafka.reading.record_columns import LogColumns
from everflow.records import OffsetRange, TopicPartition

BYTES = st.none() | st.sampled_from([b"", b"a", b"bb", b"ccc"])
RECORDS = st.lists(st.tuples(BYTES, BYTES, st.integers(0, 10_000)), min_size=1, max_size=30)


def columns(records: Sequence[tuple[bytes | None, bytes | None, int]]) -> LogColumns:
    keys, values, times = zip(*records, strict=True) if records else ((), (), ())
    return LogColumns(
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        offsets=np.arange(len(records), dtype=np.int64),
        timestamps=np.array(times, np.int64),
    )


def counts(partition: int, records: Sequence[tuple[bytes | None, bytes | None, int]]) -> KeyCounts:
    found = KeyCounts(partition)
    found.add(columns(records))
    return found


@given(records=RECORDS, cut=st.integers(0, 30))
def test_it_counts_records_and_bytes_of_each_key_however_they_are_read(
    records: list[tuple[bytes | None, bytes | None, int]], cut: int
) -> None:
    found = KeyCounts(3)
    for part in (records[:cut], records[cut:]):
        found.add(columns(part))
    sizes: Counter[bytes | None] = Counter()
    for key, value, _ in records:
        sizes[key] += len(key or b"") + len(value or b"")
    rows = {row.key: (row.records, row.bytes, row.partition) for row in found.as_rows()}
    assert rows == {
        key: (count, sizes[key], 3) for key, count in Counter(key for key, *_ in records).items()
    }
    assert sum(row.share for row in found.as_rows()) == pytest.approx(1.0)
    times = [time for *_, time in records]
    span_s = max(max(times) - min(times), 1) / 1000
    assert found.as_row() == (3, len(records), len(rows), pytest.approx(len(records) / span_s))


def test_a_key_of_a_fast_partition_comes_before_a_larger_one_of_a_slow_one() -> None:
    slow = counts(0, [(b"large", None, time) for time in range(0, 100_000, 1_000)])
    fast = counts(1, [(b"hot", None, time) for time in range(0, 100, 2)] + [(b"x", None, 99)])
    found = [slow, fast, KeyCounts(2)]
    assert [row.key for row in frequent(found, 2)] == [b"hot", b"x"]
    assert [row.key for row in frequent(found, 9)] == [b"hot", b"x", b"large"]
    assert [row.partition for row in busiest(found, 9)] == [1, 0]
    assert [row.partition for row in busiest(found, 1)] == [1]


def test_the_latest_offsets_of_each_partition_are_read() -> None:
    one, other, empty = (TopicPartition("t", number) for number in range(3))
    starts, ends = {one: 5, other: 90, empty: 7}, {one: 300, other: 100, empty: 7}
    assert latest(starts, ends, 50) == {
        one: OffsetRange(250, 300),
        other: OffsetRange(90, 100),
        empty: OffsetRange(7, 7),
    }
