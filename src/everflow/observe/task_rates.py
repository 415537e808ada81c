"""How fast active tasks process, and when each will have caught up: of two looks. Pure.

A copy's rate is told by who copies; what an active task processes is in its thread's counters.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from everflow import metrics as names
from everflow.observe.observation import ObservedTask
from everflow.observe.page.history import Facts
from everflow.observe.page.verdict import IN_FLIGHT_S


def with_rates(facts: Facts) -> list[ObservedTask]:
    """The tasks of the present look; those that process with their records/s, and with the time to
    the end of their input where their lag shrinks. As they were where there is one look only."""
    if facts.passed_s <= 0:
        return list(facts.seen.tasks)
    rates: dict[str, float] = defaultdict(float)
    for (_, task, _), rate in facts.growth(names.PROCESSED).items():
        rates[task] += rate
    before = {task.task: task.lag for task in facts.before.seen.tasks if _processes(task)}
    return [
        _with_rate(task, rates[task.task], before.get(task.task), facts.passed_s)
        if _processes(task)
        else task
        for task in facts.seen.tasks
    ]


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
