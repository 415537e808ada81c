"""Offset ranges of a micro-batch: never beyond the end, never above the budget, fair, and complete when there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everflow.config import BatchLimits
from everflow.records import OffsetRange, TopicPartition
from everflow.runtime.batching import SMALLEST_RECORDS, Throughput, budget, plan_ranges

backlogs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(0, 10_000)).map(lambda t: OffsetRange(t[0], t[0] + t[1])),
    min_size=1,
)


@given(backlogs, st.integers(1, 20_000))
def test_ranges_respect_ends_and_budget_and_waste_nothing(available: dict[TopicPartition, OffsetRange], records: int) -> None:
    ranges = plan_ranges(available, records)
    assert ranges.keys() == available.keys()
    taken = {tp: r.end - r.start for tp, r in ranges.items()}
    for tp, r in ranges.items():
        assert r.start == available[tp].start
        assert r.start <= r.end <= available[tp].end
    waiting = sum(r.end - r.start for r in available.values())
    assert sum(taken.values()) == min(records, waiting)


@given(backlogs, st.integers(1, 20_000))
def test_nobody_gets_more_than_a_partition_that_still_waits(available: dict[TopicPartition, OffsetRange], records: int) -> None:
    ranges = plan_ranges(available, records)
    taken = {tp: r.end - r.start for tp, r in ranges.items()}
    hungry = [tp for tp, r in ranges.items() if r.end < available[tp].end]
    for tp in hungry:
        assert max(taken.values()) - taken[tp] <= 1


@given(
    st.integers(1, 1_000_000),
    st.integers(10, 10_000),
    st.lists(st.tuples(st.integers(0, 600_000), st.floats(1, 20_000)), max_size=8),
)
def test_the_budget_is_bounded_by_records_and_time(most: int, target_ms: int, runs: list[tuple[int, float]]) -> None:
    limits = BatchLimits(most, 1 << 40, target_ms)
    measured = Throughput()
    for records, elapsed in runs:
        measured = measured.after(records, elapsed)
        found = budget(limits, measured)
        assert 1 <= found <= most
        if measured.records_per_ms is not None:
            assert found <= max(SMALLEST_RECORDS, measured.records_per_ms * target_ms + 1)


def test_a_slow_program_gets_small_batches_at_once_and_a_fast_one_grows_step_by_step() -> None:
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    slow = Throughput().after(50_000, 50_000)
    assert budget(limits, slow) == 3_000
    fast = Throughput().after(10_000, 10)
    assert budget(limits, fast) == 40_000
