"""The page as a browser shows it; its pictures in the docs are made here."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everflow import StreamsBuilder, TimeWindows, serdes
from everflow import metrics as names
from everflow.metrics import Labels, Seen
from everflow.observe.http_server import HttpServer, application
from everflow.observe.observation import (
    Observation,
    ObservedConnector,
    ObservedHost,
    ObservedStore,
    ObservedTask,
    ObservedThread,
    ObservedWriter,
    StableLag,
)
from everflow.observe.page.history import Event, Facts, RoleSpan, TimedSnapshot, TrendPoint
from everflow.observe.page.other_instances import OtherInstance
from everflow.observe.page.routes import (
    CauseLetters,
    LetterCause,
    LettersFound,
    LettersReplayed,
    Page,
)
from everflow.observe.page.view import with_rates
from everflow.rebalances import COMPLETE, IN_PROGRESS, Decision, Rebalance, Route
from everflow.topology.describe import drawing_json
from everflow.topology.program import Topology
from integration.observed.chromium import Browser, browser

pytestmark = pytest.mark.slow

PICTURES = Path(__file__).parents[3] / "docs" / "guide" / "pictures"
RENEW = os.environ.get("EVERFLOW_PICTURES") == "1"
"""True if the pictures in the docs are made anew."""
NOW_MS = 1_790_000_000_000
ODD = "<img src=x onerror=\"document.body.dataset.broken='yes'\"><b>&amp;'\""
NO_ITEM = "ValueError: no item in '{}'" if RENEW else ODD
"""In a picture no odd text is wanted."""


def program(out: Any = "totals") -> Topology:
    """Orders of items: cleaned, counted by item and minute; ``out``: the last topic, or who names
    it."""
    builder = StreamsBuilder()
    (
        builder.stream("orders", key=serdes.string(), value=serdes.string(), name="orders-in")
        .filter(lambda _, value: value != "", name="not-empty")
        .group_by(lambda _, value: value, name="by-item", returns=serdes.string())
        .windowed_by(TimeWindows.of_size("1 minute"))
        .count(store="per-minute")
        .to_stream()
        .to(out, name="totals-out")
    )
    return builder.build()


def task(number: int, **values: object) -> ObservedTask:
    """An active one of the counting sub-topology."""
    made = ObservedTask(
        task=f"0_{number}",
        role="active",
        state="RUNNING",
        lag=[1_800, 0, 0, 1_200, 0, 0, 0, 0][number],
        thread=number % 2,
        stores=[ObservedStore(name="per-minute", bytes=(8 - number) * 3_200_000)],
    )
    return replace(made, **values)  # type: ignore[arg-type]


PHASES = {
    "read": 0.6,
    "decode": 0.5,
    "columns": 0.4,
    "operators": 1.6,
    "write": 0.9,
    "gate": 0.2,
    "offsets": 0.1,
    "delivery": 0.3,
    "commit": 0.4,
    "apply": 0.3,
    "plan": 0.4,
}
THREADS = [
    ObservedThread(number=0, alive=True, tasks=3, busy=0.61),
    ObservedThread(number=1, alive=True, tasks=2, busy=0.48),
]
COUNTERS = {
    names.LAG: 264_000.0,
    names.RECORDS_CONSUMED: 940_000,
    names.COMMITS: 2_310,
    names.COMMITS_ABORTED: 2,
    names.DEAD_LETTERS: 14,
    names.REBALANCES: 3,
}
SERIES: dict[str, dict[Labels, float]] = {
    names.PROCESSED: {
        ("0", "1_0", "orders-in"): 300_000,
        ("1", "0_3", "by-item-repartition-source"): 190_000,
    },
    names.SENT: {("totals-out", "totals"): 61_000},
    names.BATCHES: {("0",): 120, ("1",): 96},
    names.BATCH_SECONDS: {
        (thread, phase): seconds * (0.8 if thread == "1" else 1.0)
        for thread in "01"
        for phase, seconds in PHASES.items()
    },
    names.LEFT_OUT: {("ValueError", "not-empty", "orders"): 14},
    names.DROPPED: {("1", "KSTREAM-AGGREGATE-0000000000", "late"): 212},
    names.STORE_PUTS: {("0_0", "per-minute"): 9_000, ("0_3", "per-minute"): 4_000},
    names.FAILED_BATCHES: {("0", "aborted"): 2, ("1", "worker"): 1},
    names.REFUSED_COMMITS: {("0", "generation"): 2},
    names.RENEWED_PRODUCERS: {("1",): 1},
    names.LAST_COMMIT: {("0",): NOW_MS - 400, ("1",): NOW_MS - 94_000},
}
RECENT: dict[str, dict[Labels, Seen]] = {
    names.BATCH_LATENCY: {
        ("0",): Seen(20, 980.0, 21.0, 113.0),
        ("1",): Seen(9, 405.0, 20.0, 80.0),
    },
    names.COMMIT_LATENCY: {("0",): Seen(20, 160.0, 5.0, 31.0)},
}


WRITERS = [
    ObservedWriter(thread=0, transactional_id="shop-pod-0-0", state="Empty", open_s=0.0),
    ObservedWriter(thread=1, transactional_id="shop-pod-0-1", state="Ongoing", open_s=93.0),
]
HELD_BACK = {("orders", 2): StableLag(310, 88_121, 44.0), ("orders", 0): StableLag(0, 7, 0.0)}


def looks() -> tuple[Observation, Observation]:
    """Of an instance that catches up: ten seconds ago, and now."""
    behind = [22_000, 98_000, 141_000]
    source = [
        ObservedTask(task=f"1_{n}", role="active", state="RUNNING", lag=lag, thread=n % 2)
        for n, lag in enumerate(behind)
    ]
    tasks = [
        *source,
        task(0),
        task(1, role="warm-up", lag=41_000, copied=230_000, rate=18_000.0, remaining_s=2.3),
        task(2, role="standby", lag=7, thread=None),
        task(3),
    ]
    seen = Observation(
        application_id="shop",
        client_id="shop-pod-0",
        version="0.1.0",
        state="RUNNING",
        state_number=2,
        threads=THREADS,
        tasks=tasks,
        counters=COUNTERS,
        series=SERIES,
        recent=RECENT,
        samples={
            ("ValueError", "not-empty", "orders"): "orders-2@88121 (ValueError: no item in '{}')"
        },
        lags={
            ("orders", 0): 22_000,
            ("orders", 1): 98_000,
            ("orders", 2): 141_000,
            ("shop-by-item-repartition", 0): 1_800,
            ("shop-by-item-repartition", 3): 1_200,
        },
        writers=WRITERS,
        stable_lags=HELD_BACK,
        answer_age_s=2.0,
        members=3,
        application_tasks=7,
        desired_instances=3,
        hosts=[
            ObservedHost(
                host="pod-0:8080", active=["1_0", "1_1", "1_2", "0_0", "0_3"], standby=["0_2"]
            ),
            ObservedHost(host="pod-1:8080", active=["0_1", "0_2"], standby=["0_0"]),
        ],
    )
    counters = {**seen.counters, names.LAG: 290_000.0, names.RECORDS_CONSUMED: 702_000}
    old = replace(
        seen,
        counters=counters,
        series={},
        lags={place: lag + lag // 10 for place, lag in seen.lags.items()},
    )
    return old, seen


EVENTS = [
    Event(at_ms=NOW_MS - 1_790_000, level="INFO", text="REBALANCING -> RUNNING"),
    Event(
        at_ms=NOW_MS - 1_100_000,
        level="INFO",
        about="assignment",
        text="The leader decides: 7 tasks on 3 instances; new: pod-2; moves now: 1_1 from "
        "pod-1 to pod-0; warm-ups: 0_1 on pod-0; still to move: 1",
    ),
    Event(
        at_ms=NOW_MS - 1_099_000,
        level="INFO",
        about="assignment",
        text="Assigned 1 task: 1_1",
    ),
    Event(
        at_ms=NOW_MS - 60_000,
        level="WARNING",
        times=4,
        text="records skipped in a batch: orders-2@88121 (ValueError: no item in '{}')",
    ),
]


def facts_of(old: Observation, seen: Observation) -> Facts:
    begin = NOW_MS - 1_800_000
    spans = {
        "1_0": [RoleSpan(begin, "active")],
        "1_1": [RoleSpan(begin, "standby"), RoleSpan(begin + 700_000, "active")],
        "1_2": [RoleSpan(begin, "parked"), RoleSpan(begin + 200_000, "active")],
        "0_0": [RoleSpan(begin, "active")],
        "0_1": [RoleSpan(begin + 1_700_000, "warm-up")],
        "0_2": [RoleSpan(begin, "active"), RoleSpan(begin + 700_000, "standby")],
        "0_3": [
            RoleSpan(begin, "warm-up"),
            RoleSpan(begin + 600_000, "restoring"),
            RoleSpan(begin + 640_000, "active"),
        ],
    }
    trend = [
        TrendPoint(
            NOW_MS - 15_000 * n,
            264_000.0 + 3_900 * n if n < 60 else 8_300.0 * (120 - n),
            23_800.0 - 90 * n,
        )
        for n in range(119, -1, -1)
    ]
    before, now = TimedSnapshot(0.0, old), TimedSnapshot(10_000.0, seen)
    looked = Facts(now_ms=NOW_MS, before=before, now=now)
    return replace(
        looked,
        now=now._replace(seen=replace(seen, tasks=with_rates(looked))),
        spans=spans,
        trend=trend,
        events=EVENTS,
    )


@contextlib.contextmanager
def served(
    look: Callable[[], Facts], topology: Topology | None = None, **values: Any
) -> Iterator[HttpServer]:
    topology = topology or program()
    page = Page(facts=look, drawing=drawing_json(topology), every_s=0.2, **values)
    app = application(lambda: look().seen, "Topologies:\n", page=page)
    server = HttpServer("127.0.0.1:0", app)
    try:
        yield server
    finally:
        server.close()


def shown(window: Browser, server: HttpServer) -> None:
    window.open(f"http://{server.address}/page")
    window.until("document.body && document.body.dataset.shown === 'yes'", "the first view")


def drawn(window: Browser) -> None:
    """Waits for Mermaid, and for the view after it."""
    window.until("document.querySelector('#topology .said') !== null", "the drawing")


def text(window: Browser, element: str) -> str:
    return str(window.value(f"document.querySelector({json.dumps(element)}).textContent"))


def rebalance(number: int, **values: Any) -> Rebalance:
    made = Rebalance(
        instance="pod-0",
        generation=number,
        began_ms=NOW_MS - 100_000 + 10_000 * number,
        reason="joined",
        why=f"joined: {ODD}",
        asked="",
        before=["pod-0"],
        members=["pod-0", "pod-1"],
        kept=["0_0"],
        gained=[],
        lost=["0_1"],
        promoted=[],
        standbys=["0_1"],
        warmups=[],
        joined_ms=40.0,
        duration_ms=1_500.0,
        gaps_ms={"0_0": 210.0, "0_2": None},
        restored_records=7_000,
        restored_bytes=3_200_000,
        outcome=COMPLETE,
        decision=Decision(
            tasks=3,
            members=["pod-0", "pod-1"],
            moved=[Route(tasks=["0_1"], origin="pod-0", to="pod-1")],
        ),
    )
    return replace(made, **values)


def test_connectors_stand_with_what_is_wanted_and_their_last_error(tmp_path: Path) -> None:
    lake = ObservedConnector(
        name="lake",
        kind="sink",
        what="DeltaSink",
        paused=True,
        tasks={"0_0": "PAUSED", "0_1": "FAILED"},
        lag=7_000,
        rows=12_000,
        errors=3,
        error=ODD,
        failed_ms=NOW_MS,
    )
    facts = facts_of(*looks())
    hidden = "document.querySelector('#connectors').hidden"
    with served(lambda: facts) as server, browser(tmp_path) as window:
        shown(window, server)
        assert window.value(hidden) is True
        facts = replace(facts, now=facts.now._replace(seen=replace(facts.seen, connectors=[lake])))
        window.until(f"{hidden} === false", "the panel of connectors")
        (row,) = window.value(
            "[...document.querySelectorAll('#connectors tr')].slice(1).map((row) =>"
            " [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
        )
        assert row[:4] == ["lake", "sink, DeltaSink", "paused", "1 FAILED, 1 PAUSED"]
        assert row[4:7] == ["7,000", "12,000", "3"]
        assert row[7].endswith(ODD)
        assert window.value("document.body.dataset.broken || 'whole'") == "whole"


def test_rebalances_stand_with_their_reason_moves_and_gaps(tmp_path: Path) -> None:
    of_others = rebalance(
        2,
        why="another instance joined, left or asked",
        before=None,
        members=None,
        lost=[],
        standbys=[],
        duration_ms=None,
        gaps_ms={},
        restored_records=0,
        outcome=IN_PROGRESS,
        decision=None,
    )
    facts = replace(facts_of(*looks()), rebalances=[rebalance(1), of_others])
    with served(lambda: facts) as server, browser(tmp_path) as window:
        shown(window, server)
        rows = window.value(
            "[...document.querySelectorAll('#rebalances tr')].slice(1).map((row) =>"
            " [...row.querySelectorAll('td')].slice(1).map((cell) => cell.textContent))"
        )
        assert rows == [
            [of_others.why, "?", "no change", "", IN_PROGRESS, "", ""],
            [
                f"joined: {ODD}",
                "1 to 2",
                "lost 0_1; standbys 0_1",
                "0_1 from pod-0 to pod-1",
                "1.5 s",
                "0.2 s",
                "7,000 records, 3.1 MiB",
            ],
        ]
        assert window.value("document.body.dataset.broken || 'whole'") == "whole"


def test_the_page_answers_an_operators_questions_in_their_order(tmp_path: Path) -> None:
    facts = facts_of(*looks())
    with served(lambda: facts) as server, browser(tmp_path) as window:
        shown(window, server)
        assert text(window, "#verdict").startswith("264,000 records wait: drained in 2 min ")
        assert window.value("[...document.querySelectorAll('section')].map((one) => one.id)") == [
            "trend",
            "topology",
            "instances",
            "tasks",
            "lags",
            "connectors",
            "threads",
            "assignment",
            "rebalances",
            "stores",
            "letters",
            "transactions",
            "events",
        ]
        drawn(window)
        assert text(window, "#topology g[data-node='orders-in'] .said") == "30,000/s"
        assert text(window, "#topology g[data-node='orders-in'] title").startswith(
            "orders-in\nstring -> string\nat "
        )
        assert text(window, "#topology g[data-topic='orders'] .said") == "261,000 wait"
        assert text(window, "#topology g[data-sub='1'] .said").startswith("3 active here")
        assert "5 active, 1 standby" in text(window, "#tasks .hint").replace("1 warm-up, ", "")
        assert "warm-up 84 %" in text(window, "#tasks table")
        assert text(window, "#lags tr:nth-child(2)").startswith("orders2")
        assert "pod-1" in text(window, "#tasks table")
        assert window.value(
            "[...document.querySelectorAll('#threads .keyed, #kinds .keyed')].map((one) =>"
            " one.getClientRects().length + ' ' + Math.round(one.offsetHeight / 21))"
        ) == ["1 1"] * (5 + 2 * len(PHASES)), "no word stands on another line than its colour"
        assert "new: pod-2" in text(window, "#assignment")
        assert "orders-2@88121" in text(window, "#letters")
        assert "1 of 3 instances" in text(window, "#tasks .hint")
        assert text(window, "#writers tr:nth-child(2)") == (
            "0shop-pod-0-0no0.4 s agogeneration 200"
        )
        assert text(window, "#writers tr:nth-child(3)") == (
            "1shop-pod-0-1for 93 s (Ongoing)94 s agoworker 101"
        )
        assert text(window, "#held") == (
            "topicpartitionrecords held backfor at leastfrom offsetorders231044 s88121"
        )
        assert window.said == [], "nothing failed, and nothing was refused"
        if RENEW:
            PICTURES.mkdir(exist_ok=True)
            window.picture("header", PICTURES / "page-verdict.png")
            for section in ("topology", "tasks", "threads", "transactions"):
                window.picture(f"#{section}", PICTURES / f"page-{section}.png")


def test_users_texts_are_texts(tmp_path: Path) -> None:
    old, seen = looks()
    odd = replace(
        seen,
        application_id=ODD,
        client_id=ODD,
        tasks=[task(0, trouble=ODD, stores=[ObservedStore(name=ODD, bytes=1)])],
        threads=[ObservedThread(number=0, alive=True, tasks=1, trouble=ODD)],
        lags={(ODD, 0): 5},
        series={
            **seen.series,
            names.LEFT_OUT: {(ODD, ODD, ODD): 1},
            names.FAILED_BATCHES: {("0", ODD): 1},
        },
        writers=[ObservedWriter(thread=0, transactional_id=ODD, state=ODD, open_s=1.0)],
        stable_lags={(ODD, 0): StableLag(1, 1, 1.0)},
        samples={(ODD, ODD, ODD): ODD},
        hosts=[ObservedHost(host=ODD, active=["0_0"])],
    )
    events = [
        Event(at_ms=NOW_MS, level="WARNING", text=ODD),
        Event(at_ms=NOW_MS, level="INFO", text=ODD, about="assignment"),
    ]
    facts = replace(facts_of(old, odd), events=events)

    def out(_: object) -> str:
        return "totals"

    out.__name__ = ODD
    with served(lambda: facts, program(out)) as server, browser(tmp_path) as window:
        shown(window, server)
        drawn(window)
        topics = "[...document.querySelectorAll('#topology g[data-topic] text')]"
        assert ODD in window.value(f"{topics}.map((one) => one.textContent)")
        for section in (
            "#instance",
            "#tasks",
            "#lags",
            "#letters",
            "#events",
            "#assignment",
            "#stores",
            "#writers",
            "#held",
        ):
            assert ODD in text(window, section)
        assert window.value("document.querySelectorAll('img').length") == 0
        assert window.value("document.body.dataset.broken") is None
        assert window.value("document.title").startswith("<img")
        assert window.said == []


TOKEN = "a-token-of-many-characters"


class Desk:
    """A topic with two letters of one cause."""

    topic = "dead"

    def __init__(self) -> None:
        self.replayed: list[LetterCause] = []
        self.times: list[int | None] = []

    def by_cause(self) -> LettersFound:
        cause = LetterCause(ODD, "not-empty", "orders")
        left = 0 if self.replayed else 2
        found = CauseLetters(cause=cause, letters=2, open=left, sample=ODD, late=left)
        return LettersFound(topic="dead", causes=[found])

    def replay(self, cause: LetterCause, time_ms: int | None) -> LettersReplayed:
        self.replayed.append(cause)
        self.times.append(time_ms)
        return LettersReplayed(replayed=2, left=0)


@pytest.mark.parametrize("pressed", [0, 1])
def test_dead_letters_are_seen_and_replayed_by_a_second_press(tmp_path: Path, pressed: int) -> None:
    desk, facts = Desk(), facts_of(*looks())
    button = "document.querySelector('#letters-found button')"
    second = f"document.querySelectorAll('#letters-found button')[{pressed}]"
    with (
        served(lambda: facts, tokens=[TOKEN], desk=desk) as server,
        browser(tmp_path) as window,
    ):
        window.open(f"http://anybody:{TOKEN}@{server.address}/page")
        window.until("document.body && document.body.dataset.shown === 'yes'", "the first view")
        window.value("document.querySelector('#letters-read').click()")
        window.until(f"{button} !== null", "the letters")
        assert ODD in text(window, "#letters-found details pre")
        window.value(f"{button}.click()")
        asked = text(window, "#letters-found button")
        assert asked.startswith("Write 2 again into orders, ")
        assert "2 of them" in text(window, "#letters-found .hint")
        assert desk.replayed == []
        window.value(f"{second}.click()")
        window.until(f"{button}.textContent === 'Replay 0'", "the replay to be told")
        window.until(
            "document.querySelector('#letters-said').textContent.startsWith('2 replayed')", "a word"
        )
        assert desk.replayed == [LetterCause(ODD, "not-empty", "orders")]
        assert [time_ms is None for time_ms in desk.times] == [pressed == 0]
        assert window.value("document.querySelectorAll('img').length") == 0
        assert window.said == []


class Others:
    """Two other instances: one tells, one has gone silent."""

    def own(self) -> str:
        return "pod-0:8080"

    def states(self, hosts: object) -> list[OtherInstance]:
        _, seen = looks()
        their = [
            ObservedTask(task="0_1", role="active", state="RUNNING", lag=41_000, rate=900.0),
            ObservedTask(task="0_2", role="active", state="RUNNING", lag=0),
            ObservedTask(task="0_0", role="standby", state="RUNNING", lag=3),
            ObservedTask(task="2_0", role="active", state="RUNNING", lag=12, trouble=NO_ITEM),
        ]
        told = replace(
            seen,
            client_id="shop-pod-1",
            tasks=their,
            lags={("shop-by-item-repartition", 1): 41_000},
            counters={names.LAG: 41_000.0, names.RECORDS_CONSUMED: 500_000},
        )
        before = replace(told, counters={names.LAG: 52_000.0, names.RECORDS_CONSUMED: 431_000})
        there = facts_of(before, told)
        return [
            OtherInstance("pod-1:8080", there, 2.0),
            OtherInstance(
                "pod-2:8080", there, 94.0, "timed out" if RENEW else f"timed out {ODD}", 92.0
            ),
        ]


def test_all_instances_are_on_one_page(tmp_path: Path) -> None:
    facts = facts_of(*looks())
    others: Any = Others()
    with served(lambda: facts, other_instances=others) as server, browser(tmp_path) as window:
        shown(window, server)
        assert text(window, "#verdict").startswith("pod-1:8080: Task 2_0 ")
        assert re.match("3 of 3 tell .*: 346,000", text(window, "#instances .hint"))
        assert text(window, "#instances tr:nth-child(2)").startswith("pod-0:8080 (this one)RUNNING")
        assert "94 s ago: timed out" in text(window, "#instances tr:nth-child(4)")
        rows = "[...document.querySelectorAll('#tasks tr')].map((one) => one.textContent)"
        found = window.value(rows)
        assert any(row.startswith("2_0parked at pod-1:8080") for row in found)
        assert "pod-1:8080" in text(window, "#lags")
        assert NO_ITEM in text(window, "#instances")
        assert window.value("document.querySelectorAll('img').length") == 0
        assert window.said == []
        if RENEW:
            window.picture("#instances", PICTURES / "page-instances.png")


def test_ten_thousand_tasks_are_shown_in_parts(tmp_path: Path) -> None:
    old, seen = looks()
    many = replace(
        seen,
        tasks=[replace(task(0), task=f"0_{n}", lag=n) for n in range(10_000)],
        lags={("orders", n): n for n in range(10_000)},
    )
    with served(lambda: facts_of(old, many)) as server, browser(tmp_path) as window:
        shown(window, server)
        assert "10,000 active. 9,880 more" in text(window, "#tasks .hint")
        assert window.value("document.querySelectorAll('#tasks tr').length") == 121
        assert text(window, "#lags tr:nth-child(2)").startswith("orders9,999".replace(",", ""))


def test_what_changes_is_followed_and_an_end_is_said(tmp_path: Path) -> None:
    old, seen = looks()
    starts = replace(seen, state="CREATED", threads=[], tasks=[], lags={}, counters={}, series={})
    silent = replace(seen, silent_s=14.0)
    now = [starts]
    with browser(tmp_path) as window:
        with served(lambda: facts_of(old, now[0])) as server:
            shown(window, server)
            assert text(window, "#verdict") == "It starts"
            assert "No task here." in text(window, "#tasks")
            now[0] = replace(seen, tasks=[task(0, state="RESTORING", lag=500, copied=500)])
            restores = "document.querySelector('#verdict').textContent.startsWith('It restores 1')"
            window.until(restores, "the restore to be shown")
            assert "restoring 50 %" in text(window, "#tasks")
            now[0] = silent
            away = "document.querySelector('#verdict').textContent.includes('for 14 s')"
            window.until(away, "brokers that are away to be shown")
            assert "answered for 14 s" in text(window, "#lags .hint")
        window.until("document.querySelector('#link').hidden === false", "the end to be shown")
        assert "No connection" in text(window, "#link")
