"""Batches of records for operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.records import EdgeBatch, StoreChanges
from everflow.state.store import StoreView
from everflow.topology.graph import Inputs, TableOperator


def edge_batch(
    rows: Sequence[tuple[Any, Any, int]], value_type: pa.DataType, first_seq: int
) -> EdgeBatch:
    """Records (key, value, time) with string keys; sources, partitions and offsets follow from the
    positions."""
    seq = np.arange(first_seq, first_seq + len(rows), dtype=np.int64)
    return EdgeBatch(
        key=pa.array([row[0] for row in rows], pa.string()),
        value=pa.array([row[1] for row in rows], value_type),
        timestamp=np.array([row[2] for row in rows], np.int64),
        seq=seq,
        source=(seq % 3).astype(np.int32),
        partition=(seq % 5).astype(np.int32),
        offset=seq * 2,
    )


class TaskResult(NamedTuple):
    """What an operator gives for one task."""

    output: EdgeBatch
    changes: list[StoreChanges]
    stream_time: int
    dropped: dict[str, int]


ONE_TASK = 3


def done_by_one_task(
    spec: TableOperator, batch: EdgeBatch, store: StoreView, stream_time: int
) -> TaskResult:
    """The operator run with all records as those of task `ONE_TASK`, whose only store is ``s``."""
    mine = replace(batch, partition=np.full(len(batch), ONE_TASK, np.int32))
    done = spec.run(Inputs((mine,), {ONE_TASK: {"s": store}}, {ONE_TASK: stream_time}))
    changes = done.changes.get(ONE_TASK, [])
    return TaskResult(done.output, changes, done.stream_times[ONE_TASK], done.dropped)
