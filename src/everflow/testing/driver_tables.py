"""The global tables of a test driver, filled at once by what is piped into their topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.handlers.given import Handlers
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.log_columns import LogColumns
from everflow.operators.stored_records import loaded_rows
from everflow.records import HEADERS, Bytes, Int64, StoreChanges, TaskId, TopicPartition
from everflow.runtime.commit.batch import StorePlace, TaskContext
from everflow.runtime.step.step_functions import UndecodableRecord
from everflow.runtime.thread.failure_text import ending
from everflow.runtime.worker.global_records import GlobalRecords
from everflow.state.store import InMemoryStore
from everflow.testing.topics import RawRecord
from everflow.topology.physical_plan import GlobalTable, LoadedTable

Tell = Callable[[Iterable[RawRecord]], None]


class DriverTables:
    """``stores``: the driver's, by name; ``tell``: what takes dead letters."""

    def __init__(
        self,
        tables: Sequence[GlobalTable],
        loaded: Sequence[LoadedTable],
        stores: Mapping[str, InMemoryStore],
        handlers: Handlers,
        tell: Tell,
    ) -> None:
        self._tables = {table.source.topic: table for table in tables}
        self._offsets = dict.fromkeys(self._tables, 0)
        self._loaded, self._due_ms = loaded, dict[str, int]()
        self._stores = stores
        self._intake = GlobalRecords(
            {topic: table.source for topic, table in self._tables.items()},
            handlers,
            lambda: _LetterWriter(tell),
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """What the tables are read from."""
        return tuple(self._tables)

    def contexts(self) -> list[TaskContext]:
        """The tables as a batch's request names them."""
        return [
            TaskContext(
                TaskId(table.subtopology, 0),
                "",
                "",
                stores={table.store.name: StorePlace("", topic)},
            )
            for topic, table in self._tables.items()
        ] + [
            TaskContext(table.task, "", "", stores={table.store.name: StorePlace("", None)})
            for table in self._loaded
        ]

    def load(self, now_ms: int) -> None:
        """Load those that are due by the driver's clock: all of them, the first time. Raises what
        loading raises."""
        for table in self._loaded:
            name, refresh_ms = table.store.name, table.node.refresh_ms
            if name in self._due_ms and (refresh_ms is None or now_ms < self._due_ms[name]):
                continue
            self._due_ms[name] = now_ms + (refresh_ms or 0)
            rows, store = loaded_rows(table.node), self._stores[name]
            gone = [key for key, _ in store.range(None, None)]
            times = np.full(len(gone), now_ms, np.int64)
            store.apply(StoreChanges(name, gone, [None] * len(gone), times))
            for part in rows.chunks(now_ms):
                store.apply(part)

    def rewind(self) -> None:
        """The topics are empty again."""
        self._offsets.update(dict.fromkeys(self._offsets, 0))
        self._due_ms.clear()

    def filled(self, records: Sequence[RawRecord]) -> list[RawRecord]:
        """Put those of the tables' topics into the tables; gives the others. RecordError for one
        that cannot be read, where its handler says FAIL."""
        for topic in self._tables:
            mine = [record for record in records if record.topic == topic]
            self._fill(topic, [replace(record, partition=0) for record in mine])
        return [record for record in records if record.topic not in self._tables]

    def _fill(self, topic: str, records: Sequence[RawRecord]) -> None:
        table, offset = self._tables[topic], self._offsets[topic]
        rows = [(record, offset + at) for at, record in enumerate(records)]
        for tp, columns in log_columns(rows, headers=True).items():
            chunk = LogChunk(_Written(columns), offset + len(rows), len(rows))
            try:
                taken = self._intake.taken(tp, chunk)
            except UndecodableRecord as error:
                raise ending(error.failure, 1, "") from error
            keyed = [at for at, key in enumerate(taken.keys) if key is not None]
            changes = StoreChanges(
                table.store.name,
                [taken.keys[at] or b"" for at in keyed],
                [taken.values[at] for at in keyed],
                taken.timestamps[keyed],
            )
            self._stores[table.store.name].apply(changes)
        self._offsets[topic] += len(rows)


def log_columns(
    rows: Sequence[tuple[RawRecord, int]], headers: bool
) -> dict[TopicPartition, LogColumns]:
    """Records and their offsets as they are read of a log."""
    found: dict[TopicPartition, list[tuple[RawRecord, int]]] = {}
    for record, offset in rows:
        found.setdefault(TopicPartition(record.topic, record.partition), []).append(
            (record, offset)
        )
    return {
        tp: LogColumns(
            keys=pa.array([record.key for record, _ in listed], pa.binary()),
            values=pa.array([record.value for record, _ in listed], pa.binary()),
            offsets=np.array([offset for _, offset in listed], np.int64),
            timestamps=np.array([record.timestamp for record, _ in listed], np.int64),
            headers=pa.array(
                [[{"key": k, "value": v} for k, v in record.headers] for record, _ in listed],
                HEADERS,
            )
            if headers and any(record.headers for record, _ in listed)
            else None,
        )
        for tp, listed in found.items()
    }


@dataclass(frozen=True)
class _Written:
    """`Records` of a chunk, as they were piped."""

    columns: LogColumns

    @property
    def offsets(self) -> Int64:
        return self.columns.offsets

    @property
    def timestamps(self) -> Int64:
        return self.columns.timestamps

    @property
    def sizes(self) -> Int64:
        return np.zeros(len(self.columns), np.int64)

    def keys(self) -> list[bytes | None]:
        found: list[bytes | None] = self.columns.keys.to_pylist()
        return found

    def values(self) -> list[bytes | None]:
        found: list[bytes | None] = self.columns.values.to_pylist()
        return found

    def arrow(self, headers: bool) -> LogColumns:
        return self.columns

    def of(self, chosen: slice) -> _Written:
        return _Written(self.columns.of(chosen))

    def latest(self) -> _Written:
        return self


@dataclass(frozen=True)
class _LetterWriter:
    """A `SinkWriter` of dead letters."""

    tell: Tell

    def begin(self) -> None: ...
    def write(
        self,
        topic: str,
        keys: Bytes,
        values: Bytes,
        timestamps: Int64,
        partition: int | Int64 | None = None,
        headers: Sequence[Any] | None = None,
    ) -> None:
        written = zip(keys, values, timestamps.tolist(), headers or (), strict=True)
        self.tell(
            RawRecord(topic=topic, key=k, value=v, timestamp=at, headers=tuple(h))
            for k, v, at, h in written
        )

    @property
    def held_ms(self) -> float:
        return 0.0

    @property
    def renewals(self) -> int:
        return 0

    def partition_count(self, topic: str) -> int:
        return 1

    def send(self) -> None: ...
    def flush(self, timeout_s: float) -> None: ...
    def positions(self) -> Mapping[TopicPartition, int]:
        return {}

    def send_offsets(self, *_: object) -> None: ...
    def commit(self, timeout_s: float) -> None: ...
    def abort(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...
