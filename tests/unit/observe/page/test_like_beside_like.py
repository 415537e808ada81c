"""Figures that stand beside one another are of the same moments, inputs and wholes."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import metrics as names
from everflow.metrics import Labels
from everflow.observe.observation import (
    Observation,
    ObservedHost,
    ObservedTask,
    ObservedThread,
    StableLag,
    observation_in,
    ready,
    state_reason,
    status_of,
)
from everflow.observe.page.history import (
    RATE_MS,
    SPANS,
    TREND_MS,
    Facts,
    GoneHost,
    RoleSpan,
    SnapshotHistory,
    TrendPoint,
    kind_of,
)
from everflow.observe.page.view import (
    BAD,
    BUSY,
    GOOD,
    Backlog,
    duration,
    health,
    page_view,
    with_rates,
)
from unit.observe.observations import ACTIVE, FULL, RESTORING, STANDBY, WARMUP, changed
from unit.observe.page.page_facts import NOW_MS, SERENE, counted, facts

RUNNING = replace(ACTIVE, trouble="")


def reading(lags: dict[int, int], consumed: float = 0.0, **values: object) -> Observation:
    """An instance that reads these partitions of `in`, a task each."""
    tasks = [replace(RUNNING, task=f"1_{p}", lag=lag) for p, lag in lags.items()]
    waits = {("in", p): lag for p, lag in lags.items()}
    processed: dict[Labels, float] = {("0", f"1_{p}", "in"): consumed for p in lags}
    series = {names.PROCESSED: processed}
    seen = counted(SERENE, series, lag=float(sum(lags.values())), consumed=consumed)
    return changed(seen, tasks=tasks, lags=waits, **values)


def looked(looks: list[Observation], every_s: float = 5.0) -> Facts:
    """A history of them, of which the last is the present."""
    history = SnapshotHistory()
    for number, seen in enumerate(looks[:-1]):
        history.add(seen, number * every_s * 1000, NOW_MS + int(number * every_s * 1000))
    now = (len(looks) - 1) * every_s * 1000
    return history.facts(looks[-1], now, NOW_MS + int(now))


def test_what_was_taken_over_is_no_growth() -> None:
    """Another instance's backlog came, and no record of the input."""
    calm, more = reading({0: 10_000}), reading({0: 9_000, 1: 113_805})
    taken = looked([calm, calm, more])
    assert Backlog.of(taken).shrinks is None
    assert health(taken).tone == BUSY
    assert "more each second" not in health(taken).text
    rows = {row["partition"]: row["growth"] for row in page_view(taken)["lags"]["rows"]}
    assert rows == {0: -100.0, 1: None}
    later = looked([calm, more, reading({0: 8_500, 1: 113_305})])
    assert Backlog.of(later).shrinks == 200.0, "since both are here"


def test_what_was_handed_over_is_no_catching_up() -> None:
    both, one = reading({0: 50_000, 1: 60_000}), reading({0: 50_500})
    assert Backlog.of(looked([both, both, one])).shrinks is None
    found = Backlog.of(looked([both, one, reading({0: 51_000})]))
    assert found.shrinks == -100.0
    assert health(looked([both, one, reading({0: 51_000})])).tone == BAD


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 9)), min_size=2, max_size=8))
def test_a_lag_shrinks_by_what_the_same_partitions_lost(seen: list[dict[int, int]]) -> None:
    found = Backlog.of(looked([reading(lags) for lags in seen])).shrinks
    same = [at for at, lags in enumerate(seen[:-1]) if lags.keys() == seen[-1].keys()]
    if len(seen) > 7:
        same = [at for at in same if at >= len(seen) - 8]
    if not same:
        assert found is None
    else:
        passed_s = 5.0 * (len(seen) - 1 - same[0])
        lost = sum(seen[same[0]].values()) - sum(seen[-1].values())
        assert found == pytest.approx(lost / passed_s)


