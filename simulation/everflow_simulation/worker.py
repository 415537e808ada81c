"""A stream thread's job on virtual time: the real `KafkaSink` over simulated log, gate and disk.

`CrashPlan` ends a batch at one of the crash points, or lets it take longer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from everflow import serdes
from everflow.errors import EverflowError, GenerationChanged, RetriableError
from everflow.instance.commit_gate import GateBackend, GateBook, answer
from everflow.protocol.messages import (
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
    GateAnswer,
)
from everflow.records import CommittedOffset, EdgeBatch, Int32, Int64, StoreChanges, TopicPartition
from everflow.state.store_meta import Owner
from everflow.topology.sources import Source
from everflow.worker.crash_points import APPLYING
from everflow.worker.failures import failure_of
from everflow.worker.sink import KafkaSink
from everflow.worker.task_step import SinkOutput, StepResult
from everflow_simulation.disk import SimulatedDisk
from everflow_simulation.history import History
from everflow_simulation.log import Fold, SimulatedLog
from everflow_simulation.network import Network
from everflow_simulation.scheduler import SimulatedClock
from everflow_simulation.settings import SimulationSettings

_T = TypeVar("_T")

RETRY_MS = 20.0
PATIENCE_MS = 30_000.0
"""The client's time-out for a call that finds nobody."""
KEY = b"folds"
"""Of a simulated store: its one key, whose value is what the store holds."""
_NOW: Int64 = np.ones(1, np.int64)
_ZERO: Int32 = np.zeros(1, np.int32)
_ONE_OUTPUT = EdgeBatch(
    key=pa.nulls(1),
    value=pa.nulls(1),
    timestamp=_NOW,
    seq=_NOW,
    source=_ZERO,
    partition=_ZERO,
    offset=_NOW,
)
_NOTHING = pa.nulls(1, pa.binary())
_OUTPUT = SinkOutput(
    node="node", topics="output", keys=_NOTHING, values=_NOTHING, batch=_ONE_OUTPUT
)


@dataclass
class CrashPlan:
    """What goes wrong with a thread's next batch: ``point`` kills its worker there, ``delay_ms``
    lets it stall before it writes."""

    point: str | None = None
    delay_ms: float = 0.0


@dataclass(kw_only=True)
class WorkerServices:
    """What the workers of one instance share."""

    name: str
    log: SimulatedLog
    clock: SimulatedClock
    network: Network
    disk: SimulatedDisk
    book: GateBook
    backend: GateBackend
    random: Random
    settings: SimulationSettings
    history: History
    crashes: dict[int, CrashPlan] = field(default_factory=dict)
    on_batch: Callable[[BatchRequest, float, bool], None] = lambda request, ms, committed: None
    on_crash: Callable[[], None] = lambda: None
    """Called when a batch that a plan has hit is over."""
    _epochs: dict[str, int] = field(default_factory=dict)
    _batches: dict[int, _Batch] = field(default_factory=dict)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The inputs, as a plan names them."""
        text = serdes.string()
        listed = [
            (index, topic) for index, topics in self.settings.topics.items() for topic in topics
        ]
        return tuple(
            Source(
                index=n,
                topic=topic,
                subtopology=index,
                node=topic,
                key_serde=text,
                value_serde=text,
                offset_reset=None,
                kind="stream",
                merged=False,
                slot=n + 1,
            )
            for n, (index, topic) in enumerate(listed)
        )

    def kill(self, thread: int) -> None:
        """SIGKILL to the worker of a stream thread."""
        if thread in self._batches:
            self._batches[thread].killed.set()

    def forget_producer(self, transactional_id: str) -> None:
        """The process that held it is gone."""
        self._epochs.pop(transactional_id, None)


@dataclass
class SimulatedJob:
    """`stream_thread.Job`; runs on the stream thread's fiber."""

    services: WorkerServices
    thread: int

    def run(self, request: BatchRequest, serves: Callable[[int], bool]) -> BatchResult:
        """See `Job.run`."""
        serves(hash_pid(self.services.name, self.thread))
        plan = self.services.crashes.pop(self.thread, None) if request.tasks else None
        began = self.services.clock.monotonic_ms()
        batch = self.services._batches[self.thread] = _Batch(
            services=self.services, request=request, plan=plan or CrashPlan()
        )
        try:
            result = batch.run()
        except (EverflowError, _WorkerDied) as error:
            self.services.forget_producer(request.transactional_id)
            failure = (
                failure_of(error)
                if isinstance(error, EverflowError)
                else BatchFailure(kind="worker", error=str(error))
            )
            self._done(request, began, f"failed ({failure.kind}): {failure.error}", False)
            raise BatchFailedError(failure) from error
        finally:
            del self.services._batches[self.thread]
            if plan is not None:
                self.services.on_crash()
        if batch.touched:
            self._done(
                request,
                began,
                result.outcome + (f": {result.reason}" if result.reason else ""),
                result.committed,
            )
        return result

    def close(self) -> None:
        """Nothing is held."""

    def _done(self, request: BatchRequest, began: float, what: str, committed: bool) -> None:
        duration = self.services.clock.monotonic_ms() - began
        self.services.on_batch(request, duration, committed)
        if not committed:
            self.services.history.add(
                self.services.name, f"batch {request.batch_id} of t{self.thread} {what}"
            )


