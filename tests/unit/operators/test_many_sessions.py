"""A key of very many sessions costs what its records cost."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from everflow import agg, serdes
from everflow.operators.aggregates.aggregate import AggregateSpec
from everflow.operators.aggregates.session_aggregate import SessionAggregateSpec
from everflow.records import EdgeBatch
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from everflow.windows import SessionWindows
from properties.operators.operator_batches import done_by_one_task, edge_batch

SESSIONS = 100_000
GAP_MS = 1_000
APART_MS = 3 * GAP_MS
VALUE = pa.struct([("n", pa.int64())])
MOST_S = 1.0
"""Of a processor. It takes 0.3 s; where each session moved all behind it, it took 13."""
TRIES = 3
"""The quickest counts: others use the processors, too."""


def falling(after_ms: int) -> EdgeBatch:
    """A record for each session, the latest session's first."""
    times = range(SESSIONS * APART_MS, 0, -APART_MS)
    return edge_batch([("k", {"n": 1}, time_ms + after_ms) for time_ms in times], VALUE, 0)


def test_100_000_sessions_of_one_key_in_falling_time_take_less_than_a_second(
    tmp_path: Path,
) -> None:
    windows = SessionWindows(GAP_MS, 2 * SESSIONS * APART_MS)
    layout = AggregateSpec.of(
        "s", serdes.string(), [agg.count(), agg.sum("n")], ["count", "sum"], VALUE
    )
    spec = SessionAggregateSpec(layout, windows)
    store = LmdbStore.open(tmp_path / "s", kind="session", retention_ms=windows.retention_ms)
    store.claim("i")
    batch, taken = falling(0), []
    for _ in range(TRIES):
        with store.snapshot() as view:
            begin = time.process_time()
            done = done_by_one_task(spec, batch, view, -1)
            taken.append(time.process_time() - begin)
    assert len(done.output) == SESSIONS
    assert min(taken) < MOST_S
    store.apply(done.changes[0], position=None, expected=Owner("i", ""), batch="1")
    with store.snapshot() as view:  # each grows, out of the store
        begin = time.process_time()
        grown = done_by_one_task(spec, falling(GAP_MS // 2), view, done.stream_time)
        taken.append(time.process_time() - begin)
    assert {value["count"] for value in grown.output.value.to_pylist() if value} == {2}
    assert len(grown.changes[0]) == 2 * SESSIONS, "the windows before go"
    assert taken[-1] < 4 * MOST_S
    store.close()
