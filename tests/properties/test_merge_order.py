"""The vectorised merge against Kafka Streams' rule: the oldest head is next (reference 1.6)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow.records import OffsetRange, TopicPartition
from everflow.topology.batches import BatchInput
from everflow.topology.plan import Source
from everflow.worker.order import Merged, merge_inputs, merge_tasks
from unit.builders import edge_batch
from unit.builders import source as made_source


class Input(NamedTuple):
    """One input partition: times of its records, and whether the log has more of it behind the
    batch."""

    times: list[int]
    more: bool


def sources(count: int, merged: bool = True) -> tuple[Source, ...]:
    return tuple(
        made_source(f"t{i}", index=i, node=f"n{i}", merged=merged, slot=1) for i in range(count)
    )


class Hop(NamedTuple):
    hop: BatchInput
    ranges: dict[TopicPartition, OffsetRange]
    log_ends: dict[TopicPartition, int]

    def merged(self, merged: bool = True, waits: Sequence[TopicPartition] | None = ()) -> Merged:
        return merge_inputs(
            self.hop, sources(len(self.ranges), merged), self.ranges, self.log_ends, waits
        )


def at(topic: int) -> TopicPartition:
    return TopicPartition(f"t{topic}", 0)


def hop_of(inputs: list[Input]) -> Hop:
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


def one_by_one(
    inputs: list[Input], waits: frozenset[int] | None = frozenset()
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
    st.builds(Input, st.lists(st.integers(0, 12), max_size=8), st.booleans()),
    min_size=2,
    max_size=4,
)


@given(inputs)
def test_equal_to_taking_the_oldest_head(given: list[Input]) -> None:
    batches, consumed = hop_of(given).merged()
    batch = batches[1]
    order = np.argsort(batch.seq, kind="stable")
    expected, offsets = one_by_one(given)
    assert batch.key.take(pa.array(order)).to_pylist() == expected
    assert consumed == offsets


@given(inputs, st.none() | st.frozensets(st.integers(0, 3)))
def test_equal_whoever_is_waited_for(given: list[Input], waits: frozenset[int] | None) -> None:
    waited = None if waits is None else [at(i) for i in sorted(waits) if i < len(given)]
    batches, consumed = hop_of(given).merged(waits=waited)
    order = np.argsort(batches[1].seq, kind="stable")
    expected, offsets = one_by_one(given, waits)
    assert batches[1].key.take(pa.array(order)).to_pylist() == expected
    assert consumed == offsets


@given(st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=4))
def test_what_tasks_write_comes_by_time_and_in_each_tasks_order(tasks: list[list[int]]) -> None:
    given = [Input(times, False) for times in tasks]
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
    assert merge_tasks(batch).key.to_pylist() == one_by_one(given)[0]


def test_a_minute_of_one_input_does_not_run_ahead_of_an_hour_of_another() -> None:
    """Scenario 16: ranges cut by count; without the cut, A's next records would be late."""
    a, b = Input(list(range(0, 60_000, 60)), True), Input(list(range(0, 3_600_000, 3_600)), True)
    batches, consumed = hop_of([a, b]).merged()
    assert consumed == {at(0): 1010, at(1): 10 + 17}, "B only as far as A's last record"
    assert batches[1].timestamp.max() == a.times[-1]


def test_one_input_is_left_in_its_own_order_and_consumed_whole() -> None:
    batches, consumed = hop_of([Input([5, 1, 9], True)]).merged(False)
    assert batches[1].timestamp.tolist() == [5, 1, 9]
    assert consumed == {at(0): 13}


def test_an_input_that_showed_only_markers_holds_the_others_for_one_batch() -> None:
    """Its next record may be older than all of theirs."""
    hop = hop_of([Input([1, 2], False), Input([], False)])
    # Transaction markers up to 14, more behind them.
    hop.ranges[at(1)], hop.log_ends[at(1)] = OffsetRange(10, 14), 20
    batches, consumed = hop.merged()
    assert consumed == {at(0): 10, at(1): 14}
    assert len(batches[1]) == 0


def test_an_input_at_its_end_bounds_nothing() -> None:
    hop = hop_of([Input([1, 2], False), Input([], False)])
    hop.ranges[at(1)], hop.log_ends[at(1)] = OffsetRange(10, 14), 14
    assert hop.merged().consumed == {at(0): 12, at(1): 14}
