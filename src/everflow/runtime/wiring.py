"""Builds an instance's parts from settings and blueprint: one function per part, no behaviour."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from everflow.clock import Clock
from everflow.config import StreamsConfig
from everflow.errors import SetupError
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.connection_settings import security_keywords
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import fence_all
from everflow.logs import LogFile, log_path
from everflow.membership.assignor import Identity, LocalCopies, MemberAssignor, PartitionRacks
from everflow.membership.own_assignor import decision, patience_s
from everflow.metrics import Metrics
from everflow.moves import some
from everflow.records import TaskId, TopicPartition
from everflow.runtime.copies.global_tables import count_left_out
from everflow.runtime.restore.changelogs import Changelogs
from everflow.runtime.restore.restore_plan import ChangelogState
from everflow.runtime.start_up import FENCE_TIMEOUT_S
from everflow.runtime.tasks.blueprint import Blueprint
from everflow.runtime.tasks.lost_writers import LostWriters
from everflow.runtime.thread.thread_ports import OpenJob
from everflow.runtime.topics import partition_racks
from everflow.runtime.topics.end_offsets import EndSums
from everflow.runtime.worker.global_records import GlobalRecords
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory
from everflow.topology.store_layouts import serde_words

log = logging.getLogger("everflow")


@dataclass(frozen=True, kw_only=True)
class Dependencies:
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
        """librdkafka settings of what reads changelogs; with a rack, from replicas near by
        (KIP-392)."""
        return {**self._rack, **self.config.consumer()}

    @property
    def main_reader(self) -> dict[str, Any]:
        """librdkafka settings of what reads inputs."""
        return {**self._rack, **self.config.main_consumer()}

    @property
    def _rack(self) -> dict[str, str]:
        return {"client.rack": self.config.client_rack} if self.config.client_rack else {}

    @property
    def isolation(self) -> Isolation:
        """How inputs are read."""
        return "read_committed" if self.config.exactly_once else "read_uncommitted"

    def changelog(self, task: TaskId, spec: StoreSpec) -> TopicPartition:
        """The changelog partition of a task's store."""
        return TopicPartition(spec.changelog_topic(self.config.application_id), task.partition)

    def logged(self, subtopology: int) -> list[StoreSpec]:
        """The stores of a sub-topology that have a changelog."""
        return [spec for spec in self.blueprint.stores.get(subtopology, ()) if spec.logging]

    @property
    def versioned(self) -> frozenset[str]:
        """The changelogs of which every record counts."""
        specs = self.blueprint.store_specs().values()
        application_id = self.config.application_id
        return frozenset(spec.changelog_topic(application_id) for spec in specs if spec.versioned)

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


def client_id(config: StreamsConfig, process_id: str) -> str:
    """Of the group's member: no two instances have the same."""
    return f"{config.client_id or config.application_id}-{process_id}"


def new_incarnation() -> str:
    """An owner incarnation nobody has had (D5)."""
    return uuid.uuid4().hex[:12]


# --- global tables -------------------------------------------------------------------------------


def states_of_global_topics(
    dependencies: Dependencies, asked: Collection[TopicPartition]
) -> dict[TopicPartition, ChangelogState]:
    """As `Changelogs.states`, up to the last stable offsets. The topic's id says by which serdes it
    was read: a program with others reads it anew."""
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


def global_records(dependencies: Dependencies, held: ExitStack, metrics: Metrics) -> GlobalRecords:
    """What takes the records of global tables' topics. What it opens is closed with ``held``."""
    config = dependencies.config
    opened: list[RecordWriter] = []

    def writer() -> RecordWriter:
        found = RecordWriter.get(config.producer(), None)
        if found not in opened:
            opened.append(found)
            held.callback(found.close)
        return found

    sources = {
        table.source.topic: table.source for table in dependencies.blueprint.plan.global_tables
    }
    return GlobalRecords(
        sources,
        config.handlers(),
        writer,
        partial(count_left_out, metrics),
    )


# --- the group -----------------------------------------------------------------------------------


