"""Extracted times and the merge by them, against Kafka Streams' queues (reference 1.6)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from everflow import (
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from everflow.instance.thread.batching import is_empty, plan_ranges
from everflow.instance.thread.planning import TaskIdling
from everflow.protocol.messages import TaskContext
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.topology.batches import BatchInput
from everflow.topology.graph import RecordContext, TimeFunction, TimestampExtractor
from everflow.topology.plan import TimeOp
from everflow.topology.sources import Source
from everflow.worker.order import Merged, merge_inputs, merge_tasks
from everflow.worker.times import SKIPPED, extract_times
from unit.builders import batch_request, edge_batch, source
from unit.builders import source as made_source

NOW = 7


def later(key: str, value: str, record: RecordContext, partition_time: int) -> int:
    """A time of the value's own; odd ones of the record's place, of what was before, and none."""
    number = record.partition if record.topic == GROWN else int(record.topic[1:])
    assert key == value == f"{topic(number)}@{record.offset}"
    return partition_time + 1 if record.timestamp % 3 == 1 else record.timestamp - 2


EXTRACTORS: list[TimestampExtractor | None] = [
    None,
    LogAndSkipOnInvalidTimestamp(),
    UsePartitionTimeOnInvalidTimestamp(),
    WallclockTimestampExtractor(),
    TimeFunction(later, 4),
]


class Input(NamedTuple):
    extractor: TimestampExtractor | None
    times: list[int]


class Done(NamedTuple):
    """What was processed, in order, with its time; what was dropped by input; partition times."""

    records: list[tuple[str, int]]
    dropped: dict[str, int]
    partition_times: dict[str, int]


def topic(number: int) -> str:
    return f"t{number}"


GROWN = "grown"
"""A topic that has a partition for each of the task's inputs (note 067)."""


def log_of(number: int, grown: bool) -> TopicPartition:
    return TopicPartition(GROWN, number) if grown else TopicPartition(topic(number), 0)


class Queue:
    """RecordQueue: the head has its time once the record before it has been taken."""

    def __init__(self, number: int, given: Input) -> None:
        self.number, self.given = number, given
        self.next, self.partition_time, self.dropped = 0, -1, 0
        self.head: tuple[int, int] | None = None
        self._update_head()

    def _update_head(self) -> None:
        self.head = None
        while self.head is None and self.next < len(self.given.times):
            offset, time = self.next, self._extracted(self.given.times[self.next])
            self.next += 1
            if time < 0:
                self.dropped += 1
            else:
                self.head = (time, offset)

    def _extracted(self, time: int) -> int:
        name = f"{topic(self.number)}@{self.next}"
        match self.given.extractor:
            case UsePartitionTimeOnInvalidTimestamp():
                return self.partition_time if time < 0 else time
            case WallclockTimestampExtractor():
                return NOW
            case TimeFunction():
                place = RecordContext(topic(self.number), 0, self.next, time)
                return later(name, name, place, self.partition_time)
            case _:
                return time

    def poll(self) -> tuple[str, int]:
        assert self.head is not None
        time, offset = self.head
        self.partition_time = max(self.partition_time, time)
        self._update_head()
        return f"{topic(self.number)}@{offset}", time


def one_by_one(inputs: list[Input]) -> Done:
    """PartitionGroup with all records there: the oldest head is next."""
    queues = [Queue(number, one) for number, one in enumerate(inputs)]
    records = []
    while heads := [(queue.head[0], queue.number) for queue in queues if queue.head is not None]:
        records.append(queues[min(heads)[1]].poll())
    kept = {
        topic(queue.number): queue.partition_time
        for queue in queues
        if queue.given.extractor is not None and queue.given.extractor.remembers
    }
    return Done(
        records,
        {topic(queue.number): queue.dropped for queue in queues if queue.dropped},
        {name: time for name, time in kept.items() if time >= 0},
    )


def sources(inputs: list[Input], grown: bool) -> tuple[Source, ...]:
    return tuple(
        source(
            log_of(number, grown).topic,
            index=number,
            node=topic(number),
            merged=len(inputs) > 1,
            slot=number,
            first=number if grown else 0,
            until=number + 1 if grown else None,
        )
        for number in range(len(inputs))
    )


def time_ops(inputs: list[Input]) -> list[TimeOp]:
    return [
        TimeOp(
            name=topic(number),
            source=number,
            subtopology=0,
            extractor=one.extractor,
            kept=topic(number) if one.extractor.remembers else None,
            input=number,
            output=100 + number,
            where=None,
        )
        for number, one in enumerate(inputs)
        if one.extractor is not None
    ]


