"""Facts of an instance for tests of its page."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everflow import metrics as names
from everflow.metrics import Labels
from everflow.observe.observation import Observation, ObservedHost
from everflow.observe.page.history import Event, Facts, RoleSpan, TimedSnapshot, TrendPoint
from everflow.rebalances import COMPLETE, Decision, Rebalance, Route
from unit.observe.observations import FULL, WHOLE, changed

NOW_MS = 1_790_000_000_000
HOSTS = [
    ObservedHost(host="a:1", active=["1_0", "1_1"], standby=["1_2"]),
    ObservedHost(host="b:1", active=["1_2"], standby=["1_0"]),
]


def counted(
    seen: Observation, series: Mapping[str, Mapping[Labels, float]] | None = None, **totals: float
) -> Observation:
    """With these counters instead: ``lag``, ``consumed``, ``letters``."""
    named = {"lag": names.LAG, "consumed": names.RECORDS_CONSUMED, "letters": names.DEAD_LETTERS}
    counters = {named[name]: value for name, value in totals.items()}
    return changed(
        seen,
        counters={**seen.counters, **counters},
        series=seen.series if series is None else series,
    )


def facts(seen: Observation, before: Observation | None = None, **values: Any) -> Facts:
    """``before`` is ten seconds older."""
    now = TimedSnapshot(20_000.0, seen)
    old = now if before is None else TimedSnapshot(10_000.0, before)
    return Facts(now_ms=NOW_MS, before=old, now=now, **values)


JOINED = Rebalance(
    instance="one",
    generation=3,
    began_ms=NOW_MS - 60_000,
    reason="start",
    why="this instance joined",
    asked="",
    before=None,
    members=None,
    kept=[],
    gained=["1_0", "1_1", "1_2"],
    lost=[],
    promoted=["1_1"],
    standbys=[],
    warmups=[],
    joined_ms=40.0,
    decision=None,
)
HANDED_OVER = replace(
    JOINED,
    generation=4,
    began_ms=NOW_MS - 10_000,
    reason="joined",
    why="joined: two",
    before=["one"],
    members=["one", "two"],
    kept=["1_0", "1_1"],
    gained=[],
    lost=["1_2"],
    promoted=[],
    outcome=COMPLETE,
    duration_ms=1_500.0,
    gaps_ms={"1_0": 210.5, "1_1": None},
    restored_records=7,
    restored_bytes=70,
    decision=Decision(
        tasks=3,
        members=["one", "two"],
        before={"one": ["1_0", "1_1", "1_2"]},
        moved=[Route(tasks=["1_2"], origin="", to="two")],
    ),
)
SERENE = replace(WHOLE, tasks=[replace(WHOLE.tasks[0], trouble=""), *WHOLE.tasks[1:]])
"""All tasks get on."""
STARTED = counted(SERENE, {}, lag=90.0, consumed=0.0)
SHOWN = facts(
    counted(replace(FULL, hosts=HOSTS, members=3), lag=30.0, consumed=1_000.0),
    STARTED,
    spans={"1_0": [RoleSpan(NOW_MS - 60_000, "restoring"), RoleSpan(NOW_MS - 50_000, "active")]},
    trend=[TrendPoint(NOW_MS - 5_000 * n, 100.0 * n, 10.0) for n in range(9, -1, -1)],
    events=[
        Event(at_ms=NOW_MS - 3_000, level="INFO", text="REBALANCING -> RUNNING"),
        Event(at_ms=NOW_MS - 2_000, level="INFO", text="Assigned 1 task: 1_0", about="assignment"),
        Event(at_ms=NOW_MS - 1_000, level="WARNING", text="a broker is slow", times=3),
    ],
)
