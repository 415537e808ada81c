"""`KafkaStreams`: one instance of an application, from start to close.

Its loop (one thread) reacts to the group, to recoveries and to stream threads, one event after the other; everything that may
wait happens elsewhere: batches on stream threads, replays on restore threads, the membership on its own.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from everflow import metrics as names
from everflow.assignment.cluster_state import tasks_of
from everflow.clock import Clock, Deadline, SystemClock
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.producer import group_metadata
from everflow.membership.assignor import Identity, TaskAssignor
from everflow.membership.member import Assigned, Failed, GroupMember, Lost, MemberEvent, Revoked
from everflow.metrics import Metrics
from everflow.records import TaskId, TopicPartition
from everflow.runtime.batch import format_metadata
from everflow.runtime.client_state import ENDED, STOPPING, ClientState, StateListener, StateMachine
from everflow.runtime.commit_gate import CommitGate, GateBackend, GateBook, MemberMetadata
from everflow.runtime.deferred_offsets import DeferredOffsets
from everflow.runtime.end_offsets import EndOffsets
from everflow.runtime.queries import InteractiveQueries, QueryPorts, store_queries
from everflow.runtime.recovery import Recovery, RecoveryRules
from everflow.runtime.restoration import RestoreListener
from everflow.runtime.restore_progress import RestoreTracker
from everflow.runtime.retry import retrying
from everflow.runtime.start_up import Blueprint, prepare_cluster, repartition_positions, require_tasks, transactional_id
from everflow.runtime.stream_thread import Job, StreamThread, ThreadServices, ThreadSettings
from everflow.runtime.task import ActiveTask, TaskState
from everflow.runtime.task_manager import TaskManager, TaskServices
from everflow.runtime.task_recovery import ClusterRecoveryPorts
from everflow.runtime.worker_processes import is_worker, kill_and_wait
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from everflow.topology.fingerprint import fingerprint
from everflow.topology.graph import Topology
from everflow.topology.subtopologies import cut

log = logging.getLogger("everflow")

TICK_S = 0.1
START_METADATA = "start"
RESTORE_THREADS = 2


class KafkaStreams(InteractiveQueries):
    """Runs a topology. One object is one instance: one member of the group ``application.id``; it starts once.

        KafkaStreams(builder.build(), application_id="delays", bootstrap_servers="broker:9092").run()

    Args:
        topology: what `StreamsBuilder.build` gave.
        config: a `StreamsConfig`; or pass its keys as keywords.

    All methods may be called from any thread, except `run` (main thread). Raises ConfigError for wrong settings.
    """

    def __init__(self, topology: Topology, config: StreamsConfig | None = None, *, clock: Clock | None = None, **keys: Any) -> None:
        self.config = config if config is not None and not keys else StreamsConfig(**keys)
        self.error: EverflowError | None = None
        """Why the instance is in state ERROR."""
        self._topology = topology
        self._clock = clock or SystemClock()
        self._states = StateMachine()
        self._metrics = Metrics()
        self._book = GateBook()
        self._tracker = RestoreTracker(self._metrics)
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._shutdown: threading.Thread | None = None
        self._stop = threading.Event()
        self._threads: list[StreamThread] = []
        self._purged: dict[TopicPartition, int] = {}
        self._loop: threading.Thread | None = None
        self._next_purge_ms = 0.0
        # Set by `start`, in this order; None = not reached.
        self._directory: StateDirectory | None = None
        self._blueprint: Blueprint | None = None
        self._gate: CommitGate | None = None
        self._member: GroupMember | None = None
        self._ends: EndOffsets | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._manager: TaskManager | None = None
        self._deferred: DeferredOffsets | None = None

    # --- what users see --------------------------------------------------------------------------

    @property
    def state(self) -> ClientState:
        """The state now."""
        return self._states.state

    def set_state_listener(self, listener: StateListener) -> None:
        """``listener(new, old)`` on every change, on the thread that made it: return quickly. Before `start` only."""
        self._require_created("a state listener is set")
        self._states.listener = listener

    def set_global_state_restore_listener(self, listener: RestoreListener) -> None:
        """Told of every restore, on the restore threads. Before `start` only."""
        self._require_created("a restore listener is set")
        self._tracker.listener = listener

    def start(self) -> None:
        """Check everything that can be checked, join the group, start the threads; returns before the tasks run.

        Raises StateLockedError, StateFormatError, TaskTimeoutError (no broker within ``task.timeout.ms``), TopologyError
        (topics), InternalTopicError, OffsetsExpiredError, SetupError. Then the state is ERROR.
        """
        self._require_created("the instance is started")
        self._states.to(ClientState.REBALANCING)
        try:
            self._start()
        except BaseException as error:
            self.error = error if isinstance(error, EverflowError) else EverflowError(f"The start failed: {error!r}")
            self._begin_shutdown(ClientState.PENDING_ERROR)
            self._states.wait_ended(30.0)
            raise

    def close(self, timeout: float = 60.0) -> bool:
        """Finish the batches in flight, commit, leave the group, release the folder; False if that took more than ``timeout``
        seconds (it goes on in the background). Dynamic members leave the group, static ones (``group.instance.id``) stay."""
        if self.state is ClientState.CREATED:
            self._states.to(ClientState.PENDING_SHUTDOWN)
            return self._states.to(ClientState.NOT_RUNNING)
        self._begin_shutdown(ClientState.PENDING_SHUTDOWN)
        return self._states.wait_ended(timeout)

    def run(self) -> None:
        """`start`, then block until SIGTERM or SIGINT ends the instance cleanly. Raises what stopped it otherwise."""
        from everflow.spark.session import get_session

        get_session()  # before the handlers below: a new SparkContext installs one of its own for SIGINT
        stop = threading.Event()
        before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            while not self._states.wait_ended(TICK_S):
                if stop.is_set():
                    log.info("Stopping")
                    self.close()
                    break
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.error is not None:
            raise self.error

    def metrics(self) -> dict[str, float | str]:
        """Counters since the start, the present lag (records) and restore progress, by the names in `everflow.metrics`."""
        values: dict[str, float | str] = {**self._metrics.snapshot()}
        values[names.CLIENT_STATE] = self.state.name
        values[names.ALIVE_STREAM_THREADS] = sum(1 for thread in self._threads if not thread.join(0))
        ends = {} if self._ends is None else self._ends.ends()
        values[names.LAG] = sum(
            max(0, ends.get(tp, offset) - offset) for task in self._running_tasks() for tp, offset in dict(task.positions).items()
        )
        return values

    def restoring(self) -> float | None:
        """Restored share (0 to 1) of the stores being restored; None when none is."""
        return self._tracker.fraction()

    # --- start -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """The order matters: see each step."""
        from everflow.spark.session import get_session

        config = self.config
        # 1. This process alone works on the state folder.
        self._directory = StateDirectory.open(Path(config.state_dir).expanduser(), config.application_id, sync=config.state_sync)
        # 2-7. The cluster is there, earlier writers are fenced, topics exist and fit.
        admin = ClusterAdmin(config.admin())
        blueprint = prepare_cluster(self._topology, config, admin, self._directory, config.num_stream_threads)
        require_tasks(blueprint)
        self._blueprint = blueprint
        # 8. Spark (slots: stream threads, restores, one spare).
        session = get_session(config.num_stream_threads + RESTORE_THREADS + 1)
        # 9. The gate: workers ask it before any commit. It needs the member, which joins last.
        assignor = self._assignor(blueprint, self._directory)
        member = self._member = GroupMember(_group_settings(config), assignor, self._on_member_event)
        deferred = self._deferred = DeferredOffsets(member.commit)
        backend = GateBackend(
            member=lambda: MemberMetadata(*member.metadata()),
            encode=lambda m: group_metadata(m.generation, config.application_id, m.member_id, m.instance_id),
            commit=deferred.commit,
        )
        self._gate = CommitGate(self._book, backend, self._directory.path)
        gate_path = self._gate.start()
        # 10. Ends of the input, stream threads, restore threads, the loop.
        isolation = "read_committed" if config.exactly_once else "read_uncommitted"
        self._ends = EndOffsets(
            lambda partitions: admin.end_offsets(partitions, isolation),  # type: ignore[arg-type]
            self._clock,
            config.poll_interval_ms,
        )
        ports = QueryPorts(
            state=lambda: self.state,
            running=lambda: {task.id: task.stores for task in self._running_tasks()},
            copies=dict,
            hosts=lambda: None,
            ends=lambda partitions: admin.end_offsets(partitions, isolation),  # type: ignore[arg-type]
        )
        self._queries = store_queries(self._topology, blueprint, config.application_server, ports, self._clock)
        self._pool = ThreadPoolExecutor(RESTORE_THREADS, thread_name_prefix="everflow-restore")
        open_job = _job_opener(session, blueprint, config)
        for number in range(config.num_stream_threads):
            self._threads.append(self._stream_thread(number, gate_path, open_job, admin))
        self._manager = self._task_manager(admin)
        self._loop = threading.Thread(target=self._run_loop, args=(admin,), name="everflow-instance", daemon=True)
        self._ends.start()
        for thread in self._threads:
            thread.start()
        self._loop.start()
        # 11. Join: from here on tasks arrive.
        retrying(
            lambda: member.start(),
            "joining the group",
            clock=self._clock,
            deadline=Deadline(self._clock, config.task_timeout_ms),
            stop=self._stop,
        )

    def _assignor(self, blueprint: Blueprint, directory: StateDirectory) -> TaskAssignor:
        config = self.config
        identity = Identity(
            directory.process_id,
            config.num_stream_threads,
            rack=config.client_rack,
            endpoint=config.application_server,
            instance_id=config.group_instance_id,
            topology=fingerprint(cut(self._topology)),
        )
        changelogs = {
            index: [f"{config.application_id}-{spec.changelog}" for spec in specs if spec.logging]
            for index, specs in blueprint.stores.items()
        }
        nowhere = _NoCopies(dict.fromkeys(tasks_of(blueprint.inputs, blueprint.partitions), 0))
        return TaskAssignor(identity, blueprint.inputs, changelogs, nowhere, nowhere, nowhere, config.assignment())

    def _stream_thread(
        self, number: int, gate_path: str, open_job: Callable[[int, Sequence[TopicPartition]], Job], admin: ClusterAdmin
    ) -> StreamThread:
        config = self.config
        assert self._directory is not None
        assert self._ends is not None
        settings = ThreadSettings(
            application_id=config.application_id,
            guarantee=config.processing_guarantee,
            transactional_id=transactional_id(config, self._directory.process_id, number),
            gate_path=gate_path,
            producer_config=config.producer(),
            limits=config.batches(),
            task_timeout_ms=config.task_timeout_ms,
            keep_alive_ms=config.keep_alive_ms,
        )
        services = ThreadServices(
            open_job=open_job,
            kill_workers=lambda pids: kill_and_wait(pids, self._clock),
            gate=self._book,
            ends=self._ends,
            recovery=self._recovery(admin, self._stop),
            metrics=self._metrics,
            on_failed=self._on_failed,
            on_warm=lambda: self._events.put(self._on_thread_warm),
        )
        return StreamThread(number, settings, services, self._clock, _new_incarnation)

    def _recovery(self, admin: ClusterAdmin, stop: threading.Event) -> Recovery:
        blueprint, directory, config = self._blueprint, self._directory, self.config
        assert blueprint is not None
        assert directory is not None
        stores = blueprint.stores
        ports = ClusterRecoveryPorts(
            admin,
            config.application_id,
            config.producer(),
            config.consumer(),
            directory,
            lambda subtopology: stores.get(subtopology, ()),
            blueprint.cluster_id,
            config.state_sync,
            self._clock,
            self._tracker,
            stop,
        )
        rules = RecoveryRules(config.application_id, blueprint.offset_reset)
        return Recovery(ports, rules, self._clock, config.task_timeout_ms, stop, _new_incarnation)

    def _task_manager(self, admin: ClusterAdmin) -> TaskManager:
        blueprint, directory, pool, member = self._blueprint, self._directory, self._pool, self._member
        deferred = self._deferred
        assert blueprint is not None and directory is not None and pool is not None  # noqa: PT018
        assert member is not None and deferred is not None  # noqa: PT018

        def recover(tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
            started, _ = self._recovery(admin, stop).recover(tasks, ())
            self._commit_starts(started, stop)

        def submit(work: Callable[[], None]) -> None:
            pool.submit(work)

        def before_release(tasks: Collection[TaskId]) -> None:
            if deferred.held():
                _quietly(lambda: deferred.commit([]))
            # What the group still would not take must not go over the next owner's offsets with a later batch.
            deferred.forget({TopicPartition(t, task.partition) for task in tasks for t in blueprint.inputs[task.subtopology]})

        services = TaskServices(
            create=lambda task: blueprint.task(task, directory),
            recover=recover,
            submit=submit,
            post=self._events.put,
            before_release=before_release,
            release=member.release,
            failed=self._on_failed,
            changed=self._on_tasks_changed,
        )
        return TaskManager(self._book, self._threads, services)

    def _commit_starts(self, started: Mapping[TopicPartition, int], stop: threading.Event) -> None:
        """Commit where new partitions begin, before anything of them is processed: records in internal topics without any
        committed offset then always mean that offsets were lost (D5)."""
        if not started:
            return
        member = self._member
        assert member is not None
        offsets = {tp: (offset, format_metadata(START_METADATA, {})) for tp, offset in started.items()}

        def commit() -> None:
            if not member.commit(offsets):
                raise RetriableError("the group is rebalancing")

        deadline = Deadline(self._clock, self.config.task_timeout_ms)
        retrying(commit, "committing starting offsets", clock=self._clock, deadline=deadline, stop=stop)

    # --- the loop --------------------------------------------------------------------------------

    def _run_loop(self, admin: ClusterAdmin) -> None:
        while True:
            try:
                event = self._next_event()
                if event is None:
                    return
                event()
                self._tick(admin)
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

    def _tick(self, admin: ClusterAdmin) -> None:
        if self.state is ClientState.REBALANCING and self._manager is not None and self._member is not None:
            self._on_tasks_changed(self._manager.all_running())
        self._watch_batches()
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_purge_ms:
            self._next_purge_ms = now_ms + self.config.repartition_purge_interval_ms
            _quietly(lambda: self._purge(admin))

    def _watch_batches(self) -> None:
        """D7's watchdog: end the workers of a batch that hangs; its job then fails, and the thread recovers in D6's order."""
        now_ms = self._clock.monotonic_ms()
        for thread in self._threads:
            since = thread.batch_since_ms
            if since is not None and now_ms - since > self.config.max_poll_interval_ms:
                pids = self._book.take_pids(thread.number)
                if pids:
                    log.warning("Stream thread %d: a batch hangs, ending its workers %s", thread.number, list(pids))
                    kill_and_wait(pids, self._clock)

    def _purge(self, admin: ClusterAdmin) -> None:
        """Delete what was read from repartition topics, never beyond what is committed (scenario 27)."""
        assert self._blueprint is not None
        held = frozenset() if self._deferred is None else self._deferred.held()
        positions = repartition_positions(self._running_tasks(), self._blueprint.repartition)
        due = {tp: offset for tp, offset in positions.items() if tp not in held and offset > self._purged.get(tp, 0)}
        if due:
            admin.delete_records(due)
            self._purged.update(due)

    def _running_tasks(self) -> list[ActiveTask]:
        return [task for thread in self._threads for task in list(thread.tasks.values()) if task.state is TaskState.RUNNING]

    # --- events ----------------------------------------------------------------------------------

    def _on_member_event(self, event: MemberEvent) -> None:
        """On the group client's thread: mark in the gate's book, queue, return (scenario 24)."""
        manager = self._manager
        if manager is None:
            return
        if isinstance(event, Assigned):
            self._book.own(event.tasks)
            self._events.put(lambda: manager.assigned(event.tasks))
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
        elif isinstance(event, Failed):
            self._book.disown_all()
            self._on_failed(event.error)

    def _on_tasks_changed(self, all_running: bool) -> None:
        stable = self._member is not None and self._member.stable
        if self.state in STOPPING:
            return
        if all_running and stable and all(thread.warm.is_set() for thread in self._threads):
            self._states.to(ClientState.RUNNING)
        elif not all_running:
            self._states.to(ClientState.REBALANCING)

    def _on_thread_warm(self) -> None:
        if self._manager is not None:
            self._on_tasks_changed(self._manager.all_running())

    def _on_failed(self, error: EverflowError) -> None:
        if self.state in STOPPING:
            return
        self._metrics.add(names.FAILED_STREAM_THREADS, 1)
        self.error = self.error or error
        log.error("The instance stops: [%s] %s", error.code, error)
        self._begin_shutdown(ClientState.PENDING_ERROR)

    # --- the end ---------------------------------------------------------------------------------

    def _begin_shutdown(self, state: ClientState) -> None:
        with self._closing:
            if self._shutdown is not None or not self._states.to(state):
                return
            self._shutdown = threading.Thread(target=self._run_shutdown, name="everflow-shutdown", daemon=True)
            self._shutdown.start()

    def _run_shutdown(self) -> None:
        failed = self.state is ClientState.PENDING_ERROR
        try:
            self._shut_down()
        except Exception:  # the state must still say that it is over
            log.exception("The shutdown did not go through")
            failed = True
        self._states.to(ClientState.ERROR if failed else ClientState.NOT_RUNNING)

    def _shut_down(self) -> None:
        """Batches end and commit -> offsets held back are committed -> stores are flushed -> the group is left -> folder
        released. Each step is tried whatever became of those before: a member that did not leave would keep its tasks from the
        others for as long as this process lives."""
        failures: list[Exception] = []
        for step in (self._end_loop, self._end_threads, self._end_recoveries, self._commit_held, self._checkpoint, self._leave):
            try:
                step()
            except Exception as error:
                log.exception("A step of the shutdown failed")
                failures.append(error)
        if self._directory is not None:
            self._directory.close(clean=not failures)
        if failures:
            raise failures[0]

    def _end_loop(self) -> None:
        if self._loop is not None and self._loop.ident is not None:
            self._events.put(None)
            self._loop.join()
        if self._manager is not None:
            self._manager.close()

    def _end_threads(self) -> None:
        for thread in self._threads:
            thread.stop()
        self._stop.set()
        for thread in self._threads:
            thread.join(None)
        for thread in self._threads:
            # No batch runs any more. Idle workers hold a producer that the next instance on this folder fences; end them.
            kill_and_wait([pid for pid in self._book.take_pids(thread.number) if is_worker(pid)], self._clock)

    def _end_recoveries(self) -> None:
        if self._ends is not None:
            self._ends.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _commit_held(self) -> None:
        if self._deferred is not None and self._member is not None:
            _quietly(lambda: self._deferred and self._deferred.commit([]))

    def _leave(self) -> None:
        if self._member is not None:
            self._member.leave()
        if self._gate is not None:
            self._gate.close()

    def _checkpoint(self) -> None:
        """Stores that ran have followed their changelog until now; `StateDirectory.close` flushes them."""
        for task in self._running_tasks():
            for store in task.stores:
                _quietly(lambda path=store.path: LmdbStore.open(path).touch(self._clock.now_ms()))  # type: ignore[misc]
                _quietly(lambda path=store.path: LmdbStore.open(path).close())  # type: ignore[misc]

    def _require_created(self, what: str) -> None:
        if self.state is not ClientState.CREATED:
            raise EverflowError(f"In state {self.state.name} it is too late: {what} once, before anything else.")


def _job_opener(session: Any, blueprint: Blueprint, config: StreamsConfig) -> Callable[[int, Sequence[TopicPartition]], Job]:
    from everflow.runtime.thread_job import JobSettings, ThreadJob

    client = {key: str(value) for key, value in config.main_consumer().items() if key != "bootstrap.servers"}
    # A resident step keeps a slot: in a session with few (the user's own) the threads would wait for one another for ever.
    slots = session.sparkContext.defaultParallelism
    resident_records = config.resident_max_records if slots > config.num_stream_threads else 0
    if resident_records != config.resident_max_records:
        log.warning(
            "Spark has only %d slots for %d stream threads: every batch is a job of its own", slots, config.num_stream_threads
        )
    settings = JobSettings(
        config.bootstrap_servers,
        config.application_id,
        config.exactly_once,
        config.errors_dead_letter_queue_topic_name,
        client,
        config.consumer(),
        config.prepared_source,
        resident_records,
    )
    return lambda number, partitions: ThreadJob(session, blueprint.plan, number, partitions, settings)


def _group_settings(config: StreamsConfig) -> GroupSettings:
    member = config.member()
    client = {key.replace(".", "_"): value for key, value in member.client.items()}
    return GroupSettings(
        member.bootstrap_servers,
        member.group_id,
        member.instance_id,
        member.session_timeout_ms,
        member.heartbeat_interval_ms,
        member.rebalance_timeout_ms,
        client_id=config.client_id or "everflow",
        client=client,
    )


def _new_incarnation() -> str:
    return uuid.uuid4().hex[:12]


class _NoCopies:
    """Copies, ends and racks of an instance that follows no changelog: every member is as near to a task as any other."""

    def __init__(self, ends: Mapping[TaskId, int]) -> None:
        self._ends = ends

    def offset_sums(self) -> Mapping[TaskId, int]:
        return {}

    def refresh(self) -> None:
        pass

    def latest(self) -> Mapping[TaskId, int]:
        return self._ends

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        return {}


def _quietly(action: Callable[[], object]) -> None:
    """For what may fail without harm: it is tried again, or recovery makes up for it."""
    try:
        action()
    except EverflowError as error:
        log.warning("%s", error)


__all__ = ["ENDED", "ClientState", "KafkaStreams"]
