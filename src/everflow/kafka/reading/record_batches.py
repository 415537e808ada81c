"""Takes record batches apart into columns, without a Python object per record. Pure.

Format v2 (KIP-98). Where records begin is found one after the other, all else at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import kafka.errors as client_errors
import numpy as np
import pyarrow as pa
from crc32c import crc32c
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from numpy.typing import NDArray

from everflow.errors import FatalError
from everflow.kafka.reading.record_columns import Columns, CorruptBatchError, varints
from everflow.records import Int64

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END = 12  # offset and length fields: the length counts from here
_MAGIC_AT = 16
_MAGIC = 2
_CHECKSUM_AT, _CHECKED_AT = 17, 21
_LEAST_RECORD = 7
"""Bytes of a record with nothing in it: its length, attributes, and five numbers."""
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_STREAM_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SNAPPY_GROWTH = 32
"""Its shortest element, three bytes, stands for 64: more than 22 times as much cannot be."""
LARGEST_BATCH_BYTES = 512 << 20
"""The largest batch, uncompressed; a broker takes a megabyte by default, compressed."""
_UNPACKED_AT_ONCE = 256 << 10
_ABORT = b"\x00\x00"
_RECORDS_AT_ONCE = 16_384
"""Columns of this many records stay in the processor's caches; below it, small batches are read
together."""
_WORTH_TOGETHER = 100
"""A step over many batches costs as much as so many records one after the other."""
_RUN_PROBE = 64
_RUN_WORTHWHILE = 256
_GROWTH = 8
_NOTHING: Int64 = np.empty(0, np.int64)


class Batch(NamedTuple):
    """The header of one batch. ``epoch`` is that of the leader which wrote it; ``begin`` and
    ``end`` are the places of its (perhaps compressed) records in the bytes."""

    base_offset: int
    next_offset: int
    epoch: int
    attributes: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    records: int
    begin: int
    end: int


def batches(data: bytes) -> list[Batch]:
    """The headers of all complete batches; a last one that is cut off is left out.
    CorruptBatchError: lengths that cannot be, or another format than v2 (`modern`)."""
    found: list[Batch] = []
    at, size = 0, len(data)
    while at + _MAGIC_AT < size:
        if data[at + _MAGIC_AT] != _MAGIC:
            raise CorruptBatchError(f"message format v{data[at + _MAGIC_AT]}")
        if at + _HEADER.size > size:
            break
        base, length, epoch, _, _, attributes, last_delta, first, latest, producer, _, _, count = (
            _HEADER.unpack_from(data, at)
        )
        begin, end = at + _HEADER.size, at + _LENGTH_END + length
        if end < begin or count < 0 or last_delta < 0 or base < 0:
            raise CorruptBatchError(
                f"record batch at offset {base}: length {length}, {count} records, last delta "
                f"{last_delta}"
            )
        if end > size:
            break
        found.append(
            Batch(
                base,
                base + last_delta + 1,
                epoch,
                attributes,
                first,
                latest,
                producer,
                count,
                begin,
                end,
            )
        )
        at = end
    return found


def modern(data: bytes) -> bytes:
    """The same bytes, with batches of formats v0 and v1 (before Kafka 0.11; first in a log) written
    anew as v2. CorruptBatchError; FatalError for a codec that kafka-python lacks."""
    if len(data) <= _MAGIC_AT or data[_MAGIC_AT] >= _MAGIC:
        return data
    parts: list[bytes] = []
    try:
        records = MemoryRecords(data)
        while records.has_next():
            batch = records.next_batch()
            parts.append(bytes(batch._buffer) if batch.magic >= _MAGIC else _rewritten(batch))
    except client_errors.UnsupportedCodecError as failure:
        raise FatalError(f"records of message format v0 or v1: {failure}") from failure
    except (client_errors.KafkaError, AssertionError, ValueError, struct.error) as failure:
        raise CorruptBatchError(f"records of message format v0 or v1: {failure}") from failure
    return b"".join(parts)


def _rewritten(batch: Any) -> bytes:
    if not batch.validate_crc():
        raise CorruptBatchError(f"record batch at offset {batch.base_offset}: its checksum differs")
    listed = list(batch)
    base = listed[0].offset
    builder = DefaultRecordBatchBuilder(_MAGIC, 0, False, -1, -1, -1, LARGEST_BATCH_BYTES)
    for one in listed:
        at = -1 if one.timestamp is None else one.timestamp
        builder.append(one.offset - base, at, one.key, one.value, [])
    built = bytearray(builder.build())
    built[:8] = base.to_bytes(8, "big")
    built[12:16] = b"\xff" * 4  # the leader's epoch is not known
    return bytes(built)


def check(data: bytes, found: Iterable[Batch]) -> None:
    """CorruptBatchError for the first batch whose CRC-32C (not over base offset and leader epoch,
    which the broker writes) is wrong, or which is not behind the one before it."""
    whole = memoryview(data)
    behind = 0
    for batch in found:
        start = batch.begin - _HEADER.size
        if batch.base_offset < behind:
            raise CorruptBatchError(
                f"record batch at offset {batch.base_offset} comes behind offset {behind - 1}"
            )
        behind = batch.next_offset
        written = int.from_bytes(data[start + _CHECKSUM_AT : start + _CHECKED_AT], "big")
        summed = crc32c(whole[start + _CHECKED_AT : batch.end])
        if summed != written:
            raise CorruptBatchError(
                f"record batch at offset {batch.base_offset}: its checksum is {summed:08x}, not "
                f"{written:08x} as its header says"
            )


def committed(
    data: bytes, found: Iterable[Batch], aborted: Iterable[tuple[int, int]]
) -> Iterator[Batch]:
    """The batches a read_committed reader sees: without markers and aborted transactions (KIP-98).

    ``aborted``: (producer id, first offset), as in the fetch response; the abort marker ends each.
    """
    coming = sorted(aborted, key=lambda one: one[1], reverse=True)
    open_now: set[int] = set()
    for batch in found:
        while coming and coming[-1][1] < batch.next_offset:
            open_now.add(coming.pop()[0])
        if batch.attributes & _CONTROL:
            if batch.producer_id in open_now and _is_abort(data, batch):
                open_now.discard(batch.producer_id)
        elif not (batch.attributes & _TRANSACTIONAL and batch.producer_id in open_now):
            yield batch


Portion: TypeAlias = tuple[bytes, list[Batch]]
"""Record batches, and the bytes in which they lie."""


def portions(wanted: Iterable[Batch], most_bytes: int) -> Iterator[list[Batch]]:
    """The same batches in stretches of about ``most_bytes``, one batch at least; compressed ones
    count eightfold."""
    portion: list[Batch] = []
    portion_bytes = 0
    for batch in wanted:
        size = (batch.end - batch.begin) * (_GROWTH if batch.attributes & _CODEC else 1)
        if portion and portion_bytes + size > most_bytes:
            yield portion
            portion, portion_bytes = [], 0
        portion.append(batch)
        portion_bytes += size
    if portion:
        yield portion


def columns(data: bytes, wanted: Iterable[Batch]) -> Columns:
    """The records of ``wanted`` batches of ``data``. CorruptBatchError: lengths that do not fit
    together. FatalError: a codec that this installation lacks, or too many bytes, uncompressed."""
    # Where compaction has left only the header, its offsets count and nothing else.
    data, filled = _decompressed(data, [batch for batch in wanted if batch.records])
    if not filled:
        return Columns(data, *(_NOTHING,) * 6)
    for batch in filled:
        if batch.records * _LEAST_RECORD > batch.end - batch.begin:
            raise CorruptBatchError(
                f"record batch at offset {batch.base_offset}: {batch.records} records in "
                f"{batch.end - batch.begin} bytes"
            )
    try:
        return Columns(data, *_read(data, filled))
    except (IndexError, ValueError) as failure:
        raise CorruptBatchError(
            f"record batches from offset {filled[0].base_offset}: broken records ({failure})"
        ) from failure


def columns_together(portions: Sequence[Portion]) -> list[Columns]:
    """As `columns`, of several logs; a damaged one fails all."""
    parts, moved, at = list[bytes](), list[Batch](), 0
    for data, batches in portions:
        begin, end = batches[0].begin, batches[-1].end
        parts.append(data[begin:end])
        shift = at - begin
        moved += [Batch(*one[:-2], one.begin + shift, one.end + shift) for one in batches]
        at += end - begin
    whole = columns(b"".join(parts), moved)
    behind = list(accumulate(sum([one.records for one in batches]) for _, batches in portions))
    return [whole.of(slice(first, end)) for first, end in zip([0, *behind], behind, strict=False)]


def _is_abort(data: bytes, batch: Batch) -> bool:
    """True if a marker says abort: its key is int16 version, int16 type (0 = abort). An empty one
    says nothing."""
    if not batch.records:
        return False
    key = columns(data, [batch]).keys()[0]
    return key is not None and key[2:4] == _ABORT


def _decompressed(data: bytes, wanted: list[Batch]) -> tuple[bytes, list[Batch]]:
    """The same batches over bytes in which none is compressed."""
    if not [batch for batch in wanted if batch.attributes & _CODEC]:
        return data, wanted
    parts: list[bytes] = []
    plain: list[Batch] = []
    at = 0
    for batch in wanted:
        parts.append(
            _plain(data, batch) if batch.attributes & _CODEC else data[batch.begin : batch.end]
        )
        plain.append(batch._replace(begin=at, end=at + len(parts[-1])))
        at = plain[-1].end
    return b"".join(parts), plain


def _plain(data: bytes, batch: Batch) -> bytes:
    codec, packed = batch.attributes & _CODEC, data[batch.begin : batch.end]
    try:
        if codec == _SNAPPY:
            return _snappy(packed)
        if codec not in _STREAM_CODECS:
            raise CorruptBatchError(f"compression type {codec} at offset {batch.base_offset}")
        name = _STREAM_CODECS[codec]
        if not pa.Codec.is_available(name):
            raise FatalError(f"{name} compression, which this pyarrow was built without")
        return _unpacked(packed, name, batch.base_offset)
    except (OSError, ValueError, struct.error) as failure:
        raise CorruptBatchError(
            f"record batch at offset {batch.base_offset} cannot be decompressed: {failure}"
        ) from failure


def _unpacked(packed: bytes, codec: str, offset: int) -> bytes:
    """No more than is sane: the bytes are somebody else's, and a megabyte of them can stand for
    gigabytes."""
    parts: list[bytes] = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(packed), codec) as stream:
        while part := stream.read(_UNPACKED_AT_ONCE):
            parts.append(part)
            size += len(part)
            if size > LARGEST_BATCH_BYTES:
                raise FatalError(
                    f"record batch at offset {offset}: its {len(packed):,} bytes ({codec}) stand "
                    f"for more than {LARGEST_BATCH_BYTES:,}, which no memory has to have. If they "
                    f"are meant, let the producer write smaller batches; else delete the records "
                    f"up to behind that offset."
                )
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy(packed: bytes) -> bytes:
    """Java's clients cut snappy into blocks behind a Xerial header, others write one block."""
    if not pa.Codec.is_available("snappy"):
        raise FatalError("snappy compression, which this pyarrow was built without")
    if not packed.startswith(_XERIAL):
        return _snappy_block(packed)
    parts: list[bytes] = []
    at = _XERIAL_HEADER_BYTES
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        parts.append(_snappy_block(packed[at + 4 : at + 4 + length]))
        at += 4 + length
    return b"".join(parts)