def test_a_task_s_rate_is_of_the_time_in_which_it_runs_here() -> None:
    away = reading({0: 0}, 0.0)
    looks = [away] * 5 + [reading({0: 0, 1: 900}, 100.0), reading({0: 0, 1: 400}, 600.0)]
    tasks = {task.task: task for task in with_rates(looked(looks))}
    assert tasks["1_1"].rate == 100.0, "500 records in the 5 s in which it was here"
    assert tasks["1_1"].remaining_s == 4.0
    assert tasks["1_0"].rate == 20.0


@given(st.lists(st.none() | st.integers(0, 10**6), max_size=700), st.integers(0, 10**6))
def test_nothing_that_is_shown_is_more_than_the_most(lags: list[int | None], now: int) -> None:
    trend = [
        TrendPoint(NOW_MS - 5_000 * (len(lags) - at), lag, float(lag or 0))
        for at, lag in enumerate(lags)
    ]
    view = page_view(facts(reading({0: now}), trend=trend))
    shown = [view["instance"]["lag"], *(lag for lag in view["trend"]["lag"] if lag is not None)]
    known = [lag for lag in lags if lag is not None]
    assert view["trend"]["most_lag"] == max([*known, now]) >= max(shown)
    assert view["trend"]["most_rate"] >= max([view["instance"]["rate"], *view["trend"]["rate"]])
    assert view["trend"]["at_ms"][-1] == NOW_MS


@given(
    st.dictionaries(st.sampled_from(["read", "operators", "plan", "commit"]), st.floats(0, 900)),
    st.floats(0, 1),
)
def test_a_thread_s_phases_are_parts_of_its_time(seconds: dict[str, float], busy: float) -> None:
    """A batch of minutes ends: its seconds are counted now, and were most of them before."""
    thread = ObservedThread(number=0, alive=True, tasks=1, busy=busy)
    old = {names.BATCH_SECONDS: {("0", phase): 1.0 for phase in seconds}}
    new = {names.BATCH_SECONDS: {("0", phase): 1.0 + s for phase, s in seconds.items()}}
    found = facts(*(changed(SERENE, threads=[thread], series=one) for one in (new, old)))
    (row,) = page_view(found)["threads"]["rows"]
    assert sum(row["phases"].values()) <= busy + 1e-9
    told = sum(seconds.values()) / 10
    if 0 < told <= busy:
        assert sum(row["phases"].values()) == pytest.approx(told)


A, B, C = (ObservedHost(host=f"{name}:1", active=[f"0_{n}"]) for n, name in enumerate("abc"))


def test_who_is_gone_is_told_with_where_its_tasks_went() -> None:
    everybody = changed(SERENE, hosts=[A, B, replace(C, active=["0_2", "0_3", "0_4"])])
    taken = [replace(A, active=["0_0", "0_2"]), replace(B, active=["0_1", "0_3"])]
    found = looked([everybody, everybody, changed(SERENE, hosts=taken), changed(hosts=taken)])
    assert found.gone == [GoneHost("c:1", NOW_MS + 10_000, ["0_2", "0_3", "0_4"])]
    view = page_view(found)["instances"]
    row = view["rows"][-1]
    assert (row["host"], row["state"], row["age_s"]) == ("c:1", "gone", 5.0)
    assert (view["here"], view["told"]) == (1, 1)
    for part in ("3 active tasks", "1 at a:1", "1 at b:1", "1 run nowhere yet"):
        assert part in row["said"]["text"]
    assert row["said"]["tone"] == BAD


def test_who_comes_back_is_not_gone_and_after_an_hour_it_is_forgotten() -> None:
    both, one = changed(SERENE, hosts=[A, B]), changed(SERENE, hosts=[A])
    assert looked([both, one, both, both]).gone == []
    assert [gone.host for gone in looked([both, one, changed(hosts=[]), one]).gone] == ["b:1"]
    history = SnapshotHistory()
    for at_ms, seen in enumerate([both, one]):
        history.add(seen, at_ms, at_ms)
    history.add(one, TREND_MS + 2, int(TREND_MS) + 2)
    assert history.facts(one, TREND_MS + 2, int(TREND_MS) + 2).gone == []


