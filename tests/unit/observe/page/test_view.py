"""What the panels get: the worst first, bounded, and all instances on one page."""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from everflow import metrics as names
from everflow.logs import ABOUT_ASSIGNMENT, rebalance_log
from everflow.observe.observation import (
    ObservedHost,
    ObservedStore,
    ObservedTask,
    ObservedThread,
    StableLag,
)
from everflow.observe.page.history import LONGEST, EventBook, Facts, RoleSpan, TrendPoint
from everflow.observe.page.other_instances import OtherInstance
from everflow.observe.page.view import (
    BAD,
    BUSY,
    GOOD,
    MOST_HOSTS,
    MOST_LAGS,
    MOST_POINTS,
    MOST_REBALANCES,
    MOST_STORES,
    MOST_TASKS,
    application_health,
    health,
    page_view,
)
from unit.observe.observations import STANDBY, changed
from unit.observe.page.page_facts import (
    HANDED_OVER,
    JOINED,
    NOW_MS,
    SERENE,
    SHOWN,
    counted,
    facts,
)

VIEW = page_view(SHOWN)


def test_rebalances_have_the_newest_first_and_the_worst_gap() -> None:
    shown = page_view(replace(SHOWN, rebalances=[JOINED] * MOST_REBALANCES + [HANDED_OVER]))
    newest, before, *_ = shown["rebalances"]["rows"]
    assert (len(shown["rebalances"]["rows"]), shown["rebalances"]["more"]) == (MOST_REBALANCES, 1)
    assert newest == {
        "began_ms": NOW_MS - 10_000,
        "outcome": "complete",
        "why": "joined: two",
        "before": 1,
        "members": 2,
        "here": ["lost 1_2"],
        "moved": ["1_2 from nobody to two"],
        "duration_s": 1.5,
        "gap_s": 0.2105,
        "records": 7,
        "bytes": 70,
    }
    assert before["here"] == ["gained 1_0, 1_1, 1_2", "promoted from a copy 1_1"]
    assert (before["members"], before["duration_s"], before["gap_s"]) == (None, None, None)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


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
        ("connectors rows 0 connector", "lake"),
        ("connectors rows 0 paused", 1),
        ("connectors rows 0 states", {"FAILED": 1, "PAUSED": 1}),
        ("connectors rows 0 lag", 73),
        ("connectors rows 0 error", "Sink lake: no answer at app.py:9"),
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
    assert [(r["partition"], r["lag"], r["growth"]) for r in rows] == [(1, 40, 4.0), (0, 20, -3.0)]


def test_what_is_held_back_is_bounded_the_worst_first() -> None:
    many = {("in", number): StableLag(number + 1, 0, 1.0) for number in range(MOST_LAGS + 5)}
    panel = page_view(facts(changed(SERENE, stable_lags=many)))["transactions"]
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
THERE = OtherInstance("b:1", THEIRS)


def line(*peers: OtherInstance, mine: Facts = MINE) -> tuple[str, str]:
    return application_health(mine, peers, "a:1")[:2]


def test_what_waits_and_how_fast_it_shrinks_is_of_all() -> None:
    assert health(MINE).text.startswith("100 records wait: drained in 10 s ")
    assert line(THERE) == (BAD, "It falls behind: 1,000 records wait, 10 more each second")
    keeps_up = OtherInstance("b:1", one(0.0, 0.0, 10.0))
    assert line(keeps_up, mine=one(0.0, 0.0, 20.0)) == (GOOD, "It keeps up: 3 records/s")


def test_who_has_failed_is_named() -> None:
    broken = OtherInstance("b:1", one(0.0, 0.0, 1.0, state="ERROR", error="[EF-X] gone"))
    assert line(broken) == (BAD, "b:1: It has stopped (ERROR): [EF-X] gone")
    mine = one(0.0, 0.0, 1.0, tasks=[replace(ACTIVE, trouble="bad")])
    assert re.fullmatch("a:1: Task 2_0 .*: bad", line(broken, mine=mine)[1])


def test_one_that_told_and_is_away_is_named_with_the_age_of_what_is_known() -> None:
    away = OtherInstance("b:1", THEIRS, 130.0, "timed out", 125.0)
    tone, text = line(away)
    assert tone == BAD
    assert re.fullmatch(r"b:1: .* answer \(timed out\): .* 2 min old", text)
    a_moment = away._replace(silent_s=3.0)
    assert line(a_moment) == line(THERE)


def test_one_that_never_told_is_left_out_of_the_sum_which_says_so() -> None:
    silent = OtherInstance("c:1", None, 0.0, "it has no http.listen", 500.0)
    tone, text = line(silent)
    assert tone == BUSY
    assert re.fullmatch(r"100 records wait: .* 10 s .* \(1 of 2 instances answer\)", text)


