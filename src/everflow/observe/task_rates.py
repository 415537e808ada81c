"""How fast active tasks process, and when each will have caught up: of two looks. Pure.

A copy's rate is told by who copies; what an active task processes is in its thread's counters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from everflow import metrics as names
from everflow.observe.observation import Observation, ObservedTask
from everflow.observe.page.history import Facts
from everflow.observe.page.verdict import IN_FLIGHT_S


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
