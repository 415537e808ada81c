"""Event time in a group: who has told what, who is silent, what a batch is told."""

import math
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

from everflow import serdes
from everflow.instance.tasks.task import ActiveTask, TaskState
from everflow.instance.thread.batching import PlannedBatch
from everflow.instance.thread.group_times import times_of
from everflow.instance.thread.progress import (
    BatchTimes,
    Committed,
    EventTimes,
    TimedProgram,
    Watermark,
    certain,
    committed_by_kafka_streams,
    told_by_writers,
)
from everflow.protocol.messages import (
    COMMITTED,
    BadRecord,
    BatchResult,
    InputTime,
    format_metadata,
)
from everflow.records import CommittedOffset, OffsetRange, TaskId, TopicPartition
from everflow.topology.event_time import UNKNOWN, Told, Writer
from everflow.topology.sources import Source

TEXT = serdes.string()
IN0, IN1, BY0, BY1 = (TopicPartition(t, p) for t in ("in", "by") for p in (0, 1))
UP0, UP1, DOWN0, DOWN1 = (TaskId(sub, p) for sub in (0, 1) for p in (0, 1))
TASKS = {UP0: (IN0,), UP1: (IN1,), DOWN0: (BY0,), DOWN1: (BY1,)}
SINK = "by-sink"


def source(topic: str, subtopology: int, timed: str, held: bool = False) -> Source:
    return Source(
        topic=topic,
        subtopology=subtopology,
        node=timed,
        key_serde=TEXT,
        value_serde=TEXT,
        kind="repartition" if held else "stream",
        timed=timed,
        held=held,
    )


PROGRAM = TimedProgram.of(
    TASKS,
    [source("in", 0, "in-source"), source("by", 1, "by-source", held=True)],
    {"by": (Writer(0, SINK),)},
)


def told_by(at: int, ms: int, silent: bool | None = None) -> Committed:
    """What an upstream task says that has read its log up to ``at``."""
    times = {"in-source/idle": ms, f"{SINK}/out": ms}
    if silent is not None:
        times[f"{SINK}/silent"] = int(silent)
    return Committed({}, times)._replace(offsets={IN0: at, IN1: at})


def active(task: TaskId, at: int = 0) -> ActiveTask:
    found = ActiveTask(id=task, inputs=TASKS[task], state=TaskState.RUNNING)
    found.positions = dict.fromkeys(found.inputs, at)
    return found


def upstream(task: TaskId, at: int, ms: int, silent: bool | None = None) -> ActiveTask:
    found = active(task, at)
    found.stream_times = dict(told_by(at, ms, silent).times)
    return found


def times(lead_ms: int = 1_000) -> EventTimes:
    return EventTimes(PROGRAM, lead_ms=lead_ms, idle_ms=500, now_ms=lambda: 77)


def learn(
    shared: EventTimes,
    others: Mapping[TaskId, Committed] | None = None,
    now_ms: float = 0.0,
    **ends: int,
) -> bool:
    """The brokers' answer; logs without an end given have 10."""
    found = {tp: ends.get(f"{tp.topic}{tp.partition}", 10) for tp in (IN0, IN1, BY0, BY1)}
    return shared.answered(shared.known(), others or {}, found, now_ms)


# --- who has told what ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (told_by(3, 50), told_by(3, 70), Told(50)),
        (told_by(3, 50), None, Told(UNKNOWN)),
        (told_by(10, 50, silent=True), told_by(3, 70), Told(70)),
        (told_by(10, 50, silent=True), told_by(10, 70, silent=True), Told(70, silent=True)),
        (told_by(9, 50, silent=True), told_by(3, 70), Told(50)),
        (told_by(10, 50, silent=False), told_by(3, 70), Told(50)),
    ],
    ids=[
        "the least",
        "one has told nothing",
        "one is silent",
        "all are",
        "not at its end",
        "again",
    ],
)
def test_the_time_of_a_repartition_topic_is_the_least_that_was_told(
    one: Committed | None, other: Committed | None, wanted: Told
) -> None:
    known = {task: found for task, found in ((UP0, one), (UP1, other)) if found is not None}
    assert certain(told_by_writers(PROGRAM, "by", known, {IN0: 10, IN1: 10})) == wanted


