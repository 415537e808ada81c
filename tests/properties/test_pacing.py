"""When stream threads begin batches (note 018): the real ones on virtual time."""

import math

import pytest

from everflow_simulation.pacing import TROUBLES, Costs, PacingCase, Run, between, simulate

STEADY_MS = 4_000.0
BEFORE = {
    (4, 1, 10): (29, 62, 0.09),
    (4, 1, 100): (42, 80, 0.41),
    (4, 1, 1_000): (40, 65, 0.62),
    (4, 1, 10_000): (45, 72, 0.76),
    (4, 2, 10): (68, 117, 0.16),
    (4, 2, 100): (111, 170, 0.32),
    (4, 2, 1_000): (80, 120, 0.61),
    (4, 3, 1_000): (142, 194, 0.53),
    (4, 3, 10_000): (288, 469, 0.87),
    (16, 1, 1_000): (79, 150, 0.22),
    (16, 2, 100): (130, 213, 0.30),
    (16, 2, 1_000): (165, 245, 0.29),
    (16, 2, 10_000): (316, 440, 0.60),
    (64, 1, 1_000): (102, 178, 0.22),
    (64, 2, 1_000): (255, 366, 0.29),
    (64, 3, 1_000): (461, 620, 0.34),
    (200, 1, 1_000): (121, 203, 0.25),
    (200, 2, 1_000): (339, 493, 0.34),
    (200, 3, 1_000): (697, 914, 0.43),
}
"""p50 and p99 (ms) and cores with rests by tables (the number of tasks, of sub-topologies and of
records), of the same model: partitions, sub-topologies and records/s."""


def figures(run: Run, seconds: float) -> tuple[float, float, float]:
    p50, p99 = run.latency(50, STEADY_MS), run.latency(99, STEADY_MS)
    return p50, p99, run.cores(STEADY_MS, seconds * 1000)


def test_one_rule_is_no_worse_than_tables_were() -> None:
    """Where it is later it takes less of the processor, and the other way round; both together are
    less on average."""
    both = []
    for (partitions, subtopologies, rate), (p50, p99, cores) in BEFORE.items():
        seconds = 12 if rate > 10 else 48
        case = PacingCase(
            partitions=partitions, subtopologies=subtopologies, rate=rate, seconds=seconds
        )
        now50, now99, now_cores = figures(simulate(case), case.seconds)
        where = f"{partitions} partitions, {subtopologies} sub-topologies, {rate} records/s"
        assert now50 <= p50 * 1.05 or now_cores <= cores * 1.05, where
        assert now99 <= p99 * 1.5, where
        assert now_cores <= cores * 1.85, where
        both.append(math.log(now50 / p50 * now_cores / cores))
        assert both[-1] < math.log(1.25), where
    assert sum(both) < 0


@pytest.mark.parametrize("name", TROUBLES)
def test_latency_recovers_within_10_s_and_threads_are_not_restless(name: str) -> None:
    case = TROUBLES[name]
    run = simulate(case)
    last_ms = case.seconds * 1000 - 20_000
    over_ms = next(
        (
            at
            for at in range(int(case.seconds) * 1000, 0, -1_000)
            if max(case.broker(at), case.processor(at)) > 1
        ),
        0,
    )
    late = 1.5 * run.latency(99, last_ms)
    assert run.late_until_ms(late, STEADY_MS) <= over_ms + 10_000
    assert run.spread(last_ms) < 0.15


def test_a_slow_broker_makes_records_no_later_than_its_answers_and_batches_do_not_swing() -> None:
    case = TROUBLES["broker ten times slower for a minute"]
    run = simulate(case)
    slow = [one for one in run.batches if 20_000 <= one.began_ms < 70_000]
    took_ms = sum(one.elapsed_ms for one in slow) / len(slow)
    assert run.latency(50, 20_000, 70_000) < 4 * took_ms
    assert run.spread(20_000, 70_000) < 0.2, "as much as its answers differ"


@pytest.mark.parametrize("factor", [5, 20])
def test_with_a_cold_broker_nothing_is_2_s_behind_after_10_s(factor: float) -> None:
    cold = between(0, 30, factor)
    case = PacingCase(subtopologies=2, broker=cold, processor=between(0, 30, 5), seconds=40)
    run = simulate(case)
    assert run.late_until_ms(2_000) <= 10_000
    assert run.behind_ms < 2_000


def test_long_transactions_hold_a_backlog_for_no_longer_than_they_take() -> None:
    """With batches of a thousand records at the most, as their time was taken for their records',
    it grew to 33 s."""
    case = TROUBLES["transactions of 4 s for 30 s"]
    run = simulate(case)
    longest_ms = max(one.elapsed_ms for one in run.batches)
    assert run.latency(100) < 4.5 * longest_ms
    assert max(one.records for one in run.batches) > 3_000


def test_batches_are_evenly_apart_whatever_their_number() -> None:
    for partitions in (4, 64, 200):
        run = simulate(PacingCase(partitions=partitions, seconds=20))
        assert run.spread(STEADY_MS) < 0.1
        assert run.behind_ms < 500


def test_a_cheaper_batch_saves_processor_and_latency() -> None:
    """Twice as cheap: some of it goes to each."""
    dear = PacingCase(subtopologies=2, seconds=20)
    cheap = PacingCase(subtopologies=2, seconds=20, costs=Costs(batch=4.5, answer=6.0))
    before, now = (figures(simulate(case), case.seconds) for case in (dear, cheap))
    assert now[0] < before[0] * 0.85
    assert now[2] < before[2] * 0.8