def test_a_restore_elsewhere_is_said_unless_records_pile_up() -> None:
    restores = [replace(ACTIVE, state="RESTORING", lag=500)]
    there = OtherInstance("b:1", one(0.0, 0.0, 1.0, tasks=restores))
    assert line(there) == (BUSY, "b:1: It restores 1 task: 500 records are left")
    behind = one(5_000.0, 100.0, 1.0)
    assert line(there, mine=behind)[1].startswith("It falls behind: 5,000")


ALL_INSTANCES = page_view(MINE, [THERE, OtherInstance("c:1", None, 0.0, "refused", 1.0)], "a:1")


def test_each_instance_has_a_row_and_all_have_a_sum() -> None:
    found = ALL_INSTANCES["instances"]
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
    rows = {row["task"]: row for row in ALL_INSTANCES["tasks"]["rows"]}
    assert (rows["1_0"]["host"], rows["1_0"]["kind"]) == ("", "active")
    assert (rows["2_0"]["host"], rows["2_0"]["lag"], rows["2_0"]["rate"]) == ("b:1", 40, 7.0)
    assert (rows["2_1"]["host"], rows["2_1"]["percent"]) == ("b:1", 75)
    assert ALL_INSTANCES["hosts"]["tasks"]["2_1"] == {"b:1": "warm-up 75 %"}
    assert ALL_INSTANCES["hosts"]["tasks"]["1_0"] == {"a:1": "active", "b:1": "standby"}
    assert ALL_INSTANCES["tasks"]["counts"] == {"warm-up": 1, "active": 2, "standby": 2}


def test_lag_by_partition_is_of_all_the_worst_first() -> None:
    rows = ALL_INSTANCES["lags"]["rows"]
    assert [(r["partition"], r["lag"], r["host"]) for r in rows] == [(7, 900, "b:1"), (0, 3, "")]


def test_a_partition_that_moves_is_counted_once() -> None:
    both = OtherInstance("b:1", one(900.0, 700.0, 10.0, lags={("in", 0): 5}))
    rows = page_view(MINE, [both], "a:1")["lags"]["rows"]
    assert [(row["partition"], row["lag"], row["host"]) for row in rows] == [(0, 5, "b:1")]


@pytest.mark.parametrize("number", [30, 0])
def test_a_page_that_knows_many_instances_stays_bounded(number: int) -> None:
    tasks = [replace(ACTIVE, task=f"3_{n}") for n in range(2_000)]
    many = [OtherInstance(f"h{n}:1", one(1.0, 1.0, 1.0, tasks=tasks)) for n in range(number)]
    text = json.dumps(page_view(MINE, many, "a:1"))
    assert len(text) < 200_000


log = logging.getLogger("everflow")


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventBook]:
    book = EventBook(kept=5)
    monkeypatch.setattr(log, "level", logging.DEBUG)
    log.addHandler(book)
    log.manager._clear_cache()  # type: ignore[attr-defined]
    yield book
    log.removeHandler(book)
    log.manager._clear_cache()  # type: ignore[attr-defined]


def test_what_people_are_told_is_kept(book: EventBook) -> None:
    rebalance_log.info("REBALANCING -> %s", "RUNNING")
    log.info("a detail")
    log.warning("a broker is slow")
    rebalance_log.info("Assigned 1 task", extra=ABOUT_ASSIGNMENT)
    found = book.events()
    assert [(event.level, event.about, event.text) for event in found] == [
        ("INFO", "", "REBALANCING -> RUNNING"),
        ("WARNING", "", "a broker is slow"),
        ("INFO", "assignment", "Assigned 1 task"),
    ]
    assert found[0].at_ms <= found[-1].at_ms


def test_a_line_that_repeats_is_kept_once(book: EventBook) -> None:
    for _ in range(4):
        log.warning("a broker is slow")
    assert [(event.text, event.times) for event in book.events()] == [("a broker is slow", 4)]


def test_a_noisy_hour_leaves_why_a_task_has_moved(book: EventBook) -> None:
    rebalance_log.info("Revoked 1 task", extra=ABOUT_ASSIGNMENT)
    for n in range(100):
        log.warning("noise %d", n)
    assert [event.text for event in book.events()] == [
        "Revoked 1 task",
        *(f"noise {n}" for n in range(95, 100)),
    ]


def test_long_lines_are_cut_and_odd_ones_pass() -> None:
    book = EventBook()
    for text, arguments in (("x" * 10_000, ()), ("%d", ("no number",))):
        book.handle(log.makeRecord("everflow", logging.WARNING, "", 1, text, arguments, None))
    assert [len(book.events()[0].text), book.events()[1].text] == [LONGEST + 3, "%d"]