def read(inputs: list[Input], ranges: dict[TopicPartition, OffsetRange], grown: bool) -> BatchInput:
    hop = BatchInput(
        batches={},
        rows={},
        source=np.empty(0, np.int32),
        partition=np.empty(0, np.int32),
        offset=np.empty(0, np.int64),
        timestamp=np.empty(0, np.int64),
    )
    for number, one in enumerate(inputs):
        start, end = ranges[log_of(number, grown)]
        offset = np.arange(start, end, dtype=np.int64)
        rows = np.arange(len(hop.offset), len(hop.offset) + len(offset), dtype=np.int64)
        names = pa.array([f"{topic(number)}@{at}" for at in offset], pa.string())
        times = np.array(one.times[start:end], np.int64)
        of = np.full(len(rows), number, np.int32)
        batch = edge_batch(names, names, timestamp=times, seq=rows, source=of, offset=offset)
        hop.batches[number], hop.rows[number] = batch, rows
        hop.source = np.concatenate([hop.source, of])
        hop.partition = np.concatenate([hop.partition, hop.batches[number].partition])
        hop.offset = np.concatenate([hop.offset, offset])
        hop.timestamp = np.concatenate([hop.timestamp, times])
    return hop


def in_batches(inputs: list[Input], sizes: list[int], grown: bool) -> Done:
    """Micro-batches of up to so many records of each input, in turn, until all is read."""
    done = Done([], {}, {})
    ends = {log_of(n, grown): len(one.times) for n, one in enumerate(inputs)}
    position = dict.fromkeys(ends, 0)
    turn = 0
    while position != ends:
        ranges = {}
        for tp, start in position.items():
            size = sizes[turn % len(sizes)]
            turn += 1
            ranges[tp] = OffsetRange(start, min(ends[tp], start + size))
        request = batch_request(
            ranges,
            batch_id="b.0.0",
            wall_clock_ms=NOW,
            log_ends=ends,
            tasks=[TaskContext(TaskId(0, 0), "i", "", dict(done.partition_times))],
        )
        hop = read(inputs, ranges, grown)
        given = sources(inputs, grown)
        extracted = extract_times(time_ops(inputs), hop, given, request)
        batches, position = merge_inputs(hop, given, ranges, ends)
        for times in extracted.stream_times(position, request).values():
            done.partition_times.update(times)
        for node, reasons in extracted.dropped(position).items():
            done.dropped[node] = done.dropped.get(node, 0) + reasons[SKIPPED]
        found: list[tuple[int, str, int]] = []
        for batch in batches.values():
            found += zip(
                batch.seq.tolist(), batch.key.to_pylist(), batch.timestamp.tolist(), strict=True
            )
        done.records.extend((name, time) for _, name, time in sorted(found))
    return done


@st.composite
def drawn_inputs(draw: Any) -> list[Input]:
    inputs = []
    for _ in range(draw(st.integers(1, 3))):
        extractor = draw(st.sampled_from(EXTRACTORS))
        lowest = 0 if extractor is None else -3
        times = draw(st.lists(st.integers(lowest, 9), max_size=12))
        if isinstance(extractor, UsePartitionTimeOnInvalidTimestamp):
            times = [0, *times]  # a first record without a time stops
        inputs.append(Input(extractor, times))
    return inputs


@given(drawn_inputs(), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans())
@example([Input(TimeFunction(later, 4), [0])], [1], False)  # no record has a time yet
def test_equal_to_record_after_record_under_any_cut(
    inputs: list[Input], sizes: list[int], grown: bool
) -> None:
    """Of several topics, or of several partitions of one."""
    assert in_batches(inputs, sizes, grown) == one_by_one(inputs)


# The vectorised merge against Kafka Streams' rule: the oldest head is next (reference 1.6).


class MergeInput(NamedTuple):
    """One partition: times of its records, and whether its log has more behind the batch."""

    times: list[int]
    more: bool


def merge_sources(count: int, merged: bool = True) -> tuple[Source, ...]:
    return tuple(
        made_source(f"t{i}", index=i, node=f"n{i}", merged=merged, slot=1) for i in range(count)
    )


class Hop(NamedTuple):
    hop: BatchInput
    ranges: dict[TopicPartition, OffsetRange]
    log_ends: dict[TopicPartition, int]

    def merged(self, merged: bool = True, waits: Sequence[TopicPartition] | None = ()) -> Merged:
        return merge_inputs(
            self.hop, merge_sources(len(self.ranges), merged), self.ranges, self.log_ends, waits
        )


def at(topic: int) -> TopicPartition:
    return TopicPartition(f"t{topic}", 0)


