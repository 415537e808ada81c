"""One side of a stream-stream join: its window store, and how far its matches may lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.grouping import task_slices
from everflow.operators.joins.joined_values import Stores
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int32, Int64
from everflow.serdes.base import rest
from everflow.serdes.windowed import START_BYTES, STORE_SUFFIX_BYTES, window_store_prefixes
from everflow.state.changelog import TIMESTAMP_BYTES, expiry_times
from everflow.state.store import Entry, StoreSpec, last_of_length

_NUMBER_BYTES = STORE_SUFFIX_BYTES - START_BYTES
_LAST_TIME = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class JoinSide:
    """A side's records, kept in a window store by key, time and a number that tells apart those of
    one key and time (as Kafka Streams keeps duplicates).

    A record at t meets those of the other side from t - ``back_ms`` to t + ``ahead_ms``. ``kept``:
    one that nothing has met gives a result without a match.
    """

    store: StoreSpec
    type: pa.DataType
    back_ms: int
    ahead_ms: int
    grace_ms: int
    kept: bool

    @property
    def closes_ms(self) -> int:
        """A record at t is late, or closes, when the stream time of both sides is past t + this:
        its window and the grace are over."""
        return self.ahead_ms + self.grace_ms

    @property
    def stays_ms(self) -> int:
        """The store has a record at t until the side's own time is past t + this."""
        return self.back_ms + self.ahead_ms + self.grace_ms

    def keys_of(self, batch: EdgeBatch) -> pa.Array:
        """Key bytes; UserFunctionError for a key that cannot be written."""
        return written_bytes(self.store.key_serde, batch.key, self.store.name, batch)

    def values_of(self, batch: EdgeBatch) -> pa.Array:
        """Value bytes; UserFunctionError for a value that cannot be written."""
        return written_bytes(self.store.value_serde, batch.value, self.store.name, batch)

    def decoded(self, entries: pa.Array) -> pa.Array:
        """The values of stored entries, in the side's type."""
        values = self.store.value_serde.decode_array(rest(entries, TIMESTAMP_BYTES))
        return values.cast(self.type)

    def read(self, groups: JoinKeys, low: Int64, high: Int64, stores: Stores) -> Kept:
        return read_entries(self.store.name, groups, low, high, stores)


class JoinKeys(NamedTuple):
    """Keys of tasks: the task and the key bytes of each."""

    partitions: Int32
    keys: pa.Array

    def take(self, codes: Int64) -> JoinKeys:
        return JoinKeys(self.partitions[codes], self.keys.take(pa.array(codes)))

    def by_task(self) -> tuple[Int64, list[tuple[int, slice]]]:
        """The groups by task, then key, and where each task's are."""
        order = pc.sort_indices(self.keys).to_numpy().astype(np.int64)
        order = order[np.argsort(self.partitions[order], kind="stable")]
        return order, task_slices(self.partitions[order])


class Kept(NamedTuple):
    """Entries of a window store: the group, time (ms) and number of each."""

    codes: Int64
    times: Int64
    numbers: Int64
    entries: pa.Array

    @staticmethod
    def of(codes: list[int], keys: list[bytes], entries: list[bytes]) -> Kept:
        numbers = np.frombuffer(b"".join([key[-_NUMBER_BYTES:] for key in keys]), ">i4")
        return Kept(
            np.array(codes, np.int64),
            expiry_times(keys, "window"),
            numbers.astype(np.int64),
            pa.array(entries, pa.binary()),
        )


def read_entries(store: str, groups: JoinKeys, low: Int64, high: Int64, stores: Stores) -> Kept:
    """The entries of each group's key in a window store, with times from ``low`` to ``high`` (ms,
    included)."""
    found = _Found([], [], [])
    order, parts = groups.by_task()
    column = groups.keys.take(pa.array(order))
    starts, ends = _places(column, low[order]), _places(column, _after(high[order]))
    plain, numbers = column.to_pylist(), order.tolist()
    for partition, part in parts:
        bounds = list(zip(starts[part], ends[part], strict=True))
        listed = stores[partition][store].range_many(bounds)
        for code, key, entries in zip(numbers[part], plain[part], listed, strict=True):
            found.add(code, key, entries)
    return Kept.of(*found)


def read_as_of(
    store: str, groups: JoinKeys, low: Int64, first: Int64, last: Int64, stores: Stores
) -> Kept:
    """What those who ask from ``first`` to ``last`` (ms) may find of each group's key: the last
    entry from ``low`` to ``first``, and those behind it up to ``last``."""
    found = _Found([], [], [])
    order, parts = groups.by_task()
    column = groups.keys.take(pa.array(order))
    starts, ends = _places(column, low[order]), _places(column, _after(first[order]))
    plain, numbers = column.to_pylist(), order.tolist()
    for partition, part in parts:
        bounds = list(zip(starts[part], ends[part], strict=True))
        lengths = [len(key) + STORE_SUFFIX_BYTES for key in plain[part]]
        lasts = last_of_length(stores[partition][store], bounds, lengths)
        for code, key, entry in zip(numbers[part], plain[part], lasts, strict=True):
            found.add(code, key, [] if entry is None else [entry])
    behind = read_entries(store, groups, _after(first), last, stores)
    kept = Kept.of(*found)
    return Kept(
        np.concatenate([kept.codes, behind.codes]),
        np.concatenate([kept.times, behind.times]),
        np.concatenate([kept.numbers, behind.numbers]),
        pa.concat_arrays([kept.entries, behind.entries]),
    )


class _Found(NamedTuple):
    """Entries with the group of each."""

    codes: list[int]
    keys: list[bytes]
    entries: list[bytes]

    def add(self, code: int, key: bytes, entries: Sequence[Entry]) -> None:
        length = len(key) + STORE_SUFFIX_BYTES
        for stored_key, entry in entries:
            if len(stored_key) == length:  # else a longer key that begins like the bounds
                self.codes.append(code)
                self.keys.append(stored_key)
                self.entries.append(entry)


def _places(keys: pa.Array, times: Int64) -> list[bytes]:
    """Sorts before all entries of each key and time, and behind those of the times before."""
    found: list[bytes] = window_store_prefixes(keys, np.maximum(times, 0)).to_pylist()
    return found


def _after(times: Int64) -> Int64:
    return np.minimum(np.maximum(times, -1), _LAST_TIME - 1) + 1
