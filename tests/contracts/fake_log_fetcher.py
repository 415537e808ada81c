"""A `LogFetcher` over logs in memory; it passes the contract (`test_log_fetcher_contract`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import FatalError, LogStartMovedError, RetriableError
from everflow.kafka.reading.record_columns import Columns, LogChunk, LogColumns
from everflow.records import UNBOUNDED_BYTES, TopicPartition


@dataclass
class FakeLog:
    """Committed records by offset, those that a reader may see; ``end``: the last stable offset."""

    records: dict[int, bytes | None]
    end: int
    start: int = 0
    damage: RetriableError | None = None
    """Told instead of its records."""


def as_columns(columns: LogColumns) -> Columns:
    """The inverse of `Columns.arrow`, of records without headers."""
    keys, values = columns.keys, columns.values
    rows = pc.binary_join_element_wise(
        keys.fill_null(b""), values.fill_null(b""), pa.scalar(b"\0"), pa.scalar(b"")
    )
    _, begins, data = rows.buffers()
    key_at = np.frombuffer(begins or b"", np.int32)[: len(rows)].astype(np.int64)
    sizes = [np.asarray(pc.binary_length(one).fill_null(-1), np.int64) for one in (keys, values)]
    return Columns(
        data.to_pybytes() if data else b"",
        columns.offsets,
        columns.timestamps,
        key_at,
        sizes[0],
        key_at + np.maximum(sizes[0], 0),
        sizes[1],
    )


class Folding(Columns):
    """Folds few records, too."""

    def latest(self) -> Columns:
        return self.of(slice(len(self.offsets) - 1, None))


def held(found: list[tuple[int, bytes | None]]) -> Columns:
    """Records with the key k and the time 1000 + offset."""
    offsets = np.array([at for at, _ in found], np.int64)
    keys, values = [b"k"] * len(found), [value for _, value in found]
    columns = LogColumns(
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        offsets=offsets,
        timestamps=1000 + offsets,
    )
    return Folding(*as_columns(columns))


@dataclass
class FakeLogFetcher:
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

    def go_to(
        self,
        starts: Mapping[TopicPartition, int],
        timeout_s: float = 1.0,
        ids: Mapping[str, str] = {},
    ) -> None:
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
        latest: Mapping[TopicPartition, int] = {},
    ) -> dict[TopicPartition, LogChunk]:
        self._fail()
        self.asked.append({tp: (self._positions[tp], end) for tp, end in ends.items()})
        for tp, end in ends.items():
            self._refuse(tp, end)
        found = {
            tp: self._chunk(tp, latest.get(tp, end), most_bytes, most_records)
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
        found = [
            (offset, value) for offset, value in sorted(log.records.items()) if at <= offset < end
        ]
        most, size = 0, 0
        while most < min(len(found), most_records) and (most == 0 or size < most_bytes):
            size += 1 + len(found[most][1] or b"")
            most += 1
        behind = found[most][0] if most < len(found) else end
        return LogChunk(held(found[:most]), behind, most)
