"""Describes an instance's tasks, and the instance before its start, for operators."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from everflow import metrics as names
from everflow.config import StreamsConfig
from everflow.instance.copies.state_updater import FollowedTask
from everflow.instance.restore.listeners import RestoreProgress
from everflow.instance.tasks.task import ActiveTask, TaskRole, TaskState
from everflow.instance.thread.retry_policy import Trouble
from everflow.logs import counted, log_path
from everflow.records import Offsets, TaskId
from everflow.topology.describe import execution_paths
from everflow.topology.describe import summary as computed
from everflow.topology.graph import SourceNode
from everflow.topology.plan import plan
from everflow.topology.program import Topology, flows_of
from everflow.topology.subtopologies import cut


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """Role, state and lag of one task on this instance.

    ``state`` is CREATED while an assigned task waits for its stream thread or the state updater,
    SUSPENDED while a revoked task is handed over. ``lag``: of a running active task the input
    records not processed yet, else the changelog offsets that its replica lacks; None: not known
    yet. ``rate``: records/s that the replica reads. ``remaining_s``: seconds until the replica is
    complete at that rate; None: not known, 0: complete. ``copied``: offsets that the replica has;
    None for a running active task. ``trouble``: why the task makes no progress; None if it does.
    ``paused``: a connector of the task is paused, so it does not run."""

    role: TaskRole
    state: TaskState
    lag: int | None
    rate: float = 0.0
    remaining_s: float | None = None
    copied: int | None = None
    trouble: Trouble | None = None
    paused: bool = False


def statuses(
    owned: Iterable[TaskId],
    running: Iterable[ActiveTask],
    ends: Offsets,
    followed: Mapping[TaskId, FollowedTask],
    recovering: Collection[TaskId],
    restores: Mapping[TaskId, Sequence[RestoreProgress]],
    handing_over: Collection[TaskId] = (),
    troubles: Mapping[TaskId, Trouble] | None = None,
    stalled_copies: Mapping[TaskId, TaskRole] | None = None,
    paused: Collection[TaskId] = (),
) -> dict[TaskId, TaskStatus]:
    """All tasks by id. ``owned``: what the group wants active here; ``ends``: of input partitions;
    ``handing_over``: revoked, not released yet; ``stalled_copies`` may not be open yet."""
    troubled = troubles or {}
    active = partial(TaskStatus, role=TaskRole.ACTIVE)
    found = {task: active(state=TaskState.CREATED, lag=None) for task in owned}
    found |= {
        task: TaskStatus(
            role=copy.role,
            state=TaskState.RUNNING,
            lag=copy.lag,
            rate=copy.rate,
            remaining_s=copy.remaining_s,
            copied=copy.offset_sum,
            trouble=troubled.get(task),
        )
        for task, copy in followed.items()
    }
    found |= {
        task: TaskStatus(
            role=role,
            state=TaskState.CREATED,
            lag=None,
            trouble=troubled.get(task),
        )
        for task, role in (stalled_copies or {}).items()
        if task not in found
    }
    found |= {task: _restoring(restores.get(task, ())) for task in recovering}
    found |= {task: active(state=TaskState.SUSPENDED, lag=None) for task in handing_over}
    for task in running:
        positions = dict(task.positions)
        known = all(tp in ends for tp in positions)
        lag = sum(max(0, ends[tp] - offset) for tp, offset in positions.items()) if known else None
        why = troubled.get(task.id)
        found[task.id] = active(
            state=task.state,
            lag=lag,
            remaining_s=0.0,
            trouble=why,
            paused=task.id in paused,
        )
    return dict(sorted(found.items()))


def _restoring(stores: Sequence[RestoreProgress]) -> TaskStatus:
    if not stores:
        return TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=None)
    left = [store.remaining_s for store in stores]
    known = [seconds for seconds in left if seconds is not None]
    return TaskStatus(
        role=TaskRole.ACTIVE,
        state=TaskState.RESTORING,
        lag=sum(store.end - store.position for store in stores),
        rate=sum(store.rate for store in stores),
        remaining_s=max(known) if len(known) == len(left) else None,
        copied=sum(store.position - store.start for store in stores),
    )


def input_lag(tasks: Iterable[TaskStatus]) -> float:
    """Input records that wait for active tasks; NaN if one does not run or has no known ends. Those
    of paused tasks wait by somebody's wish, and do not count."""
    active = [task for task in tasks if task.role is TaskRole.ACTIVE and not task.paused]
    ours = [task for task in active if task.state is not TaskState.SUSPENDED]
    if any(task.state is not TaskState.RUNNING or task.lag is None for task in ours):
        return math.nan
    return sum(task.lag or 0 for task in ours)


def copies_metrics(followed: Mapping[TaskId, FollowedTask]) -> dict[str, float]:
    roles = Counter(f.role for f in followed.values())
    return {
        names.STANDBY_TASKS: roles[TaskRole.STANDBY],
        names.WARMUP_TASKS: roles[TaskRole.WARMUP],
        names.COPIES_LAG: sum(f.lag or 0 for f in followed.values()),
        names.COPIES_RATE: sum(f.rate for f in followed.values()),
    }


