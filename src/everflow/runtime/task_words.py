"""An instance's tasks in words: how many in which role, how far the copies are. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

from everflow.records import TaskId
from everflow.runtime.task_status import TaskStatus
from everflow.runtime.tasks.task import TaskRole, TaskState
from everflow.runtime.thread.retry_policy import Trouble

ACTIVE, STARTING, RESTORING, LEAVING, STANDBY, WARM_UP = (
    "active",
    "starting",
    "restoring",
    "leaving",
    "standby",
    "warm-up",
)
FAILING = "failing"
ROLES = (ACTIVE, FAILING, STARTING, RESTORING, LEAVING, STANDBY, WARM_UP)
"""What a task is here, for people: an active one that cannot process yet is restoring, or waits for
its stream thread; one whose batches fail is failing; one that is leaving is being handed over."""
_OF_STATE = {
    TaskState.RUNNING: ACTIVE,
    TaskState.RESTORING: RESTORING,
    TaskState.SUSPENDED: LEAVING,
}
_ROWS_SHOWN = 12
_TROUBLE_WIDTH = 120


def role_of(status: TaskStatus) -> str:
    """One of `ROLES`."""
    if status.trouble is not None:
        return FAILING
    if status.role is not TaskRole.ACTIVE:
        return str(status.role.value)
    return _OF_STATE.get(status.state, STARTING)


def summary(tasks: Mapping[TaskId, TaskStatus], now_ms: float | None = None) -> str:
    """``6 active, 2 warm-up · warm-up 43 %, 12,000 records/s, 3 s left``; empty without tasks.

    What somebody waits for has its progress: restores, and warm-ups, added up. Tasks whose batches
    fail say why: ``2 failing · no leader for out-0 (3 times in 12 s)``. ``now_ms``: wall clock,
    None for now.
    """
    counts = Counter(role_of(status) for status in tasks.values())
    parts = [", ".join(f"{counts[role]} {role}" for role in ROLES if counts[role])]
    for role in (RESTORING, WARM_UP):
        if counts[role]:
            copies = [status for status in tasks.values() if role_of(status) == role]
            parts.append(f"{role} {progress(copies)}")
    troubled = [status.trouble for status in tasks.values() if status.trouble is not None]
    if troubled:
        parts.append(trouble(min(troubled, key=lambda one: one.since_ms), now_ms))
    return " · ".join(filter(None, parts))


def trouble(found: Trouble, now_ms: float | None = None) -> str:
    """``ValueError: bad (3 times in 12 s)``."""
    elapsed = (time.time() * 1000 if now_ms is None else now_ms) - found.since_ms
    times = "once" if found.count == 1 else f"{found.count} times"
    text = found.text if len(found.text) <= _TROUBLE_WIDTH else f"{found.text[:_TROUBLE_WIDTH]}..."
    return f"{text} ({times} in {duration(max(0.0, elapsed / 1000))})"


def progress(copies: Collection[TaskStatus]) -> str:
    """``43 %, 12,000 records/s, 3 s left`` of copies being built, added up; ``begins`` while
    nothing is known."""
    known = [
        (status.copied, status.lag)
        for status in copies
        if status.copied is not None and status.lag is not None
    ]
    if not known:
        return "begins"
    copied, lag = (sum(column) for column in zip(*known, strict=True))
    parts = [_percent(copied, lag)]
    rate = sum(status.rate for status in copies)
    if rate > 0:
        parts.append(f"{rate:,.0f} records/s")
    left = [status.remaining_s for status in copies if status.remaining_s is not None]
    if lag and len(left) == len(copies):
        parts.append(f"{duration(max(left))} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``2 h 10 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def task_lines(tasks: Mapping[TaskId, TaskStatus]) -> list[str]:
    """A line for each task, those that somebody waits for first; at most a dozen."""
    order = {FAILING: 0, RESTORING: 1, STARTING: 2, LEAVING: 3, WARM_UP: 4, ACTIVE: 5, STANDBY: 6}
    ranked = sorted(tasks.items(), key=lambda item: (order[role_of(item[1])], item[0]))
    lines = [
        f"{task!s:>6}  {role_of(status):<9}  {_figures(status)}"
        for task, status in ranked[:_ROWS_SHOWN]
    ]
    hidden = len(ranked) - len(lines)
    return [*lines, f"and {hidden:,} more tasks"] if hidden > 0 else lines


def _figures(status: TaskStatus) -> str:
    if role_of(status) in (ACTIVE, STARTING, LEAVING):
        return "" if status.lag is None else f"lag {status.lag:,}"
    return trouble(status.trouble) if status.trouble is not None else progress([status])


def _percent(copied: int, lag: int) -> str:
    # Rounded down: 100 % is said of what is complete, and of nothing else.
    return f"{100 * copied // (copied + lag)} %" if lag else "100 %"