def _snappy_block(block: bytes) -> bytes:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > _SNAPPY_GROWTH * len(block):
        raise ValueError(f"{len(block)} bytes say that they hold {size}")
    return bytes(pa.Codec("snappy").decompress(block, size, asbytes=True))


def _read(data: bytes, filled: Sequence[Batch]) -> Iterator[Int64]:
    """The columns of `Columns`, behind its first."""
    raw = np.frombuffer(data, np.uint8)
    counts = [batch.records for batch in filled]
    if sum(counts) >= _WORTH_TOGETHER * max(counts):
        places = _starts_together(raw, filled)
    else:
        places = _starts_in_turn(data, filled)
    parts: list[list[Int64]] = []
    begin = first = count = 0
    for at, batch in enumerate(filled, 1):
        count += batch.records
        if count >= _RECORDS_AT_ONCE or at == len(filled):
            parts.append(_fields(raw, filled[begin:at], places[first : first + count]))
            begin, first, count = at, first + count, 0
    if len(parts) == 1:
        return iter(parts[0])
    return (np.concatenate(column) for column in zip(*parts, strict=True))


def _fields(raw: NDArray[np.uint8], group: Sequence[Batch], place: Int64) -> list[Int64]:
    """The same of one group, whose records begin at ``place``."""
    counts = [batch.records for batch in group]
    length, at = varints(raw, place)
    ends = at + length
    times, at = varints(raw, at + 1)  # behind the record's attributes, which mean nothing yet
    deltas, at = varints(raw, at)
    key_sizes, key_at = varints(raw, at)
    key_bytes = np.maximum(key_sizes, 0)
    value_sizes, value_at = varints(raw, key_at + key_bytes)
    value_bytes = np.maximum(value_sizes, 0)
    if (value_bytes >= ends - value_at).any():  # at least the number of headers follows
        raise ValueError("a value ends behind its record")
    appended = [bool(batch.attributes & _LOG_APPEND_TIME) for batch in group]
    base_times = [
        batch.max_timestamp if own else batch.first_timestamp
        for batch, own in zip(group, appended, strict=True)
    ]
    if any(appended):
        times[np.repeat(appended, counts)] = 0
    return [
        deltas + np.repeat(np.array([batch.base_offset for batch in group], np.int64), counts),
        times + np.repeat(np.array(base_times, np.int64), counts),
        key_at,
        key_sizes,
        value_at,
        value_sizes,
    ]


