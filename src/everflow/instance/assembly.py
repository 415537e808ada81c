"""Assembles an instance on Kafka, Spark and a state folder: the real `InstancePorts`."""

from __future__ import annotations

import logging
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

from everflow import metrics as names
from everflow.clock import Clock, Deadline, on_thread
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, FatalError, RetriableError, SetupError
from everflow.instance.client_state import ClientState
from everflow.instance.commit_gate import CommitGate, GateBackend
from everflow.instance.copies.global_tables import GlobalTables, LoadedTables, count_left_out
from everflow.instance.copies.known_copies import Copies, Freshness, StateCleaner, StateMaintenance
from everflow.instance.copies.state_updater import StateUpdater, UpdaterServices
from everflow.instance.instance import EventLoop, Extension, Instance, InstanceSettings
from everflow.instance.restore.changelogs import Changelogs
from everflow.instance.restore.listeners import RestoreListener, StandbyUpdateListener
from everflow.instance.restore.restoration import (
    PreparedStore,
    RestoreJob,
    prepare_store,
    restore_all,
)
from everflow.instance.restore.restore_plan import ChangelogState
from everflow.instance.start_up import FENCE_TIMEOUT_S, extended, transactional_id
from everflow.instance.tasks.blueprint import Blueprint
from everflow.instance.tasks.recovery import ATTEMPT_MS, ON_DISK, Recovery, fence_lost_writers
from everflow.instance.tasks.task import ActiveTask, TaskStore
from everflow.instance.thread.failure_text import ending
from everflow.instance.thread.group_times import GroupTimes
from everflow.instance.thread.progress import EventTimes, TimedProgram
from everflow.instance.thread.stream_thread import OpenJob, ThreadSettings
from everflow.instance.thread.worker_processes import is_worker, kill_and_wait
from everflow.instance.topics.connector_watch import ConnectorWatch, TaskNow
from everflow.instance.topics.end_offsets import EndOffsets, EndSums, PartitionRacks, ShrunkLogs
from everflow.instance.topics.internal_topics import TopicChanges, TopicWatch
from everflow.instance.topics.switch_watch import SwitchWatch
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.connection_settings import security_keywords
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.reading.copy_follower import CopyFollower
from everflow.kafka.reading.fetch_connection import TailWatch
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.record_columns import LogChunk
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import GroupMetadata, fence_all
from everflow.kafka.writing.writer_settings import QUEUE
from everflow.logs import ABOUT_ASSIGNMENT, JsonLines, LogFile, log_path, rebalance_log, some
from everflow.membership.assignor import Identity, MemberAssignor
from everflow.membership.member import GroupMember
from everflow.membership.own_assignor import decision, patience_s
from everflow.memory import SpareMemory, trim_of_libc
from everflow.protocol.messages import FILLED, WorkerClients, mark_in, parse_metadata
from everflow.rebalances import RebalanceBook
from everflow.records import CommittedOffset, Offsets, TaskId, TopicPartition
from everflow.retry import StoppedError, retrying
from everflow.state.left_out import Chunk, PlacedChunk, as_processed
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory
from everflow.topology.connectors import Record, Row, connector_topic, connectors, facts_of
from everflow.topology.event_time import LOWEST, writers
from everflow.topology.idle_sources import program_times
from everflow.topology.patterns import TopicGrowth, growth, pattern_sources, why_not_grown
from everflow.topology.store_layouts import TIMES, serde_words
from everflow.topology.subtopologies import cut
from everflow.worker.crash_points import SWITCH_SEEN, reached
from everflow.worker.failures import UndecodableRecord
from everflow.worker.letters import GlobalRecords

log = logging.getLogger("everflow")

