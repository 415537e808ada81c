"""Tables: the last value per key, materialised (``table(topic)`` and ``to_table``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import KeyedOperator, Tasks, group, result
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, TasksResult
from everflow.serdes import Serde


@dataclass(frozen=True)
class TableSpec(KeyedOperator):
    """Keeps the last value of each key; null keys are dropped, a null value deletes and is
    forwarded.

    An update older than the stored one is applied all the same, as in Kafka Streams without
    versioned stores. The store is not read. One output per key and batch, the last, with its own
    time; all of them with ``emit_every_update``.
    """

    store: str
    key_serde: Serde
    value_serde: Serde
    emit_every_update: bool = False

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value."""
        return self.value_serde.type

    def _process(self, batch: EdgeBatch, tasks: Tasks) -> TasksResult:
        """Upserts and deletes."""
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
