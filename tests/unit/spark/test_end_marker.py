"""Scenario 33 with real Spark: when a Column or an earlier step fails late, the next worker only
sees its input end, so without the end marker a sink would commit what it got. The sink here writes
down that it was called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.dsl.streams import KStream
from everflow.handlers.given import Handlers
from everflow.kafka.reading.log_columns import LogColumns
from everflow.records import OffsetRange, TopicPartition
from everflow.runtime.commit.batch import COMMITTED, BatchRequest, BatchResult, TaskContext
from everflow.runtime.step.step_stores import FollowedView
from everflow.runtime.step.task_step import StepResult, TaskStep
from everflow.runtime.worker.log_decoder import LogDecoder
from everflow.runtime.worker.set_aside import Judge
from everflow.spark.job import PreparedJob, SparkJobError, StepFunction
from everflow.spark.segments import hop_out_of_step
from everflow.state.store import StoreSpec
from everflow.topology.hops import write_hop
from everflow.topology.physical_plan import PhysicalPlan, Source
from everflow.topology.plan import plan
from everflow.topology.subtopologies import cut

pytestmark = pytest.mark.spark
IN = TopicPartition("in", 0)
ROWS = 5_000  # more than one Arrow batch: the first 4,000 are through when the last row fails


@dataclass(frozen=True)
class NotedSink:
    path: str

    def __call__(
        self, request: BatchRequest, result: StepResult, sources: tuple[Source, ...]
    ) -> BatchResult:
        Path(self.path).write_text(str(sum(len(output.keys) for output in result.outputs)))
        return BatchResult(outcome=COMMITTED, consumed=result.consumed)


class NoStores:
    def view(self, task: TaskContext, spec: StoreSpec) -> AbstractContextManager[FollowedView]:
        raise AssertionError("no stores here")

    def homes(self, keys: Sequence[bytes], partitions: int) -> Sequence[int]:
        return [len(key) % partitions for key in keys]

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        raise AssertionError(reason)


def request() -> BatchRequest:
    return BatchRequest(
        batch_id="t.0.0",
        thread=0,
        attempt=0,
        guarantee="exactly_once_v2",
        transactional_id="",
        wall_clock_ms=0,
        gate="",
        ranges={IN: OffsetRange(0, ROWS)},
        log_ends={IN: ROWS},
        tasks=[],
        application_id="app",
    )


def announce(request: BatchRequest, level: int) -> None:
    pass


def log_of(plan: PhysicalPlan, last: str) -> Callable[[object], Iterator[pa.RecordBatch]]:
    """The first hop over the records of one partition; the value is the offset as text, and of the
    last what the test wants."""
    values = [str(row) for row in range(ROWS - 1)] + [last]
    columns = LogColumns(
        keys=pa.array([b"k"] * ROWS, pa.binary()),
        values=pa.array([value.encode() for value in values], pa.binary()),
        offsets=np.arange(ROWS),
        timestamps=np.arange(ROWS),
    )
    hop = LogDecoder.of(plan, Handlers()).run({IN: columns}, Judge())
    schema = hop_out_of_step(plan, -1)

    def log(batches: object) -> Iterator[pa.RecordBatch]:
        control = json.dumps({"ends": {str(IN): ROWS}, "bytes": hop.bytes})
        for batch in write_hop(hop.batches, schema, control):
            for start in range(0, batch.num_rows, 4_000):
                yield batch.slice(start, 4_000)

    return log


def planned(build: Callable[[KStream], KStream]) -> PhysicalPlan:
    builder = StreamsBuilder()
    build(builder.stream("in", key=serdes.string(), value=serdes.string())).to(
        "out", value=serdes.json("n int")
    )
    topology = builder.build()
    return plan(topology, cut(topology).index_of, "app")


def number() -> Column:
    return F.struct(F.col("value").cast("int").alias("n"))


BUILDS: dict[str, tuple[int, Callable[[KStream], KStream]]] = {
    "a Column before the only step": (1, lambda s: s.map_values(number())),
    "a Column between two steps": (2, lambda s: s.peek(lambda v: None).map_values(number())),
    "the step before": (
        2,
        lambda s: s.map_values(lambda v: str(int(v)), returns="string").map_values(number()),
    ),
}


@pytest.mark.parametrize(
    ("name", "last"),
    [("a Column between two steps", str(ROWS - 1)), *((name, "none") for name in BUILDS)],
)
def test_no_marker_no_commit(spark: SparkSession, tmp_path: Path, name: str, last: str) -> None:
    levels, build = BUILDS[name]
    found, noted = planned(build), tmp_path / "called"
    assert found.levels == levels
    steps: list[StepFunction] = [
        log_of(found, last),
        *(
            TaskStep.of(found, level, NoStores(), NotedSink(str(noted)), request, announce)
            for level in range(levels)
        ),
    ]
    job = PreparedJob(spark, found, "marker", dict(enumerate(steps, -1)))
    if last != "none":
        result = BatchResult.from_json(job.run({}))
        assert (noted.read_text(), result.consumed) == (str(ROWS), {IN: ROWS})
        return
    if (
        name == "the step before"
    ):  # it can still speak, and the steps behind it pass on what it says
        failure = BatchResult.from_json(job.run({})).failure
        assert failure is not None
        assert failure["record"]["offset"] == ROWS - 1
    else:
        with pytest.raises(SparkJobError, match="CAST_INVALID_INPUT"):
            job.run({})
    assert not noted.exists(), "the sink was called with a part of the records"