FENCE_S = 5.0
CONSUMED_S = 1.0
"""Time-out of a stream thread's question for committed offsets."""
WATCH_REQUEST_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    config: StreamsConfig
    clock: Clock
    admin: ClusterAdmin
    blueprint: Blueprint
    directory: StateDirectory
    changelogs: Changelogs

    @property
    def reader(self) -> dict[str, Any]:
        """librdkafka settings for reading changelogs, from the nearest replicas (KIP-392)."""
        return {**self._rack, **self.config.consumer()}

    @property
    def main_reader(self) -> dict[str, Any]:
        return {**self._rack, **self.config.main_consumer()}

    @property
    def _rack(self) -> dict[str, str]:
        return {"client.rack": self.config.client_rack} if self.config.client_rack else {}

    @property
    def isolation(self) -> Isolation:
        return "read_committed" if self.config.exactly_once else "read_uncommitted"

    @property
    def versioned(self) -> frozenset[str]:
        """The changelogs of versioned stores, of which no record may be left out."""
        specs = self.blueprint.store_specs().values()
        application_id = self.config.application_id
        return frozenset(spec.changelog_topic(application_id) for spec in specs if spec.versioned)

    def changelogs_of_tasks(self) -> dict[TaskId, tuple[TopicPartition, ...]]:
        found = {}
        blueprint = self.blueprint
        for subtopology in blueprint.inputs:
            logged = blueprint.logged(subtopology)
            count = blueprint.number_of_tasks(subtopology) if logged else 0
            for task in (TaskId(subtopology, partition) for partition in range(count)):
                found[task] = tuple(blueprint.changelog(task, spec) for spec in logged)
        return found

    def prepare(
        self, task: TaskId, spec: StoreSpec, state: ChangelogState | None, incarnation: str
    ) -> PreparedStore:
        now_ms, sync = self.clock.now_ms(), self.config.state_sync
        return prepare_store(
            self.directory, task, spec, state, incarnation=incarnation, now_ms=now_ms, sync=sync
        )

    @property
    def changelog_topics(self) -> frozenset[str]:
        return frozenset(tp.topic for tps in self.changelogs_of_tasks().values() for tp in tps)


def instance_log(config: StreamsConfig) -> LogFile | None:
    """The open log file in a locked folder; None, with a warning, if it cannot be written."""
    path = log_path(config.state_dir, config.application_id)
    try:
        return LogFile(path)
    except OSError as error:
        log.warning("No log file: %s cannot be written (%s)", path, error.strerror)
        return None


def keep_rebalances(config: StreamsConfig, book: RebalanceBook, opened: ExitStack) -> None:
    """Write each record to a file beside the log, until ``opened`` closes."""
    path = log_path(config.state_dir, config.application_id).with_name("rebalances.jsonl")
    try:
        file = JsonLines(path)
    except OSError as error:
        log.warning("Rebalances are not kept: %s cannot be written (%s)", path, error.strerror)
        return
    book.write = lambda record: file.add(asdict(record))
    opened.callback(file.close)
    opened.callback(book.close)


def client_id(config: StreamsConfig, process_id: str) -> str:
    return f"{config.client_id or config.application_id}-{process_id}"


def new_incarnation() -> str:
    return uuid.uuid4().hex[:12]


def states_of_global_topics(
    dependencies: Dependencies, asked: Collection[TopicPartition]
) -> dict[TopicPartition, ChangelogState]:
    """As `Changelogs.states`, up to the stable ends. With other serdes a topic is read anew."""
    sources = {
        table.source.topic: table.source for table in dependencies.blueprint.plan.global_tables
    }
    ends = dependencies.changelogs.stable_ends(asked)
    found = {}
    for tp, state in dependencies.changelogs.states(asked, ends).items():
        source = sources[tp.topic]
        read_as = f"{serde_words(source.key_serde, key=True)}, {serde_words(source.value_serde)}"
        topic_id = None if state.topic_id is None else f"{state.topic_id} ({read_as})"
        found[tp] = replace(state, topic_id=topic_id)
    return found


def job_opener(context: Any, dependencies: Dependencies) -> OpenJob:
    """Opens stream threads' Spark jobs. TopologyError for what cannot be computed or packed."""
    from everflow.instance.thread.columns import prepared_columns
    from everflow.instance.thread.thread_job import ThreadJob, pack
    from everflow.spark.job import ServingJob
    from everflow.worker.serve import PackedResident

    config, blueprint = dependencies.config, dependencies.blueprint
    memory = config.memory.worker(config.num_stream_threads)
    # Once for all threads: the workers get the program's variables as they are now.
    work = pack(
        blueprint.plan,
        prepared_columns(blueprint.plan),
        handlers=config.handlers(),
        layouts=blueprint.layouts,
        partitions=blueprint.partitions,
        read_committed=config.exactly_once,
        ahead_bytes=memory.ahead,
        retained_bytes=memory.pages,
    )
    client = client_id(config, dependencies.directory.process_id)
    within = some([str(index) for index in sorted(blueprint.inputs)], 12)

    def opened(number: int) -> ThreadJob:
        name = f"everflow {client}, stream thread {number}: sub-topologies {within}"
        return ThreadJob(
            lambda at: ServingJob(
                context,
                number,
                name,
                PackedResident(work, at),
            )
        )

    return opened


