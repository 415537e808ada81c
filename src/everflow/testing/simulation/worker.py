"""A stream thread's job on virtual time: the steps of `runtime.worker.kafka_sink.KafkaSink` in their order, over the simulated log.

It asks the real gate (`commit_gate.answer`), sends the offsets with the metadata it was given, and applies to the store only after
the commit, on the same conditions. `CrashPlan` ends a batch at one of the crash points, or lets it take longer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from everflow.errors import RetriableError, StoreMismatchError
from everflow.records import TaskId, TopicPartition
from everflow.runtime.commit.batch import (
    ABORTED,
    COMMITTED,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
    format_metadata,
)
from everflow.runtime.commit.commit_gate import GateBackend, GateBook, answer
from everflow.testing.simulation.disk import SimulatedDisk
from everflow.testing.simulation.group_coordinator import Code
from everflow.testing.simulation.history import History
from everflow.testing.simulation.log import Committed, FencedError, Fold, RefusedError, SimulatedLog
from everflow.testing.simulation.network import Network
from everflow.testing.simulation.scheduler import SimulatedClock
from everflow.testing.simulation.settings import Timings

_T = TypeVar("_T")

POINTS = ("before-transaction", "first-record", "offsets-sent", "committed", "applying")
RETRY_MS = 20.0
PATIENCE_MS = 30_000.0
"""The client's time-out for a call that finds nobody."""


@dataclass
class CrashPlan:
    """What goes wrong with a thread's next batch: ``point`` kills its worker there, ``delay_ms`` lets it stall before it writes."""

    point: str | None = None
    delay_ms: float = 0.0


@dataclass
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
    timings: Timings
    history: History
    crashes: dict[int, CrashPlan] = field(default_factory=dict)
    on_batch: Callable[[BatchRequest, float, bool], None] = lambda request, duration_ms, committed: None
    on_crash: Callable[[], None] = lambda: None
    """Told when a batch that a plan has hit is over."""
    _epochs: dict[str, int] = field(default_factory=dict)

    def forget_producer(self, transactional_id: str) -> None:
        """The process that held it is gone."""
        self._epochs.pop(transactional_id, None)


@dataclass
class SimulatedJob:
    """`stream_thread.Job`; runs on the stream thread's fiber."""

    services: WorkerServices
    thread: int

    def run(self, request: BatchRequest) -> BatchResult:
        """See `Job.run`."""
        self.services.book.hello(request.batch_id, f"t{self.thread}-sink", hash_pid(self.services.name, self.thread))
        plan = self.services.crashes.pop(self.thread, None) if request.tasks else None
        began = self.services.clock.monotonic_ms()
        batch = _Batch(self.services, request, plan or CrashPlan())
        try:
            result = batch.run()
        except (FencedError, RefusedError, RetriableError, StoreMismatchError, _WorkerDiedError) as failure:
            self.services.forget_producer(request.transactional_id)
            self._done(request, began, f"failed: {failure}", False)
            raise BatchFailedError(BatchFailure(_kind(failure), f"{type(failure).__name__}: {failure}")) from failure
        finally:
            if plan is not None:
                self.services.on_crash()
        if batch.touched:
            self._done(request, began, result.outcome + (f": {result.reason}" if result.reason else ""), result.committed)
        return result

    def close(self) -> None:
        """Nothing is held."""

    def _done(self, request: BatchRequest, began: float, what: str, committed: bool) -> None:
        duration = self.services.clock.monotonic_ms() - began
        self.services.on_batch(request, duration, committed)
        if not committed:
            self.services.history.add(self.services.name, f"batch {request.batch_id} of t{self.thread} {what}")


def hash_pid(name: str, thread: int) -> int:
    """A process id that is the same in every run of one seed."""
    return 10_000 + sum(map(ord, name)) * 64 + thread


class _WorkerDiedError(Exception):
    """The batch's worker was killed at a crash point."""


def _kind(failure: Exception) -> str:
    if isinstance(failure, _WorkerDiedError):
        return "worker"
    if isinstance(failure, FencedError):
        return "migrated"
    if isinstance(failure, RefusedError):
        return "generation" if failure.code is Code.ILLEGAL_GENERATION else "migrated"
    return "retriable"


