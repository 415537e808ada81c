"""Forecasts a scaling step: a group with state, one change, and all that follows until balance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everflow.config import AssignmentRules
from everflow.errors import ConfigError
from everflow.records import TaskId
from everflow_simulation.checks import InvariantError
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings, Timings
from everflow_simulation.simulation import LeaderDecision, Simulation

LIMIT_MS = 24 * 3_600_000.0
BOUNDS: Mapping[str, tuple[int, int]] = {
    "members": (1, 10_000),
    "add": (0, 10_000),
    "remove": (0, 10_000),
    "crash": (0, 10_000),
    "tasks": (0, 1_000_000),
    "stateless_tasks": (0, 1_000_000),
    "state_records": (0, 10**15),
    "restore_rate": (1, 10**12),
    "follow_rate": (1, 10**12),
    "input_rate": (0, 10**12),
    "threads": (1, 10_000),
    "standbys": (0, 10_000_000),
    "warmups": (1, 10_000_000),
    "acceptable_lag": (0, 10**15),
    "session_timeout_s": (1, 86_400),
}
"""Least and most of each number: far beyond any group, but a simulation of them ends."""
LARGE = 100
"""Members from which on the simulated clients ask less often, so that a forecast stays quick."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A group and what is done to it. ``state_records`` are those of one task's changelog; rates
    are records a second: ``restore_rate`` of an active task's restore, ``follow_rate`` of one
    instance's warm-ups together.

    ``remove`` stops instances cleanly (they drain), ``crash`` kills them.
    """

    members: int = 3
    add: int = 0
    remove: int = 0
    crash: int = 0
    tasks: int = 24
    stateless_tasks: int = 0
    state_records: int = 1_000_000
    restore_rate: float = 400_000.0
    follow_rate: float = 400_000.0
    input_rate: float = 100.0
    threads: int = 2
    standbys: int = 0
    warmups: int = 2
    acceptable_lag: int = 10_000
    session_timeout_s: float = 45.0
    static: bool = False
    seed: int = 1

    def check(self) -> None:
        """ConfigError, naming the option of ``everflow simulate``, for a step that cannot be."""
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:  # nan is in no range
                option = "--" + name.removesuffix("_s").replace("_", "-")
                shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
                raise ConfigError(f"{option} {shown}: must be from {least:,} to {most:,}.")
        for name in ("restore_rate", "follow_rate"):
            days = self.state_records / getattr(self, name) / 86_400
            if days > LIMIT_MS / 86_400_000:
                raise ConfigError(
                    f"--state-records {self.state_records:,}: at --{name.replace('_', '-')} "
                    f"{getattr(self, name):g} one task alone "
                    f"takes {days:,.1f} days, more than the day that is simulated."
                )
        if self.tasks + self.stateless_tasks == 0:
            raise ConfigError(
                "--tasks 0: there is nothing to place. Give --tasks or --stateless-tasks."
            )
        if self.add + self.remove + self.crash == 0:
            raise ConfigError("Nothing changes: say what happens with --add, --remove or --crash.")
        if self.remove + self.crash > self.members:
            raise ConfigError(
                f"--remove {self.remove} and --crash {self.crash} are more than the --members "
                f"{self.members}."
            )
        if self.members + self.add - self.remove - self.crash < 1:
            raise ConfigError("Nobody would be left. Remove fewer instances or --add some.")
        if self.acceptable_lag < self.input_rate:
            raise ConfigError(
                f"--acceptable-lag {self.acceptable_lag} is less than what arrives in a second "
                f"(--input-rate {self.input_rate:g}): "
                "no warm-up would ever count as hot. Raise it above the rate."
            )

    def settings(self) -> SimulationSettings:
        """The simulated application."""
        large = self.members + self.add > LARGE
        rules = AssignmentRules(
            acceptable_lag=self.acceptable_lag, max_warmups=self.warmups, num_standbys=self.standbys
        )
        timings = Timings(
            restore_rate=self.restore_rate,
            follow_rate=self.follow_rate,
            session_timeout_ms=int(self.session_timeout_s * 1000),
            initial_delay_ms=3_000.0,
            follow_ms=1_000.0 if large else 100.0,
            poll_ms=1_000.0 if large else 50.0,
            step_ms=1_000.0 if large else 50.0,
            heartbeat_ms=2_000 if large else 500,
        )
        subtopologies = [SimulatedSubTopology(self.tasks)] if self.tasks else []
        if self.stateless_tasks:
            subtopologies.append(SimulatedSubTopology(self.stateless_tasks, stateful=False))
        period = 5_000.0 if large else 500.0
        return SimulationSettings(
            subtopologies=tuple(subtopologies),
            threads=self.threads,
            rules=rules,
            timings=timings,
            input_rate=self.input_rate,
            input_period_ms=period,
        )


@dataclass(frozen=True, kw_only=True)
class Round:
    """One rebalance: seconds since the change, tasks that changed hands or were taken to be handed
    over, copies being warmed."""

    at_s: float
    members: int
    given: int
    withheld: int
    warmups: int
    left: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Times in seconds. ``moves``: tasks that end on another instance. ``task_seconds_paused``:
    summed over the tasks; ``longest_pause_s`` of one task. ``balanced_after_s`` is None where the
    group did not come to rest."""

    step: Step
    rounds: tuple[Round, ...]
    moves: int
    warmed: int
    rebalances: int
    task_seconds_paused: float
    longest_pause_s: float
    balanced_after_s: float | None
    tasks_per_member: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def forecast(step: Step, history_file: Path | None = None) -> Forecast:
    """Simulate the step. ConfigError for one that cannot be; InvariantError where the code under it
    breaks a promise."""
    step.check()
    with Simulation(step.settings(), step.seed, history_file) as group:
        group.start_with_state(step.members, step.state_records, static=step.static)
        group.settle(600_000)
        group.require_progress(60_000)
        before = _places(group)
        began, paused, rebalances = group.now_ms, group.count_pauses(), group.coordinator.rebalances
        decided, outages = len(group.decisions), len(group.outages)
        _change(group, step)
        group.run_for(1_000)
        balanced_after: float | None
        try:
            check_ms = 1_000.0 if step.members + step.add > LARGE else 250.0
            group.settle(LIMIT_MS, check_ms)
            balanced_after = (group.now_ms - began) / 1000
        except InvariantError as error:
            if error.name != "liveness":
                raise
            balanced_after = None
        after = _places(group)
        decisions = group.decisions[decided:]
        return Forecast(
            step=step,
            rounds=_rounds(decisions, began),
            moves=sum(1 for task, name in after.items() if before.get(task) != name),
            warmed=len(
                {
                    (task, member)
                    for d in decisions
                    for member, tasks in d.assignment.warmup.items()
                    for task in tasks
                }
            ),
            rebalances=group.coordinator.rebalances - rebalances,
            task_seconds_paused=(group.count_pauses() - paused) / 1000,
            longest_pause_s=max((ms for _, ms in group.outages[outages:]), default=0.0) / 1000,
            balanced_after_s=balanced_after,
            tasks_per_member={
                instance.name: len(instance.running()) for instance in group.present()
            },
        )


def _change(group: Simulation, step: Step) -> None:
    names = [instance.name for instance in group.live()]
    for name in names[: step.crash]:
        group.kill(name)
    for name in names[step.crash : step.crash + step.remove]:
        group.close_instance(name, leave_group=True, drain_ms=LIMIT_MS)
    if step.add:
        group.add(step.add, static=step.static)


def _places(group: Simulation) -> dict[TaskId, str]:
    return {task: instance.name for instance in group.present() for task in instance.running()}


def _rounds(decisions: list[LeaderDecision], began_ms: float) -> tuple[Round, ...]:
    rounds = []
    for decision in decisions:
        owner_of = {
            task: member.member_id for member in decision.cluster.members for task in member.owned
        }
        active = decision.assignment.active
        reassigned = sum(
            1
            for member_id, tasks in active.items()
            for task in tasks
            if owner_of.get(task) != member_id
        )
        rounds.append(
            Round(
                at_s=(decision.at_ms - began_ms) / 1000,
                members=len(decision.cluster.members),
                given=reassigned,
                withheld=len(decision.assignment.withheld),
                warmups=sum(len(tasks) for tasks in decision.assignment.warmup.values()),
                left=decision.assignment.movements,
            )
        )
    return tuple(rounds)
