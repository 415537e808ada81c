"""Store changes as rows of a hop, from the step that makes them to the last one.

That one writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from everflow.records import EdgeBatch, StoreChanges, TaskId


def changes_to_rows(store: str, changes: Mapping[TaskId, list[StoreChanges]]) -> EdgeBatch:
    """Store changes as rows of the store's changelog slot; ``source`` carries the sub-topology,
    ``partition`` the task's."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    times, subs, partitions = [], [], []
    for task, listed in changes.items():
        for change in listed:
            if change.store != store:
                continue
            keys += change.keys
            values += change.values
            times.append(change.timestamps)
            subs.append(np.full(len(change), task.subtopology, np.int32))
            partitions.append(np.full(len(change), task.partition, np.int32))
    order = np.arange(len(keys), dtype=np.int64)
    return EdgeBatch(
        key=pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
        timestamp=np.concatenate(times),
        seq=order,
        source=np.concatenate(subs),
        partition=np.concatenate(partitions),
        offset=np.zeros(len(keys), np.int64),
    )


def changes_from_rows(store: str, batch: EdgeBatch) -> Iterator[tuple[TaskId, StoreChanges]]:
    """Inverse of `changes_to_rows`, by task."""
    tasks = {(int(s), int(p)) for s, p in zip(batch.source, batch.partition, strict=True)}
    for sub, partition in sorted(tasks):
        rows = batch.take(np.flatnonzero((batch.source == sub) & (batch.partition == partition)))
        yield (
            TaskId(sub, partition),
            StoreChanges(store, rows.key.to_pylist(), rows.value.to_pylist(), rows.timestamp),
        )
