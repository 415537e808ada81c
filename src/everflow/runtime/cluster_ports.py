"""Gives an instance Kafka, Spark and a state folder: the real `InstancePorts`."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from everflow.config import StreamsConfig
from everflow.errors import EverflowError, FatalError, RetriableError
from everflow.kafka.reading.copy_follower import CopyFollower
from everflow.kafka.reading.fetch_connection import TailWatch
from everflow.kafka.reading.record_columns import LogChunk
from everflow.kafka.writing.transaction import GroupMetadata, fence_all
from everflow.kafka.writing.writer_settings import QUEUE
from everflow.membership.member import GroupMember
from everflow.memory.spare import SpareMemory, trim_of_libc
from everflow.records import TaskId, TopicPartition
from everflow.runtime.client_state import ClientState
from everflow.runtime.commit.batch import WorkerClients
from everflow.runtime.commit.commit_gate import CommitGate, GateBackend
from everflow.runtime.copies.global_tables import GlobalTables, LoadedTables
from everflow.runtime.copies.known_copies import Copies, Freshness
from everflow.runtime.copies.state_keeper import StateCleaner, StateKeeper
from everflow.runtime.copies.state_updater import StateUpdater, UpdaterServices
from everflow.runtime.extension import Extension
from everflow.runtime.instance import Instance, InstanceSettings
from everflow.runtime.restore.listeners import SilentListener, StandbyUpdateListener
from everflow.runtime.restore.restoration import FoldedChunk, PreparedStore, prepare_store
from everflow.runtime.restore.restore_plan import ChangelogState
from everflow.runtime.start_up import extended, transactional_id
from everflow.runtime.step.step_functions import UndecodableRecord
from everflow.runtime.tasks.blueprint import Blueprint
from everflow.runtime.tasks.recovery import ATTEMPT_MS, ON_DISK, Recovery, RecoveryRules
from everflow.runtime.tasks.task import ActiveTask, TaskStore
from everflow.runtime.tasks.task_recovery import ClusterRecoveryPorts
from everflow.runtime.thread.failure_text import ending
from everflow.runtime.thread.thread_ports import OpenJob, ThreadSettings
from everflow.runtime.thread.worker_processes import is_worker, kill_and_wait
from everflow.runtime.topics.end_offsets import EndOffsets, EndSums, ShrunkLogs
from everflow.runtime.topics.topic_watch import TopicChanges, TopicWatch
from everflow.runtime.wiring import (
    Dependencies,
    global_records,
    group_settings,
    job_opener,
    lost_writers_of,
    new_incarnation,
    racks_of,
    require_slots,
    states_of_global_topics,
    task_assignor,
)
from everflow.runtime.worker.global_records import GlobalRecords
from everflow.state.left_out import PlacedChunk, as_processed
from everflow.state.lmdb_store import LmdbStore
from everflow.threads import Running, on_thread
from everflow.topology.sources.growth import TopicGrowth, growth, may_grow, resizable
from everflow.topology.sources.patterns import pattern_sources

log = logging.getLogger("everflow")

TICK_S = 0.1
FENCE_S = 5.0
CONSUMED_S = 1.0
"""How long a stream thread waits to learn how far the group is."""
WATCH_REQUEST_S = 5.0


class QueueLoop:
    """An `EventLoop` on a thread of its own, which also takes a turn every `TICK_S`."""

    def __init__(self, turn: Callable[[Callable[[], None]], None]) -> None:
        self._turn = turn
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: Running | None = None

    def post(self, event: Callable[[], None]) -> None:
        self._events.put(event)

    def start(self) -> None:
        self._running = on_thread("everflow-instance", self._run)

    def end(self) -> None:
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
            self._turn(event)


def _nothing() -> None:
    return None


class ClusterPorts:
    """See the module. What has to be closed whatever becomes of the instance goes to ``held``."""

    def __init__(
        self,
        dependencies: Dependencies,
        context: Any,
        standbys: Callable[[], StandbyUpdateListener],
        held: ExitStack,
        on_growth: Callable[[Blueprint], None] = lambda blueprint: None,
    ) -> None:
        self._dependencies, self._context = dependencies, context
        self._standbys, self._held = standbys, held
        self._on_growth = on_growth
        self._blueprint = dependencies.blueprint
        """Of the tasks that are created; that of `_dependencies` is newer while its threads are
        started."""
        self._end_sums = EndSums(
            dependencies.changelogs.followed_ends,
            dependencies.changelogs_of_tasks(),
            dependencies.clock,
            dependencies.admin.stop,
        )
        self._racks = racks_of(dependencies)
        self._racks.refresh()
        self._lost_writers = lost_writers_of(dependencies)
        self._purged: dict[TopicPartition, int] = {}
        self._spare = SpareMemory(trim_of_libc())
        self._gate: CommitGate
        self._gate_path: str
        self._keeper: StateKeeper
        self._watch: TopicWatch
        self._topics: TopicChanges
        self._member: GroupMember
        require_slots(context, dependencies.config.num_stream_threads)
        self.open_job: OpenJob = job_opener(context, dependencies)
        self.spawn = on_thread
        self.new_incarnation = new_incarnation
        self.loop = QueueLoop
        self.is_worker = is_worker

    # --- parts -----------------------------------------------------------------------------------

    def updater(self, instance: Instance) -> StateUpdater:
        """See `InstancePorts`, as for all of these."""
        dependencies, directory, clock = (
            self._dependencies,
            self._dependencies.directory,
            self._dependencies.clock,
        )
        specs = dependencies.blueprint.store_specs()

        def prepare(
            task: TaskId, store: str, state: ChangelogState, incarnation: str
        ) -> PreparedStore:
            sync, now_ms = dependencies.config.state_sync, clock.now_ms()
            return prepare_store(
                directory,
                task,
                specs[store],
                state,
                incarnation=incarnation,
                now_ms=now_ms,
                sync=sync,
            )

        reused = {spec.source_topic: spec for spec in specs.values()}

        def taken(_: TaskId, tp: TopicPartition, position: int, chunk: FoldedChunk) -> FoldedChunk:
            spec = reused.get(tp.topic)
            if spec is None:
                return chunk
            left_out = dependencies.changelogs.left_out(tp)
            return as_processed(cast("PlacedChunk", chunk), position, left_out, spec)

        services = UpdaterServices(
            open_follower=lambda: CopyFollower(
                dependencies.reader,
                every=dependencies.versioned,
                to_ends=dependencies.changelogs.reused,
            ),
            states=dependencies.changelogs.states,
            stable_ends=dependencies.changelogs.answered_ends,
            prepare=prepare,
            distrust=lambda task, store, reason: directory.distrust(
                directory.store_path(task, store), reason
            ),
            became_hot=lambda task: instance.member.became_hot(task),
            restores=instance.tracker,
            standbys=self._standbys,
            new_incarnation=new_incarnation,
            paused=lambda: instance.pause.paused,
            taken=taken,
            doubt_topics=self.doubt_topics,
        )
        config = dependencies.config
        return StateUpdater(services, clock, config.acceptable_recovery_lag, config.task_timeout_ms)

    def global_tables(self, instance: Instance) -> GlobalTables:
        """They are followed by an updater of their own: it neither waits for the copies of tasks
        nor holds them up."""
        dependencies, clock = self._dependencies, self._dependencies.clock
        tasks = dependencies.blueprint.global_tasks(dependencies.directory)
        loaded = LoadedTables(
            dependencies.blueprint.plan.loaded_tables,
            dependencies.directory.loaded_tables,
            lambda: [thread.batch_since_ms for thread in instance.threads],
            clock,
        )
        if not tasks:
            return GlobalTables((), None, instance.failed, clock, loaded)
        intake = global_records(dependencies, self._held, instance.metrics)
        specs = {
            table.store.name: table.store for table in dependencies.blueprint.plan.global_tables
        }

        def prepare(
            task: TaskId, store: str, state: ChangelogState, incarnation: str
        ) -> PreparedStore:
            found = prepare_store(
                dependencies.directory,
                task,
                specs[store],
                state,
                incarnation=incarnation,
                now_ms=clock.now_ms(),
                sync=dependencies.config.state_sync,
            )
            assert found.plan is not None
            tables.prepared(task, found.store.path, found.plan.end)
            return found

        services = UpdaterServices(
            open_follower=lambda: CopyFollower(dependencies.reader, folds=False),
            states=lambda asked: states_of_global_topics(dependencies, asked),
            stable_ends=dependencies.changelogs.answered_ends,
            prepare=prepare,
            distrust=lambda task, store, reason: dependencies.directory.distrust(
                dependencies.directory.store_path(task, store), reason
            ),
            became_hot=lambda task: None,
            restores=SilentListener(),
            new_incarnation=new_incarnation,
            taken=lambda _, tp, __, chunk: _taken(intake, tables, tp, chunk),
            doubt_topics=self.doubt_topics,
            name="everflow-global-tables",
        )
        updater = StateUpdater(services, clock, sys.maxsize, dependencies.config.task_timeout_ms)
        tables = GlobalTables(tasks, updater, instance.failed, clock, loaded)
        return tables

    def copies(self, instance: Instance) -> Copies:
        """What the state folder holds is looked at here."""
        sources = (
            instance.updater.followed,
            instance.running_ids,
            instance.recovering_ids,
            instance.tracker.positions,
        )
        copies = Copies(
            *sources,
            self._dependencies.changelogs.known_delete_retention_ms,
            self._dependencies.clock,
        )
        copies.scan(
            self._dependencies.directory,
            self._dependencies.logged,
            self._dependencies.changelog,
            self._dependencies.changelogs.states,
        )
        applied = copies.applied(self._dependencies.blueprint.partitions)
        instance.lower_bounds.raised(self._still_there(applied), ON_DISK)
        return copies

    def _still_there(self, applied: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those within their logs. One behind its log's end is of another topic of that name, whose
        offsets may begin anew (`errors.read_again`)."""
        try:
            ends = self._dependencies.admin.known_ends(applied, "read_uncommitted")
        except EverflowError as error:
            log.info("What stores know of committed offsets is not used: %s", error)
            return {}
        return {tp: at for tp, at in applied.items() if at <= ends.get(tp, -1)}

    def member(self, instance: Instance) -> GroupMember:
        """It will tell the group of the copies."""
        assignor = task_assignor(self._dependencies, instance.copies, self._end_sums, self._racks)
        settings = instance.hosts.group = group_settings(self._dependencies)
        return GroupMember(
            settings, assignor, instance.on_member_event, finishing=lambda: instance.book.finishing
        )

    def open_gate(self, instance: Instance) -> None:
        """Workers ask it before any commit."""
        application_id = self._dependencies.config.application_id
        backend = GateBackend(
            member=instance.member.metadata,
            encode=lambda m: GroupMetadata(
                m.generation, application_id, m.member_id, m.instance_id
            ).encode(),
            commit=instance.deferred.commit,
            clients=WorkerClients(self._dependencies.main_reader, self._producer_config()),
        )
        self._gate = CommitGate(book=instance.book, backend=backend)
        self._gate_path = self._gate.start()
        self._held.callback(self._gate.close)

    def ends(self, instance: Instance) -> EndOffsets:
        """What knows the inputs' ends."""
        admin, config, clock = (
            self._dependencies.admin,
            self._dependencies.config,
            self._dependencies.clock,
        )
        stable = lambda asked: admin.known_ends(asked, self._dependencies.isolation)  # noqa: E731
        written = lambda asked: admin.end_offsets(asked, "read_uncommitted")  # noqa: E731
        shrunk = ShrunkLogs(
            config.application_id, instance.running_positions, written, clock, self._ids_of
        )
        tails = TailWatch.opens(config.main_consumer(), read_committed=config.exactly_once)
        return EndOffsets(stable, clock, config.poll_interval_ms, shrunk, instance.stop, tails)

    def _ids_of(self, topic: str) -> tuple[str, str]:
        described = self._dependencies.admin.describe_topics([topic], WATCH_REQUEST_S).get(topic)
        return self._topics.ids.get(topic, ""), "" if described is None else described.topic_id

    def pool(self, name: str, size: int) -> ThreadPoolExecutor:
        """Its threads start with their first work."""
        return ThreadPoolExecutor(size, thread_name_prefix=f"everflow-{name}")

    def thread_settings(self, number: int) -> ThreadSettings:
        """Also notes the thread's transactional id, so that the next start on this folder fences
        it."""
        config, directory = self._dependencies.config, self._dependencies.directory
        name = transactional_id(config, directory.process_id, number)
        if config.exactly_once and name not in directory.transactional_ids:
            directory.record_transactional_ids([name])  # of a thread that is added later
        clocks = self._dependencies.blueprint.plan.wall_clocks
        return ThreadSettings(
            application_id=config.application_id,
            guarantee=config.processing_guarantee,
            transactional_id=name,
            gate_path=self._gate_path,
            limits=config.batches(),
            task_timeout_ms=config.task_timeout_ms,
            keep_alive_ms=min([config.keep_alive_ms, *clocks.values()]),
            clocked=frozenset(clocks),
            max_task_idle_ms=config.max_task_idle_ms,
            idle=self._dependencies.blueprint.plan.idle,
            functions=self._dependencies.blueprint.plan.functions,
            may_continue=config.handlers().may_continue,
            transaction_timeout_ms=self._producer_config().get("transaction.timeout.ms"),
        )

    def _producer_config(self) -> dict[str, Any]:
        """Of the workers' producers, whose queues are part of the instance's memory."""
        config = self._dependencies.config
        queue = config.memory.worker(config.num_stream_threads).queue
        return {QUEUE: queue >> 10, **config.producer()}

    def recovery(self, instance: Instance, stop: threading.Event, *, pauses: bool) -> Recovery:
        dependencies, config = self._dependencies, self._dependencies.config
        ports = ClusterRecoveryPorts(
            admin=dependencies.admin,
            group=config.application_id,
            producer_config=config.producer(),
            reader_config=dependencies.reader,
            fetch_bytes=config.memory.restore_fetch,
            directory=dependencies.directory,
            purged=dependencies.blueprint.purged,
            specs=lambda subtopology: dependencies.blueprint.stores.get(subtopology, ()),
            changelogs=dependencies.changelogs,
            state_sync=config.state_sync,
            clock=dependencies.clock,
            listener=instance.tracker,
            stopped=(lambda: instance.pause.hold(stop)) if pauses else stop.is_set,
        )
        rules = RecoveryRules(config.application_id, dependencies.blueprint.offset_reset)
        return Recovery(
            ports=ports,
            rules=rules,
            lower_bounds=instance.lower_bounds,
            clock=dependencies.clock,
            timeout_ms=min(config.task_timeout_ms, ATTEMPT_MS),
            stop=stop,
            new_incarnation=new_incarnation,
        )

    def wired(self, instance: Instance) -> None:
        """What looks after the folder and the topics."""
        dependencies, member, book = self._dependencies, instance.member, instance.book

        def generation() -> int | None:
            running = instance.states.state is ClientState.RUNNING
            return member.metadata().generation if running and member.stable else None

        freshness = Freshness(instance.settled_tasks, book.broken, lambda: member.heartbeats)
        own = frozenset(instance.global_tables.tasks)
        in_use = lambda: instance.manager.in_use() | book.owned() | own  # noqa: E731
        delay_ms = dependencies.config.state_cleanup_delay_ms
        cleaner = StateCleaner(
            dependencies.directory,
            instance.copies,
            in_use,
            generation,
            dependencies.clock,
            delay_ms,
        )
        self._keeper = StateKeeper(
            freshness, cleaner, dependencies.directory.sweep, dependencies.clock
        )
        blueprint = dependencies.blueprint
        changelogs = {
            tp.topic for listed in dependencies.changelogs_of_tasks().values() for tp in listed
        }
        tables = blueprint.global_partitions
        names, external = (
            changelogs.union(blueprint.partitions, tables),
            set(blueprint.partitions) - blueprint.repartition,
        )
        partitions = {**blueprint.partitions, **tables}
        self._topics = TopicChanges(
            blueprint.application_id, partitions, external, names, frozenset(tables), self._may_grow
        )
        describe = lambda: dependencies.admin.describe_topics(self._topics.topics, WATCH_REQUEST_S)  # noqa: E731
        look = Extension(instance=instance, ports=self).look
        self._member = instance.member
        self._watch = TopicWatch(describe, self._topics, instance.failed, dependencies.clock, look)

    # --- topics that come while it runs (`Extension`) ---------------------------------------------

    def _may_grow(self, counts: Mapping[str, int], topic: str, partitions: int) -> bool:
        blueprint = self._dependencies.blueprint
        inputs = {name: count for name, count in counts.items() if name in blueprint.partitions}
        if topic not in inputs:
            return False
        return may_grow(blueprint.topology, inputs, topic, partitions, blueprint.application_id)

    def growth(self) -> TopicGrowth:
        """Topics that a pattern of the program names and that came since it was planned, and those
        that have got partitions which may be read."""
        blueprint, admin = self._dependencies.blueprint, self._dependencies.admin
        read = {**blueprint.partitions, **blueprint.global_partitions}
        if pattern_sources(blueprint.topology):
            shapes = admin.list_topics(WATCH_REQUEST_S)
            existing = {name: shape.partitions for name, shape in shapes.items()}
        else:
            described = admin.describe_topics(resizable(blueprint.topology), WATCH_REQUEST_S)
            existing = {name: one.partitions for name, one in described.items()}
        return growth(blueprint.topology, read, existing, blueprint.application_id)

    def prepare(self, growth: TopicGrowth) -> Callable[[], None]:
        """See `ExtensionPorts`, as for all of these."""
        before = self._dependencies, self.open_job
        config, blueprint = before[0].config, before[0].blueprint
        dependencies = replace(before[0], blueprint=extended(blueprint, growth, config))
        self.open_job = job_opener(self._context, dependencies)
        self._dependencies = dependencies

        def undo() -> None:
            self._dependencies, self.open_job = before

        return undo

    def inputs(self, task: TaskId) -> tuple[TopicPartition, ...]:
        return self._dependencies.blueprint.task(task, self._dependencies.directory).inputs

    def exchange(self) -> None:
        self._blueprint = self._dependencies.blueprint

    def grown(self, growth: TopicGrowth) -> None:
        self._topics.grow(growth.taken)
        self._member.read_more(self._blueprint.inputs, growth.taken)
        self._on_growth(self._blueprint)

    def create(self, task: TaskId) -> ActiveTask:
        """A task in state CREATED."""
        return self._blueprint.task(task, self._dependencies.directory)

    def slots(self) -> int:
        """How many tasks Spark runs at a time."""
        from everflow.spark.session import slots_of

        return slots_of(self._context)

    # --- effects ---------------------------------------------------------------------------------

    def kill_workers(self, number: int, pids: Sequence[int]) -> None:
        """SIGKILL."""
        kill_and_wait(pids, self._dependencies.clock)

    def consumed(self, topics: Collection[str]) -> bool:
        """Whether the group has consumed all that is in the topics; False where nobody knows."""
        dependencies = self._dependencies
        partitions = dependencies.blueprint.partitions
        asked = [TopicPartition(topic, p) for topic in topics for p in range(partitions[topic])]
        try:
            ends = dependencies.admin.end_offsets(asked, dependencies.isolation)
            done = dependencies.admin.committed(
                dependencies.config.application_id, asked, CONSUMED_S
            )
        except EverflowError:
            return False
        return all(end == 0 or (tp in done and done[tp].offset >= end) for tp, end in ends.items())

    def fence(self, own: bool) -> int:
        """By a producer with the same transactional id."""
        if not own:
            return len(self._lost_writers.fence_all())
        fence_all(
            self._dependencies.config.producer(),
            self._dependencies.directory.transactional_ids,
            FENCE_S,
        )
        return 0

    def look(self) -> None:
        """At the folder's lock, the gate's socket, what the keeper has to do, and spare memory."""
        self._dependencies.directory.require_held()
        self._gate.require_reachable()
        self._keeper.look()
        self._spare.look()

    def purge(self, positions: Mapping[TopicPartition, int]) -> None:
        """Delete what was read from repartition topics; and read the racks again."""
        self._racks.refresh()
        repartition = self._dependencies.blueprint.repartition
        ours = {tp: offset for tp, offset in positions.items() if tp.topic in repartition}
        due = {tp: offset for tp, offset in ours.items() if offset > self._purged.get(tp, 0)}
        if due:
            self._dependencies.admin.delete_records(due)
            self._purged.update(due)

    def begin(self) -> None:
        """Note what the topics are."""
        self._watch.start()

    def topic_ids(self) -> Mapping[str, str]:
        """As the watch saw them first."""
        return self._topics.ids

    def doubt_topics(self, topics: Collection[str]) -> None:
        """The watch asks the brokers soon."""
        self._watch.doubt(topics)

    def end_polls(self) -> None:
        """Of what is no part of the instance."""
        self._watch.close()
        self._end_sums.close()

    def close_stores(self, stores: Iterable[TaskStore]) -> None:
        """Close what this process has open of them."""
        for store in stores:
            LmdbStore.close_at(store.path)

    def checkpoint(self, running: Sequence[ActiveTask]) -> None:
        """Note in the stores how fresh they are; `StateDirectory.close` flushes them."""
        self._keeper.close()
        for task in running:
            self.close_stores(task.stores)


def instance_settings(config: StreamsConfig) -> InstanceSettings:
    """What an instance goes by."""
    return InstanceSettings(
        threads=config.num_stream_threads,
        exactly_once=config.exactly_once,
        task_timeout_ms=config.task_timeout_ms,
        max_poll_interval_ms=config.max_poll_interval_ms,
        drain_timeout_ms=config.drain_timeout_ms,
        purge_interval_ms=config.repartition_purge_interval_ms,
        memory=config.memory,
    )


def _taken(
    intake: GlobalRecords, tables: GlobalTables, tp: TopicPartition, chunk: FoldedChunk
) -> FoldedChunk:
    """What of a chunk enters a global table; ``tables`` are told why where that is not known."""
    try:
        return intake.taken(tp, cast(LogChunk, chunk))
    except UndecodableRecord as error:
        tables.refused(ending(error.failure, 1, ""))
        raise
    except FatalError as error:  # of its handler, or of the topic of dead letters
        tables.refused(error)
        raise
    except RetriableError as error:  # else its records would be passed over
        tables.waits(error)
        raise EverflowError(str(error)) from error
