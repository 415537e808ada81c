"""Says which instance has which key, store and task, by the host map (KIP-67, KIP-535). Pure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
from kafka.partitioner.default import murmur2

from everflow.assignment.user_data import HostTasks, hosts_of
from everflow.clock import Clock
from everflow.columns.key_partitions import MURMUR2
from everflow.errors import EverflowError
from everflow.kafka.admin import user_data_of_group
from everflow.kafka.group_channel import GroupSettings
from everflow.records import TaskId, TopicPartition
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder, value_reader
from everflow.state.store import StoreSpec
from everflow.topology.partitioners import KeyPartitioner, partitions_of
from everflow.topology.partitioners import topics_into_stores as topics_into_stores

log = logging.getLogger("everflow")

Partitioner = Callable[[bytes, int], int]
"""``(key bytes, partition count) -> partition``."""


Hosts = Mapping[str, HostTasks]
"""Tasks by ``application.server``; instances without one are not in it."""


@dataclass(frozen=True, kw_only=True)
class StoreSite:
    """A store of the running topology, which the tasks ``subtopology`` x ``range(partitions)``
    have, and its values' decoder (`PhysicalPlan.value_decoder`)."""

    spec: StoreSpec
    subtopology: int
    partitions: int
    decode: Callable[[bytes], Any]
    everywhere: bool = False
    results: ResultDecoder | None = None
    partitioner: Partitioner | None = None

    @cached_property
    def value_reader(self) -> Callable[[bytes], Any] | None:
        return value_reader(self.results or self.spec.value_serde)

    def task(self, partition: int) -> TaskId:
        return TaskId(self.subtopology, partition)


@dataclass(frozen=True)
class KeyQueryMetadata:
    """Where a key is (KIP-535).

    ``active_host``: end point (``application.server``) of the instance whose task processes it,
    None where that is not known:
    the task is being handed over, or its instance has no end point. ``standby_hosts``: end points
    with a standby, sorted; a ``stale=True`` query can be sent there. ``partition``: of the store.
    ``lag``: how many offsets the copy on the instance that was asked is behind its changelog now, 0
    for its own active task; None where it has no copy, or the brokers do not say.
    """

    active_host: str | None
    standby_hosts: tuple[str, ...]
    partition: int
    lag: int | None = None


@dataclass(frozen=True)
class StreamsMetadata:
    """An instance's stores and inputs, of active tasks and of standbys, as of a rebalance."""

    host: str
    store_names: frozenset[str] = frozenset()
    topic_partitions: frozenset[TopicPartition] = frozenset()
    standby_store_names: frozenset[str] = frozenset()
    standby_topic_partitions: frozenset[TopicPartition] = frozenset()


def default_partitioner(key: bytes, partitions: int) -> int:
    """As Java's and everflow's producers: murmur2, sign bit cleared. librdkafka's own is
    another."""
    return (_hashed(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=1_024)  # readers come back to some keys, and it is a loop of Python
def _hashed(key: bytes) -> int:
    return int(murmur2(key))


def store_partitioner(by: KeyPartitioner | None, topic: str, serde: Serde) -> Partitioner | None:
    if by is None or by == MURMUR2:
        return None
    return lambda key, partitions: int(
        partitions_of(by, topic, pa.array([key], pa.binary()), serde, partitions)[0]
    )


def metadata_for_key(site: StoreSite, partition: int, hosts: Hosts | None) -> KeyQueryMetadata:
    task = site.task(partition)
    active = [host for host, tasks in (hosts or {}).items() if task in tasks.active]
    standby = sorted(host for host, tasks in (hosts or {}).items() if task in tasks.standby)
    return KeyQueryMetadata(active[0] if active else None, tuple(standby), partition)


def metadata_of_hosts(
    hosts: Hosts | None,
    sites: Iterable[StoreSite],
    inputs: Callable[[TaskId], Iterable[TopicPartition]],
) -> tuple[StreamsMetadata, ...]:
    """One entry for each end point, sorted; ``inputs``: the partitions that a task reads."""
    known = tuple(sites)

    def stores(tasks: frozenset[TaskId]) -> frozenset[str]:
        return frozenset(
            site.spec.name
            for site in known
            if site.everywhere or any(task.subtopology == site.subtopology for task in tasks)
        )

    def copied(tasks: frozenset[TaskId]) -> frozenset[str]:
        return stores(tasks) - {site.spec.name for site in known if site.everywhere}

    def read(tasks: frozenset[TaskId]) -> frozenset[TopicPartition]:
        return frozenset(tp for task in tasks for tp in inputs(task))

    return tuple(
        StreamsMetadata(
            host,
            stores(tasks.active),
            read(tasks.active),
            copied(tasks.standby),
            read(tasks.standby),
        )
        for host, tasks in sorted((hosts or {}).items())
    )


# --- the hosts of the last rebalance (note 005) ---------------------------------------------------
# The leader sends them, or leaves them out if they are too large to send: then they are read from
# the group.

RETRY_MS = 1_000.0


class HostMap:
    """``describe`` reads the user data of all members, which takes a while. Safe from any
    thread."""

    group: GroupSettings | None = None

    def __init__(
        self,
        clock: Clock,
        describe: Callable[[GroupSettings], Iterable[tuple[bytes, bytes]]] = user_data_of_group,
    ) -> None:
        self._clock = clock
        self._describe = describe
        self._reading = threading.Lock()
        self._generation = -1
        self._hosts: Mapping[str, HostTasks] | None = None
        self._next_read_ms = 0.0

    def replace(self, generation: int, hosts: Mapping[str, HostTasks] | None) -> None:
        """A rebalance has ended; None: the map was left out. Returns at once."""
        self._generation, self._hosts, self._next_read_ms = generation, hosts, 0.0

    def known(self) -> Mapping[str, HostTasks]:
        return self._hosts or {}

    def hosts(self) -> Mapping[str, HostTasks] | None:
        """Tasks by end point; None: not known. A map that was left out is read once for each
        generation, while other callers wait; after a failure at most once a second."""
        group = self.group
        if self._hosts is not None or self._generation < 0 or group is None:
            return self._hosts
        with self._reading:
            generation, now_ms = self._generation, self._clock.monotonic_ms()
            if self._hosts is not None or now_ms < self._next_read_ms:
                return self._hosts
            try:
                found = hosts_of(self._describe(group))
            except EverflowError as error:
                log.warning("The hosts of the stores cannot be read from the group: %s", error)
                found = {}
            if generation == self._generation and self._hosts is None:
                self._hosts = found or None
                self._next_read_ms = now_ms + RETRY_MS
            return self._hosts
