"""A simulated group of 900 connectors with 4 tasks each, through the events of KIP-415.

A connector is a sub-topology without state, of as many tasks as its topic has partitions. Members,
assignor and group protocol are the real ones (note 007). *Eager* has no code here: its decision
takes every task from its owner, and deals all of them in the rebalance that follows. That is kinder
than Connect's, whose tasks stop before the first of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from bench.results import Measurement
from bench.systems import EVERFLOW
from everflow.assignment.assignor import assign
from everflow.assignment.cluster_state import Assignment, ClusterState
from everflow.records import TaskId
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings, Timings
from everflow_simulation.simulation import Simulation

BENCH = "connect"
EAGER, COOPERATIVE, DELAYED, DRAINED = "eager", "cooperative", "cooperative, delay", "drained"
MODES = (EAGER, COOPERATIVE, DELAYED, DRAINED)
BOUNCE, LOST, ADDED = "rolling bounce", "worker lost and back", "connector added"
EVENTS = (BOUNCE, LOST, ADDED)
LARGE = 100
"""Members from which on simulated clients ask less often."""
REST_MS = 600_000.0


@dataclass(frozen=True, kw_only=True)
class SimulatedPlan:
    """``members``: a case each. ``bounced`` of them are bounced (of more than `LARGE` one), one
    after the other, each away for ``down_s``; figures of a bounce are for all, scaled. A lost one
    is away for ``lost_s``, which is longer than the session."""

    members: tuple[int, ...] = (3, 10, 100, 1_000)
    connectors: int = 900
    tasks_each: int = 4
    bounced: int = 3
    down_s: float = 10.0
    lost_s: float = 20.0
    delay_s: float = 60.0
    seed: int = 1
    modes: tuple[str, ...] = MODES
    events: tuple[str, ...] = EVENTS

    @property
    def tasks(self) -> int:
        """Of all connectors."""
        return self.connectors * self.tasks_each

    def settings(self, members: int, mode: str) -> SimulationSettings:
        """The simulated group."""
        large = members > LARGE
        timings = Timings(
            poll_ms=5_000.0 if large else 1_000.0,
            step_ms=2_000.0 if large else 50.0,
            heartbeat_ms=2_000 if large else 500,
        )
        return SimulationSettings(
            subtopologies=(SimulatedSubTopology(self.tasks_each, stateful=False),)
            * self.connectors,
            threads=1 if large else 2,
            timings=timings,
            input_rate=1.0,
            input_period_ms=30_000.0,
            max_delay_ms=int(self.delay_s * 1_000) if mode == DELAYED else 0,
        )


@dataclass(kw_only=True)
class Outcome:
    """What one event cost. ``moved``: tasks given to another instance than had them last;
    ``stayed_s``: the longest stop of a task that was on a member that nothing happened to, before
    and afterwards; ``work``: the share of the tasks' time in which they ran."""

    lost_s: float
    rebalances: int
    moved: int
    stayed_s: float
    work: float
    took_s: float


class Eager:
    """The decision of an eager group: everybody gives up all tasks, the next rebalance deals."""

    def __init__(self) -> None:
        self._given_up = False

    def __call__(self, cluster: ClusterState) -> Assignment:
        """Who decides this time deals, if the last one took away."""
        decided = assign(cluster)
        owned = {task for member in cluster.members for task in member.owned}
        self._given_up = bool(owned) and not self._given_up
        if not self._given_up:
            return decided
        return replace(
            decided,
            active={one: tasks - owned for one, tasks in decided.active.items()},
            withheld=frozenset(owned),
            followup_ms=0,
        )


class _Owners:
    """Decides as ``decide``, and counts the tasks that go to another instance."""

    def __init__(self, decide: Callable[[ClusterState], Assignment]) -> None:
        self._decide = decide
        self._last: dict[TaskId, str] = {}
        self.moved = 0

    def __call__(self, cluster: ClusterState) -> Assignment:
        decided = self._decide(cluster)
        processes = {member.member_id: member.process_id for member in cluster.members}
        for member_id, tasks in decided.active.items():
            for task in tasks:
                process = processes[member_id]
                self.moved += self._last.get(task, process) != process
                self._last[task] = process
        return decided


