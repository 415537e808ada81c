"""One line that says how an instance does, and when it will have caught up. Pure.

The first thing that holds is said: an instance that has failed is not also behind. `with_rates`
says it of each active task: a copy's rate is told by who copies, what an active task processes is
in its thread's counters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from everflow import metrics as names
from everflow.observe.observation import Observation, ObservedTask
from everflow.observe.page.history import Facts
from everflow.observe.observation import DEAD, ENDING, held_back, lag_of

GOOD, BUSY, BAD = "good", "busy", "bad"
IN_FLIGHT_S = 2.0
"""Records that arrived within this time are being processed; they do not wait."""
SILENT_S = 5.0
"""Brokers that have not answered for so long are away."""
HELD_S = 60.0
"""A transaction that holds readers back for longer is a fault: so long is producers' time-out."""


class VerdictLine(NamedTuple):
    """``drain_s``: until nothing waits any more; None: not known, or never at this rate."""

    tone: str
    text: str
    drain_s: float | None = None


class Backlog(NamedTuple):
    """Records that wait, records/s processed, how many fewer wait each second. None: not known."""

    lag: float | None
    rate: float
    shrinks: float | None

    @staticmethod
    def of(facts: Facts) -> Backlog:
        lag, old, shrinks = lag_of(facts.seen), facts.same_inputs, None
        before = None if old is None else lag_of(old.seen)
        passed_s = 0.0 if old is None else (facts.now.monotonic_ms - old.monotonic_ms) / 1000
        if lag is not None and before is not None and passed_s > 0:
            shrinks = (before - lag) / passed_s
        return Backlog(lag, facts.total_growth(names.RECORDS_CONSUMED), shrinks)

    def also(self, other: Backlog) -> Backlog:
        return Backlog(
            None if self.lag is None or other.lag is None else self.lag + other.lag,
            self.rate + other.rate,
            None if self.shrinks is None or other.shrinks is None else self.shrinks + other.shrinks,
        )


def verdict(facts: Facts) -> VerdictLine:
    """The status of one instance: see the module."""
    blocked = hindered(facts.seen)
    if blocked is not None:
        return blocked
    return held_up(facts.seen) or backlog(Backlog.of(facts), facts.drain_goal_s)


def hindered(seen: Observation) -> VerdictLine | None:
    """The status in place of the lag; None: it processes."""
    if seen.state in DEAD:
        reason = f": {seen.error.splitlines()[0]}" if seen.error else ""
        return VerdictLine(BAD, f"It has stopped ({seen.state}){reason}")
    if seen.state in ENDING:
        return VerdictLine(BUSY, f"It ends: {_tasks(len(seen.tasks))} still here")
    if away := brokers_away(seen.silent_s):
        return VerdictLine(BAD, f"{away}: lag and ends are as they were then")
    troubled = [task for task in seen.tasks if task.trouble]
    if troubled:
        first = troubled[0]
        more = f", and {len(troubled) - 1:,} more" if len(troubled) > 1 else ""
        return VerdictLine(BAD, f"Task {first.task} does not get on{more}: {first.trouble}")
    dead = [str(thread.number) for thread in seen.threads if not thread.alive]
    if dead and seen.state == "RUNNING":
        return VerdictLine(BAD, f"Stream threads that ended: {', '.join(dead)}")
    if seen.restoring:
        return _restoring(seen)
    if not seen.threads:
        return VerdictLine(BUSY, "It starts")
    if seen.state != "RUNNING" and seen.preparing:
        return VerdictLine(BUSY, f"It {seen.preparing}")
    if not seen.active:
        return _without_tasks(seen)
    return None


def brokers_away(silent_s: float) -> str:
    """For how long the brokers have not answered; empty where they are not away."""
    away = silent_s >= SILENT_S
    return f"The brokers have not answered for {duration(silent_s)}" if away else ""


def _restoring(seen: Observation) -> VerdictLine:
    left = [task.lag for task in seen.restoring if task.lag is not None]
    text = f"It restores {_tasks(len(seen.restoring))}"
    if left:
        text += f": {sum(left):,} records are left"
    times = [task.remaining_s for task in seen.restoring]
    known = [seconds for seconds in times if seconds is not None]
    if known and len(known) == len(times):
        text += f", {duration(max(known))} at the present rate"
    return VerdictLine(BUSY, text)


def _without_tasks(seen: Observation) -> VerdictLine:
    if seen.members is None and seen.state != "RUNNING":
        return VerdictLine(BUSY, "It joins its group")
    copies = sum(task.role in ("standby", "warm-up") for task in seen.tasks)
    kept = f", and keeps {copies:,} copies of others' state" if copies else ""
    return VerdictLine(GOOD, f"It has no active task{kept}")


