"""Shared by keyed operators: drop keyless records, find windows and late records, group, read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.user_code import written_bytes
from everflow.records import (
    LATE,
    ByteColumn,
    EdgeBatch,
    Int32,
    Int64,
    StoreChanges,
    TasksResult,
    partitions_in,
    rises,
    run_bounds,
    valid,
)
from everflow.serdes import Serde
from everflow.serdes.base import (
    ResultDecoder,
    SerdeError,
    bytes_of,
    decode_present,
    rest,
    words,
)
from everflow.serdes.windowed import (
    START_BYTES,
    STORE_SUFFIX_BYTES,
    window_store_keys,
    window_store_prefixes,
    windowed_key_type,
)
from everflow.state.changelog import TIMESTAMP_BYTES, expiry_times
from everflow.state.store import Bounds, Entry, StoreView, last_of_length
from everflow.topology.graph import Inputs, TableOperator
from everflow.windows import TimeWindows

Stores = Mapping[int, Mapping[str, StoreView]]
"""The stores of an operator by name, by the partition of each task."""
Flags = npt.NDArray[np.bool_]
NEVER = int(np.iinfo(np.int64).min)
"""The time of an entry that is not there."""
_LAST_TIME = np.iinfo(np.int64).max
_NUMBER_BYTES = STORE_SUFFIX_BYTES - START_BYTES


class KeyedOperator(TableOperator):
    """The base of specs with one store, whose keys are the records', or with a window. All tasks'
    records are folded together: a batch costs what its records cost, not its tasks."""

    store: str
    key_serde: Serde
    value_serde: Serde
    window: TimeWindows | None = None

    @property
    def result_key(self) -> pa.DataType:
        return (
            self.key_serde.type if self.window is None else windowed_key_type(self.key_serde.type)
        )

    @property
    def one_result(self) -> bool:
        return self.window is None

    def groups_of(
        self,
        batch: EdgeBatch,
        inputs: Inputs,
        *,
        skip_null_values: bool,
    ) -> Groups:
        """Groups ``batch`` by task, by the bytes of its keys, and by window. UserFunctionError for
        a key that cannot be written.

        A record is judged by its task's stream time, the highest of the records with a key (and a
        value, where nulls are skipped) up to and including it. Dropped: ``null-key``,
        ``null-value``, ``negative-timestamp``, and ``late``, once per closed window.
        """
        window = self.window
        rows, dropped = counted(batch, skip_null_values)
        times, owners = batch.timestamp[rows], batch.partition[rows]
        running, after = stream_times(times, owners, inputs.stream_times)
        keys = written_bytes(self.key_serde, batch.key, self.store, batch)
        starts: Int64 | None = None
        if window is not None:
            at, starts = window.expand(times)  # a negative time is in no window
            if negative := int(np.count_nonzero(times < 0)):
                dropped["negative-timestamp"] = negative
            is_open = window.is_open(starts, running[at])
            if not is_open.all():
                dropped[LATE] = int(len(starts) - np.count_nonzero(is_open))
                at, starts = at[is_open], starts[is_open]
            rows, owners = rows[at], owners[at]
        if len(rows) != len(batch) or (window is not None and not _rows_of_all(rows)):
            keys = keys.take(rows)
        return grouped(KeyedRows(rows, keys, owners, starts), window, after, dropped)


class AroundTable(TableOperator):
    """The base of specs that have the types and the store of another one, ``layout``."""

    layout: KeyedOperator

    @property
    def store(self) -> str:
        return self.layout.store

    @property
    def key_serde(self) -> Serde:
        return self.layout.key_serde

    @property
    def value_serde(self) -> Serde:
        return self.layout.value_serde

    @property
    def result_key(self) -> pa.DataType:
        return self.layout.result_key

    @property
    def result(self) -> pa.DataType:
        return self.layout.result

    @property
    def results(self) -> ResultDecoder:
        return self.layout.results


@dataclass(kw_only=True)
class Groups:
    """KeyedRows (a record, or a record and one of its windows) by task and store key.

    ``rows``: row of the batch of each contribution, in processing order; ``codes``: its group;
    groups are in the order of their tasks, and in a task in that of ``keys``, the store keys (or as
    they came first, see `grouped`).
    ``parts``: each task's partition and its groups. ``last``: the last contribution of each group.
    ``starts``: window start per group.
    """

    rows: Int64
    codes: Int64
    keys: list[bytes]
    last: Int64
    starts: Int64 | None
    parts: list[tuple[int, slice]]
    stream_times: dict[int, int]
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def owners(self) -> Int32:
        """The partition of each group's task."""
        found = np.empty(len(self), np.int32)
        for partition, part in self.parts:
            found[part] = partition
        return found

    def take(self, column: pa.Array) -> pa.Array:
        """The batch's ``column`` per contribution; not copied if every record contributes once."""
        every_row = len(self.rows) == len(column) and (self.starts is None or self._of_all)
        return column if every_row else column.take(self.rows)

    @cached_property
    def _of_all(self) -> bool:
        return _rows_of_all(self.rows)

    def entries(self, inputs: Inputs, store: str) -> list[bytes | None]:
        """The groups' entries in a store, read in key order by one call for each task."""
        found: list[bytes | None] = []
        for partition, part in self.parts:
            found += inputs.stores[partition][store].get_many(self.keys[part])
        return found

    def changes(
        self, store: str, values: Sequence[bytes | None], timestamps: Int64
    ) -> dict[int, list[StoreChanges]]:
        return {
            partition: [StoreChanges(store, self.keys[part], values[part], timestamps[part])]
            for partition, part in self.parts
        }


