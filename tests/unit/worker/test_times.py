"""Times of idle sources, and ages of records."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from everflow.protocol.messages import Ages, BatchRequest
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.topology.batches import BatchInput
from everflow.topology.idle_sources import IdleSource
from everflow.topology.plan import Source
from everflow.worker.times import ages_read, moved
from unit.builders import source

# --- idle times -----------------------------------------------------------------------------------


TASK, NEXT = TaskId(0, 0), TaskId(0, 1)


def idle_source(index: int, topic: str, idle: IdleSource | None = None) -> Source:
    return source(topic, index=index, node=topic, offset_reset=None, merged=True, idle=idle)


SOURCES = (idle_source(0, "in", IdleSource("in/idle", 1_000)), idle_source(1, "busy"))


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


def test_a_task_with_a_record_that_is_left_is_not_moved() -> None:
    asked = request(busy1=5)
    consumed = {tp: one.end for tp, one in asked.ranges.items()}
    assert moved(request(), SOURCES, consumed) == asked.idle
    assert moved(asked, SOURCES, consumed) == {TASK: {"in/idle": 90}}


# --- record ages ----------------------------------------------------------------------------------


NAMES = ("a", "b")
READ_SOURCES = [
    source(
        name,
        index=index,
        node=f"{name}-node",
        subtopology=index,
        offset_reset=None,
        kind="source",
        slot=index,
    )
    for index, name in enumerate(NAMES)
]
RUNS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2),
        st.lists(st.integers(-1, 50), min_size=1, max_size=6),
        st.integers(0, 6),
    ),
    unique_by=lambda run: run[:2],
    max_size=5,
)


@given(RUNS, st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 2)), st.integers(-1, 60)))
def test_ages_are_those_of_a_plain_loop(
    runs: list[tuple[int, int, list[int], int]], newest: dict[tuple[int, int], int]
) -> None:
    """Runs: source, partition, times, and how many of them are consumed."""
    rows = [(s, p, n, ms) for s, p, times, _ in runs for n, ms in enumerate(times)]
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(4)]
    hop = BatchInput(
        batches={},
        rows={},
        source=columns[0],
        partition=columns[1],
        offset=columns[2],
        timestamp=columns[3],
    )
    consumed = {TopicPartition(NAMES[s], p): read for s, p, _, read in runs}
    before = {TaskId(*task): ms for task, ms in newest.items()}
    wanted = []
    for s, p, times, read in runs:
        taken = [ms for ms in times[:read] if ms >= 0]
        latest, late = newest.get((s, p), -1), []
        for ms in taken:
            latest = max(latest, ms)
            late.append(latest - ms)
        if taken:
            told = (len(taken), sum(taken), min(taken), max(taken), sum(late), max(late))
            wanted.append(Ages(f"{s}_{p}", f"{NAMES[s]}-node", *told))
    assert ages_read(hop, READ_SOURCES, consumed, before) == wanted


def test_times_become_latency_and_lateness() -> None:
    ages = Ages("0_0", "in", 2, 30.0, 10, 20, 10.0, 10)
    assert ages.latency_ms(100) == (2, 170.0, 80, 90)
    assert ages.lateness_ms == (2, 10.0, 0.0, 10)