def test_nobody_is_silent_whose_log_has_no_known_end() -> None:
    known = {UP0: told_by(10, 50, silent=True), UP1: told_by(10, 70)}
    assert certain(told_by_writers(PROGRAM, "by", known, {IN1: 10})) == Told(50)


def test_who_has_found_records_without_times_only_is_not_waited_for() -> None:
    for at, wanted in ((3, Told(70)), (0, Told(UNKNOWN))):
        known = {UP0: told_by(at, UNKNOWN, silent=True), UP1: told_by(3, 70)}
        assert certain(told_by_writers(PROGRAM, "by", known, {IN0: 10, IN1: 10})) == wanted


def test_behind_a_silence_of_all_everybody_is_waited_for_again() -> None:
    shared = times()
    shared.watch(0, [active(DOWN0)], threading.Event())
    quiet, goes = told_by(10, 50, silent=True), told_by(11, 90, silent=False)
    asked = [
        (0, {UP0: quiet, UP1: quiet}, InputTime(50, 10, silent=True)),
        (100, {UP0: goes, UP1: quiet}, InputTime(50, 10)),
        (599, {UP0: goes, UP1: quiet}, InputTime(50, 10)),
        (600, {UP0: goes, UP1: quiet}, InputTime(90, 10)),
        (700, {UP0: told_by(10, 95, silent=True), UP1: quiet}, InputTime(95, 10, silent=True)),
        (800, {UP0: told_by(11, 96, silent=False), UP1: quiet}, InputTime(95, 10)),
        (900, {UP0: told_by(11, 99), UP1: told_by(11, 97)}, InputTime(97, 10)),
    ]
    for now_ms, others, wanted in asked:
        learn(shared, others, now_ms, in0=10, in1=10)
        shared.due.clear()
        newer = shared.input_time(BY0, 12)
        assert newer == wanted._replace(silent=False), "somebody has written behind that end"
        assert shared.due.is_set() == wanted.silent, "who, the brokers are to say"
        assert shared.input_time(BY0, 10) == wanted, now_ms


def test_a_task_is_not_silent_while_who_writes_its_input_is_not() -> None:
    third, tp = TaskId(2, 0), TopicPartition("all", 0)
    program = TimedProgram.of(
        {**TASKS, third: (tp,)},
        [
            source("in", 0, "in-source"),
            source("by", 1, "by-source", held=True),
            source("all", 2, "all-source", held=True),
        ],
        {"by": (Writer(0, SINK),), "all": (Writer(1, "all-sink"),)},
    )
    silent = {"all-sink/out": 40, "all-sink/silent": 1}
    known = {
        UP0: told_by(10, 50, silent=True),
        UP1: told_by(10, 70, silent=True),
        DOWN0: Committed({BY0: 5}, silent),
        DOWN1: Committed({BY1: 5}, silent),
    }
    ends = {IN0: 10, IN1: 10, BY0: 5, BY1: 5}
    assert certain(told_by_writers(program, "all", known, ends)).silent
    assert not certain(told_by_writers(program, "all", known, {**ends, IN1: 11})).silent


def test_of_kafka_streams_the_partition_time_counts() -> None:
    metadata = "AgAAAAAAAAAy"  # version 2, 50 ms
    assert committed_by_kafka_streams(metadata, [SINK]) == {f"{SINK}/out": 50}
    assert committed_by_kafka_streams(format_metadata("b", {}), [SINK]) == {}


def test_committed_offsets_say_what_their_tasks_have_told() -> None:
    text = format_metadata("b.1.0", told_by(3, 50).times)
    found = times_of(PROGRAM, {IN0: CommittedOffset(3, text)}, lambda _: told_by(3, 50).times)
    assert found == {UP0: Committed({IN0: 3}, told_by(3, 50).times)}


