"""A batch's records by task and key, for operators whose windows depend on the records before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import Tasks, by_task, task_slices
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int64
from everflow.serdes import Serde


class TaskTurn(NamedTuple):
    """A task's records, in processing order: rows of the batch, and their keys' codes."""

    partition: int
    rows: Int64
    codes: Int64


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The records that have a key and a time from 0 on, told apart by key; tasks take turns.

    ``keys``: the distinct key bytes of each task, ``owners``: their tasks, ``first`` and ``last``
    ms of their records; all by code, and the codes of a task, ``parts``, lie together. ``dropped``:
    how many records are left out, by reason.
    """

    turns: list[TaskTurn]
    keys: list[bytes]
    owners: list[int]
    first: Int64
    last: Int64
    parts: list[tuple[int, slice]]
    dropped: dict[str, int]


def turns_of(
    batch: EdgeBatch, key_serde: Serde, store: str, tasks: Tasks, *, skip_null_values: bool
) -> Turns:
    """Tell the keys apart. UserFunctionError for a key that cannot be written."""
    encoded = written_bytes(key_serde, batch.key, store, batch).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    counts = {"null-key": batch.key.null_count}
    chosen = codes >= 0
    if skip_null_values:
        there = valid(batch.value)
        counts["null-value"] = int(np.count_nonzero(chosen & ~there))
        chosen &= there
    negative = chosen & (batch.timestamp < 0)
    counts["negative-timestamp"] = int(np.count_nonzero(negative))
    rows = np.flatnonzero(chosen & ~negative)
    codes, found, members = by_task(codes[rows], tasks.of_records[rows])
    keys = encoded.dictionary if found is None else encoded.dictionary.take(pa.array(found))
    order = np.argsort(members, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes, members = rank[codes], members[order]
    first, last = np.full(len(order), np.iinfo(np.int64).max), np.full(len(order), -1)
    np.minimum.at(first, codes, batch.timestamp[rows])
    np.maximum.at(last, codes, batch.timestamp[rows])
    return Turns(
        turns=_by_task(rows, codes, tasks),
        keys=keys.take(pa.array(order)).to_pylist(),
        owners=members.tolist(),
        first=first,
        last=last,
        parts=task_slices(members),
        dropped={reason: count for reason, count in counts.items() if count},
    )


def _by_task(rows: Int64, codes: Int64, tasks: Tasks) -> list[TaskTurn]:
    owners = tasks.of_records[rows]
    order = np.argsort(owners, kind="stable")
    return [
        TaskTurn(partition, rows[order[part]], codes[order[part]])
        for partition, part in task_slices(owners[order])
    ]
