"""Draws scenarios from a seed: a group, then faults, then peace, in which all becomes well."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from everflow.assignment.user_data import LATEST_VERSION
from everflow.config import AssignmentRules
from everflow.worker.crash_points import NAMES as POINTS
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings, Timings
from everflow_simulation.simulation import Simulation


@dataclass(frozen=True)
class ScenarioStep:
    """One thing done to the group, ``wait_ms`` after the one before. ``pick`` chooses its instance
    among those that live then."""

    wait_ms: float
    kind: str
    pick: int
    amount: float

    def __str__(self) -> str:
        return f"+{self.wait_ms / 1000:.1f} s {self.kind} (instance {self.pick}, {self.amount:g})"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """``instances`` start together; ``state_records`` are in every input before the steps begin."""

    seed: int
    settings: SimulationSettings
    instances: int
    static: bool
    state_records: int
    steps: tuple[ScenarioStep, ...]
    calm_ms: float = 400_000.0

    def text(self) -> str:
        rules = self.settings.rules
        head = (
            f"seed {self.seed}: {self.instances} {'static' if self.static else 'dynamic'} "
            f"instances with "
            f"{self.settings.threads} threads, "
            f"{len(self.settings.tasks)} tasks with {self.state_records} records of state, "
            f"acceptable lag {rules.acceptable_lag}, "
            f"{rules.max_warmups} warm-ups, {rules.num_standbys} standbys, {self.settings.racks} "
            f"racks, "
            f"strategy {rules.rack_strategy}, tags {', '.join(rules.rack_tags) or 'none'}"
        )
        return "\n".join([head, *(f"  {step}" for step in self.steps)])


@dataclass(kw_only=True)
class ScenarioOutcome:
    """What a scenario that held left behind."""

    digest: str
    events: int
    commits: int
    records: int
    generations: int
    settled_ms: float
    faults: dict[str, int] = field(default_factory=dict)


KINDS: tuple[tuple[str, int], ...] = (
    ("add", 3),
    ("kill", 4),
    ("restart", 4),
    ("restart-empty", 2),
    ("pause", 3),
    ("stall", 3),
    ("crash-worker", 4),
    ("fail-over", 2),
    ("clock-jump", 1),
    ("close", 3),
    ("slow-restores", 1),
    ("hide-ends", 1),
    ("brokers-away", 1),
)


def draw(seed: int, steps: int = 8) -> Scenario:
    """A scenario; the same seed gives the same one."""
    random, places = Random(seed), Random(f"places {seed}")
    rules = AssignmentRules(
        acceptable_lag=random.choice(
            [2_000, 10_000]
        ),  # less than what arrives in a second is never reached
        max_warmups=random.randint(1, 4),
        num_standbys=random.choice([0, 0, 1, 2]),
        probing_interval_ms=60_000,
        rack_strategy=places.choice(["none", "none", "min_traffic", "balance_subtopology"]),
        rack_tags=places.choice([(), ("zone",)]),
    )
    subtopologies = tuple(
        SimulatedSubTopology(
            random.randint(1, 6), stateful=random.random() < 0.8, inputs=random.choice([1, 1, 2])
        )
        for _ in range(random.randint(1, 2))
    )
    timings = Timings(
        batch_base_ms=random.choice([(10.0, 40.0), (20.0, 200.0), (300.0, 900.0)]),
        restore_rate=(rate := random.choice([20_000.0, 100_000.0])),
        follow_rate=rate,
        session_timeout_ms=random.choice([6_000, 10_000]),
        rebalance_timeout_ms=random.choice([8_000, 30_000]),
        marker_ms=random.choice([(0.5, 8.0), (0.5, 8.0), (1.0, 600.0)]),
    )
    settings = SimulationSettings(
        subtopologies=subtopologies,
        threads=random.randint(1, 3),
        rules=rules,
        timings=timings,
        input_rate=random.choice([50.0, 400.0]),
        input_period_ms=200.0,
        max_delay_ms=random.choice([0, 0, 0, 15_000]),
        racks=places.choice([1, 2, 3]),
    )
    names = [name for name, weight in KINDS for _ in range(weight)]
    drawn = tuple(
        ScenarioStep(
            random.choice([50.0, 700.0, 3_000.0, 12_000.0]) * random.random(),
            random.choice(names),
            random.randrange(100),
            random.random(),
        )
        for _ in range(steps)
    )
    state = random.choice([0, 2_000, 60_000])
    # A larger group now and then: every one costs time.
    instances = random.randint(1, 4) + places.choice([0] * 7 + [4])
    return Scenario(
        seed=seed,
        settings=settings,
        instances=instances,
        static=random.random() < 0.3,
        state_records=state,
        steps=drawn,
    )


def run(scenario: Scenario, history_file: Path | None = None) -> ScenarioOutcome:
    """Run it; InvariantError with the history, headed by the scenario, where something does not
    hold."""
    with Simulation(scenario.settings, scenario.seed, history_file) as group:
        group.history.add("scenario", scenario.text())
        group.add(scenario.instances, static=scenario.static)
        group.settle(60_000)
        if scenario.state_records:
            group.backlog(scenario.state_records)
            group.run_for(5_000)
            group.settle(120_000)
        faults: dict[str, int] = {}
        for step in scenario.steps:
            group.run_for(step.wait_ms)
            if ACTIONS[step.kind](group, step, scenario):
                faults[step.kind] = faults.get(step.kind, 0) + 1
        group.history.add("scenario", "the last fault is over")
        if not group.live():
            _restart(group, replace(scenario.steps[-1], kind="restart"), scenario)
        settled = group.settle(scenario.calm_ms)
        group.require_progress(60_000)
        return ScenarioOutcome(
            digest=group.history.digest(),
            events=group.scheduler.handled,
            commits=group.checks.commits,
            records=group.checks.records,
            generations=group.coordinator.rebalances,
            settled_ms=settled,
            faults=faults,
        )


def _pick(group: Simulation, step: ScenarioStep) -> str | None:
    live = sorted(instance.name for instance in group.live())
    return live[step.pick % len(live)] if live else None


def _on_one(
    act: Callable[[Simulation, str, ScenarioStep], object],
) -> Callable[[Simulation, ScenarioStep, Scenario], bool]:
    def action(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
        name = _pick(group, step)
        if name is None:
            return False
        act(group, name, step)
        return True

    return action


def _add(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
    if len(group.live()) >= 6:
        return False
    group.add(1, static=scenario.static)
    return True


def _restart(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
    down = sorted(name for name, instance in group.instances.items() if not instance.process.alive)
    if not down:
        return False
    # Some come back as a newer everflow.
    version = LATEST_VERSION + 1 if step.amount > 0.75 else None
    group.restart(down[step.pick % len(down)], with_disk=step.kind == "restart", version=version)
    return True


def _close(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
    if len(group.live()) < 2:
        return False
    name = _pick(group, step)
    assert name is not None
    leave = None if step.amount < 0.6 else step.amount < 0.8
    group.close_instance(name, leave, 20_000.0 if step.amount < 0.9 else None)
    return True


def _fail_over(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
    if not group.coordinator.available:
        return False
    group.fail_over(50.0 + step.amount * 4_000)
    return True


def _brokers_away(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
    if not group.log.available:
        return False
    group.lose_brokers(100.0 + step.amount * 5_000)
    return True


def _slow_restores(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
    group.slow_restores(2 + step.amount * 10, 20_000)
    return True


def _hide_ends(group: Simulation, step: ScenarioStep, scenario: Scenario) -> bool:
    group.hide_end_sums(1_000 + step.amount * 15_000)
    return True


def _thread(group: Simulation, name: str, step: ScenarioStep) -> int:
    return step.pick % len(group.instances[name].threads)


ACTIONS: dict[str, Callable[[Simulation, ScenarioStep, Scenario], bool]] = {
    "add": _add,
    "kill": _on_one(lambda group, name, step: group.kill(name)),
    "restart": _restart,
    "restart-empty": _restart,
    "pause": _on_one(lambda group, name, step: group.pause(name, 200 + step.amount * 20_000)),
    "stall": _on_one(
        lambda group, name, step: group.stall_batch(
            name, _thread(group, name, step), 500 + step.amount * 40_000
        )
    ),
    "crash-worker": _on_one(
        lambda group, name, step: group.crash_worker(
            name, _thread(group, name, step), POINTS[int(step.amount * len(POINTS))]
        )
    ),
    "fail-over": _fail_over,
    "clock-jump": _on_one(
        lambda group, name, step: group.jump_clock(name, (step.amount - 0.5) * 7_200_000)
    ),
    "close": _close,
    "slow-restores": _slow_restores,
    "hide-ends": _hide_ends,
    "brokers-away": _brokers_away,
}
