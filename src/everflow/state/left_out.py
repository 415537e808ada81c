"""What processing has left out of a topic that is a table's changelog, too (pure; note 065).

A record of the topic ``<application>-<store>-left-out-changelog`` says what the store has for a
key that records of the reused topic have, and that processing has skipped: ``8-byte big-endian
offset + 1 byte + value bytes``. The byte is 1 where the store has an entry, whose time the record
has, and 0 where it has none. All records of the key up to that offset have come to this.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from everflow.records import Int64
from everflow.serdes import Serde
from everflow.state.changelog import unpack_value
from everflow.state.store import StoreSpec

_HEAD = struct.Struct(">q?")


class KeptEntry(NamedTuple):
    """A store's value (None: none) and time (ms) for a key after ``offset`` of the topic."""

    offset: int
    value: bytes | None
    time: int

    @staticmethod
    def of(offset: int, stored: bytes | None, now_ms: int) -> KeptEntry:
        if stored is None:
            return KeptEntry(offset, None, now_ms)
        time, value = unpack_value(stored)
        return KeptEntry(offset, value, time)

    def packed(self) -> bytes:
        return _HEAD.pack(self.offset, self.value is not None) + (self.value or b"")


class Chunk(Protocol):
    """Records of a log, of which a later one of the same key may have replaced some."""

    @property
    def keys(self) -> Sequence[bytes | None]: ...
    @property
    def values(self) -> Sequence[bytes | None]: ...
    @property
    def timestamps(self) -> Int64: ...
    @property
    def next_position(self) -> int: ...
    @property
    def records(self) -> int: ...


@runtime_checkable
class SizedChunk(Protocol):
    """One that knows the size of its keys and values."""

    @property
    def bytes(self) -> int: ...


class PlacedChunk(Chunk, Protocol):
    """One that knows where its records are."""

    @property
    def offsets(self) -> Int64: ...


@dataclass(frozen=True, kw_only=True)
class CorrectedChunk:
    """A `Chunk` without what was left out. ``offsets``: -1 where the topic has no such record."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Int64
    offsets: Int64
    next_position: int
    records: int


def unpacked(chunks: Iterable[Chunk]) -> dict[bytes, KeptEntry]:
    """The last record of each key. ValueError for one that is none."""
    found: dict[bytes, KeptEntry] = {}
    for chunk in chunks:
        for key, data, time in zip(
            chunk.keys, chunk.values, chunk.timestamps.tolist(), strict=True
        ):
            if key is None or data is None:
                continue
            if len(data) < _HEAD.size:
                raise ValueError(f"{data!r} is no record of what was left out")
            offset, there = _HEAD.unpack_from(data)
            found[key] = KeptEntry(offset, data[_HEAD.size :] if there else None, time)
    return found


def as_written(data: Sequence[bytes | None], serde: Serde) -> Sequence[bytes | None]:
    """Bytes of a topic as ``serde`` writes what is read of them: bad UTF-8 as U+FFFD."""
    if serde.kind != "string":
        return data
    return [
        one if one is None or one.isascii() else one.decode("utf-8", "replace").encode()
        for one in data
    ]


def corrected(
    chunks: Iterable[PlacedChunk], start: int, left_out: Mapping[bytes, KeptEntry], spec: StoreSpec
) -> Iterator[Chunk]:
    """Chunks of a reused topic that begin at offset ``start``, as its store ``spec`` takes them.

    What is left out of a later chunk holds for earlier records of the key, too: they may have been
    left out themselves, and compaction may have removed those that were not."""
    for chunk in chunks:
        yield as_processed(chunk, start, left_out, spec)
        start = chunk.next_position


def as_processed(
    chunk: PlacedChunk, start: int, left_out: Mapping[bytes, KeptEntry], spec: StoreSpec
) -> Chunk:
    """See `corrected`; of one chunk, which begins at ``start``."""
    ahead = {key: one for key, one in left_out.items() if one.offset >= start}
    keys, values = chunk.keys, chunk.values
    written = as_written(keys, spec.key_serde), as_written(values, spec.value_serde)
    if not ahead and written == (keys, values):
        return chunk
    (keys, values), offsets = written, chunk.offsets.tolist()
    last = {key: at for key, at in zip(keys, offsets, strict=True) if key in ahead}
    corrected = {
        key: one
        for key, one in ahead.items()
        if last.get(key, -1) <= one.offset and (key in last or one.offset < chunk.next_position)
    }
    rows = [row for row, key in enumerate(keys) if key not in corrected]
    return CorrectedChunk(
        keys=[*(keys[row] for row in rows), *corrected],
        values=[*(values[row] for row in rows), *(one.value for one in corrected.values())],
        timestamps=np.concatenate(
            [chunk.timestamps[rows], np.array([one.time for one in corrected.values()], np.int64)]
        ),
        offsets=np.array([*(offsets[row] for row in rows), *([-1] * len(corrected))], np.int64),
        next_position=chunk.next_position,
        records=chunk.records,
    )
