"""One page for all instances: the line on top, the matrix and the lag are the application's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from everflow.observe.observation import ObservedHost, ObservedTask
from everflow.observe.page.history import Facts
from everflow.observe.page.peers import Peer
from everflow.observe.page.verdict import BAD, BUSY, GOOD, verdict
from everflow.observe.page.view import application_verdict, page_view
from unit.observe.observations import STANDBY, changed
from unit.observe.page.page_facts import SERENE, counted, facts

ACTIVE = ObservedTask(task="2_0", role="active", state="RUNNING", lag=40, rate=7.0)
WARMS = ObservedTask(task="2_1", role="warm-up", state="RUNNING", lag=10, copied=30)
HOSTS = [
    ObservedHost(host="a:1", active=["1_0"], standby=["1_2"]),
    ObservedHost(host="b:1", active=["2_0"], standby=[]),
]


def one(lag: float, before: float, consumed: float, **values: Any) -> Facts:
    """An instance's two looks, ten seconds apart."""
    now = counted(changed(SERENE, hosts=HOSTS, **values), lag=lag, consumed=consumed)
    return facts(now, counted(changed(SERENE, **values), {}, lag=before, consumed=0.0))


MINE = one(100.0, 200.0, 20.0)
THEIRS = one(
    900.0, 700.0, 10.0, tasks=[ACTIVE, WARMS, replace(STANDBY, task="1_0")], lags={("in", 7): 900}
)
THERE = Peer("b:1", THEIRS)


def line(*peers: Peer, mine: Facts = MINE) -> tuple[str, str]:
    return application_verdict(mine, peers, "a:1")[:2]


def test_what_waits_and_how_fast_it_shrinks_is_of_all() -> None:
    assert verdict(MINE).text == "100 records wait: drained in 10 s at the present rate"
    assert line(THERE) == (BAD, "It falls behind: 1,000 records wait, 10 more each second")
    keeps_up = Peer("b:1", one(0.0, 0.0, 10.0))
    assert line(keeps_up, mine=one(0.0, 0.0, 20.0)) == (GOOD, "It keeps up: 3 records/s")


def test_who_has_failed_is_named() -> None:
    broken = Peer("b:1", one(0.0, 0.0, 1.0, state="ERROR", error="[EF-X] gone"))
    assert line(broken) == (BAD, "b:1: It has stopped (ERROR): [EF-X] gone")
    mine = one(0.0, 0.0, 1.0, tasks=[replace(ACTIVE, trouble="bad")])
    assert line(broken, mine=mine) == (BAD, "a:1: Task 2_0 does not get on: bad")


def test_one_that_told_and_is_away_is_named_with_the_age_of_what_is_known() -> None:
    away = Peer("b:1", THEIRS, 130.0, "timed out", 125.0)
    assert line(away) == (BAD, "b:1: It does not answer (timed out): what is known is 2 min old")
    a_moment = away._replace(silent_s=3.0)
    assert line(a_moment) == line(THERE)


def test_one_that_never_told_is_left_out_of_the_sum_which_says_so() -> None:
    silent = Peer("c:1", None, 0.0, "it has no http.listen", 500.0)
    assert line(silent) == (
        BUSY,
        "100 records wait: drained in 10 s at the present rate (1 of 2 instances answer)",
    )


def test_a_restore_elsewhere_is_said_unless_records_pile_up() -> None:
    restores = [replace(ACTIVE, state="RESTORING", lag=500)]
    there = Peer("b:1", one(0.0, 0.0, 1.0, tasks=restores))
    assert line(there) == (BUSY, "b:1: It restores 1 task: 500 records are left")
    behind = one(5_000.0, 100.0, 1.0)
    assert line(there, mine=behind)[1].startswith("It falls behind: 5,000")


VIEW = page_view(MINE, [THERE, Peer("c:1", None, 0.0, "refused", 1.0)], "a:1")


def test_each_instance_has_a_row_and_all_have_a_sum() -> None:
    found = VIEW["instances"]
    assert [(row["host"], row["own"], row["lag"], row["error"]) for row in found["rows"]] == [
        ("a:1", True, 100.0, ""),
        ("b:1", False, 900.0, ""),
        ("c:1", False, None, "refused"),
    ]
    assert (found["lag"], found["rate"], found["told"]) == (1_000.0, 3.0, 2)
    assert found["rows"][1]["said"]["tone"] == BAD
    assert (found["rows"][1]["active"], found["rows"][1]["copies"]) == (1, 2)
    alone = page_view(MINE)["instances"]["rows"]
    assert [row["host"] for row in alone] == ["this instance"]


def test_tasks_of_others_are_in_the_matrix_with_what_they_are_there() -> None:
    rows = {row["task"]: row for row in VIEW["tasks"]["rows"]}
    assert (rows["1_0"]["host"], rows["1_0"]["kind"]) == ("", "active")
    assert (rows["2_0"]["host"], rows["2_0"]["lag"], rows["2_0"]["rate"]) == ("b:1", 40, 7.0)
    assert (rows["2_1"]["host"], rows["2_1"]["percent"]) == ("b:1", 75)
    assert VIEW["hosts"]["tasks"]["2_1"] == {"b:1": "warm-up 75 %"}
    assert VIEW["hosts"]["tasks"]["1_0"] == {"a:1": "active", "b:1": "standby"}
    assert VIEW["tasks"]["counts"] == {"warm-up": 1, "active": 2, "standby": 2}


def test_lag_by_partition_is_of_all_the_worst_first() -> None:
    rows = VIEW["lags"]["rows"]
    assert [(row["partition"], row["lag"], row["host"]) for row in rows] == [
        (7, 900, "b:1"),
        (0, 3, ""),
    ]


def test_a_partition_that_moves_is_counted_once() -> None:
    both = Peer("b:1", one(900.0, 700.0, 10.0, lags={("in", 0): 5}))
    rows = page_view(MINE, [both], "a:1")["lags"]["rows"]
    assert [(row["partition"], row["lag"], row["host"]) for row in rows] == [(0, 5, "b:1")]


@pytest.mark.parametrize("number", [30, 0])
def test_a_page_that_knows_many_instances_stays_bounded(number: int) -> None:
    tasks = [replace(ACTIVE, task=f"3_{n}") for n in range(2_000)]
    many = [Peer(f"h{n}:1", one(1.0, 1.0, 1.0, tasks=tasks)) for n in range(number)]
    text = json.dumps(page_view(MINE, many, "a:1"))
    assert len(text) < 200_000
