"""When a source's silence moves its time, and to what (note 025)."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.runtime.topics.silence import AGAIN_MS, Moves, Silence
from everflow.topology.sources.idle_sources import IdleSource

TASK = TaskId(0, 3)
IN, OTHER = TopicPartition("in", 3), TopicPartition("other", 3)
SOURCE = IdleSource("s/idle", 5_000)


@dataclass
class Reader:
    id: TaskId = TASK
    inputs: tuple[TopicPartition, ...] = (IN, OTHER)
    stream_times: dict[str, int] = field(default_factory=lambda: {"s/idle": 70})


def look(silence: Silence, reader: Reader, now_ms: float, waiting: Collection[str] = ()) -> Moves:
    ranges = {tp: OffsetRange(7, 7 + (tp.topic in waiting)) for tp in reader.inputs}
    return silence.look([reader], ranges, now_ms)


def commit(silence: Silence, reader: Reader, moves: Moves, at_ms: float) -> None:
    reader.stream_times.update(moves[TASK])
    silence.moved([reader], moves, at_ms)


def test_time_goes_on_with_the_clock_once_the_silence_has_lasted() -> None:
    silence, reader = Silence({0: {"in": SOURCE}}, lambda topics: True), Reader()
    assert look(silence, reader, 1_000) == {}
    assert silence.left_ms == 5_000
    assert look(silence, reader, 5_999) == {}
    assert silence.left_ms == 1
    moves = look(silence, reader, 6_250)
    assert moves == {TASK: {"s/idle": 70 + 5_250}}
    commit(silence, reader, moves, 6_250)
    assert look(silence, reader, 11_249) == {}
    assert look(silence, reader, 11_250) == {TASK: {"s/idle": 70 + 10_250}}


def test_what_was_not_committed_is_asked_for_again() -> None:
    silence, reader = Silence({0: {"in": SOURCE}}, lambda topics: True), Reader()
    look(silence, reader, 0)
    moves = look(silence, reader, 5_000)
    silence.moved([reader], moves, 5_000)  # a record was left: the task's time is what it was
    assert look(silence, reader, 5_100) == {TASK: {"s/idle": 70 + 5_100}}


def test_a_record_ends_the_silence_of_its_source_alone() -> None:
    both = {"in": SOURCE, "other": IdleSource("o/idle", 3_000)}
    silence = Silence({0: both}, lambda topics: True)
    reader = Reader(stream_times={"s/idle": 70, "o/idle": 500})
    look(silence, reader, 0)
    assert look(silence, reader, 4_000, ["other"]) == {}
    assert look(silence, reader, 4_500) == {}
    assert look(silence, reader, 7_000) == {TASK: {"s/idle": 7_070}}
    assert look(silence, reader, 7_500) == {TASK: {"s/idle": 7_570, "o/idle": 3_500}}


def test_what_has_had_no_record_has_no_time_to_move() -> None:
    silence, reader = Silence({0: {"in": SOURCE}}, lambda topics: True), Reader(stream_times={})
    look(silence, reader, 0)
    assert look(silence, reader, 60_000) == {}
    assert silence.left_ms == math.inf


def test_another_owner_counts_anew() -> None:
    silence, reader = Silence({0: {"in": SOURCE}}, lambda topics: True), Reader()
    look(silence, reader, 0)
    silence.look([], {}, 3_000)
    assert look(silence, reader, 5_000) == {}
    assert look(silence, reader, 10_000) == {TASK: {"s/idle": 10_070 - 5_000}}


def test_a_repartition_topic_is_silent_once_what_feeds_it_is_consumed() -> None:
    asked: list[Collection[str]] = []
    consumed = False

    def ask(topics: Collection[str]) -> bool:
        asked.append(topics)
        return consumed

    fed = IdleSource("s/idle", 5_000, frozenset({"users"}))
    silence, reader = Silence({0: {"in": fed}}, ask), Reader()
    look(silence, reader, 0)
    assert asked == []
    assert look(silence, reader, 5_000) == look(silence, reader, 5_500) == {}
    assert asked == [frozenset({"users"})]
    assert silence.left_ms == AGAIN_MS
    consumed = True
    assert look(silence, reader, 6_000) == {TASK: {"s/idle": 6_070}}
    assert len(asked) == 2