def require_slots(context: Any, threads: int) -> None:
    """SetupError unless Spark has a slot for each stream thread, and one for other jobs."""
    from everflow.spark.session import slots_of

    slots = slots_of(context)
    if slots <= threads:
        raise SetupError(
            f"Spark has {slots} task slots, but num.stream.threads = {threads}: each stream thread "
            f"keeps one slot for as long as it runs, and one more has to stay free. Start Spark "
            f"with .master('local[{threads + 1}]') or more, leave it to everflow to start Spark, "
            f"or set fewer num.stream.threads."
        )


COMMITTED_TIMEOUT_S = 5.0
"""Of waiting for an open transaction."""
KNOWN_STARTS_S = 1.0


@dataclass(kw_only=True)
class ClusterRecoveryPorts:
    """See `RecoveryPorts`; for several threads. ``stopped``: asked between a replay's chunks."""

    dependencies: Dependencies
    listener: RestoreListener
    stopped: Callable[[], bool]

    def purged(self) -> Sequence[TopicPartition]:
        return self.dependencies.blueprint.purged()

    def fence(self, transactional_ids: Collection[str]) -> None:
        fence_all(self.dependencies.config.producer(), transactional_ids, FENCE_TIMEOUT_S)

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return self.dependencies.admin.committed(
            self.dependencies.config.application_id, partitions, COMMITTED_TIMEOUT_S, stable=stable
        )

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Offsets:
        return self.dependencies.changelogs.log_ends(partitions)

    def stable_ends(self, partitions: Sequence[TopicPartition]) -> Offsets:
        return self.dependencies.changelogs.stable_ends(partitions)

    def log_starts(
        self,
        partitions: Sequence[TopicPartition],
        *,
        known: bool = False,
    ) -> Offsets:
        if known:
            return self.dependencies.admin.list_offsets(
                partitions, "earliest", "read_uncommitted", KNOWN_STARTS_S, whole=False
            )
        return self.dependencies.admin.list_offsets(partitions, "earliest", "read_uncommitted")

    def offsets_since(self, partitions: Sequence[TopicPartition], time_ms: int) -> Offsets:
        return self.dependencies.admin.list_offsets(partitions, time_ms, "read_uncommitted")

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Offsets
    ) -> tuple[TaskStore, ...]:
        dependencies = self.dependencies
        specs = {
            spec.name: spec for spec in dependencies.blueprint.stores.get(task.id.subtopology, ())
        }
        changelogs = [store.changelog for store in task.stores if store.changelog is not None]
        states = dependencies.changelogs.states(changelogs, targets)
        stores: list[TaskStore] = []
        jobs: list[RestoreJob] = []
        for store in task.stores:
            state = None if store.changelog is None else states[store.changelog]
            spec = specs[store.name]
            prepared = dependencies.prepare(task.id, spec, state, incarnation)
            stores.append(TaskStore(store.name, prepared.store.path, store.changelog))
            if prepared.plan is not None and store.changelog is not None:
                jobs.append(
                    RestoreJob(
                        task=task.id,
                        store_name=store.name,
                        store=prepared.store,
                        changelog=store.changelog,
                        plan=prepared.plan,
                        incarnation=incarnation,
                        reused=None if spec.source_topic is None else spec,
                        left_out=dependencies.changelogs.left_out.before(
                            store.changelog, prepared.plan.end
                        ),
                    )
                )
        self._replay(jobs)
        return tuple(stores)

    def _replay(self, jobs: Sequence[RestoreJob]) -> None:
        fetch_bytes = self.dependencies.config.memory.restore_fetch
        with LogReader(
            self.dependencies.reader,
            latest=True,
            fetch_bytes=fetch_bytes,
        ) as reader:
            done = restore_all(
                jobs,
                reader,
                clock=self.dependencies.clock,
                listener=self.listener,
                stopped=self.stopped,
            )
        if any(not progress.done for progress in done) or len(done) < len(jobs):
            raise StoppedError("stopped while restoring")


