"""The real membership, assignor, task and commit code in a simulated world. A failure prints seed,
scenario and history.

`EVERFLOW_SIMULATIONS=1000` runs so many seeds instead of a few. What a seed has found gets a test
of its own: another draw, and the seed means something else.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.bounce import BouncePlan, rolling_bounce
from bench.connect.simulated import (
    ADDED,
    BOUNCE,
    COOPERATIVE,
    DELAYED,
    EAGER,
    LOST,
    SimulatedPlan,
    simulate,
)
from everflow.assignment import assignor
from everflow.assignment.cluster_state import Assignment, AssignmentRules, ClusterState
from everflow.assignment.user_data import LATEST_VERSION
from everflow.errors import ConfigError
from everflow.instance import commit_gate
from everflow.instance.client_state import ClientState
from everflow.instance.commit_gate import Decision
from everflow.instance.life import InstanceEnd
from everflow.instance.tasks.recovery import Recovery
from everflow.protocol.messages import GateAnswer
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.retry import shown_by
from everflow.worker import sink
from everflow.worker.crash_points import NAMES as POINTS
from everflow.worker.crash_points import OFFSETS_SENT
from everflow_simulation.checks import Checks, InvariantError
from everflow_simulation.forecast import Step, forecast
from everflow_simulation.history import History
from everflow_simulation.log import SimulatedLog
from everflow_simulation.recovery import SimulatedRecoveryPorts
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings, Timings
from everflow_simulation.simulation import Simulation
from everflow_simulation.worker import _Batch


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
    """Run it; InvariantError, headed by the scenario, where something does not hold."""
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


SEEDS = range(int(os.environ.get("EVERFLOW_SIMULATIONS", "10")))

SMALL = SimulationSettings(
    subtopologies=(SimulatedSubTopology(8), SimulatedSubTopology(4, stateful=False)),
    rules=AssignmentRules(num_standbys=0),
)
WITH_STATE = 200_000


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_nothing_is_lost_and_the_group_comes_to_rest(seed: int) -> None:
    outcome = run(draw(seed))
    assert outcome.commits > 0


def test_one_seed_gives_one_history() -> None:
    scenario: Scenario = draw(5)
    first, second, other = run(scenario), run(scenario), run(replace(scenario, seed=6))
    assert first == second
    assert first.digest != other.digest


def grown(
    group: Simulation, instances: int, records: int = WITH_STATE, static: bool = False
) -> None:
    """A balanced group whose stores hold something."""
    group.add(instances, static=static)
    group.settle(60_000)
    group.backlog(records)
    group.run_for(10_000)
    group.settle(120_000)


def paused(after_ms: float, refused: bool) -> list[tuple[str, str]]:
    """What is found where a task that stays commits, is refused perhaps, and commits again so many
    ms after the first."""
    slow = Timings(batch_base_ms=(300.0, 900.0), restore_rate=100_000.0, marker_ms=(1.0, 600.0))
    now = [0.0]
    settings = SimulationSettings(
        subtopologies=(SimulatedSubTopology(1),),
        timings=slow,
        input_rate=50.0,
        input_period_ms=200.0,
    )
    checks = Checks(
        settings=settings,
        history=History(lambda: now[0]),
        coordinator=cast(Any, None),
        log=cast(Any, None),
    )
    instance: Any = SimpleNamespace(name="i1", life=1, book=SimpleNamespace(epoch=lambda task: 1))
    ranges = {TopicPartition("input-0-0", 0): OffsetRange(0, 310)}
    request: Any = SimpleNamespace(tasks=[SimpleNamespace(task=TaskId(0, 0))], ranges=ranges)
    checks.batch(instance, request, 784.0, True)
    if refused:
        now[0] = 784.0
        checks.batch(instance, request, 784.0, False)
    now[0] = after_ms
    checks.batch(instance, request, 752.0, True)
    return checks.violations


def test_a_task_that_stays_pauses_for_no_longer_than_can_be_derived() -> None:
    """Seed 110: a batch refused between the gate's yes and the broker's, by the rebalance that a
    drained member's leaving starts. Until the last marker of its transaction has landed (up to 600
    ms there) its id is not free."""
    waits = 220 + 30  # for input, and slack
    refusal = 5 + 600 + 20 + 12 + 3.1 + 100  # workers, markers, fence, requests, replay, pause
    assert paused(2_231, refused=True) == []
    assert paused(2 * 784 + waits + refusal, refused=True) == []
    assert [name for name, _ in paused(2 * 784 + waits + refusal + 1, refused=True)] == ["I4"]
    assert paused(2 * 784 + waits, refused=False) == []
    assert [name for name, _ in paused(2 * 784 + waits + 1, refused=False)] == ["I4"]


def test_scaling_out_plants_warm_ups_and_no_task_pauses_for_its_restore() -> None:
    with Simulation(SMALL, seed=11) as group:
        grown(group, 1)
        paused = group.count_pauses()
        group.add(1)
        took = group.settle(120_000)
        warmed = {
            task
            for decision in group.decisions
            for tasks in decision.assignment.warmup.values()
            for task in tasks
        }
        assert len(warmed) >= 4, group.history.text(60)
        # 6 of the 12 tasks move; each is down for two rebalances and the tail of its changelog, not
        # for its restore.
        assert (group.count_pauses() - paused) / 6 < 2_500, group.history.text(60)
        assert took < 60_000
        assert group.checks.worst_pause is not None


def test_an_assignor_that_forgets_warm_ups_is_caught() -> None:
    def cold(cluster: ClusterState) -> Assignment:
        return assignor.assign(replace(cluster, rules=replace(cluster.rules, acceptable_lag=10**9)))

    with Simulation(SMALL, seed=11, decide=cold) as group:
        grown(group, 1)
        group.add(1)
        with pytest.raises(InvariantError, match="I5 violated") as caught:
            group.settle(120_000)
        assert "seed 11" in str(caught.value)
        assert "assigns" in str(caught.value)


def first_broken(seeds: int = 60) -> str | None:
    """The invariant that breaks in the first of so many seeds in which one does."""
    for seed in range(seeds):
        try:
            run(draw(seed))
        except InvariantError as error:
            return error.name
    return None


def test_without_the_gate_a_batch_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_gate, "decide", lambda *_: Decision(True))
    assert first_broken(20) == "I3"


def test_offsets_that_are_still_pending_are_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads what was committed last, and not what is stable, begins too early."""

    def any_committed(self: SimulatedLog, partitions: Any) -> dict[TopicPartition, Any]:
        self._require_available()
        return {tp: self.committed[tp] for tp in partitions if tp in self.committed}

    monkeypatch.setattr(SimulatedLog, "stable_committed", any_committed)
    assert first_broken(20) == "I3"