def hop_of(inputs: list[MergeInput]) -> Hop:
    source = np.concatenate([np.full(len(one.times), i, np.int32) for i, one in enumerate(inputs)])
    offset = np.concatenate([10 + np.arange(len(one.times), dtype=np.int64) for one in inputs])
    times = np.concatenate([np.array(one.times, np.int64) for one in inputs])
    rows = np.arange(len(times), dtype=np.int64)
    zeros = np.zeros(len(times), np.int32)
    names = pa.array([f"{s}@{o}" for s, o in zip(source, offset, strict=True)], pa.string())
    batch = edge_batch(names, names, timestamp=times, seq=rows.copy(), source=source, offset=offset)
    ranges = {at(i): OffsetRange(10, 10 + len(one.times)) for i, one in enumerate(inputs)}
    log_ends = {at(i): ranges[at(i)].end + int(one.more) for i, one in enumerate(inputs)}
    return Hop(
        BatchInput(
            batches={1: batch},
            rows={1: rows},
            source=source,
            partition=zeros,
            offset=offset,
            timestamp=times,
        ),
        ranges,
        log_ends,
    )


def merge_one_by_one(
    inputs: list[MergeInput], waits: frozenset[int] | None = frozenset()
) -> tuple[list[str], dict[TopicPartition, int]]:
    """Kafka Streams: take the oldest head; stop when an input that has more in the log, or may yet
    get more, runs dry. ``waits`` None: do not stop."""
    next_at = [0] * len(inputs)
    taken: list[str] = []
    while True:
        heads = [
            (one.times[next_at[i]], i)
            for i, one in enumerate(inputs)
            if next_at[i] < len(one.times)
        ]
        dry = waits is not None and any(
            (one.more or i in waits) and next_at[i] == len(one.times)
            for i, one in enumerate(inputs)
        )
        if dry or not heads:
            return taken, {at(i): 10 + next_at[i] for i in range(len(inputs))}
        _, i = min(heads)
        taken.append(f"{i}@{10 + next_at[i]}")
        next_at[i] += 1


inputs = st.lists(
    st.builds(MergeInput, st.lists(st.integers(0, 12), max_size=8), st.booleans()),
    min_size=2,
    max_size=4,
)


@given(inputs)
def test_equal_to_taking_the_oldest_head(given: list[MergeInput]) -> None:
    batches, consumed = hop_of(given).merged()
    batch = batches[1]
    order = np.argsort(batch.seq, kind="stable")
    expected, offsets = merge_one_by_one(given)
    assert batch.key.take(pa.array(order)).to_pylist() == expected
    assert consumed == offsets


@given(inputs, st.none() | st.frozensets(st.integers(0, 3)))
def test_equal_whoever_is_waited_for(given: list[MergeInput], waits: frozenset[int] | None) -> None:
    waited = None if waits is None else [at(i) for i in sorted(waits) if i < len(given)]
    batches, consumed = hop_of(given).merged(waits=waited)
    order = np.argsort(batches[1].seq, kind="stable")
    expected, offsets = merge_one_by_one(given, waits)
    assert batches[1].key.take(pa.array(order)).to_pylist() == expected
    assert consumed == offsets


@given(st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=4))
def test_what_tasks_write_comes_by_time_and_in_each_tasks_order(tasks: list[list[int]]) -> None:
    given = [MergeInput(times, False) for times in tasks]
    partition = np.concatenate(
        [
            np.empty(0, np.int32),
            *(np.full(len(times), task, np.int32) for task, times in enumerate(tasks)),
        ]
    )
    offset = np.concatenate(
        [np.empty(0, np.int64), *(10 + np.arange(len(times), dtype=np.int64) for times in tasks)]
    )
    names = pa.array([f"{n}@{at}" for n, at in zip(partition, offset, strict=True)], pa.string())
    times = np.array([time for one in tasks for time in one], np.int64)
    batch = edge_batch(names, names, timestamp=times, partition=partition, offset=offset)
    assert merge_tasks(batch).key.to_pylist() == merge_one_by_one(given)[0]


def test_a_minute_of_one_input_does_not_run_ahead_of_an_hour_of_another() -> None:
    """Scenario 16: ranges cut by count; without the cut, A's next records would be late."""
    a, b = (
        MergeInput(list(range(0, 60_000, 60)), True),
        MergeInput(list(range(0, 3_600_000, 3_600)), True),
    )
    batches, consumed = hop_of([a, b]).merged()
    assert consumed == {at(0): 1010, at(1): 10 + 17}, "B only as far as A's last record"
    assert batches[1].timestamp.max() == a.times[-1]


def test_one_input_is_left_in_its_own_order_and_consumed_whole() -> None:
    batches, consumed = hop_of([MergeInput([5, 1, 9], True)]).merged(False)
    assert batches[1].timestamp.tolist() == [5, 1, 9]
    assert consumed == {at(0): 13}


def test_an_input_that_showed_only_markers_holds_the_others_for_one_batch() -> None:
    """Its next record may be older than all of theirs."""
    hop = hop_of([MergeInput([1, 2], False), MergeInput([], False)])
    # Transaction markers up to 14, more behind them.
    hop.ranges[at(1)], hop.log_ends[at(1)] = OffsetRange(10, 14), 20
    batches, consumed = hop.merged()
    assert consumed == {at(0): 10, at(1): 14}
    assert len(batches[1]) == 0


