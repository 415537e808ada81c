"""Runs the real `Instance` and `InstanceEnd` on simulated ports: one simulated instance.

What waits runs on fibers; what only polls (the loop, the membership, the poller of ends) runs as
events of the scheduler: they cost less.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from everflow.assignment.cluster_state import Assignment, ClusterState
from everflow.assignment.user_data import LATEST_VERSION
from everflow.config import EXACTLY_ONCE_V2, BatchLimits
from everflow.errors import EverflowError, FatalError
from everflow.instance.client_state import ENDED, STOPPING, Pause
from everflow.instance.commit_gate import GateBackend
from everflow.instance.copies.global_tables import GlobalTables
from everflow.instance.copies.state_updater import StateUpdater, UpdaterServices
from everflow.instance.instance import EventLoop, Instance, InstanceSettings
from everflow.instance.life import InstanceLife, leaves
from everflow.instance.restore.listeners import RestoreTracker
from everflow.instance.restore.restoration import PreparedStore
from everflow.instance.restore.restore_plan import ChangelogState, RestorePlan
from everflow.instance.tasks.recovery import ATTEMPT_MS, ON_DISK, Recovery, fence_lost_writers
from everflow.instance.tasks.task import ActiveTask, TaskStore
from everflow.instance.thread.stream_thread import ThreadSettings
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.kafka.group_channel import GroupAssignor, GroupListener, GroupSettings
from everflow.membership.assignor import Identity, MemberAssignor
from everflow.membership.member import Assigned, Failed, GroupMember, Lost, MemberEvent, Revoked
from everflow.memory import MemoryBudget
from everflow.metrics import Metrics
from everflow.protocol.messages import BatchRequest
from everflow.records import UNBOUNDED_BYTES, CommittedOffset, TaskId, TopicPartition
from everflow.topology.graph import Graph
from everflow.topology.idle_sources import program_times
from everflow_simulation.channel import ChannelServices, SimulatedChannel
from everflow_simulation.disk import SimulatedCopies, SimulatedDisk
from everflow_simulation.follower import SimulatedFollower
from everflow_simulation.group_coordinator import Code, GroupCoordinator
from everflow_simulation.history import History
from everflow_simulation.log import SimulatedLog
from everflow_simulation.network import Network
from everflow_simulation.pool import FiberPool
from everflow_simulation.recovery import SimulatedRecoveryPorts, fence
from everflow_simulation.scheduler import Fiber, Process, Scheduler, SimulatedClock
from everflow_simulation.settings import APPLICATION, SimulationSettings
from everflow_simulation.worker import SimulatedJob, WorkerServices

MAX_BATCH_RECORDS = 1_000_000_000
KILL_WORKERS_MS = 5.0
POST_MS = 0.1


@dataclass(frozen=True, kw_only=True)
class World:
    """What all instances share. The callbacks tell the simulation what to check."""

    settings: SimulationSettings
    scheduler: Scheduler
    history: History
    random: Random
    network: Network
    coordinator: GroupCoordinator
    log: SimulatedLog
    restore_slowdown: list[float]
    end_sums_known: list[bool]
    decide: Callable[[str, ClusterState], Assignment]
    on_claim: Callable[[SimulatedInstance, MemberEvent], None]
    on_running: Callable[[SimulatedInstance, frozenset[TaskId]], None]
    on_batch: Callable[[SimulatedInstance, BatchRequest, float, bool], None]
    on_crash: Callable[[frozenset[TaskId]], None]
    on_failed: Callable[[SimulatedInstance, EverflowError], None]


@dataclass(frozen=True)
class _EndSums:
    """`membership.assignor.EndSums` and `PartitionRacks` of the simulated cluster."""

    world: World

    def refresh(self) -> None:
        """Nothing: figures are read when they are asked for."""

    def latest(self) -> Mapping[TaskId, int] | None:
        """Last stable offsets of all changelogs; None while the world says they cannot be read
        (X2)."""
        if not self.world.end_sums_known[0] or not self.world.log.available:
            return None
        settings = self.world.settings
        changelogs = {task: settings.changelog(task) for task in settings.tasks}
        return {
            task: self.world.log.partition(tp).stable
            for task, tp in changelogs.items()
            if tp is not None
        }

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        """As the settings say."""
        return self.world.settings.replicas


@dataclass(kw_only=True)
class SimulatedPorts:
    """`InstancePorts` in a simulated world, of one process."""

    world: World
    name: str
    disk: SimulatedDisk
    life: int
    instance_id: str | None
    version: int | None
    process: Process
    workers: WorkerServices = field(init=False)
    _incarnations: int = 0

    def __post_init__(self) -> None:
        self.clock = SimulatedClock(self.world.scheduler, self.process)

    # --- parts ------------------------------------------------------------------------------------

    def loop(self, turn: Callable[[Callable[[], None]], None]) -> _Loop:
        return _Loop(turn, self.world.scheduler, self.clock, self.process)

    def updater(self, instance: Instance) -> StateUpdater:
        return StateUpdater(
            self._updater_services(instance), self.clock, self.world.settings.rules.acceptable_lag
        )

    def global_tables(self, instance: Instance) -> GlobalTables:
        """None are simulated."""
        return GlobalTables((), None, instance.uncaught_elsewhere, self.clock)

    def copies(self, instance: Instance) -> SimulatedCopies:
        on_threads = lambda: [task for thread in instance.threads for task in list(thread.tasks)]  # noqa: E731
        copies = SimulatedCopies(self.disk, instance.updater.followed, on_threads)
        topics = {name for names in self.world.settings.topics.values() for name in names}
        instance.lower_bounds.raised(copies.applied(topics), ON_DISK)
        return copies

    def member(self, instance: Instance) -> GroupMember:
        channel = lambda *joined: self._open_channel(instance, *joined)  # noqa: E731
        finishing = lambda: instance.book.finishing  # noqa: E731
        drive = lambda member: _Drive(self.world, self.clock, self.process, member)  # noqa: E731
        return GroupMember(
            self._group_settings(),
            self._assignor(instance),
            instance.on_member_event,
            self.clock,
            channel,
            finishing,
            drive,
        )

    def open_gate(self, instance: Instance) -> None:
        world = self.world
        backend = GateBackend(
            member=instance.member.metadata,
            encode=lambda member: json.dumps(list(member)).encode(),
            commit=instance.deferred.commit,
        )
        ours = cast("SimulatedInstance", instance)
        self.workers = WorkerServices(
            name=self.name,
            log=world.log,
            clock=self.clock,
            network=world.network,
            disk=self.disk,
            book=instance.book,
            backend=backend,
            random=world.random,
            settings=world.settings,
            history=world.history,
            on_batch=lambda request, duration_ms, committed: world.on_batch(
                ours, request, duration_ms, committed
            ),
            # Every task of the instance: one of another thread may have been dealt to the one that
            # stood still.
            on_crash=lambda: world.on_crash(ours.assigned),
        )

    def ends(self, instance: Instance) -> EndOffsets:
        return _Ends(self.world, self.clock, self.process)

    def group_times(self) -> None:
        """Its programs have no repartition topics."""

    def pool(self, name: str, size: int) -> FiberPool:
        return FiberPool(
            scheduler=self.world.scheduler,
            process=self.process,
            name=f"{self.name}-{name}",
            size=size,
        )

    def thread_settings(self, number: int) -> ThreadSettings:
        settings = self.world.settings
        target_ms = 1_000_000 if settings.timings.batch_rate > 1e8 else 1_000
        return ThreadSettings(
            application_id=APPLICATION,
            guarantee=EXACTLY_ONCE_V2,
            transactional_id=transactional_id(self.disk, number),
            gate_path="",
            limits=BatchLimits(MAX_BATCH_RECORDS, 1 << 60, target_ms),
            task_timeout_ms=settings.task_timeout_ms,
            keep_alive_ms=1e12,
        )

    def recovery(self, instance: Instance, stop: threading.Event, *, pauses: bool) -> Recovery:
        world, timings = self.world, self.world.settings.timings
        ports = SimulatedRecoveryPorts(
            log=world.log,
            clock=self.clock,
            network=world.network,
            disk=self.disk,
            rate=timings.restore_rate,
            stopped=stop,
            slowdown=world.restore_slowdown,
        )
        return Recovery(
            ports=ports,
            application_id=APPLICATION,
            offset_reset={},
            lower_bounds=instance.lower_bounds,
            clock=self.clock,
            timeout_ms=min(world.settings.task_timeout_ms, ATTEMPT_MS),
            stop=stop,
            new_incarnation=self.new_incarnation,
            times=program_times(Graph(()), {}, ""),
        )

    def open_job(self, thread: int) -> SimulatedJob:
        return SimulatedJob(self.workers, thread)

    def spawn(self, name: str, run: Callable[[], None]) -> _Fiber:
        return _Fiber(self.world.scheduler.spawn(self.process, name, run), self.clock)

    def new_incarnation(self) -> str:
        self._incarnations += 1
        return f"{self.name}L{self.life}i{self._incarnations}"

    def create(self, task: TaskId) -> ActiveTask:
        settings = self.world.settings
        changelog = settings.changelog(task)
        stores = (
            () if changelog is None else (TaskStore("store", Path(str(task)) / "store", changelog),)
        )
        return ActiveTask(id=task, inputs=settings.tasks[task], stores=stores)

    def slots(self) -> int:
        return self.world.settings.threads

    # --- effects ----------------------------------------------------------------------------------

    def kill_workers(self, number: int, pids: Sequence[int]) -> None:
        self.workers.forget_producer(transactional_id(self.disk, number))
        if pids:
            self.workers.kill(number)
            self.clock.park(KILL_WORKERS_MS)

    def consumed(self, topics: Collection[str]) -> bool:
        return False  # no source of its programs counts its silence

    def topic_ids(self) -> Mapping[str, str]:
        return {}  # its topics are never created again

    def doubt_topics(self, topics: Collection[str]) -> None:
        """Nobody does."""

    def is_worker(self, pid: int) -> bool:
        return True

    def fence(self, own: bool) -> int:
        world = self.world
        if own:
            self._fence(sorted(self.disk.transactional_ids))
            return 0
        self.clock.park(world.network.delay())
        fenced = fence_lost_writers(
            APPLICATION,
            self.disk.process_id,
            open_ids=world.log.open_ids,
            clients=lambda: [member.client_id for member in world.coordinator.members.values()],
            fence=self._fence,
        )
        return len(fenced)

    def _fence(self, transactional_ids: Collection[str]) -> None:
        for transactional_id in transactional_ids:
            fence(self.world.log, self.clock, transactional_id)

    def _nothing(self, *_: object) -> None:
        """There is no such thing here: folders to look after, repartition topics, topics to watch,
        open stores."""

    wired = check = purge = begin = end_polls = close_stores = checkpoint = _nothing

    # --- the group --------------------------------------------------------------------------------

    def _open_channel(
        self,
        instance: Instance,
        settings: GroupSettings,
        topics: Iterable[str],
        assignor: GroupAssignor,
        listener: GroupListener,
        timeout_s: float,
    ) -> SimulatedChannel:
        world = self.world
        services = ChannelServices(
            network=world.network,
            coordinator=world.coordinator,
            process=self.process,
            partition_counts=lambda: world.settings.partition_counts,
            changed=lambda: instance.member.wake.set(),
            client=self.name,
            commit=self._commit_offsets,
        )
        return SimulatedChannel(services, settings, topics, assignor, listener)

    def _commit_offsets(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], member: tuple[int, str, str | None]
    ) -> Code:
        self.clock.park(self.world.network.delay())
        return self.world.log.commit_offsets(
            {tp: CommittedOffset(*found) for tp, found in offsets.items()}, member
        )

    def _assignor(self, instance: Instance) -> MemberAssignor:
        world, settings = self.world, self.world.settings
        rack = settings.rack(int(self.name.removeprefix("i")))
        identity = Identity(
            process_id=self.disk.process_id,
            threads=settings.threads,
            rack=rack,
            tags={"zone": rack},
            instance_id=self.instance_id,
            topology=("simulated",),
        )
        figures = _EndSums(world)
        return MemberAssignor(
            identity,
            settings.topics,
            settings.changelogs,
            instance.copies.offset_sums,
            figures,
            figures.racks,
            settings.rules,
            lambda cluster: world.decide(self.name, cluster),
            max_delay_ms=settings.max_delay_ms,
            clock=self.clock,
            first_nonce=world.random.getrandbits(32),
            latest_version=LATEST_VERSION if self.version is None else self.version,
        )

    def _group_settings(self) -> GroupSettings:
        timings = self.world.settings.timings
        return GroupSettings(
            bootstrap_servers="simulated",
            group_id=APPLICATION,
            instance_id=self.instance_id,
            session_timeout_ms=timings.session_timeout_ms,
            heartbeat_interval_ms=timings.heartbeat_ms,
            rebalance_timeout_ms=timings.rebalance_timeout_ms,
            client_id=f"{APPLICATION}-{self.disk.process_id}",
        )

    def _updater_services(self, instance: Instance) -> UpdaterServices:
        world, timings = self.world, self.world.settings.timings

        def states(
            partitions: Collection[TopicPartition],
        ) -> Mapping[TopicPartition, ChangelogState]:
            return {
                tp: ChangelogState(start=0, end=end, cluster_id=None, topic_id=None)
                for tp, end in world.log.ends(partitions).items()
            }

        def prepare(
            task: TaskId, store: str, state: ChangelogState, incarnation: str
        ) -> PreparedStore:
            found = self.disk.store(Path(str(task)) / store)
            found.claim(incarnation)
            return PreparedStore(
                cast(Any, found), RestorePlan(found.position, state.end, False, "simulated")
            )

        def hot(task: TaskId) -> None:
            world.history.add(self.name, f"{task} is hot here")
            instance.member.became_hot(task)

        return UpdaterServices(
            open_follower=lambda: SimulatedFollower(
                log=world.log,
                clock=self.clock,
                rate=timings.follow_rate,
                period_ms=timings.follow_ms,
                slowdown=world.restore_slowdown,
            ),
            states=states,
            stable_ends=lambda partitions: world.log.stable_ends(partitions),
            prepare=prepare,
            distrust=lambda task, store, reason: _never(f"{task}/{store} distrusted: {reason}"),
            became_hot=hot,
            restores=instance.tracker,
            new_incarnation=self.new_incarnation,
            spawn=self.spawn,
        )


@dataclass
class _Fiber:
    """A fiber that runs, as `Running`."""

    fiber: Fiber
    clock: SimulatedClock

    def join(self, timeout_s: float | None = None) -> bool:
        return _await(self.clock, lambda: self.fiber.done, timeout_s)


@dataclass
class _Loop(EventLoop):
    """Each turn is an event of the scheduler."""

    scheduler: Scheduler
    clock: SimulatedClock
    process: Process
    ended: bool = False

    def post(self, event: Callable[[], None]) -> None:
        self.scheduler.after(
            POST_MS, lambda: None if self.ended else self.turn(event), self.process
        )

    def start(self) -> None:
        pass

    def end(self) -> None:
        self.clock.park(2 * POST_MS)
        self.ended = True


class _Drive:
    """Takes a member's turns as events of the scheduler, until the last; `Running`."""

    def __init__(
        self, world: World, clock: SimulatedClock, process: Process, member: GroupMember
    ) -> None:
        self._world, self._clock, self._process, self._member = world, clock, process, member
        self._due: float | None = None
        self._over = False
        member.wake = _Kick(lambda: self._at(0.05))
        member.wake.set()

    def join(self, timeout_s: float | None = None) -> bool:
        return _await(self._clock, lambda: self._over, timeout_s)

    def _at(self, delay_ms: float) -> None:
        due = self._world.scheduler.now_ms + delay_ms
        if self._due is None or due < self._due:
            self._due = due
            self._world.scheduler.at(due, lambda: self._turn(due), self._process)

    def _turn(self, due: float) -> None:
        if self._due != due or self._over:
            return
        self._due = None
        again = self._member.turn()
        if again is None:
            self._over = True
        else:
            pause = self._world.settings.timings.step_ms if self._member.stable else 50.0
            self._at(max(again * 1000 if again > 0.05 else 0.0, pause))