def test_a_sink_that_applies_before_it_commits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    commit, apply = sink._Transaction._commit, sink._Transaction._apply
    applied: list[Any] = []

    def too_early(self: sink._Transaction, writer: Any) -> GateAnswer:
        applied[:] = [apply(self, writer.positions())]
        return commit(self, writer)

    monkeypatch.setattr(sink._Transaction, "_commit", too_early)
    monkeypatch.setattr(sink._Transaction, "_apply", lambda *_: applied[0])
    assert first_broken() in ("I2", "I3")


def test_a_sink_that_does_not_take_a_no_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = _Batch.ask

    def yes(self: _Batch, request: Any, offsets: Any) -> GateAnswer:
        answer = ask(self, request, offsets)
        member = self.services.backend.member()
        return (
            answer
            if answer.ok
            else GateAnswer(True, group_metadata=self.services.backend.encode(member))
        )

    monkeypatch.setattr(_Batch, "ask", yes)
    assert first_broken() == "I3"


def test_a_sink_that_skips_an_untouched_input_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    every = sink._Transaction._offsets

    def moved(self: sink._Transaction) -> list[tuple[str, int, int, str]]:
        return [
            found
            for found in every(self)
            if found[2] > self.request.ranges[TopicPartition(found[0], found[1])].start
        ]

    monkeypatch.setattr(sink._Transaction, "_offsets", moved)
    assert first_broken() == "I3"


