"""When a source's sources moves its time, and to what (note 025)."""

import math
from collections.abc import Collection

from everflow.instance.tasks.task import ActiveTask
from everflow.instance.thread.planning import AGAIN_MS, IdleSources, IdleTimes
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.topology.idle_sources import IdleSource

TASK = TaskId(0, 3)
IN, OTHER = TopicPartition("in", 3), TopicPartition("other", 3)
SOURCE = IdleSource("s/idle", 5_000)


def reading(times: dict[str, int] | None = None) -> ActiveTask:
    return ActiveTask(
        id=TASK, inputs=(IN, OTHER), stream_times={"s/idle": 70} if times is None else times
    )


def look(
    sources: IdleSources, reader: ActiveTask, now_ms: float, waiting: Collection[str] = ()
) -> IdleTimes:
    ranges = {tp: OffsetRange(7, 7 + (tp.topic in waiting)) for tp in reader.inputs}
    return sources.due([reader], ranges, now_ms)


def commit(sources: IdleSources, reader: ActiveTask, moves: IdleTimes, at_ms: float) -> None:
    reader.stream_times.update(moves[TASK])
    sources.advanced([reader], moves, at_ms)


def test_time_goes_on_with_the_clock_once_the_silence_has_lasted() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading()
    assert look(sources, reader, 1_000) == {}
    assert sources.left_ms == 5_000
    assert look(sources, reader, 5_999) == {}
    assert sources.left_ms == 1
    moves = look(sources, reader, 6_250)
    assert moves == {TASK: {"s/idle": 70 + 5_250}}
    commit(sources, reader, moves, 6_250)
    assert look(sources, reader, 11_249) == {}
    assert look(sources, reader, 11_250) == {TASK: {"s/idle": 70 + 10_250}}


def test_what_was_not_committed_is_asked_for_again() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading()
    look(sources, reader, 0)
    moves = look(sources, reader, 5_000)
    sources.advanced([reader], moves, 5_000)  # a record was left: the task's time is what it was
    assert look(sources, reader, 5_100) == {TASK: {"s/idle": 70 + 5_100}}


def test_a_record_ends_the_silence_of_its_source_alone() -> None:
    both = {"in": SOURCE, "other": IdleSource("o/idle", 3_000)}
    sources = IdleSources({0: both}, lambda topics: True)
    reader = reading({"s/idle": 70, "o/idle": 500})
    look(sources, reader, 0)
    assert look(sources, reader, 4_000, ["other"]) == {}
    assert look(sources, reader, 4_500) == {}
    assert look(sources, reader, 7_000) == {TASK: {"s/idle": 7_070}}
    assert look(sources, reader, 7_500) == {TASK: {"s/idle": 7_570, "o/idle": 3_500}}


def test_what_has_had_no_record_has_no_time_to_move() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading({})
    look(sources, reader, 0)
    assert look(sources, reader, 60_000) == {}
    assert sources.left_ms == math.inf


def test_another_owner_counts_anew() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading()
    look(sources, reader, 0)
    sources.due([], {}, 3_000)
    assert look(sources, reader, 5_000) == {}
    assert look(sources, reader, 10_000) == {TASK: {"s/idle": 10_070 - 5_000}}


def test_a_repartition_topic_is_silent_once_what_feeds_it_is_consumed() -> None:
    asked: list[Collection[str]] = []
    consumed = False

    def ask(topics: Collection[str]) -> bool:
        asked.append(topics)
        return consumed

    fed = IdleSource("s/idle", 5_000, frozenset({"users"}))
    sources, reader = IdleSources({0: {"in": fed}}, ask), reading()
    look(sources, reader, 0)
    assert asked == []
    assert look(sources, reader, 5_000) == look(sources, reader, 5_500) == {}
    assert asked == [frozenset({"users"})]
    assert sources.left_ms == AGAIN_MS
    consumed = True
    assert look(sources, reader, 6_000) == {TASK: {"s/idle": 6_070}}
    assert len(asked) == 2
