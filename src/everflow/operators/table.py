"""Tables: the last value per key, materialised (``table(topic)`` and ``to_table``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import KeyedOperator, Tasks, entries, group, result
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, TasksResult
from everflow.serdes import Serde


@dataclass(frozen=True)
class TableSpec(KeyedOperator):
    """Keeps the last value of each key; null keys are dropped, a null value deletes and is
    forwarded.

    An update older than the stored one is applied all the same, as in Kafka Streams without
    versioned stores. One output per key and batch, the last, with its own
    time; all of them with ``emit_every_update``.
    """

    store: str
    key_serde: Serde
    value_serde: Serde
    emit_every_update: bool = False
    only_visible: bool = False
    """A deletion of what is not there is dropped (KAFKA-10077); this one reads the store."""

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value."""
        return self.value_serde.type

    def _process(self, batch: EdgeBatch, tasks: Tasks) -> TasksResult:
        if self.only_visible:
            batch, tasks = self._visible(batch, tasks)
        groups = group(batch, self.key_serde, None, tasks, store=self.store, skip_null_values=False)
        last_rows = groups.rows[groups.last]
        values = written_bytes(
            self.value_serde, batch.value.take(pa.array(last_rows)), self.store, batch, last_rows
        ).to_pylist()
        changes = groups.changes(self.store, values, batch.timestamp[last_rows])
        at = (
            np.arange(len(groups.rows), dtype=np.int64)
            if self.emit_every_update
            else np.sort(groups.last)
        )
        rows = groups.rows[at]
        shown = batch.value.take(pa.array(rows))
        return result(
            batch,
            groups,
            changes,
            at=at,
            values=shown,
            timestamps=batch.timestamp[rows],
            window=None,
        )

    def _visible(self, batch: EdgeBatch, tasks: Tasks) -> tuple[EdgeBatch, Tasks]:
        """Without the deletions of what is not there, where they stand."""
        groups = group(batch, self.key_serde, None, tasks, store=self.store, skip_null_values=False)
        there = valid(batch.value)[groups.rows]
        order = np.argsort(groups.codes, kind="stable")
        first = np.diff(groups.codes[order], prepend=-1) != 0
        before = np.empty(len(order), bool)
        before[order[~first]] = there[order[np.flatnonzero(~first) - 1]]
        before[order[first]] = [entry is not None for entry in entries(groups, tasks.stores)]
        # Null keys stay, to be counted as dropped.
        kept = np.ones(len(batch), bool)
        kept[groups.rows] = there | before
        rows = np.flatnonzero(kept)
        return batch.take(rows), tasks._replace(of_records=tasks.of_records[rows])