def group_settings(dependencies: Dependencies) -> GroupSettings:
    """Settings of the group's channel. The process id is part of the client id, so that whoever
    describes the group knows which processes live (`lost_writers`)."""
    config = dependencies.config
    return GroupSettings(
        bootstrap_servers=config.bootstrap_servers,
        group_id=config.application_id,
        instance_id=config.group_instance_id,
        session_timeout_ms=config.session_timeout_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        rebalance_timeout_ms=config.rebalance_timeout_ms,
        client_id=client_id(config, dependencies.directory.process_id),
        client=security_keywords(config.main_consumer()),
    )


def task_assignor(
    dependencies: Dependencies, copies: LocalCopies, end_sums: EndSums, racks: PartitionRacks
) -> MemberAssignor:
    """This instance's side of the group's protocol, and its decision when it leads."""
    config, blueprint = dependencies.config, dependencies.blueprint
    identity = Identity(
        process_id=dependencies.directory.process_id,
        threads=config.num_stream_threads,
        rack=config.client_rack,
        tags=config.tags(),
        endpoint=config.application_server,
        instance_id=config.group_instance_id,
        topology=blueprint.fingerprint,
    )
    changelogs = {
        index: [spec.changelog_topic(config.application_id) for spec in dependencies.logged(index)]
        for index in blueprint.inputs
    }
    delay_ms = config.scheduled_rebalance_max_delay_ms
    rules, clock = config.assignment(), dependencies.clock
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


def racks_of(dependencies: Dependencies) -> partition_racks.PartitionRacks:
    """Racks are only asked for where the assignor looks at them."""
    wanted = dependencies.config.rack_aware_assignment_strategy != "none"
    topics = {
        tp.topic for listed in dependencies.changelogs_of_tasks().values() for tp in listed
    } | set(dependencies.blueprint.partitions)
    return partition_racks.PartitionRacks(
        dependencies.admin.replica_racks, topics if wanted else (), dependencies.clock
    )


def lost_writers_of(dependencies: Dependencies) -> LostWriters:
    """Ends what instances that are gone have left open."""
    config = dependencies.config
    return LostWriters(
        config.application_id,
        dependencies.directory.process_id,
        open_ids=dependencies.admin.open_transactions,
        clients=lambda: dependencies.admin.client_ids(config.application_id),
        fence=lambda transactional_ids: fence_all(
            config.producer(), transactional_ids, FENCE_TIMEOUT_S
        ),
    )


# --- stream threads ------------------------------------------------------------------------------


def job_opener(context: Any, dependencies: Dependencies) -> OpenJob:
    """Opens the Spark jobs of stream threads. TopologyError with the user's line for a Column that
    they cannot compute, or a function that cannot travel."""
    from everflow.runtime.thread.columns import prepared_columns
    from everflow.runtime.thread.thread_job import JobSettings, ThreadJob, pack

    config, blueprint = dependencies.config, dependencies.blueprint
    settings = JobSettings(
        application_id=config.application_id,
        read_committed=config.exactly_once,
        held_bytes=config.memory.worker(config.num_stream_threads).pages,
        handlers=config.handlers(),
        layouts=blueprint.layouts,
        partitions=blueprint.partitions,
        ahead_bytes=config.memory.worker(config.num_stream_threads).ahead,
    )
    # Once for all threads: what the program's variables are now is what the workers get.
    work = pack(blueprint.plan, settings, prepared_columns(blueprint.plan))
    client = client_id(config, dependencies.directory.process_id)
    within = some([str(index) for index in sorted(blueprint.inputs)], 12)

    def opened(number: int) -> ThreadJob:
        name = f"everflow {client}, stream thread {number}: sub-topologies {within}"
        return ThreadJob(context, work, number, name)

    return opened


def require_slots(context: Any, threads: int) -> None:
    """SetupError where Spark has no task slot for each stream thread and one more: a thread keeps
    its slot, and loading a table of a DataFrame, like the user's own jobs, needs another."""
    from everflow.spark.session import slots_of

    slots = slots_of(context)
    if slots <= threads:
        raise SetupError(
            f"Spark has {slots} task slots, but num.stream.threads = {threads}: each stream thread "
            f"keeps one slot for as long as it runs, and one more has to stay free. Start Spark "
            f"with .master('local[{threads + 1}]') or more, leave it to everflow to start Spark, "
            f"or set fewer num.stream.threads."
        )
