"""Rows of `bench pacing`, on virtual time."""

from bench.pacing import PacingPlan, measure


def test_a_case_has_latency_processor_and_evenness() -> None:
    plan = PacingPlan((4,), (2,), (1_000,), troubles=False, seconds=6)
    rows = {one.metric: one for one in measure(plan)}
    assert {one.case for one in rows.values()} == {
        "4 partitions, 2 sub-topologies, 1,000 records/s"
    }
    assert 60 < rows["latency_p50"].value < rows["latency_p99"].value < 250
    assert rows["latency_p99"].value <= rows["latency_max"].value
    assert 0.2 < rows["processor"].value < 0.6
    assert rows["spread"].value < 0.2
