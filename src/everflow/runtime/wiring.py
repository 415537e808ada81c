"""Builds the parts of an instance from its settings and its blueprint: one function per part, no behaviour of its own."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from everflow.clock import Clock
from everflow.config import StreamsConfig
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.log_follower import LogFollower
from everflow.records import TaskId, TopicPartition
from everflow.runtime.changelogs import Changelogs
from everflow.runtime.copies import Copies
from everflow.runtime.restoration import ChangelogState, PreparedStore, RestoreListener, prepare_store
from everflow.runtime.standby_listener import StandbyUpdateListener
from everflow.runtime.start_up import Blueprint
from everflow.runtime.state_updater import UpdaterServices
from everflow.runtime.stream_thread import Job
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory

log = logging.getLogger("everflow")


def new_incarnation() -> str:
    """An owner incarnation nobody has had (D5)."""
    return uuid.uuid4().hex[:12]


def job_opener(session: Any, blueprint: Blueprint, config: StreamsConfig) -> Callable[[int, Sequence[TopicPartition]], Job]:
    """Opens the Spark job of a stream thread: (thread number, partitions it may be asked to read)."""
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


def group_settings(config: StreamsConfig) -> GroupSettings:
    """Settings of the group's channel."""
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


def updater_services(
    config: StreamsConfig,
    blueprint: Blueprint,
    directory: StateDirectory,
    changelogs: Changelogs,
    clock: Clock,
    restores: RestoreListener,
    standbys: Callable[[], StandbyUpdateListener],
    became_hot: Callable[[TaskId], None],
) -> UpdaterServices:
    """Effects of the state updater on the cluster and the state folder."""
    specs = blueprint.store_specs()

    def prepare(task: TaskId, store: str, state: ChangelogState, incarnation: str) -> PreparedStore:
        sync, now_ms = config.state_sync, clock.now_ms()
        return prepare_store(directory, task, specs[store], state, incarnation=incarnation, now_ms=now_ms, sync=sync)

    return UpdaterServices(
        open_follower=lambda: LogFollower(config.consumer()),
        states=changelogs.states,
        stable_ends=changelogs.stable_ends,
        prepare=prepare,
        distrust=lambda task, store, reason: directory.distrust(directory.store_path(task, store), reason),
        became_hot=became_hot,
        restores=restores,
        standbys=standbys,
        new_incarnation=new_incarnation,
    )


def scan_copies(
    copies: Copies, blueprint: Blueprint, directory: StateDirectory, changelogs: Changelogs, clock: Clock
) -> None:
    """What the state folder holds, for `Copies.offset_sums`."""

    def changelog(task: TaskId, spec: StoreSpec) -> TopicPartition:
        return TopicPartition(f"{blueprint.application_id}-{spec.changelog}", task.partition)

    def states(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ChangelogState]:
        return changelogs.states(partitions)

    copies.scan(directory, lambda subtopology: blueprint.stores.get(subtopology, ()), changelog, states, clock)


def changelogs_of(blueprint: Blueprint) -> dict[TaskId, tuple[TopicPartition, ...]]:
    """The changelog partitions of every stateful task of the application."""
    found = {}
    for subtopology, topics in blueprint.inputs.items():
        logged = [spec for spec in blueprint.stores.get(subtopology, ()) if spec.logging]
        if logged:
            for partition in range(max(blueprint.partitions[topic] for topic in topics)):
                names = [f"{blueprint.application_id}-{spec.changelog}" for spec in logged]
                found[TaskId(subtopology, partition)] = tuple(TopicPartition(name, partition) for name in names)
    return found
