"""The simulated world: one seed, a group, faults, time; it stops at the first broken invariant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from everflow.assignment import assignor
from everflow.assignment.cluster_state import Assignment, ClusterState, Member, TaskInfo
from everflow.errors import EverflowError, ProcessIdClashError
from everflow.protocol.messages import format_metadata
from everflow.records import CommittedOffset, TaskId, TopicPartition
from everflow.retry import shown_by, shown_elsewhere
from everflow_simulation.checks import Checks, InvariantError
from everflow_simulation.disk import SimulatedDisk
from everflow_simulation.group_coordinator import GroupCoordinator, GroupState
from everflow_simulation.history import History
from everflow_simulation.instance import SimulatedInstance, World
from everflow_simulation.log import SimulatedLog, Write, fold_of
from everflow_simulation.network import Network
from everflow_simulation.scheduler import Scheduler
from everflow_simulation.settings import SimulationSettings, Timings
from everflow_simulation.worker import CrashPlan

SHOWN = 60
"""Entries of the history in an InvariantError."""


@dataclass(frozen=True)
class LeaderDecision:
    """One decision of a leader."""

    at_ms: float
    leader: str
    cluster: ClusterState
    assignment: Assignment


class Simulation:
    """A group from one seed. Use as a context manager: what still waits at the end is ended.

        with Simulation(SimulationSettings(), seed=7) as group:
            group.add(3)
            group.settle(60_000)
            group.kill("i1")
            group.settle(120_000)

    Every method runs at the present virtual time; only `run_for` and `settle` let time pass. They
    raise InvariantError.
    """

    def __init__(
        self,
        settings: SimulationSettings,
        seed: int,
        history_file: Path | None = None,
        decide: Callable[[ClusterState], Assignment] = assignor.assign,
    ) -> None:
        self.settings, self.seed = settings, seed
        self._history_file = history_file
        self._decide = decide
        random = Random(seed)
        self.random = random
        self.scheduler = Scheduler()
        self.history = History(lambda: self.scheduler.now_ms)
        self.coordinator, self.log = _brokers(
            settings.timings, self.scheduler, self.history, random
        )
        slowdown = [1.0]  # of restores
        self.checks = Checks(
            settings=settings,
            history=self.history,
            coordinator=self.coordinator,
            log=self.log,
            restore_slowdown=slowdown,
        )
        self.log.on_commit = self.checks.committed
        self.decisions: list[LeaderDecision] = []
        self.instances: dict[str, SimulatedInstance] = {}
        self.expected_failures: set[str] = set()
        """Instances that may fail, e.g. because they are fenced."""
        self.paused_task_ms = 0.0
        """Summed over all tasks: time in which a task ran nowhere, since it first ran."""
        self.outages: list[tuple[TaskId, float]] = []
        """Task and ms for which it ran nowhere, each time."""
        self._running: dict[TaskId, int] = {}
        self._down_since: dict[TaskId, float] = {}
        self._runs_on: dict[str, frozenset[TaskId]] = {}
        self._not_running = 0
        self._counted_ms = 0.0
        self._disks = 0
        self._killed: set[str] = set()
        self._lives = 0
        self._input_rest = 0.0
        self._periods = 0
        self._unseen = ExitStack()
        self.world = self._world(slowdown)
        self.scheduler.after(0, self._grow)

    def _world(self, restore_slowdown: list[float]) -> World:
        return World(
            settings=self.settings,
            scheduler=self.scheduler,
            history=self.history,
            random=self.random,
            network=Network(self.scheduler, self.random, self.settings.timings.network_ms),
            coordinator=self.coordinator,
            log=self.log,
            restore_slowdown=restore_slowdown,
            end_sums_known=[True],
            decide=self._decided,
            on_claim=self.checks.claimed,
            on_running=self._ran,
            on_batch=self.checks.batch,
            on_crash=self.checks.disturbed,
            on_failed=self._failed,
        )

    def __enter__(self) -> Simulation:
        # Nobody waits for what lasts in virtual time.
        self._unseen.enter_context(shown_by(shown_elsewhere))
        return self

    def __exit__(self, *_: object) -> None:
        self._unseen.close()
        self.close()

    def close(self) -> None:
        """End everything that still waits; write the history where it was asked for."""
        self.scheduler.close()
        if self._history_file is not None:
            self.history.write(self._history_file)

    # --- instances --------------------------------------------------------------------------------

    def add(
        self, count: int = 1, *, static: bool = False, version: int | None = None
    ) -> list[SimulatedInstance]:
        """Start new instances with empty disks."""
        return [
            self._start(f"i{len(self.instances) + 1}", None, static, version) for _ in range(count)
        ]

    def start_with_state(
        self, count: int, records: int, *, static: bool = False
    ) -> list[SimulatedInstance]:
        """Start a group that has been running for long: every stateful task has ``records`` behind
        it, and each copy lies on the disk where the assignor wants it. Only in a fresh
        simulation."""
        members = [
            Member(member_id=f"i{n}", process_id=_process_id(n), threads=self.settings.threads)
            for n in range(1, count + 1)
        ]
        tasks = {task: self._info(task, inputs) for task, inputs in self.settings.tasks.items()}
        ends = {task: 0 for task, info in tasks.items() if info.stateful}
        placed = self._decide(
            ClusterState(
                members=tuple(members), tasks=tasks, end_sums=ends, rules=self.settings.rules
            )
        )
        for task, inputs in self.settings.tasks.items():
            self._preload(task, inputs, records)
        started = []
        for member in members:
            disk = SimulatedDisk(member.process_id)
            self._disks += 1
            for task in sorted(
                placed.active[member.member_id] | placed.standby.get(member.member_id, frozenset())
            ):
                if tasks[task].stateful:
                    store = disk.store(Path(str(task)) / "store")
                    store.position = records
                    store.content = {tp: fold_of(0, records) for tp in self.settings.tasks[task]}
            started.append(self._start(member.member_id, disk, static, None))
        return started

    def _info(self, task: TaskId, inputs: tuple[TopicPartition, ...]) -> TaskInfo:
        changelog = self.settings.changelog(task)
        return TaskInfo(
            task, inputs, () if changelog is None else (changelog,), changelog is not None
        )

    def _preload(self, task: TaskId, inputs: tuple[TopicPartition, ...], records: int) -> None:
        for tp in inputs:
            self.log.grow(tp, records)
            before = CommittedOffset(records, format_metadata("before", {}))
            self.log.first[tp] = self.log.committed[tp] = self.log.decided[tp] = before
        changelog = self.settings.changelog(task)
        if changelog is not None and records:
            partition = self.log.partition(changelog)
            partition.end = records
            partition.writes.append(
                Write(0, records, {tp: fold_of(0, records) for tp in inputs}, "before")
            )

    def _start(
        self, name: str, disk: SimulatedDisk | None, static: bool, version: int | None
    ) -> SimulatedInstance:
        if disk is None:
            self._disks += 1
            disk = SimulatedDisk(_process_id(self._disks))
        self._lives += 1
        instance = SimulatedInstance(
            world=self.world,
            name=name,
            disk=disk,
            life=self._lives,
            instance_id=name if static else None,
            version=version,
        )
        self.instances[name] = instance
        instance.launch()
        return instance

    def restart(
        self, name: str, *, with_disk: bool = True, version: int | None = None
    ) -> SimulatedInstance:
        """A dead or ended instance starts again, on its own disk or on an empty one."""
        before = self.instances[name]
        if before.process.alive:
            raise ValueError(f"{name} still lives")
        disk = before.disk if with_disk else None
        return self._start(
            name,
            disk,
            before.instance_id is not None,
            version if version is not None else before.version,
        )

    def impostor(self, name: str) -> SimulatedInstance:
        """A second process with the ``group.instance.id`` of one that lives, on a disk of its
        own."""
        former = self.instances.pop(name)
        self.instances[f"{name}-former"] = former
        return self._start(name, None, True, former.version)

    def live(self) -> list[SimulatedInstance]:
        """Instances that run and are not on their way out."""
        return [
            instance
            for instance in self.instances.values()
            if instance.process.alive and not instance.closing
        ]

    def present(self) -> list[SimulatedInstance]:
        """Instances whose process lives, those that drain included."""
        return [
            instance
            for instance in self.instances.values()
            if instance.process.alive and not instance.ended
        ]

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """SIGKILL: nothing is said, the session runs out."""
        self._disturb(name)
        self._killed.add(name)
        self.instances[name].kill()

    def pause(self, name: str, ms: float) -> None:
        """The whole process stands still (garbage collection, a stopped virtual machine)."""
        instance = self.instances[name]
        self._disturb(name)
        self.history.add("fault", f"{name} stands still for {ms:.0f} ms")
        instance.process.paused_until_ms = max(
            instance.process.paused_until_ms, self.scheduler.now_ms + ms
        )
        self._ran(instance, frozenset())

        def awake() -> None:
            self._ran(instance, instance.running())
            self._disturb(name)

        self.scheduler.after(ms, awake, instance.process)

    def stall_batch(self, name: str, thread: int, ms: float) -> None:
        """The next batch of a stream thread takes that much longer; the rest of the instance goes
        on."""
        self.history.add("fault", f"next batch of {name}/t{thread} takes {ms:.0f} ms longer")
        self.instances[name].workers.crashes[thread] = CrashPlan(delay_ms=ms)

    def crash_worker(self, name: str, thread: int, point: str) -> None:
        """The worker of the next batch dies at a crash point (`crash_points.NAMES`)."""
        self.history.add("fault", f"worker of {name}/t{thread} dies at {point}")
        self.instances[name].workers.crashes[thread] = CrashPlan(point=point)

    def fail_over(self, outage_ms: float) -> None:
        """The group's coordinator moves."""
        self.checks.all_disturbed(outage_ms + 500.0)
        self.coordinator.fail_over(outage_ms)

    def lose_brokers(self, ms: float) -> None:
        """No broker answers readers and producers that begin something; the group's coordinator is
        away too."""
        self.history.add("fault", f"the brokers are away for {ms:.0f} ms")
        self.log.available = False
        if self.coordinator.available:
            self.fail_over(ms)
        self.checks.all_disturbed(ms + 1_000.0)
        self.scheduler.after(ms, lambda: setattr(self.log, "available", True))

    def forget_offsets(self, ms: float) -> None:
        """The group's coordinator has lost what was committed last, and tells what was committed
        first, until it loads its log again (note 064)."""
        self.history.add("fault", f"the coordinator has forgotten offsets for {ms:.0f} ms")
        self.log.forgotten = dict(self.log.first)
        self.checks.all_disturbed(ms + 10_000.0)
        self.scheduler.after(ms, lambda: setattr(self.log, "forgotten", None))

    def jump_clock(self, name: str, ms: float) -> None:
        """The wall clock of an instance jumps, forwards or backwards."""
        self.history.add("fault", f"the clock of {name} jumps by {ms:.0f} ms")
        self.instances[name].process.wall_offset_ms += ms

    def slow_restores(self, factor: float, ms: float) -> None:
        """Every replay of a changelog is slower for a while."""
        self.history.add("fault", f"restores are {factor:g} times slower for {ms:.0f} ms")
        self.world.restore_slowdown[0] = factor
        self.scheduler.after(ms, lambda: self.world.restore_slowdown.__setitem__(0, 1.0))

    def hide_end_sums(self, ms: float) -> None:
        """Leaders cannot read the ends of changelogs for a while (X2)."""
        self.history.add("fault", f"end sums cannot be read for {ms:.0f} ms")
        self.world.end_sums_known[0] = False
        self.scheduler.after(ms, lambda: self.world.end_sums_known.__setitem__(0, True))

    def close_instance(
        self, name: str, leave_group: bool | None = None, drain_ms: float | None = 60_000.0
    ) -> None:
        """A clean stop; dynamic members drain and leave."""
        self._disturb(name)
        self.instances[name].close(leave_group, drain_ms)

    def hurry(self, name: str) -> None:
        """Somebody does not want to wait for its end: it drains no longer, and a batch in flight
        has a second."""
        self.history.add("fault", f"{name} is to end now")
        self.instances[name].lifecycle.hurry.set()

    def _disturb(self, name: str) -> None:
        instance = self.instances.get(name)
        if instance is not None:
            self.checks.disturbed(instance.running() | instance.assigned)

    # --- time -------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> float:
        return self.scheduler.now_ms

    def run_for(self, ms: float) -> None:
        """Let virtual time pass. Raises InvariantError at the first violation."""
        self.scheduler.run_until(self.scheduler.now_ms + ms, self._check_violations)

    def settle(self, within_ms: float, check_ms: float = 250.0) -> float:
        """Run until the group is at the assignor's ideal and every task runs; virtual ms it took.
        InvariantError (``liveness``) if that takes longer than ``within_ms``."""
        began = self.scheduler.now_ms
        while not self.balanced():
            if self.scheduler.now_ms - began > within_ms:
                self._raise(
                    "liveness",
                    (
                        f"the group did not come to rest within {within_ms / 1000:g} s: "
                        f"{self.restless()}"
                    ),
                )
            self.run_for(check_ms)
        self.checks.stores(self.live())
        self._check_violations()
        return self.scheduler.now_ms - began

    def balanced(self) -> bool:
        """No movement left, nothing withheld, every task runs once."""
        return self.restless() == ""

    def restless(self) -> str:
        """What is still missing for `balanced`; "" if nothing is."""
        if self.coordinator.state is not GroupState.STABLE:
            return f"the group is {self.coordinator.state.value}"
        if not self.decisions:
            return "nothing was assigned yet"
        last = self.decisions[-1].assignment
        if last.movements or last.withheld:
            return (
                f"{last.movements} movements and {len(last.withheld)} withheld tasks in the "
                f"last assignment"
            )
        live = self.present()
        unsettled = [instance.name for instance in live if not instance.settled or instance.closing]
        if unsettled:
            return f"{', '.join(unsettled[:5])} ({len(unsettled)}) not settled"
        places = [task for instance in live for task in instance.running()]
        missing = set(self.settings.tasks) - set(places)
        if missing or len(places) != len(self.settings.tasks):
            return (
                f"{len(places)} tasks run, {len(self.settings.tasks)} should; missing "
                f"{sorted(missing)[:5]}"
            )
        ideal = {task for tasks in last.target.values() for task in tasks}
        return "" if ideal == set(places) else "the ideal has other tasks"

    def require_progress(self, within_ms: float) -> None:
        """Every task commits something new. InvariantError (``liveness``) otherwise."""
        inputs = [tp for tps in self.settings.tasks.values() for tp in tps]
        before = {
            tp: self.log.decided[tp].offset if tp in self.log.decided else -1 for tp in inputs
        }
        end = self.scheduler.now_ms + within_ms
        waiting = set(inputs)
        while waiting:
            if self.scheduler.now_ms > end:
                self._raise(
                    "liveness",
                    (
                        f"nothing committed within {within_ms:.0f} ms: "
                        f"{', '.join(map(str, sorted(waiting)[:5]))}"
                    ),
                )
            self.run_for(250.0)
            waiting = {
                tp
                for tp in waiting
                if tp not in self.log.decided or self.log.decided[tp].offset <= before[tp]
            }

    def backlog(self, records: int) -> None:
        """Write records into every input at once."""
        for tps in self.settings.tasks.values():
            for tp in tps:
                self.log.grow(tp, records)

    def grow(self, subtopology: int, tasks: int) -> None:
        """The topics of a sub-topology without state get partitions, which every instance takes up
        at once: each asks for a rebalance (note 037)."""
        settings = self.settings
        for topic in settings.topics[subtopology]:
            settings.partition_counts[topic] = tasks
        for number in range(tasks):
            task = TaskId(subtopology, number)
            topics = settings.topics[subtopology]
            settings.tasks[task] = tuple(TopicPartition(topic, number) for topic in topics)
        for instance in self.live():
            instance.member.request_rejoin("a topic has more partitions")

    def count_pauses(self) -> float:
        """Task-milliseconds in which tasks ran nowhere, until now."""
        self._account()
        return self.paused_task_ms

    # --- inside -----------------------------------------------------------------------------------

    def _grow(self) -> None:
        period = self.settings.input_period_ms
        self._input_rest += self.settings.input_rate * period / 1000
        records, self._input_rest = int(self._input_rest), self._input_rest % 1
        self._periods += 1
        for inputs in self.settings.tasks.values():
            for every, tp in enumerate(inputs, 1):  # some batches leave an input untouched
                if self._periods % every == 0:
                    self.log.grow(tp, records * every)
        self.scheduler.after(period, self._grow)

    def _decided(self, leader: str, cluster: ClusterState) -> Assignment:
        assignment = self._decide(cluster)
        self.decisions.append(LeaderDecision(self.scheduler.now_ms, leader, cluster, assignment))
        del self.decisions[:-1000]
        self.history.add(leader, _summary(assignment, cluster))
        self.checks.decided(cluster, assignment)
        return assignment

    def _ran(self, instance: SimulatedInstance, running: frozenset[TaskId]) -> None:
        before = self._runs_on.get(instance.name, frozenset())
        if running == before:
            return
        self._account()
        self._runs_on[instance.name] = running
        for task in running - before:
            count = self._running.get(task)
            if count == 0:
                self._not_running -= 1
                self.outages.append((task, self.scheduler.now_ms - self._down_since.pop(task)))
            self._running[task] = (count or 0) + 1
        for task in before - running:
            self._running[task] -= 1
            if self._running[task] == 0:
                self._not_running += 1
                self._down_since[task] = self.scheduler.now_ms

    def _account(self) -> None:
        self.paused_task_ms += self._not_running * (self.scheduler.now_ms - self._counted_ms)
        self._counted_ms = self.scheduler.now_ms

    def _failed(self, instance: SimulatedInstance, error: EverflowError) -> None:
        if isinstance(error, ProcessIdClashError) and instance.name in self._killed:
            # It came back into a rebalance that still waits for its former life. Whoever supervises
            # it starts it again.
            self.scheduler.after(
                self.settings.timings.session_timeout_ms + 5_000, lambda: self._supervise(instance)
            )
            return
        if instance.name not in self.expected_failures:
            self.checks.violations.append(
                ("survival", f"{instance.name} stopped: [{error.code}] {error}")
            )

    def _supervise(self, instance: SimulatedInstance) -> None:
        if not self.instances[instance.name].process.alive:
            self.restart(instance.name)

    def _check_violations(self) -> None:
        if self.checks.violations:
            self._raise(*self.checks.violations[0])

    def _raise(self, name: str, what: str) -> None:
        if self._history_file is not None:
            self.history.write(self._history_file)
        raise InvariantError(name, what, self.seed, self.scheduler.now_ms, self.history.text(SHOWN))