# --- what a batch is told -------------------------------------------------------------------------


def test_a_time_counts_from_the_end_that_was_read_behind_it() -> None:
    shared = times()
    shared.watch(0, [upstream(UP0, 3, 50), upstream(UP1, 3, 70), active(DOWN0)], threading.Event())
    assert learn(shared, by0=4)
    assert shared.input_time(BY0, 3) is None
    assert shared.input_time(BY0, 4) == InputTime(50, 4)
    assert shared.input_time(BY1, 10) is None, "nobody here reads it"
    assert not learn(shared, by0=9), "nothing new was told"
    assert shared.input_time(BY0, 9) == InputTime(50, 4)


def test_who_reads_behind_it_is_woken_by_a_new_time() -> None:
    shared, wake, other = times(), threading.Event(), threading.Event()
    shared.watch(0, [active(DOWN0)], wake)
    shared.watch(1, [upstream(UP0, 3, 50)], other)
    learn(shared, {UP1: told_by(3, 70)})
    assert wake.is_set()
    assert not other.is_set()


def test_silence_counts_only_behind_all_that_was_written() -> None:
    shared = times()
    going = [upstream(UP0, 10, 50, silent=True), upstream(UP1, 10, 70, silent=True)]
    shared.watch(0, [*going, active(DOWN0)], threading.Event())
    learn(shared, by0=5)
    assert shared.input_time(BY0, 4) is None
    assert shared.input_time(BY0, 5) == InputTime(70, 5, silent=True)
    learn(shared, by0=5, in1=11)
    assert shared.input_time(BY0, 5) == InputTime(70, 5), "what it was told does not go back"


def test_nothing_is_asked_without_a_repartition_topic_or_of_nobody() -> None:
    empty = EventTimes(TimedProgram(PROGRAM.tasks, {}), lead_ms=1, idle_ms=1)
    empty.watch(0, [upstream(UP0, 3, 50)], threading.Event())
    assert empty.question() is None
    shared = times()
    assert shared.question() is None
    shared.watch(0, [upstream(UP0, 3, 50), upstream(UP1, 3, 70)], threading.Event())
    assert shared.question() is None, "nobody here reads what they write"
    shared.watch(1, [active(DOWN0)], threading.Event())
    question = shared.question()
    assert question is not None
    assert question.committed == frozenset(), "all that write are here"
    assert not shared.waits_for_others


def test_those_of_other_instances_are_asked_for() -> None:
    shared = times()
    shared.watch(0, [upstream(UP0, 3, 50), active(DOWN0)], threading.Event())
    question = shared.question()
    assert question is not None
    assert question.committed == {IN1}
    assert question.ends == {IN0, IN1, BY0}
    assert shared.waits_for_others


# --- how far sources are read ---------------------------------------------------------------------


def until(shared: EventTimes) -> int | None:
    found = shared.until_ms({IN0: 10, IN1: 10, BY0: 10})
    assert not {BY0, BY1} & found.keys()
    bounds = {*found.values()}
    assert len(bounds) < 2, "all of a program that feeds itself have one bound"
    return bounds.pop() if bounds else None


def test_no_source_is_read_further_ahead_of_the_slowest_than_the_lead() -> None:
    shared = times(lead_ms=1_000)
    tasks = [upstream(UP0, 3, 50), upstream(UP1, 3, 7_000)]
    shared.watch(0, tasks, threading.Event())
    assert until(shared) == 1_050
    shared.committed(0, tasks, {IN0: 400, IN1: 7_500})
    assert until(shared) == 1_400, "by the first record that was left"
    tasks[0].positions[IN0] = 10
    shared.committed(0, tasks, {})
    assert until(shared) == 8_500, "who has read all is not waited for"
    tasks[1].positions[IN1] = 10
    shared.committed(0, tasks, {})
    assert until(shared) is None