def test_without_a_fence_a_dead_worker_holds_tasks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def stands_still(fenced: bool) -> bool:
        if not fenced:
            monkeypatch.setattr(SimulatedRecoveryPorts, "fence", lambda self, ids: None)
        with Simulation(SMALL, seed=12) as group:
            grown(group, 1)
            group.crash_worker("i1", 0, OFFSETS_SENT)
            group.run_for(500)
            try:
                group.require_progress(3_000)  # its time-out is 10 s
            except InvariantError:
                return True
            return False

    assert not stands_still(fenced=True)
    assert stands_still(fenced=False)


def test_an_end_that_forgets_to_leave_costs_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real end runs here: what is taken out of it shows."""

    def taken_over_ms() -> float:
        with Simulation(SMALL, seed=13) as group:
            grown(group, 2)
            group.close_instance("i2", leave_group=True, drain_ms=None)
            return group.settle(60_000)

    session_ms = SMALL.timings.session_timeout_ms
    assert taken_over_ms() < session_ms / 2
    monkeypatch.setattr(InstanceEnd, "_leave", lambda self: None)
    assert taken_over_ms() > session_ms / 2


def test_each_step_of_an_end_is_a_wait_that_is_shown() -> None:
    shown: list[str] = []

    def show(what: str) -> AbstractContextManager[None]:
        shown.append(what)
        return nullcontext()

    with Simulation(SMALL, seed=14) as group:
        grown(group, 2)
        with shown_by(show):
            group.close_instance("i2")
            group.settle(60_000)
    steps = ["tasks", "events", "batches"]
    assert [word in line for word, line in zip(steps, shown, strict=False)] == [True] * 3
    assert shown[-1] == "leaving the group"


@pytest.mark.parametrize("after_ms", [0, 20, 1_000])
def test_one_that_is_closed_while_it_starts_gives_up_and_holds_nobody_up(after_ms: float) -> None:
    with Simulation(SMALL, seed=14) as group:
        grown(group, 2)
        (late,) = group.add(1)
        group.run_for(after_ms)
        group.close_instance(late.name)
        group.settle(60_000)
        assert (late.states.state, late.error) == (ClientState.NOT_RUNNING, None)
        assert not late.member.metadata().member_id or late.member.metadata().generation < 0
        group.require_progress(10_000)


def test_who_does_not_want_to_wait_cuts_a_drain_and_a_batch_in_flight_off() -> None:
    def taken_over_ms(hurried: bool) -> float:
        with Simulation(replace(SMALL, input_rate=200.0), seed=15) as group:
            grown(group, 2)
            group.stall_batch("i2", 0, 20_000.0)
            group.run_for(1_000)
            began = group.now_ms
            group.close_instance("i2")
            group.run_for(100)
            if hurried:
                group.hurry("i2")
            while not group.instances["i2"].ended:
                group.run_for(50)
            ended_ms = group.now_ms - began
            group.settle(120_000)
            group.require_progress(20_000)
            return ended_ms

    assert taken_over_ms(hurried=True) < 2_500 < taken_over_ms(hurried=False)


def hand_overs(group: Simulation) -> None:
    """Tasks change hands within a moment of a commit whose markers come late (KAFKA-10167)."""
    group.add(2)
    group.settle(60_000)
    for name in ("i1", "i2", "i1", "i2"):
        group.close_instance(name, leave_group=True, drain_ms=None)
        group.run_for(2_500)
        group.restart(name)
        group.settle(60_000)


def first_violation(settings: SimulationSettings, seeds: range) -> str | None:
    """What `hand_overs` breaks first in one of ``seeds``."""
    for seed in seeds:
        with Simulation(settings, seed=seed) as group:
            try:
                hand_overs(group)
            except InvariantError as error:
                return error.name
    return None


def test_who_waits_for_no_stable_offsets_misses_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_markers = replace(SMALL, timings=Timings(marker_ms=(1.0, 1_500.0)))
    assert first_violation(slow_markers, range(84, 88)) is None
    monkeypatch.setattr(
        Recovery,
        "_stable_ends",
        lambda self, inputs, targets, _: self.ports.stable_ends([*inputs, *targets]),
    )
    assert first_violation(slow_markers, range(84, 104)) == "I3"


def test_a_static_owner_that_dies_while_its_task_is_taken_away_is_found_out() -> None:
    """Each generation renews its session: only a group that leaves it alone sees it end."""
    timings = Timings(session_timeout_ms=12_000, rebalance_timeout_ms=6_000)
    with Simulation(replace(SMALL, timings=timings), seed=61) as group:
        grown(group, 2, static=True)
        group.add(1, static=True)
        while not (
            group.decisions[-1].assignment.warmup
            and any(group.decisions[-1].assignment.warmup.values())
        ):
            group.run_for(50)
        group.kill("i2")
        group.settle(120_000)
        assert len(group.coordinator.members) == 2


def test_a_static_owner_that_was_restarted_before_it_let_go_hands_over_all_the_same() -> None:
    """Its former life had to ask for the follow-up; it gets that answer again, and no rebalance."""
    stateless = SimulationSettings(
        subtopologies=(SimulatedSubTopology(8, stateful=False),)
    )  # nobody else asks, for a warm-up that is hot
    with Simulation(stateless, seed=62) as group:
        grown(group, 1, static=True)
        for thread in (0, 1):
            group.stall_batch("i1", thread, 20_000)
        group.add(1, static=True)
        while not group.decisions[-1].assignment.withheld:
            group.run_for(50)
        group.kill("i1")
        group.run_for(300)
        group.restart("i1")
        group.settle(60_000)
        group.require_progress(10_000)


def test_a_static_bounce_leaves_the_generation_and_everyone_else_alone() -> None:
    with Simulation(SMALL, seed=3) as group:
        grown(group, 3, static=True)
        generation = group.coordinator.generation
        for name in ("i1", "i2", "i3"):
            group.close_instance(name)
            group.run_for(2_000)
            assert not group.instances[name].process.alive
            group.restart(name)
            group.settle(20_000)
            group.require_progress(10_000)
        assert group.coordinator.generation == generation, group.history.text(60)


def test_a_static_member_with_an_empty_disk_does_not_get_its_tasks_cold() -> None:
    settings = replace(SMALL, rules=AssignmentRules(num_standbys=1))
    with Simulation(settings, seed=4) as group:
        grown(group, 2, static=True)
        group.kill("i1")
        group.run_for(1_000)
        group.restart("i1", with_disk=False)
        group.settle(120_000)
        group.require_progress(10_000)


def test_a_standby_that_catches_up_at_once_says_so_too() -> None:
    """Cold when the leader looks, hot after one round: somebody waits to hear of it."""
    rules = AssignmentRules(acceptable_lag=2_000, num_standbys=2)
    with Simulation(replace(SMALL, rules=rules, input_rate=100.0), seed=18) as group:
        grown(group, 4, records=2_500, static=True)
        group.kill("i1")
        group.run_for(1_000)
        group.restart("i1", with_disk=False)
        assert group.settle(60_000) < 30_000


def test_two_instances_with_one_instance_id_the_older_is_fenced_and_says_so() -> None:
    with Simulation(SMALL, seed=8) as group:
        grown(group, 2, static=True)
        older = group.instances["i2"]
        group.expected_failures.add("i2")
        group.impostor("i2")
        group.run_for(20_000)
        assert older.error is not None
        assert "group.instance.id" in str(older.error)
        group.settle(60_000)


def test_scaling_in_drains_first_and_nothing_is_restored_cold() -> None:
    with Simulation(SMALL, seed=21) as group:
        grown(group, 3)
        paused = group.count_pauses()
        group.close_instance("i2")
        group.run_for(3_000)
        group.settle(120_000)
        assert group.count_pauses() - paused < 4 * 2_500, group.history.text(60)
        group.require_progress(10_000)


def test_a_drain_onto_hot_standbys_takes_two_rebalances_and_nobody_waits_for_a_heartbeat() -> None:
    """One takes the tasks away; the other begins with the leaving itself, and is noticed long
    before a heartbeat of a group at rest (500 ms) would."""
    settings = SimulationSettings(
        subtopologies=(SimulatedSubTopology(8),), rules=AssignmentRules(num_standbys=1)
    )
    with Simulation(settings, seed=22) as group:
        grown(group, 2)
        group.run_for(10_000)
        generation, paused = group.coordinator.generation, group.count_pauses()
        group.close_instance("i2")
        group.run_for(3_000)
        group.settle(60_000)
        assert group.coordinator.generation == generation + 2, group.history.text(60)
        assert (group.count_pauses() - paused) / 4 < 300, group.history.text(60)
        group.require_progress(10_000)


def test_a_process_that_stood_still_beyond_its_session_is_fenced_and_comes_back() -> None:
    with Simulation(SMALL, seed=31) as group:
        grown(group, 2)
        group.pause("i1", 25_000)
        group.run_for(24_000)
        assert len(group.coordinator.members) == 1
        group.run_for(10_000)
        group.settle(120_000)
        group.require_progress(10_000)


def test_a_batch_that_wakes_up_after_its_task_went_away_and_came_back_commits_nothing() -> None:
    settings = replace(SMALL, timings=Timings(rebalance_timeout_ms=5_000))
    with Simulation(settings, seed=33) as group:
        grown(group, 2)
        for thread in (0, 1):
            group.stall_batch("i1", thread, 40_000)
        group.add(1)  # the rebalance does not wait for it: the member is dropped
        group.run_for(60_000)
        group.settle(120_000)
        woken = [
            entry
            for entry in group.history.entries
            if entry.who == "i1" and entry.at_ms > 50_000 and "batch" in entry.what
        ]
        assert any("aborted: ownership-changed" in entry.what for entry in woken)


def test_a_rolling_upgrade_to_a_newer_version_of_user_data_needs_no_setting() -> None:
    with Simulation(SMALL, seed=41) as group:
        grown(group, 3)
        for name in ("i1", "i2", "i3"):
            group.close_instance(name, leave_group=False)
            group.run_for(1_000)
            group.restart(name, version=LATEST_VERSION + 1)
            group.run_for(5_000)
            group.require_progress(60_000)
        group.settle(120_000)


def test_what_is_hidden_from_the_leader_moves_nothing() -> None:
    with Simulation(SMALL, seed=51) as group:
        grown(group, 2)
        before = {instance.name: instance.running() for instance in group.live()}
        group.hide_end_sums(8_000)
        group.add(1)
        group.run_for(6_000)
        assert {name: group.instances[name].running() for name in before} == before
        group.settle(120_000)


def test_a_forecast_counts_moves_warm_ups_rounds_and_pauses() -> None:
    step = Step(members=3, add=2, tasks=24, state_records=1_000_000)
    found = forecast(step)
    assert found.balanced_after_s is not None
    # 24 tasks on 5 instances: 9 or 10 move, two at a time, each after a restore of 2.5 s and the
    # second in which hot ones gather.
    assert 9 <= found.moves <= 10
    assert found.warmed == found.moves
    assert max(one.warmups for one in found.rounds) == 2
    assert [one.left for one in found.rounds] == sorted(
        (one.left for one in found.rounds), reverse=True
    )
    assert 5 * 2.5 < found.balanced_after_s < 60
    assert found.longest_pause_s < 2.0
    assert sorted(found.tasks_per_member.values()) == [4, 5, 5, 5, 5]
    assert forecast(step) == found
    quick = forecast(replace(step, warmups=8))
    assert quick.rebalances < found.rebalances


def test_a_forecast_of_a_crash_waits_for_the_session_and_uses_the_standby() -> None:
    found = forecast(Step(members=3, crash=1, tasks=12, standbys=1, session_timeout_s=10.0))
    assert found.balanced_after_s is not None
    assert 10.0 <= found.longest_pause_s < 13.0
    assert forecast(Step(members=3, remove=1, tasks=12, standbys=1)).longest_pause_s < 2.0


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (Step(), "Nothing changes"),
        (Step(members=0, add=1), "--members 0"),
        (Step(members=2, crash=2), "Nobody"),
        (Step(members=2, remove=3, add=5), "more than the --members 2"),
        (Step(add=1, tasks=0), "nothing to place"),
        (Step(add=1, restore_rate=0.0), "--restore-rate"),
        (Step(add=1, acceptable_lag=10, input_rate=100.0), "ever count"),
    ],
)
def test_a_step_that_cannot_be_is_refused_by_the_name_of_its_option(step: Step, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        forecast(step)


def test_a_rolling_bounce_of_static_members_makes_no_generation_and_loses_only_what_is_down() -> (
    None
):
    plan = BouncePlan(members=5, tasks=20, bounced=2, down_s=4.0)
    rows = {row.mode: row for row in rolling_bounce(plan)}
    assert rows["static"].generations == 0
    assert 20 * 4.0 <= rows["static"].task_seconds_lost < 20 * 5.5
    assert rows["drained"].task_seconds_lost < 20 * 2 * 1.0
    assert rows["drained"].generations > 0
    assert rows["leaving"].task_seconds_lost < rows["eager"].task_seconds_lost


def test_with_a_delay_connectors_move_neither_in_a_bounce_nor_when_a_worker_is_lost_and_back() -> (
    None
):
    """Whoever leads: each of the three does, one after the other (note 075)."""
    plan = SimulatedPlan(connectors=6)
    outcomes = {
        (event, mode): simulate(plan, 3, event, mode)
        for event in (BOUNCE, LOST)
        for mode in (EAGER, COOPERATIVE, DELAYED)
    }
    assert {outcomes[event, DELAYED].moved for event in (BOUNCE, LOST)} == {0}
    assert all(outcomes[LOST, mode].moved == 16 for mode in (EAGER, COOPERATIVE))
    assert all(outcomes[event, COOPERATIVE].stayed_s == 0 for event in (BOUNCE, LOST))
    away_s = 8 * plan.lost_s
    assert away_s < outcomes[LOST, DELAYED].lost_s < away_s + 8 * 2
    assert outcomes[LOST, COOPERATIVE].lost_s < outcomes[LOST, EAGER].lost_s < away_s


def test_a_connector_that_is_added_stops_no_other() -> None:
    added = simulate(SimulatedPlan(connectors=6), 3, ADDED, COOPERATIVE)
    assert (added.lost_s, added.stayed_s) == (0, 0)


@pytest.mark.slow
def test_a_thousand_members_and_ten_thousand_tasks() -> None:
    step = Step(
        members=1_000,
        add=10,
        tasks=10_000,
        state_records=100_000,
        input_rate=1.0,
        threads=1,
        warmups=200,
    )
    began = time.process_time()
    found = forecast(step)
    assert found.balanced_after_s is not None
    assert found.balanced_after_s < 60
    assert set(found.tasks_per_member.values()) == {9, 10}
    assert time.process_time() - began < 60


# --- paused connectors (note 074) -----------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_what_is_paused_stands_still_whatever_happens_and_loses_nothing(seed: int) -> None:
    """Each instance knows of the pause before its first batch, as from the connector topic, and
    takes a restart now and then; the other part goes on."""
    settings = replace(
        SMALL, subtopologies=(SimulatedSubTopology(4), SimulatedSubTopology(4, stateful=False))
    )
    random = Random(seed)
    parts: frozenset[int] = frozenset()

    def tell(group: Simulation) -> None:
        for one in group.live():
            one.pause.pause_connectors(frozenset(), parts)

    with Simulation(settings, seed=seed) as group:
        grown(group, 3)
        inputs = [tp for task, tps in settings.tasks.items() if task.subtopology == 1 for tp in tps]
        for _ in range(3):
            parts = frozenset({1})
            tell(group)
            group.run_for(2_000)  # the batches in flight
            before = {tp: group.log.decided[tp].offset for tp in inputs}
            name = random.choice(sorted(one.name for one in group.live()))
            (group.kill if random.random() < 0.5 else group.close_instance)(name)
            group.run_for(random.uniform(0.0, 3_000.0))
            while group.instances[name].process.alive:
                group.run_for(500)
            group.restart(name)
            tell(group)
            one = random.choice(group.live())
            group.checks.disturbed(frozenset(settings.tasks))
            one.loop.post(partial(one.manager.restart, frozenset(one.manager.running)))
            group.settle(200_000)
            progressed(group, settings, 0)
            assert {tp: group.log.decided[tp].offset for tp in inputs} == before
            group.checks.disturbed(frozenset(settings.tasks))
            parts = frozenset()
            tell(group)
            group.settle(60_000)
            group.require_progress(20_000)


def progressed(group: Simulation, settings: SimulationSettings, part: int) -> None:
    """Every task of the sub-topology gets on."""
    inputs = [tp for task, tps in settings.tasks.items() if task.subtopology == part for tp in tps]
    before = {tp: group.log.decided[tp].offset for tp in inputs}
    group.run_for(20_000)
    assert all(group.log.decided[tp].offset > before[tp] for tp in inputs), group.history.text(60)
