"""Queries stores while tasks come and go: the replicas here, and the hosts of others (KIP-67).
`InteractiveQueries` has the user's methods; `StoreQueries` decides, over ports."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from kafka.partitioner.default import murmur2

from everflow.assignment.user_data import HostTasks, hosts_of
from everflow.clock import Clock
from everflow.columns.key_partitions import MURMUR2
from everflow.errors import EverflowError, RetriableError, StoreMismatchError
from everflow.instance.client_state import ClientState
from everflow.instance.query.store_query import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
    StoreReader,
    key_bytes,
    whole_number,
)
from everflow.instance.tasks.blueprint import Blueprint
from everflow.instance.tasks.task import TaskStore
from everflow.kafka.admin import user_data_of_group
from everflow.kafka.group_channel import GroupSettings
from everflow.records import TaskId, TopicPartition
from everflow.retry import StoppedRequest
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder, value_reader
from everflow.snapshots.query_errors import (
    InvalidStateStoreError,
    StaleStateError,
    StateElsewhereError,
    StateMovingError,
)
from everflow.snapshots.query_errors import StoreNotFoundError as StoreNotFoundError
from everflow.state.lmdb_env import StoreClosedError
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.topology.partitioners import (
    KeyPartitioner,
    partitioners_of_stores,
    partitions_of,
    topics_into_stores,
)

log = logging.getLogger("everflow")

Partitioner = Callable[[bytes, int], int]
"""``(key bytes, partition count) -> partition``."""


Hosts = Mapping[str, HostTasks]
"""Tasks by ``application.server``; instances without one are not in it."""


@dataclass(frozen=True, kw_only=True)
class StoreSite:
    """A store, of the tasks ``subtopology`` x ``range(partitions)``."""

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
    """The instances that have a key's partition, the partition's number, and the lag of the replica
    on the instance that was asked (KIP-535).

    ``active_host``: end point (``application.server``) of the instance whose task processes it,
    None if not known. ``standby_hosts``: end points with a standby, sorted, for ``stale=True``
    queries. ``lag``: offsets that the copy of the instance that was asked is behind its changelog
    now, 0 for its own active task; None without a copy, or if the brokers do not say.
    """

    active_host: str | None
    standby_hosts: tuple[str, ...]
    partition: int
    lag: int | None = None


@dataclass(frozen=True)
class StreamsMetadata:
    """One instance's stores and input partitions as of the last rebalance: those of its active
    tasks, and in the fields ``standby_...`` those of its standby tasks."""

    host: str
    store_names: frozenset[str] = frozenset()
    topic_partitions: frozenset[TopicPartition] = frozenset()
    standby_store_names: frozenset[str] = frozenset()
    standby_topic_partitions: frozenset[TopicPartition] = frozenset()


def default_partitioner(key: bytes, partitions: int) -> int:
    """As Java's and everflow's producers: murmur2, sign bit cleared."""
    return (_hashed(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=1_024)  # readers come back to some keys, and it is a loop of Python
def _hashed(key: bytes) -> int:
    return int(murmur2(key))


# --- the hosts of the last rebalance (note 005) ---------------------------------------------------
# The leader sends them; if they are too large to send, they are read from the group.

RETRY_MS = 1_000.0


@dataclass(eq=False)
class HostMap:
    """``describe`` reads all members' user data, which takes a while. Safe from any thread."""

    clock: Clock
    describe: Callable[[GroupSettings], Iterable[tuple[bytes, bytes]]] = user_data_of_group
    group: GroupSettings | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _generation: int = -1
    _hosts: Mapping[str, HostTasks] | None = None
    _next_read_ms: float = 0.0

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
            generation, now_ms = self._generation, self.clock.monotonic_ms()
            if self._hosts is not None or now_ms < self._next_read_ms:
                return self._hosts
            try:
                found = hosts_of(self.describe(group))
            except StoppedRequest:
                return None
            except EverflowError as error:
                log.warning("The hosts of the stores cannot be read from the group: %s", error)
                found = {}
            if generation == self._generation and self._hosts is None:
                self._hosts = found or None
                self._next_read_ms = now_ms + RETRY_MS
            return self._hosts