def test_nothing_is_taken_before_each_head_is_known() -> None:
    shared = times()
    shared.watch(0, [upstream(UP0, 3, 50), active(UP1)], threading.Event())
    assert until(shared) == UNKNOWN


def test_unread_records_of_a_partition_that_has_shown_no_time_hold_up_nobody() -> None:
    """A topic without times, of which there is always more: all its records are dropped."""
    shared = times(lead_ms=1_000)
    shared.watch(0, [upstream(UP0, 3, 50), active(UP1, 3)], threading.Event())
    assert until(shared) == 1_050


def test_a_slower_one_of_another_instance_is_waited_for() -> None:
    shared, wake = times(lead_ms=1_000), threading.Event()
    shared.watch(0, [upstream(UP0, 3, 5_000), active(DOWN0)], wake)
    assert learn(shared, {UP1: told_by(3, 100)})
    assert shared.until_ms({IN0: 10}, thread=0) == {IN0: 1_100}
    wake.clear()
    assert learn(shared, {UP1: told_by(10, 6_000)})
    assert wake.is_set()
    assert shared.until_ms({IN0: 10}) == {IN0: 6_000}


def batches(shared: EventTimes) -> BatchTimes:
    return BatchTimes(shared, 0, interval_ms=100)


def test_who_is_ahead_of_the_slowest_is_left_out_of_a_batch() -> None:
    shared = times(lead_ms=1_000)
    tasks = {UP0: upstream(UP0, 3, 50), UP1: upstream(UP1, 3, 7_000)}
    shared.watch(0, tasks.values(), threading.Event())
    shared.committed(0, tasks.values(), {IN0: 400, IN1: 7_500})
    available = {IN0: OffsetRange(3, 10), IN1: OffsetRange(3, 10)}
    ends = {IN0: 10, IN1: 10}
    found = batches(shared).within(tasks, available, ends, wall_ms=9_000)
    assert found == ({IN0: 1_400, IN1: 1_400}, {IN0: OffsetRange(3, 10)})
    _, left = batches(shared).within(tasks, available, ends, wall_ms=7_000)
    assert left == available, "of a clock that is ahead: the others would not come there soon"


def test_behind_a_silence_of_all_inputs_of_a_task_each_is_waited_for_again() -> None:
    joined, left, right = TaskId(0, 0), TopicPartition("left", 0), TopicPartition("right", 0)
    program = TimedProgram.of(
        {joined: (left, right)},
        [source("left", 0, "left-source"), source("right", 0, "right-source")],
        {},
    )
    task = ActiveTask(id=joined, inputs=(left, right), state=TaskState.RUNNING)
    task.positions = {left: 3, right: 3}
    batch = batches(EventTimes(program, lead_ms=1_000, idle_ms=500))
    quiet = InputTime(silent=True)
    for now_ms, silent, times, wait_ms in (
        (0, (left,), {left: quiet}, math.inf),
        (100, (left, right), {left: quiet, right: quiet}, math.inf),
        (200, (left,), {}, 500),
        (600, (left,), {}, 100),
        (700, (left,), {left: quiet}, math.inf),
        (800, (left, right), {left: quiet, right: quiet}, math.inf),
    ):
        found = batch.of({joined: task}, {}, silent, now_ms)
        assert found.times == times, now_ms
        assert (found.wait_ms == wait_ms) or found.due, now_ms


