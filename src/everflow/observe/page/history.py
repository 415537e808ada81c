"""Snapshots of an instance over time: its state an hour ago, the growth of its counters. Pure."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from everflow import metrics as names
from everflow.logs import LOGGER
from everflow.metrics import Labels
from everflow.observe.observation import Observation, ObservedTask, lag_of
from everflow.rebalances import Rebalance

KEPT = 500
LONGEST = 2_000
"""Characters of a line: an error may name ten thousand partitions."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """``at_ms``: epoch, the last time; ``times``: in a row; ``about``: ``assignment`` or empty."""

    at_ms: float
    level: str
    text: str
    about: str = ""
    times: int = 1


class EventBook(logging.Handler):
    """The log lines of this process's instances that `everflow run` shows, and every warning. Any
    thread may write and read. A repeated line is kept once."""

    def __init__(self, kept: int = KEPT) -> None:
        super().__init__(logging.INFO)
        self._events: dict[str, deque[Event]] = {}
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.name != LOGGER:
            return
        about = str(getattr(record, "about", ""))
        events = self._events.setdefault(about, deque(maxlen=self._kept))
        event = Event(
            at_ms=record.created * 1000,
            level=record.levelname,
            text=_short(record),
            about=about,
        )
        last = events[-1] if events else None
        if last is not None and (last.text, last.level) == (event.text, event.level):
            events[-1] = replace(event, times=last.times + 1)
        else:
            events.append(event)

    def events(self) -> list[Event]:
        """The oldest first. Warnings do not push out those about the assignment, kept apart."""
        with cast(Any, self.lock):
            found = [event for events in self._events.values() for event in events]
        return sorted(found, key=lambda event: event.at_ms)


def _short(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # a message that does not fit its arguments is no reason to fail
        text = str(record.msg)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


RATE_MS = 30_000.0
"""Over how long a rate is taken."""
TREND_MS = 3_600_000.0
SPANS = 60
"""Of one task; the oldest go first."""

PARKED, PAUSED, ACTIVE, RESTORING, STARTING, LEAVING = (
    "parked",
    "paused",
    "active",
    "restoring",
    "starting",
    "leaving",
)


def kind_of(task: ObservedTask) -> str:
    """The task's role here, for people; for an active task that does not process, the reason."""
    if task.trouble:
        return PARKED
    if task.paused:
        return PAUSED
    if task.role != "active":
        return task.role
    states = {"RUNNING": ACTIVE, "RESTORING": RESTORING, "SUSPENDED": LEAVING}
    return states.get(task.state, STARTING)


class RoleSpan(NamedTuple):
    """A task was this from then on (epoch ms), until the next span of it."""

    since_ms: int
    kind: str


class TrendPoint(NamedTuple):
    """Epoch ms, the lag (None: not known) and the records/s processed."""

    at_ms: int
    lag: float | None
    rate: float


class TimedSnapshot(NamedTuple):
    """A snapshot, and when: monotonic ms for differences."""

    monotonic_ms: float
    seen: Observation


class GoneHost(NamedTuple):
    """An instance that left the host map, since when (epoch ms), its active tasks until then."""

    host: str
    since_ms: int
    active: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The input of the dashboard. ``before`` and ``now`` are snapshots `RATE_MS` apart, or the
    same one; ``between``: those since ``before``; ``now_ms``: epoch; ``gone``: who has left in the
    last hour; ``rebalances``: the oldest first; ``drain_goal_s``: in which time a backlog is to be
    worked off (``scale.drain.ms``).
    """

    now_ms: int
    before: TimedSnapshot
    now: TimedSnapshot
    spans: Mapping[str, Sequence[RoleSpan]] = field(default_factory=dict)
    trend: Sequence[TrendPoint] = ()
    events: Sequence[Event] = ()
    drain_goal_s: float = 120.0
    between: Sequence[TimedSnapshot] = ()
    gone: Sequence[GoneHost] = ()
    rebalances: Sequence[Rebalance] = ()

    @property
    def seen(self) -> Observation:
        return self.now.seen

    @property
    def passed_s(self) -> float:
        """Between the two snapshots; 0 of one."""
        return max(0.0, self.now.monotonic_ms - self.before.monotonic_ms) / 1000

    @property
    def same_inputs(self) -> TimedSnapshot | None:
        """The oldest snapshot with a lag of the same partitions as now: the lag of partitions that
        were taken over is no growth. None: only the present one."""
        now = self.seen.lags.keys()
        snapshots = (self.before, *self.between)
        return next((snapshot for snapshot in snapshots if snapshot.seen.lags.keys() == now), None)

    def growth(self, name: str) -> dict[Labels, float]:
        """Growth per second of this name's counters, by labels; empty of one snapshot only."""
        if self.passed_s <= 0:
            return {}
        old = self.before.seen.series.get(name, {})
        return {
            labels: max(0.0, value - old.get(labels, 0.0)) / self.passed_s
            for labels, value in self.seen.series.get(name, {}).items()
        }

    def total_growth(self, name: str) -> float:
        """The same of a counter without labels."""
        if self.passed_s <= 0:
            return 0.0
        new, old = self.seen.counters.get(name, 0.0), self.before.seen.counters.get(name, 0.0)
        return max(0.0, new - old) / self.passed_s


