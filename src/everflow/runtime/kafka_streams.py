"""`KafkaStreams`: one instance of an application, from start to close.

Its loop (one thread) reacts to the group, to recoveries and to stream threads, one event after the other; everything that may
wait happens elsewhere: batches on stream threads, replays on restore threads, the membership on its own.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from everflow import metrics as names
from everflow.clock import Clock, Deadline, SystemClock
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, without_history
from everflow.foreign_names import Telling
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.client_settings import check_clients
from everflow.kafka.producer import group_metadata
from everflow.logs import LogFile, install
from everflow.membership.member import Assigned, Failed, GroupMember, Lost, MemberEvent, Revoked, Roles
from everflow.membership.own_assignor import check_assignor
from everflow.metrics import Metrics
from everflow.moves import moves
from everflow.records import TaskId, TopicPartition
from everflow.retry import quietly, retrying
from everflow.runtime.banner import banner
from everflow.runtime.client_state import ENDED, STOPPING, ClientState, StateMachine
from everflow.runtime.commit.commit_gate import CommitGate, GateBackend, GateBook, MemberMetadata
from everflow.runtime.commit.deferred_offsets import DeferredOffsets
from everflow.runtime.copies.known_copies import Copies
from everflow.runtime.copies.state_keeper import StateKeeper
from everflow.runtime.copies.state_updater import StateUpdater
from everflow.runtime.foreground import Foreground
from everflow.runtime.instance_display import InstanceDisplay
from everflow.runtime.operations import InstanceOperations
from everflow.runtime.pause import Pause
from everflow.runtime.query.host_map import HostMap
from everflow.runtime.query.queries import InteractiveQueries, QueryPorts, store_queries
from everflow.runtime.restore.changelogs import Changelogs
from everflow.runtime.restore.restore_progress import RestoreTracker
from everflow.runtime.restore.standby_listener import SilentStandbyListener, StandbyUpdateListener
from everflow.runtime.shutdown import InstanceShutdown
from everflow.runtime.start_up import await_warm, commit_starts, prepare_cluster, repartition_positions, require_tasks
from everflow.runtime.task_status import TaskStatus, copies_metrics, input_lag, statuses
from everflow.runtime.tasks.lost_writers import LostWriters
from everflow.runtime.tasks.task import ActiveTask, TaskState
from everflow.runtime.tasks.task_manager import TaskManager, TaskServices
from everflow.runtime.thread.batch_watchdog import any_stalled, end_hanging, troubles
from everflow.runtime.thread.stream_thread import StreamThread
from everflow.runtime.thread.thread_ports import OpenJob, ThreadServices
from everflow.runtime.thread.worker_processes import kill_and_wait
from everflow.runtime.topics.end_offsets import EndOffsets
from everflow.runtime.topics.end_sums import EndSums
from everflow.runtime.topics.partition_racks import PartitionRacks
from everflow.runtime.topics.topic_watch import TopicWatch
from everflow.runtime.wiring import (
    Ground,
    close_stores,
    end_offsets,
    group_settings,
    instance_log,
    job_opener,
    lost_writers_of,
    new_incarnation,
    racks_of,
    recovery_of,
    scan_copies,
    state_keeper,
    state_updater,
    task_assignor,
    thread_count,
    thread_settings,
    topic_watch,
)
from everflow.state.task_directory import StateDirectory
from everflow.topology.program import Topology, checked_topology
from everflow.travel.inert import InertInstance, in_worker

log = logging.getLogger("everflow")

TICK_S = 0.1
JOIN_ATTEMPT_S = 5.0
RESTORE_THREADS = 2
TAIL_THREADS = 2
"""For tasks whose copy was in use here a moment ago: they must not wait behind whole restores."""


class KafkaStreams(InteractiveQueries, InstanceOperations, InstanceShutdown, InstanceDisplay, Telling):
    """Runs a topology. One object is one instance: one member of the group ``application.id``; it starts once.

        KafkaStreams(builder.build(), application_id="delays", bootstrap_servers="broker:9092").run()

    Args:
        topology: what `StreamsBuilder.build` gave.
        config: a `StreamsConfig`, or a mapping of its keys (``{"application.id": "delays"}``); or pass them as keywords.

    All methods may be called from any thread, except `run` (main thread). Raises ConfigError for wrong settings, TopologyError for
    what is no topology.
    """

    def __new__(cls, *_: object, **__: object) -> KafkaStreams:
        """In a Python worker that imports a program: a stand-in that refuses to start."""
        return InertInstance() if in_worker() else super().__new__(cls)  # type: ignore[return-value]

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        *,
        clock: Clock | None = None,
        **keys: Any,
    ) -> None:
        self._topology = checked_topology(topology, "KafkaStreams")
        self.config = config if isinstance(config, StreamsConfig) and not keys else StreamsConfig(config, **keys)
        self.error: EverflowError | None = None
        """Why the instance is in state ERROR."""
        self._clock = clock or SystemClock()
        self._states = StateMachine()
        self._metrics = Metrics()
        self._introduced = False
        self._book = GateBook()
        self._tracker = RestoreTracker(self._metrics)
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        InstanceShutdown.__init__(self)
        self._joined = False
        self._told_by_caller = False
        """Whether somebody waits for `error` and raises it: a log line would tell it twice."""
        self._standby_listener: StandbyUpdateListener = SilentStandbyListener()
        self._stop = threading.Event()
        self._threads: list[StreamThread] = []
        self._purged: dict[TopicPartition, int] = {}
        self._loop: threading.Thread | None = None
        self._next_purge_ms = 0.0
        self._hosts = HostMap(self._clock)
        self._pause = Pause()
        # Set by `start`, in this order; None = not reached.
        self._directory: StateDirectory | None = None
        self._log_file: LogFile | None = None
        self._admin: ClusterAdmin | None = None
        self._ground: Ground | None = None
        self._updater: StateUpdater | None = None
        self._end_sums: EndSums | None = None
        self._racks: PartitionRacks | None = None
        self._member: GroupMember | None = None
        self._deferred: DeferredOffsets | None = None
        self._gate: CommitGate | None = None
        self._ends: EndOffsets | None = None
        self._topic_watch: TopicWatch | None = None
        self._pools: tuple[ThreadPoolExecutor, ...] = ()
        self._lost_writers: LostWriters | None = None
        self._manager: TaskManager | None = None
        self._keeper: StateKeeper | None = None

    # --- what users see --------------------------------------------------------------------------

    @property
    def state(self) -> ClientState:
        """The instance's `ClientState` at this moment; any thread may ask."""
        return self._states.state

    def start(self) -> None:
        """Check everything that can be checked, join the group, start the threads; returns before the tasks run.

        Raises ConfigError, StateLockedError, StateFormatError, StateDiskError, TaskTimeoutError (no broker within
        ``task.timeout.ms``), TopologyError (topics), InternalTopicError, OffsetsExpiredError, SetupError. Then the state is ERROR.
        Closed meanwhile it returns early, and interrupted (Ctrl-C) it raises KeyboardInterrupt: then the state is NOT_RUNNING.
        """
        self._require_created("the instance is started")
        install()
        if not self._introduced:
            for line in self._introduction().splitlines():
                moves.info("%s", line)
        self._begin_start()
        try:
            self._start()
            self._joined = True
        except BaseException as error:
            failure = self._end_start(error)
            if isinstance(failure, EverflowError):
                log.debug("The start failed", exc_info=error)
                raise failure.with_traceback(None) from None  # for people: the frames of everflow are in the log
            if failure is error:
                raise
            if failure is not None:
                raise failure from error
        finally:
            self._start_over.set()

    def run(self, leave_group: bool | None = None) -> None:
        """`start`, then block until SIGINT, SIGTERM or SIGHUP ends the instance in order, as `close` does with ``leave_group``, at
        any moment, the start included. A second signal ends the draining and the batches in flight. Each is told in a line, and the
        call returns (docs/STOPPING.md). Raises what stopped the instance otherwise. On another thread than the main one it hears
        no signals, and no SIGHUP that is ignored (``nohup``) or has a handler of the program's own."""
        try:
            Foreground(self, leave_group).run()
        except EverflowError as error:
            raise error.with_traceback(None) from None

    def all_tasks(self) -> dict[TaskId, TaskStatus]:
        """Every task on this instance: its role, state, how far behind it is. For operators and views."""
        ends = {} if self._ends is None else self._ends.ends()
        followed = {} if self._updater is None else self._updater.followed()
        leaving = frozenset() if self._manager is None else self._manager.handing_over()
        known = (self._book.owned(), self._running_tasks(), ends, followed, self._recovering_ids(), self._tracker.progress())
        return statuses(*known, handing_over=leaving, troubles=troubles(self._threads))

    def metrics(self) -> dict[str, float | str]:
        """Counters since the start, the present lag (records; NaN while it is not known) and restore progress, by the names in
        `everflow.metrics`."""
        values: dict[str, float | str] = {**self._metrics.snapshot()}
        values[names.CLIENT_STATE] = self.state.name
        values[names.ALIVE_STREAM_THREADS] = sum(1 for thread in self._threads if not thread.join(0))
        values[names.FAILING_STREAM_THREADS] = sum(1 for thread in self._threads if thread.trouble is not None)
        tasks = self.all_tasks()
        values[names.LAG] = input_lag(tasks.values()) if tasks or self.state is ClientState.RUNNING else math.nan
        values.update(copies_metrics({} if self._updater is None else self._updater.followed()))
        return values

    def restoring(self) -> float | None:
        """Restored share (0 to 1) of the stores being restored; None when none is."""
        return self._tracker.fraction()

    def _introduction(self, program: str = "") -> str:
        """The banner, for who shows it before `start`, which would say it otherwise; ``program``: where it was loaded from."""
        self._introduced = True
        return banner(self.config, self._topology, program).text()

    # --- start -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """The order matters: see each step."""
        config = self.config
        for warning in config.warnings():
            log.warning(warning)
        check_clients(config)
        check_assignor(config.task_assignor_class)
        # 1. This process alone works on the state folder.
        self._directory = StateDirectory.open(Path(config.state_dir).expanduser(), config.application_id, sync=config.state_sync)
        self._log_file = instance_log(config)
        # 2-7. The cluster is there, earlier writers are fenced, topics exist and fit.
        admin = self._admin = ClusterAdmin(config.admin(), stop=self._stop)
        blueprint = prepare_cluster(self._topology, config, admin, self._directory, self._clock, self._stop)
        require_tasks(blueprint)
        changelogs = Changelogs(admin, blueprint.cluster_id)
        ground = self._ground = Ground(config, self._clock, admin, blueprint, self._directory, changelogs)
        context = self._spark()  # 8.
        # 9. The copies that are here already, and the member that will tell of them. It joins last.
        updater = self._updater = state_updater(ground, self._tracker, lambda: self._standby_listener, self._on_hot, self._pause)
        sources = (updater.followed, self._running_ids, self._recovering_ids, self._tracker.positions)
        copies = Copies(*sources, changelogs.known_delete_retention_ms, self._clock)
        scan_copies(ground, copies)
        end_sums = self._end_sums = EndSums(changelogs.stable_ends, ground.changelogs_of_tasks(), self._clock)
        self._racks = racks_of(ground)
        self._racks.refresh()
        assignor = task_assignor(ground, copies, end_sums, self._racks)
        settings = self._hosts.group = group_settings(ground)
        member = self._member = GroupMember(settings, assignor, self._on_member_event, finishing=lambda: self._book.finishing)
        # 10. The gate: workers ask it before any commit.
        deferred = self._deferred = DeferredOffsets(member.commit)
        self._gate = CommitGate(self._book, self._gate_backend(member, deferred))
        gate_path = self._gate.start()
        # 11. Ends of the input, stream threads, restore threads, the loop.
        ends = self._ends = end_offsets(ground, self._running_positions, self._stop)
        self._queries = store_queries(
            self._topology, blueprint, config.application_server, self._query_ports(ground, updater), self._clock
        )
        open_job = job_opener(context, ground)
        for number in range(config.num_stream_threads):
            self._threads.append(self._stream_thread(ground, ends, number, gate_path, open_job))
        manager = self._manager = self._task_manager(ground, member, updater, copies, deferred)
        self._keeper = state_keeper(
            ground, self._threads, self._book, member, manager, copies, lambda: self.state is ClientState.RUNNING
        )
        more, going = (lambda n: self._stream_thread(ground, ends, n, gate_path, open_job)), (lambda: self.state not in STOPPING)
        self._thread_count = thread_count(ground, self._threads, more, context, self._events.put, manager, member, going)
        self._lost_writers = lost_writers_of(ground) if config.exactly_once else None
        self._loop = threading.Thread(target=self._run_loop, args=(ground,), name="everflow-instance", daemon=True)
        watch = self._topic_watch = topic_watch(ground, self._on_failed)
        watch.start()
        ends.start()
        for thread in self._threads:
            thread.start()
        updater.start()
        self._loop.start()
        # 12. Join: from here on tasks arrive. Not before the threads are warm: a task that another instance hands over without a
        # restore would stand still meanwhile (seconds; measured by `bench scaleout`).
        await_warm([thread.warm for thread in self._threads], self._stop)
        joining, deadline = (lambda: member.start(JOIN_ATTEMPT_S)), Deadline(self._clock, config.task_timeout_ms)
        retrying(joining, "joining the group", clock=self._clock, deadline=deadline, stop=self._stop)

    def _gate_backend(self, member: GroupMember, deferred: DeferredOffsets) -> GateBackend:
        return GateBackend(
            member=lambda: MemberMetadata(*member.metadata()),
            encode=lambda m: group_metadata(m.generation, self.config.application_id, m.member_id, m.instance_id),
            commit=deferred.commit,
        )

    def _spark(self) -> Any:
        """The SparkContext; a new one has slots for the threads, restores, and a spare."""
        from everflow.spark.later import running_context
        from everflow.spark.session import get_context

        if running_context() is None:
            moves.info("Starting Spark")
        return get_context(self.config.num_stream_threads + RESTORE_THREADS + 1, self._stop)

    def _query_ports(self, ground: Ground, updater: StateUpdater) -> QueryPorts:
        return QueryPorts(
            state=lambda: self.state,
            running=lambda: {task.id: task.stores for task in self._running_tasks()},
            copies=lambda: {
                **updater.stores(),
                **({} if self._manager is None else self._manager.idle_stores()),
                # A thread restores its tasks after a batch that failed.
                **{task.id: task.stores for task in self._held_tasks() if task.state is TaskState.RESTORING},
            },
            hosts=self._hosts.hosts,
            ends=lambda partitions: ground.admin.end_offsets(partitions, ground.isolation),
            draining=lambda: not self._stop.is_set(),
        )

    def _stream_thread(self, ground: Ground, ends: EndOffsets, number: int, gate_path: str, open_job: OpenJob) -> StreamThread:
        services = ThreadServices(
            open_job=open_job,
            kill_workers=lambda pids: kill_and_wait(pids, self._clock),
            gate=self._book,
            ends=ends,
            recovery=recovery_of(ground, self._tracker, self._stop),
            metrics=self._metrics,
            on_failed=self._on_failed,
            on_warm=lambda: self._events.put(self._on_thread_warm),
            paused=lambda: self._pause.paused,
        )
        settings = thread_settings(ground, number, gate_path)
        if self.config.exactly_once and settings.transactional_id not in ground.directory.transactional_ids:
            ground.directory.record_transactional_ids([settings.transactional_id])  # of a thread that is added later
        thread = StreamThread(number, settings, services, self._clock, new_incarnation)
        self._pause.wakes.append(thread.wake)
        return thread

    def _task_manager(
        self, ground: Ground, member: GroupMember, updater: StateUpdater, copies: Copies, deferred: DeferredOffsets
    ) -> TaskManager:
        blueprint = ground.blueprint
        pool = ThreadPoolExecutor(RESTORE_THREADS, thread_name_prefix="everflow-restore")
        tails = ThreadPoolExecutor(TAIL_THREADS, thread_name_prefix="everflow-tail")
        self._pools = (pool, tails, ThreadPoolExecutor(1, thread_name_prefix="everflow-fence"))

        def recover(tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
            started, _ = recovery_of(ground, self._tracker, stop, self._pause).recover(tasks, ())
            commit_starts(member.commit, started, self.config, self._clock, stop)

        def submit(work: Callable[[], None], quick: bool) -> None:
            (tails if quick else pool).submit(work)

        def before_release(tasks: Collection[TaskId]) -> None:
            if deferred.held():
                quietly(lambda: deferred.commit([]))
            # What the group still would not take must not go over the next owner's offsets with a later batch.
            deferred.forget({TopicPartition(t, task.partition) for task in tasks for t in blueprint.inputs[task.subtopology]})

        services = TaskServices(
            create=lambda task: blueprint.task(task, ground.directory),
            recover=recover,
            submit=submit,
            post=self._events.put,
            before_release=before_release,
            release=member.release,
            failed=self._on_failed,
            changed=self._on_tasks_changed,
            rest=copies.rest,
            close=close_stores,
        )
        return TaskManager(self._book, self._threads, updater, services)

    # --- the loop --------------------------------------------------------------------------------

    def _run_loop(self, ground: Ground) -> None:
        while True:
            try:
                event = self._next_event()
                if event is None:
                    return
                event()
                self._tick(ground)
            except EverflowError as error:
                self._on_failed(error)
            except Exception as error:
                log.exception("The instance's loop failed")
                self._on_failed(EverflowError(f"The instance's loop failed: {error!r}"))

    def _next_event(self) -> Callable[[], None] | None:
        try:
            return self._events.get(timeout=TICK_S)
        except queue.Empty:
            return lambda: None

    def _tick(self, ground: Ground) -> None:
        ground.directory.require_held()
        if self._gate is not None:
            self._gate.require_reachable()
        shown = self.state is ClientState.RUNNING and not any_stalled(self._threads, self._clock)
        if not shown and self._manager is not None and self._member is not None:
            self._on_tasks_changed(self._manager.all_running())
        end_hanging(self._threads, self._book, self.config.max_poll_interval_ms, self._clock)
        if self._keeper is not None:
            self._keeper.look()
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_purge_ms:
            self._next_purge_ms = now_ms + self.config.repartition_purge_interval_ms
            quietly(lambda: self._purge(ground))
            if self._racks is not None:
                self._racks.refresh()

    def _purge(self, ground: Ground) -> None:
        """Delete what was read from repartition topics, never beyond what is committed (scenario 27)."""
        held = frozenset() if self._deferred is None else self._deferred.held()
        positions = repartition_positions(self._running_tasks(), ground.blueprint.repartition)
        due = {tp: offset for tp, offset in positions.items() if tp not in held and offset > self._purged.get(tp, 0)}
        if due:
            ground.admin.delete_records(due)
            self._purged.update(due)

    def _running_tasks(self) -> list[ActiveTask]:
        return [task for task in self._held_tasks() if task.state is TaskState.RUNNING]

    def _held_tasks(self) -> list[ActiveTask]:
        return [task for thread in self._threads for task in thread.held()]

    def _running_positions(self) -> dict[TopicPartition, int]:
        return {tp: offset for task in self._running_tasks() for tp, offset in dict(task.positions).items()}

    def _running_ids(self) -> list[TaskId]:
        return [task.id for task in self._running_tasks()]

    def _recovering_ids(self) -> list[TaskId]:
        return [] if self._manager is None else list(self._manager.recovering)

    # --- events ----------------------------------------------------------------------------------

    def _on_member_event(self, event: MemberEvent) -> None:
        """On the group client's thread: mark in the gate's book, queue, return (scenario 24)."""
        manager = self._manager
        if manager is None:
            return
        if isinstance(event, Assigned):
            self._book.own(event.tasks)
            self._events.put(lambda: manager.assigned(event.tasks))
            self._events.put(self._fence_lost)
        elif isinstance(event, Revoked):
            assert self._member is not None
            self._book.revoke(event.tasks, MemberMetadata(*self._member.metadata()))
            self._events.put(lambda: manager.revoked(event.tasks))
        elif isinstance(event, Lost):
            # Everything, also what was revoked before and is not released yet: the event does not name it.
            self._book.disown_all()
            if self._deferred is not None:
                self._deferred.forget(event.partitions | self._deferred.held())
            self._events.put(lambda: manager.lost(event.tasks))
        elif isinstance(event, Roles):
            self._metrics.add(names.REBALANCES, 1)
            self._hosts.told(event.generation, event.hosts)
            self._events.put(lambda: manager.roles(event.standby, event.warmup))
        elif isinstance(event, Failed):
            self._book.disown_all()
            self._events.put(lambda: self._on_failed(event.error))  # it calls the user's state listener

    def _on_tasks_changed(self, all_running: bool) -> None:
        stable = self._member is not None and self._member.stable
        if self.state in STOPPING:
            return
        all_running = all_running and not any_stalled(self._threads, self._clock)
        if all_running and stable and all(thread.warm.is_set() for thread in self._threads):
            self._states.to(ClientState.RUNNING)
        elif not all_running:
            self._states.to(ClientState.REBALANCING)

    def _on_thread_warm(self) -> None:
        if self._manager is not None:
            self._on_tasks_changed(self._manager.all_running())

    def _fence_lost(self) -> None:
        """Tasks came: their last owner may have vanished in the middle of a transaction. Runs beside their recovery, which waits
        for that transaction's end, and never behind one: on a thread of its own."""
        if self._lost_writers is not None:
            self._pools[-1].submit(self._lost_writers.fence_all)

    def _on_hot(self, task: TaskId) -> None:
        """On the updater's thread."""
        if self._member is not None:
            self._member.became_hot(task)

    def _on_failed(self, error: EverflowError) -> None:
        if self.state in STOPPING:
            return
        self._metrics.add(names.FAILED_STREAM_THREADS, 1)
        log.debug("How the error that stops the instance came about", exc_info=error)
        self.error = self.error or without_history(error)
        log.log(logging.INFO if self._told_by_caller else logging.ERROR, "The instance stops: [%s] %s", error.code, error)
        self._begin_shutdown(ClientState.PENDING_ERROR)


__all__ = ["ENDED", "ClientState", "KafkaStreams"]
