"""Builds an instance's parts from settings and blueprint: one function per part, no behaviour."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from everflow.clock import Clock
from everflow.config import StreamsConfig
from everflow.errors import EverflowError
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.producer import fence_all
from everflow.kafka.reading.copy_follower import CopyFollower
from everflow.kafka.transactions import open_transactional_ids
from everflow.logs import LogFile, log_path
from everflow.membership.assignor import EndSums, Identity, LocalCopies, PartitionRacks, TaskAssignor
from everflow.membership.member import GroupMember
from everflow.membership.own_assignor import decision
from everflow.membership.own_code import patience_s
from everflow.records import TaskId, TopicPartition
from everflow.runtime.commit.commit_gate import GateBook
from everflow.runtime.copies.freshness import Freshness, Settled
from everflow.runtime.copies.known_copies import Copies
from everflow.runtime.copies.state_cleaner import StateCleaner
from everflow.runtime.copies.state_keeper import StateKeeper
from everflow.runtime.copies.state_updater import StateUpdater, UpdaterServices
from everflow.runtime.pause import Pause
from everflow.runtime.restore.changelogs import Changelogs
from everflow.runtime.restore.restoration import PreparedStore, prepare_store
from everflow.runtime.restore.restore_listener import RestoreListener
from everflow.runtime.restore.restore_plan import ChangelogState
from everflow.runtime.restore.standby_listener import StandbyUpdateListener
from everflow.runtime.start_up import FENCE_TIMEOUT_S, transactional_id
from everflow.runtime.tasks.blueprint import Blueprint
from everflow.runtime.tasks.lost_writers import LostWriters
from everflow.runtime.tasks.recovery import Recovery, RecoveryRules
from everflow.runtime.tasks.task import TaskState, TaskStore
from everflow.runtime.tasks.task_manager import TaskManager
from everflow.runtime.tasks.task_recovery import ClusterRecoveryPorts
from everflow.runtime.thread.stream_thread import StreamThread
from everflow.runtime.thread.thread_ports import OpenJob, ThreadSettings
from everflow.runtime.thread_count import ThreadCount, ThreadCountPorts
from everflow.runtime.topics import partition_racks
from everflow.runtime.topics.end_offsets import EndOffsets
from everflow.runtime.topics.shrunk_logs import ShrunkLogs
from everflow.runtime.topics.topic_watch import TopicChanges, TopicWatch
from everflow.runtime.worker.resident_step import TwinSegment
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory
from everflow.topology.plan import PhysicalPlan

log = logging.getLogger("everflow")

WATCH_REQUEST_S = 5.0
PREPARED_PARTITIONS = 256
"""Up to so many input partitions a Spark job is prepared for all of them at once; above it one is prepared per assignment: each
partition costs some calls into the JVM. A resident step is told what to read batch by batch, however many there are."""


@dataclass(frozen=True)
class Ground:
    """What every part stands on, known once the cluster was looked at (`start_up.prepare_cluster`)."""

    config: StreamsConfig
    clock: Clock
    admin: ClusterAdmin
    blueprint: Blueprint
    directory: StateDirectory
    changelogs: Changelogs

    @property
    def reader(self) -> dict[str, Any]:
        """librdkafka settings of our readers; with a rack, they read from replicas near by (KIP-392)."""
        return {**self._rack, **self.config.consumer()}

    @property
    def source(self) -> dict[str, str]:
        """Settings of Spark's reader, without the servers."""
        settings = {**self._rack, **self.config.main_consumer()}
        return {key: str(value) for key, value in settings.items() if key != "bootstrap.servers"}

    @property
    def _rack(self) -> dict[str, str]:
        return {"client.rack": self.config.client_rack} if self.config.client_rack else {}

    @property
    def isolation(self) -> Isolation:
        """How inputs are read."""
        return "read_committed" if self.config.exactly_once else "read_uncommitted"

    def input_partitions(self) -> frozenset[TopicPartition]:
        """Every partition that a task of the application reads."""
        counts = self.blueprint.partitions
        return frozenset(TopicPartition(topic, p) for topic, count in counts.items() for p in range(count))

    def changelog(self, task: TaskId, spec: StoreSpec) -> TopicPartition:
        """The changelog partition of a task's store."""
        return TopicPartition(f"{self.config.application_id}-{spec.changelog}", task.partition)

    def logged(self, subtopology: int) -> list[StoreSpec]:
        """The stores of a sub-topology that have a changelog."""
        return [spec for spec in self.blueprint.stores.get(subtopology, ()) if spec.logging]

    def changelogs_of_tasks(self) -> dict[TaskId, tuple[TopicPartition, ...]]:
        """The changelog partitions of every stateful task of the application."""
        found = {}
        for subtopology, topics in self.blueprint.inputs.items():
            logged = self.logged(subtopology)
            for partition in range(max(self.blueprint.partitions[topic] for topic in topics) if logged else 0):
                task = TaskId(subtopology, partition)
                found[task] = tuple(self.changelog(task, spec) for spec in logged)
        return found