class _Kick(threading.Event):
    """An event that tells when it is set."""

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__()
        self._notify = notify

    def set(self) -> None:
        self._notify()


class _Ends(EndOffsets):
    """Polls as events of the scheduler."""

    def __init__(self, world: World, clock: SimulatedClock, process: Process) -> None:
        super().__init__(
            lambda partitions: world.log.stable_ends(partitions),
            clock,
            world.settings.timings.poll_ms,
        )
        self._scheduler, self._process = world.scheduler, process

    def start(self) -> None:
        if not self._stop.is_set():
            self.poll_once()
            self._scheduler.after(self.period_ms, self.start, self._process)


def _await(clock: SimulatedClock, over: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until it is over, for so long at most; whether it is."""
    end = math.inf if timeout_s is None else clock.monotonic_ms() + timeout_s * 1000
    while not over() and clock.monotonic_ms() < end:
        clock.park(min(10.0, end - clock.monotonic_ms()))
    return over()


def transactional_id(disk: SimulatedDisk, thread: int) -> str:
    return f"{APPLICATION}-{disk.process_id}-{thread}"


def _never(what: str) -> None:
    raise FatalError(what)


# --- the instance ---------------------------------------------------------------------------------


DRAIN_TIMEOUT_MS = 60_000.0


class SimulatedInstance(Instance):
    """See the module. ``disk`` may be that of an earlier ``life``; ``version`` is that of the user
    data it speaks."""

    def __init__(
        self,
        world: World,
        name: str,
        disk: SimulatedDisk,
        life: int,
        instance_id: str | None = None,
        version: int | None = None,
    ) -> None:
        self.world, self.name, self.disk, self.life, self.instance_id, self.version = (
            world,
            name,
            disk,
            life,
            instance_id,
            version,
        )
        self.process = Process(name)
        self.error: EverflowError | None = None
        """The first, also of an end."""
        self.assigned: frozenset[TaskId] = frozenset()
        ours = SimulatedPorts(
            world=world,
            name=name,
            disk=disk,
            life=life,
            instance_id=instance_id,
            version=version,
            process=self.process,
        )
        timeout_ms, never_ms = world.settings.task_timeout_ms, math.inf
        settings = InstanceSettings(
            threads=world.settings.threads,
            exactly_once=True,
            task_timeout_ms=timeout_ms,
            max_poll_interval_ms=never_ms,
            drain_timeout_ms=DRAIN_TIMEOUT_MS,
            purge_interval_ms=never_ms,
            memory=MemoryBudget(UNBOUNDED_BYTES),
        )
        metrics = Metrics()
        lifecycle = self.lifecycle = InstanceLife(ours.clock, ours.spawn, self._on_ended)
        callbacks = lifecycle.states, self._on_failed, lifecycle.stop
        tracker = RestoreTracker(metrics)
        super().__init__(ours, settings, ours.clock, *callbacks, Pause(), metrics, tracker)
        lifecycle.instance = self
        self.workers = ours.workers

    # --- life -------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Fence what earlier lives on this disk left open, then start."""
        copies = len(self.disk.positions())
        self.world.history.add(
            self.name, f"starts (process {self.disk.process_id[-4:]}, {copies} copies on disk)"
        )
        self.ports.spawn(f"{self.name}-start", self._launch)

    def kill(self) -> None:
        """SIGKILL."""
        self.world.history.add(self.name, f"killed, it ran {_names(self.running())}")
        self.world.scheduler.kill(self.process)
        self.world.on_running(self, frozenset())

    def close(self, leave_group: bool | None = None, drain_ms: float | None = None) -> None:
        """`KafkaStreams.close`: drain if asked to, end the batches in flight, leave as asked."""
        if not self.closing:
            drain_s = (
                (drain_ms or 0.0) / 1000
                if leaves(leave_group, static=self.instance_id is not None)
                else 0.0
            )
            self.world.history.add(
                self.name, f"closes, drains for {drain_s:g} s, it runs {_names(self.running())}"
            )
            self.lifecycle.close(leave_group, drain_s)

    def running(self) -> frozenset[TaskId]:
        """Tasks on a stream thread of this living process, those being given up included."""
        if not self.process.alive or self.ended:
            return frozenset()
        return frozenset(task for thread in self.threads for task in thread.tasks)

    @property
    def closing(self) -> bool:
        """Whether it ends or has ended."""
        return self.states.state in STOPPING

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self.states.state in ENDED

    @property
    def settled(self) -> bool:
        """All that the group wants here runs, and no rebalance is known of."""
        return self.member.stable and self.manager.all_running()

    def _launch(self) -> None:
        failure = self.lifecycle.start(self._begin)
        if isinstance(failure, EverflowError):
            self._note_failure(failure)
        elif failure is not None:
            raise failure

    def _begin(self) -> None:
        self.ports.fence(own=True)
        self.disk.transactional_ids = {
            transactional_id(self.disk, number) for number in range(self.settings.threads)
        }
        self.start()

    def _on_failed(self, error: EverflowError) -> None:
        self._note_failure(error)
        self.lifecycle.fail(error)

    def _note_failure(self, error: EverflowError) -> None:
        if self.error is None and not self.ended:
            self.error = error
            self.world.history.add(self.name, f"fails: [{error.code}] {error}")
            self.world.on_failed(self, error)

    def _on_ended(self) -> None:
        self.world.on_running(self, frozenset())
        self.world.history.add(self.name, "ended")
        self.world.scheduler.after(10.0, lambda: self.world.scheduler.kill(self.process))

    # --- what the simulation reads ----------------------------------------------------------------

    def on_member_event(self, event: MemberEvent) -> None:
        if isinstance(event, Assigned):
            self.assigned |= event.tasks
        elif isinstance(event, Revoked):
            self.assigned -= event.tasks
        elif isinstance(event, Lost | Failed):
            self.assigned = frozenset()
        super().on_member_event(event)
        self.world.on_claim(self, event)

    def _on_tasks_changed(self, all_running: bool) -> None:
        super()._on_tasks_changed(all_running)
        self.world.on_running(self, frozenset(self.manager.running) | self.manager.leaving)


def _names(tasks: Collection[TaskId]) -> str:
    return ", ".join(map(str, sorted(tasks))) or "nothing"
