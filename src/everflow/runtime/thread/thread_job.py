"""Runs micro-batches in workers: a request in, a result or a classified failure out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext

from everflow.errors import EverflowError
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
from everflow.runtime.thread.spark_failure import failure_of_said, failure_of_text, says
from everflow.runtime.worker.kafka_sink import KafkaSink
from everflow.runtime.worker.log_decoder import LogDecoder
from everflow.runtime.worker.log_input import LogInput, LogStep
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
from everflow.spark.segments import hop_out_of_step
from everflow.spark.session import get_session
from everflow.topology.hops import HopSchema, ends_hop
from everflow.topology.physical_plan import PhysicalPlan
from everflow.travel.parcel import Parcel

CHANNEL_PROPERTY = "everflow.resident"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """``dead_letter_topic`` None = stop at an undecodable record; ``client``: librdkafka properties
    of what reads inputs, ``bootstrap.servers`` included."""

    application_id: str
    read_committed: bool
    dead_letter_topic: str | None = None
    layouts: str = ""
    client: Mapping[str, Any] = field(default_factory=dict)


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

    log: LogStep
    steps: tuple[TaskStep, ...]
    resident: ResidentStep | None


@dataclass(frozen=True)
class PackedStep:
    """The step of a level (-1: reading and decoding) of packed `Work`: what Spark pickles for each
    job, and unpickles for each micro-batch."""

    work: Parcel
    level: int
    hop_out: HopSchema | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Where Spark closes the connection before the end marker, because something upstream has
        failed, this worker ends, and PySpark would print a traceback of the closed connection:
        nobody's news. So it would for a step that has not read its input, because the driver gave
        the batch up first, and for the first one where nobody takes what it reads."""
        whole = False

        def read() -> Iterator[pa.RecordBatch]:
            nonlocal whole
            for batch in batches:
                whole = ends_hop(batch)
                yield batch

        try:
            work: Work = self.work.open()
            yield from (work.log if self.level < 0 else work.steps[self.level])(read())
            whole = whole or self.level < 0
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
    log = LogInput(
        decoder=LogDecoder.of(plan),
        client=settings.client,
        group=f"{settings.application_id}-resident",
        read_committed=settings.read_committed,
    )
    resident = None
    if road is not None:
        resident = ResidentStep(
            steps=steps,
            input=log,
            segments=road.segments,
            columns=road.columns,
            channel=resident_channel,
        )
    first = LogStep(input=log, hop_out=hop_out_of_step(plan, -1), request=read_request)
    return packed(Work(first, steps, resident), plan)


class ThreadJob:
    """Runs a stream thread's micro-batches, on the road that was chosen for the plan: in a resident
    step, or as a Spark job each. Tasks come and go without a new one. Owned by that thread."""

    def __init__(
        self,
        context: SparkContext,
        plan: PhysicalPlan,
        work: Parcel,
        thread: int,
        *,
        resident: bool,
    ) -> None:
        self._context, self._slot, self._work = context, f"t{thread}", work
        self._plan = plan
        self._prepared: PreparedJob | None = None
        self._has_resident = resident
        self._resident: ResidentJob | None = None
        self._columns = column_lines(*plan.segments)

    def run(self, request: BatchRequest) -> BatchResult:
        """Run one micro-batch; blocks. Raises BatchFailedError for any failed job: then nothing is
        known of its outcome (D6)."""
        return self._run_resident(request) if self._has_resident else self._run_job(request)

    def _run_job(self, request: BatchRequest) -> BatchResult:
        try:
            return answered(self._prepared_job().run({REQUEST_PROPERTY: request.to_json()}))
        except SparkJobError as error:
            raise self._classified(error) from error

    def _prepared_job(self) -> PreparedJob:
        if self._prepared is None:
            steps = [
                PackedStep(self._work, level, hop_out_of(self._plan, level))
                for level in range(-1, self._plan.levels)
            ]
            try:
                self._prepared = PreparedJob(get_session(), self._plan, self._slot, steps)
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
                raise BatchFailedError(failure_of_said(error.failure)) from error
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
