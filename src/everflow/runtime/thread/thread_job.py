"""Runs micro-batches as Spark jobs: a request in, a result or a classified failure out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext

from everflow.errors import EverflowError, RecordTimeError
from everflow.kafka.admin import ClusterAdmin
from everflow.records import OffsetRange, TopicPartition
from everflow.runtime.commit.batch import (
    FAILED,
    REQUEST_PROPERTY,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
)
from everflow.runtime.step.task_step import TaskStep, failed, hop_out_of
from everflow.runtime.thread.packing import packed
from everflow.runtime.thread.resident_job import ResidentJob
from everflow.runtime.thread.road import ResidentRoad, column_lines
from everflow.runtime.thread.spark_failure import failure_of_text, says
from everflow.runtime.worker.kafka_sink import KafkaSink
from everflow.runtime.worker.record_times import MOST_MS, too_late
from everflow.runtime.worker.resident_segments import LogDecoder
from everflow.runtime.worker.resident_step import ResidentStep, refuse
from everflow.runtime.worker.worker_ports import LmdbAccess, WorkerPorts, announce
from everflow.spark.job import (
    PreparedJob,
    ServingJob,
    SparkGoneError,
    SparkJobError,
    failure,
    local_property,
)
from everflow.spark.session import get_session
from everflow.spark.source import SourceSettings
from everflow.topology.hops import HopSchema, ends_hop
from everflow.topology.physical_plan import PhysicalPlan
from everflow.travel.parcel import Parcel

LOOK_UP_S = 5.0
CHANNEL_PROPERTY = "everflow.resident"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """``dead_letter_topic`` None = stop at an undecodable record; ``client`` Kafka client
    properties for the readers."""

    bootstrap_servers: str
    application_id: str
    read_committed: bool
    dead_letter_topic: str | None = None
    layouts: str = ""
    client: Mapping[str, str] = field(default_factory=dict)
    reader: Mapping[str, Any] = field(default_factory=dict)
    """librdkafka properties of the resident step's reader, ``bootstrap.servers`` included."""
    prepared_source: bool = True
    resident_records: int = 10_000_000
    """Batches up to this size go to the resident step where the plan has one. 0 = never."""


def resident_channel() -> str:
    """The socket over which a resident step gets its requests."""
    path = local_property(CHANNEL_PROPERTY)
    if path is None:
        raise RuntimeError("no channel in the job's local properties")
    return path


def read_request() -> BatchRequest:
    """The request of the micro-batch that this worker serves."""
    text = local_property(REQUEST_PROPERTY)
    if text is None:
        raise RuntimeError("no micro-batch request in the job's local properties")
    return BatchRequest.from_json(text)


@dataclass(frozen=True)
class Work:
    """What runs in a stream thread's workers; it travels as one parcel, so that its functions share
    the program's variables."""

    steps: tuple[TaskStep, ...]
    resident: ResidentStep | None