def _rows_of_all(rows: Int64) -> bool:
    """Whether ``rows`` of as many records are all of them in turn."""
    return bool((rows == np.arange(len(rows))).all())


@dataclass
class Stored:
    """The entry of each group: null values, and `NEVER`, where ``present`` is False."""

    present: Flags
    timestamps: Int64
    values: pa.Array


class KeyedRows(NamedTuple):
    """Of each contribution its row, key bytes, task's partition, and window start."""

    rows: Int64
    keys: pa.Array
    owners: Int32
    starts: Int64 | None


def grouped(
    keyed: KeyedRows,
    window: TimeWindows | None,
    stream_times: dict[int, int],
    dropped: dict[str, int],
    *,
    by_key: bool = True,
) -> Groups:
    """``by_key``: a task's groups are in the order of their keys, else in that of their arrival."""
    codes, unique, starts, members = _codes(keyed, window)
    order = np.arange(len(unique))
    if by_key:
        order = pc.sort_indices(unique).to_numpy().astype(np.int64)
    if not rises(members[order]):
        order = order[np.argsort(members[order], kind="stable")]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[codes]
    last = np.empty(len(order), np.int64)
    last[codes] = np.arange(len(codes))  # the last assignment wins
    return Groups(
        rows=keyed.rows,
        codes=codes,
        keys=unique.take(order).to_pylist(),
        last=last,
        starts=None if starts is None else starts[order],
        parts=task_slices(members[order]),
        stream_times=stream_times,
        dropped=dropped,
    )


def counted(batch: EdgeBatch, skip_null_values: bool) -> tuple[Int64, dict[str, int]]:
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
    return rows, dropped


def stream_times(
    times: Int64, owners: Int32, before: Mapping[int, int]
) -> tuple[Int64, dict[int, int]]:
    """The stream time of each record's task at that record, and of all tasks after them."""
    after = dict(before)
    running = times.copy()
    for partition in partitions_in(owners):
        mine = owners == partition
        running[mine] = np.maximum(np.maximum.accumulate(times[mine]), before[partition])
        after[partition] = int(running[mine][-1])
    return running, after


def running_max(codes: Int64, values: Int64) -> Int64:
    """The highest value of each row's code up to that row."""
    if rises(values):
        return values
    order = np.argsort(codes, kind="stable")
    # In ranks, so that products stay small whatever the values are.
    distinct, ranks = np.unique(values[order], return_inverse=True)
    offset = codes[order] * len(distinct)
    found = np.empty(len(values), np.int64)
    found[order] = distinct[np.maximum.accumulate(ranks + offset) - offset]
    return found


def task_codes(keys: pa.Array, partitions: Int32) -> Int64:
    """A number for each row, equal where task and key are."""
    codes, tasks = _places(keys.dictionary_encode()), _tasks_up_to(partitions)
    if tasks == 1:
        return codes
    return _places(pa.array(codes * tasks + partitions).dictionary_encode())


def _places(encoded: pa.DictionaryArray) -> Int64:
    """Of each row, which value of the dictionary it has."""
    found: Int64 = encoded.indices.to_numpy().astype(np.int64)
    return found


def _tasks_up_to(partitions: Int32) -> int:
    """A number above all partitions; 1 where all are the same one."""
    if not len(partitions) or (partitions == partitions[0]).all():
        return 1
    return int(partitions.max()) + 1