COLD = ObservedThread(number=1, alive=True, tasks=0, warm=False)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"threads": []}, "it starts, 3 s"),
        ({"threads": [COLD]}, " of 1 stream thread,"),
        ({"threads": [COLD, COLD]}, "of 2 stream threads, 3 s"),
        ({"members": None, "tasks": []}, "joined its group yet, 3 s"),
        ({"tasks": [replace(RUNNING, state="RESTORING")]}, "run yet: 1_0, 3 s"),
        ({}, "its group rebalances, 3 s"),
    ],
)
def test_rebalancing_says_what_it_waits_for(values: dict[str, object], why: str) -> None:
    seen = changed(SERENE, state="REBALANCING", state_s=3.2, **values)
    assert why in state_reason(seen)
    assert status_of(seen)["state"] == "REBALANCING", "Kafka Streams' word"
    assert status_of(seen)["state_reason"] == state_reason(seen)
    assert page_view(facts(seen))["instance"]["state_reason"] == state_reason(seen)
    assert observation_in(status_of(seen)).state_s == 3.2
    if COLD in seen.threads:
        assert not ready(seen).ok
        assert health(facts(seen)).text.startswith("It prepares")


@pytest.mark.parametrize(
    "state", ["CREATED", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING", "ERROR"]
)
def test_other_states_say_it_all(state: str) -> None:
    assert state_reason(changed(SERENE, state=state, threads=[COLD])) == ""


def test_which_program_runs_is_said_also_by_one_of_a_version_before() -> None:
    seen = changed(SERENE, topology="0123456789abcdef", program="/app/orders.py:7", started_ms=5)
    status = status_of(seen)
    assert (status["version"], status["topology"]) == (seen.version, "0123456789abcdef")
    assert (status["program"], status["started_ms"]) == ("/app/orders.py:7", 5)
    view = page_view(facts(seen))
    assert view["instance"]["program"] == "/app/orders.py:7"
    assert view["instances"]["rows"][0]["program"] == f"{seen.version} 0123456789abcdef"
    for name in ("topology", "program", "started_ms", "state_s", "state_reason"):
        del status[name]
    for thread in status["threads"]:
        del thread["warm"]
    older = observation_in(status)
    assert (older.topology, older.program) == ("", "")
    assert re.fullmatch(r"\S+", page_view(facts(older))["instances"]["rows"][0]["program"])


def test_a_copy_is_no_active_task_of_who_is_gone() -> None:
    host = ObservedHost(host="b:1", active=[], standby=["1_2"])
    assert isinstance(STANDBY, ObservedTask)
    found = looked([changed(SERENE, hosts=[A, host]), changed(hosts=[A]), changed(hosts=[A])])
    row = page_view(found)["instances"]["rows"][-1]
    assert "no active task" in row["said"]["text"]
    assert row["said"]["tone"] == BUSY


# Rates, spans, the trend and the line on top, of looks alone.


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
    history = SnapshotHistory()
    for second in range(0, 100, 5):
        history.add(counted(SERENE, consumed=second * 10.0), second * 1000.0, second * 1000)
    found = history.facts(counted(SERENE, consumed=950.0), 95_000.0, 95_000)
    assert RATE_MS / 1000 <= found.passed_s <= 35
    assert found.total_growth(names.RECORDS_CONSUMED) == 10.0
    assert [point.rate for point in found.trend] == [0.0, *([10.0] * 19)]


def test_a_span_begins_where_a_task_becomes_something_else() -> None:
    history = SnapshotHistory()
    for second, tasks in enumerate(
        [[RESTORING], [RESTORING], [replace(RESTORING, state="RUNNING")], []]
    ):
        history.add(changed(SERENE, tasks=tasks), second * 1000.0, second * 1000)
    spans = history.facts(SERENE, 4_000.0, 4_000).spans
    assert spans == {
        "1_1": [RoleSpan(0, "restoring"), RoleSpan(2_000, "active"), RoleSpan(3_000, "")]
    }


def test_what_is_kept_is_bounded() -> None:
    history = SnapshotHistory(most_tasks=3)
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
            r"It has stopped \(ERROR\): \[EF-X\] gone",
        ),
        ({"state": "PENDING_SHUTDOWN"}, BUSY, "It ends: 2 tasks still here"),
        ({"silent_s": 12.0}, BAD, "The brokers .* 12 s: .*"),
        ({"threads": [], "tasks": [], "state": "CREATED"}, BUSY, "It starts"),
        ({"tasks": [], "members": None, "state": "REBALANCING"}, BUSY, "It joins .*"),
        ({"tasks": []}, GOOD, "It has no [^,]*"),
        ({"tasks": [STANDBY]}, GOOD, "It has no .*, and keeps 1 copies .*"),
        ({"counters": {}}, BUSY, "How much waits .*"),
    ],
)
def test_what_holds_is_said(values: dict[str, Any], tone: str, text: str) -> None:
    said = health(facts(changed(SERENE, **values)))
    assert said.tone == tone
    assert re.fullmatch(text, said.text)


