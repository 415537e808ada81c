"""The line on top: what is said first, and the time to drain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everflow import metrics as names
from everflow.observe.observation import StableLag
from everflow.observe.page.verdict import BAD, BUSY, GOOD, duration, verdict
from unit.observe.observations import ACTIVE, FULL, STANDBY, changed
from unit.observe.page.page_facts import SERENE, counted, facts


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