def task_slices(members: Int32) -> list[tuple[int, slice]]:
    """Each partition in a sorted column, and where it stands."""
    return [
        (int(members[begin]), slice(begin, end)) for begin, end in pairwise(run_bounds(members))
    ]


def rows_by_task(owners: Int32) -> list[tuple[int, Int64]]:
    """Each partition in a column, and its rows in their order."""
    order = np.argsort(owners, kind="stable")
    return [(partition, order[part]) for partition, part in task_slices(owners[order])]


def changes_by_task(
    store: str, owners: Int32, keys: pa.Array, values: pa.Array, times: Int64
) -> dict[int, list[StoreChanges]]:
    """Changes of a store, row by row, as those of the tasks ``owners``; a null value deletes."""
    return {
        partition: [
            StoreChanges(
                store, ByteColumn(keys.take(rows)), ByteColumn(values.take(rows)), times[rows]
            )
        ]
        for partition, rows in rows_by_task(owners)
    }


def windowed_keys(key: pa.Array, starts: Int64, ends: Int64) -> pa.Array:
    """``struct<key, start, end>``."""
    columns = [key, pa.array(starts), pa.array(ends)]
    return pa.StructArray.from_arrays(columns, fields=list(windowed_key_type(key.type)))


def stored(found: Sequence[bytes | None], decoder: ResultDecoder) -> Stored:
    """Entries of a store (8-byte timestamp and value bytes), read; None where there is none."""
    raw = pa.array(found, pa.binary())
    present = valid(raw)
    content, places = bytes_of(raw.drop_null() if raw.null_count else raw)
    long_enough = places[1:] - places[:-1] >= TIMESTAMP_BYTES
    if not long_enough.all():
        index = int(present.nonzero()[0][np.argmin(long_enough)])
        raise SerdeError(f"an entry of {len(found[index] or b'')} bytes lacks a time", index=index)
    timestamps = np.full(len(raw), NEVER)
    timestamps[present] = words(content, ">i8")[places[:-1]]
    values = decode_present(raw, lambda some: decoder.decode_array(rest(some, TIMESTAMP_BYTES)))
    return Stored(present, timestamps, values)


def result(
    batch: EdgeBatch,
    groups: Groups,
    changes: dict[int, list[StoreChanges]],
    *,
    at: Int64,
    values: pa.Array,
    timestamps: Int64,
    window: TimeWindows | None = None,
) -> TasksResult:
    """The results of the contributions ``at`` (increasing), each at its record's position."""
    rows = groups.rows[at]
    key = batch.key.take(rows)
    if window is not None and groups.starts is not None:
        starts = groups.starts[groups.codes[at]]
        key = windowed_keys(key, starts, starts + window.size_ms)
    output = EdgeBatch(
        key=key,
        value=values,
        timestamp=timestamps,
        seq=batch.seq[rows],
        source=batch.source[rows],
        partition=batch.partition[rows],
        offset=batch.offset[rows],
        headers=None if batch.headers is None else batch.headers.take(rows),
    )
    return TasksResult(output, changes, groups.stream_times, groups.dropped)


def _codes(
    keyed: KeyedRows, window: TimeWindows | None
) -> tuple[Int64, pa.Array, Int64 | None, Int32]:
    """The group of each row; and of each group, as they came first: the key in the store, the start
    of its window, and the partition of its task."""
    keys, owners = keyed.keys.dictionary_encode(), keyed.owners
    starts = None if window is None else keyed.starts
    codes, tasks = _places(keys), _tasks_up_to(owners)
    if not len(codes) or (tasks == 1 and starts is None):
        members = np.full(len(keys.dictionary), owners[0] if len(owners) else 0, np.int32)
        return codes, keys.dictionary, starts, members
    # One number for key, task and window, by one encoding.
    if tasks > 1:
        codes = codes * tasks + owners
    if window is not None and starts is not None:
        # Windows start at multiples of the advance, so their numbers are small.
        numbers, windows = starts // window.advance_ms, None
        lowest = int(numbers.min())
        span = int(numbers.max()) - lowest + 1
        if span * (int(codes.max()) + 1) > np.iinfo(np.int64).max:
            # stray timestamps: number the windows densely
            windows, numbers = np.unique(numbers, return_inverse=True)
            lowest, span = 0, len(windows)
        codes = codes * span + (numbers - lowest)
    pairs = pa.array(codes).dictionary_encode()
    unique = pairs.dictionary.to_numpy()
    if window is not None and starts is not None:
        unique, offsets = unique // span, unique % span
        starts = (offsets + lowest if windows is None else windows[offsets]) * window.advance_ms
    members = np.full(len(unique), owners[0], np.int32)
    if tasks > 1:
        unique, members = unique // tasks, (unique % tasks).astype(np.int32)
    group_keys = keys.dictionary.take(pa.array(unique))
    if starts is not None:
        group_keys = window_store_keys(group_keys, starts)
    return _places(pairs), group_keys, starts, members


