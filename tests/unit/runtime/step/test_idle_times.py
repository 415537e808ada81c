"""Where the times of silent sources move, in a worker (note 025)."""

from __future__ import annotations

from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.runtime.commit.batch import BatchRequest
from everflow.runtime.step.idle_times import moved
from everflow.topology.idle_sources import IdleSource
from everflow.topology.plan import Source
from unit.builders import batch_request
from unit.builders import source as made_source

TASK, NEXT = TaskId(0, 0), TaskId(0, 1)


def source(index: int, topic: str, idle: IdleSource | None = None) -> Source:
    return made_source(topic, index=index, node=topic, offset_reset=None, merged=True, idle=idle)


SOURCES = (source(0, "in", IdleSource("in/idle", 1_000)), source(1, "busy"))


def request(**ends: int) -> BatchRequest:
    partitions = [TopicPartition(topic, p) for topic in ("in", "busy") for p in (0, 1)]
    return batch_request(
        {tp: OffsetRange(4, 4) for tp in partitions},
        transactional_id="t",
        log_ends={tp: ends.get(f"{tp.topic}{tp.partition}", 4) for tp in partitions},
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