@dataclass
class _Batch:
    """One attempt of one batch."""

    services: WorkerServices
    request: BatchRequest
    plan: CrashPlan
    touched: list[TaskId] = field(default_factory=list)

    def run(self) -> BatchResult:
        services, request = self.services, self.request
        ranges = {TopicPartition.parse(name): (bounds[0], bounds[1]) for name, bounds in request.ranges.items()}
        self.touched = [TaskId.parse(t.task) for t in request.tasks if any(e > s for s, e in self._inputs(t.task, ranges).values())]
        consumed = {name: bounds[1] for name, bounds in request.ranges.items()}
        records = sum(end - start for start, end in ranges.values())
        if not self.touched:
            return BatchResult(COMMITTED, consumed=consumed, counts={"in": 0, "out": 0})
        contents = {task: self._read(task, ranges) for task in self.touched}
        fixed = services.random.uniform(*services.timings.batch_base_ms)
        services.clock.park(fixed + records / services.timings.batch_rate * 1000 + self.plan.delay_ms)
        self._reached("before-transaction")
        epoch = self._epoch()
        transaction = self._patiently(
            lambda: services.log.begin(
                request.transactional_id, epoch, f"{services.name}/t{request.thread}", services.timings.transaction_timeout_ms
            )
        )
        positions = self._write(epoch, contents, ranges)
        services.clock.park(services.network.delay())
        self._reached("first-record")
        offsets = self._offsets(ranges)
        wanted = [[tp.topic, tp.partition, offset.offset, offset.metadata] for tp, offset in sorted(offsets.items())]
        reply = answer(services.book, services.backend, {"op": "commit", "batch": request.batch_id, "offsets": wanted})
        if not reply["ok"]:
            services.log.abort(request.transactional_id, epoch)
            return BatchResult(ABORTED, reason=str(reply["reason"]))
        self._send_offsets(epoch, offsets, {tp: ranges[tp] for tp in offsets}, str(reply["group_metadata"]))
        self._reached("offsets-sent")
        services.clock.park(services.network.delay())
        services.log.commit(request.transactional_id, epoch)
        services.clock.park(services.network.delay())
        self._reached("committed")
        self._apply(contents, positions)
        del transaction
        return BatchResult(
            COMMITTED,
            consumed=consumed,
            stream_times={str(task): {"node": offsets[self._first_input(task)].offset} for task in self.touched},
            positions={str(task): {"store": positions[task]} for task in positions},
            counts={"in": records, "out": records, "changelog": records},
        )

    # --- steps ---------------------------------------------------------------------------------------------------

    def _inputs(self, task: str, ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, tuple[int, int]]:
        index, partition = TaskId.parse(task)
        prefix = f"input-{index}-"
        return {tp: bounds for tp, bounds in ranges.items() if tp.partition == partition and tp.topic.startswith(prefix)}

    def _first_input(self, task: TaskId) -> TopicPartition:
        return TopicPartition(f"input-{task.subtopology}-0", task.partition)

    def _store(self, task: TaskId) -> tuple[Path, TopicPartition, tuple[str, str]] | None:
        context = next(t for t in self.request.tasks if t.task == str(task))
        place = context.stores.get("store")
        if place is None or place["changelog"] is None:
            return None
        changelog = TopicPartition(str(place["changelog"]), task.partition)
        return Path(str(place["path"])), changelog, (context.incarnation, context.last_batch)

    def _read(self, task: TaskId, ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, Fold]:
        """The store as committed, with this batch's records counted in."""
        place = self._store(task)
        stored = {} if place is None else dict(self.services.disk.store(place[0]).content)
        for tp, (start, end) in self._inputs(str(task), ranges).items():
            stored[tp] = stored.get(tp, Fold()).plus(start, end)
        return stored

    def _epoch(self) -> int:
        known = self.services._epochs
        if self.request.transactional_id not in known:
            log, name = self.services.log, self.request.transactional_id
            known[name] = self._patiently(lambda: log.init_transactions(name))
        return known[self.request.transactional_id]

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """A client's call, tried until it goes through or its time-out is over."""
        end = self.services.clock.monotonic_ms() + PATIENCE_MS
        while True:
            try:
                return call()
            except RetriableError:
                if self.services.clock.monotonic_ms() >= end:
                    raise
                self.services.clock.park(RETRY_MS)

    def _write(
        self, epoch: int, contents: Mapping[TaskId, Mapping[TopicPartition, Fold]], ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TaskId, int]:
        positions = {}
        for task, content in contents.items():
            place = self._store(task)
            if place is not None:
                records = sum(end - start for start, end in self._inputs(str(task), ranges).values())
                written = self.services.log.write(
                    self.request.transactional_id, epoch, place[1], records, content, self.request.batch_id
                )
                positions[task] = written.end
        return positions

    def _offsets(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, Committed]:
        offsets = {}
        for task in self.touched:
            for tp, (_, end) in self._inputs(str(task), ranges).items():
                offsets[tp] = Committed(end, format_metadata(self.request.batch_id, {"node": end}))
        return offsets

    def _send_offsets(
        self,
        epoch: int,
        offsets: Mapping[TopicPartition, Committed],
        ranges: Mapping[TopicPartition, tuple[int, int]],
        metadata: str,
    ) -> None:
        generation, member_id, instance_id = json.loads(base64.b64decode(metadata))
        self.services.clock.park(self.services.network.delay())

        def send() -> None:
            try:
                self.services.log.send_offsets(
                    self.request.transactional_id, epoch, offsets, ranges, (generation, member_id, instance_id)
                )
            except RefusedError as refused:
                if refused.code is Code.NOT_COORDINATOR:  # the client looks for the new one
                    raise RetriableError("the group's coordinator is away") from refused
                raise

        try:
            self._patiently(send)
        except (RefusedError, RetriableError):
            self.services.log.abort(self.request.transactional_id, epoch)
            raise

    def _apply(self, contents: Mapping[TaskId, Mapping[TopicPartition, Fold]], positions: Mapping[TaskId, int]) -> None:
        for number, (task, content) in enumerate(sorted(contents.items())):
            place = self._store(task)
            if place is not None:
                store = self.services.disk.store(place[0])
                store.apply(content, positions[task], place[2], self.request.batch_id)
            if number == 0:
                self._reached("applying")

    def _reached(self, point: str) -> None:
        if self.plan.point == point:
            raise _WorkerDiedError(f"worker killed at {point}")

