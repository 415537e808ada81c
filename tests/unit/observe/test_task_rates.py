"""What active tasks process, and until when: `/status`, `everflow tasks` and pages tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everflow import metrics as names
from everflow.metrics import Labels
from everflow.observe.page.verdict import with_rates
from unit.observe.observations import ACTIVE, RESTORING, STANDBY, changed
from unit.observe.page.page_facts import counted, facts

RUNNING = replace(ACTIVE, lag=4_000, remaining_s=0.0)
COPY = replace(STANDBY, rate=7.0, remaining_s=1.5)


def rates(lag: int | None, before: int | None) -> tuple[float, float | None]:
    """Of the active task, which has processed 2,000 records in ten seconds."""
    old = changed(tasks=[replace(RUNNING, lag=before)])
    new = changed(tasks=[replace(RUNNING, lag=lag)])
    counts: dict[Labels, float] = {
        ("0", "1_0", "in"): 1_500.0,
        ("1", "1_0", "other"): 600.0,
        ("0", "1_1", "in"): 9.0,
    }
    looks = facts(
        counted(new, {names.PROCESSED: counts}),
        counted(old, {names.PROCESSED: {("0", "1_0", "in"): 100.0}}),
    )
    (task,) = with_rates(looks)
    return task.rate, task.remaining_s


@pytest.mark.parametrize(
    ("lag", "before", "remaining_s"),
    [
        (4_000, 5_000, 40.0),
        (4_000, 4_000, None),
        (4_000, 3_000, None),
        (4_000, None, None),
        (None, 4_000, None),
        (400, 300, 0.0),
        (0, 0, 0.0),
    ],
)
def test_an_active_task_tells_what_it_processes_and_until_when(
    lag: int | None, before: int | None, remaining_s: float | None
) -> None:
    assert rates(lag, before) == (200.0, remaining_s)


def test_what_is_copied_keeps_its_copys_rate() -> None:
    tasks = [COPY, RESTORING]
    assert with_rates(facts(changed(tasks=tasks), changed(tasks=tasks))) == tasks


def test_one_look_tells_no_rate() -> None:
    assert with_rates(facts(changed(tasks=[RUNNING]))) == [RUNNING]


def test_one_that_was_restored_before_has_no_time_yet() -> None:
    """Its lag was of its changelogs."""
    old = changed(tasks=[replace(RUNNING, state="RESTORING", lag=90_000)])
    (task,) = with_rates(facts(changed(tasks=[RUNNING]), counted(old, {})))
    assert task.rate == 1.2
    assert task.remaining_s is None