def _starts_together(raw: NDArray[np.uint8], group: Sequence[Batch]) -> Int64:
    """The places of the records of many batches, batch after batch: the first of each at once, then
    the second of each. Takes memory by the records, however unequal the batches are."""
    counts = np.array([batch.records for batch in group], np.int64)
    order = np.argsort(-counts, kind="stable")
    at = np.array([batch.begin for batch in group], np.int64)[order]
    rows = (np.cumsum(counts) - counts)[order]
    found: Int64 = np.empty(int(counts.sum()), np.int64)
    steps = np.arange(int(counts.max()))
    left = len(group) - np.searchsorted(np.sort(counts), steps, side="right")
    for step, width in enumerate(left.tolist()):
        found[rows[:width] + step] = at[:width]
        sizes, behind = varints(raw, at[:width])
        if int(sizes.min()) < 0:
            raise ValueError("a record of negative length")
        at[:width] = behind + sizes
    if (at != np.array([batch.end for batch in group], np.int64)[order]).any():
        raise ValueError("records do not fill their batch")
    return found


def _starts_in_turn(data: bytes, group: Sequence[Batch]) -> Int64:
    """The places of the records, at their length field, batch after batch."""
    parts: list[Int64] = []
    some: list[int] = []
    for batch in group:
        if batch.records > _RUN_PROBE:
            parts += [np.array(some, np.int64), *_starts(data, batch)]
            some = []
        else:
            _require_end(batch, _walk(data, batch.begin, batch.records, some))
    parts.append(np.array(some, np.int64))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _require_end(batch: Batch, at: int) -> None:
    if at != batch.end:
        raise ValueError(
            f"{batch.records} records have {at - batch.begin} bytes, not {batch.end - batch.begin}"
        )


