"""Rates, spans, the trend and the line on top, of looks alone."""

from dataclasses import replace
from typing import Any

import pytest

from everflow import metrics as names
from everflow.observe.observation import ObservedTask, StableLag
from everflow.observe.page.history import RATE_MS, SPANS, TREND_MS, LookHistory, RoleSpan, kind_of
from everflow.observe.page.view import BAD, BUSY, GOOD, duration, verdict
from unit.observe.observations import ACTIVE, FULL, RESTORING, STANDBY, WARMUP, changed
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


@pytest.mark.parametrize(
    ("values", "tone", "text"),
    [
        (
            {"state": "ERROR", "error": "[EF-X] gone\nmore", "silent_s": 60.0},
            BAD,
            "It has stopped (ERROR): [EF-X] gone",
        ),
        ({"state": "PENDING_SHUTDOWN"}, BUSY, "It ends: 2 tasks still here"),
        (
            {"silent_s": 12.0},
            BAD,
            "The brokers have not answered for 12 s: lag and ends are as they were then",
        ),
        ({"threads": [], "tasks": [], "state": "CREATED"}, BUSY, "It starts"),
        ({"tasks": [], "members": None, "state": "REBALANCING"}, BUSY, "It joins its group"),
        ({"tasks": []}, GOOD, "It has no active task"),
        ({"tasks": [STANDBY]}, GOOD, "It has no active task, and keeps 1 copies of others' state"),
        ({"counters": {}}, BUSY, "How much waits is not known yet"),
    ],
)
def test_what_holds_is_said(values: dict[str, Any], tone: str, text: str) -> None:
    assert verdict(facts(changed(SERENE, **values)))[:2] == (tone, text)


def test_a_task_that_does_not_get_on_is_named_with_its_reason() -> None:
    said = verdict(facts(changed(SERENE, tasks=[ACTIVE, replace(ACTIVE, task="1_5")])))
    assert said.tone == BAD
    assert said.text == ("Task 1_0 does not get on, and 1 more: ValueError: bad (once in 2 s)")


def test_a_restore_says_how_much_and_how_long() -> None:
    well = [replace(task, trouble="") for task in FULL.tasks]
    said = verdict(facts(changed(FULL, tasks=well)))
    assert said[:2] == (BUSY, "It restores 1 task: 70 records are left, 2 s at the present rate")
    unknown = [replace(task, remaining_s=None, lag=None) for task in well]
    assert verdict(facts(changed(FULL, tasks=unknown))).text == "It restores 1 task"


def test_what_an_open_transaction_holds_back_is_no_lag_and_is_said() -> None:
    held = {("in", 0): StableLag(1_200, 7, 240.0), ("in", 1): StableLag(3, 9, 61.0)}
    said = verdict(facts(changed(SERENE, held_back=held)))
    assert said[:2] == (
        BAD,
        "Somebody's open transaction has held back in-0 for 4 min: 1,200 records, and 1 more "
        "partitions",
    )
    for_a_moment = {("in", 0): StableLag(1_200, 7, 5.0)}
    lag = {"counters": {names.LAG: 0.0}}
    assert verdict(facts(changed(SERENE, held_back=for_a_moment, **lag))).tone == GOOD


@pytest.mark.parametrize(
    ("before", "now", "consumed", "tone", "text", "drain_s"),
    [
        (50, 15, 100, GOOD, "It keeps up: 10 records/s", 0.0),
        (5_000, 4_000, 9_000, BUSY, "4,000 records wait: drained in 40 s at the present rate", 40),
        (
            50_010,
            50_000,
            9_000,
            BAD,
            "50,000 records wait: drained in 13 h 53 min at the present rate, later than the goal "
            "of 2 min",
            50_000,
        ),
        (
            4_000,
            5_000,
            9_000,
            BAD,
            "It falls behind: 5,000 records wait, 100 more each second",
            None,
        ),
        (
            4_000,
            4_000,
            0,
            BAD,
            "4,000 records wait, as many as before and nothing is processed",
            None,
        ),
    ],
)
def test_the_time_to_drain(
    before: int, now: int, consumed: int, tone: str, text: str, drain_s: float | None
) -> None:
    old = counted(SERENE, lag=before, consumed=0)
    said = verdict(facts(counted(SERENE, lag=now, consumed=consumed), old))
    assert said == (tone, text, drain_s)


def test_of_one_look_no_trend_is_told() -> None:
    said = verdict(facts(counted(SERENE, lag=7)))
    assert said == (BUSY, "7 records wait", None)


def test_a_lag_that_was_not_known_before_has_no_trend() -> None:
    old = changed(SERENE, counters={names.RECORDS_CONSUMED: 0.0})
    assert verdict(facts(counted(SERENE, lag=70), old)).drain_s is None


def test_durations() -> None:
    given = (3.2, 99, 240, 7_800, 200_000)
    assert [duration(s) for s in given] == ["3 s", "99 s", "4 min", "2 h 10 min", "2 d"]
