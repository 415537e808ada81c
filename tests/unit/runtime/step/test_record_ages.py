"""What a micro-batch tells of its records' times, against a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from everflow.records import TaskId, TopicPartition
from everflow.runtime.commit.batch import Ages
from everflow.runtime.step.record_ages import ages_read
from everflow.topology.batches import BatchInput
from unit.builders import source

NAMES = ("a", "b")
SOURCES = {
    index: source(
        name,
        index=index,
        node=f"{name}-node",
        subtopology=index,
        offset_reset=None,
        kind="source",
        slot=index,
    )
    for index, name in enumerate(NAMES)
}
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
    assert ages_read(hop, SOURCES, consumed, before) == wanted


def test_times_become_latency_and_lateness() -> None:
    ages = Ages("0_0", "in", 2, 30.0, 10, 20, 10.0, 10)
    assert ages.latency_ms(100) == (2, 170.0, 80, 90)
    assert ages.lateness_ms == (2, 10.0, 0.0, 10)