SERVING = frozenset({ClientState.REBALANCING, ClientState.RUNNING})
STORE_KINDS: Mapping[str, type[ReadOnlyStore]] = {
    "key_value": ReadOnlyKeyValueStore,
    "versioned": ReadOnlyVersionedStore,
    "window": ReadOnlyWindowStore,
    "session": ReadOnlySessionStore,
}
ENDS_AGE_MS = 1_000.0
"""Maximal age of a changelog's end that a query's ``max_lag`` is compared with."""

TaskStores = Mapping[TaskId, Sequence[TaskStore]]


class LagInfo(NamedTuple):
    """``position``: next changelog offset to read; ``end``: end offset of the changelog; ``lag``:
    ``end`` minus ``position``, never negative."""

    position: int
    end: int
    lag: int


@dataclass(frozen=True, kw_only=True)
class QueryPorts:
    """The instance as queries need it; called from the users' threads. ``running``: stores of the
    active tasks that process here; ``copies``: of standbys, warm-ups and tasks that are being
    restored. ``hosts``: of the last rebalance, None = not known. ``ends``: asks the brokers
    (RetriableError). ``draining``: the threads of an instance that is being closed still work."""

    state: Callable[[], ClientState]
    running: Callable[[], TaskStores]
    copies: Callable[[], TaskStores]
    hosts: Callable[[], Hosts | None]
    ends: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]
    draining: Callable[[], bool] = lambda: False
    global_stores: Callable[[], TaskStores] = dict