@dataclass(kw_only=True)
class SnapshotHistory:
    """One caller at a time. ``most_tasks``: of more than these no spans are kept."""

    most_tasks: int = 20_000
    _samples: deque[TimedSnapshot] = field(default_factory=deque)
    _spans: dict[str, deque[RoleSpan]] = field(default_factory=dict)
    _trend: deque[TrendPoint] = field(default_factory=deque)
    _hosts: dict[str, Sequence[str]] = field(default_factory=dict)
    _gone: dict[str, GoneHost] = field(default_factory=dict)

    def add(self, seen: Observation, monotonic_ms: float, now_ms: int) -> None:
        """Take in a snapshot, some seconds after the one before."""
        self._samples.append(TimedSnapshot(monotonic_ms, seen))
        while len(self._samples) > 2 and self._samples[1].monotonic_ms <= monotonic_ms - RATE_MS:
            self._samples.popleft()
        self._note_tasks(seen, now_ms)
        self._note_hosts(seen, now_ms)
        facts = self.facts(seen, monotonic_ms, now_ms)
        rate = facts.total_growth(names.RECORDS_CONSUMED)
        self._trend.append(TrendPoint(now_ms, lag_of(seen), rate))
        while self._trend[0].at_ms < now_ms - TREND_MS:
            self._trend.popleft()

    def _note_tasks(self, seen: Observation, now_ms: int) -> None:
        kinds = {task.task: kind_of(task) for task in seen.tasks}
        for task in kinds.keys() | self._spans.keys():
            spans = self._spans.get(task)
            kind = kinds.get(task, "")
            if spans is None and len(self._spans) < self.most_tasks:
                spans = self._spans[task] = deque(maxlen=SPANS)
            if spans is not None and (not spans or spans[-1].kind != kind):
                spans.append(RoleSpan(now_ms, kind))
        gone = [
            task
            for task, spans in self._spans.items()
            if not spans[-1].kind and spans[-1].since_ms < now_ms - TREND_MS
        ]
        for task in gone:
            del self._spans[task]

    def _note_hosts(self, seen: Observation, now_ms: int) -> None:
        if not seen.hosts:  # the group names none
            return
        here = {one.host: one.active for one in seen.hosts}
        for host in self._hosts.keys() - here.keys():
            self._gone[host] = GoneHost(host, now_ms, self._hosts[host])
        self._hosts = here
        begin = now_ms - TREND_MS
        self._gone = {
            host: gone
            for host, gone in self._gone.items()
            if host not in here and gone.since_ms >= begin
        }

    def pair(self, seen: Observation, monotonic_ms: float, now_ms: int) -> Facts:
        """Only this snapshot and those before, for rates: it copies none."""
        now = TimedSnapshot(monotonic_ms, seen)
        before, *between = self._samples or (now,)
        return Facts(now_ms=now_ms, before=before, between=between, now=now)

    def facts(
        self, seen: Observation, monotonic_ms: float, now_ms: int, events: Sequence[Event] = ()
    ) -> Facts:
        return replace(
            self.pair(seen, monotonic_ms, now_ms),
            spans={task: list(spans) for task, spans in self._spans.items()},
            trend=list(self._trend),
            gone=sorted(self._gone.values()),
            events=events,
        )
