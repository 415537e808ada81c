"""Counts the latest records of a topic by key.

Where one key is hot, its task is behind and no further instance helps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from everflow.config import StreamsConfig
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import LogColumns
from everflow.records import OffsetRange, TopicPartition

SLICE_OFFSETS = 50_000
"""The offsets of each partition that are read at once."""
SLICE_BYTES = 64 << 20
READ_S = 20.0


class KeyCount(NamedTuple):
    """Records of one key in one partition, bytes of their keys and values, and its ``share`` of the
    partition's records. ``per_s``: records a second by their times."""

    key: bytes | None
    partition: int
    records: int
    bytes: int
    share: float
    per_s: float


class PartitionCount(NamedTuple):
    """The records read of a partition; ``keys``: the number of different keys."""

    partition: int
    records: int
    keys: int
    per_s: float


@dataclass
class KeyCounts:
    """Counts the records of one partition, and their bytes, by key."""

    partition: int
    counts: Counter[bytes | None] = field(default_factory=Counter)
    sizes: Counter[bytes | None] = field(default_factory=Counter)
    first_ms: float = math.inf
    last_ms: float = -math.inf

    def add(self, columns: LogColumns) -> None:
        if not len(columns):
            return
        coded = columns.keys.dictionary_encode(null_encoding="encode")
        codes, keys = coded.indices.to_numpy(), coded.dictionary.to_pylist()
        sizes = sum(
            pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
            for column in (columns.keys, columns.values)
        )
        self.counts.update(dict(zip(keys, np.bincount(codes).tolist(), strict=True)))
        lengths = np.bincount(codes, weights=sizes).astype(np.int64).tolist()
        self.sizes.update(dict(zip(keys, lengths, strict=True)))
        self.first_ms = min(self.first_ms, int(columns.timestamps.min()))
        self.last_ms = max(self.last_ms, int(columns.timestamps.max()))

    @property
    def records(self) -> int:
        return self.counts.total()

    def per_s(self, records: int) -> float:
        """So many records a second, over the time that all records are of."""
        return records / max(self.last_ms - self.first_ms, 1) * 1000

    def as_row(self) -> PartitionCount:
        return PartitionCount(
            self.partition, self.records, len(self.counts), self.per_s(self.records)
        )

    def as_rows(self) -> list[KeyCount]:
        all_, size = self.records, self.sizes
        return [
            KeyCount(key, self.partition, count, size[key], count / all_, self.per_s(count))
            for key, count in self.counts.items()
        ]


def frequent(counted: Sequence[KeyCounts], most: int) -> list[KeyCount]:
    """The keys with the most records a second, so many at the most."""
    rows = [row for one in counted for row in one.as_rows()]
    return sorted(rows, key=lambda row: (-row.per_s, row.partition, row.key or b""))[:most]


def busiest(counted: Sequence[KeyCounts], most: int) -> list[PartitionCount]:
    """The partitions with the most records a second, so many at the most."""
    rows = [one.as_row() for one in counted if one.counts]
    return sorted(rows, key=lambda row: (-row.per_s, row.partition))[:most]


def latest(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], records: int
) -> dict[TopicPartition, OffsetRange]:
    """The last so many offsets of each partition."""
    return {tp: OffsetRange(max(starts[tp], end - records), end) for tp, end in ends.items()}


def count_keys(
    config: StreamsConfig, ranges: Mapping[TopicPartition, OffsetRange]
) -> list[KeyCounts]:
    """The committed records of the ranges, counted; joins no group. Raises what
    `RangeReader.read` raises."""
    found = {tp: KeyCounts(tp.partition) for tp in ranges}
    at = {tp: wanted.start for tp, wanted in ranges.items()}
    with closing(RangeReader(config.consumer(), read_committed=True)) as reader:
        while wanted := {
            tp: OffsetRange(begin, min(ranges[tp].end, begin + SLICE_OFFSETS))
            for tp, begin in at.items()
            if begin < ranges[tp].end
        }:
            read = reader.read(wanted, READ_S, SLICE_BYTES)
            for tp, columns in read.columns.items():
                found[tp].add(columns)
            at |= read.ends
    return list(found.values())
