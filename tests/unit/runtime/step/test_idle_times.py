"""Where the times of silent sources move, in a worker (note 025)."""

from __future__ import annotations

from everflow import serdes
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.runtime.commit.batch import BatchRequest
from everflow.runtime.step.idle_times import moved
from everflow.topology.idle_sources import IdleSource
from everflow.topology.plan import Source

TASK, NEXT = TaskId(0, 0), TaskId(0, 1)


def source(index: int, topic: str, idle: IdleSource | None = None) -> Source:
    return Source(
        index=index,
        topic=topic,
        subtopology=0,
        node=topic,
        key_serde=serdes.string(),
        value_serde=serdes.string(),
        offset_reset=None,
        kind="stream",
        merged=True,
        slot=1 + index,
        idle=idle,
    )


SOURCES = (source(0, "in", IdleSource("in/idle", 1_000)), source(1, "busy"))


def request(**ends: int) -> BatchRequest:
    partitions = [TopicPartition(topic, p) for topic in ("in", "busy") for p in (0, 1)]
    return BatchRequest(
        batch_id="i.0.0",
        thread=0,
        attempt=0,
        guarantee="exactly_once_v2",
        transactional_id="t",
        wall_clock_ms=0,
        gate="",
        ranges={tp: OffsetRange(4, 4) for tp in partitions},
        log_ends={tp: ends.get(f"{tp.topic}{tp.partition}", 4) for tp in partitions},
        tasks=[],
        application_id="app",
        idle={TASK: {"in/idle": 90}, NEXT: {"in/idle": 80}},
    )


def test_the_request_says_it_to_the_worker() -> None:
    asked = request()
    assert BatchRequest.from_json(asked.to_json()) == asked


def test_a_task_with_a_record_that_is_left_is_not_moved() -> None:
    asked = request(busy1=5)
    consumed = {tp: one.end for tp, one in asked.ranges.items()}
    assert moved(request(), SOURCES, consumed) == asked.idle
    assert moved(asked, SOURCES, consumed) == {TASK: {"in/idle": 90}}
