"""The ports of a step in a Spark Python worker: producer, the driver's gate, stores on disk."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from everflow.columns.key_partitions import java_partitions
from everflow.errors import EverflowError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.memory import Taken, of_this_process
from everflow.records import StoreChanges
from everflow.runtime.commit.batch import EXACTLY_ONCE_V2, BatchRequest, TaskContext, WorkerClients
from everflow.runtime.commit.gate_client import GateAnswer, GateClient
from everflow.runtime.step.step_stores import FollowedView
from everflow.runtime.worker.crash_points import ENVIRONMENT_VARIABLE, reached
from everflow.runtime.worker.held_pages import HeldPages
from everflow.state.lmdb_env import DATA_FILE
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.store_meta import Owner
from everflow.state.task_directory import distrust

CONFIG_TIMEOUT_S = 5.0


class BatchUnwantedError(RetriableError):
    """The driver does not want this batch any more (or is gone); nothing was written."""

    code = "EF-BATCH-UNWANTED"


@dataclass(frozen=True)
class LmdbAccess:
    """Snapshots of the LMDB stores whose folders the request names."""

    def view(self, task: TaskContext, spec: StoreSpec) -> AbstractContextManager[FollowedView]:
        """See `StoreAccess`."""
        return LmdbStore.open(task.stores[spec.name].path).snapshot()

    def homes(self, keys: Sequence[bytes], partitions: int) -> Sequence[int]:
        """See `StoreAccess`."""
        found: list[int] = java_partitions(pa.array(keys, pa.binary()), partitions).tolist()
        return found

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        """See `StoreAccess`: the recovery after this batch finds the mark."""
        place = task.stores[spec.name]
        if place.changelog is not None:
            distrust(Path(place.path), reason)


def announce(request: BatchRequest) -> None:
    """Tell the driver which process serves the batch, so that it can be killed after a failure
    (scenario 34)."""
    gate = _gate(request.gate)
    if not gate.hello(request.batch_id, f"t{request.thread}", os.getpid()):
        raise BatchUnwantedError(
            f"the driver no longer runs batch {request.batch_id}; nothing was written"
        )


_held = HeldPages()
_gates: dict[int, tuple[str, GateClient]] = {}
"""Process -> its gate and the connection there: an instance's socket serves all of its batches."""


def _gate(path: str) -> GateClient:
    """This process's connection; for its main thread. A fork makes its own."""
    known = _gates.get(os.getpid())
    if known is None or known[0] != path:
        if known is not None:
            known[1].close()
        _gates.clear()
        _gates[os.getpid()] = known = (path, GateClient(path))
    return known[1]


_clients: dict[str, WorkerClients] = {}
"""Gate -> what it has told this process; of the last one."""


def clients_of(request: BatchRequest) -> WorkerClients:
    """Settings of the clients that serve an instance's batches. BatchUnwantedError where its driver
    is gone."""
    found = _clients.get(request.gate)
    if found is None:
        try:
            found = _gate(request.gate).clients()
        except ConnectionError as error:
            raise BatchUnwantedError(f"{error}; nothing was written") from error
        _clients.clear()
        _clients[request.gate] = found
    return found


@dataclass(frozen=True)
class WorkerPorts:
    """`kafka_sink.SinkPorts` of this process; ``held_bytes``: see `HeldPages`."""

    held_bytes: int

    @property
    def watched(self) -> bool:
        return ENVIRONMENT_VARIABLE in os.environ

    def reached(self, point: str) -> None:
        reached(point)

    def writer(self, request: BatchRequest) -> RecordWriter:
        return RecordWriter.get(
            clients_of(request).producer,
            request.transactional_id if request.guarantee == EXACTLY_ONCE_V2 else None,
        )

    def ask(
        self, request: BatchRequest, offsets: Sequence[tuple[str, int, int, str]]
    ) -> GateAnswer:
        return _gate(request.gate).commit(request.batch_id, offsets)

    def apply(
        self,
        path: str,
        changes: StoreChanges,
        position: int | None,
        expected: Owner,
        batch: str,
        inputs: Mapping[str, int],
    ) -> None:
        LmdbStore.open(path).apply(
            changes,
            position=position,
            expected=expected,
            batch=batch,
            inputs=inputs,
            now_ms=int(time.time() * 1000),
            reached=reached,
        )
        size = (Path(path) / DATA_FILE).stat().st_size
        for full in _held.wrote(path, len(changes), size, self.held_bytes):
            LmdbStore.close_at(full)

    def entry(self, path: str, key: bytes) -> bytes | None:
        with LmdbStore.open(path).snapshot() as view:
            return view.get_many([key])[0]

    def memory(self) -> Taken | None:
        return of_this_process(os.getpid()).taken()

    def topic_limit(self, request: BatchRequest, topic: str) -> int | None:
        admin = ClusterAdmin.beside(clients_of(request).producer)
        try:
            return int(admin.topic_configs([topic], CONFIG_TIMEOUT_S)[topic]["max.message.bytes"])
        except (EverflowError, KeyError, ValueError):
            return None
        finally:
            admin.close()