def test_a_task_that_does_not_get_on_is_named_with_its_reason() -> None:
    said = health(facts(changed(SERENE, tasks=[ACTIVE, replace(ACTIVE, task="1_5")])))
    assert said.tone == BAD
    assert re.fullmatch(r"Task 1_0 .* 1 more: ValueError: bad \(once in 2 s\)", said.text)


def test_a_restore_says_how_much_and_how_long() -> None:
    well = [replace(task, trouble="") for task in FULL.tasks]
    said = health(facts(changed(FULL, tasks=well)))
    assert said.tone == BUSY
    assert said.text.startswith("It restores 1 task: 70 records are left, 2 s ")
    unknown = [replace(task, remaining_s=None, lag=None) for task in well]
    assert health(facts(changed(FULL, tasks=unknown))).text == "It restores 1 task"


def test_what_an_open_transaction_holds_back_is_no_lag_and_is_said() -> None:
    held = {("in", 0): StableLag(1_200, 7, 240.0), ("in", 1): StableLag(3, 9, 61.0)}
    said = health(facts(changed(SERENE, stable_lags=held)))
    assert said.tone == BAD
    assert re.match(".* transaction .* in-0 for 4 min: 1,200 records, and 1 more ", said.text)
    for_a_moment = {("in", 0): StableLag(1_200, 7, 5.0)}
    lag = {"counters": {names.LAG: 0.0}}
    assert health(facts(changed(SERENE, stable_lags=for_a_moment, **lag))).tone == GOOD


@pytest.mark.parametrize(
    ("before", "now", "consumed", "tone", "text", "drain_s"),
    [
        (50, 15, 100, GOOD, "It keeps up: 10 records/s", 0.0),
        (5_000, 4_000, 9_000, BUSY, "4,000 records wait: drained in 40 s .*", 40),
        (
            50_010,
            50_000,
            9_000,
            BAD,
            "50,000 records wait: drained in 13 h 53 min .*, later .* 2 min",
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
            "4,000 records wait, as many .*",
            None,
        ),
    ],
)
def test_the_time_to_drain(
    before: int, now: int, consumed: int, tone: str, text: str, drain_s: float | None
) -> None:
    old = counted(SERENE, lag=before, consumed=0)
    said = health(facts(counted(SERENE, lag=now, consumed=consumed), old))
    assert (said.tone, said.drain_s) == (tone, drain_s)
    assert re.fullmatch(text, said.text)


def test_of_one_look_no_trend_is_told() -> None:
    said = health(facts(counted(SERENE, lag=7)))
    assert said == (BUSY, "7 records wait", None)


def test_a_lag_that_was_not_known_before_has_no_trend() -> None:
    old = changed(SERENE, counters={names.RECORDS_CONSUMED: 0.0})
    assert health(facts(counted(SERENE, lag=70), old)).drain_s is None


def test_durations() -> None:
    given = (3.2, 99, 240, 7_800, 200_000)
    assert [duration(s) for s in given] == ["3 s", "99 s", "4 min", "2 h 10 min", "2 d"]
