"""What keyed operators share: drop what has no key, find windows and late records, group, read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.fold import valid
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int64, OperatorResult, StoreChanges
from everflow.serdes import Serde
from everflow.serdes.base import decode_present, matrix_from_binary, rest
from everflow.serdes.windowed import window_store_keys, windowed_key_type
from everflow.state.store import StoreView
from everflow.windows import TimeWindows

TIMESTAMP_BYTES = 8


class KeyedOperator:
    """What specs of keyed operators have in common: one store, whose keys are the records', or with
    a window."""

    store: str
    key_serde: Serde
    value_serde: Serde
    window: TimeWindows | None = None

    @property
    def result_key(self) -> pa.DataType:
        """Arrow type of the output's key."""
        return (
            self.key_serde.type if self.window is None else windowed_key_type(self.key_serde.type)
        )

    def decode_result(self, data: bytes) -> Any:
        """What the table shows for stored value bytes (without the 8-byte timestamp): here the
        value itself."""
        return self.value_serde.decode(data)


@dataclass(kw_only=True)
class Groups:
    """Contributions (a record, or a record and one of its windows) by store key.

    ``rows``: row of the batch of each contribution, in processing order; ``codes``: its group;
    groups are in the order of ``keys``, the sorted store keys. ``last``: the last contribution of
    each group. ``starts``: window start per group.
    """

    rows: Int64
    codes: Int64
    keys: list[bytes]
    last: Int64
    starts: Int64 | None
    stream_time: int
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, column: pa.Array) -> pa.Array:
        """The batch's ``column`` per contribution; without a copy where every record contributes
        once."""
        return column if self._every_row(len(column)) else column.take(pa.array(self.rows))

    def _every_row(self, count: int) -> bool:
        return len(self.rows) == count and (
            self.starts is None or bool((self.rows == np.arange(count)).all())
        )


@dataclass
class Stored:
    """What the store holds for each group: ``values`` null and ``timestamps`` the smallest int64
    where ``present`` is False."""

    present: npt.NDArray[np.bool_]
    timestamps: Int64
    values: pa.Array


def group(
    batch: EdgeBatch,
    key_serde: Serde,
    window: TimeWindows | None,
    stream_time: int,
    *,
    store: str,
    skip_null_values: bool,
) -> Groups:
    """Groups ``batch`` by the bytes of its keys, and by window. UserFunctionError for a key that
    cannot be written.

    Stream time is a running maximum over the records with a key (and a value, where those are
    skipped); each record is judged by the maximum up to and including itself. Dropped:
    ``null-key``, ``null-value``, and ``late`` once per closed window of a record, as Kafka Streams
    counts.
    """
    dropped: dict[str, int] = {}
    rows = np.arange(len(batch), dtype=np.int64)
    if batch.key.null_count:
        dropped["null-key"] = batch.key.null_count
        rows = rows[valid(batch.key)]
    if skip_null_values and batch.value.null_count:
        kept = rows[valid(batch.value)[rows]]
        if len(kept) < len(rows):
            dropped["null-value"] = len(rows) - len(kept)
        rows = kept
    times = batch.timestamp[rows]
    running = np.maximum(np.maximum.accumulate(times), stream_time) if len(times) else times
    keys = written_bytes(key_serde, batch.key, store, batch)
    starts: Int64 | None = None
    if window is not None:
        at, starts = window.expand(times)
        is_open = window.is_open(starts, running[at])
        if not is_open.all():
            dropped["late"] = int(len(starts) - np.count_nonzero(is_open))
            at, starts = at[is_open], starts[is_open]
        rows = rows[at]
    if len(rows) != len(batch) or window is not None:
        keys = keys.take(pa.array(rows))
    codes, unique, starts = _codes(keys, starts, window)
    order = pc.sort_indices(unique).to_numpy().astype(np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[codes]
    last = np.empty(len(order), np.int64)
    last[codes] = np.arange(len(codes))  # the last assignment wins
    return Groups(
        rows=rows,
        codes=codes,
        keys=unique.take(pa.array(order)).to_pylist(),
        last=last,
        starts=None if starts is None else starts[order],
        stream_time=int(running[-1]) if len(running) else stream_time,
        dropped=dropped,
    )


def read(groups: Groups, store: StoreView, serde: Serde) -> Stored:
    """The stored values of the groups, read in key order by one call."""
    raw = pa.array(store.get_many(groups.keys), pa.binary())
    present = valid(raw)
    timestamps = np.full(len(raw), np.iinfo(np.int64).min)
    times = pc.binary_slice(raw.drop_null(), 0, TIMESTAMP_BYTES)
    rows = np.ascontiguousarray(matrix_from_binary(times, TIMESTAMP_BYTES))
    timestamps[present] = rows.view(">i8").reshape(-1)
    values = decode_present(raw, lambda some: serde.decode_array(rest(some, TIMESTAMP_BYTES)))
    return Stored(present, timestamps, values)


def result_key(batch: EdgeBatch, groups: Groups, at: Int64, window: TimeWindows | None) -> pa.Array:
    """Keys of the results of the contributions ``at``; for windows ``struct<key, start, end>``."""
    key = batch.key.take(pa.array(groups.rows[at]))
    if window is None or groups.starts is None:
        return key
    starts = groups.starts[groups.codes[at]]
    columns = [key, pa.array(starts), pa.array(starts + window.size_ms)]
    return pa.StructArray.from_arrays(columns, fields=list(windowed_key_type(batch.key.type)))


def result(
    batch: EdgeBatch,
    groups: Groups,
    changes: StoreChanges,
    *,
    at: Int64,
    values: pa.Array,
    timestamps: Int64,
    window: TimeWindows | None,
) -> OperatorResult:
    """The results of the contributions ``at`` (increasing), each with the position of the record
    that made it."""
    rows = groups.rows[at]
    output = EdgeBatch(
        key=result_key(batch, groups, at, window),
        value=values,
        timestamp=timestamps,
        seq=batch.seq[rows],
        source=batch.source[rows],
        partition=batch.partition[rows],
        offset=batch.offset[rows],
        headers=None if batch.headers is None else batch.headers.take(pa.array(rows)),
    )
    return OperatorResult(
        output, [changes] if len(changes) else [], groups.stream_time, groups.dropped
    )


def _codes(
    keys: pa.Array, starts: Int64 | None, window: TimeWindows | None
) -> tuple[Int64, pa.Array, Int64 | None]:
    """Per contribution a code, per code the store key and the window start."""
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    if starts is None or window is None:
        return codes, encoded.dictionary, None
    if len(codes) == 0:
        return codes, encoded.dictionary, starts
    # one number for (key, window): windows start at multiples of the advance, so their numbers are
    # small
    numbers = starts // window.advance_ms
    lowest = int(numbers.min())
    span = int(numbers.max()) - lowest + 1
    if (
        span * len(encoded.dictionary) > np.iinfo(np.int64).max
    ):  # stray timestamps: number the windows densely
        windows, numbers = np.unique(numbers, return_inverse=True)
        lowest, span = 0, len(windows)
    else:
        windows = None
    pairs = pa.array(codes * span + (numbers - lowest)).dictionary_encode()
    unique = pairs.dictionary.to_numpy()
    offsets = unique % span
    group_starts = (offsets + lowest if windows is None else windows[offsets]) * window.advance_ms
    group_keys = encoded.dictionary.take(pa.array(unique // span))
    return (
        pairs.indices.to_numpy().astype(np.int64),
        window_store_keys(group_keys, group_starts),
        group_starts,
    )
