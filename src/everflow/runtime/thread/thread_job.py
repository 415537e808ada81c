"""Runs micro-batches in workers: a request in, a result or a classified failure out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark import SparkContext

from everflow.errors import EverflowError
from everflow.handlers import Handlers
from everflow.runtime.commit.batch import (
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
)
from everflow.runtime.step.failures import failure_of_text, says
from everflow.runtime.step.task_step import TaskStep
from everflow.runtime.thread.columns import ColumnsOfPlan
from everflow.runtime.thread.packing import packed
from everflow.runtime.thread.resident_job import ResidentJob
from everflow.runtime.worker.decode import LogDecoder
from everflow.runtime.worker.ports import LmdbAccess, WorkerPorts
from everflow.runtime.worker.serve import LogInput, ResidentStep, refuse
from everflow.runtime.worker.sink import KafkaSink
from everflow.spark.job import ServingJob, SparkGoneError, SparkJobError, local_property
from everflow.topology.plan import PhysicalPlan
from everflow.travel.parcel import Parcel

CHANNEL_PROPERTY = "everflow.resident"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """``handlers``: of records that fail; ``held_bytes``: what a worker may hold of pages that its
    stores have changed (`RetainedPages`). No secrets: all of it travels through Spark."""

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


@dataclass(frozen=True)
class PackedResident:
    """A packed `ResidentStep`: it travels as one parcel, so that its functions share the program's
    variables."""

    work: Parcel

    def __call__(self) -> None:
        try:
            resident: ResidentStep = self.work.open()
        except EverflowError as error:  # it needs what this worker has not
            refuse(error, resident_channel)
        else:
            resident()


def pack(plan: PhysicalPlan, settings: JobSettings, columns: ColumnsOfPlan) -> Parcel:
    """The resident step of a plan as it is now. TopologyError with the user's line for what cannot
    travel."""
    sink = KafkaSink(settings.handlers.topic, WorkerPorts(settings.held_bytes), settings.layouts)
    step = TaskStep.of(plan, columns.prepared, LmdbAccess(), sink, handlers=settings.handlers)
    log = LogInput(
        decoder=LogDecoder.of(plan, settings.handlers, settings.partitions),
        group=f"{settings.application_id}-resident",
        read_committed=settings.read_committed,
        ahead_bytes=settings.ahead_bytes,
    )
    resident = ResidentStep(step=step, input=log, columns=columns.path, channel=resident_channel)
    return packed(resident, plan)


class ThreadJob:
    """Runs a stream thread's micro-batches in a resident step, which begins with the first of them
    and after each that failed. Tasks come and go without a new one. Owned by that thread."""

    def __init__(self, context: SparkContext, work: Parcel, number: int, name: str) -> None:
        """``name``: of its jobs in Spark's UI."""
        self._context, self._work = context, work
        self._number, self._name = number, name
        self._resident: ResidentJob | None = None

    def run(self, request: BatchRequest) -> BatchResult:
        """Run one micro-batch; blocks. Raises BatchFailedError for any that failed: then nothing is
        known of its outcome (D6)."""
        if self._resident is None:
            self._resident = ResidentJob(self._serving, _classified)
        try:
            result = self._resident.run(request)
            if result.failure is not None:
                raise BatchFailedError(result.failure)
        except BatchFailedError:
            self.close()
            raise
        return result

    def close(self) -> None:
        """End the resident step."""
        resident, self._resident = self._resident, None
        if resident is not None:
            resident.stop()

    def _serving(self, path: str) -> ServingJob:
        return ServingJob(
            self._context,
            self._number,
            self._name,
            PackedResident(self._work),
            {CHANNEL_PROPERTY: path},
        )


def _classified(error: SparkJobError) -> BatchFailedError:
    if isinstance(error, SparkGoneError):
        return BatchFailedError(
            BatchFailure(kind="spark-gone", error=says(str(error)), details=str(error))
        )
    failure = failure_of_text(str(error))
    return BatchFailedError(replace(failure, details=f"{failure.details}\n{error.stack}"))