def held_up(seen: Observation) -> VerdictLine | None:
    """A transaction that stays open: its records, and all behind them, are no lag yet."""
    held = [row for row in held_back(seen) if row["held_s"] >= HELD_S]
    if not held:
        return None
    worst, others = held[0], len(held) - 1
    more = f", and {others:,} more partitions" if others else ""
    return VerdictLine(
        BAD,
        f"Somebody's open transaction has held back {worst['topic']}-{worst['partition']} for "
        f"{duration(worst['held_s'])}: {worst['records']:,} records{more}",
    )


def backlog(waiting: Backlog, goal_s: float) -> VerdictLine:
    """Keeping up, or the time to catch up; ``goal_s``: in which a backlog should be worked off."""
    lag, rate, shrinks = waiting
    if lag is None:
        return VerdictLine(BUSY, "How much waits is not known yet")
    if lag <= rate * IN_FLIGHT_S:
        return VerdictLine(GOOD, f"It keeps up: {rate:,.0f} records/s", 0.0)
    waits = f"{lag:,.0f} records wait"
    if shrinks is None:
        return VerdictLine(BUSY, waits)
    if shrinks > 0:
        drain_s = lag / shrinks
        text = f"{waits}: drained in {duration(drain_s)} at the present rate"
        late = drain_s > goal_s
        if late:
            text += f", later than the goal of {duration(goal_s)}"
        return VerdictLine(BAD if late else BUSY, text, drain_s)
    if shrinks < 0:
        return VerdictLine(BAD, f"It falls behind: {waits}, {-shrinks:,.0f} more each second")
    idle = " and nothing is processed" if rate == 0 else ""
    return VerdictLine(BAD, f"{waits}, as many as before{idle}")


def _tasks(number: int) -> str:
    return f"{number:,} task{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """``4 s``, ``3 min``, ``2 h 10 min``, ``3 d``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d"


class _Begin(NamedTuple):
    """The oldest look at which a task processed: its lag then, and records since the start."""

    at_ms: float
    lag: int | None
    processed: float


def with_rates(facts: Facts) -> list[ObservedTask]:
    """The tasks of the present look; those that process with their records/s, since they do but for
    half a minute at the most, and with the time to the end of their input where their lag shrinks.
    As they were where there is one look only."""
    if facts.passed_s <= 0:
        return list(facts.seen.tasks)
    begins, processed = _begins(facts), _processed(facts.seen)
    before = _processed(facts.before.seen)
    found = []
    for task in facts.seen.tasks:
        if not _processes(task):
            found.append(task)
            continue
        begin = begins.get(task.task)
        if begin is None:  # only now: of a restoring one the lag was that of its changelogs
            begin = _Begin(facts.before.monotonic_ms, None, before.get(task.task, 0.0))
        passed_s = (facts.now.monotonic_ms - begin.at_ms) / 1000
        grown = max(0.0, processed.get(task.task, 0.0) - begin.processed)
        found.append(_with_rate(task, grown / passed_s, begin.lag, passed_s))
    return found


def _begins(facts: Facts) -> Mapping[str, _Begin]:
    found: dict[str, _Begin] = {}
    left = {task.task for task in facts.seen.tasks if _processes(task)}
    for look in (facts.before, *facts.between):
        if not left or look.monotonic_ms >= facts.now.monotonic_ms:
            break
        there = [task for task in look.seen.tasks if task.task in left and _processes(task)]
        processed = _processed(look.seen) if there else {}
        for task in there:
            done = processed.get(task.task, 0.0)
            found[task.task] = _Begin(look.monotonic_ms, task.lag, done)
        left -= found.keys()
    return found


def _processed(seen: Observation) -> Mapping[str, float]:
    total: dict[str, float] = defaultdict(float)
    for (_, task, _), records in seen.series.get(names.PROCESSED, {}).items():
        total[task] += records
    return total


def _processes(task: ObservedTask) -> bool:
    return task.role == "active" and task.state == "RUNNING"


def _with_rate(
    task: ObservedTask, rate: float, lag_before: int | None, passed_s: float
) -> ObservedTask:
    remaining_s = None
    if task.lag is not None and task.lag <= rate * IN_FLIGHT_S:
        remaining_s = 0.0  # what waits is on its way
    elif task.lag is not None and lag_before is not None and task.lag < lag_before:
        remaining_s = task.lag * passed_s / (lag_before - task.lag)
    return replace(task, rate=rate, remaining_s=remaining_s)
