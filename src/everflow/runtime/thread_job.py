"""One stream thread's micro-batches as the runtime sees them: a request in, a result or a classified failure out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from everflow.records import OffsetRange, TopicPartition
from everflow.runtime.batch import REQUEST_PROPERTY, BadRecord, BatchFailedError, BatchRequest, BatchResult
from everflow.runtime.kafka_sink import KafkaSink, LmdbAccess, announce
from everflow.runtime.step_functions import failed_record
from everflow.runtime.task_step import TaskStep
from everflow.spark.job import PreparedJob, SparkGoneError, SparkJobError, local_property
from everflow.spark.source import SourceSettings
from everflow.topology.plan import PhysicalPlan


@dataclass(frozen=True)
class JobSettings:
    """``dead_letter_topic`` None = stop at an undecodable record; ``client`` Kafka client properties for the readers."""

    bootstrap_servers: str
    application_id: str
    read_committed: bool
    dead_letter_topic: str | None = None
    client: Mapping[str, str] = field(default_factory=dict)


def read_request() -> BatchRequest:
    """The request of the micro-batch that this worker serves."""
    text = local_property(REQUEST_PROPERTY)
    if text is None:
        raise RuntimeError("no micro-batch request in the job's local properties")
    return BatchRequest.from_json(text)


class ThreadJob:
    """A stream thread's plan over one assignment. Owned by that thread."""

    def __init__(
        self,
        session: SparkSession,
        plan: PhysicalPlan,
        thread: int,
        partitions: Sequence[TopicPartition],
        settings: JobSettings,
    ) -> None:
        source = SourceSettings(
            settings.bootstrap_servers, settings.application_id, settings.read_committed, plan.headers, settings.client
        )
        sink = KafkaSink(settings.dead_letter_topic)
        steps = [TaskStep.of(plan, level, LmdbAccess(), sink, read_request, announce) for level in range(plan.levels)]
        self._job = PreparedJob(session, plan, f"t{thread}", partitions, source, steps)

    def run(self, request: BatchRequest) -> BatchResult:
        """Run one micro-batch; blocks. Raises BatchFailedError for any failed job: then nothing is known of its outcome (D6)."""
        ranges = {_parse(name): OffsetRange(bounds[0], bounds[1]) for name, bounds in request.ranges.items()}
        try:
            return BatchResult.from_json(self._job.run(ranges, {REQUEST_PROPERTY: request.to_json()}))
        except SparkGoneError as error:
            raise BatchFailedError(str(error), kind="spark-gone") from error
        except SparkJobError as error:
            raise failure_of(str(error)) from error

    def close(self) -> None:
        """Forget the prepared plan."""
        self._job.close()


def _parse(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


_KINDS = (
    (re.compile(r"GenerationChanged"), "generation"),
    (re.compile(r"TaskMigratedError"), "migrated"),
    (re.compile(r"Python worker exited unexpectedly|Python worker process terminated|crashed"), "worker"),
    (re.compile(r"OffsetOutOfRange|Cannot fetch record|data may have been lost|KAFKA_DATA_LOSS"), "data-loss"),
)


def failure_of(text: str) -> BatchFailedError:
    """What a failed job's text says: the kinds that the runtime reacts to differently (design section 7, last trap)."""
    if (found := failed_record(text)) is not None:
        record = BadRecord(found["topic"], found["partition"], found["offset"], found["node"])
        where = f" at {found['where']}" if found.get("where") else ""
        return BatchFailedError(f"{found['error']}{where}", kind="record", record=record)
    for pattern, kind in _KINDS:
        if pattern.search(text):
            return BatchFailedError(text, kind=kind)
    return BatchFailedError(text)