# --- entries of window stores, read by key and time, for operators that need what is near ---------


def extent(codes: Int64, count: int, first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """The least of ``first`` and the highest of ``last`` of each of ``count`` codes; times (ms)."""
    least, highest = np.full(count, _LAST_TIME), np.full(count, -1)
    np.minimum.at(least, codes, first)
    np.maximum.at(highest, codes, last)
    return least, highest


class TaskKeys(NamedTuple):
    """Tasks by their partitions, and in each a key's bytes."""

    partitions: Int32
    keys: pa.Array

    def take(self, codes: Int64) -> TaskKeys:
        return TaskKeys(self.partitions[codes], self.keys.take(codes))


class Kept(NamedTuple):
    """Entries of a window store: the place of the task and key that was asked for, the time (ms)
    and the number of each."""

    codes: Int64
    times: Int64
    numbers: Int64
    entries: pa.Array


_Fetch = Callable[[StoreView, Sequence[Bounds], Sequence[bytes]], Iterable[Sequence[Entry]]]
"""Reads of a store each key's entries within its bounds, and maybe some of longer keys."""


def read_entries(
    store: str,
    asked: TaskKeys,
    low: Int64,
    high: Int64,
    stores: Stores,
) -> Kept:
    """Each key's entries in a window store, from time ``low`` to ``high`` (ms, included)."""
    return _read(
        store,
        asked,
        low,
        high,
        stores,
        lambda view, bounds, _: view.range_many(bounds),
    )


def read_as_of(
    store: str, asked: TaskKeys, low: Int64, first: Int64, last: Int64, stores: Stores
) -> Kept:
    """Of each key the last entry from ``low`` to ``first`` (ms), and those behind, to ``last``."""
    kept = _read(store, asked, low, first, stores, _last_entries)
    behind = read_entries(store, asked, _after(first), last, stores)
    return Kept(
        np.concatenate([kept.codes, behind.codes]),
        np.concatenate([kept.times, behind.times]),
        np.concatenate([kept.numbers, behind.numbers]),
        pa.concat_arrays([kept.entries, behind.entries]),
    )


def _last_entries(
    view: StoreView, bounds: Sequence[Bounds], keys: Sequence[bytes]
) -> Iterator[Sequence[Entry]]:
    lengths = [len(key) + STORE_SUFFIX_BYTES for key in keys]
    return ([] if one is None else [one] for one in last_of_length(view, bounds, lengths))


def _read(
    store: str, asked: TaskKeys, low: Int64, high: Int64, stores: Stores, fetch: _Fetch
) -> Kept:
    """By task, then key, with one call for each task."""
    order = pc.sort_indices(asked.keys).to_numpy().astype(np.int64)
    order = order[np.argsort(asked.partitions[order], kind="stable")]
    column, places = asked.keys.take(order), order.tolist()
    keys = column.to_pylist()
    # Behind all entries of the times before, and in front of those of the time.
    starts = window_store_prefixes(column, np.maximum(low[order], 0)).to_pylist()
    ends = window_store_prefixes(column, _after(high[order])).to_pylist()
    codes: list[int] = []
    found: list[Entry] = []
    for partition, part in task_slices(asked.partitions[order]):
        bounds = list(zip(starts[part], ends[part], strict=True))
        listed = fetch(stores[partition][store], bounds, keys[part])
        for code, key, entries in zip(places[part], keys[part], listed, strict=True):
            length = len(key) + STORE_SUFFIX_BYTES
            mine = [one for one in entries if len(one[0]) == length]  # else a longer key's
            codes += [code] * len(mine)
            found += mine
    stored_keys = [key for key, _ in found]
    numbers = np.frombuffer(b"".join([key[-_NUMBER_BYTES:] for key in stored_keys]), ">i4")
    return Kept(
        np.array(codes, np.int64),
        expiry_times(stored_keys, "window"),
        numbers.astype(np.int64),
        pa.array([entry for _, entry in found], pa.binary()),
    )


def _after(times: Int64) -> Int64:
    return np.minimum(np.maximum(times, -1), _LAST_TIME - 1) + 1
