"""Joins an instance's parts: how they start and react; on a cluster or simulated (note 011)."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from everflow import metrics as names
from everflow.clock import Clock, Deadline, Running, Spawn, on_thread
from everflow.errors import EverflowError, RetriableError, TaskTimeoutError
from everflow.instance.client_state import (
    STOPPING,
    ClientState,
    IllegalStateError,
    Pause,
    StateMachine,
)
from everflow.instance.commit_gate import DeferredOffsets, GateBook
from everflow.instance.copies.global_tables import GlobalTables
from everflow.instance.copies.known_copies import Copies, Settled
from everflow.instance.copies.state_updater import StateUpdater
from everflow.instance.query.queries import HostMap
from everflow.instance.restore.listeners import RestoreTracker
from everflow.instance.start_up import START_METADATA, WARM_UP_WAIT_S, await_warm
from everflow.instance.tasks.recovery import ATTEMPT_MS, CommittedLowerBounds, Recovery
from everflow.instance.tasks.task import ActiveTask, TaskState, TaskStore, TaskTimeouts, fitted
from everflow.instance.tasks.task_manager import TaskManager, TaskServices
from everflow.instance.thread.group_times import GroupTimes
from everflow.instance.thread.retry_policy import Replacements, Trouble
from everflow.instance.thread.stream_thread import (
    OpenJob,
    StreamThread,
    ThreadServices,
    ThreadSettings,
    Uncaught,
)
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.logs import rebalance_log
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
from everflow.protocol.messages import format_metadata
from everflow.rebalances import RebalanceBook
from everflow.records import Offsets, TaskId, TopicPartition
from everflow.retry import attempting, quietly, retrying
from everflow.topology.connectors import FAILED, PAUSED, RESTARTING, RESTORING, RUNNING
from everflow.topology.patterns import TopicGrowth

log = logging.getLogger("everflow")

TICK_S = 0.1
JOIN_ATTEMPT_S = 5.0
RESTORE_THREADS = 2
TAIL_THREADS = 2
"""For tasks whose copy was just in use here: they must not wait for whole restores."""


@dataclass(frozen=True, kw_only=True)
class InstanceSettings:
    """The settings of an instance. Times in ms."""

    threads: int
    exactly_once: bool
    task_timeout_ms: float
    max_poll_interval_ms: float
    drain_timeout_ms: float
    purge_interval_ms: float
    memory: MemoryBudget


class Pool(Protocol):
    def submit(self, work: Callable[[], None], /) -> object: ...
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


@dataclass
class EventLoop:
    """Takes a ``turn`` with each event, on a thread of its own, and without one every `TICK_S`."""

    turn: Callable[[Callable[[], None]], None]

    def __post_init__(self) -> None:
        self._running: Running | None = None
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def post(self, event: Callable[[], None]) -> None:
        self._events.put(event)

    def start(self) -> None:
        self._running = on_thread("everflow-instance", self._run)

    def end(self) -> None:
        """Run no later event; returns when earlier ones have run. Also if it was never started."""
        if self._running is not None:
            self._events.put(None)
            self._running.join()

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=TICK_S)
            except queue.Empty:
                event = _nothing
            if event is None:
                return
            self.turn(event)


def _nothing() -> None:
    pass


class InstancePorts(Protocol):
    """Makes the parts of an instance that know its cluster, each once and in this order, and has
    the effects outside them. A part may use earlier parts, and a started instance."""

    def loop(self, turn: Callable[[Callable[[], None]], None]) -> EventLoop: ...
    def updater(self, instance: Instance) -> StateUpdater: ...
    def global_tables(self, instance: Instance) -> GlobalTables: ...
    def copies(self, instance: Instance) -> Copies: ...
    def member(self, instance: Instance) -> GroupMember: ...
    def open_gate(self, instance: Instance) -> None: ...
    def ends(self, instance: Instance) -> EndOffsets: ...
    def group_times(self) -> GroupTimes | None:
        """None: ``stream.time=highest``."""

    def pool(self, name: str, size: int) -> Pool: ...
    def thread_settings(self, number: int) -> ThreadSettings: ...
    def recovery(self, instance: Instance, stop: threading.Event, *, pauses: bool) -> Recovery: ...
    def wired(self, instance: Instance) -> None: ...

    @property
    def open_job(self) -> OpenJob: ...
    @property
    def spawn(self) -> Spawn: ...
    def new_incarnation(self) -> str: ...
    def create(self, task: TaskId) -> ActiveTask: ...
    def slots(self) -> int: ...

    def kill_workers(self, number: int, pids: Sequence[int]) -> None: ...

    def consumed(self, topics: Collection[str]) -> bool:
        """True if the application has consumed all records of the topics, as far as is known."""

    def topic_ids(self) -> Mapping[str, str]: ...

    def doubt_topics(self, topics: Collection[str]) -> None: ...

    def is_worker(self, pid: int) -> bool: ...
    def fence(self, own: bool) -> int:
        """End the open transactions of this process; ``own`` False: of members that have left.
        Returns how many ids of others were fenced."""

    def check(self) -> None:
        """With every turn of the loop; quick. EverflowError if the instance cannot go on."""

    def purge(self, positions: Offsets) -> None: ...

    def begin(self) -> None: ...

    def end_polls(self) -> None: ...
    def close_stores(self, stores: Sequence[TaskStore]) -> None: ...

    def checkpoint(self, running: Sequence[ActiveTask]) -> None:
        """No batch runs any more: note in the stores how fresh they are, and close them."""


@dataclass(eq=False)
class Instance:
    """``stop``: set to end all waits. ``failed``: called when the instance cannot go on, behind the
    user's handler of uncaught exceptions."""

    ports: InstancePorts
    settings: InstanceSettings
    clock: Clock
    states: StateMachine
    failed: Callable[[EverflowError], None]
    stop: threading.Event
    pause: Pause
    metrics: Metrics
    tracker: RestoreTracker

    def __post_init__(self) -> None:
        ports = self.ports
        self.uncaught = Uncaught(lambda _: self.member.shut_down_application())
        self._recoveries = Replacements()
        self._ends = False
        self.book = GateBook()
        self.lower_bounds = CommittedLowerBounds(self.clock)
        self.hosts = HostMap(self.clock)
        self.rebalances = RebalanceBook(clock=self.clock, restored=self.tracker.restored)
        self.threads: list[StreamThread] = []
        self.begun: dict[TaskId, ActiveTask] = {}
        """New partitions of running tasks, and where they begin (`Extension`)."""
        self.loop = ports.loop(self.turn)
        self.updater = ports.updater(self)
        self.pause.wakes.append(self.updater.wake)
        self.global_tables = ports.global_tables(self)
        self.copies = ports.copies(self)
        self.member = ports.member(self)
        self.deferred = DeferredOffsets(self.member.commit, self.lower_bounds.replaced)
        ports.open_gate(self)
        self.ends = ports.ends(self)
        self.group_times = ports.group_times()
        self.restores = ports.pool("restore", RESTORE_THREADS)
        self.tails = ports.pool("tail", TAIL_THREADS)
        self.fencing = ports.pool("fence", 1)
        self.threads += [self.open_thread(number) for number in range(self.settings.threads)]
        self.manager = TaskManager(
            gate=self.book,
            threads=self.threads,
            updater=self.updater,
            services=self._task_services(),
            timeouts=TaskTimeouts(self.settings.task_timeout_ms),
        )
        self.thread_count = ThreadCount(self)
        self._next_purge_ms = 0.0
        ports.wired(self)

    def start(self) -> None:
        """Start all parts and join; returns before tasks run. TaskTimeoutError, StoppedError."""
        self.ports.begin()
        self.ends.start()
        if self.group_times is not None:
            self.group_times.start()
        for thread in self.threads:
            thread.start()
        self.updater.start()
        self.global_tables.start()
        self.loop.start()
        # Join once the threads are warm: a task that comes without a restore would wait seconds.
        await_warm([thread.warm for thread in self.threads], self.clock, self.stop)
        # And once global tables are filled, for lookups must not miss rows.
        self.global_tables.await_filled(self.stop, self.settings.task_timeout_ms)
        deadline = Deadline(self.clock, self.settings.task_timeout_ms)
        retrying(
            lambda: self.member.start(JOIN_ATTEMPT_S),
            "joining the group",
            clock=self.clock,
            deadline=deadline,
            stop=self.stop,
        )

    def uncaught_elsewhere(self, error: EverflowError) -> bool:
        """Ask the user's handler about what no stream thread met (KIP-671), the first time; any
        thread. True: tasks that could not be recovered in time are tried anew; else it ends."""
        if self._ends or self.states.state in STOPPING:
            return False
        limits = self.uncaught.limits_for(error)
        if limits is not None:
            late, now_ms = isinstance(error, TaskTimeoutError), self.clock.monotonic_ms()
            if late and self._recoveries.one_more(limits, now_ms) is not None:
                log.warning("Recovered anew, as the uncaught exception handler wants: %s", error)
                return True
            why = "that was too often" if late else "no stream thread met it"
            log.error("Nothing is replaced, for %s: [%s]", why, error.code)
        self._ends = True
        self.failed(error)
        return False

    def all_tasks(self) -> list[ActiveTask]:
        """Tasks on stream threads; from any thread, as the others here."""
        return [task for thread in self.threads for task in thread.all_tasks()]

    def running_tasks(self) -> list[ActiveTask]:
        return [task for task in self.all_tasks() if task.state is TaskState.RUNNING]

    def restart(self, chosen: Callable[[TaskId], bool], only_failed: bool) -> None:
        """Restart running tasks (note 074); returns once they are on their way. Any thread but the
        loop's. ``only_failed``: of those that are in trouble."""

        def run() -> None:
            troubled = {task for thread in self.threads for task in thread.troubles()}
            running = {task for task in self.manager.running if chosen(task)}
            self.manager.restart(running & troubled if only_failed else running)

        self.thread_count.on_loop(run)

    def connector_tasks(self) -> dict[TaskId, tuple[str, Trouble | None]]:
        """The state of each active task, as a connector's task, and why it fails; any thread."""
        restarting = set(self.manager.restarting)
        found: dict[TaskId, tuple[str, Trouble | None]] = {
            task: (RESTARTING if task in restarting else RESTORING, None)
            for task in self.book.owned()
        }
        for thread in list(self.threads):
            troubles, paused = thread.troubles(), thread.paused_tasks
            for task in thread.all_tasks():
                why = troubles.get(task.id)
                state = PAUSED if task.id in paused else FAILED if why is not None else None
                if state is None and task.state is TaskState.RUNNING:
                    state = RUNNING
                if task.id not in restarting and state is not None:
                    found[task.id] = (state, None if state is PAUSED else why)
        return found

    def running_positions(self) -> dict[TopicPartition, int]:
        found = [dict(task.positions) for task in self.running_tasks()]
        return {tp: offset for positions in found for tp, offset in positions.items()}

    def settled_tasks(self) -> list[Settled]:
        found = []
        for thread in self.threads:
            # before the tasks: a task that arrives now was recovered later, as its stores have it
            at_ms = thread.settled_ms
            for task in list(thread.tasks.values()):
                if at_ms is None or task.state is not TaskState.RUNNING:
                    continue
                stores = tuple(store.path for store in task.stores if store.changelog is not None)
                found.append(Settled(task.id, task.epoch, task.incarnation, stores, at_ms))
        return found

    def open_thread(self, number: int) -> StreamThread:
        worker = lru_cache(self.settings.memory.worker)  # asked for several times a batch
        services = ThreadServices(
            open_job=self.ports.open_job,
            kill_workers=lambda pids: self.ports.kill_workers(number, pids),
            gate=self.book,
            ends=self.ends,
            recovery=self.ports.recovery(self, self.stop, pauses=False),
            metrics=self.metrics,
            on_failed=self.failed,
            committed=self._committed,
            progressed=self.rebalances.committed,
            on_warm=lambda: self.loop.post(self._update_state),
            paused=lambda: self.pause.paused or not self.global_tables.filled,
            paused_parts=lambda: self.pause.parts,
            give_back=lambda tasks, why: self.loop.post(
                lambda: self.manager.recovery_failed(tasks, why)
            ),
            global_tasks=self.global_tables.contexts,
            consumed=self.ports.consumed,
            uncaught=lambda error: self.uncaught.limits_for(error),
            worker_memory=lambda: worker(len(self.threads)),
            topic_ids=self.ports.topic_ids,
            doubt_topics=self.ports.doubt_topics,
            times=None if self.group_times is None else self.group_times.times,
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
            submit=lambda work, quick: (self.tails if quick else self.restores).submit(work),
            post=self.loop.post,
            before_release=self._before_release,
            release=self.member.release,
            failed=self.uncaught_elsewhere,
            changed=self._on_tasks_changed,
            fits=lambda task: fitted(task, self.ports.create(task.id).inputs, self.begun),
            rest=self.copies.rest,
            close=self.ports.close_stores,
            clock=self.clock,
        )

    def _committed(self, positions: Offsets) -> None:
        if self.settings.exactly_once:  # else they may be among those that are deferred
            self.lower_bounds.raised(positions)

    def _recover(self, tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
        started, _ = self.ports.recovery(self, stop, pauses=True).recover(tasks, ())
        if not started:
            return
        # First: then records in internal topics without a committed offset mean lost ones (D5).
        offsets = {tp: (at, format_metadata(START_METADATA, {})) for tp, at in started.items()}

        def commit() -> None:
            if not self.member.commit(offsets):
                raise RetriableError("the group is rebalancing")

        limit = Deadline(self.clock, min(self.settings.task_timeout_ms, ATTEMPT_MS))
        what = "committing starting offsets"
        attempting(commit, what, clock=self.clock, deadline=limit, stop=stop)

    def _before_release(self, tasks: Collection[TaskId]) -> None:
        if self.deferred.partitions():
            quietly(lambda: self.deferred.commit([]))
        # Offsets that the group refused must not overwrite the next owner's with a later batch.
        self.deferred.forget({tp for task in tasks for tp in self.ports.create(task).inputs})

    def turn(self, event: Callable[[], None]) -> None:
        """Run one event, then the periodic checks; raises nothing."""
        try:
            event()
            self._tick()
        except EverflowError as error:
            self.uncaught_elsewhere(error)
        except Exception as error:
            log.exception("The instance's loop failed")
            self.uncaught_elsewhere(EverflowError(f"The instance's loop failed: {error!r}"))

    def _tick(self) -> None:
        self.ports.check()
        self.rebalances.turn()
        if self.states.state is not ClientState.RUNNING or self._any_stalled():
            self._update_state()
        for thread in self.threads:
            thread.end_hanging_batch(self.settings.max_poll_interval_ms)
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._next_purge_ms:
            self._next_purge_ms = now_ms + self.settings.purge_interval_ms
            # Only up to committed offsets that every reader sees (scenario 27).
            running = self.running_positions()
            settled = {
                tp: at for tp, (at, _) in self.lower_bounds.settled().items() if tp in running
            }
            quietly(lambda: self.ports.purge(settled))

    def on_member_event(self, event: MemberEvent) -> None:
        """On the group client's thread: note in the gate's book, queue, return (scenario 24)."""
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
            # All tasks, also revoked ones that are not released yet: the event does not name these.
            self.book.disown_all()
            self.deferred.forget(event.partitions | self.deferred.partitions())
            post(self.rebalances.evicted)
            post(lambda: manager.lost(event.tasks))
        elif isinstance(event, Roles):
            self.metrics.add(names.REBALANCES, 1)
            self.hosts.replace(event.generation, event.hosts)
            post(lambda: self._note_rebalance(event))
            post(lambda: manager.roles(event.standby, event.warmup))
        elif isinstance(event, Failed):
            self.book.disown_all()
            post(lambda: self.failed(event.error))  # it calls the user's state listener

    def _note_rebalance(self, event: Roles) -> None:
        if event.join is not None:
            self.rebalances.answered(event.join, self.manager.owned, self.manager.copies)

    def _fence_lost(self) -> None:
        """Recovery waits for a transaction of the tasks' last owner, which may have vanished."""
        self.fencing.submit(
            lambda: self.metrics.add(names.WRITERS_FENCED, self.ports.fence(own=False))
        )

    def _any_stalled(self) -> bool:
        return any(thread.stalled for thread in self.threads)

    def _update_state(self) -> None:
        self._on_tasks_changed(self.manager.all_running())

    def _on_tasks_changed(self, all_running: bool) -> None:
        if all_running:
            self.rebalances.running()
        if self.states.state in STOPPING:
            return
        all_running = all_running and not self._any_stalled()
        settled = all_running and self.member.stable
        if settled and all(thread.warm.is_set() for thread in self.threads):
            self.states.to(ClientState.RUNNING)
        elif not all_running:
            self.states.to(ClientState.REBALANCING)


# --- the number of stream threads (KIP-663) -------------------------------------------------------

POLL_S = 0.1
SPARE_SLOTS = 1
"""A thread keeps its task slot of Spark (note 004); other work needs one, too."""


class ThreadCount:
    """Starts and ends stream threads (KIP-663), safe from any thread; one change at a time. Changes
    ``threads``, the instance's own list, on its loop only. Other tasks do not pause (I4)."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._threads = instance.threads
        self._changing = threading.Lock()

    @property
    def may_change(self) -> bool:
        return self._instance.states.state not in STOPPING

    def add(self) -> str | None:
        with self._changing:
            slots = self._instance.ports.slots()
            if slots <= len(self._threads) + SPARE_SLOTS:
                raise IllegalStateError(
                    f"Spark has {slots} task slots, {len(self._threads)} stream threads use one "
                    f"each and {SPARE_SLOTS} has to stay free: start the instance with more "
                    f"num.stream.threads, or give it a Spark session with more slots (local[N])."
                )
            opened = self._opened(1)
            if not opened:
                return None
            (thread,) = opened
            self.on_loop(lambda: self._joined(thread))
            if thread not in self._threads:  # the instance ends
                thread.stop()
                return None
            return thread.name

    def replace_all(self, warmed: Callable[[], None], before: Callable[[], None]) -> bool:
        """Threads in the place of all: ``warmed`` runs once their workers do, and ``before`` on the
        loop, before they get tasks. Blocks. False, and nothing is done, where Spark has too few
        slots, the new threads do not get warm, or the instance ends."""
        with self._changing:
            going = list(self._threads)
            if self._instance.ports.slots() < 2 * len(going) + SPARE_SLOTS:
                return False
            fresh = self._opened(len(going))
            if not fresh:
                return False
            empty = [threading.Event() for _ in going]
            try:
                warmed()
                self.on_loop(lambda: self._exchange(fresh, before, empty))
            finally:
                if fresh[0] not in self._threads:
                    _stop(fresh)
            if fresh[0] not in self._threads:
                return False
            for thread, emptied in zip(going, empty, strict=True):
                if self._wait(emptied, None):
                    self._end(thread)
            self.on_loop(lambda: self._all_left(going))
            return True

    def _opened(self, count: int) -> list[StreamThread]:
        """New threads whose workers run; none where they do not in time, or the instance ends."""
        used = {thread.number for thread in self._threads}
        free = (number for number in itertools.count() if number not in used)
        opened = [self._instance.open_thread(number) for number in itertools.islice(free, count)]
        for thread in opened:
            thread.start()
        deadline = Deadline(self._instance.clock, WARM_UP_WAIT_S * 1000)
        if not all(self._wait(thread.warm, deadline) for thread in opened):
            _stop(opened)
            return []
        return opened

    def remove(self, timeout_s: float | None) -> str | None:
        with self._changing:
            if len(self._threads) < 2:
                raise IllegalStateError(
                    "The last stream thread cannot be removed: close() the instance, or pause() it."
                )
            thread = self._threads[-1]
            empty = threading.Event()
            self._instance.member.set_threads(len(self._threads) - 1)
            self._instance.loop.post(lambda: self._give_up(thread, empty))
            deadline = (
                None if timeout_s is None else Deadline(self._instance.clock, timeout_s * 1000)
            )
            if not self._wait(empty, deadline):
                if not self.may_change:
                    return None
                self._instance.member.set_threads(len(self._threads))
                self.on_loop(lambda: self._instance.manager.deal_without(frozenset()))
                raise TaskTimeoutError(
                    f"{thread.name} did not give its tasks up within {timeout_s:g} s: a batch is "
                    f"still in flight. It stays."
                )
            self._end(thread)
            self.on_loop(lambda: self._all_left([thread]))
            return thread.name

    def _end(self, thread: StreamThread) -> None:
        thread.stop()
        while not thread.join(POLL_S) and self.may_change:
            pass

    # --- on the instance's loop ------------------------------------------------------------------

    def _joined(self, thread: StreamThread) -> None:
        self._threads.append(thread)
        self._instance.member.set_threads(len(self._threads))
        self._instance.manager.deal_without(frozenset())

    def _exchange(
        self,
        fresh: Sequence[StreamThread],
        before: Callable[[], None],
        empty: Sequence[threading.Event],
    ) -> None:
        going = list(self._threads)
        before()
        self._threads.extend(fresh)
        self._instance.manager.deal_without(frozenset(thread.number for thread in going))
        for thread, emptied in zip(going, empty, strict=True):
            thread.drop((), lambda _, emptied=emptied: emptied.set())  # type: ignore[misc]

    def _all_left(self, threads: Collection[StreamThread]) -> None:
        for thread in threads:
            self._threads.remove(thread)
        self._instance.manager.deal_without(frozenset())

    def _give_up(self, thread: StreamThread, empty: threading.Event) -> None:
        self._instance.manager.deal_without(frozenset({thread.number}))
        # Commands are taken in turn: what it had has been released by then.
        thread.drop((), lambda _: empty.set())

    # ---------------------------------------------------------------------------------------------

    def on_loop(self, change: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                change()
            finally:
                done.set()

        self._instance.loop.post(run)
        self._wait(done, None)

    def _wait(self, event: threading.Event, deadline: Deadline | None) -> bool:
        while not event.wait(POLL_S):
            if not self.may_change or (deadline is not None and deadline.expired()):
                return False
        return True


def _stop(threads: Sequence[StreamThread]) -> None:
    for thread in threads:
        thread.stop()


# --- new topics while the instance runs (note 037) ------------------------------------------------


class ExtensionPorts(Protocol):
    @property
    def spawn(self) -> Spawn: ...
    def growth(self) -> TopicGrowth: ...

    def prepare(self, growth: TopicGrowth) -> Callable[[], None]:
        """Threads opened from now on run the program with these topics; returns what undoes it."""

    def inputs(self, task: TaskId) -> tuple[TopicPartition, ...]: ...

    def exchange(self) -> None:
        """Tasks that are created from now on have the inputs that were prepared."""

    def recovery(self, instance: Instance, stop: threading.Event, *, pauses: bool) -> Recovery: ...
    def grown(self, growth: TopicGrowth) -> None: ...


@dataclass(kw_only=True)
class Extension:
    """Takes up new topics while the instance runs (note 037). `check` belongs to the thread that
    watches topics; one growth at a time, on a thread of its own."""

    instance: Instance
    ports: ExtensionPorts
    _logged: set[str] = field(default_factory=set)
    _hopeless: set[str] = field(default_factory=set)
    _running: Running | None = None
    _begun: list[ActiveTask] = field(default_factory=list)
    _started: Offsets = field(default_factory=dict)

    def check(self) -> None:
        """Ask for new topics and take them up. EverflowError if the brokers do not answer."""
        if self._running is not None and not self._running.join(0):
            return
        found = self.ports.growth()
        for topic, why in found.left_out.items():
            self._log_once(topic, found, f"{why}. An instance that starts now refuses it")
        came = found.taken.keys() - self._hopeless
        if came and self.instance.states.state is ClientState.RUNNING:
            self._running = self.ports.spawn("everflow-new-topics", lambda: self._take_up(found))

    def _take_up(self, found: TopicGrowth) -> None:
        try:
            done = self._extend(found)
        except EverflowError as error:  # it is tried again with the next check
            log.info("New topics cannot be read yet: %s", error)
            return
        except Exception:  # a defect is no reason to stop what runs
            log.exception("New topics cannot be read")
            done = False
        for topic in found.taken:
            if done:
                text = "Topic %s of the source at %s is read with %d partitions from now on"
                rebalance_log.info(text, topic, found.where[topic], found.taken[topic])
            elif self.instance.thread_count.may_change:  # else the instance ends
                self._hopeless.add(topic)
                self._log_once(
                    topic,
                    found,
                    "Spark has no free slots for new stream threads (local[N]), or they did not "
                    "start. Restart the instances one after the other to read it",
                )

    def _extend(self, found: TopicGrowth) -> bool:
        undo = self.ports.prepare(found)
        done = False
        try:
            done = self.instance.thread_count.replace_all(self._begin, self._exchange)
        finally:
            if not done:
                undo()
        if done:
            self.ports.grown(found)
        return done

    def _begin(self) -> None:
        """Find where new partitions of running tasks begin: nobody else reads them meanwhile."""
        self._begun = []
        for task in self.instance.running_tasks():
            lacking = tuple(tp for tp in self.ports.inputs(task.id) if tp not in task.inputs)
            if lacking:
                self._begun.append(ActiveTask(id=task.id, inputs=lacking, epoch=task.epoch))
        recovery = self.ports.recovery(self.instance, self.instance.stop, pauses=False)
        self._started, _ = recovery.recover(self._begun, ())

    def _exchange(self) -> None:
        """On the instance's loop. A task is recovered if new partitions have no committed start."""
        self.ports.exchange()
        book, begun = self.instance.book, self.instance.begun
        begun.clear()
        known = [task for task in self._begun if not book.broken(task.id, task.epoch)]
        text = format_metadata(START_METADATA, {})
        inputs = [tp for task in known for tp in task.inputs if tp in self._started]
        offsets = {tp: (self._started[tp], text) for tp in inputs}
        try:
            committed = not offsets or self.instance.member.commit(offsets)
        except EverflowError as error:
            log.info("The starting offsets of new topics are left to recoveries: %s", error)
            committed = False
        if committed:
            begun.update({task.id: task for task in known})

    def _log_once(self, topic: str, found: TopicGrowth, why: str) -> None:
        if topic not in self._logged:
            self._logged.add(topic)
            where = found.where[topic]
            log.warning("Topic %s of the source at %s is not read: %s", topic, where, why)