@dataclass(eq=False)
class StoreQueries:
    """Answers where content is and opens it for reading. Safe from any thread. ``sites``: by their
    stores' names; ``inputs``: of a task; ``own_host``: this instance's ``application.server``."""

    sites: Mapping[str, StoreSite]
    inputs: Callable[[TaskId], Iterable[TopicPartition]]
    own_host: str
    ports: QueryPorts
    clock: Clock
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ends: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)

    def site(self, name: str) -> StoreSite:
        """The store of that name; StoreNotFoundError lists those there are."""
        site = self.sites.get(name)
        if site is None:
            have = ", ".join(sorted(self.sites)) or "none"
            raise StoreNotFoundError(f"The topology has no store {name!r}; it has: {have}.")
        return site

    def place(self, site: StoreSite, partition: int) -> KeyQueryMetadata:
        if site.everywhere:  # each instance has it
            return KeyQueryMetadata(self.own_host or None, (), partition)
        return self._holders(site, partition)

    def _holders(self, site: StoreSite, partition: int) -> KeyQueryMetadata:
        task, hosts = site.task(partition), self.ports.hosts() or {}
        active = next((host for host, tasks in hosts.items() if task in tasks.active), None)
        standby = sorted(host for host, tasks in hosts.items() if task in tasks.standby)
        return KeyQueryMetadata(active, tuple(standby), partition)

    def streams_metadata(self, name: str | None = None) -> tuple[StreamsMetadata, ...]:
        if name is not None:
            self.site(name)
        everywhere = frozenset(name for name, site in self.sites.items() if site.everywhere)
        hosts = sorted((self.ports.hosts() or {}).items())
        found = [
            StreamsMetadata(
                host,
                self._stores_of(tasks.active) | everywhere,
                self._read_by(tasks.active),
                self._stores_of(tasks.standby),
                self._read_by(tasks.standby),
            )
            for host, tasks in hosts
        ]
        return tuple(
            m for m in found if name is None or name in m.store_names | m.standby_store_names
        )

    def _stores_of(self, tasks: frozenset[TaskId]) -> frozenset[str]:
        here = {task.subtopology for task in tasks}
        return frozenset(
            name
            for name, site in self.sites.items()
            if site.subtopology in here and not site.everywhere
        )

    def _read_by(self, tasks: frozenset[TaskId]) -> frozenset[TopicPartition]:
        return frozenset(tp for task in tasks for tp in self.inputs(task))

    def lags(self) -> dict[str, dict[int, LagInfo]]:
        self.require_serving()
        running, copies = self.ports.running(), self.ports.copies()
        here = [
            (task, store, store.changelog, task in running)
            for task, stores in {**copies, **running}.items()
            for store in stores
            if store.changelog is not None
        ]
        ends = self.ports.ends([changelog for _, _, changelog, _ in here]) if here else {}
        found: dict[str, dict[int, LagInfo]] = {}
        for task, store, changelog, active in here:
            end = ends[changelog]
            # An active task wrote all there is; behind its last record are transaction markers.
            position = end if active else _position(store.path)
            if position is not None:
                found.setdefault(store.name, {})[task.partition] = LagInfo(
                    position, end, max(0, end - position)
                )
        return found

    def require_serving(self) -> None:
        """InvalidStateStoreError unless the instance is between start and close, or drains."""
        state = self.ports.state()
        draining = state is ClientState.PENDING_SHUTDOWN and self.ports.draining()
        if state not in SERVING and not draining:
            when = "ask another instance, or start a new one"
            if state is ClientState.CREATED:
                when = "start it first"
            raise InvalidStateStoreError(
                f"This instance is in state {state.name}, its stores cannot be read: {when}."
            )

    def running(self, site: StoreSite) -> dict[int, TaskStore]:
        here = self.ports.global_stores() if site.everywhere else self.ports.running()
        return _of_store(site, here)

    def copies(self, site: StoreSite) -> dict[int, TaskStore]:
        return _of_store(site, self.ports.copies())

    def refuse(self, site: StoreSite, partition: int) -> InvalidStateStoreError:
        place = f"Partition {partition} of store {site.spec.name!r}"
        found = self._holders(site, partition)
        copy = partition in self.copies(site)
        hint = " A copy of it is here: stale=True reads that." if copy else ""
        if found.active_host is not None and found.active_host != self.own_host:
            standbys = [host for host in found.standby_hosts if host != self.own_host]
            others = f" (standbys: {', '.join(standbys)})" if standbys else ""
            message = f"{place} is on {found.active_host}{others}: ask there.{hint}"
            return StateElsewhereError(message, partition=partition, host=found.active_host)
        if copy or found.active_host is not None or self.ports.state() is ClientState.REBALANCING:
            return StateMovingError(
                f"{place} is being restored or handed over: retry shortly.{hint}"
            )
        return StateElsewhereError(
            f"{place} is not on this instance, and its owner is not known: set application.server "
            f"on every instance to have the owner named.",
            partition=partition,
            host=None,
        )

    def refuse_all(self, site: StoreSite) -> InvalidStateStoreError:
        message = f"No task with store {site.spec.name!r} runs on this instance now"
        if self.copies(site) or self.ports.state() is ClientState.REBALANCING:
            return StateMovingError(
                f"{message}: tasks are being restored or handed over. Retry shortly."
            )
        hosts = ", ".join(m.host for m in self.streams_metadata(site.spec.name))
        others = "other instances have them (set application.server on each to have them named)"
        where = f"ask {hosts}" if hosts else others
        return InvalidStateStoreError(f"{message}: {where}.")

    def check_lag(
        self,
        site: StoreSite,
        partition: int,
        store: TaskStore,
        max_lag: int,
    ) -> None:
        if store.changelog is None:
            return
        lag = max(0, self._end(store.changelog) - (_position(store.path) or 0))
        if lag > max_lag:
            host = self._holders(site, partition).active_host
            raise StaleStateError(
                f"The copy of partition {partition} of store {site.spec.name!r} lags by {lag} "
                f"offsets, more than max_lag={max_lag}: retry when it has caught up, or ask the "
                f"active task{f' on {host}' if host else ''}.",
                partition=partition,
                lag=lag,
                max_lag=max_lag,
            )

    def lag_here(self, site: StoreSite, partition: int) -> int | None:
        """The lag of the replica here, in offsets; None without one, or without an answer."""
        running = self.running(site)
        if partition in running and not site.everywhere:
            return 0
        copy = (running if site.everywhere else self.copies(site)).get(partition)
        position = None if copy is None else _position(copy.path)
        if copy is None or copy.changelog is None or position is None:
            return None
        try:
            return max(0, self._end(copy.changelog) - position)
        except RetriableError:
            return None

    def _end(self, changelog: TopicPartition) -> int:
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            known = self._ends.get(changelog)
        if known is not None and now_ms - known[1] <= ENDS_AGE_MS:
            return known[0]
        end = self.ports.ends([changelog])[changelog]
        with self._lock:
            self._ends[changelog] = end, now_ms
        return end