def test_what_feeds_nobody_holds_up_nobody_and_is_not_held_up() -> None:
    """As the tasks of a sink that is paused, or whose table is away, for a day."""
    leaf, copied = TaskId(2, 0), TopicPartition("copied", 0)
    program = TimedProgram.of(
        {**TASKS, leaf: (copied,)},
        [
            source("in", 0, "in-source"),
            source("by", 1, "by-source", held=True),
            source("copied", 2, "copied-source"),
        ],
        {"by": (Writer(0, SINK),)},
    )
    shared = EventTimes(program, lead_ms=1_000, idle_ms=500)
    paused = ActiveTask(id=leaf, inputs=(copied,), state=TaskState.RUNNING)
    paused.positions, paused.stream_times = {copied: 3}, {"copied-source/idle": 7}
    shared.watch(0, [upstream(UP0, 3, 5_000), paused], threading.Event())
    assert shared.until_ms({IN0: 10, copied: 10}) == {IN0: 6_000}
    ends = {copied: 10}
    found = batches(shared).within({leaf: paused}, {copied: OffsetRange(3, 10)}, ends, 9_000)
    assert found[1] == {copied: OffsetRange(3, 10)}


def test_programs_that_feed_each_other_have_a_bound_of_their_own() -> None:
    a, b, by_a, by_b = (TopicPartition(name, 0) for name in ("a", "b", "by-a", "by-b"))
    tasks = {TaskId(n, 0): (tp,) for n, tp in enumerate((a, by_a, b, by_b))}
    held = {"by-a": True, "by-b": True}
    program = TimedProgram.of(
        tasks,
        [source(tp.topic, n, tp.topic, tp.topic in held) for n, (tp,) in enumerate(tasks.values())],
        {"by-a": (Writer(0, "sink-a"),), "by-b": (Writer(2, "sink-b"),)},
    )
    shared, found = EventTimes(program, lead_ms=1_000, idle_ms=500), list[ActiveTask]()
    for number, ms in ((0, 50), (2, 90_000)):
        (tp,) = tasks[TaskId(number, 0)]
        task = ActiveTask(id=TaskId(number, 0), inputs=(tp,), state=TaskState.RUNNING)
        task.positions, task.stream_times = {tp: 3}, {f"{tp.topic}/idle": ms}
        found.append(task)
    shared.watch(0, found, threading.Event())
    assert shared.until_ms({a: 10, b: 10}) == {a: 1_050, b: 91_000}


# --- tasks of which only times rise ---------------------------------------------------------------


def committed_batch(batch: BatchTimes, task: ActiveTask, due: bool, now_ms: float) -> None:
    found = batch.of({task.id: task}, {}, (), now_ms)
    assert (found.due == {task.id}) is due
    if due:
        ranges = {tp: OffsetRange(at, at) for tp, at in task.positions.items()}
        planned = PlannedBatch(ranges=ranges, log_ends={}, due=found.due, times=found.times)
        batch.committed(planned, BatchResult(outcome=COMMITTED), {task.id: task}, now_ms)


def test_a_task_of_which_only_times_rise_has_a_batch_in_each_interval() -> None:
    shared, task = times(), active(DOWN0, 10)
    shared.watch(0, [task], threading.Event())
    batch = batches(shared)
    for now_ms, told, due in ((0, 50, True), (10, 60, False), (100, 60, True), (300, 60, False)):
        learn(shared, {UP0: told_by(3, told), UP1: told_by(3, 70)})
        committed_batch(batch, task, due, now_ms)


def test_one_with_records_that_wait_for_the_time_has_it_at_once() -> None:
    shared, task = times(), active(DOWN0, 8)
    task.stream_times["by-source/read"] = 10
    shared.watch(0, [task], threading.Event())
    batch = batches(shared)
    for told in (50, 60):
        learn(shared, {UP0: told_by(3, told), UP1: told_by(3, 70)})
        committed_batch(batch, task, True, now_ms=told)
    assert batch.begins([task]) == {BY0: 10}
    assert batch.positions(task) == {BY0: 10}


def test_a_source_that_falls_silent_says_so_once() -> None:
    shared, task = times(), upstream(UP0, 10, 50)
    shared.watch(0, [task], threading.Event())
    batch = batches(shared)
    found = batch.of({UP0: task}, {}, {IN0}, 0.0)
    assert (found.due, found.times) == ({UP0}, {IN0: InputTime(silent=True)})
    planned = PlannedBatch(ranges={}, log_ends={}, due=found.due, times=found.times)
    batch.committed(planned, BatchResult(outcome=COMMITTED), {UP0: task}, 0.0)
    assert not batch.of({UP0: task}, {}, {IN0}, 1_000.0).due


