"""Versioned tables (KIP-889, KIP-914): each update is a version, and so is a deletion.

A version that is older than the history retention is ignored and counted as late. One that comes
out of order is kept, and passed on, but it is not the latest: what works on the table's latest
values (joins of tables, groups) leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import KeyedOperator, Tasks, stream_times, task_slices
from everflow.operators.joins.joined_table import JoinedTable, latest_when_put
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, StoreChanges, TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder
from everflow.topology.graph import Inputs, TableOperator


@dataclass(frozen=True)
class VersionedTableSpec(KeyedOperator):
    """Keeps every version within ``history_ms`` (ms) of stream time, and the latest; null keys are
    dropped. All updates are passed on, each with its time, in ``emit_every_update`` or not."""

    store: str
    key_serde: Serde
    value_serde: Serde
    history_ms: int
    emit_every_update: bool = True

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value."""
        return self.value_serde.type

    def _process(self, batch: EdgeBatch, tasks: Tasks) -> TasksResult:
        keyed = np.flatnonzero(valid(batch.key))
        times, owners = batch.timestamp[keyed], tasks.of_records[keyed]
        running, after = stream_times(times, owners, tasks.stream_times)
        rows = keyed[times >= running - self.history_ms]
        put = batch if len(rows) == len(batch) else batch.take(rows)
        keys = written_bytes(self.key_serde, put.key, self.store, put)
        values = written_bytes(self.value_serde, put.value, self.store, put)
        order = np.argsort(put.partition, kind="stable")
        changes = {}
        for partition, part in task_slices(put.partition[order]):
            mine = order[part]
            index = pa.array(mine)
            changes[partition] = [
                StoreChanges(
                    self.store,
                    keys.take(index).to_pylist(),
                    values.take(index).to_pylist(),
                    put.timestamp[mine],
                )
            ]
        dropped = {"null-key": len(batch) - len(keyed), "late": len(keyed) - len(rows)}
        return TasksResult(
            put, changes, after, {reason: count for reason, count in dropped.items() if count}
        )


@dataclass(frozen=True)
class LatestUpdates(TableOperator):
    """The updates of a versioned table that are the latest of their key when they come; the others
    are dropped, and counted as ``out-of-order``."""

    table: JoinedTable
    result_key: pa.DataType
    emit_every_update: bool = True
    one_result: ClassVar[bool] = True
    passes_on: ClassVar[bool] = True

    @property
    def key_serde(self) -> Serde:
        return self.table.spec.key_serde

    @property
    def value_serde(self) -> Serde:
        return self.table.spec.value_serde

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value: the table's."""
        return self.table.type

    @property
    def results(self) -> ResultDecoder:
        return self.table.results

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        rows = np.flatnonzero(latest_when_put(self.table, batch, inputs.stores))
        dropped = {"out-of-order": len(batch) - len(rows)} if len(rows) < len(batch) else {}
        return TasksResult(batch.take(rows) if dropped else batch, {}, {}, dropped)