def _brokers(
    timings: Timings, scheduler: Scheduler, history: History, random: Random
) -> tuple[GroupCoordinator, SimulatedLog]:
    group = GroupCoordinator(
        scheduler=scheduler, history=history, initial_delay_ms=timings.initial_delay_ms
    )
    log = SimulatedLog(
        scheduler=scheduler,
        history=history,
        group=group,
        random=random,
        marker_delay_ms=timings.marker_ms,
    )
    return group, log


def _process_id(number: int) -> str:
    """As a state folder has it; `lost_writers` goes by its form."""
    return f"00000000-0000-0000-0000-{number:012d}"


def _summary(assignment: Assignment, cluster: ClusterState) -> str:
    active: Mapping[str, frozenset[TaskId]] = assignment.active
    shown = "; ".join(
        f"{member_id}: {_run(tasks)}" for member_id, tasks in sorted(active.items())[:6]
    )
    warm = "; ".join(
        f"{member_id}: {_run(tasks)}"
        for member_id, tasks in sorted(assignment.warmup.items())[:6]
        if tasks
    )
    more = "" if len(active) <= 6 else f" and {len(active) - 6} members more"
    ends = "" if cluster.end_sums is not None else ", ends unknown"
    return (
        f"assigns {shown}{more}; withheld {_run(assignment.withheld)}; warm-ups {warm or 'none'}; "
        f"{assignment.movements} movements left{ends}"
    )


def _run(tasks: frozenset[TaskId]) -> str:
    return (
        ",".join(map(str, sorted(tasks)[:8])) + (f"+{len(tasks) - 8}" if len(tasks) > 8 else "")
        or "-"
    )
