"""What the panels get: the worst first, bounded, and users' texts as they are."""

from __future__ import annotations

import json
from dataclasses import replace

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


def test_nodes_and_topics_have_rates_and_lag() -> None:
    assert VIEW["topology"] == {
        "nodes": {"by-item": {"dropped": 6}, "in": {"rate": 1.2}, "out": {"rate": 0.7}},
        "topics": {"in": 3},
        "subs": {"1": {"active": 2, "busy": 0.25}},
    }


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


def test_other_instances_are_known_as_of_the_last_rebalance() -> None:
    assert VIEW["hosts"] == {
        "rows": [
            {"host": "a:1", "active": 2, "standby": 1},
            {"host": "b:1", "active": 1, "standby": 1},
        ],
        "more": 0,
        "tasks": {
            "1_0": {"a:1": "active", "b:1": "standby"},
            "1_1": {"a:1": "active"},
            "1_2": {"a:1": "standby", "b:1": "active"},
        },
        "silent": 1,
    }


def test_the_worst_lag_is_first_and_says_how_it_grows() -> None:
    old = changed(SERENE, lags={("in", 0): 50, ("in", 1): 0})
    new = changed(SERENE, lags={("in", 0): 20, ("in", 1): 40})
    rows = page_view(facts(new, old))["lags"]["rows"]
    assert [(row["partition"], row["lag"], row["growth"]) for row in rows] == [
        (1, 40, 4.0),
        (0, 20, -3.0),
    ]


def test_keys_that_lie_elsewhere_are_shown_with_the_cure() -> None:
    (row,) = VIEW["lags"]["misplaced"]
    assert (row["topic"], row["misplaced"], row["checked"]) == ("in", 192, 256)
    assert "crc32" in row["cure"]


def test_where_the_time_of_a_thread_goes() -> None:
    (row,) = VIEW["threads"]["rows"]
    assert row["phases"] == {"read": 0.05}
    assert (row["busy"], row["batches"], row["mean_ms"], row["most_ms"]) == (0.25, 0.2, 15.0, 20.0)


def test_what_failed_is_told_by_cause_with_a_sample() -> None:
    letters = VIEW["letters"]
    assert letters["causes"] == [
        {
            "exception": "ValueError",
            "node": "by-item",
            "topic": "in",
            "records": 2,
            "sample": "in-0@17 (ValueError: bad)",
        }
    ]
    assert letters["written"] == 4
    assert letters["dropped"] == [{"node": "by-item", "reason": "late", "records": 6}]


def test_commits_and_what_was_run_again() -> None:
    commits = VIEW["transactions"]
    assert commits["failed"] == {"worker": 3, "migrated": 2, "aborted": 1}
    assert (commits["mean_ms"], commits["most_ms"]) == (1.5, 2.0)


def test_transactions_by_thread_and_what_is_held_back() -> None:
    found = VIEW["transactions"]
    (thread,) = found["threads"]
    assert (thread["open_s"], thread["commit_s"], thread["fenced"]) == (1.5, 5.0, 2)
    assert found["held_back"] == [
        {"topic": "in", "partition": 0, "records": 7, "stable": 100, "held_s": 2.5}
    ]
    assert (found["more"], found["told_s"]) == (0, 1.0)
    many = {("in", number): StableLag(number + 1, 0, 1.0) for number in range(MOST_LAGS + 5)}
    panel = page_view(facts(changed(SERENE, held_back=many)))["transactions"]
    assert panel["more"] == 5
    assert panel["held_back"][0]["records"] == MOST_LAGS + 5


def test_why_tasks_move_stands_apart_the_newest_first() -> None:
    assert [event["text"] for event in VIEW["assignment"]] == ["Assigned 1 task: 1_0"]
    assert [event["text"] for event in VIEW["events"]] == [
        "a broker is slow",
        "REBALANCING -> RUNNING",
    ]


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