def instance_log(config: StreamsConfig) -> LogFile | None:
    """The open log file of an instance, whose folder it has locked; None where there can be none, which is told."""
    path = log_path(config.state_dir, config.application_id)
    try:
        return LogFile(path)
    except OSError as error:
        log.warning("No log file: %s cannot be written (%s)", path, error.strerror)
        return None


def end_offsets(
    ground: Ground, positions: Callable[[], dict[TopicPartition, int]], stopping: threading.Event
) -> EndOffsets:
    """The poller of the inputs' ends; ``positions``: of the running tasks."""
    admin = ground.admin
    shrunk = ShrunkLogs(
        ground.config.application_id, positions, lambda asked: admin.end_offsets(asked, "read_uncommitted"), ground.clock
    )
    read = lambda asked: admin.end_offsets(asked, ground.isolation)  # noqa: E731
    return EndOffsets(read, ground.clock, ground.config.poll_interval_ms, shrunk, stopping)


def topic_watch(ground: Ground, failed: Callable[[EverflowError], None]) -> TopicWatch:
    """The watch over the ids and partition counts of inputs and internal topics."""
    blueprint = ground.blueprint
    changelogs = {tp.topic for listed in ground.changelogs_of_tasks().values() for tp in listed}
    names = changelogs.union(blueprint.partitions)
    changes = TopicChanges(blueprint.application_id, blueprint.partitions, set(blueprint.partitions) - blueprint.repartition, names)
    return TopicWatch(lambda: ground.admin.describe_topics(names, WATCH_REQUEST_S), changes, failed, ground.clock)


def new_incarnation() -> str:
    """An owner incarnation nobody has had (D5)."""
    return uuid.uuid4().hex[:12]


# --- the group -----------------------------------------------------------------------------------


def group_settings(ground: Ground) -> GroupSettings:
    """Settings of the group's channel. The process id is part of the client id, so that whoever describes the group knows which
    processes live (`lost_writers`)."""
    member = ground.config.member()
    client = {key.replace(".", "_"): value for key, value in member.client.items()}
    return GroupSettings(
        member.bootstrap_servers,
        member.group_id,
        member.instance_id,
        member.session_timeout_ms,
        member.heartbeat_interval_ms,
        member.rebalance_timeout_ms,
        client_id=f"{ground.config.client_id or ground.config.application_id}-{ground.directory.process_id}",
        client=client,
    )


def task_assignor(ground: Ground, copies: LocalCopies, end_sums: EndSums, racks: PartitionRacks) -> TaskAssignor:
    """This instance's side of the group's protocol, and its decision when it leads."""
    config, blueprint = ground.config, ground.blueprint
    identity = Identity(
        ground.directory.process_id,
        config.num_stream_threads,
        rack=config.client_rack,
        tags=config.tags(),
        endpoint=config.application_server,
        instance_id=config.group_instance_id,
        topology=blueprint.fingerprint,
    )
    changelogs = {
        index: [f"{config.application_id}-{spec.changelog}" for spec in ground.logged(index)] for index in blueprint.inputs
    }
    delay_ms = config.scheduled_rebalance_max_delay_ms
    rules, clock = config.assignment(), ground.clock
    decide = decision(config.task_assignor_class, patience_s(config.session_timeout_ms, config.rebalance_timeout_ms))
    return TaskAssignor(
        identity, blueprint.inputs, changelogs, copies, end_sums, racks, rules, decide, max_delay_ms=delay_ms, clock=clock
    )


