"""Makes record batches of columns: the inverse of `reading.record_batches`. Pure.

Format v2 (KIP-98): varints around key and value, computed for thousands of records at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from everflow.records import NO_EPOCH, Int64
from everflow.serdes.changed import varint

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
# Arrow's own LZ4 frames chain their blocks, which Java refuses. The header: version 1, independent
# blocks of at most 64 KiB, no checksums; its last byte is the header's checksum.
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 64 << 10
_LZ4_STORED = 1 << 31


def compressed(codec: str, level: int | None, records: pa.Buffer) -> pa.Buffer | bytes:
    """``records`` in one of `CODECS`; ``level`` where the codec has levels, None for its own."""
    if codec == "none":
        return records
    if codec == "lz4":
        return _lz4(records)
    return _codec(codec, level).compress(records)


def check_level(codec: str, level: int | None) -> str | None:
    """Why the codec cannot have that level; None if it can."""
    try:
        if codec not in ("none", "lz4"):
            _codec(codec, level)
    except (ValueError, TypeError, pa.ArrowException) as failure:
        return str(failure)
    return None


def _codec(codec: str, level: int | None) -> pa.Codec:
    # snappy has no levels
    return pa.Codec(codec) if level is None or codec == "snappy" else pa.Codec(codec, level)


def _lz4(records: pa.Buffer) -> bytes:
    block_codec = pa.Codec("lz4_raw")
    parts = [_LZ4_HEAD]
    for start in range(0, records.size, _LZ4_BLOCK):
        block = records.slice(start, min(_LZ4_BLOCK, records.size - start))
        packed = bytes(block_codec.compress(block))
        if len(packed) < block.size:
            parts += [len(packed).to_bytes(4, "little"), packed]
        else:
            parts += [(block.size | _LZ4_STORED).to_bytes(4, "little"), bytes(block)]
    return b"".join([*parts, bytes(4)])


_HEAD = struct.Struct(">qiibI")
"""The first offset, the length of what is behind that, the leader's epoch, magic, the checksum."""
_BEHIND_LENGTH = 9
"""The bytes of the head behind the length."""
_CHECKED = struct.Struct(">hiqqqhii")
_MAGIC = 2
_TRANSACTIONAL = 0x10
_OVERHEAD = 36
"""Bytes that a record takes at most beside its key, its value and its headers: five varints of
int32, one of int64, attributes."""
_NO_HEADERS = pa.scalar(b"\x00", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_JOINED_BYTES = 64 << 20
"""Bytes that are joined at once: Arrow's columns of 32-bit offsets end at 2 GiB."""


class RecordColumns(NamedTuple):
    """Records to be written: binary columns (null where there is none), times in ms, and their
    headers as a batch has them (`encoded_headers`) or None where no record has any."""

    keys: pa.Array
    values: pa.Array
    timestamps: Int64
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def sizes(self) -> Int64:
        """Bytes that each record takes in a batch at most."""
        sizes = _lengths(self.keys) + _lengths(self.values) + _OVERHEAD
        return sizes if self.headers is None else sizes + _lengths(self.headers)

    def take(self, rows: Int64) -> RecordColumns:
        index = pa.array(rows)
        return RecordColumns(
            self.keys.take(index),
            self.values.take(index),
            self.timestamps[rows],
            None if self.headers is None else self.headers.take(index),
        )

    def of(self, part: slice) -> RecordColumns:
        """A part; nothing is copied."""
        return RecordColumns(
            self.keys[part],
            self.values[part],
            self.timestamps[part],
            None if self.headers is None else self.headers[part],
        )


class EncodedRecords(NamedTuple):
    """The records of one batch as on the wire: those of ``all`` from ``start`` to ``stop``, which
    stay beside it, as a batch that is too large is made again as two. Times in ms."""

    all: RecordColumns
    start: int
    stop: int
    body: pa.Buffer
    first_ms: int
    latest_ms: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def columns(self) -> RecordColumns:
        return self.all.of(slice(self.start, self.stop))


class Producer(NamedTuple):
    """The identity of a writer, which makes writing a batch again harmless (KIP-98)."""

    producer_id: int
    epoch: int
    transactional: bool


def encode(
    columns: RecordColumns, ends: Sequence[int], record_sizes: Int64
) -> list[EncodedRecords]:
    """One batch of the records up to each of ``ends`` (rising; the last one is the number of
    records). ``record_sizes``: `RecordColumns.sizes`."""
    if record_sizes.sum() <= _JOINED_BYTES:
        return _joined(columns, np.array([0, *ends], np.int64))
    found: list[EncodedRecords] = []
    begin = 0
    sizes = np.concatenate(([0], np.cumsum(record_sizes)))
    while begin < len(ends):
        start = ends[begin - 1] if begin else 0
        most = int(np.searchsorted(sizes, sizes[start] + _JOINED_BYTES, side="right")) - 1
        stop = begin + 1
        while stop < len(ends) and ends[stop] <= most:
            stop += 1
        part = columns.of(slice(start, ends[stop - 1]))
        found += _joined(part, np.array([start, *ends[begin:stop]], np.int64) - start)
        begin = stop
    return found


def batch_ends(sizes: Int64, limit: int) -> list[int]:
    """The ends of batches of at most ``limit`` bytes; a larger record is alone in its batch."""
    total = np.cumsum(sizes)
    ends: list[int] = []
    at = 0
    while at < len(total):
        before = int(total[at - 1]) if at else 0
        at = max(at + 1, int(np.searchsorted(total, before + limit, side="right")))
        ends.append(at)
    return ends


def framed(
    records: EncodedRecords, producer: Producer, sequence: int, codec: str, level: int | None
) -> bytes:
    """The batch with its header; ``sequence`` is the number of its first record in this partition
    since the producer's epoch began."""
    body = compressed(codec, level, records.body)
    count = records.stop - records.start
    checked = _CHECKED.pack(
        CODECS[codec] | (_TRANSACTIONAL if producer.transactional else 0),
        count - 1,
        records.first_ms,
        records.latest_ms,
        producer.producer_id,
        producer.epoch,
        sequence,
        count,
    )
    checksum = crc32c(body, crc32c(checked))
    length = _BEHIND_LENGTH + len(checked) + len(body)
    return b"".join((_HEAD.pack(0, length, NO_EPOCH, _MAGIC, checksum), checked, body))


def encoded_headers(headers: Sequence[Any]) -> pa.Array | None:
    """Headers as a record has them, from a list of (name, bytes or None) or None for each; None
    where no record has any."""
    if not any(headers):
        return None
    return pa.array([_record_headers(own or ()) for own in headers], pa.binary())


def _record_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        raw = name.encode()
        parts += [varint(len(raw)), raw]
        parts += [varint(-1)] if value is None else [varint(len(value)), value]
    return b"".join(parts)


def _joined(columns: RecordColumns, bounds: Int64) -> list[EncodedRecords]:
    """Batches between ``bounds``, their bytes in one buffer."""
    counts = np.diff(bounds)
    firsts = np.repeat(bounds[:-1], counts)
    places = np.arange(len(columns), dtype=np.int64)
    delays = columns.timestamps - columns.timestamps[firsts]
    # a record has -1 as the length of what is null
    key_sizes, value_sizes = _lengths(columns.keys, -1), _lengths(columns.values, -1)
    inner = [_varints(delays), _varints(places - firsts), _varints(key_sizes)]
    middle = _varints(value_sizes)
    length = np.maximum(key_sizes, 0) + np.maximum(value_sizes, 0) + middle.sizes + 1
    length += 1 if columns.headers is None else _lengths(columns.headers)
    for number in inner:
        length = length + number.sizes
    attributes = _Numbers(np.zeros((len(columns), 1), np.uint8), np.ones(len(columns), np.int64))
    records = pc.binary_join_element_wise(
        _column([_varints(length), attributes, *inner]),
        _filled(columns.keys),
        _column([middle]),
        _filled(columns.values),
        _NO_HEADERS if columns.headers is None else columns.headers,
        _NOTHING,
    )
    _, offset_buffer, data = records.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(columns) + 1)[bounds].tolist()
    edges = bounds.tolist()
    first_ms = columns.timestamps[bounds[:-1]].tolist()
    latest_ms = np.maximum.reduceat(columns.timestamps, bounds[:-1]).tolist()
    return [
        EncodedRecords(
            columns,
            edges[i],
            edges[i + 1],
            data.slice(offsets[i], offsets[i + 1] - offsets[i]),
            first_ms[i],
            latest_ms[i],
        )
        for i in range(len(counts))
    ]


