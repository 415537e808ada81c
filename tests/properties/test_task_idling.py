"""`max.task.idle.ms` in micro-batches against Kafka Streams' PartitionGroup (reference 1.6)."""

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from everflow.instance.thread.batching import is_empty, plan_ranges
from everflow.instance.thread.planning import TaskIdling
from everflow.records import OffsetRange, TopicPartition
from properties.test_extracted_times import MergeInput, at, hop_of

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
        for source, queue in enumerate(self.queues):
            if queue:
                self.deadlines.pop(source, None)
            else:
                ready &= now >= self.deadlines.setdefault(source, now + self.idle_ms)
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


def in_batches(arrivals: list[Arrival], count: int, idle_ms: int, last: int, most: int) -> Story:
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
    assert in_batches(ordered, 3, idle_ms, 20, records) == record_by_record(ordered, 3, idle_ms, 20)