class ClusterPorts:
    """`InstancePorts` and `ExtensionPorts` of a cluster. ``opened`` closes at the end."""

    def __init__(
        self,
        dependencies: Dependencies,
        context: Any,
        standbys: Callable[[], StandbyUpdateListener | None],
        opened: ExitStack,
        on_growth: Callable[[Blueprint], None],
    ) -> None:
        self._dependencies, self._context = dependencies, context
        self._standbys, self._opened = standbys, opened
        self._on_growth = on_growth
        self._config, self._clock = dependencies.config, dependencies.clock
        self._admin, self._changelogs = dependencies.admin, dependencies.changelogs
        self._directory = dependencies.directory
        self._blueprint = dependencies.blueprint
        """Of created tasks; older than `_dependencies`' while threads for new topics start."""
        changelogs = dependencies.changelogs_of_tasks()
        self._end_sums = EndSums(
            self._changelogs.followed_ends, changelogs, self._clock, self._admin.stop
        )
        topics = dependencies.changelog_topics | set(dependencies.blueprint.partitions)
        uses_racks = self._config.rack_aware_assignment_strategy != "none"
        self._racks = PartitionRacks(
            self._admin.replica_racks, topics if uses_racks else (), self._clock
        )
        self._racks.refresh()
        self._purged: dict[TopicPartition, int] = {}
        self._spare = SpareMemory(trim_of_libc())
        self._letter_writers: list[RecordWriter] = []
        self._gate: CommitGate
        self._gate_path: str
        self._maintenance: StateMaintenance
        self._watch: TopicWatch
        self._switch: SwitchWatch | None = None
        self._connectors: ConnectorWatch | None = None
        self._marked: list[TopicPartition] = []
        self._times: EventTimes | None = None
        self._topics: TopicChanges
        self._member: GroupMember
        require_slots(context, self._config.num_stream_threads)
        self.open_job: OpenJob = job_opener(context, dependencies)
        self.spawn = on_thread
        self.new_incarnation = new_incarnation
        self.loop = EventLoop
        self.is_worker = is_worker

    # --- parts -----------------------------------------------------------------------------------

    def updater(self, instance: Instance) -> StateUpdater:
        dependencies = self._dependencies
        specs = dependencies.blueprint.store_specs()
        reused = {spec.source_topic: spec for spec in specs.values()}

        def taken(_: TaskId, tp: TopicPartition, position: int, chunk: Chunk) -> Chunk:
            spec = reused.get(tp.topic)
            if spec is None:
                return chunk
            left_out = self._changelogs.left_out.before(tp, None)
            return as_processed(cast("PlacedChunk", chunk), position, left_out, spec)

        services = UpdaterServices(
            open_follower=lambda: CopyFollower(
                dependencies.reader,
                every=dependencies.versioned,
                to_ends=frozenset(dependencies.blueprint.left_out),
            ),
            states=self._changelogs.states,
            stable_ends=self._changelogs.answered_ends,
            prepare=lambda task, store, *judged: dependencies.prepare(task, specs[store], *judged),
            distrust=self._distrust,
            became_hot=lambda task: instance.member.became_hot(task),
            lost=lambda: instance.member.lost_copies(),
            restores=instance.tracker,
            standbys=self._standbys,
            new_incarnation=new_incarnation,
            paused=lambda: instance.pause.paused,
            taken=taken,
            doubt_topics=self.doubt_topics,
        )
        lag, timeout_ms = self._config.acceptable_recovery_lag, self._config.task_timeout_ms
        return StateUpdater(services, self._clock, lag, timeout_ms)

    def _distrust(self, task: TaskId, store: str, reason: str) -> None:
        self._directory.distrust(self._directory.store_path(task, store), reason)

    def global_tables(self, instance: Instance) -> GlobalTables:
        """They have an updater of their own, so that neither they nor the replicas wait."""
        plan, clock = self._dependencies.blueprint.plan, self._clock
        tasks = self._dependencies.blueprint.global_tasks(self._directory)
        loaded = LoadedTables(
            plan.loaded_tables,
            self._directory.loaded_tables,
            lambda: [thread.batch_since_ms for thread in instance.threads],
            clock,
        )
        if not tasks:
            return GlobalTables((), None, instance.uncaught_elsewhere, clock, loaded)
        sources = {table.source.topic: table.source for table in plan.global_tables}
        count, handlers = partial(count_left_out, instance.metrics), self._config.handlers()
        intake = GlobalRecords(sources, handlers, self._letter_writer, count)
        specs = {table.store.name: table.store for table in plan.global_tables}

        def prepare(
            task: TaskId, store: str, state: ChangelogState, incarnation: str
        ) -> PreparedStore:
            found = self._dependencies.prepare(task, specs[store], state, incarnation)
            assert found.plan is not None
            tables.prepared(task, found.store.path, found.plan.end)
            return found

        services = UpdaterServices(
            open_follower=lambda: CopyFollower(self._dependencies.reader, folds=False),
            states=partial(states_of_global_topics, self._dependencies),
            stable_ends=self._changelogs.answered_ends,
            prepare=prepare,
            distrust=self._distrust,
            restores=instance.tracker,
            new_incarnation=new_incarnation,
            taken=lambda _, tp, __, chunk: _taken(intake, tables, tp, chunk),
            doubt_topics=self.doubt_topics,
            name="everflow-global-tables",
        )
        updater = StateUpdater(services, clock, sys.maxsize, self._config.task_timeout_ms)
        tables = GlobalTables(tasks, updater, instance.uncaught_elsewhere, clock, loaded)
        return tables

    def _letter_writer(self) -> RecordWriter:
        found = RecordWriter.get(self._config.producer(), None)
        if found not in self._letter_writers:
            self._letter_writers.append(found)
            self._opened.callback(found.close)
        return found

    def copies(self, instance: Instance) -> Copies:
        copies = Copies(
            instance.updater.followed,
            lambda: [task.id for task in instance.running_tasks()],
            lambda: list(instance.manager.recovering),
            instance.tracker.positions,
            self._changelogs.known_delete_retention_ms,
            self._clock,
        )
        blueprint = self._dependencies.blueprint
        copies.scan(
            self._directory,
            blueprint.logged,
            blueprint.changelog,
            self._changelogs.states,
        )
        applied = copies.applied(blueprint.partitions)
        instance.lower_bounds.raised(self._still_there(applied), ON_DISK)
        return copies

    def _still_there(self, applied: Offsets) -> dict[TopicPartition, int]:
        try:
            ends = self._admin.list_offsets(
                applied,
                "latest",
                "read_uncommitted",
                whole=False,
            )
        except EverflowError as error:
            log.info("The committed offsets noted in the stores are not used: %s", error)
            return {}
        return {tp: at for tp, at in applied.items() if at <= ends.get(tp, -1)}

    def member(self, instance: Instance) -> GroupMember:
        config, blueprint = self._config, self._dependencies.blueprint
        identity = Identity(
            process_id=self._directory.process_id,
            threads=config.num_stream_threads,
            rack=config.client_rack,
            tags=config.tags(),
            endpoint=config.application_server,
            instance_id=config.group_instance_id,
            topology=blueprint.fingerprint,
        )
        changelogs = {
            index: [spec.changelog_topic(config.application_id) for spec in blueprint.logged(index)]
            for index in blueprint.inputs
        }
        patience = patience_s(config.session_timeout_ms, config.rebalance_timeout_ms)
        decide = decision(config.task_assignor_class, patience)
        assignor = MemberAssignor(
            identity,
            blueprint.inputs,
            changelogs,
            instance.copies.offset_sums,
            self._end_sums,
            self._racks.racks,
            config.assignment(),
            decide,
            max_delay_ms=config.scheduled_rebalance_max_delay_ms,
            clock=self._clock,
            tasks=blueprint.tasks,
        )
        if blueprint.filled_from is not None:
            rebalance_log.info(
                "The state of %s is being copied here: this instance follows it, and gets tasks "
                "once everflow migrate has switched",
                blueprint.filled_from,
                extra=ABOUT_ASSIGNMENT,
            )
            assignor.held = blueprint.every_task()
            self._switch = SwitchWatch(
                self._is_filled, partial(self._switched, instance, assignor), self._clock
            )
        settings = instance.hosts.group = GroupSettings(
            bootstrap_servers=config.bootstrap_servers,
            group_id=config.application_id,
            instance_id=config.group_instance_id,
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            client_id=client_id(config, self._directory.process_id),
            client=security_keywords(config.main_consumer()),
        )
        return GroupMember(
            settings, assignor, instance.on_member_event, finishing=lambda: instance.book.finishing
        )

    def _is_filled(self) -> bool:
        """The mark comes and goes in one transaction: one partition that had it is enough."""
        partitions = self._dependencies.blueprint.partitions
        inputs = [TopicPartition(name, p) for name, n in partitions.items() for p in range(n)]
        group, asked = self._config.application_id, self._marked or inputs
        committed = self._admin.committed(group, asked, WATCH_REQUEST_S, stable=False)
        marks = {tp: mark_in(one.metadata) for tp, one in committed.items()}
        self._marked = [tp for tp, mark in marks.items() if mark and mark.kind == FILLED][:1]
        return bool(self._marked)

    def _switched(self, instance: Instance, assignor: MemberAssignor) -> None:
        reached(SWITCH_SEEN)
        assignor.held = frozenset()
        instance.member.request_rejoin("the migration has switched")

    def open_gate(self, instance: Instance) -> None:
        application_id = self._config.application_id
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
        self._opened.callback(self._gate.close)

    def ends(self, instance: Instance) -> EndOffsets:
        admin, config = self._admin, self._config
        shrunk = ShrunkLogs(
            config.application_id,
            instance.running_positions,
            lambda asked: admin.end_offsets(asked, "read_uncommitted"),
            self._clock,
            self._ids_of,
        )
        return EndOffsets(
            lambda asked: admin.list_offsets(
                asked, "latest", self._dependencies.isolation, whole=False
            ),
            self._clock,
            config.poll_interval_ms,
            shrunk,
            instance.stop,
            TailWatch.opens(config.main_consumer(), read_committed=config.exactly_once),
        )

    def group_times(self) -> GroupTimes | None:
        config, admin = self._config, self._admin
        if config.stream_time != LOWEST:
            return None
        times = EventTimes(
            timed_program(self._dependencies.blueprint),
            lead_ms=config.max_event_time_lead,
            idle_ms=config.stream_time_idle_ms,
            now_ms=self._clock.now_ms,
        )
        self._times = times
        blueprint = self._dependencies.blueprint
        program = program_times(
            blueprint.topology, cut(blueprint.topology).index_of, blueprint.layouts
        )

        def named(metadata: str) -> dict[str, int]:
            kept = parse_metadata(metadata)
            return program.now(kept.stream_times, kept.layouts.get(TIMES))

        return GroupTimes(
            times,
            lambda asked: admin.committed(
                config.application_id, sorted(asked), WATCH_REQUEST_S, stable=False
            ),
            lambda asked: admin.list_offsets(
                sorted(asked), "latest", "read_uncommitted", whole=False
            ),
            self._clock,
            self.spawn,
            named,
        )

    def _ids_of(self, topic: str) -> tuple[str, str]:
        described = self._admin.describe_topics([topic], WATCH_REQUEST_S).get(topic)
        return self._topics.ids.get(topic, ""), "" if described is None else described.topic_id

    def pool(self, name: str, size: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(size, thread_name_prefix=f"everflow-{name}")

    def thread_settings(self, number: int) -> ThreadSettings:
        """Also records the thread's transactional id: the next start on this folder fences it."""
        config, directory, plan = self._config, self._directory, self._dependencies.blueprint.plan
        name = transactional_id(config, directory.process_id, number)
        if config.exactly_once and name not in directory.transactional_ids:
            directory.record_transactional_ids([name])  # of a thread that is added later
        clocks = plan.wall_clocks
        return ThreadSettings(
            application_id=config.application_id,
            guarantee=config.processing_guarantee,
            transactional_id=name,
            gate_path=self._gate_path,
            limits=config.batches(),
            task_timeout_ms=config.task_timeout_ms,
            keep_alive_ms=min([config.keep_alive_ms, *clocks.values()]),
            clocked=frozenset(clocks) | plan.asking,
            asking=plan.asking,
            every_ms=plan.every_ms,
            max_task_idle_ms=config.max_task_idle_ms,
            max_event_time_ahead_ms=config.max_event_time_ahead,
            idle=plan.idle,
            functions=plan.functions,
            may_continue=config.handlers().may_continue,
            transaction_timeout_ms=self._producer_config().get("transaction.timeout.ms"),
        )

    def _producer_config(self) -> dict[str, Any]:
        """Settings of the workers' producers; their queues count as the instance's memory."""
        queue = self._config.memory.worker(self._config.num_stream_threads).queue
        return {QUEUE: queue >> 10, **self._config.producer()}

    def recovery(
        self,
        instance: Instance,
        stop: threading.Event,
        *,
        pauses: bool,
    ) -> Recovery:
        config, blueprint = self._config, self._dependencies.blueprint
        ports = ClusterRecoveryPorts(
            dependencies=self._dependencies,
            listener=instance.tracker,
            stopped=(lambda: instance.pause.hold(stop)) if pauses else stop.is_set,
        )
        return Recovery(
            ports=ports,
            application_id=config.application_id,
            offset_reset=blueprint.offset_reset,
            lower_bounds=instance.lower_bounds,
            clock=self._clock,
            timeout_ms=min(config.task_timeout_ms, ATTEMPT_MS),
            stop=stop,
            new_incarnation=new_incarnation,
            times=program_times(
                blueprint.topology,
                cut(blueprint.topology).index_of,
                blueprint.layouts,
                lowest=config.stream_time == LOWEST,
            ),
        )

    def wired(self, instance: Instance) -> None:
        member, book = instance.member, instance.book

        def generation() -> int | None:
            running = instance.states.state is ClientState.RUNNING
            return member.metadata().generation if running and member.stable else None

        freshness = Freshness(instance.settled_tasks, book.broken, lambda: member.heartbeats)
        own = frozenset(instance.global_tables.tasks)
        cleaner = StateCleaner(
            self._directory,
            instance.copies,
            lambda: instance.manager.in_use() | book.owned() | own,
            generation,
            self._clock,
            self._config.state_cleanup_delay_ms,
        )
        self._maintenance = StateMaintenance(
            freshness,
            cleaner,
            self._directory.sweep,
            self._clock,
        )
        blueprint = self._dependencies.blueprint
        tables = blueprint.global_partitions
        names = self._dependencies.changelog_topics.union(blueprint.partitions, tables)
        partitions = {**blueprint.partitions, **tables}
        external = partitions.keys() - blueprint.repartition
        self._topics = TopicChanges(
            blueprint.application_id, partitions, external, names, tables, self._why_not_grown
        )
        self._member = instance.member
        admin, topics = self._admin, self._topics
        self._watch = TopicWatch(
            lambda: admin.describe_topics(topics.topics, WATCH_REQUEST_S),
            topics,
            instance.uncaught_elsewhere,
            self._clock,
            Extension(instance=instance, ports=self).check,
        )
        self._connectors = self._followed_connectors(instance)
        if self._connectors is not None:
            limit = Deadline(self._clock, self._config.task_timeout_ms)
            what = "reading the connector topic"
            retrying(
                self._connectors.begin, what, clock=self._clock, deadline=limit, stop=instance.stop
            )

    # --- connectors (note 074) --------------------------------------------------------------------

    def _followed_connectors(self, instance: Instance) -> ConnectorWatch | None:
        config, blueprint = self._config, self._dependencies.blueprint
        subs = cut(blueprint.topology)
        found = connectors(subs)
        if not found:
            return None
        log_of = TopicPartition(connector_topic(config.application_id), 0)

        def read(position: int) -> Sequence[Row]:
            end = self._admin.end_offsets([log_of], "read_committed")[log_of]
            if end == position:
                return ()
            start = self._admin.list_offsets([log_of], "earliest", "read_uncommitted")[log_of]
            begin = max(start, position) if position < end else start
            with LogReader(self._dependencies.reader) as reader:
                chunks = reader.read(log_of, begin, end)
                rows = [row for chunk in chunks for row in chunk.rows(headers=False)]
            return [(offset, key, value) for offset, _, key, value, _ in rows]

        writer = RecordWriter(config.producer(), None)
        self._opened.callback(writer.close)

        def write(records: Sequence[Record]) -> None:
            keys, values = zip(*records, strict=True)
            writer.begin()
            writer.write(log_of.topic, keys, values, [self._clock.now_ms()] * len(keys), 0)
            writer.flush(WATCH_REQUEST_S)

        def tasks() -> Mapping[TaskId, TaskNow]:
            return {
                task: TaskNow(state) if why is None else TaskNow(state, why.text, why.since_ms)
                for task, (state, why) in instance.connector_tasks().items()
            }

        def last_error(name: str) -> tuple[str, int] | None:
            text = instance.metrics.notes(names.CONNECTOR_ERRORS).get((name,))
            at_ms = instance.metrics.series().get(names.CONNECTOR_FAILED, {}).get((name,))
            return None if text is None or at_ms is None else (text, int(at_ms))

        return ConnectorWatch(
            connectors=found,
            facts=facts_of(found, subs, config.application_id, blueprint.number_of_tasks),
            read=read,
            write=write,
            restart=instance.restart,
            tasks=tasks,
            last_error=last_error,
            pause=instance.pause.pause_connectors,
            clock=self._clock,
            instance=client_id(config, self._directory.process_id),
        )

    # --- topics that come while it runs (`Extension`) ---------------------------------------------

    def _why_not_grown(self, counts: Mapping[str, int], topic: str, partitions: int) -> str | None:
        blueprint = self._dependencies.blueprint
        inputs = {name: count for name, count in counts.items() if name in blueprint.partitions}
        if topic not in inputs:
            return ""
        return why_not_grown(
            blueprint.topology,
            inputs,
            topic,
            partitions,
            blueprint.application_id,
            blueprint.internal,
        )

    def growth(self) -> TopicGrowth:
        blueprint, admin = self._dependencies.blueprint, self._admin
        read = {**blueprint.partitions, **blueprint.global_partitions}
        if pattern_sources(blueprint.topology):
            shapes = admin.list_topics(WATCH_REQUEST_S)
            existing = {name: shape.partitions for name, shape in shapes.items()}
        else:
            inputs = blueprint.partitions.keys() - blueprint.repartition
            described = admin.describe_topics(inputs, WATCH_REQUEST_S)
            existing = {name: one.partitions for name, one in described.items()}
        return growth(
            blueprint.topology, read, existing, blueprint.application_id, blueprint.internal
        )

    def prepare(self, growth: TopicGrowth) -> Callable[[], None]:
        before = self._dependencies, self.open_job
        blueprint = extended(before[0].blueprint, growth, self._config)
        dependencies = replace(before[0], blueprint=blueprint)
        self.open_job = job_opener(self._context, dependencies)
        self._dependencies = dependencies

        def undo() -> None:
            self._dependencies, self.open_job = before

        return undo

    def inputs(self, task: TaskId) -> tuple[TopicPartition, ...]:
        return self._dependencies.blueprint.inputs_of(task)

    def exchange(self) -> None:
        self._blueprint = self._dependencies.blueprint
        if self._times is not None:
            self._times.program = timed_program(self._blueprint)

    def grown(self, growth: TopicGrowth) -> None:
        self._topics.grow(growth.taken)
        self._member.read_more(self._blueprint.inputs, growth.taken)
        self._on_growth(self._blueprint)

    def create(self, task: TaskId) -> ActiveTask:
        return self._blueprint.task(task, self._directory)

    def slots(self) -> int:
        from everflow.spark.session import slots_of

        return slots_of(self._context)

    # --- effects ---------------------------------------------------------------------------------

    def kill_workers(self, number: int, pids: Sequence[int]) -> None:
        kill_and_wait(pids, self._clock)

    def consumed(self, topics: Collection[str]) -> bool:
        partitions = self._dependencies.blueprint.partitions
        asked = [TopicPartition(topic, p) for topic in topics for p in range(partitions[topic])]
        try:
            ends = self._admin.end_offsets(asked, self._dependencies.isolation)
            done = self._admin.committed(self._config.application_id, asked, CONSUMED_S)
        except EverflowError:
            return False
        return all(end == 0 or (tp in done and done[tp].offset >= end) for tp, end in ends.items())

    def fence(self, own: bool) -> int:
        directory = self._directory
        if own:
            fence_all(self._config.producer(), directory.transactional_ids, FENCE_S)
            return 0
        fenced = fence_lost_writers(
            self._config.application_id,
            directory.process_id,
            open_ids=self._admin.open_transactions,
            clients=lambda: self._admin.client_ids(self._config.application_id),
            fence=lambda ids: fence_all(self._config.producer(), ids, FENCE_TIMEOUT_S),
        )
        return len(fenced)

    def check(self) -> None:
        self._directory.require_locked()
        self._gate.require_reachable()
        self._maintenance.turn()
        self._spare.trim_if_due()

    def purge(self, positions: Offsets) -> None:
        self._racks.refresh()
        repartition = self._dependencies.blueprint.repartition
        ours = {tp: offset for tp, offset in positions.items() if tp.topic in repartition}
        due = {tp: offset for tp, offset in ours.items() if offset > self._purged.get(tp, 0)}
        if due:
            self._admin.delete_records(due)
            self._purged.update(due)

    def begin(self) -> None:
        self._watch.start()
        if self._connectors is not None:
            self._connectors.start()
        if self._switch is not None:
            self._switch.start()

    def topic_ids(self) -> Mapping[str, str]:
        return self._topics.ids

    def doubt_topics(self, topics: Collection[str]) -> None:
        self._watch.doubt(topics)

    def end_polls(self) -> None:
        self._watch.close()
        if self._switch is not None:
            self._switch.close()
        if self._connectors is not None:
            self._connectors.close()
        self._end_sums.close()

    def close_stores(self, stores: Iterable[TaskStore]) -> None:
        for store in stores:
            LmdbStore.close_at(store.path)

    def checkpoint(self, running: Sequence[ActiveTask]) -> None:
        self._maintenance.close()
        for task in running:
            self.close_stores(task.stores)


def timed_program(blueprint: Blueprint) -> TimedProgram:
    return TimedProgram.of(
        {task: blueprint.inputs_of(task) for task in blueprint.every_task()},
        blueprint.plan.sources,
        writers(blueprint.topology, blueprint.application_id),
    )


def instance_settings(config: StreamsConfig) -> InstanceSettings:
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
    intake: GlobalRecords,
    tables: GlobalTables,
    tp: TopicPartition,
    chunk: Chunk,
) -> Chunk:
    """The records of a chunk that enter a global table; ``tables`` get the error of a record."""
    try:
        read = cast(LogChunk, chunk)
        return intake.taken(tp, read.columns(headers=True), read.next_position, read.records)
    except UndecodableRecord as error:
        tables.refused(ending(error.failure, 1, ""))
        raise
    except FatalError as error:  # of its handler, or of the dead letter topic
        tables.refused(error)
        raise
    except RetriableError as error:  # else its records would be skipped
        tables.waits(error)
        raise EverflowError(str(error)) from error
