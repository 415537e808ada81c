"""A stream enriched by a global table: the entry under a key that is made of each record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import stored
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import JoinKind, joined
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.state.store import StoreSpec, StoreView
from everflow.topology.graph import Inputs, Operator
from everflow.topology.hops import spread


def mapped_type(left: pa.DataType, right: pa.DataType, key: pa.DataType) -> pa.DataType:
    """``struct<left, right, mapped>``: a match, and the key that was looked up."""
    return pa.struct([("left", left), ("right", right), ("mapped", key)])


def looked_up(table: JoinedTable, keys: pa.Array, view: StoreView) -> pa.Array:
    """The entries of a global table under key bytes, null where there is none or the key is null;
    each key is read once."""
    codes = keys.dictionary_encode()
    entries = view.get_many(codes.dictionary.to_pylist())
    found: pa.Array = stored(entries, table.results).values.cast(table.type)
    return found.take(codes.indices)


@dataclass(frozen=True)
class StreamGlobalJoin(Operator):
    """Inner or left join (KStream-GlobalKTable) of values ``struct<fk, value>``, ``fk`` the mapped
    key (see `everflow.operators.joins.foreign_keys.selected_type`).

    A record without a value is dropped; one whose mapped key is null, too, unless the ``kind``
    keeps the left side: then its right is null. A result has the record's own key, null or not, its
    time and headers. ``mapped``: the mapped key stands beside both sides (KIP-1340).
    """

    table: JoinedTable
    kind: JoinKind
    mapped: bool = False
    one_result: ClassVar[bool] = True

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        return (self.table.spec,)

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        keys, values = batch.value.flatten()
        valued, mapped = valid(values), valid(keys)
        taken = valued if self.kind.keeps_left else valued & mapped
        dropped = {
            "null-value": int(np.count_nonzero(~valued)),
            "null-key": int(np.count_nonzero(valued & ~taken)),
        }
        rows = np.flatnonzero(taken)
        whole = next(iter(inputs.stores.values()))[self.table.spec.name]
        found = self._entries(batch, keys, rows, whole)
        if not self.kind.keeps_left and found.null_count:
            there = valid(found)
            rows, found = rows[there], found.filter(pa.array(there))
        at = pa.array(rows)
        value = self._value(values.take(at), found, keys.take(at))
        output = batch.take(rows).with_columns(value=value)
        return TasksResult(
            output, {}, {}, {reason: count for reason, count in dropped.items() if count}
        )

    def _entries(self, batch: EdgeBatch, keys: pa.Array, rows: Int64, whole: StoreView) -> pa.Array:
        """What the table holds for the mapped keys of ``rows``."""
        keyed = rows[valid(keys)[rows]]
        spec = self.table.spec
        written = written_bytes(spec.key_serde, keys.take(pa.array(keyed)), spec.name, batch, keyed)
        found = looked_up(self.table, written, whole)
        if len(keyed) == len(rows):
            return found
        return spread(found, np.searchsorted(rows, keyed), len(rows))

    def _value(self, left: pa.Array, right: pa.Array, mapped: pa.Array) -> pa.Array:
        if not self.mapped:
            return joined(left, right)
        return pa.StructArray.from_arrays(
            [left, right, mapped],
            fields=list(mapped_type(left.type, right.type, mapped.type)),
        )
