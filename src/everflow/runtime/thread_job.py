"""One stream thread's micro-batches as the runtime sees them: a request in, a result or a classified failure out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

from everflow.records import OffsetRange, TopicPartition
from everflow.runtime.batch import REQUEST_PROPERTY, BadRecord, BatchFailedError, BatchRequest, BatchResult
from everflow.runtime.kafka_sink import KafkaSink, LmdbAccess, announce
from everflow.runtime.resident_job import ResidentJob
from everflow.runtime.resident_step import ResidentStep, TwinSegment
from everflow.runtime.step_functions import failed_record
from everflow.runtime.task_step import TaskStep
from everflow.spark.job import PreparedJob, ServingJob, SparkGoneError, SparkJobError, failure, local_property
from everflow.spark.session import get_session
from everflow.spark.source import SourceSettings
from everflow.topology.plan import PhysicalPlan

CHANNEL_PROPERTY = "everflow.resident"


@dataclass(frozen=True)
class JobSettings:
    """``dead_letter_topic`` None = stop at an undecodable record; ``client`` Kafka client properties for the readers."""

    bootstrap_servers: str
    application_id: str
    read_committed: bool
    dead_letter_topic: str | None = None
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


class ThreadJob:
    """A stream thread's plan over ``partitions``: all that the thread may be asked to read, owned or not, so that tasks come and go
    without a new plan (design note 006). Owned by that thread."""

    def __init__(
        self,
        context: SparkContext,
        plan: PhysicalPlan,
        thread: int,
        partitions: Sequence[TopicPartition],
        settings: JobSettings,
    ) -> None:
        source = SourceSettings(
            settings.bootstrap_servers,
            settings.application_id,
            settings.read_committed,
            plan.headers,
            settings.client,
            settings.prepared_source,
        )
        sink = KafkaSink(settings.dead_letter_topic)
        self._steps = [TaskStep.of(plan, level, LmdbAccess(), sink, read_request, announce) for level in range(plan.levels)]
        self._context, self._slot, self._settings = context, f"t{thread}", settings
        self._prepare: Callable[[], PreparedJob] = lambda: PreparedJob(
            get_session(), plan, self._slot, partitions, source, self._steps
        )
        self._prepared: PreparedJob | None = None
        self._twin = TwinSegment.of_plan(plan) if partitions and settings.resident_records > 0 else None
        self._resident: ResidentJob | None = None

    def run(self, request: BatchRequest) -> BatchResult:
        """Run one micro-batch; blocks. Raises BatchFailedError for any failed job: then nothing is known of its outcome (D6).

        Small batches go to the resident step where the plan allows one, large ones through Spark's own reader (design note 004).
        """
        waiting = sum(bounds[1] - bounds[0] for bounds in request.ranges.values())
        if self._twin is not None and waiting <= self._settings.resident_records:
            return self._run_resident(self._twin, request)
        self._stop_resident()
        return self._run_job(request)

    def _run_job(self, request: BatchRequest) -> BatchResult:
        ranges = {TopicPartition.parse(name): OffsetRange(bounds[0], bounds[1]) for name, bounds in request.ranges.items()}
        try:
            return BatchResult.from_json(self._prepared_job().run(ranges, {REQUEST_PROPERTY: request.to_json()}))
        except SparkJobError as error:
            raise _classified(error) from error

    def _prepared_job(self) -> PreparedJob:
        """Prepared when it is needed: a thread with a resident step may never be, and it took 4 of the 11 s of a start."""
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

    def _run_resident(self, twin: TwinSegment, request: BatchRequest) -> BatchResult:
        if self._resident is None:
            self._resident = ResidentJob(lambda path: self._serving(twin, path), _classified)
        try:
            return self._resident.run(request)
        except BatchFailedError:
            self._stop_resident()
            raise

    def _serving(self, twin: TwinSegment, path: str) -> ServingJob:
        settings = self._settings
        step = ResidentStep(
            self._steps[0],
            twin,
            resident_channel,
            settings.reader,
            f"{settings.application_id}-resident",
            settings.read_committed,
        )
        return ServingJob(self._context, self._slot, step, {CHANNEL_PROPERTY: path})

    def _stop_resident(self) -> None:
        resident, self._resident = self._resident, None
        if resident is not None:
            resident.stop()


def _classified(error: SparkJobError) -> BatchFailedError:
    return BatchFailedError(str(error), kind="spark-gone") if isinstance(error, SparkGoneError) else failure_of(str(error))


_TOO_LARGE = re.compile(r"HopTooLargeError: (?P<records>\d+) records have (?P<bytes>\d+) bytes")
_KINDS = (
    (re.compile(r"GenerationChanged"), "generation"),
    (re.compile(r"TaskMigratedError"), "migrated"),
    (re.compile(r"Python worker exited unexpectedly|Python worker process terminated|crashed"), "worker"),
    (re.compile(r"^(?:everflow\.errors\.)FatalError:", re.MULTILINE), "fatal"),
    (re.compile(r"OffsetOutOfRange|LogStartMovedError|data may have been lost|KAFKA_DATA_LOSS"), "data-loss"),
    # Spark's reader waits so long for a record that is there: a broker or this machine is slow, nothing is lost.
    (re.compile(r"Cannot fetch record for offset \d+ in \d+ milliseconds"), "timeout"),
)


def failure_of(text: str) -> BatchFailedError:
    """What a failed job's text says: the kinds that the runtime reacts to differently (design section 7, last trap)."""
    if (found := failed_record(text)) is not None:
        record = BadRecord(found["topic"], found["partition"], found["offset"], found["node"])
        where = f" at {found['where']}" if found.get("where") else ""
        return BatchFailedError(f"{found['error']}{where}", kind="record", record=record)
    if (large := _TOO_LARGE.search(text)) is not None:
        return BatchFailedError(text, kind="too-large", size=(int(large["records"]), int(large["bytes"])))
    for pattern, kind in _KINDS:
        if pattern.search(text):
            return BatchFailedError(text, kind=kind)
    return BatchFailedError(text)