@dataclass(kw_only=True)
class _LocalReader(StoreReader):
    queries: StoreQueries
    site: StoreSite
    partition: int | None
    stale: bool
    max_lag: int | None
    partitioner: Partitioner | None

    def readable(self) -> Sequence[int]:
        self.queries.require_serving()
        here = self.queries.running(self.site).keys() | (
            self.queries.copies(self.site).keys() if self.stale else set[int]()
        )
        return sorted(here if self.partition is None else here & {self.partition})

    def require_some(self) -> None:
        if self.partition is not None:
            self.path(self.partition)
        elif not self.readable():
            raise self.queries.refuse_all(self.site)

    def path(self, partition: int) -> Path:
        self.queries.require_serving()
        active = self.queries.running(self.site).get(partition)
        if active is not None:
            return active.path
        copy = self.queries.copies(self.site).get(partition) if self.stale else None
        if copy is None:
            raise self.queries.refuse(self.site, partition)
        if self.max_lag is not None:
            self.queries.check_lag(self.site, partition, copy, self.max_lag)
        return copy.path

    def active_paths(self) -> Mapping[int, Path]:
        self.queries.require_serving()
        return {
            partition: store.path
            for partition, store in self.queries.running(self.site).items()
            if self.partition in (None, partition)
        }

    def lag(self, partition: int) -> int | None:
        return self.queries.lag_here(self.site, partition)

    def home(self, key: bytes) -> int:
        if self.partition is not None:
            return self.partition
        return partition_of(self.site, key, self.partitioner)


class InteractiveQueries:
    """Queries of `KafkaStreams`, from any thread, from `start` until tasks are handed over."""

    _queries: StoreQueries | None = None

    if TYPE_CHECKING:  # `KafkaStreams` has it

        @property
        def state(self) -> ClientState: ...

    def store(
        self,
        name: str,
        partition: int | None = None,
        *,
        stale: bool = False,
        max_lag: int | None = None,
        partitioner: Partitioner | None = None,
    ) -> ReadOnlyStore:
        """A read-only store of this instance: a `ReadOnlyKeyValueStore`, `ReadOnlyVersionedStore`,
        `ReadOnlyWindowStore` or `ReadOnlySessionStore`, by the store's kind.

        Args:
            name: as in the topology.
            partition: read only this one; None = all partitions on this instance.
            stale: also read replicas of standbys, warm-ups and tasks that are being restored
                (KIP-535): their content is committed, but may be old.
            max_lag: by how many offsets such a replica may lag its changelog (whose end is at most
                one second old), else StaleStateError. None = any lag.
            partitioner: how the producers of the input topics partition keys, a function of (key
                bytes, number of partitions); None = as the program's sources declare.

        Raises StoreNotFoundError; ValueError or TypeError for an impossible partition or lag;
        InvalidStateStoreError if the instance does not run, as do the store's own methods.
        """
        queries = self._asked()
        site = queries.site(name)
        argument: Any = partition
        if isinstance(argument, str) and not argument.isdigit():
            kind = STORE_KINDS[site.spec.kind].__name__
            raise TypeError(
                f"store({name!r}) is a {kind} already; the second argument is a partition, not "
                f"{argument!r}."
            )
        if (
            partition is not None
            and not 0 <= whole_number(partition, "partition") < site.partitions
        ):
            raise ValueError(
                f"Store {name!r} has the partitions 0 to {site.partitions - 1}, not {partition}."
            )
        if max_lag is not None and whole_number(max_lag, "max_lag") < 0:
            raise ValueError(f"max_lag={max_lag}: it counts offsets, from 0.")
        if max_lag is not None and not stale:
            raise ValueError(
                "max_lag bounds how far a copy may be behind: it goes with stale=True."
            )
        reader = _LocalReader(
            queries=queries,
            site=site,
            partition=partition,
            stale=stale,
            max_lag=max_lag,
            partitioner=partitioner,
        )
        return STORE_KINDS[site.spec.kind](site.spec, reader, site.decode, site.results)

    def query_metadata_for_key(
        self, store: str, key: Any, partitioner: Partitioner | None = None
    ) -> KeyQueryMetadata:
        """The instances that have the partition of ``key`` in a store, as of the last rebalance,
        and the present lag of this instance's replica. Pass a key without its window.

        Raises StoreNotFoundError, SerdeError (a key of another type).
        """
        queries = self._asked()
        site = queries.site(store)
        partition = partition_of(site, key_bytes(site.spec, key), partitioner)
        return replace(queries.place(site, partition), lag=queries.lag_here(site, partition))

    def streams_metadata_for_store(self, store: str) -> tuple[StreamsMetadata, ...]:
        """All instances with an ``application.server`` and an active or standby replica of a store,
        sorted by that address; empty while unknown."""
        return self._asked().streams_metadata(store)

    def metadata_for_all_streams_clients(self) -> tuple[StreamsMetadata, ...]:
        """All instances with an ``application.server``, sorted by that address; empty while
        unknown."""
        return self._asked().streams_metadata()

    def all_local_store_partition_lags(self) -> dict[str, dict[int, LagInfo]]:
        """Position, changelog end and lag of each replica on this instance, standbys included, by
        store and partition (KIP-535). Stores without a changelog are left out. Raises
        RetriableError if no broker answers."""
        return self._asked().lags()

    def _asked(self) -> StoreQueries:
        if self._queries is None:
            if self.state in SERVING:
                raise InvalidStateStoreError(
                    "This instance is still starting: its stores can be read when its state is "
                    "RUNNING."
                )
            raise InvalidStateStoreError(
                "This instance has not been started: its stores can be read from start until close."
            )
        return self._queries