@dataclass(frozen=True)
class PackedStep:
    """The step of a level of packed `Work`: what Spark pickles for each job, and unpickles for each
    micro-batch."""

    work: Parcel
    level: int
    hop_out: HopSchema | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Where Spark closes the connection before the end marker, because something upstream has
        failed, this worker ends, and PySpark would print a traceback of the closed connection:
        nobody's news. So it would for a step that has not read its input, because the driver gave
        the batch up first."""
        whole = False

        def read() -> Iterator[pa.RecordBatch]:
            nonlocal whole
            for batch in batches:
                whole = ends_hop(batch)
                yield batch

        try:
            step: TaskStep = self.work.open().steps[self.level]
            yield from step(read())
        except EverflowError as error:  # it needs what this worker has not
            yield from failed(error, self.hop_out)
        finally:
            if not whole:
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115


@dataclass(frozen=True)
class PackedResident:
    """The resident step of packed `Work`."""

    work: Parcel

    def __call__(self) -> None:
        try:
            resident = self.work.open().resident
        except EverflowError as error:
            refuse(error, resident_channel)
        else:
            resident()


def pack(plan: PhysicalPlan, settings: JobSettings, road: ResidentRoad | None) -> Parcel:
    """The work of a plan as it is now, for the road that was chosen. TopologyError with the user's
    line for what cannot travel."""
    sink = KafkaSink(settings.dead_letter_topic, WorkerPorts(), settings.layouts)
    steps = tuple(
        TaskStep.of(plan, level, LmdbAccess(), sink, read_request, announce)
        for level in range(plan.levels)
    )
    group = f"{settings.application_id}-resident"
    resident = None
    if road is not None:
        resident = ResidentStep(
            steps=steps,
            decoder=LogDecoder.of(plan),
            segments=road.segments,
            columns=road.columns,
            channel=resident_channel,
            client=settings.reader,
            group=group,
            read_committed=settings.read_committed,
        )
    return packed(Work(steps, resident), plan)


class ThreadJob:
    """A stream thread's plan over ``partitions``: all that the thread may be asked to read, owned
    or not, so that tasks come and go without a new plan (design note 006). Owned by that thread."""

    def __init__(
        self,
        context: SparkContext,
        plan: PhysicalPlan,
        work: Parcel,
        thread: int,
        partitions: Sequence[TopicPartition],
        settings: JobSettings,
        *,
        resident: bool,
    ) -> None:
        source = SourceSettings(
            bootstrap_servers=settings.bootstrap_servers,
            group=settings.application_id,
            read_committed=settings.read_committed,
            headers=plan.headers,
            client=settings.client,
            prepared=settings.prepared_source,
        )
        self._context, self._slot, self._settings, self._work = (
            context,
            f"t{thread}",
            settings,
            work,
        )
        steps = [PackedStep(work, level, hop_out_of(plan, level)) for level in range(plan.levels)]
        self._prepare: Callable[[], PreparedJob] = lambda: PreparedJob(
            get_session(), plan, self._slot, partitions, source, steps
        )
        self._prepared: PreparedJob | None = None
        self._has_resident = bool(partitions) and resident
        self._resident: ResidentJob | None = None
        self._columns = column_lines(*plan.segments)

    def run(self, request: BatchRequest) -> BatchResult:
        """Run one micro-batch; blocks. Raises BatchFailedError for any failed job: then nothing is
        known of its outcome (D6).

        Small batches go to the resident step where the plan allows one, large ones through Spark's
        own reader (design note 004).
        """
        waiting = sum(wanted.end - wanted.start for wanted in request.ranges.values())
        if self._has_resident and waiting <= self._settings.resident_records:
            return self._run_resident(request)
        self._stop_resident()
        return self._run_job(request)

    def _run_job(self, request: BatchRequest) -> BatchResult:
        try:
            return answered(
                self._prepared_job().run(request.ranges, {REQUEST_PROPERTY: request.to_json()})
            )
        except SparkJobError as error:
            failed = self._classified(error)
            if (
                failed.failure.code == RecordTimeError.code
            ):  # Spark's reader does not say of which record
                found = self._beyond_time(request.ranges)
                failed = BatchFailedError(replace(failed.failure, error=str(too_late(found))))
            raise failed from error

    def _beyond_time(self, ranges: Mapping[TopicPartition, OffsetRange]) -> str | None:
        """The first record of the ranges whose time Spark cannot hold, as the brokers' time index
        knows it."""
        admin = ClusterAdmin.beside(
            {"bootstrap.servers": self._settings.bootstrap_servers, **self._settings.reader}
        )
        try:
            found = admin.offsets_for_time(
                sorted(ranges), MOST_MS + 1, "read_uncommitted", LOOK_UP_S
            )
        except EverflowError:
            return None
        finally:
            admin.close()
        return next(
            (
                f"{tp}@{offset}"
                for tp, offset in sorted(found.items())
                if offset in range(*ranges[tp])
            ),
            None,
        )

    def _prepared_job(self) -> PreparedJob:
        """Prepared when it is needed: a thread with a resident step may never be, and it took 4 of
        the 11 s of a start."""
        if self._prepared is None:
            try:
                self._prepared = self._prepare()
            except (Py4JError, OSError) as error:
                found = failure(self._context, error)
                if isinstance(found, SparkGoneError):
                    raise found from error
                raise
        return self._prepared

    def close(self) -> None:
        """End the resident step and forget the prepared plan."""
        self._stop_resident()
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.close()

    def _run_resident(self, request: BatchRequest) -> BatchResult:
        if self._resident is None:
            self._resident = ResidentJob(self._serving, self._classified)
        try:
            return answered(self._resident.run(request))
        except BatchFailedError as error:
            self._stop_resident()
            if error.failure.kind == "spark-says":
                raise BatchFailedError(self._read(error.failure)) from error
            raise

    def _serving(self, path: str) -> ServingJob:
        return ServingJob(
            self._context, self._slot, PackedResident(self._work), {CHANNEL_PROPERTY: path}
        )

    def _classified(self, error: SparkJobError) -> BatchFailedError:
        if isinstance(error, SparkGoneError):
            return BatchFailedError(
                BatchFailure(kind="spark-gone", error=says(str(error)), details=str(error))
            )
        failure = failure_of_text(str(error), self._columns)
        return BatchFailedError(replace(failure, details=f"{failure.details}\n{error.stack}"))

    def _read(self, said: BatchFailure) -> BatchFailure:
        """What Spark's code said in a resident step."""
        found = failure_of_text(said.error, said.where)
        return replace(found, record=said.record if found.kind == "column" else None)

    def _stop_resident(self) -> None:
        resident, self._resident = self._resident, None
        if resident is not None:
            resident.stop()


def answered(text: str) -> BatchResult:
    """The result that the last step gave. Raises BatchFailedError where a step said that it
    failed."""
    result = BatchResult.from_json(text)
    if result.outcome == FAILED:
        assert result.failure is not None
        raise BatchFailedError(BatchFailure.from_dict(result.failure))
    return result
