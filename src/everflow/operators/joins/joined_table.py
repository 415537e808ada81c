"""A table as a join reads it: what it held for a key when a record was processed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import Stored, stored
from everflow.operators.joins.joined_values import Stores, task_codes
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int32, Int64
from everflow.serdes.base import ResultDecoder
from everflow.serdes.windowed import SessionWindowedSerde, window_store_keys
from everflow.state.store import VERSIONED, StoreSpec
from everflow.topology.batches import spread

NEVER = int(np.iinfo(np.int64).min)


class Held(NamedTuple):
    """What a table held, row by row: ``values`` null where it had no entry, ``times`` (ms) of the
    entries (`NEVER` where there is none)."""

    values: pa.Array
    times: Int64

    def in_rows(self, rows: Int64, count: int) -> Held:
        """The same in ``rows`` of ``count``, nothing in the others."""
        times = np.full(count, NEVER)
        times[rows] = self.times
        return Held(spread(self.values, rows, count), times)


class _Places(NamedTuple):
    """Rows of a batch: task and key (as a number), task, key, and place in the order of the
    batch."""

    codes: Int64
    partitions: Int32
    keys: pa.Array
    at: Int64


@dataclass(frozen=True)
class JoinedTable:
    """A table's store, how its values are read, and the type of the table's values."""

    spec: StoreSpec
    results: ResultDecoder
    type: pa.DataType

    def keys_of(self, batch: EdgeBatch) -> pa.Array:
        """The store's keys of the batch's, none of which is null. UserFunctionError for a key that
        cannot be written."""
        name = self.spec.name
        if self.spec.kind == "session":
            return written_bytes(SessionWindowedSerde(self.spec.key_serde), batch.key, name, batch)
        if self.spec.kind in ("key_value", VERSIONED):
            return written_bytes(self.spec.key_serde, batch.key, name, batch)
        inner, start, _ = batch.key.flatten()
        keys = written_bytes(self.spec.key_serde, inner, name, batch)
        return window_store_keys(keys, start.to_numpy())

    def when(
        self,
        asking: EdgeBatch,
        updates: EdgeBatch,
        stores: Stores,
        *,
        first: bool,
    ) -> Held:
        """What the table held for the key of each record of ``asking`` (nothing for a null), after
        those of its ``updates`` in this batch that came before the record. ``first``: whether one
        that the same input record made did."""
        if asking.key.null_count:
            keyed = np.flatnonzero(valid(asking.key))
            held = self.when(asking.take(keyed), updates, stores, first=first)
            return held.in_rows(keyed, len(asking))
        asked, known = self._places(asking, updates)
        return self._held(asked, known, updates, stores, side="right" if first else "left")

    def before(self, updates: EdgeBatch, stores: Stores) -> Held:
        """What the table held for each update's key before that update."""
        known, _ = self._places(updates, updates.take(np.empty(0, np.int64)))
        known = known._replace(at=np.arange(len(updates), dtype=np.int64))
        return self._held(known, known, updates, stores, side="left")

    def _places(self, asking: EdgeBatch, updates: EdgeBatch) -> tuple[_Places, _Places]:
        keys = pa.concat_arrays([self.keys_of(asking), self.keys_of(updates)])
        partitions = np.concatenate([asking.partition, updates.partition])
        codes, count = task_codes(keys, partitions), len(asking)
        return (
            _Places(codes[:count], asking.partition, keys[:count], asking.seq),
            _Places(codes[count:], updates.partition, keys[count:], updates.known_from),
        )

    def _held(
        self,
        asked: _Places,
        known: _Places,
        updates: EdgeBatch,
        stores: Stores,
        side: Literal["left", "right"],
    ) -> Held:
        """``side``: whether an update in the very place of a record counts (right) or not."""
        order = np.argsort(known.codes, kind="stable")
        codes = known.codes[order]
        # Ranks: places may be as high as `LAST_SEQ`.
        _, ranks = np.unique(np.concatenate([known.at, asked.at]), return_inverse=True)
        before, at = ranks[: len(known.at)], ranks[len(known.at) :]
        span = 1 + int(ranks.max(initial=0))
        found = np.searchsorted(codes * span + before[order], asked.codes * span + at, side=side)
        last = np.maximum(found - 1, 0)
        here = (found > 0) & (
            codes[last] == asked.codes if len(codes) else np.zeros(len(asked.codes), bool)
        )
        rows = order[last] if len(order) else last
        kept, place = self._kept(asked, np.flatnonzero(~here), stores)
        index = np.where(here, rows, len(updates) + place)
        values = pa.concat_arrays([updates.value.cast(self.type), kept.values.cast(self.type)])
        times = np.concatenate([updates.timestamp, kept.timestamps])[index]
        column = values.take(pa.array(index))
        if column.null_count:
            times = np.where(valid(column), times, NEVER)
        return Held(column, times)

    def _kept(self, asked: _Places, rows: Int64, stores: Stores) -> tuple[Stored, Int64]:
        """What the store held before the batch, each key read once; and for each asked row its
        place there (any for rows that are not in ``rows``)."""
        _, first, place = np.unique(asked.codes[rows], return_index=True, return_inverse=True)
        ones = rows[first]
        owners = asked.partitions[ones]
        entries: list[bytes | None] = [None] * len(ones)
        for partition in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == partition)
            keys = asked.keys.take(pa.array(ones[mine])).to_pylist()
            found = stores[partition][self.spec.name].get_many(keys)
            for at, entry in zip(mine.tolist(), found, strict=True):
                entries[at] = entry
        places = np.zeros(len(asked.codes), np.int64)
        places[rows] = place
        return stored(entries, self.results), places
