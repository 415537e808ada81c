"""A record that cannot be read is a dead letter with its place, and keeps no other from being
read."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.handlers import Handlers
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.record_columns import LogChunk, LogColumns
from everflow.kafka.writing.record_encoding import (
    Producer,
    RecordColumns,
    encode,
    encoded_headers,
    framed,
)
from everflow.records import TopicPartition, listed_headers
from everflow.worker.decode import Judge, LogDecoder
from unit.worker.test_decode import reading

TP = TopicPartition("in", 3)
GOOD = [[("h", b"v"), ("", None)], []]
NO_NAME, NEGATIVE = b"\x02\x01\x00", b"\x01"
"""One header whose name has the length -1; a count of -1."""


def chunk(headers: list[bytes | None]) -> LogChunk:
    """Records whose headers are these bytes, or good ones."""
    count = len(headers)
    good = encoded_headers([GOOD[row % 2] for row in range(count)])
    assert good is not None
    bytes_of = [
        own if bad is None else bad for own, bad in zip(good.to_pylist(), headers, strict=True)
    ]
    texts = pa.array([str(row).encode() for row in range(count)])
    times = np.arange(count, dtype=np.int64)
    columns = RecordColumns(texts, texts, times, pa.array(bytes_of, pa.binary()))
    (records,) = encode(columns, [count])
    data = framed(records, Producer(-1, -1, False), -1, "none", None)
    found = record_batches.columns(data, record_batches.batches(data))
    return LogChunk(found, count, count)


@pytest.mark.parametrize("bad", [NO_NAME, NEGATIVE], ids=["no name", "negative"])
def test_only_the_records_whose_headers_are_broken_are_left_out(bad: bytes) -> None:
    broken = set(random.Random(len(bad)).sample(range(299), 5)) | {299}  # behind it is no other
    found = chunk([bad if row in broken else None for row in range(300)]).columns(headers=True)
    assert set(found.unread) == broken
    assert found.keys.to_pylist() == found.values.to_pylist()
    assert found.offsets.tolist() == list(range(300))
    listed = listed_headers(found.headers, 300)
    assert [listed[row] for row in range(300) if row not in broken] == [
        GOOD[row % 2] for row in range(300) if row not in broken
    ]


def test_they_are_dead_letters_with_their_places() -> None:
    found = chunk([NO_NAME if row in (4, 9) else None for row in range(10)]).columns(headers=True)
    decoder = LogDecoder((reading(serdes.string()),), True, Handlers("dead"))
    hop = decoder.run({TP: found}, Judge())
    decoded = hop.batches[1]
    (dead,) = [batch for slot, batch in hop.batches.items() if slot != 1]
    assert decoded.value.to_pylist() == [str(row) for row in range(10) if row not in (4, 9)]
    assert (dead.partition.tolist(), dead.offset.tolist()) == ([3, 3], [4, 9])
    assert [one["value"] for one in dead.value.to_pylist()] == [b"4", b"9"]
    assert all("cannot be read" in one["error"] for one in dead.value.to_pylist())


def test_what_cannot_be_read_stays_with_its_record() -> None:
    one = chunk([None, NO_NAME, None]).columns(headers=True)
    both = LogColumns.concat([one, one])
    assert set(both.unread) == {1, 4}
    assert (set(both.of(slice(4, 6)).unread), set(one.before(1).unread)) == ({0}, set())
