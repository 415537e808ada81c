"""Whom a watch of logs asks, what leaders say, and records that cannot be read."""

from __future__ import annotations

import base64
import random
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.errors import RetriableError
from everflow.handlers import Handlers
from everflow.kafka.errors import LinkLostError, RefusedError
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import FetchConnection, TailWatch
from everflow.kafka.reading.key_counts import KeyCounts, busiest, frequent, latest
from everflow.kafka.reading.record_columns import LogChunk, LogColumns
from everflow.kafka.reading.topic_ids import TopicIds
from everflow.kafka.writing.record_encoding import (
    Producer,
    RecordColumns,
    encode,
    encoded_headers,
    framed,
)
from everflow.records import OffsetRange, TopicPartition, listed_headers
from everflow.worker.decode import LogDecoder
from everflow.worker.handled_records import Judge
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
    assert {tp for one in watch._connection._sessions.values() for tp in one.known} == set(LOGS[2:])


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


WITH_IDS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
UUIDS = {"a": uuid.UUID(int=5), "b": uuid.UUID(int=1 << 90)}
IDS = {n: base64.urlsafe_b64encode(one.bytes).decode().rstrip("=") for n, one in UUIDS.items()}
NOT_LEADER, OUT_OF_RANGE, NO_TOPIC = 6, 1, 3
UNKNOWN_ID, OTHER_ID, UNSUPPORTED = 100, 103, 35


class IdsLink:
    """Brokers that answer at once; logs lie on two of them. ``codes``: of each question one, the
    last one for all that follow: an error code for the log "a-1", or what is raised."""

    def __init__(self, *codes: int | Exception) -> None:
        self.codes = list(codes)
        self.refreshed = 0
        self.sent: list[tuple[int, list[tuple[uuid.UUID, int]]]] = []
        self.time_s = 0.0

    def leader(self, tp: TopicPartition) -> int | None:
        return tp.partition

    def started(self, coroutine: Callable[[], Any]) -> Any:
        node, request = coroutine.args  # type: ignore[attr-defined]
        asked = [(t.topic_id, p.partition) for t in request.topics for p in t.partitions]
        self.sent.append((node, asked))
        said: int | Exception = OUT_OF_RANGE
        if node == WITH_IDS[1].partition:
            said = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if isinstance(said, Exception):
            return SimpleNamespace(is_done=True, exception=said)
        topics = [
            SimpleNamespace(
                topic_id=topic_id,
                partitions=[SimpleNamespace(partition_index=number, error_code=said)],
            )
            for topic_id, number in asked
        ]
        answer = SimpleNamespace(error_code=0, responses=topics)
        return SimpleNamespace(is_done=True, exception=None, value=answer)

    def run(self, coroutine: Callable[[], Any]) -> None:
        self.refreshed += 1
        self.time_s += 1.0

    async def send(self, *_: Any) -> Any: ...
    async def refresh(self, topic: str | None = None) -> None: ...
    async def pause(self, seconds: float) -> None: ...

    def push(self) -> None: ...

    def turn(self, wait_s: float) -> None: ...

    def now(self) -> float:
        return self.time_s

    def close(self) -> None: ...


def asked(link: IdsLink) -> TopicIds:
    given: Any = link
    ids = TopicIds(lambda: given)
    ids.ask(WITH_IDS, IDS)
    return ids


def test_each_leader_is_asked_once_about_its_logs_by_id() -> None:
    link = IdsLink(0)
    ids = asked(link)
    ids.require(10.0)
    ids.require(10.0)
    assert sorted(link.sent) == [(0, [(UUIDS["a"], 0), (UUIDS["b"], 0)]), (1, [(UUIDS["a"], 1)])]


@pytest.mark.parametrize("code", [UNKNOWN_ID, OTHER_ID, NO_TOPIC])
def test_a_log_of_another_topic_is_named(code: int) -> None:
    ids = asked(IdsLink(code))
    with pytest.raises(RetriableError, match=IDS["a"]) as refused:
        ids.require(10.0)
    assert refused.value.partitions == {WITH_IDS[1]}


@pytest.mark.parametrize("trouble", [NOT_LEADER, LinkLostError("lost", sent=True), RefusedError(7)])
def test_a_log_whose_leader_does_not_say_is_asked_about_again(trouble: int | Exception) -> None:
    link = IdsLink(trouble, trouble, OUT_OF_RANGE)
    ids = asked(link)
    ids.require(100.0)
    assert [node for node, _ in link.sent] == [0, 1, 1, 1]
    assert link.refreshed > 0, "it may have another leader"


def test_a_leader_that_does_not_say_in_time_lets_nothing_pass() -> None:
    ids = asked(IdsLink(NOT_LEADER))
    with pytest.raises(RetriableError) as late:
        ids.require(5.0)
    assert late.value.partitions == {WITH_IDS[1]}
    assert "6" in str(late.value)


def test_brokers_that_know_no_ids_in_a_fetch_are_asked_no_more() -> None:
    link = IdsLink(RefusedError(UNSUPPORTED))
    ids = asked(link)
    ids.require(10.0)
    link.sent.clear()
    ids.ask(WITH_IDS, IDS)
    ids.require(10.0)
    assert link.sent == []


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
    assert (set(both.of(slice(4, 6)).unread), set(one.before(1).unread)) == ({0}, set())


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
