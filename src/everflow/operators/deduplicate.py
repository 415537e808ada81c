"""Drops repeated records: the first of each id goes on, those that are close to it in time do not.

What is kept of an id are the times of its records that went on, in a window store with empty
values. Whether a record is one of them depends on all before it, not on micro-batches.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.grouping import (
    NEVER,
    Flags,
    Kept,
    TaskKeys,
    changes_by_task,
    extent,
    read_entries,
    stream_times,
    task_codes,
)
from everflow.operators.user_code import written_bytes
from everflow.records import Int64, TasksResult, valid
from everflow.serdes import Serde
from everflow.serdes.windowed import window_store_keys
from everflow.topology.graph import Inputs, TableOperator


@dataclass(frozen=True, kw_only=True)
class DeduplicateSpec(TableOperator):
    """A record goes on unless one of its id that went on is at most ``within_ms`` away, before or
    after. Records without an id go on, and do not move stream time.

    Late ones, more than ``grace_ms`` behind stream time, are dropped: what they would repeat may be
    forgotten; so are those of negative times. ``beside``: the id stands beside the value (see
    `everflow.topology.graph.beside`); else it is the key.
    """

    store: str
    key_serde: Serde
    """The serde of the ids."""
    value_serde: Serde
    result_key: pa.DataType
    result: pa.DataType
    within_ms: int
    grace_ms: int
    beside: bool
    emit_every_update: bool = False

    @property
    def retention_ms(self) -> int:
        """A record that is not late meets those of ``within_ms`` before it."""
        return self.within_ms + self.grace_ms + 1

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`; every result is the record as it came, headers and all."""
        (batch,) = inputs.sides
        ids, value = batch.key, batch.value
        if self.beside:
            ids, value = (pc.struct_field(batch.value, [i]) for i in (0, 1))
        times = batch.timestamp
        known, negative = valid(ids), times < 0
        running, after = stream_times(
            np.where(known, times, NEVER), batch.partition, inputs.stream_times
        )
        late = times + self.grace_ms < running
        dropped = {
            "negative-timestamp": int(np.count_nonzero(known & negative)),
            "late": int(np.count_nonzero(known & ~negative & late)),
        }
        rows = np.flatnonzero(known & ~negative & ~late)
        keys = written_bytes(self.key_serde, ids.take(rows), self.store, batch, rows)
        codes = task_codes(keys, batch.partition[rows])
        _, first = np.unique(codes, return_index=True)
        groups = TaskKeys(batch.partition[rows[first]], keys.take(first))
        low, high = extent(codes, len(first), times[rows], times[rows])
        low, high = low - self.within_ms, high + self.within_ms
        stored = read_entries(self.store, groups, low, high, inputs.stores)
        new = _new(codes, times[rows], stored, self)
        written = window_store_keys(groups.keys.take(codes[new]), times[rows[new]])
        changes = changes_by_task(
            self.store,
            groups.partitions[codes[new]],
            written,
            pa.repeat(pa.scalar(b""), len(written)),
            times[rows[new]],
        )
        goes_on = ~known
        goes_on[rows[new]] = True
        chosen = np.flatnonzero(goes_on)
        output = batch.take(chosen).with_columns(value=value.take(chosen))
        return TasksResult(output, changes, after, dropped)


def _new(codes: Int64, times: Int64, stored: Kept, spec: DeduplicateSpec) -> Flags:
    """True for records that pass; ``codes``: their ids, in processing order."""
    counts = np.bincount(codes)
    counts[np.unique(stored.codes)] += 1
    new = np.ones(len(codes), bool)
    went_on: dict[int, list[int]] = {}
    for code, time in sorted(zip(stored.codes.tolist(), stored.times.tolist(), strict=True)):
        went_on.setdefault(code, []).append(time)
    several = np.flatnonzero(counts[codes] > 1)
    for row, code, time in zip(
        several.tolist(), codes[several].tolist(), times[several].tolist(), strict=True
    ):
        known = went_on.setdefault(code, [])
        at = bisect_left(known, time - spec.within_ms)
        if at < len(known) and known[at] <= time + spec.within_ms:
            new[row] = False
        else:
            known.insert(at, time)
    return new