ROLES = ("active", "failing", "paused", "starting", "restoring", "leaving", "standby", "warm-up")
ACTIVE, FAILING, PAUSED, STARTING, RESTORING, LEAVING, STANDBY, WARM_UP = ROLES
"""The roles that operators see: an active task that cannot process yet is restoring, or starting
while it waits for its stream thread; leaving while it is handed over."""
_SHOWN = {TaskState.RUNNING: ACTIVE, TaskState.RESTORING: RESTORING, TaskState.SUSPENDED: LEAVING}
_WORST_FIRST = (FAILING, RESTORING, STARTING, LEAVING, PAUSED, WARM_UP, ACTIVE, STANDBY)
_ROWS_SHOWN = 12
_TROUBLE_WIDTH = 120


def role_of(status: TaskStatus) -> str:
    if status.trouble is not None:
        return FAILING
    if status.paused:
        return PAUSED
    if status.role is not TaskRole.ACTIVE:
        return str(status.role.value)
    return _SHOWN.get(status.state, STARTING)


def summary(tasks: Mapping[TaskId, TaskStatus], now_ms: float | None = None) -> str:
    """``6 active, 2 warm-up · warm-up 43 %, 12,000 records/s, 3 s left``; empty without tasks.
    Failing tasks have the cause. ``now_ms``: wall clock, None for now."""
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
    elapsed = (time.time() * 1000 if now_ms is None else now_ms) - found.since_ms
    times = "once" if found.count == 1 else f"{found.count} times"
    text = found.text if len(found.text) <= _TROUBLE_WIDTH else f"{found.text[:_TROUBLE_WIDTH]}..."
    return f"{text} ({times} in {duration(max(0.0, elapsed / 1000))})"


def progress(copies: Collection[TaskStatus]) -> str:
    """``43 %, 12,000 records/s, 3 s left`` of copies together; ``begins`` if nothing is known."""
    known = [
        (status.copied, status.lag)
        for status in copies
        if status.copied is not None and status.lag is not None
    ]
    if not known:
        return "begins"
    copied, lag = (sum(column) for column in zip(*known, strict=True))
    # Rounded down: 100 % is said of what is complete, and of nothing else.
    parts = [f"{100 * copied // (copied + lag)} %" if lag else "100 %"]
    rate = sum(status.rate for status in copies)
    if rate > 0:
        parts.append(f"{rate:,.0f} records/s")
    left = [status.remaining_s for status in copies if status.remaining_s is not None]
    if lag and len(left) == len(copies):
        parts.append(f"{duration(max(left))} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def task_lines(tasks: Mapping[TaskId, TaskStatus]) -> list[str]:
    """A line for each task, restoring and failing ones first; at most a dozen."""
    order = dict(zip(_WORST_FIRST, range(len(ROLES)), strict=True))
    ranked = sorted(tasks.items(), key=lambda item: (order[role_of(item[1])], item[0]))
    shown = ranked[:_ROWS_SHOWN]
    lines = [f"{task!s:>6}  {role_of(one):<9}  {_figures(one)}" for task, one in shown]
    hidden = len(ranked) - len(lines)
    return [*lines, f"and {hidden:,} more tasks"] if hidden > 0 else lines


def _figures(status: TaskStatus) -> str:
    if role_of(status) in (ACTIVE, PAUSED, STARTING, LEAVING):
        return "" if status.lag is None else f"lag {status.lag:,}"
    return trouble(status.trouble) if status.trouble is not None else progress([status])


_LIST_WIDTH = 76  # topics or stores named before "and n more"


def topology_lines(topology: Topology) -> tuple[str, str, str]:
    flows = flows_of(topology)
    sources = [node for node in topology.nodes if isinstance(node, SourceNode)]
    rekeyed = len({t for node in sources if node.kind == "repartition" for t in node.topics})
    keeps = _listed(flows["keeps"]) or "nothing (stateless)"
    if rekeyed:
        keeps += f"; re-keys through {rekeyed} repartition topic{'s' * (rekeyed != 1)}"
    reads, writes = _listed(flows["reads"]), _listed(flows["writes"]) or "nothing"
    return (f"reads  {reads}", f"keeps  {keeps}", f"writes {writes}")


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    shown: list[str] = []
    width = 0
    for name in unique:
        width += len(name) + 2
        if shown and width > _LIST_WIDTH:
            return f"{', '.join(shown)} and {len(unique) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def banner(config: StreamsConfig, topology: Topology, program: str = "") -> str:
    """Several lines, without a final newline. ``program``: where the topology was loaded from."""
    planned = plan(topology, cut(topology).index_of, config.application_id)
    threads = counted(config.num_stream_threads, "stream thread")
    rows = [
        ("application", f"{config.application_id}   (everflow {version('everflow')})"),
        *([("program", program)] if program else []),
        ("brokers", config.bootstrap_servers),
        ("guarantee", f"{config.processing_guarantee}, {threads}"),
        *zip(("topology", "", ""), topology_lines(topology), strict=True),
        ("computed", computed(execution_paths(planned))),
        ("state", str(Path(config.state_dir) / config.application_id)),
        ("log", str(log_path(config.state_dir, config.application_id))),
    ]
    return "\n".join(f"{label:<12} {text}" for label, text in rows)