class _Numbers(NamedTuple):
    """Varints: a row of bytes for each number, of which the first ``sizes`` count."""

    rows: NDArray[np.uint8]
    sizes: Int64


def _varints(numbers: Int64) -> _Numbers:
    folded = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    sizes = np.ones(len(numbers), np.int64)
    largest = int(folded.max()) if len(folded) else 0
    width = 1
    while largest >> (7 * width):
        sizes += folded >= np.uint64(1 << (7 * width))
        width += 1
    rows = np.empty((len(numbers), width), np.uint8)
    for place in range(width):
        rows[:, place] = (folded >> np.uint64(7 * place)) & np.uint64(127)
        if place + 1 < width:
            rows[:, place] |= (sizes > place + 1).astype(np.uint8) << 7
    return _Numbers(rows, sizes)


def _column(numbers: Sequence[_Numbers]) -> pa.Array:
    """The numbers of each row one behind the other, as a binary column."""
    sizes = sum((number.sizes for number in numbers[1:]), numbers[0].sizes)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    rows = np.concatenate([number.rows for number in numbers], axis=1)
    if int(offsets[-1]) != rows.size:
        counted = [np.arange(number.rows.shape[1]) < number.sizes[:, None] for number in numbers]
        rows = rows[np.concatenate(counted, axis=1)]
    return pa.Array.from_buffers(
        pa.binary(),
        len(sizes),
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))],
    )


def _lengths(column: pa.Array, of_null: int = 0) -> Int64:
    sizes = pc.binary_length(column)
    if sizes.null_count:
        sizes = sizes.fill_null(of_null)
    return np.asarray(sizes, np.int64)


def _filled(column: pa.Array) -> pa.Array:
    return column.fill_null(b"") if column.null_count else column
