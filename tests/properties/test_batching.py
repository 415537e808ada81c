"""Offset ranges of a micro-batch: within end and budget, fair, complete where there is room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.config import BatchLimits
from everflow.instance.thread.batching import (
    FIRST_RECORDS,
    SMALLEST_RECORDS,
    BatchCost,
    BatchSize,
    plan_ranges,
)
from everflow.records import OffsetRange, TopicPartition

backlogs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(0, 10_000)).map(
        lambda t: OffsetRange(t[0], t[0] + t[1])
    ),
    min_size=1,
)


@given(backlogs, st.integers(1, 20_000))
def test_no_waste_no_excess(available: dict[TopicPartition, OffsetRange], records: int) -> None:
    ranges = plan_ranges(available, records)
    assert ranges.keys() == available.keys()
    taken = {tp: r.end - r.start for tp, r in ranges.items()}
    for tp, r in ranges.items():
        assert r.start == available[tp].start
        assert r.start <= r.end <= available[tp].end
    waiting = sum(r.end - r.start for r in available.values())
    hungry = sum(1 for r in available.values() if r.end > r.start)
    assert sum(taken.values()) == min(max(records, hungry), waiting), "the budget, or one for each"
    assert all(taken[tp] > 0 for tp, r in available.items() if r.end > r.start)


@given(backlogs, st.integers(1, 20_000))
def test_nobody_gets_too_much(available: dict[TopicPartition, OffsetRange], records: int) -> None:
    ranges = plan_ranges(available, records)
    taken = {tp: r.end - r.start for tp, r in ranges.items()}
    hungry = [tp for tp, r in ranges.items() if r.end < available[tp].end]
    for tp in hungry:
        assert max(taken.values()) - taken[tp] <= 1


@given(
    st.integers(1, 1_000_000),
    st.integers(10, 10_000),
    st.lists(
        st.tuples(st.integers(0, 600_000), st.floats(1, 20_000), st.integers(0, 1 << 30)),
        max_size=8,
    ),
)
def test_a_batch_is_bounded_by_records_bytes_and_the_time_of_the_one_before(
    most: int, target_ms: int, runs: list[tuple[int, float, int]]
) -> None:
    limits = BatchLimits(most, 1 << 24, target_ms)
    size = BatchSize()
    for records, elapsed, raw in runs:
        before = size
        size = size.after(limits, records, records, elapsed, raw)
        found = size.records(limits)
        assert 1 <= found <= most
        if size.bytes_per_record:
            assert found == 1 or found * size.bytes_per_record <= 1 << 24
        if elapsed > target_ms and not before.cold:
            assert size.bound <= max(SMALLEST_RECORDS, before.bound)


def test_a_slow_program_gets_small_batches_at_once_and_a_fast_one_large_ones() -> None:
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    assert BatchSize(cold=False).after(limits, 100_000, 100_000, 100_000).records(limits) == 3_000
    assert BatchSize().after(limits, 100_000, 100_000, 10).records(limits) == 500_000
    assert (
        BatchSize(200_000, cold=False).after(limits, 200_000, 200_000, 2_000).records(limits)
        == 300_000
    ), "what would have fitted"


def test_what_the_first_full_batch_costs_once_does_not_hold_the_next_ones_back() -> None:
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    assert BatchSize().after(limits, 100_000, 100_000, 2_500).records(limits) == 300_000
    small = BatchSize().after(limits, 20, 20, 100)
    assert small.cold, "a batch of a few records has not warmed anything up"
    assert not small.after(limits, 100_000, 100_000, 2_500).cold


def test_a_first_batch_that_takes_for_ever_holds_the_next_back_for_three_batches_at_most() -> None:
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    size = BatchSize().after(limits, 100_000, 100_000, 30_000)
    for _ in range(3):
        size = size.after(limits, size.records(limits), size.records(limits), 200)
    assert size.records(limits) >= 300_000


def test_small_batches_say_nothing_about_what_a_large_one_could_take() -> None:
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    assert BatchSize(200_000).after(limits, 20, 20, 100).records(limits) == 200_000


@given(st.floats(1, 30_000), st.integers(1, 5))
def test_a_small_batch_grows_back_however_long_it_takes(elapsed_ms: float, share: int) -> None:
    """A worker that is killed while a record is looked for leaves a bound of one. What each batch
    takes whatever its size is no reason to stay there: a busy machine would take one record a
    second or two for ever."""
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    size = BatchSize(1, cold=False)
    for _ in range(5):
        size = size.after(
            limits, size.records(limits), size.records(limits), elapsed_ms, None, elapsed_ms / 1e4
        )
    assert size.records(limits) >= SMALLEST_RECORDS
    costly = BatchSize(100, cold=False)
    for _ in range(5):
        records = costly.records(limits)
        assert records * 3.0 <= 3_000, "what its records cost bounds it"
        costly = costly.after(limits, records, records, records * 3.0 * share, None, records * 3.0)


@given(st.integers(2, 8))
def test_a_small_batch_of_a_merge_grows_although_it_reads_one_record(inputs: int) -> None:
    """Orders come three times as often as payments: with a range of one record each, a merge reads
    one order, and no bound was reached. It stayed at four records for ever."""
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    size = BatchSize(1, cold=False)
    for _ in range(6):
        size = size.after(limits, max(inputs, size.records(limits)), 1, 50.0)
    assert size.records(limits) >= SMALLEST_RECORDS
    fed = BatchSize(10_000, cold=False)
    assert fed.after(limits, 10_000, 4_000, 50.0).bound == 500_000
    assert fed.after(limits, 10_000, 10, 50.0).bound == 10_000, "it waits for an input"
    assert fed.after(limits, 10, 10, 50.0).bound == 10_000, "there are no more"


def test_answers_that_take_long_do_not_make_batches_small() -> None:
    """Of a cold broker each transaction takes seconds, whatever is in it: batches of a thousand
    records, one behind the other, kept a backlog for half a minute."""
    limits = BatchLimits(500_000, 1 << 40, 3_000)
    few = BatchSize(cold=False).after(limits, 20, 20, 4_000, answers_ms=1_900)
    assert few.bound == FIRST_RECORDS
    full = BatchSize(1_000, cold=False).after(limits, 1_000, 1_000, 4_000, answers_ms=1_900)
    assert full.bound == 7_500, "half of the time is theirs, of which a thousand took 200 ms"
    link = BatchSize(10_000, cold=False).after(limits, 10_000, 10_000, 9_000, answers_ms=50)
    assert 3_000 < link.bound < 3_400, "records that travel slowly do"


@given(
    st.floats(1, 100),
    st.floats(0, 0.1),
    st.lists(st.integers(20, 400), min_size=40, max_size=80).filter(lambda found: max(found) > 100),
)
def test_what_a_batch_costs_is_told_from_what_its_records_cost(
    fixed_ms: float, record_ms: float, batches: list[int]
) -> None:
    cost = BatchCost()
    for records in batches:
        cost = cost.after(records, fixed_ms + record_ms * records)
    whole = fixed_ms + record_ms * max(batches)
    assert 0 <= cost.fixed_ms <= whole * 1.01
    even = BatchCost()
    for _ in batches:
        even = even.after(100, fixed_ms + record_ms * 100)
    assert even.fixed_ms == pytest.approx(fixed_ms + record_ms * 100), "nothing shows it"


def test_one_large_batch_is_no_reason_for_long_rests() -> None:
    cost = BatchCost()
    for turn in range(100):
        cost = cost.after(20 + turn % 7, 10 + 0.02 * (20 + turn % 7))
    assert cost.fixed_ms == pytest.approx(10, rel=0.02)
    assert cost.after(100_000, 2_010).fixed_ms == pytest.approx(10, rel=0.1)
    assert cost.after(20, 500).fixed_ms < 12
