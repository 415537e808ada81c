"""What processors forward, as columns: each result beside the input record that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.processors.processor import NO_ROW, Forwarded, Record
from everflow.operators.user_code import UserFunctionError
from everflow.records import HEADERS, LAST_SEQ, EdgeBatch, Int64, joined_headers
from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.windowed import python_keys
from everflow.topology.graph import EdgeType
from everflow.user_program import shown


def tagged(value: pa.DataType, children: Sequence[str]) -> pa.DataType:
    """The type of a processor's output, which says for which child it is where there are some."""
    if not children:
        return value
    return pa.struct([("child", pa.int32()), ("value", value)])


@dataclass
class Results:
    """Of all tasks of a batch. ``out``: the types that the user's values have; ``children``:
    whether results are tagged; ``batch``: the input."""

    out: EdgeType
    children: Sequence[str]
    keeps_key: bool
    batch: EdgeBatch
    _parts: list[EdgeBatch] = field(default_factory=list)

    def fitted(self, one: Forwarded) -> Record:
        """A record as those get it who read it as a result. UserFunctionError as `add`."""
        row, record = np.array([one.row], np.int64), one.record
        key = record.key
        if not self.keeps_key:
            key = python_keys(self._column("key", [key], self.out.key, row))[0]
        value = self._column("value", [record.value], self.out.value, row)[0].as_py()
        return record._replace(key=key, value=value)

    def add(self, partition: int, forwarded: Sequence[Forwarded]) -> None:
        """What a task's records have brought. UserFunctionError for a key or value that is not of
        its type, of the record it came from."""
        if not forwarded:
            return
        rows = np.array([one.row for one in forwarded], np.int64)
        records = [one.record for one in forwarded]
        value = self._column("value", [one.value for one in records], self.out.value, rows)
        key = (
            self.batch.key.take(pa.array(rows))
            if self.keeps_key
            else self._column("key", [one.key for one in records], self.out.key, rows)
        )
        times = self._column("timestamp", [one.timestamp for one in records], pa.int64(), rows)
        headers = None
        if any(one.headers for one in records):
            listed = [[{"key": k, "value": v} for k, v in one.headers] for one in records]
            headers = self._column("headers", listed, HEADERS, rows)
        children = pa.array([one.child for one in forwarded], pa.int32())
        self._parts.append(
            placed(
                self.batch,
                rows,
                key=key,
                value=self._tagged(value, children),
                times=times.to_numpy(),
                headers=headers,
                partition=partition,
            )
        )

    def add_batch(self, made: EdgeBatch) -> None:
        """What `results_of_batch` has given."""
        none = pa.nulls(len(made), pa.int32())
        self._parts.append(made.with_columns(value=self._tagged(made.value, none)))

    def taken(self, others: Sequence[Results] = ()) -> EdgeBatch:
        """All of them, in the order of the records; with those of ``others``, of the same
        processor."""
        parts = [part for one in (self, *others) for part in one._parts if len(part)]
        if not parts:
            nothing = pa.nulls(0, tagged(self.out.value, self.children))
            empty = self.batch.take(np.empty(0, np.int64))
            return empty.with_columns(pa.nulls(0, self.out.key), nothing)
        headers = joined_headers([(part.headers, len(part)) for part in parts])
        whole = EdgeBatch(
            key=pa.concat_arrays([part.key for part in parts]),
            value=pa.concat_arrays([part.value for part in parts]),
            timestamp=np.concatenate([part.timestamp for part in parts]),
            seq=np.concatenate([part.seq for part in parts]),
            source=np.concatenate([part.source for part in parts]),
            partition=np.concatenate([part.partition for part in parts]),
            offset=np.concatenate([part.offset for part in parts]),
            headers=headers,
        )
        return whole.take(np.argsort(whole.seq, kind="stable"))

    def _tagged(self, value: pa.Array, children: pa.Array) -> pa.Array:
        if not self.children:
            return value
        kind = tagged(self.out.value, self.children)
        return pa.StructArray.from_arrays([children, value], fields=list(kind))

    def _column(self, what: str, items: list[Any], kind: pa.DataType, rows: Int64) -> pa.Array:
        try:
            return column_of(items, kind)
        except UnfitError as error:
            row = int(rows[error.index])
            told = TypeError(
                f"forward found the {what} {shown(items[error.index])}, which is not of the "
                f"declared type: {error}"
            )
            raise UserFunctionError(
                str(told),
                source=NO_ROW if row == NO_ROW else int(self.batch.source[row]),
                partition=0 if row == NO_ROW else int(self.batch.partition[row]),
                offset=-1 if row == NO_ROW else int(self.batch.offset[row]),
            ) from told


def placed(
    batch: EdgeBatch,
    rows: Int64,
    *,
    key: pa.Array,
    value: pa.Array,
    times: Int64,
    headers: pa.Array | None,
    partition: int,
) -> EdgeBatch:
    """Results of the input rows ``rows`` (`NO_ROW`: of a clock's call, behind all records)."""
    of_records = rows != NO_ROW

    def column(of_batch: Any, otherwise: int) -> Any:
        found = np.full(len(rows), otherwise, of_batch.dtype)
        found[of_records] = of_batch[rows[of_records]]
        return found

    return EdgeBatch(
        key=key,
        value=value,
        timestamp=times.astype(np.int64),
        seq=column(batch.seq, LAST_SEQ),
        source=column(batch.source, 0),
        partition=np.full(len(rows), partition, np.int32),
        offset=column(batch.offset, -1),
        headers=headers,
    )


def results_of_batch(
    out: EdgeType, made: pa.RecordBatch | pa.Table, batch: EdgeBatch, keeps_key: bool
) -> tuple[EdgeBatch, Int64]:
    """What a `BatchProcessor` has returned for records of a task, and of which of them each is.
    TypeError, ValueError for columns that are not what `BatchProcessor.process_batch` says."""
    if not isinstance(made, pa.RecordBatch | pa.Table):
        raise TypeError(f"process_batch returns an Arrow batch or table, found {shown(made)}")
    table = pa.Table.from_batches([made]) if isinstance(made, pa.RecordBatch) else made
    needed = ["value"] if keeps_key else ["key", "value"]
    known = {*needed, "timestamp", "headers", "row"}
    if not set(needed) <= set(table.column_names) or set(table.column_names) - known:
        raise ValueError(
            f"process_batch returns the columns {', '.join(needed)}, and maybe timestamp, headers "
            f"and row; found {', '.join(table.column_names) or 'none'}"
        )

    def column(name: str, kind: pa.DataType) -> pa.Array:
        return table.column(name).combine_chunks().cast(kind)

    if "row" in table.column_names:
        at = column("row", pa.int64()).to_numpy()
        if len(at) and (at.min() < 0 or at.max() >= len(batch)):
            raise ValueError(f"process_batch: row is from 0 to {len(batch) - 1}")
    elif len(table) == len(batch):
        at = np.arange(len(batch), dtype=np.int64)
    else:
        at = np.full(len(table), len(batch) - 1, np.int64)
    own = batch.take(at)
    times = own.timestamp
    if "timestamp" in table.column_names:
        times = column("timestamp", pa.int64()).to_numpy()
        if (times < 0).any():
            raise ValueError("process_batch: a time is in ms since 1970, found a negative one")
    results = EdgeBatch(
        key=own.key if keeps_key else column("key", out.key),
        value=column("value", out.value),
        timestamp=times,
        seq=own.seq,
        source=own.source,
        partition=own.partition,
        offset=own.offset,
        headers=column("headers", HEADERS) if "headers" in table.column_names else own.headers,
    )
    return results, at