def hash_pid(name: str, thread: int) -> int:
    """A process id that is the same in every run of one seed."""
    return 10_000 + sum(map(ord, name)) * 64 + thread


class _WorkerDied(BaseException):
    """The batch's worker was killed at a crash point: none of its own code runs any more."""


@dataclass(kw_only=True)
class _Batch:
    """One attempt of one batch: the operators' result, the sink's ports (`SinkPorts`) and its
    writer (`SinkWriter`) in one."""

    services: WorkerServices
    request: BatchRequest
    plan: CrashPlan
    killed: threading.Event = field(default_factory=threading.Event)
    _epoch: int = -1
    _positions: dict[TopicPartition, int] = field(default_factory=dict)

    def run(self) -> BatchResult:
        services = self.services
        result = self._result()
        if self.touched:
            fixed = services.random.uniform(*services.settings.timings.batch_base_ms)
            records = sum(end - start for start, end in self.request.ranges.values())
            self._park(
                fixed + records / services.settings.timings.batch_rate * 1000 + self.plan.delay_ms
            )
        return KafkaSink(None, self)(self.request, result, services.sources)

    @property
    def touched(self) -> bool:
        """Whether there is anything to process."""
        return any(end > start for start, end in self.request.ranges.values())

    def _result(self) -> StepResult:
        """The effects of one operator per task: it counts every record into its store, or passes on
        one for all of them."""
        result = StepResult(consumed={tp: wanted.end for tp, wanted in self.request.ranges.items()})
        for context in self.request.tasks:
            ranges = {
                tp: self.request.ranges[tp] for tp in self.services.settings.tasks[context.task]
            }
            records = sum(end - start for start, end in ranges.values())
            if not records:
                continue
            result.stream_times[context.task] = {"node": max(end for _, end in ranges.values())}
            if not context.stores:
                result.outputs.append(_OUTPUT)
            for name, place in context.stores.items():
                content = dict(self.services.disk.store(Path(place.path)).content)
                content.update(
                    {tp: content.get(tp, Fold()).plus(*bounds) for tp, bounds in ranges.items()}
                )
                values = cast(Any, [content]) * records
                result.changes[context.task] = [
                    StoreChanges(name, [KEY] * records, values, np.ones(records, np.int64))
                ]
        return result

    # --- SinkPorts --------------------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        return self.plan.point is not None

    def reached(self, point: str) -> None:
        if self.plan.point == point:
            raise _WorkerDied(f"worker killed at {point}")

    def writer(self, request: BatchRequest) -> _Batch:
        known, log, name = self.services._epochs, self.services.log, request.transactional_id
        if name not in known:
            known[name] = self._patiently(lambda: log.init_transactions(name))
        self._epoch = known[name]
        return self

    def ask(
        self, request: BatchRequest, offsets: Sequence[tuple[str, int, int, str]]
    ) -> GateAnswer:
        question = {"op": "commit", "batch": request.batch_id, "offsets": offsets}
        return GateAnswer.of(answer(self.services.book, self.services.backend, question))

    def apply(
        self,
        path: str,
        changes: StoreChanges,
        position: int | None,
        expected: Owner,
        batch: str,
        inputs: Mapping[str, int],
    ) -> None:
        """A worker that dies while it applies has done so with one store: LMDB leaves a store as
        before or as after."""
        self.services.disk.store(Path(path)).apply(
            cast(Any, changes.values[-1]) if changes else None, position, expected, batch, inputs
        )
        self.reached(APPLYING)

    def entry(self, path: str, key: bytes) -> None:
        return None

    def memory(self) -> None:
        return None

    def topic_limit(self, request: BatchRequest, topic: str) -> int | None:
        return None

    # --- SinkWriter -------------------------------------------------------------------------------

    def begin(self) -> None:
        services, request = self.services, self.request
        who, timeout_ms = (
            f"{services.name}/t{request.thread}",
            services.settings.timings.transaction_timeout_ms,
        )
        self._patiently(
            lambda: services.log.begin(request.transactional_id, self._epoch, who, timeout_ms)
        )

    def write(
        self,
        topic: str,
        keys: Any,
        values: Any,
        timestamps: Int64,
        partition: int | Int64 | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if isinstance(partition, int) and len(timestamps):  # nobody reads the outputs
            tp, name, batch = (
                TopicPartition(topic, partition),
                self.request.transactional_id,
                self.request.batch_id,
            )
            self._positions[tp] = self.services.log.write(
                name, self._epoch, tp, len(timestamps), values[-1], batch
            ).end

    @property
    def blocked_ms(self) -> float:
        return 0.0

    @property
    def renewals(self) -> int:
        return 0

    def partition_count(self, topic: str) -> int:
        return 1

    def send(self) -> None:
        pass

    def flush(self, timeout_s: float) -> None:
        self._travel()

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._positions

    def send_offsets(
        self, offsets: Iterable[tuple[str, int, int, str]], group_metadata: bytes, timeout_s: float
    ) -> None:
        services, name = self.services, self.request.transactional_id
        member = tuple(json.loads(group_metadata))
        sent = {
            TopicPartition(topic, partition): CommittedOffset(offset, text)
            for topic, partition, offset, text in offsets
        }
        ranges = {tp: self.request.ranges[tp] for tp in sent}
        self._travel()
        self._patiently(lambda: services.log.send_offsets(name, self._epoch, sent, ranges, member))

    def commit(self, timeout_s: float) -> None:
        self._travel()
        self.services.log.commit(self.request.transactional_id, self._epoch)
        self._travel()

    def abort(self, timeout_s: float) -> None:
        self.services.log.abort(self.request.transactional_id, self._epoch)

    def close(self) -> None:
        self.services.forget_producer(self.request.transactional_id)

    def _travel(self) -> None:
        self._park(self.services.network.delay())

    def _park(self, ms: float) -> None:
        self.services.clock.park(ms, self.killed)
        if self.killed.is_set():
            raise _WorkerDied("worker killed")

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """A client's call, tried until it goes through or its time-out is over."""
        end = self.services.clock.monotonic_ms() + PATIENCE_MS
        while True:
            try:
                return call()
            except GenerationChanged:
                raise
            except RetriableError:
                if self.services.clock.monotonic_ms() >= end:
                    raise
                self._park(RETRY_MS)
