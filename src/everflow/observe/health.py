"""Whether an instance lives, and whether it is ready: the questions of Kubernetes' probes. Pure.

An instance that restores for an hour is alive: to restart it would begin the restore again. It is
ready once its active tasks run, so that a rolling restart waits for them.
"""

from __future__ import annotations

from typing import NamedTuple

from everflow.observe.observation import Observation

DEAD = ("ERROR", "PENDING_ERROR", "NOT_RUNNING")
ENDING = ("PENDING_SHUTDOWN",)


class Verdict(NamedTuple):
    """Yes or no, and why, for people."""

    ok: bool
    why: str


def live(seen: Observation) -> Verdict:
    """Whether a restart would not help: also while it starts, restores, or ends in order."""
    if seen.state in DEAD:
        return Verdict(False, f"state {seen.state}" + (f": {seen.error}" if seen.error else ""))
    dead = [str(thread.number) for thread in seen.threads if not thread.alive]
    if dead and seen.state == "RUNNING":
        return Verdict(False, f"stream threads that ended: {', '.join(dead)}")
    return Verdict(True, f"state {seen.state}")


def state_reason(seen: Observation) -> str:
    """Why it is REBALANCING, for people: so Kafka Streams calls all that is between the start and
    all tasks running. Empty in other states."""
    if seen.state != "REBALANCING":
        return ""
    processes = ready(seen)
    why = "its group rebalances" if processes.ok else processes.why
    return f"{why}, {seen.state_s:.0f} s"


def ready(seen: Observation) -> Verdict:
    """Whether it processes all that is its own. One without a task is ready: there may be more
    instances than tasks."""
    alive = live(seen)
    if not alive.ok:
        return alive
    if seen.state in (*ENDING, "CREATED"):
        return Verdict(False, f"state {seen.state}")
    if not seen.threads:
        return Verdict(False, "it starts")
    if seen.state != "RUNNING" and seen.preparing:
        return Verdict(False, f"it {seen.preparing}")
    if seen.restoring:
        ids = ", ".join(task.task for task in seen.restoring[:5])
        more = f" and {len(seen.restoring) - 5} more" if len(seen.restoring) > 5 else ""
        return Verdict(False, f"active tasks that do not run yet: {ids}{more}")
    if seen.state != "RUNNING" and not seen.active and seen.members is None:
        return Verdict(False, "it has not joined its group yet")
    return Verdict(True, f"{len(seen.active)} active tasks run")