def test_a_partition_is_known_whose_records_have_no_times() -> None:
    shared, task = times(), active(UP0)
    shared.watch(0, [task], threading.Event())
    batch = batches(shared)

    def read(at: int, ms: int) -> set[TopicPartition]:
        planned = PlannedBatch(ranges={IN0: OffsetRange(task.positions[IN0], at)}, log_ends={})
        task.positions[IN0], task.stream_times = at, {"in-source/idle": ms}
        batch.committed(planned, BatchResult(outcome=COMMITTED, consumed={IN0: at}), {UP0: task}, 0)
        return batch.timeless

    assert read(4, UNKNOWN) == {IN0}
    assert read(5, 70) == set()


# --- ranges with records that are held back -------------------------------------------------------


def held_batch() -> PlannedBatch:
    ranges = {BY0: OffsetRange(2, 9), IN0: OffsetRange(3, 4)}
    return PlannedBatch(ranges=ranges, log_ends={}, begins={BY0: 5}, times={})


def test_what_was_held_back_stays_in_a_smaller_batch_and_is_taken_in_part() -> None:
    planned = held_batch()
    assert (planned.records, planned.reach) == (5, 8)
    assert not planned.smallest
    fewer = planned.fewer(1)
    assert fewer.ranges == {BY0: OffsetRange(2, 6), IN0: OffsetRange(3, 4)}
    assert (fewer.most_taken, fewer.reach) == (1, 1)
    assert fewer.smallest
    assert fewer.is_unknown
    assert fewer.only_record() is None, "only its worker knows which one it takes"
    assert fewer.named() == ""
    known = replace(fewer, first=(BadRecord("by", 0, 3),))
    assert not known.is_unknown
    assert known.only_record() == BadRecord("by", 0, 3)
    assert known.named() == "by-0@3"
    several = replace(fewer, first=(BadRecord("by", 0, 3), BadRecord("by", 0, 4)))
    assert several.only_record() is None
    assert several.named() == "one of by-0@3, by-0@4"
    nothing = replace(fewer, ranges={BY0: OffsetRange(2, 6)}, most_taken=0)
    assert nothing.only_record() == BadRecord("by", 0, 5), "it takes what is late"
    assert planned.parts([[BY0], [IN0]]) == [planned]


def test_the_way_to_a_record_before_one_that_fails_leads_by_new_ones() -> None:
    planned = held_batch()
    assert planned.until(("by", 0, 7)) == PlannedBatch(
        ranges={BY0: OffsetRange(2, 7), IN0: OffsetRange(3, 4)},
        log_ends={},
        begins={BY0: 5},
        times={},
    )
    assert planned.until(("by", 0, 4)) is None


def test_a_task_is_served_by_its_new_records_or_by_times() -> None:
    planned = PlannedBatch(ranges={BY0: OffsetRange(2, 5)}, log_ends={}, begins={BY0: 5})
    assert not planned.served([BY0], DOWN0)
    assert held_batch().served([BY0], DOWN0)
    planned.due = frozenset({DOWN0})
    assert planned.served([BY0], DOWN0)


# --- for people -----------------------------------------------------------------------------------


def test_a_watermark_names_the_source_that_holds_it_back() -> None:
    shared = times()
    down = active(DOWN0, 5)
    down.stream_times["by-source/idle"] = 40
    shared.watch(0, [upstream(UP0, 3, 900), down], threading.Event())
    learn(shared, {UP1: told_by(3, 30)})
    learn(shared, {UP1: told_by(4, 50)})
    assert shared.watermarks() == {
        0: Watermark(900, IN0, 0, None),
        1: Watermark(40, IN1, 850, 77),
    }
