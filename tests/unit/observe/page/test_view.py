"""What the panels get: the worst first, bounded, and users' texts as they are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from everflow import metrics as names
from everflow.observe.observation import (
    ObservedHost,
    ObservedStore,
    ObservedTask,
    ObservedThread,
    StableLag,
)
from everflow.observe.page.history import RoleSpan, TrendPoint
from everflow.observe.page.view import (
    MOST_HOSTS,
    MOST_LAGS,
    MOST_POINTS,
    MOST_STORES,
    MOST_TASKS,
    page_view,
)
from unit.observe.observations import changed
from unit.observe.page.page_facts import NOW_MS, SERENE, SHOWN, facts

VIEW = page_view(SHOWN)


def test_it_is_json_as_it_stands() -> None:
    assert json.loads(json.dumps(VIEW, allow_nan=False)) == VIEW
    unknown = changed(SERENE, counters={}, members=None, desired_instances=None, recent={})
    assert json.loads(json.dumps(page_view(facts(unknown)), allow_nan=False))


@pytest.mark.parametrize(
    ("panel", "shown"),
    [
        ("topology nodes", {"by-item": {"dropped": 6}, "in": {"rate": 1.2}, "out": {"rate": 0.7}}),
        ("topology topics", {"in": 3}),
        ("topology subs", {"1": {"active": 2, "busy": 0.25}}),
        ("hosts rows 0", {"host": "a:1", "active": 2, "standby": 1}),
        ("hosts rows 1", {"host": "b:1", "active": 1, "standby": 1}),
        ("hosts more", 0),
        ("hosts silent", 1),
        ("hosts tasks 1_0", {"a:1": "active", "b:1": "standby"}),
        ("hosts tasks 1_1", {"a:1": "active"}),
        ("lags misplaced 0 misplaced", 192),
        ("lags misplaced 0 checked", 256),
        ("threads rows 0 phases", {"read": 0.05}),
        ("threads rows 0 busy", 0.25),
        ("threads rows 0 batches", 0.2),
        ("threads rows 0 mean_ms", 15.0),
        ("threads rows 0 most_ms", 20.0),
        ("letters causes 0 exception", "ValueError"),
        ("letters causes 0 node", "by-item"),
        ("letters causes 0 topic", "in"),
        ("letters causes 0 records", 2),
        ("letters causes 0 sample", "in-0@17 (ValueError: bad)"),
        ("letters written", 4),
        ("letters dropped 0", {"node": "by-item", "reason": "late", "records": 6}),
        ("transactions failed", {"worker": 3, "migrated": 2, "aborted": 1}),
        ("transactions mean_ms", 1.5),
        ("transactions most_ms", 2.0),
        ("transactions threads 0 open_s", 1.5),
        ("transactions threads 0 commit_s", 5.0),
        ("transactions threads 0 fenced", 2),
        ("transactions told_s", 1.0),
        ("assignment 0 text", "Assigned 1 task: 1_0"),
        ("events 0 text", "a broker is slow"),
        ("events 1 text", "REBALANCING -> RUNNING"),
    ],
)
def test_a_panel_has_the_figures_of_the_instance(panel: str, shown: Any) -> None:
    found: Any = VIEW
    for step in panel.split():
        found = found[int(step) if isinstance(found, list) else step]
    assert found == shown


def test_internal_topics_have_the_names_of_the_drawing() -> None:
    seen = changed(SERENE, lags={("orders-by-item-repartition", 0): 3, ("in", 1): 4, ("in", 0): 5})
    assert page_view(facts(seen))["topology"]["topics"] == {"by-item-repartition": 3, "in": 9}


def test_tasks_that_do_not_get_on_are_first() -> None:
    tasks = VIEW["tasks"]
    assert [row["kind"] for row in tasks["rows"]] == [
        "parked",
        "restoring",
        "warm-up",
        "standby",
        "global",
    ]
    assert tasks["counts"] == dict.fromkeys([row["kind"] for row in tasks["rows"]], 1)
    parked = tasks["rows"][0]
    assert parked["why"] == "ValueError: bad (once in 2 s)"
    assert parked["spans"] == [[NOW_MS - 60_000, "restoring"], [NOW_MS - 50_000, "active"]]


def test_a_copy_says_how_far_it_is_rounded_down() -> None:
    task = ObservedTask(task="0_0", role="warm-up", state="RUNNING", lag=1, copied=999)
    rows = page_view(facts(changed(SERENE, tasks=[task])))["tasks"]["rows"]
    assert rows[0]["percent"] == 99
    done = page_view(facts(changed(SERENE, tasks=[replace(task, lag=0)])))["tasks"]["rows"]
    assert done[0]["percent"] == 100


def test_the_worst_lag_is_first_and_says_how_it_grows() -> None:
    old = changed(SERENE, lags={("in", 0): 50, ("in", 1): 0})
    new = changed(SERENE, lags={("in", 0): 20, ("in", 1): 40})
    rows = page_view(facts(new, old))["lags"]["rows"]
    assert [(row["partition"], row["lag"], row["growth"]) for row in rows] == [
        (1, 40, 4.0),
        (0, 20, -3.0),
    ]


def test_what_is_held_back_is_bounded_the_worst_first() -> None:
    many = {("in", number): StableLag(number + 1, 0, 1.0) for number in range(MOST_LAGS + 5)}
    panel = page_view(facts(changed(SERENE, held_back=many)))["transactions"]
    assert panel["more"] == 5
    assert panel["held_back"][0]["records"] == MOST_LAGS + 5


def test_users_texts_go_as_they_are() -> None:
    odd = '</script><img src=x onerror=alert(1)>"&\u2028'
    task = ObservedTask(task="0_0", role="active", state="RUNNING", lag=1, trouble=odd)
    seen = changed(SERENE, tasks=[task], lags={(odd, 0): 1}, application_id=odd)
    view = page_view(facts(seen))
    assert view["lags"]["rows"][0]["topic"] == odd
    assert view["tasks"]["rows"][0]["why"] == odd


def test_ten_thousand_tasks_fit() -> None:
    tasks = [
        ObservedTask(
            task=f"0_{n}",
            role="active",
            state="RUNNING",
            lag=n,
            thread=0,
            stores=[ObservedStore(name="counts", bytes=n)],
        )
        for n in range(10_000)
    ]
    seen = changed(
        SERENE,
        tasks=tasks,
        threads=[ObservedThread(number=0, alive=True, tasks=10_000)],
        lags={("in", n): n for n in range(10_000)},
        series={
            names.PROCESSED: {("0", f"0_{n}", f"node-{n}"): n for n in range(10_000)},
            names.LEFT_OUT: {(f"Error{n}", "a", "in"): n for n in range(10_000)},
            names.DROPPED: {("0", f"node-{n}", "late"): n for n in range(10_000)},
            names.STORE_PUTS: {(f"0_{n}", "counts"): n for n in range(10_000)},
        },
        hosts=[ObservedHost(host=f"h{n}:1", active=[f"0_{n}"]) for n in range(10_000)],
    )
    spans = {f"0_{n}": [RoleSpan(NOW_MS - 9, "active")] * 60 for n in range(10_000)}
    trend = [TrendPoint(NOW_MS - 5_000 * n, 1.0, 1.0) for n in range(720)]
    view = page_view(facts(seen, SERENE, spans=spans, trend=trend))
    assert len(view["tasks"]["rows"]) == MOST_TASKS
    assert view["tasks"]["rows"][0]["lag"] == 9_999
    assert view["tasks"]["more"] == 10_000 - MOST_TASKS
    assert (len(view["lags"]["rows"]), view["lags"]["more"]) == (MOST_LAGS, 10_000 - MOST_LAGS)
    assert view["lags"]["more_lag"] == sum(range(10_000 - MOST_LAGS))
    assert len(view["stores"]["rows"]) == MOST_STORES
    assert len(view["hosts"]["rows"]) == MOST_HOSTS
    assert len(view["trend"]["at_ms"]) <= MOST_POINTS
    assert view["trend"]["at_ms"][-1] == NOW_MS
    assert view["letters"]["causes"][0]["records"] == 9_999
    assert len(json.dumps(view)) < 700_000


def test_while_it_restores_everything_has_a_word() -> None:
    seen = changed(
        SERENE,
        state="REBALANCING",
        threads=[],
        tasks=[],
        members=None,
        counters={},
        series={},
        recent={},
        lags={},
    )
    view = page_view(facts(seen))
    assert view["verdict"]["text"] == "It starts"
    assert view["tasks"]["rows"] == view["lags"]["rows"] == view["threads"]["rows"] == []
    assert view["instance"]["lag"] is None
