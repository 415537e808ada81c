"""Stores on disk and an instance without Kafka, for tests of queries."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from everflow import serdes
from everflow.instance.client_state import ClientState
from everflow.instance.query.queries import (
    Hosts,
    InteractiveQueries,
    QueryPorts,
    StoreQueries,
    StoreSite,
)
from everflow.instance.tasks.task import TaskStore
from everflow.records import TaskId, TopicPartition
from everflow.serdes.windowed import window_store_key
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from unit.builders import store_spec
from unit.manual_clock import ManualClock

COUNTS = store_spec("counts")
WINDOWS = store_spec("windows", "window", retention_ms=10**12, window_size_ms=1_000)
PARTITIONS = 4
SITES = [
    StoreSite(spec=spec, subtopology=0, partitions=PARTITIONS, decode=spec.value_serde.decode)
    for spec in (COUNTS, WINDOWS)
]


def write(path: Path, spec: StoreSpec, entries: Mapping[bytes, int | None]) -> None:
    """Put (None: delete) store keys, as a restore would."""
    store = LmdbStore.open(path, kind=spec.kind, retention_ms=spec.retention_ms)
    values = [serdes.long().encode(value) for value in entries.values()]
    position = (store.position or 0) + len(entries)
    store.load_chunk(list(entries), values, np.zeros(len(entries), np.int64), position)


def windows(entries: Mapping[tuple[str, int], int | None]) -> dict[bytes, int | None]:
    """(key, window start) -> value as store keys."""
    return {window_store_key(key.encode(), start): value for (key, start), value in entries.items()}


@dataclass
class Instance(InteractiveQueries):
    """The query side of an instance over stores in a folder; partitions are those that a key's
    first byte names."""

    folder: Path
    state: ClientState = ClientState.RUNNING
    active: dict[TaskId, Sequence[TaskStore]] = field(default_factory=dict)
    copies: dict[TaskId, Sequence[TaskStore]] = field(default_factory=dict)
    hosts: Hosts | None = None
    end: int = 0
    asked: int = 0
    draining: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    sites: Sequence[StoreSite] = tuple(SITES)
    host: str = "me:1"

    def __post_init__(self) -> None:
        ports = QueryPorts(
            state=lambda: self.state,
            running=lambda: self.active,
            copies=lambda: self.copies,
            hosts=lambda: self.hosts,
            ends=self.ends,
            draining=lambda: self.draining,
        )
        sites = {site.spec.name: site for site in self.sites}
        self._queries = StoreQueries(sites, self.inputs, self.host, ports, self.clock)

    def inputs(self, task: TaskId) -> list[TopicPartition]:
        return [TopicPartition("in", task.partition)]

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked += 1
        return dict.fromkeys(partitions, self.end)

    def place(self, partition: int, spec: StoreSpec, number: int = 0) -> Path:
        """Where a store of a partition lies, in its n-th rebuild."""
        return self.folder / f"0_{partition}" / f"{spec.name}-{number}"

    def put(
        self,
        partition: int,
        spec: StoreSpec,
        entries: Mapping[bytes, int | None],
        *,
        active: bool = True,
    ) -> Path:
        """Write into a store and show it as active or as a copy."""
        path = self.place(partition, spec)
        write(path, spec, entries)
        self.show(partition, spec, path, active=active)
        return path

    def show(self, partition: int, spec: StoreSpec, path: Path, *, active: bool = True) -> None:
        """The partition's store of this kind lies there."""
        store = TaskStore(spec.name, path, TopicPartition(f"app-{spec.name}-changelog", partition))
        tasks = self.active if active else self.copies
        task = TaskId(0, partition)
        tasks[task] = (*(s for s in tasks.get(task, ()) if s.name != spec.name), store)

    def close(self) -> None:
        """Close every store in the folder."""
        for path in self.paths():
            LmdbStore.close_at(path)

    def paths(self) -> Iterable[Path]:
        return [path.parent for path in self.folder.glob("*/*/data.mdb")]


def by_first_letter(key: bytes, partitions: int) -> int:
    """A partitioner that can be read: ``a`` is partition 0, ``b`` 1, ..."""
    return (key[0] - ord("a")) % partitions
