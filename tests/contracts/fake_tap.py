"""A `FetchTap` over logs in memory; it passes the real one's contract (`test_tap_contract`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.errors import FatalError, LogStartMovedError, RetriableError
from everflow.kafka.reading.record_columns import LogChunk, LogColumns
from everflow.records import UNBOUNDED_BYTES, TopicPartition


@dataclass
class FakeLog:
    """Committed records by offset, those that a reader may see; ``end``: the last stable offset."""

    records: dict[int, bytes | None]
    end: int
    start: int = 0
    damage: RetriableError | None = None
    """Told instead of its records."""


@dataclass(frozen=True)
class FakeRecords:
    """Records with the key k and the time 1000 + offset."""

    found: list[tuple[int, bytes | None]]

    @property
    def timestamps(self) -> Any:
        return np.array([1000 + at for at, _ in self.found], np.int64)

    @property
    def sizes(self) -> Any:
        return np.array([1 + len(value or b"") for _, value in self.found], np.int64)

    def keys(self) -> list[bytes | None]:
        return [b"k"] * len(self.found)

    def values(self) -> list[bytes | None]:
        return [value for _, value in self.found]

    @property
    def offsets(self) -> Any:
        return np.array([at for at, _ in self.found], np.int64)

    def of(self, chosen: slice) -> FakeRecords:
        return FakeRecords(self.found[chosen])

    def arrow(self, headers: bool) -> LogColumns:
        return LogColumns(
            keys=pa.array(self.keys(), pa.binary()),
            values=pa.array(self.values(), pa.binary()),
            offsets=self.offsets,
            timestamps=self.timestamps,
        )

    def latest(self) -> FakeRecords:
        return FakeRecords(self.found[-1:])


@dataclass
class FakeTap:
    logs: Mapping[TopicPartition, FakeLog]
    now: float = 0.0
    faults: list[RetriableError] = field(default_factory=list)
    """Raised one by one by what is asked next."""
    asked: list[dict[TopicPartition, tuple[int, int]]] = field(default_factory=list)
    """Positions and ends of every `take`."""
    open: bool = False
    _positions: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        return dict(self._positions)

    def go_to(self, starts: Mapping[TopicPartition, int], timeout_s: float = 1.0) -> None:
        if starts:
            self._fail()
            self.open = True
        self._positions = dict(starts)

    def take(
        self,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
        most_bytes: int = UNBOUNDED_BYTES,
        most_records: int = 1 << 62,
    ) -> dict[TopicPartition, LogChunk]:
        self._fail()
        self.asked.append({tp: (self._positions[tp], end) for tp, end in ends.items()})
        for tp, end in ends.items():
            self._refuse(tp, end)
        found = {
            tp: self._chunk(tp, end, most_bytes, most_records)
            for tp, end in ends.items()
            if self.logs[tp].damage is None
        }
        damage = next((self.logs[tp].damage for tp in ends if self.logs[tp].damage), None)
        if damage is not None and not any(found.values()):
            raise damage
        self._positions.update({tp: c.next_position for tp, c in found.items() if c is not None})
        moved = {tp: chunk for tp, chunk in found.items() if chunk is not None}
        if not moved:
            self.now += timeout_s
        return moved

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        self._positions = {}
        self.open = True

    def close(self) -> None:
        self._positions = {}
        self.open = False

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop(0)

    def _refuse(self, tp: TopicPartition, end: int) -> None:
        at = self._positions[tp]
        if tp not in self.logs:
            raise FatalError(f"{tp} does not exist")
        if self.logs[tp].start > at:
            raise LogStartMovedError(f"{tp}: offset {at} is outside the log", tp)

    def _chunk(
        self, tp: TopicPartition, end: int, most_bytes: int, most_records: int
    ) -> LogChunk | None:
        log, at = self.logs[tp], self._positions[tp]
        end = min(end, log.end)
        if end <= at:
            return None
        found = [(at_, value) for at_, value in sorted(log.records.items()) if at <= at_ < end]
        most, held = 0, 0
        while most < min(len(found), most_records) and (most == 0 or held < most_bytes):
            held += 1 + len(found[most][1] or b"")
            most += 1
        behind = found[most][0] if most < len(found) else end
        return LogChunk(FakeRecords(found[:most]), behind, most)
