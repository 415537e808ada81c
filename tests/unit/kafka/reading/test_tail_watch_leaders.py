"""Whom a watch of logs asks, what leaders say, and records that cannot be read."""

import random
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.errors import RetriableError
from everflow.handlers import Handlers
from everflow.kafka.errors import LinkLostError
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import FetchConnection, TailWatch
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

LOGS = [TopicPartition("in", partition) for partition in range(6)]


class Link:
    """Brokers that answer at once; logs lie on them in turn."""

    def __init__(self) -> None:
        self.brokers, self.looked, self.refreshed = 2, 0, 0
        self.sent: list[tuple[int, list[int]]] = []
        self.failure: Exception | None = None

    def leader(self, tp: TopicPartition) -> int | None:
        self.looked += 1
        return tp.partition % self.brokers

    def leader_epoch(self, tp: TopicPartition) -> int:
        return 1

    def version(self, request: type) -> int:
        return 12

    def started(self, coroutine: Callable[[], Any]) -> Any:
        if len(coroutine.args) == 1:  # type: ignore[attr-defined]
            self.refreshed += 1
            return SimpleNamespace(is_done=True, exception=None)
        node, request = coroutine.args  # type: ignore[attr-defined]
        self.sent.append((node, [one.partition for t in request.topics for one in t.partitions]))
        answer = SimpleNamespace(error_code=0, session_id=4, responses=[])
        return SimpleNamespace(is_done=True, exception=self.failure, value=answer)

    def turn(self, wait_s: float) -> None: ...

    def now(self) -> float:
        return 0.0

    def close(self) -> None: ...


def watch_of(link: Any) -> TailWatch:
    """Its clock goes on by a second with each look."""
    seconds = count()
    return TailWatch(FetchConnection(link), lambda: float(next(seconds)))


def test_leaders_are_looked_up_once_for_the_same_logs() -> None:
    link: Any = Link()
    watch, ends = watch_of(link), dict.fromkeys(LOGS, 0)
    for _ in range(3):
        watch.wait(ends, 1.0)
    assert link.looked == len(LOGS)
    link.sent.clear()
    ends = {**ends, LOGS[3]: 5}
    watch.wait(ends, 1.0)
    assert link.sent == [(0, []), (1, [3])], "of a session only what has changed is named"
    assert link.looked == len(LOGS)


def test_other_logs_are_looked_up_and_those_that_are_gone_are_forgotten() -> None:
    link: Any = Link()
    watch = watch_of(link)
    watch.wait(dict.fromkeys(LOGS[:4], 0), 1.0)
    link.looked = 0
    link.sent.clear()
    watch.wait(dict.fromkeys(LOGS[2:], 0), 1.0)
    assert link.looked == 2, "the others' leaders are known"
    assert link.sent == [(0, [4]), (1, [5])]
    assert {tp for one in watch.connection._sessions.values() for tp in one.known} == set(LOGS[2:])


def test_behind_a_failure_they_are_looked_up_anew() -> None:
    """A log has moved: its old leader says so."""
    link: Any = Link()
    watch, ends = watch_of(link), dict.fromkeys(LOGS, 0)
    watch.wait(ends, 1.0)
    link.failure = LinkLostError("gone", sent=True)
    with pytest.raises(RetriableError):
        watch.wait(ends, 1.0)
    link.failure, link.brokers = None, 3
    link.sent.clear()
    watch.wait(ends, 1.0)
    assert link.refreshed == 1
    assert link.sent == [(0, [0, 3]), (1, [1, 4]), (2, [2, 5])], "and named again"


TP = TopicPartition("in", 3)
GOOD = [[("h", b"v"), ("", None)], []]
NO_NAME, NEGATIVE = b"\x02\x01\x00", b"\x01"
"""One header whose name has the length -1; a count of -1."""


def chunk(headers: list[bytes | None]) -> LogChunk:
    """Records whose headers are these bytes, or good ones."""
    count = len(headers)
    good = encoded_headers([GOOD[row % 2] for row in range(count)])
    assert good is not None
    bytes_of = [a if b is None else b for a, b in zip(good.to_pylist(), headers, strict=True)]
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
    assert (set(one.before(2).unread), set(one.before(1).unread)) == ({1}, set())
