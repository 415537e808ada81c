"""A changelog in memory behind the ports of a `StateReader`."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from contracts.fake_log_fetcher import as_columns
from everflow.kafka.reading.record_columns import Columns, LogChunk, LogColumns
from everflow.records import TopicPartition

Record = tuple[bytes | None, bytes | None, int]
"""Key, value, time (ms)."""


def held(found: list[tuple[int, Record]]) -> Columns:
    """Records by offset, as a fetcher hands them out."""
    keys, values = ([record[at] for _, record in found] for at in (0, 1))
    return as_columns(
        LogColumns(
            keys=pa.array(keys, pa.binary()),
            values=pa.array(values, pa.binary()),
            offsets=np.array([offset for offset, _ in found], np.int64),
            timestamps=np.array([time for _, (_, _, time) in found], np.int64),
        )
    )


def latest(found: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """As `Columns.latest`, also of few records."""
    last = {record[0]: at for at, (_, record) in enumerate(found)}
    newest = max(range(len(found)), key=lambda at: (found[at][1][2], -at))
    return [one for at, one in enumerate(found) if at in {*last.values(), newest}]


@dataclass
class FakeChangelog:
    """Partitions of one topic. ``logs``: committed records by offset; an offset that is missing was
    compacted away, aborted or a marker."""

    topic: str
    logs: dict[int, dict[int, Record]]
    starts: dict[int, int] = field(default_factory=dict)
    open_from: dict[int, int] = field(default_factory=dict)
    """Where a transaction is open."""
    ends: dict[int, int] = field(default_factory=dict)
    there: bool = True
    chunk: int = 2
    reads: list[tuple[int, int, int]] = field(default_factory=list)

    def describe_topics(self, names: Collection[str]) -> dict[str, Any]:
        found = SimpleNamespace(partitions=len(self.logs))
        return dict.fromkeys(names, found) if self.there and self.topic in names else {}

    def list_offsets(
        self, partitions: Collection[TopicPartition], which: str | int, isolation: str
    ) -> dict[TopicPartition, int]:
        if isinstance(which, int):
            return {
                tp: next(
                    (at for at, (_, _, time) in self._records(tp.partition) if time >= which), -1
                )
                for tp in partitions
            }
        if which == "earliest":
            return {tp: self.starts.get(tp.partition, 0) for tp in partitions}
        ends = {tp: self._end(tp.partition) for tp in partitions}
        if isolation == "read_committed":
            return {tp: self.open_from.get(tp.partition, end) for tp, end in ends.items()}
        return ends

    def read(
        self, tp: TopicPartition, start: int, end: int, *, every: bool = False
    ) -> Iterator[LogChunk]:
        assert tp.topic == self.topic
        self.reads.append((tp.partition, start, end))
        found = [one for one in self._records(tp.partition) if start <= one[0] < end]
        for at in range(0, len(found), self.chunk):
            part = found[at : at + self.chunk]
            behind = end if at + self.chunk >= len(found) else part[-1][0] + 1
            yield LogChunk(held(part if every else latest(part)), behind, len(part))

    def _records(self, partition: int) -> list[tuple[int, Record]]:
        start = self.starts.get(partition, 0)
        return [(at, one) for at, one in sorted(self.logs[partition].items()) if at >= start]

    def _end(self, partition: int) -> int:
        return self.ends.get(partition, max(self.logs[partition], default=-1) + 1)
