"""Runs micro-batches in workers: a request in, a result or a classified failure out."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext

from everflow.errors import EverflowError
from everflow.handlers.given import Handlers
from everflow.runtime.commit.batch import (
    FAILED,
    REQUEST_PROPERTY,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
)
from everflow.runtime.step.spark_failure import failure_of_said, failure_of_text, says
from everflow.runtime.step.task_step import TaskStep, failed, hop_out_of
from everflow.runtime.thread.packing import packed
from everflow.runtime.thread.resident_job import ResidentJob
from everflow.runtime.thread.road import (
    JobStages,
    ResidentRoad,
    column_lines,
    job_stages,
    whole_job,
)
from everflow.runtime.worker.job_stage import JobStage
from everflow.runtime.worker.kafka_sink import KafkaSink
from everflow.runtime.worker.log_decoder import LogDecoder
from everflow.runtime.worker.log_input import LogInput, LogStep
from everflow.runtime.worker.resident_segments import TwinSegment
from everflow.runtime.worker.resident_step import ResidentStep, refuse
from everflow.runtime.worker.worker_ports import LmdbAccess, WorkerPorts, announce
from everflow.spark.job import (
    PreparedJob,
    ServingJob,
    SparkGoneError,
    SparkJobError,
    TaskJob,
    failure,
    local_property,
    worker_slot,
)
from everflow.spark.segments import hop_out_of_step
from everflow.spark.session import get_session
from everflow.topology.hops import HopSchema, ends_hop
from everflow.topology.physical_plan import PhysicalPlan
from everflow.travel.parcel import Parcel

log = logging.getLogger("everflow.spark")

CHANNEL_PROPERTY = "everflow.resident"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """``handlers``: of records that fail; ``held_bytes``: what a worker may hold of pages that its
    stores have changed (`HeldPages`). No secrets: all of it travels through Spark."""

    application_id: str
    read_committed: bool
    held_bytes: int
    handlers: Handlers = field(default_factory=Handlers)
    layouts: str = ""
    ahead_bytes: int
    partitions: Mapping[str, int]
    """How many each input topic has."""


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
    segments: tuple[TwinSegment | None, ...]
    """Of jobs (`JobStages`)."""

    def stage(self, first: int, last: int) -> Callable[..., Iterator[pa.RecordBatch]]:
        """What runs these levels (-1: reading and decoding) of a job."""
        if last < 0:
            return self.log
        begin = max(first, 0)
        steps, segments = self.steps[begin : last + 1], self.segments[begin : last + 1]
        if first >= 0:
            segments = (TwinSegment(()), *segments[1:])
        return JobStage(
            input=self.log.input if first < 0 else None,
            segments=tuple(filter(None, segments)),
            steps=steps,
            hop_out=steps[-1].hop_out,
            request=self.log.request,
        )


@dataclass(frozen=True)
class PackedStep:
    """A stage of packed `Work`, which runs the levels ``first`` to ``last`` (-1: reading and
    decoding): what Spark pickles for each job, and unpickles for each micro-batch."""

    work: Parcel
    first: int
    last: int
    hop_out: HopSchema | None

    def text(self) -> str:
        """The result of a batch that is one stage."""
        return str(list(self(()))[-1].column(0)[0].as_py())

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
            yield from work.stage(self.first, self.last)(read())
            whole = whole or self.first < 0
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
    sink = KafkaSink(settings.handlers.topic, WorkerPorts(settings.held_bytes), settings.layouts)
    steps = tuple(
        TaskStep.of(
            plan,
            level,
            LmdbAccess(),
            sink,
            read_request,
            announce,
            handlers=settings.handlers,
        )
        for level in range(plan.levels)
    )
    log = LogInput(
        decoder=LogDecoder.of(plan, settings.handlers, settings.partitions),
        group=f"{settings.application_id}-resident",
        read_committed=settings.read_committed,
        ahead_bytes=settings.ahead_bytes,
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
    return packed(Work(first, steps, resident, job_stages(plan).segments), plan)


class WholeJobs:
    """Which batches go to Spark at once, because Arrow has left those before to it: after one, the
    next one; after each further one in a row twice as many, 64 at most."""

    def __init__(self) -> None:
        self._left, self._many = 0, 1

    def next(self) -> bool:
        """Whether the next batch is one."""
        self._left, due = max(0, self._left - 1), self._left > 0
        return due

    def one(self) -> None:
        """Arrow has left a batch to Spark."""
        self._left, self._many = self._many, min(64, 2 * self._many)

    def none(self) -> None:
        """Arrow has computed a batch."""
        self._many = 1


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
        self._stages = job_stages(plan)
        self._prepared: dict[tuple[int, ...], PreparedJob | TaskJob] = {}
        self._whole = WholeJobs()
        self._has_resident = resident
        self._resident: ResidentJob | None = None
        self._columns = column_lines(*plan.segments)

    def run(self, request: BatchRequest) -> BatchResult:
        """Run one micro-batch; blocks. Raises BatchFailedError for any failed job: then nothing is
        known of its outcome (D6)."""
        return self._run_resident(request) if self._has_resident else self._run_job(request)

    def _run_job(self, request: BatchRequest) -> BatchResult:
        if self._whole.next():
            return self._run_stages(whole_job(self._plan), request)
        try:
            result = self._run_stages(self._stages, request)
        except BatchFailedError as error:
            if error.failure.kind != "left-to-spark":
                raise
            log.debug("Arrow leaves a batch to Spark: %s", error.failure.error)
        else:
            self._whole.none()
            return result
        self._whole.one()
        return self._run_stages(whole_job(self._plan), request)

    def _run_stages(self, stages: JobStages, request: BatchRequest) -> BatchResult:
        try:
            return answered(self._prepared_job(stages).run({REQUEST_PROPERTY: request.to_json()}))
        except SparkJobError as error:
            raise self._classified(error) from error

    def _prepared_job(self, stages: JobStages) -> PreparedJob | TaskJob:
        if stages.ends not in self._prepared:
            steps = {
                last: PackedStep(self._work, first, last, self._hop_out(last))
                for first, last in stages.levels()
            }
            try:
                self._prepared[stages.ends] = self._job_of(steps)
            except (Py4JError, OSError) as error:
                found = failure(self._context, error)
                if isinstance(found, SparkGoneError):
                    raise found from error
                raise
        return self._prepared[stages.ends]

    def _job_of(self, steps: Mapping[int, PackedStep]) -> PreparedJob | TaskJob:
        if len(steps) > 1:
            return PreparedJob(get_session(), self._plan, self._slot, steps)
        ((last, step),) = steps.items()
        return TaskJob(self._context, worker_slot(self._slot, last), step.text)

    def _hop_out(self, level: int) -> HopSchema | None:
        return hop_out_of_step(self._plan, -1) if level < 0 else hop_out_of(self._plan, level)

    def close(self) -> None:
        """End the resident step and forget the prepared plan."""
        self._stop_resident()
        prepared, self._prepared = self._prepared, {}
        for job in prepared.values():
            job.close()

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