def store_queries(
    blueprint: Blueprint, own_host: str, ports: QueryPorts, clock: Clock
) -> StoreQueries:
    topics = topics_into_stores(blueprint.topology, blueprint.application_id)
    spread, plan = partitioners_of_stores(blueprint.topology), blueprint.plan

    def partitioner(spec: StoreSpec) -> Partitioner | None:
        by = spread.get(spec.name, MURMUR2)
        return None if by == MURMUR2 else partial(_partition, by, spec.key_serde)

    def site(
        spec: StoreSpec,
        subtopology: int,
        partitions: int,
        everywhere: bool,
    ) -> StoreSite:
        return StoreSite(
            spec=spec,
            subtopology=subtopology,
            partitions=partitions,
            decode=plan.value_decoder(spec.name),
            everywhere=everywhere,
            results=plan.value_results(spec.name),
            partitioner=None if everywhere else partitioner(spec),
        )

    sites = [
        site(
            spec,
            index,
            min(
                blueprint.number_of_tasks(index),
                max(blueprint.partitions[topic] for topic in topics[spec.name]),
            ),
            False,
        )
        for index, specs in blueprint.stores.items()
        for spec in specs
    ]
    for table in plan.global_tables:
        partitions = blueprint.global_partitions[table.source.topic]
        sites.append(site(table.store, table.subtopology, partitions, True))
    sites += [site(loaded.store, loaded.subtopology, 1, True) for loaded in plan.loaded_tables]
    by_name = {one.spec.name: one for one in sites}
    return StoreQueries(by_name, blueprint.inputs_of, own_host, ports, clock)


def _partition(
    by: KeyPartitioner,
    serde: Serde,
    key: bytes,
    partitions: int,
) -> int:
    return int(partitions_of(by, "", pa.array([key], pa.binary()), serde, partitions)[0])


def partition_of(site: StoreSite, key: bytes, partitioner: Partitioner | None) -> int:
    """ValueError if the partitioner names a partition that the store does not have."""
    chosen = partitioner or site.partitioner or default_partitioner
    partition = chosen(key, site.partitions)
    if not 0 <= partition < site.partitions:
        raise ValueError(
            f"The partitioner gave {partition} for a store with the partitions 0 to "
            f"{site.partitions - 1}."
        )
    return partition


def _of_store(site: StoreSite, tasks: TaskStores) -> dict[int, TaskStore]:
    return {
        task.partition: store
        for task, stores in tasks.items()
        if task.subtopology == site.subtopology
        for store in stores
        if store.name == site.spec.name
    }


def _position(path: Path) -> int | None:
    """A copy's changelog position, 0 with nothing loaded; None where it went away meanwhile."""
    try:
        return LmdbStore.open(path).position or 0
    except (StoreMismatchError, StoreClosedError):
        return None
