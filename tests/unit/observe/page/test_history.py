"""Rates, spans and the trend, of looks alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everflow import metrics as names
from everflow.observe.observation import ObservedTask
from everflow.observe.page.history import RATE_MS, SPANS, TREND_MS, LookHistory, RoleSpan, kind_of
from unit.observe.observations import ACTIVE, RESTORING, STANDBY, WARMUP, changed
from unit.observe.page.page_facts import SERENE, counted, facts

RUNNING = replace(ACTIVE, trouble="")


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (ACTIVE, "parked"),
        (RUNNING, "active"),
        (RESTORING, "restoring"),
        (replace(RUNNING, state="CREATED"), "starting"),
        (replace(RUNNING, state="SUSPENDED"), "leaving"),
        (STANDBY, "standby"),
        (WARMUP, "warm-up"),
    ],
)
def test_what_a_task_is(task: ObservedTask, kind: str) -> None:
    assert kind_of(task) == kind


def test_a_rate_is_the_difference_of_two_looks() -> None:
    old = counted(SERENE, {names.PROCESSED: {("0", "1_0", "in"): 100}})
    new = counted(SERENE, {names.PROCESSED: {("0", "1_0", "in"): 300, ("0", "1_1", "in"): 50}})
    assert facts(new, old).growth(names.PROCESSED) == {
        ("0", "1_0", "in"): 20.0,
        ("0", "1_1", "in"): 5.0,
    }
    assert facts(new).growth(names.PROCESSED) == {}
    assert facts(old, new).growth(names.PROCESSED)["0", "1_0", "in"] == 0.0, "never negative"


def test_rates_are_of_the_last_half_minute() -> None:
    history = LookHistory()
    for second in range(0, 100, 5):
        history.add(counted(SERENE, consumed=second * 10.0), second * 1000.0, second * 1000)
    found = history.facts(counted(SERENE, consumed=950.0), 95_000.0, 95_000)
    assert RATE_MS / 1000 <= found.passed_s <= 35
    assert found.total_growth(names.RECORDS_CONSUMED) == 10.0
    assert [point.rate for point in found.trend] == [0.0, *([10.0] * 19)]


def test_a_span_begins_where_a_task_becomes_something_else() -> None:
    history = LookHistory()
    for second, tasks in enumerate(
        [[RESTORING], [RESTORING], [replace(RESTORING, state="RUNNING")], []]
    ):
        history.add(changed(SERENE, tasks=tasks), second * 1000.0, second * 1000)
    spans = history.facts(SERENE, 4_000.0, 4_000).spans
    assert spans == {
        "1_1": [RoleSpan(0, "restoring"), RoleSpan(2_000, "active"), RoleSpan(3_000, "")]
    }


def test_what_is_kept_is_bounded() -> None:
    history = LookHistory(most_tasks=3)
    for turn in range(3 * SPANS):
        state = "RUNNING" if turn % 2 else "CREATED"
        tasks = [replace(RUNNING, task=f"0_{n}", state=state) for n in range(9)]
        history.add(changed(SERENE, tasks=tasks), turn * 5_000.0, turn * 5_000)
    found = history.facts(SERENE, 0.0, 0)
    assert [len(spans) for spans in found.spans.values()] == [SPANS] * 3
    end = 3 * SPANS * 5_000 + int(TREND_MS) + 1
    history.add(changed(SERENE, tasks=[]), 0.0, end)
    history.add(changed(SERENE, tasks=[]), 0.0, end + int(TREND_MS) + 1)
    found = history.facts(SERENE, 0.0, 0)
    assert found.spans == {}, "who is gone for an hour is forgotten"
    assert len(found.trend) == 1