def test_an_input_at_its_end_bounds_nothing() -> None:
    hop = hop_of([MergeInput([1, 2], False), MergeInput([], False)])
    hop.ranges[at(1)], hop.log_ends[at(1)] = OffsetRange(10, 14), 14
    assert hop.merged().consumed == {at(0): 12, at(1): 14}


# `max.task.idle.ms` in micro-batches against Kafka Streams' PartitionGroup (reference 1.6).


NAMES = "abc"


class Arrival(NamedTuple):
    """A record that is in the log from ``tick`` (ms) on."""

    tick: int
    source: int
    time: int


Story = list[tuple[int, str]]
"""What was processed, at which tick."""


class PartitionGroup:
    """readyToProcess and nextRecord; all that is in the log has been fetched. One that waits for
    several inputs waits for all of them at once."""

    def __init__(self, count: int, idle_ms: int) -> None:
        self.idle_ms, self.queues = idle_ms, [list[tuple[int, str]]() for _ in range(count)]
        self.deadlines: dict[int, int] = {}

    def ready(self, now: int) -> bool:
        ready = True
        if self.idle_ms == -1:
            return True
        for place, queue in enumerate(self.queues):
            if queue:
                self.deadlines.pop(place, None)
            else:
                ready &= now >= self.deadlines.setdefault(place, now + self.idle_ms)
        return ready

    def processed(self, now: int) -> Story:
        found = []
        while self.ready(now) and any(self.queues):
            _, source = min((queue[0][0], i) for i, queue in enumerate(self.queues) if queue)
            found.append((now, self.queues[source].pop(0)[1]))
        return found


def record_by_record(arrivals: list[Arrival], count: int, idle_ms: int, last: int) -> Story:
    group, story, numbers = PartitionGroup(count, idle_ms), Story(), [10] * count
    for now in range(last + 1):
        for one in arrivals:
            if one.tick == now:
                group.queues[one.source].append((one.time, f"{one.source}@{numbers[one.source]}"))
                numbers[one.source] += 1
        story += group.processed(now)
    return story


def idle_in_batches(
    arrivals: list[Arrival], count: int, idle_ms: int, last: int, most: int
) -> Story:
    """Micro-batches of up to ``most`` records."""
    idling, story = TaskIdling(idle_ms), Story()
    position = {at(source): 10 for source in range(count)}
    for now in range(last + 1):
        times = [
            [one.time for one in arrivals if one.source == source and one.tick <= now]
            for source in range(count)
        ]
        while True:
            available = {
                at(source): OffsetRange(position[at(source)], 10 + len(times[source]))
                for source in range(count)
            }
            look = idling.readable([list(position)], available, now)
            ranges = plan_ranges(look.ranges, most)
            if is_empty(ranges):
                break
            story += ((now, name) for name in _merged(times, available, ranges, look.waits))
            position |= _merged_to(times, available, ranges, look.waits)
    return story


def _done(times: Any, available: Any, ranges: Any, waits: Any) -> Any:
    starts = [available[at(i)].start - 10 for i in range(len(times))]
    ends = [ranges[at(i)].end - 10 for i in range(len(times))]
    inputs = [
        MergeInput(one[a:b], b < len(one)) for one, a, b in zip(times, starts, ends, strict=True)
    ]
    merged = hop_of(inputs).merged(waits=waits)
    return merged, starts


def _merged(times: Any, available: Any, ranges: Any, waits: Any) -> list[str]:
    merged, starts = _done(times, available, ranges, waits)
    batch = merged.batches[1]
    columns = (batch.seq.tolist(), batch.source.tolist(), batch.offset.tolist())
    return [f"{i}@{offset + starts[i]}" for _, i, offset in sorted(zip(*columns, strict=True))]


def _merged_to(times: Any, available: Any, ranges: Any, waits: Any) -> dict[TopicPartition, int]:
    merged, starts = _done(times, available, ranges, waits)
    return {at(i): merged.consumed[at(i)] + start for i, start in enumerate(starts)}


@given(
    st.lists(st.builds(Arrival, st.integers(0, 12), st.integers(0, 2), st.integers(0, 9))),
    st.sampled_from([-1, 0, 1, 3]),
    st.integers(1, 5),
)
def test_it_does_what_the_original_does(arrivals: list[Arrival], idle_ms: int, most: int) -> None:
    ordered = sorted(arrivals, key=lambda one: one.tick)
    # Where nothing is waited for, a batch that is cut short takes what it has read.
    records = 1_000 if idle_ms == -1 else most
    assert idle_in_batches(ordered, 3, idle_ms, 20, records) == record_by_record(
        ordered, 3, idle_ms, 20
    )