def racks_of(ground: Ground) -> partition_racks.PartitionRacks:
    """Racks are only asked for where the assignor looks at them."""
    wanted = ground.config.rack_aware_assignment_strategy != "none"
    topics = {tp.topic for listed in ground.changelogs_of_tasks().values() for tp in listed} | set(ground.blueprint.partitions)
    return partition_racks.PartitionRacks(ground.admin.replica_racks, topics if wanted else (), ground.clock)


def lost_writers_of(ground: Ground) -> LostWriters:
    """Ends what instances that are gone have left open."""
    config = ground.config
    client = group_settings(ground).client
    return LostWriters(
        config.application_id,
        ground.directory.process_id,
        open_ids=lambda: open_transactional_ids(config.bootstrap_servers, client),
        clients=lambda: ground.admin.client_ids(config.application_id),
        fence=lambda transactional_ids: fence_all(config.producer(), transactional_ids, FENCE_TIMEOUT_S),
    )


# --- stream threads ------------------------------------------------------------------------------


def job_opener(context: Any, ground: Ground) -> OpenJob:
    """Opens the Spark jobs of stream threads."""
    from everflow.runtime.thread.thread_job import JobSettings, ThreadJob, pack
    from everflow.spark.connector import add_connector
    from everflow.spark.session import slots_of

    config = ground.config
    # A resident step keeps a slot: in a session with few (the user's own) the threads would wait for one another for ever.
    slots = slots_of(context)
    resident_records = config.resident_max_records if slots > config.num_stream_threads else 0
    if resident_records != config.resident_max_records:
        log.warning(
            "Spark has only %d task slots for %d stream threads: every batch is a job of its own, which is slower. With local[%d] "
            "or more, or without a session of your own, batches need no job",
            slots,
            config.num_stream_threads,
            config.num_stream_threads + 1,
        )
    if resident_records == 0 or TwinSegment.of_plan(ground.blueprint.plan) is None:
        add_connector(context)  # now, where an error reaches who starts: it may have to be downloaded
    settings = JobSettings(
        config.bootstrap_servers,
        config.application_id,
        config.exactly_once,
        config.errors_dead_letter_queue_topic_name,
        ground.source,
        ground.reader,
        config.prepared_source,
        resident_records,
    )
    plan = ground.blueprint.plan
    work = pack(plan, settings)  # once for all threads: what the program's variables are now is what the workers get
    return lambda number, partitions: ThreadJob(context, plan, work, number, partitions, settings)


def thread_settings(ground: Ground, number: int, gate_path: str) -> ThreadSettings:
    """Settings of a stream thread."""
    config = ground.config
    return ThreadSettings(
        application_id=config.application_id,
        guarantee=config.processing_guarantee,
        transactional_id=transactional_id(config, ground.directory.process_id, number),
        gate_path=gate_path,
        producer_config=config.producer(),
        limits=config.batches(),
        task_timeout_ms=config.task_timeout_ms,
        keep_alive_ms=config.keep_alive_ms,
        partitions=prepared_partitions(ground.blueprint.plan, ground.input_partitions(), config.resident_max_records),
    )


def prepared_partitions(
    plan: PhysicalPlan, partitions: frozenset[TopicPartition], resident_records: int
) -> frozenset[TopicPartition]:
    """The partitions for which a stream thread's job is opened at the start: all of them, so that tasks come and go without
    another; none where that would cost too much and a job is opened per assignment. Pure."""
    resident = resident_records > 0 and TwinSegment.of_plan(plan) is not None
    return partitions if resident or len(partitions) <= PREPARED_PARTITIONS else frozenset()


def thread_count(
    ground: Ground,
    threads: list[StreamThread],
    open_thread: Callable[[int], StreamThread],
    context: Any,
    post: Callable[[Callable[[], None]], None],
    manager: TaskManager,
    member: GroupMember,
    running: Callable[[], bool],
) -> ThreadCount:
    """What changes ``threads`` while the instance runs."""
    from everflow.spark.session import slots_of

    ports = ThreadCountPorts(
        open_thread=open_thread,
        slots=lambda: slots_of(context),
        post=post,
        deal=manager.deal_without,
        tell=member.set_threads,
        running=running,
    )
    return ThreadCount(threads, ports, ground.clock)