def _starts(data: bytes, batch: Batch) -> list[Int64]:
    """The places of a batch of many records.

    Records of one length in a row are found at once: equal length fields at equal distances prove
    the run. Others: one after the other.
    """
    parts: list[Int64] = []
    at, left = batch.begin, batch.records
    probe = _RUN_PROBE
    while left:
        some: list[int] = []
        before = at
        at = _walk(data, at, min(left, probe), some)
        parts.append(np.array(some, np.int64))
        left -= len(some)
        size = at - some[-1]
        if not left or size * len(some) != at - before:
            probe = min(4 * probe, _RECORDS_AT_ONCE)
            continue
        run = _run(data, some[-1], size, left, batch.end)
        parts.append(np.arange(at, at + run * size, size, dtype=np.int64))
        at, left = at + run * size, left - run
        probe = _RUN_PROBE if run >= _RUN_WORTHWHILE else min(4 * probe, _RECORDS_AT_ONCE)
    _require_end(batch, at)
    return parts


def _walk(data: bytes, at: int, count: int, found: list[int]) -> int:
    """Append the places of ``count`` records from ``at`` on; returns the place behind them."""
    append = found.append
    for _ in range(count):
        append(at)
        size = data[at]
        if size > 127:
            at += 1
            second = data[at]
            if second > 127:
                size, at = _long_size(data, at - 1)
            else:
                size = size & 127 | second << 7
        if size & 1:
            raise ValueError("a record of negative length")
        at += 1 + (size >> 1)
    return at


def _long_size(data: bytes, at: int) -> tuple[int, int]:
    """A length field of three bytes or more, not yet unfolded, and its last byte's place."""
    size = shift = 0
    while True:
        byte = data[at]
        size |= (byte & 127) << shift
        if byte < 128:
            return size, at
        at += 1
        shift += 7


def _run(data: bytes, at: int, size: int, most: int, end: int) -> int:
    """The number of records behind the one at ``at`` with ``size`` bytes like it, ``most`` at
    most."""
    most = min(most, (end - at) // size - 1)
    width = 1
    while data[at + width - 1] > 127:
        width += 1
    for byte in range(width):
        if most <= 0:
            return 0
        following = np.ndarray((most,), np.uint8, data, at + size + byte, (size,))
        different = following != data[at + byte]
        first = int(different.argmax())
        if different[first]:
            most = first
    return most
