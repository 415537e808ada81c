"""Builds an instance's parts from settings and blueprint: one function per part, no behaviour."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everflow.clock import Clock
from everflow.config import StreamsConfig
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.producer import fence_all
from everflow.kafka.transactions import open_transactional_ids
from everflow.logs import LogFile, log_path
from everflow.membership.assignor import Identity, LocalCopies, MemberAssignor, PartitionRacks
from everflow.membership.own_assignor import decision
from everflow.membership.own_code import patience_s
from everflow.records import TaskId, TopicPartition
from everflow.runtime.restore.changelogs import Changelogs
from everflow.runtime.start_up import FENCE_TIMEOUT_S
from everflow.runtime.tasks.blueprint import Blueprint
from everflow.runtime.tasks.lost_writers import LostWriters
from everflow.runtime.thread.thread_ports import OpenJob
from everflow.runtime.topics import partition_racks
from everflow.runtime.topics.end_sums import EndSums
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory

if TYPE_CHECKING:
    from everflow.runtime.thread.road import ResidentRoad  # it needs Spark

log = logging.getLogger("everflow")

PREPARED_PARTITIONS = 256
"""Up to so many input partitions a Spark job is prepared for all of them at once; above it one is
prepared per assignment: each partition costs some calls into the JVM. A resident step is told what
to read batch by batch, however many there are."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What every part stands on, known once the cluster was looked at
    (`start_up.prepare_cluster`)."""

    config: StreamsConfig
    clock: Clock
    admin: ClusterAdmin
    blueprint: Blueprint
    directory: StateDirectory
    changelogs: Changelogs

    @property
    def reader(self) -> dict[str, Any]:
        """librdkafka settings of our readers; with a rack, they read from replicas near by
        (KIP-392)."""
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
        return frozenset(
            TopicPartition(topic, p) for topic, count in counts.items() for p in range(count)
        )

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
            for partition in range(
                max(self.blueprint.partitions[topic] for topic in topics) if logged else 0
            ):
                task = TaskId(subtopology, partition)
                found[task] = tuple(self.changelog(task, spec) for spec in logged)
        return found


def instance_log(config: StreamsConfig) -> LogFile | None:
    """The open log file of an instance, whose folder it has locked; None where there can be none,
    which is told."""
    path = log_path(config.state_dir, config.application_id)
    try:
        return LogFile(path)
    except OSError as error:
        log.warning("No log file: %s cannot be written (%s)", path, error.strerror)
        return None


def new_incarnation() -> str:
    """An owner incarnation nobody has had (D5)."""
    return uuid.uuid4().hex[:12]


# --- the group -----------------------------------------------------------------------------------


def group_settings(ground: Ground) -> GroupSettings:
    """Settings of the group's channel. The process id is part of the client id, so that whoever
    describes the group knows which processes live (`lost_writers`)."""
    config = ground.config
    return GroupSettings(
        bootstrap_servers=config.bootstrap_servers,
        group_id=config.application_id,
        instance_id=config.group_instance_id,
        session_timeout_ms=config.session_timeout_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        rebalance_timeout_ms=config.rebalance_timeout_ms,
        client_id=f"{config.client_id or config.application_id}-{ground.directory.process_id}",
        client={
            key.replace(".", "_"): value for key, value in config.clients.get("shared", {}).items()
        },
    )


def task_assignor(
    ground: Ground, copies: LocalCopies, end_sums: EndSums, racks: PartitionRacks
) -> MemberAssignor:
    """This instance's side of the group's protocol, and its decision when it leads."""
    config, blueprint = ground.config, ground.blueprint
    identity = Identity(
        process_id=ground.directory.process_id,
        threads=config.num_stream_threads,
        rack=config.client_rack,
        tags=config.tags(),
        endpoint=config.application_server,
        instance_id=config.group_instance_id,
        topology=blueprint.fingerprint,
    )
    changelogs = {
        index: [f"{config.application_id}-{spec.changelog}" for spec in ground.logged(index)]
        for index in blueprint.inputs
    }
    delay_ms = config.scheduled_rebalance_max_delay_ms
    rules, clock = config.assignment(), ground.clock
    decide = decision(
        config.task_assignor_class,
        patience_s(config.session_timeout_ms, config.rebalance_timeout_ms),
    )
    return MemberAssignor(
        identity,
        blueprint.inputs,
        changelogs,
        copies,
        end_sums,
        racks,
        rules,
        decide,
        max_delay_ms=delay_ms,
        clock=clock,
    )


def racks_of(ground: Ground) -> partition_racks.PartitionRacks:
    """Racks are only asked for where the assignor looks at them."""
    wanted = ground.config.rack_aware_assignment_strategy != "none"
    topics = {tp.topic for listed in ground.changelogs_of_tasks().values() for tp in listed} | set(
        ground.blueprint.partitions
    )
    return partition_racks.PartitionRacks(
        ground.admin.replica_racks, topics if wanted else (), ground.clock
    )


def lost_writers_of(ground: Ground) -> LostWriters:
    """Ends what instances that are gone have left open."""
    config = ground.config
    client = group_settings(ground).client
    return LostWriters(
        config.application_id,
        ground.directory.process_id,
        open_ids=lambda: open_transactional_ids(config.bootstrap_servers, client),
        clients=lambda: ground.admin.client_ids(config.application_id),
        fence=lambda transactional_ids: fence_all(
            config.producer(), transactional_ids, FENCE_TIMEOUT_S
        ),
    )


# --- stream threads ------------------------------------------------------------------------------


def chosen_road(context: Any, ground: Ground) -> ResidentRoad | None:
    """How all batches of this instance run; None: as Spark jobs."""
    from everflow.runtime.thread.road import resident_road
    from everflow.spark.connector import add_connector
    from everflow.spark.session import slots_of

    config = ground.config
    # A resident step keeps a slot: in a session with few (the user's own) the threads would wait
    # for one another for ever.
    slots = slots_of(context)
    wanted, possible = config.resident_max_records > 0, slots > config.num_stream_threads
    if wanted and not possible:
        log.warning(
            "Spark has only %d task slots for %d stream threads: every batch is a job of its own, "
            "which is slower. With local[%d] "
            "or more, or without a session of your own, batches need no job",
            slots,
            config.num_stream_threads,
            config.num_stream_threads + 1,
        )
    road = resident_road(ground.blueprint.plan) if wanted and possible else None
    if road is None:
        # Now, where an error reaches who starts: it may have to be downloaded.
        add_connector(context)
    return road


def job_opener(context: Any, ground: Ground, road: ResidentRoad | None) -> OpenJob:
    """Opens the Spark jobs of stream threads."""
    from everflow.runtime.thread.thread_job import JobSettings, ThreadJob, pack

    config, resident = ground.config, road is not None
    settings = JobSettings(
        bootstrap_servers=config.bootstrap_servers,
        application_id=config.application_id,
        read_committed=config.exactly_once,
        dead_letter_topic=config.errors_dead_letter_queue_topic_name,
        layouts=ground.blueprint.layouts,
        client=ground.source,
        reader=ground.reader,
        prepared_source=config.prepared_source,
        resident_records=config.resident_max_records,
    )
    plan = ground.blueprint.plan
    # Once for all threads: what the program's variables are now is what the workers get.
    work = pack(plan, settings, road)
    return lambda number, partitions: ThreadJob(
        context, plan, work, number, partitions, settings, resident=resident
    )


def prepared_partitions(
    partitions: frozenset[TopicPartition], *, resident: bool
) -> frozenset[TopicPartition]:
    """The partitions for which a stream thread's job is opened at the start: all of them, so that
    tasks come and go without another; none where that would cost too much and a job is opened per
    assignment. Pure."""
    return partitions if resident or len(partitions) <= PREPARED_PARTITIONS else frozenset()
