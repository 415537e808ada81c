"""Batches of records for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.records import EdgeBatch


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
