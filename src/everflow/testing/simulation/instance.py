"""One simulated instance: `KafkaStreams`' wiring with all outside the process simulated.

What decides is the real code: member, assignor, gate, task manager, stream threads, recovery, state updater. What waits runs on
fibers; the instance's loop runs one event at a time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from everflow.assignment.cluster_state import Assignment, ClusterState
from everflow.assignment.user_data import LATEST_VERSION
from everflow.clock import Deadline
from everflow.config import BatchLimits
from everflow.errors import EverflowError, FatalError, RetriableError, TaskMigratedError
from everflow.kafka.group_channel import GroupAssignor, GroupListener, GroupSettings
from everflow.membership.assignor import Identity, TaskAssignor
from everflow.membership.member import Assigned, Failed, GroupMember, Lost, MemberEvent, Revoked, Roles
from everflow.metrics import Metrics
from everflow.records import TaskId, TopicPartition
from everflow.retry import StoppedError, retrying
from everflow.runtime.commit.batch import EXACTLY_ONCE_V2, BatchRequest, format_metadata
from everflow.runtime.commit.commit_gate import GateBackend, GateBook, MemberMetadata
from everflow.runtime.copies.state_updater import StateUpdater, UpdaterServices
from everflow.runtime.restore.restoration import PreparedStore
from everflow.runtime.restore.restore_plan import ChangelogState, RestorePlan
from everflow.runtime.restore.restore_progress import RestoreTracker
from everflow.runtime.tasks.lost_writers import LostWriters
from everflow.runtime.tasks.recovery import Recovery, RecoveryRules
from everflow.runtime.tasks.task import ActiveTask, TaskStore
from everflow.runtime.tasks.task_manager import MIGRATED_PAUSE_S, TaskManager, TaskServices
from everflow.runtime.thread.stream_thread import StreamThread
from everflow.runtime.thread.thread_ports import ThreadServices, ThreadSettings
from everflow.runtime.topics.end_offsets import EndOffsets
from everflow.testing.simulation.channel import ChannelServices, SimulatedChannel
from everflow.testing.simulation.disk import SimulatedCopies, SimulatedDisk
from everflow.testing.simulation.follower import SimulatedFollower
from everflow.testing.simulation.group_coordinator import Code, GroupCoordinator
from everflow.testing.simulation.history import History
from everflow.testing.simulation.log import Committed, SimulatedLog
from everflow.testing.simulation.network import Network
from everflow.testing.simulation.pool import FiberPool
from everflow.testing.simulation.recovery import SimulatedRecoveryPorts, fence
from everflow.testing.simulation.scheduler import Fiber, Process, Scheduler, SimulatedClock
from everflow.testing.simulation.settings import APPLICATION, SimulationSettings
from everflow.testing.simulation.worker import SimulatedJob, WorkerServices

RESTORE_FIBERS = 2
MAX_BATCH_RECORDS = 1_000_000_000
KILL_WORKERS_MS = 5.0


@dataclass(frozen=True)
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
        """Last stable offsets of all changelogs; None while the world says they cannot be read (X2)."""
        if not self.world.end_sums_known[0] or not self.world.log.available:
            return None
        settings = self.world.settings
        changelogs = {task: settings.changelog(task) for task in settings.tasks}
        return {task: self.world.log.partition(tp).stable for task, tp in changelogs.items() if tp is not None}

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        """As the settings say."""
        return self.world.settings.replicas


@dataclass
class SimulatedInstance:
    """See the module. ``disk`` may be that of an earlier ``life``; ``version`` is that of the user data it speaks."""

    world: World
    name: str
    disk: SimulatedDisk
    life: int
    instance_id: str | None = None
    version: int | None = None
    process: Process = field(init=False)
    book: GateBook = field(default_factory=GateBook)
    error: EverflowError | None = None
    ended: bool = False
    threads: list[StreamThread] = field(default_factory=list)
    assigned: frozenset[TaskId] = frozenset()

    def __post_init__(self) -> None:
        world, settings = self.world, self.world.settings
        self.process = Process(self.name)
        self.clock = SimulatedClock(world.scheduler, self.process)
        self._stop = threading.Event()
        self._incarnations = 0
        self._step_at: float | None = None
        self.closing = False
        self._loop_ended = False
        self._opened = False
        self._thread_fibers: list[Fiber] = []
        self.ends = EndOffsets(self._read_ends, self.clock, settings.timings.poll_ms)
        self.updater = StateUpdater(self._updater_services(), self.clock, settings.rules.acceptable_lag)
        self.copies = SimulatedCopies(self.disk, self.updater.followed, lambda: [t for th in self.threads for t in list(th.tasks)])
        self.assignor = self._assignor()
        self.member = GroupMember(
            self._group_settings(),
            self.assignor,
            self._on_member_event,
            self.clock,
            self._open_channel,
            lambda: self.book.finishing,
        )
        backend = GateBackend(
            member=lambda: MemberMetadata(*self.member.metadata()),
            encode=lambda member: json.dumps(list(member)).encode(),
            commit=lambda offsets: False,
        )
        self.workers = WorkerServices(
            self.name,
            world.log,
            self.clock,
            world.network,
            self.disk,
            self.book,
            backend,
            world.random,
            settings,
            world.history,
            on_batch=lambda request, duration_ms, committed: world.on_batch(self, request, duration_ms, committed),
            # Every task of the instance: one of another thread may have been dealt to the one that stood still.
            on_crash=lambda: world.on_crash(self.assigned),
        )
        self.restores = FiberPool(world.scheduler, self.process, f"{self.name}-restore", RESTORE_FIBERS)
        self.tails = FiberPool(world.scheduler, self.process, f"{self.name}-tail", RESTORE_FIBERS)
        self.fencing = FiberPool(world.scheduler, self.process, f"{self.name}-fence", 1)
        self.threads.extend(self._stream_thread(number) for number in range(settings.threads))
        self.manager = TaskManager(self.book, self.threads, self.updater, self._task_services())

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fence what earlier lives on this disk left open, then join."""
        copies = len(self.disk.positions())
        self.world.history.add(self.name, f"starts (process {self.disk.process_id[-4:]}, {copies} copies on disk)")
        self.world.scheduler.spawn(self.process, f"{self.name}-start", self._start)

    def kill(self) -> None:
        """SIGKILL."""
        self.world.history.add(self.name, f"killed, it ran {_names(self.running())}")
        self.world.scheduler.kill(self.process)
        self.world.on_running(self, frozenset())

    def close(self, leave_group: bool | None = None, drain_ms: float | None = None) -> None:
        """`KafkaStreams.close`: drain if asked to, end the batches in flight, leave as told."""
        if not self.closing:
            self.closing = True
            self.world.scheduler.spawn(self.process, f"{self.name}-close", lambda: self._close(leave_group, drain_ms))

    def running(self) -> frozenset[TaskId]:
        """Tasks on a stream thread of this living process, those being given up included."""
        if not self.process.alive or self.ended:
            return frozenset()
        return frozenset(task for thread in self.threads for task in thread.tasks)

    @property
    def settled(self) -> bool:
        """All that the group wants here runs, and no rebalance is known of."""
        return self.member.stable and self.manager.all_running()

    def _start(self) -> None:
        settings = self.world.settings
        for transactional_id in sorted(self.disk.transactional_ids):
            fence(self.world.log, self.clock, transactional_id)
        self.disk.transactional_ids = {self._transactional_id(number) for number in range(settings.threads)}
        scheduler = self.world.scheduler
        for thread in self.threads:
            self._thread_fibers.append(scheduler.spawn(self.process, f"{self.name}-t{thread.number}", thread._run))
        scheduler.spawn(self.process, f"{self.name}-updater", self.updater._run)
        self._poll_ends()
        self.member.open()
        self._opened = True
        self.kick()

    def _close(self, leave_group: bool | None, drain_ms: float | None) -> None:
        history = self.world.history
        leaves = leave_group if leave_group is not None else self.instance_id is None
        if drain_ms is not None and leaves and self.error is None and self._opened:
            history.add(self.name, "drains")
            self.member.drain(leave_group)
            self.kick()
            end = self.clock.monotonic_ms() + drain_ms
            while not self.member.await_drained(0) and self.clock.monotonic_ms() < end and self.member.metadata().generation >= 0:
                self.clock.park(100.0)
        history.add(self.name, f"closes, it runs {_names(self.running())}")
        self._loop_ended = True
        self.manager.close()
        for thread in self.threads:
            thread.stop()
        self._stop.set()
        while not all(fiber.done for fiber in self._thread_fibers):
            self.clock.park(10.0)
        self.updater._stop.set()
        self.updater.wake.set()
        self.ended = True
        self.member.leave(0, leave_group)
        self.member.close()
        self.world.on_running(self, frozenset())
        self.clock.park(10.0)
        history.add(self.name, "ended")
        self.world.scheduler.after(0, lambda: self.world.scheduler.kill(self.process))

    def fail(self, error: EverflowError) -> None:
        """`KafkaStreams._on_failed`: the instance stops and says why."""
        if self.error is None and not self.ended:
            self.error = error
            self.world.history.add(self.name, f"fails: [{error.code}] {error}")
            self.world.on_failed(self, error)
            self.close()

    # --- the membership --------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Let the membership look at its group soon."""
        self._schedule_step(0.05)

    def _schedule_step(self, delay_ms: float) -> None:
        due = self.world.scheduler.now_ms + delay_ms
        if self._step_at is None or due < self._step_at:
            self._step_at = due
            self.world.scheduler.at(due, lambda: self._step(due), self.process)

    def _step(self, due: float) -> None:
        if self._step_at != due or self.ended:
            return
        self._step_at = None
        if not self._opened:
            return
        again = self.member.step()
        if again is not None:
            pause = self.world.settings.timings.step_ms if self.member.stable else 50.0
            self._schedule_step(max(again * 1000 if again > 0.05 else 0.0, pause))
        else:
            self.member.close()

    def _open_channel(
        self, settings: GroupSettings, topics: Iterable[str], assignor: GroupAssignor, listener: GroupListener, timeout_s: float
    ) -> SimulatedChannel:
        world = self.world
        services = ChannelServices(
            world.network,
            world.coordinator,
            self.process,
            lambda: world.settings.partition_counts,
            self.kick,
            self.name,
            self._commit_offsets,
        )
        return SimulatedChannel(services, settings, topics, assignor, listener)

    def _commit_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]], member: tuple[int, str, str | None]) -> Code:
        self.clock.park(self.world.network.delay())
        return self.world.log.commit_offsets({tp: Committed(*found) for tp, found in offsets.items()}, member)

    def _on_member_event(self, event: MemberEvent) -> None:
        """As `KafkaStreams._on_member_event`: mark in the gate's book, queue, return."""
        if isinstance(event, Assigned):
            self.book.own(event.tasks)
            self.assigned |= event.tasks
            self._post(lambda: self.manager.assigned(event.tasks))
            self._post(lambda: self.fencing.submit(self._fence_lost))
        elif isinstance(event, Revoked):
            self.book.revoke(event.tasks, MemberMetadata(*self.member.metadata()))
            self.assigned -= event.tasks
            self._post(lambda: self.manager.revoked(event.tasks))
        elif isinstance(event, Lost):
            self.book.disown_all()
            self.assigned = frozenset()
            self._post(lambda: self.manager.lost(event.tasks))
        elif isinstance(event, Roles):
            self._post(lambda: self.manager.roles(event.standby, event.warmup))
        elif isinstance(event, Failed):
            self.book.disown_all()
            self.assigned = frozenset()
            self._post(lambda: self.fail(event.error))
        self.world.on_claim(self, event)

    def _fence_lost(self) -> None:
        world = self.world
        self.clock.park(world.network.delay())
        LostWriters(
            APPLICATION,
            self.disk.process_id,
            open_ids=world.log.open_ids,
            clients=lambda: [member.client_id for member in world.coordinator.members.values()],
            fence=self._fence,
        ).fence_all()

    def _fence(self, transactional_ids: Collection[str]) -> None:
        for transactional_id in transactional_ids:
            fence(self.world.log, self.clock, transactional_id)

    def _post(self, event: Callable[[], None]) -> None:
        def run() -> None:
            if self._loop_ended:
                return
            try:
                event()
            except EverflowError as error:
                self.fail(error)

        self.world.scheduler.after(0.1, run, self.process)

    # --- parts -----------------------------------------------------------------------------------------------------

    def _assignor(self) -> TaskAssignor:
        world, settings = self.world, self.world.settings
        rack = settings.rack(int(self.name.removeprefix("i")))
        identity = Identity(
            self.disk.process_id, settings.threads, rack, {"zone": rack}, instance_id=self.instance_id, topology=("simulated",)
        )
        figures = _EndSums(world)
        return TaskAssignor(
            identity,
            settings.topics,
            settings.changelogs,
            self.copies,
            figures,
            figures,
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
            "simulated",
            APPLICATION,
            self.instance_id,
            timings.session_timeout_ms,
            timings.heartbeat_ms,
            timings.rebalance_timeout_ms,
            client_id=f"{APPLICATION}-{self.disk.process_id}",
        )

    def _transactional_id(self, thread: int) -> str:
        return f"{APPLICATION}-{self.disk.process_id}-{thread}"

    def _new_incarnation(self) -> str:
        self._incarnations += 1
        return f"{self.name}L{self.life}i{self._incarnations}"

    def _stream_thread(self, number: int) -> StreamThread:
        settings = self.world.settings
        target_ms = 1_000_000 if settings.timings.batch_rate > 1e8 else 1_000
        thread_settings = ThreadSettings(
            application_id=APPLICATION,
            guarantee=EXACTLY_ONCE_V2,
            transactional_id=self._transactional_id(number),
            gate_path="",
            producer_config={},
            limits=BatchLimits(MAX_BATCH_RECORDS, 1 << 60, target_ms),
            task_timeout_ms=settings.task_timeout_ms,
            keep_alive_ms=1e12,
        )
        services = ThreadServices(
            open_job=lambda thread, partitions: SimulatedJob(self.workers, thread),
            kill_workers=lambda pids: self._kill_workers(number, pids),
            gate=self.book,
            ends=self.ends,
            recovery=self._recovery(self._stop),
            metrics=Metrics(),
            on_failed=lambda error: self._post(lambda: self.fail(error)),
        )
        return StreamThread(number, thread_settings, services, self.clock, self._new_incarnation)

    def _kill_workers(self, number: int, pids: Sequence[int]) -> None:
        self.workers.forget_producer(self._transactional_id(number))
        if pids:
            self.clock.park(KILL_WORKERS_MS)

    def _recovery(self, stop: threading.Event) -> Recovery:
        world, timings = self.world, self.world.settings.timings
        ports = SimulatedRecoveryPorts(
            world.log, self.clock, world.network, self.disk, timings.restore_rate, stop, world.restore_slowdown
        )
        rules = RecoveryRules(APPLICATION, {})
        return Recovery(ports, rules, self.clock, world.settings.task_timeout_ms, stop, self._new_incarnation)

    def _task_services(self) -> TaskServices:
        def recover(tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
            try:
                started, _ = self._recovery(stop).recover(tasks, ())
                self._commit_starts(started, stop)
            except TaskMigratedError as error:  # as TaskManager does, but its pause is in real time
                self.clock.wait(stop, MIGRATED_PAUSE_S * 1000)
                raise StoppedError(str(error)) from error

        def release() -> None:
            self.member.release()
            self.kick()

        return TaskServices(
            create=self._create,
            recover=recover,
            submit=lambda work, quick: (self.tails if quick else self.restores).submit(work),
            post=self._post,
            before_release=_nothing,
            release=release,
            failed=self.fail,
            changed=lambda all_running: self.world.on_running(self, frozenset(self.manager.running) | self.manager.leaving),
            rest=self.copies.rest,
        )

    def _create(self, task: TaskId) -> ActiveTask:
        settings = self.world.settings
        changelog = settings.changelog(task)
        stores = () if changelog is None else (TaskStore("store", Path(str(task)) / "store", changelog),)
        return ActiveTask(task, settings.tasks[task], stores)

    def _commit_starts(self, started: Mapping[TopicPartition, int], stop: threading.Event) -> None:
        if not started:
            return
        offsets = {tp: (offset, format_metadata("start", {})) for tp, offset in started.items()}

        def commit() -> None:
            if not self.member.commit(offsets):
                raise RetriableError("the group is rebalancing")

        deadline = Deadline(self.clock, self.world.settings.task_timeout_ms)
        retrying(commit, "committing starting offsets", clock=self.clock, deadline=deadline, stop=stop)

    def _updater_services(self) -> UpdaterServices:
        world, timings = self.world, self.world.settings.timings
        tracker = RestoreTracker(Metrics())

        def states(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ChangelogState]:
            return {tp: ChangelogState(0, end, None, None) for tp, end in world.log.ends(partitions).items()}

        def prepare(task: TaskId, store: str, state: ChangelogState, incarnation: str) -> PreparedStore:
            found = self.disk.store(Path(str(task)) / store)
            found.claim(incarnation)
            return PreparedStore(cast(Any, found), RestorePlan(found.position, state.end, False, "simulated"))

        def hot(task: TaskId) -> None:
            world.history.add(self.name, f"{task} is hot here")
            self.member.became_hot(task)
            self.kick()

        return UpdaterServices(
            open_follower=lambda: SimulatedFollower(
                world.log, self.clock, timings.follow_rate, timings.follow_ms, world.restore_slowdown
            ),
            states=states,
            stable_ends=lambda partitions: world.log.stable_ends(partitions),
            prepare=prepare,
            distrust=lambda task, store, reason: _never(f"{task}/{store} distrusted: {reason}"),
            became_hot=hot,
            restores=tracker,
            new_incarnation=self._new_incarnation,
        )

    # --- the input -------------------------------------------------------------------------------------------------

    def _read_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.world.log.stable_ends(partitions)

    def _poll_ends(self) -> None:
        if not self.ended:
            self.ends.poll_once()
            self.world.scheduler.after(self.world.settings.timings.poll_ms, self._poll_ends, self.process)


def _nothing(tasks: Collection[TaskId]) -> None:
    return None


def _never(what: str) -> None:
    raise FatalError(what)


def _names(tasks: Collection[TaskId]) -> str:
    return ", ".join(map(str, sorted(tasks))) or "nothing"
