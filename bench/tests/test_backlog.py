"""The bench of a backlog fails where a process took more than it may."""

from __future__ import annotations

from bench.backlog.measure import BacklogPlan, figures
from bench.backlog.peaks import MIB
from bench.backlog.program import rows
from everflow.memory import least_budget

KINDS = ("driver", "jvm", "workers", "instance")


def test_a_process_that_took_more_than_its_bound_is_named_with_both() -> None:
    plan, beyond = BacklogPlan(memory=least_budget(2)), list[str]()
    within = {kind: plan.bounds.of(kind) for kind in KINDS}
    assert len(list(figures(plan, "records", "exactly_once_v2", within, beyond))) == len(KINDS)
    assert beyond == []
    peaks = {**within, "workers": within["workers"] + MIB}
    list(figures(plan, "records", "exactly_once_v2", peaks, beyond))
    bound = within["workers"] // MIB
    assert beyond == [f"records, exactly_once_v2, workers: {bound + 1:,} of {bound:,} MiB"]


def test_what_all_processes_may_take_is_the_whole() -> None:
    for memory in (least_budget(2), 2 * least_budget(2), 1 << 40):
        bounds = BacklogPlan(memory=memory).bounds
        parts = bounds.of("driver") + bounds.of("jvm") + 2 * bounds.of("workers")
        assert memory - 4 <= parts <= memory


def test_records_are_about_as_large_as_asked_for() -> None:
    for size in (200, 1_000, 20_000):
        for _, value in rows(3, size, 10):
            assert 0.8 * size < len(value) < 1.1 * size
