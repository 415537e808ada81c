"""Joins an instance's parts: what happens between them, and in which order they begin.

`InstanceEnd` ends them. `KafkaStreams` runs both on a cluster (`ClusterPorts`), a simulation on a
simulated one: neither has an order or a reaction to an event of its own (note 011).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from everflow import metrics as names
from everflow.clock import Clock, Deadline, Spawn
from everflow.errors import EverflowError, RetriableError
from everflow.membership.member import (
    Assigned,
    Failed,
    GroupMember,
    Lost,
    MemberEvent,
    Revoked,
    Roles,
)
from everflow.memory import MemoryBudget
from everflow.metrics import Metrics
from everflow.records import TaskId, TopicPartition
from everflow.retry import quietly, retrying
from everflow.runtime.client_state import STOPPING, ClientState, Pause, StateMachine
from everflow.runtime.commit.commit_gate import DeferredOffsets, GateBook
from everflow.runtime.copies.global_tables import GlobalTables
from everflow.runtime.copies.known_copies import Copies, Settled
from everflow.runtime.copies.state_updater import StateUpdater
from everflow.runtime.query.key_metadata import HostMap
from everflow.runtime.restore.listeners import RestoreTracker
from everflow.runtime.start_up import await_warm, commit_starts
from everflow.runtime.tasks.recovery import ATTEMPT_MS, CommittedLowerBounds, Recovery
from everflow.runtime.tasks.task import ActiveTask, TaskState, TaskStore, fitted
from everflow.runtime.tasks.task_manager import TaskManager, TaskServices
from everflow.runtime.tasks.task_timeouts import TaskTimeouts
from everflow.runtime.thread.stream_thread import StreamThread
from everflow.runtime.thread.thread_ports import OpenJob, ThreadServices, ThreadSettings
from everflow.runtime.thread.uncaught import Uncaught
from everflow.runtime.thread_count import ThreadCount, ThreadCountPorts
from everflow.runtime.topics.end_offsets import EndOffsets

log = logging.getLogger("everflow")

JOIN_ATTEMPT_S = 5.0
RESTORE_THREADS = 2
TAIL_THREADS = 2
"""For tasks whose copy was in use here a moment ago: they must not wait behind whole restores."""


@dataclass(frozen=True, kw_only=True)
class InstanceSettings:
    """What an instance goes by. Times in ms."""

    threads: int
    exactly_once: bool
    task_timeout_ms: float
    max_poll_interval_ms: float
    drain_timeout_ms: float
    purge_interval_ms: float
    memory: MemoryBudget


class Pool(Protocol):
    """The part of a `ThreadPoolExecutor` that an instance needs."""

    def submit(self, work: Callable[[], None], /) -> object: ...
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


class EventLoop(Protocol):
    """Runs events one after the other, and `Instance.turn` with each."""

    def post(self, event: Callable[[], None], /) -> None:
        """Run it after those posted before; from any thread."""

    def start(self) -> None: ...
    def end(self) -> None:
        """Run no event that is posted from now on; returns when those before have run. Also where
        it was never started."""


class InstancePorts(Protocol):
    """Makes the parts of an instance that know its cluster, each once and in this order, and has
    the effects that no part has.

    A part may use what the instance has by then, and call the instance once it was started.
    """

    def loop(self, turn: Callable[[Callable[[], None]], None]) -> EventLoop: ...
    def updater(self, instance: Instance) -> StateUpdater: ...
    def global_tables(self, instance: Instance) -> GlobalTables: ...
    def copies(self, instance: Instance) -> Copies: ...
    def member(self, instance: Instance) -> GroupMember: ...
    def open_gate(self, instance: Instance) -> None: ...
    def ends(self, instance: Instance) -> EndOffsets: ...
    def pool(self, name: str, size: int) -> Pool: ...
    def thread_settings(self, number: int) -> ThreadSettings: ...
    def recovery(self, instance: Instance, stop: threading.Event, *, pauses: bool) -> Recovery: ...
    def wired(self, instance: Instance) -> None:
        """All other parts are there."""

    @property
    def open_job(self) -> OpenJob: ...
    @property
    def spawn(self) -> Spawn: ...
    def new_incarnation(self) -> str: ...
    def create(self, task: TaskId) -> ActiveTask: ...
    def slots(self) -> int:
        """How many tasks Spark runs at a time."""

    def kill_workers(self, number: int, pids: Sequence[int]) -> None:
        """End these processes of a stream thread; returns when they are gone."""

    def consumed(self, topics: Collection[str]) -> bool:
        """Whether the application has consumed all that is in the topics; False where nobody
        knows."""

    def topic_ids(self) -> Mapping[str, str]:
        """Of the topics that are read, as they were when the instance started."""

    def doubt_topics(self, topics: Collection[str]) -> None:
        """Leaders say that logs of these topics are of others by now."""

    def is_worker(self, pid: int) -> bool: ...
    def fence(self, own: bool) -> int:
        """Abort what this process's transactional ids have left open; ``own`` False: what those of
        members that are gone have. How many such ids of others were fenced."""

    def look(self) -> None:
        """With every turn of the loop, quick: EverflowError where the instance has lost the ground
        that it stands on."""

    def purge(self, positions: Mapping[TopicPartition, int]) -> None:
        """Now and then: records before these positions were read and committed."""

    def begin(self) -> None:
        """The first thing that starts."""

    def end_polls(self) -> None: ...
    def close_stores(self, stores: Sequence[TaskStore]) -> None:
        """Nobody uses them here any more."""

    def checkpoint(self, running: Sequence[ActiveTask]) -> None:
        """No batch runs any more: note in the stores how fresh they are, and close them."""


class Instance:
    """See the module. ``stop``: set once everything has to give up what it waits for. ``failed``:
    the instance cannot go on."""

    def __init__(
        self,
        ports: InstancePorts,
        settings: InstanceSettings,
        clock: Clock,
        states: StateMachine,
        failed: Callable[[EverflowError], None],
        stop: threading.Event,
        pause: Pause,
        metrics: Metrics,
        tracker: RestoreTracker,
    ) -> None:
        self.ports, self.settings, self.clock, self.states, self.failed = (
            ports,
            settings,
            clock,
            states,
            failed,
        )
        self.stop, self.pause, self.metrics, self.tracker = stop, pause, metrics, tracker
        self.uncaught = Uncaught(lambda _: self.member.shut_down_application())
        self.book = GateBook()
        self.lower_bounds = CommittedLowerBounds(clock)
        self.hosts = HostMap(clock)
        self.threads: list[StreamThread] = []
        self.begun: dict[TaskId, ActiveTask] = {}
        """Partitions that running tasks are to get, and where they begin (`Extension`)."""
        self.loop = ports.loop(self.turn)
        self.updater = ports.updater(self)
        pause.wakes.append(self.updater.wake)
        self.global_tables = ports.global_tables(self)
        self.copies = ports.copies(self)
        self.member = ports.member(self)
        self.deferred = DeferredOffsets(self.member.commit, self.lower_bounds.replaced)
        ports.open_gate(self)
        self.ends = ports.ends(self)
        self.restores, self.tails = (
            ports.pool("restore", RESTORE_THREADS),
            ports.pool("tail", TAIL_THREADS),
        )
        self.fencing = ports.pool("fence", 1)
        self.threads += [self.open_thread(number) for number in range(settings.threads)]
        self.manager = TaskManager(
            gate=self.book,
            threads=self.threads,
            updater=self.updater,
            services=self._task_services(),
            timeouts=TaskTimeouts(settings.task_timeout_ms),
        )
        counted = ThreadCountPorts(
            open_thread=self.open_thread,
            slots=ports.slots,
            post=self.loop.post,
            deal=self.manager.deal_without,
            tell=self.member.set_threads,
            running=lambda: states.state not in STOPPING,
        )
        self.thread_count = ThreadCount(self.threads, counted, clock)
        self._next_purge_ms = 0.0
        ports.wired(self)

    def start(self) -> None:
        """Begin with everything and join; returns before tasks run. TaskTimeoutError where no
        broker lets it join, StoppedError."""
        self.ports.begin()
        self.ends.start()
        for thread in self.threads:
            thread.start()
        self.updater.start()
        self.global_tables.start()
        self.loop.start()
        # From the joining on tasks arrive. Not before the threads are warm: a task that another
        # instance hands over without a restore would stand still meanwhile (seconds; measured by
        # `bench scaleout`).
        await_warm([thread.warm for thread in self.threads], self.clock, self.stop)
        # Nor before global tables are there: a record would be looked up in less than there is.
        self.global_tables.await_filled(self.stop, self.settings.task_timeout_ms)
        deadline = Deadline(self.clock, self.settings.task_timeout_ms)
        joining = lambda: self.member.start(JOIN_ATTEMPT_S)  # noqa: E731
        retrying(joining, "joining the group", clock=self.clock, deadline=deadline, stop=self.stop)

    # --- what others see of it -------------------------------------------------------------------

    def held_tasks(self) -> list[ActiveTask]:
        """Tasks on stream threads; from any thread, as the others here."""
        return [task for thread in self.threads for task in thread.held()]

    def running_tasks(self) -> list[ActiveTask]:
        """Those that are processed."""
        return [task for task in self.held_tasks() if task.state is TaskState.RUNNING]

    def running_positions(self) -> dict[TopicPartition, int]:
        """Next offsets to read of their inputs."""
        return {
            tp: offset
            for task in self.running_tasks()
            for tp, offset in dict(task.positions).items()
        }

    def running_ids(self) -> list[TaskId]:
        return [task.id for task in self.running_tasks()]

    def settled_tasks(self) -> list[Settled]:
        """The running tasks, each as of its thread's last moment between batches."""
        found = []
        for thread in self.threads:
            # before the tasks: one that comes now was recovered later, which its stores know
            # already
            at_ms = thread.settled_ms
            for task in list(thread.tasks.values()):
                if at_ms is None or task.state is not TaskState.RUNNING:
                    continue
                stores = tuple(store.path for store in task.stores if store.changelog is not None)
                found.append(Settled(task.id, task.epoch, task.incarnation, stores, at_ms))
        return found

    def recovering_ids(self) -> list[TaskId]:
        """Tasks that are restored."""
        return list(self.manager.recovering)

    # --- parts -----------------------------------------------------------------------------------

    def open_thread(self, number: int) -> StreamThread:
        """A stream thread, not started."""
        services = ThreadServices(
            open_job=self.ports.open_job,
            kill_workers=lambda pids: self.ports.kill_workers(number, pids),
            gate=self.book,
            ends=self.ends,
            recovery=self.ports.recovery(self, self.stop, pauses=False),
            metrics=self.metrics,
            on_failed=self.failed,
            committed=self._committed,
            on_warm=lambda: self.loop.post(self._look_at_tasks),
            paused=lambda: self.pause.paused or not self.global_tables.filled,
            give_back=self._give_back,
            global_tasks=self.global_tables.contexts,
            consumed=self.ports.consumed,
            uncaught=lambda error: self.uncaught.limits_for(error),
            worker_memory=lambda: self.settings.memory.worker(len(self.threads)),
            topic_ids=self.ports.topic_ids,
            doubt_topics=self.ports.doubt_topics,
            spawn=self.ports.spawn,
        )
        thread = StreamThread(
            number=number,
            settings=self.ports.thread_settings(number),
            services=services,
            clock=self.clock,
            new_incarnation=self.ports.new_incarnation,
        )
        self.pause.wakes.append(thread.wake)
        return thread

    def _task_services(self) -> TaskServices:
        return TaskServices(
            create=self.ports.create,
            recover=self._recover,
            submit=self._submit,
            post=self.loop.post,
            before_release=self._before_release,
            release=self.member.release,
            failed=self.failed,
            changed=self._on_tasks_changed,
            fits=lambda task: fitted(task, self.ports.create(task.id).inputs, self.begun),
            rest=self.copies.rest,
            close=self.ports.close_stores,
            clock=self.clock,
        )

    def _committed(self, positions: Mapping[TopicPartition, int]) -> None:
        if self.settings.exactly_once:  # else they may be among those that are deferred
            self.lower_bounds.raised(positions)

    def _give_back(self, tasks: Sequence[ActiveTask], why: RetriableError) -> None:
        self.loop.post(lambda: self.manager.given_back(tasks, why))

    def _submit(self, work: Callable[[], None], quick: bool) -> None:
        (self.tails if quick else self.restores).submit(work)

    def _recover(self, tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
        started, _ = self.ports.recovery(self, stop, pauses=True).recover(tasks, ())
        attempt_ms = min(self.settings.task_timeout_ms, ATTEMPT_MS)
        commit_starts(self.member.commit, started, attempt_ms, self.clock, stop)

    def _before_release(self, tasks: Collection[TaskId]) -> None:
        if self.deferred.held():
            quietly(lambda: self.deferred.commit([]))
        # What the group still would not take must not go over the next owner's offsets with a later
        # batch.
        self.deferred.forget({tp for task in tasks for tp in self.ports.create(task).inputs})

    # --- the loop --------------------------------------------------------------------------------

    def turn(self, event: Callable[[], None]) -> None:
        """One event, and a look at everything; nothing is raised."""
        try:
            event()
            self._tick()
        except EverflowError as error:
            self.failed(error)
        except Exception as error:
            log.exception("The instance's loop failed")
            self.failed(EverflowError(f"The instance's loop failed: {error!r}"))

    def _tick(self) -> None:
        self.ports.look()
        if self.states.state is not ClientState.RUNNING or self._any_stalled():
            self._look_at_tasks()
        for thread in self.threads:
            thread.end_hanging_batch(self.settings.max_poll_interval_ms)
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._next_purge_ms:
            self._next_purge_ms = now_ms + self.settings.purge_interval_ms
            # Never beyond what is committed, and told to everybody who asks (scenario 27).
            running = self.running_positions()
            settled = {
                tp: at for tp, (at, _) in self.lower_bounds.settled().items() if tp in running
            }
            quietly(lambda: self.ports.purge(settled))

    # --- events ----------------------------------------------------------------------------------

    def on_member_event(self, event: MemberEvent) -> None:
        """On the group client's thread: mark in the gate's book, queue, return (scenario 24)."""
        post, manager = self.loop.post, self.manager
        if isinstance(event, Assigned):
            self.book.own(event.tasks)
            post(lambda: manager.assigned(event.tasks))
            if self.settings.exactly_once:
                post(self._fence_lost)
        elif isinstance(event, Revoked):
            self.book.revoke(event.tasks, self.member.metadata())
            post(lambda: manager.revoked(event.tasks))
        elif isinstance(event, Lost):
            # Everything, also what was revoked before and is not released yet: the event does not
            # name it.
            self.book.disown_all()
            self.deferred.forget(event.partitions | self.deferred.held())
            post(lambda: manager.lost(event.tasks))
        elif isinstance(event, Roles):
            self.metrics.add(names.REBALANCES, 1)
            self.hosts.told(event.generation, event.hosts)
            post(lambda: manager.roles(event.standby, event.warmup))
        elif isinstance(event, Failed):
            self.book.disown_all()
            post(lambda: self.failed(event.error))  # it calls the user's state listener

    def _fence_lost(self) -> None:
        """Tasks came: their last owner may have vanished in the middle of a transaction. Runs
        beside their recovery, which waits for that transaction's end, and never behind one: on a
        thread of its own."""
        self.fencing.submit(
            lambda: self.metrics.add(names.WRITERS_FENCED, self.ports.fence(own=False))
        )

    def _any_stalled(self) -> bool:
        return any(thread.stalled for thread in self.threads)

    def _look_at_tasks(self) -> None:
        self._on_tasks_changed(self.manager.all_running())

    def _on_tasks_changed(self, all_running: bool) -> None:
        if self.states.state in STOPPING:
            return
        all_running = all_running and not self._any_stalled()
        if (
            all_running
            and self.member.stable
            and all(thread.warm.is_set() for thread in self.threads)
        ):
            self.states.to(ClientState.RUNNING)
        elif not all_running:
            self.states.to(ClientState.REBALANCING)
