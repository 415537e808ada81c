"""Records of a log in columns: as they came (`Columns`), in Arrow (`LogColumns`), in chunks. Pure.

Keys and values become objects only where that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from everflow.errors import RetriableError
from everflow.records import HEADERS, Int64, joined_headers, listed_headers

_NOTHING: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class LogColumns:
    """Records in log order, columns of one length. ``keys`` and ``values``: binary, null where the
    record has none; ``timestamps`` in ms; ``headers``: `everflow.records.HEADERS`, or None
    where no record has any, or they were not asked for. ``unread``: by row, why a record could not
    be read; the columns have what could."""

    keys: pa.Array
    values: pa.Array
    offsets: Int64
    timestamps: Int64
    headers: pa.Array | None = None
    unread: Mapping[int, Exception] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return int(self.keys.nbytes + self.values.nbytes)

    def __post_init__(self) -> None:
        if isinstance(self.keys, pa.ChunkedArray) or isinstance(self.values, pa.ChunkedArray):
            raise TypeError("more than 2 GiB in one column: the reader did not keep to its bound")

    def before(self, offset: int) -> LogColumns:
        return self.between(0, int(np.searchsorted(self.offsets, offset)))

    def behind(self, offset: int) -> LogColumns:
        """From ``offset`` on."""
        return self.between(int(np.searchsorted(self.offsets, offset)), len(self))

    def between(self, begin: int, end: int) -> LogColumns:
        """The rows ``[begin, end)``."""
        if begin == 0 and end == len(self):
            return self
        return LogColumns(
            keys=self.keys[begin:end],
            values=self.values[begin:end],
            offsets=self.offsets[begin:end],
            timestamps=self.timestamps[begin:end],
            headers=None if self.headers is None else self.headers[begin:end],
            unread={row - begin: why for row, why in self.unread.items() if begin <= row < end},
        )

    def only(self, rows: Int64) -> LogColumns:
        """The records of these rows, in order."""
        row_of = {row: at for at, row in enumerate(rows.tolist()) if row in self.unread}
        return LogColumns(
            keys=self.keys.take(pa.array(rows)),
            values=self.values.take(pa.array(rows)),
            offsets=self.offsets[rows],
            timestamps=self.timestamps[rows],
            headers=None if self.headers is None else self.headers.take(pa.array(rows)),
            unread={at: self.unread[row] for row, at in row_of.items()},
        )

    @staticmethod
    def concat(parts: Sequence[LogColumns]) -> LogColumns:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            nothing = pa.array([], pa.binary())
            return LogColumns(
                keys=nothing,
                values=nothing,
                offsets=_NOTHING,
                timestamps=_NOTHING,
            )
        unread: dict[int, Exception] = {}
        begin = 0
        for part in parts:
            unread |= {begin + row: why for row, why in part.unread.items()}
            begin += len(part)
        return LogColumns(
            keys=pa.concat_arrays([part.keys for part in parts]),
            values=pa.concat_arrays([part.values for part in parts]),
            offsets=np.concatenate([part.offsets for part in parts]),
            timestamps=np.concatenate([part.timestamps for part in parts]),
            headers=joined_headers([(part.headers, len(part)) for part in parts]),
            unread=unread,
        )


_LENGTHS_MOST = 32
_RECORDS_PER_LENGTH = 16
_RECORDS_WORTH_FOLDING = 256
_FOLDED_KEY_BYTES = 64
_MIXER = np.uint64(0x9E3779B97F4A7C15)
_INT32_MAX = (1 << 31) - 1


class CorruptBatchError(RetriableError):
    """The bytes are no record batch."""

    code = "EF-CORRUPT-BATCH"


class Columns(NamedTuple):
    """Records in log order: offsets, times in ms, and where in ``data`` keys and values lie (a size
    below 0: null)."""

    data: bytes
    offsets: Int64
    timestamps: Int64
    key_at: Int64
    key_sizes: Int64
    value_at: Int64
    value_sizes: Int64

    @property
    def sizes(self) -> Int64:
        return np.maximum(self.key_sizes, 0) + np.maximum(self.value_sizes, 0)

    def between(self, start: int, end: int) -> Columns:
        """Only the records with offsets in ``[start, end)``."""
        if not len(self.offsets) or (self.offsets[0] >= start and self.offsets[-1] < end):
            return self
        return self.of(slice(*np.searchsorted(self.offsets, (start, end)).tolist()))

    def of(self, chosen: slice | NDArray[np.bool_]) -> Columns:
        return Columns(self.data, *[column[chosen] for column in self[1:]])

    def up_to(self, most_bytes: int) -> Columns:
        """The first records, to where they have ``most_bytes`` bytes; at least one, if there is
        one."""
        sizes = self.sizes
        if int(sizes.sum()) <= most_bytes:
            return self
        return self.of(slice(0, int(np.searchsorted(np.cumsum(sizes), most_bytes)) + 1))

    def latest(self) -> Columns:
        """Without records that a later one with the same key replaces; a few may stay, and the one
        of the latest time does. What is left folds to the same store and stream time."""
        if len(self.offsets) < _RECORDS_WORTH_FOLDING:
            return self
        kept = np.ones(len(self.offsets), bool)
        lengths = np.unique(self.key_sizes)
        for length in lengths[:_LENGTHS_MOST].tolist():
            if 0 < length <= _FOLDED_KEY_BYTES:
                alike = np.flatnonzero(self.key_sizes == length)
                kept[alike[_replaced(_views(self.data, length)[self.key_at[alike]])]] = False
        kept[np.argmax(self.timestamps)] = True
        return self.of(kept)

    def arrow(self, headers: bool) -> LogColumns:
        found, unread = _headers(
            self.data, self.value_at + np.maximum(self.value_sizes, 0), headers
        )
        return LogColumns(
            keys=_gathered(self.data, self.key_at, self.key_sizes),
            values=_gathered(self.data, self.value_at, self.value_sizes),
            offsets=self.offsets,
            timestamps=self.timestamps,
            headers=found,
            unread=unread,
        )

    @staticmethod
    def arrow_together(parts: Sequence[Columns], headers: bool) -> list[LogColumns]:
        """`arrow` of each: parts that were taken apart together lie in the same bytes, and are
        gathered at once, as that costs by the call."""
        found: dict[int, LogColumns] = {}
        same: dict[int, list[int]] = {}
        for number, part in enumerate(parts):
            same.setdefault(id(part.data), []).append(number)
        for numbers in same.values():
            numbers.sort(key=lambda number: parts[number].key_at[:1].tolist())
            members = [parts[number] for number in numbers]
            whole = members[0]
            if len(members) > 1:
                columns = zip(*(part[1:] for part in members), strict=True)
                whole = Columns(whole.data, *map(np.concatenate, columns))
            gathered, begin = whole.arrow(headers), 0
            for number, part in zip(numbers, members, strict=True):
                end = begin + len(part.offsets)
                found[number] = gathered.between(begin, end)
                begin = end
        return [found[number] for number in range(len(parts))]

    def keys(self) -> list[bytes | None]:
        return _slices(self.data, self.key_at, self.key_sizes)

    def values(self) -> list[bytes | None]:
        return _slices(self.data, self.value_at, self.value_sizes)


def varints(raw: NDArray[np.uint8], at: Int64) -> tuple[Int64, Int64]:
    """The zigzag varints at these places, and the places behind them."""
    first = raw[at]
    at = at + 1
    if not len(first) or int(first.max()) < 128:
        return _ZIGZAG[first], at
    number = first.astype(np.uint64) & np.uint64(127)
    more = np.flatnonzero(first > 127)
    shift = 7
    while len(more):
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
        byte = raw[at[more]]
        number[more] |= (byte.astype(np.uint64) & np.uint64(127)) << np.uint64(shift)
        at[more] += 1
        shift += 7
        more = more[byte > 127]
    return (number >> np.uint64(1)).view(np.int64) ^ -(number & np.uint64(1)).view(np.int64), at


_ZIGZAG: Int64 = np.array([(number >> 1) ^ -(number & 1) for number in range(256)], np.int64)


def _slices(data: bytes, at: Int64, sizes: Int64) -> list[bytes | None]:
    """The bytes at these places; None for a negative size."""
    if not len(sizes):
        return []
    low, high = int(sizes.min()), int(sizes.max())
    if low == high:
        alike: list[bytes | None] = _same(data, at, low).tolist()
        return alike
    lengths = np.unique(sizes)
    if len(lengths) > min(_LENGTHS_MOST, len(sizes) // _RECORDS_PER_LENGTH):
        ends = (at + np.maximum(sizes, -1)).tolist()
        return [
            data[begin:end] if end >= begin else None
            for begin, end in zip(at.tolist(), ends, strict=True)
        ]
    taken = np.empty(len(sizes), object)
    for length in lengths.tolist():
        chosen = np.flatnonzero(sizes == length)
        taken[chosen] = _same(data, at[chosen], length)
    found: list[bytes | None] = taken.tolist()
    return found


def _gathered(data: bytes, at: Int64, sizes: Int64) -> pa.Array:
    """The bytes at these ascending places as a binary array; null for a negative size. Of ``data``
    as one array of wanted elements and gaps in turn, Arrow copies every second one."""
    count = len(at)
    if not count:
        return pa.array([], pa.binary())
    wide = len(data) > _INT32_MAX
    bounds = np.empty(2 * count, np.int64 if wide else np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + np.maximum(sizes, 0)
    whole = pa.large_binary() if wide else pa.binary()
    elements = pa.Array.from_buffers(
        whole, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    missing = sizes < 0
    wanted = pa.array(np.arange(0, 2 * count - 1, 2), mask=missing if missing.any() else None)
    found = elements.take(wanted)
    return found.cast(pa.binary()) if wide else found


def _headers(
    data: bytes,
    at: Int64,
    wanted: bool,
) -> tuple[pa.Array | None, dict[int, Exception]]:
    """The headers that begin at these places with their number (None where no record has any), and
    why those of a row cannot be read."""
    unread: dict[int, Exception] = {}
    rows = np.flatnonzero(np.frombuffer(data, np.uint8)[at]).tolist() if wanted else []
    if not rows:
        return None, unread
    found: list[list[dict[str, Any]]] = [[]] * len(at)
    for row in rows:
        try:
            found[row] = _headers_of_one(data, int(at[row]))
        except (IndexError, ValueError) as failure:
            unread[row] = CorruptBatchError(f"broken headers ({failure})")
    return pa.array(found, HEADERS), unread


def _headers_of_one(data: bytes, at: int) -> list[dict[str, Any]]:
    count, at = _varint(data, at)
    if count < 0:
        raise ValueError(f"{count} headers")
    headers = []
    for _ in range(count):
        size, at = _varint(data, at)
        if size < 0:
            raise ValueError("a header without a name")
        if at + size > len(data):
            raise ValueError("a header's name ends behind its record")
        name, at = data[at : at + size], at + size
        size, at = _varint(data, at)
        value = data[at : at + size] if size >= 0 else None
        at += max(size, 0)
        headers.append({"key": name.decode("utf-8", "replace"), "value": value})
    return headers


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at


def _same(data: bytes, at: Int64, size: int) -> NDArray[Any]:
    if size <= 0:
        return np.full(len(at), b"" if size == 0 else None, object)
    return _views(data, size)[at].astype(object)


def _views(data: bytes, size: int) -> NDArray[Any]:
    """The ``size`` bytes from each place on: picking from them copies all in one go, and void keeps
    trailing zero bytes."""
    views: NDArray[Any] = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
    return views


def _replaced(keys: NDArray[Any]) -> NDArray[np.intp]:
    """The places of keys (of one length) that come again behind; some may be missing."""
    count, size = len(keys), keys.dtype.itemsize
    padded = np.zeros((count, -(-size // 8) * 8), np.uint8)
    padded[:, :size] = keys.view(np.uint8).reshape(count, size)
    words = padded.view(np.uint64)
    mixed = np.zeros(count, np.uint64)
    for column in range(words.shape[1]):
        mixed = (mixed ^ words[:, column]) * _MIXER
        mixed ^= mixed >> np.uint64(29)
    bits = max(4, (2 * count).bit_length())
    slot = (mixed * _MIXER) >> np.uint64(64 - bits)
    order = np.arange(count)
    table = np.empty(1 << bits, np.intp)
    table[slot] = order  # of several in one slot, the last stays
    last = table[slot]
    earlier = np.flatnonzero(last != order)
    same: NDArray[np.bool_] = (words[earlier] == words[last[earlier]]).all(axis=1)
    return np.asarray(earlier[same], np.intp)


Key = bytes


@dataclass(frozen=True)
class LogChunk:
    """Committed records of one partition in log order. ``next_position`` is the offset to go on
    from; before it, no record is left out. ``records``: how many the log has here; more than the
    keys behind `latest`."""

    raw: Columns
    next_position: int
    records: int

    def __len__(self) -> int:
        return len(self.raw.timestamps)

    @property
    def keys(self) -> list[bytes | None]:
        return self.raw.keys()

    @property
    def values(self) -> list[bytes | None]:
        return self.raw.values()

    @property
    def timestamps(self) -> Int64:
        return self.raw.timestamps

    @property
    def bytes(self) -> int:
        return int(self.raw.sizes.sum())

    @property
    def offsets(self) -> Int64:
        return self.raw.offsets

    def columns(self, headers: bool) -> LogColumns:
        """In Arrow columns; a record that cannot be read is `unread`, and stops no other."""
        return self.raw.arrow(headers)

    def rows(self, headers: bool) -> Iterator[tuple[Any, ...]]:
        """As `columns`, record by record: offset, time (ms), key, value, headers."""
        found = self.columns(headers)
        return zip(
            found.offsets.tolist(),
            found.timestamps.tolist(),
            found.keys.to_pylist(),
            found.values.to_pylist(),
            listed_headers(found.headers, len(found)),
            strict=True,
        )

    def offset_of(self, key: Key) -> int | None:
        rows = [row for row, one in enumerate(self.keys) if one == key]
        return int(self.offsets[rows[-1]]) if rows else None

    def latest(self) -> LogChunk:
        """See `Columns.latest`: for a caller that folds the records itself."""
        return replace(self, raw=self.raw.latest())