def recovery_of(ground: Ground, listener: RestoreListener, stop: threading.Event, pause: Pause | None = None) -> Recovery:
    """A recovery that ends when ``stop`` is set; its restores stand still while ``pause`` does."""
    config = ground.config
    ports = ClusterRecoveryPorts(
        ground.admin,
        config.application_id,
        config.producer(),
        ground.reader,
        ground.directory,
        lambda subtopology: ground.blueprint.stores.get(subtopology, ()),
        ground.changelogs,
        config.state_sync,
        ground.clock,
        listener,
        stop.is_set if pause is None else lambda: pause.hold(stop),
    )
    rules = RecoveryRules(config.application_id, ground.blueprint.offset_reset)
    return Recovery(ports, rules, ground.clock, config.task_timeout_ms, stop, new_incarnation)


# --- the state folder --------------------------------------------------------------------------------------


def state_updater(
    ground: Ground,
    restores: RestoreListener,
    standbys: Callable[[], StandbyUpdateListener],
    became_hot: Callable[[TaskId], None],
    pause: Pause,
) -> StateUpdater:
    """The state updater on the cluster and the state folder."""
    specs, directory, clock = ground.blueprint.store_specs(), ground.directory, ground.clock

    def prepare(task: TaskId, store: str, state: ChangelogState, incarnation: str) -> PreparedStore:
        sync, now_ms = ground.config.state_sync, clock.now_ms()
        return prepare_store(directory, task, specs[store], state, incarnation=incarnation, now_ms=now_ms, sync=sync)

    services = UpdaterServices(
        open_follower=lambda: CopyFollower(ground.reader),
        states=ground.changelogs.states,
        stable_ends=ground.changelogs.stable_ends,
        prepare=prepare,
        distrust=lambda task, store, reason: directory.distrust(directory.store_path(task, store), reason),
        became_hot=became_hot,
        restores=restores,
        standbys=standbys,
        new_incarnation=new_incarnation,
        paused=lambda: pause.paused,
    )
    updater = StateUpdater(services, clock, ground.config.acceptable_recovery_lag)
    pause.wakes.append(updater.wake)
    return updater


def scan_copies(ground: Ground, copies: Copies) -> None:
    """What the state folder holds, for `Copies.offset_sums`."""
    copies.scan(ground.directory, ground.logged, ground.changelog, ground.changelogs.states)


def close_stores(stores: Iterable[TaskStore]) -> None:
    """Close what this process has open of them; nobody uses them here any more."""
    for store in stores:
        LmdbStore.close_at(store.path)


def settled_tasks(threads: Sequence[StreamThread]) -> list[Settled]:
    """The running tasks, each as of its thread's last moment between batches."""
    found = []
    for thread in threads:
        at_ms = thread.settled_ms  # before the tasks: one that comes now was recovered later, which its stores know already
        if at_ms is None:
            continue
        for task in list(thread.tasks.values()):
            if task.state is TaskState.RUNNING:
                stores = tuple(store.path for store in task.stores if store.changelog is not None)
                found.append(Settled(task.id, task.epoch, task.incarnation, stores, at_ms))
    return found


def state_keeper(
    ground: Ground,
    threads: Sequence[StreamThread],
    book: GateBook,
    member: GroupMember,
    manager: TaskManager,
    copies: Copies,
    running: Callable[[], bool],
) -> StateKeeper:
    """Freshness of the running tasks' stores, and the cleaner. ``running``: whether the instance is in state RUNNING."""

    def generation() -> int | None:
        return member.metadata().generation if running() and member.stable else None

    freshness = Freshness(lambda: settled_tasks(threads), book.broken, lambda: member.heartbeats)
    delay_ms = ground.config.state_cleanup_delay_ms
    cleaner = StateCleaner(
        ground.directory, copies, lambda: manager.in_use() | book.owned(), generation, ground.clock, delay_ms
    )
    return StateKeeper(freshness, cleaner, ground.directory.sweep, ground.clock)