def measure(plan: SimulatedPlan) -> Iterator[Measurement]:
    """The figures of each event, as it ends. Raises InvariantError like every simulation."""
    for members in plan.members:
        for event in plan.events:
            for mode in plan.modes:
                if mode == DRAINED and event != BOUNCE:
                    continue  # who is lost drains nothing
                outcome = simulate(plan, members, event, mode)
                print(f"{members:,} members, {event}, {mode}: {outcome}", flush=True)
                yield from rows(plan, members, event, mode, outcome)


def simulate(plan: SimulatedPlan, members: int, event: str, mode: str) -> Outcome:
    """One event in a group at rest, until it is at rest again."""
    owners = _Owners(Eager() if mode == EAGER else assign)
    check_ms = 1_000.0 if members > LARGE else 250.0
    with Simulation(plan.settings(members, mode), plan.seed, decide=owners) as group:
        group.start_with_state(members, 0)
        group.settle(600_000, check_ms)
        before, outages, moved = _places(group), len(group.outages), owners.moved
        began_ms, lost_ms = group.now_ms, group.count_pauses()
        rebalances = group.coordinator.rebalances
        hit = _happen(plan, group, event, mode, check_ms)
        took_s, lost_s = (group.now_ms - began_ms) / 1_000, (group.count_pauses() - lost_ms) / 1_000
        scale = members / len(hit) if event == BOUNCE else 1.0
        after = _places(group)
        stayed = {
            task for task, name in before.items() if name not in hit and after.get(task) == name
        }
        stops = [ms for task, ms in group.outages[outages:] if task in stayed]
        return Outcome(
            lost_s=lost_s * scale,
            rebalances=round((group.coordinator.rebalances - rebalances) * scale),
            moved=round((owners.moved - moved) * scale),
            stayed_s=max(stops, default=0.0) / 1_000,
            work=1 - lost_s / took_s / plan.tasks,
            took_s=took_s * scale,
        )


def _happen(
    plan: SimulatedPlan, group: Simulation, event: str, mode: str, check_ms: float
) -> list[str]:
    """Carry the event out, until the group is at rest again; the members it happens to."""
    names = sorted(instance.name for instance in group.live())
    if event == ADDED:
        group.grow(plan.connectors - 1, 2 * plan.tasks_each)
        group.run_for(check_ms)
        group.settle(REST_MS, check_ms)
        return []
    bounced = 1 if len(names) > LARGE else plan.bounced
    hit = names[:bounced] if event == BOUNCE else names[-1:]
    for name in hit:
        if event == BOUNCE:
            drain_ms = REST_MS if mode == DRAINED else None
            group.close_instance(name, leave_group=True, drain_ms=drain_ms)
            while group.instances[name].process.alive:
                group.run_for(check_ms)
            group.run_for(plan.down_s * 1_000)
        else:
            group.kill(name)
            group.run_for(plan.lost_s * 1_000)
        group.restart(name)
        group.settle(REST_MS, check_ms)
    return hit


def _places(group: Simulation) -> Mapping[TaskId, str]:
    return {task: one.name for one in group.present() for task in one.running()}


def rows(
    plan: SimulatedPlan, members: int, event: str, mode: str, outcome: Outcome
) -> Iterator[Measurement]:
    """As benches write them."""
    case = f"{members:,} members, {plan.connectors} x {plan.tasks_each} tasks, {event}, {mode}"
    note = "simulated"
    if event == BOUNCE:
        bounced = 1 if members > LARGE else min(plan.bounced, members)
        note += f", {bounced} of {members} bounces"
    figures = {
        "task_seconds_lost": ("s", outcome.lost_s),
        "rebalances": ("rebalances", float(outcome.rebalances)),
        "tasks_moved": ("tasks", float(outcome.moved)),
        "longest_stop_staying": ("s", outcome.stayed_s),
        "work_done": ("of the tasks' time", outcome.work),
        "duration": ("s", outcome.took_s),
    }
    for metric, (unit, value) in figures.items():
        yield Measurement(BENCH, case, EVERFLOW, "exactly_once_v2", metric, unit, value, note)
