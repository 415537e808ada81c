"""Topics of the test driver as a test sees them: records are piped into one and read from another.

They belong to the thread of their driver. Times are ms since the epoch.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from everflow.exact_texts import epoch_ms
from everflow.foreign_names import Telling
from everflow.serdes import Serde
from everflow.serdes.registered import Registered
from everflow.serdes.wire_format import identified

Headers = Sequence[tuple[str, bytes | None]]


class TestRecord(NamedTuple):
    """A record as a test reads it: decoded key and value, time in ms, headers."""

    key: Any
    value: Any
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


TestRecord.__test__ = False  # type: ignore[attr-defined]  # pytest takes classes called Test... for tests


@dataclass(frozen=True)
class RawRecord:
    """A record as it is in Kafka."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0


Places = Callable[[bytes | None, int | None], int]
"""The partition of a record, by its key's bytes and what the test says of it."""


class InputTopic(Telling):
    """Pipes Python keys and values into one topic. A record without a time gets the topic's time
    (first ``start_ms``), which then advances by ``advance_ms``.

    A record goes to the partition that the topic's partitioner gives its key, one without a key to
    the first. Raises SerdeError for a key or value that its serde cannot write, TypeError for a
    record that is no tuple of two to four, ValueError for a partition that the topic does not have.
    """

    def __init__(
        self,
        pipe: Callable[[Sequence[RawRecord]], None],
        topic: str,
        serdes: tuple[Serde, Serde],
        start_ms: int,
        advance_ms: int,
        place: Places,
    ) -> None:
        self._place = place
        self._pipe, self._topic = pipe, topic
        self._key, self._value = serdes
        self._start_ms = self._next_ms = start_ms
        self._advance_ms = advance_ms

    def pipe_input(
        self,
        key: Any,
        value: Any,
        timestamp: int | datetime | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Pipe one record and process it. ``timestamp``: ms, or a datetime (UTC if it has no zone;
        ValueError for a fraction of a ms). ``partition``: replaces the partitioner's choice."""
        self._pipe([self._raw(key, value, timestamp, headers, partition)])

    def pipe_raw(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int = 0,
        *,
        partition: int | None = None,
    ) -> None:
        """Pipe a key and a value as bytes, also bytes that no serde can decode. The record's time
        is ``timestamp`` (ms), not the topic's time."""
        place = self._place(key, partition)
        self._pipe([RawRecord(self._topic, key, value, timestamp, partition=place)])

    def pipe_batch(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Pipe tuples ``(key, value[, timestamp[, headers]])`` as ONE micro-batch: an aggregation
        emits one result per key (and window), unless the driver has ``emit_every_update``."""
        self._pipe(self.written(records))

    def pipe_each(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Pipe tuples ``(key, value[, timestamp[, headers]])``, each as its own micro-batch."""
        for record in self.written(records):
            self._pipe([record])

    def advance_time(self, by_ms: int) -> None:
        """Advance the topic's time, which records without a time of their own get."""
        self._next_ms += by_ms

    def written(self, records: Iterable[tuple[Any, ...]]) -> list[RawRecord]:
        """``(key, value[, timestamp[, headers]])`` as they would be in Kafka; nothing runs."""
        return [self._raw(*_parts(record)) for record in records]

    def rewind(self) -> None:
        """The time of records that bring none begins anew."""
        self._next_ms = self._start_ms

    def _raw(
        self,
        key: Any,
        value: Any,
        timestamp: int | datetime | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> RawRecord:
        key, value = self._key.encode(key), self._value.encode(value)
        if timestamp is None:
            timestamp, self._next_ms = self._next_ms, self._next_ms + self._advance_ms
        if isinstance(timestamp, datetime):
            timestamp = epoch_ms(timestamp)
        try:
            timestamp = operator.index(timestamp)
        except TypeError:
            raise TypeError(
                f"a record's timestamp is an int of ms or a datetime, found {timestamp!r}"
            ) from None
        place = self._place(key, partition)
        return RawRecord(self._topic, key, value, timestamp, tuple(headers), place)


class OutputTopic(Telling):
    """Reads decoded records of one topic, in the order in which they were written."""

    def __init__(
        self,
        records: deque[RawRecord],
        topic: str,
        serdes: tuple[Serde, Serde],
    ) -> None:
        self._records, self._topic = records, topic
        self._key, self._value = serdes

    def is_empty(self) -> bool:
        """True if all records have been read."""
        return not self._records

    def queue_size(self) -> int:
        """Number of records not read yet."""
        return len(self._records)

    def read_record(self) -> TestRecord:
        """The next record. Raises LookupError if there is none."""
        if not self._records:
            raise LookupError(f"no more records in topic {self._topic!r}")
        raw = self._records.popleft()
        return TestRecord(
            self._decoded(self._key, raw.key, raw.headers, "key"),
            self._decoded(self._value, raw.value, raw.headers, "value"),
            raw.timestamp,
            raw.headers,
        )

    @staticmethod
    def _decoded(serde: Serde, data: bytes | None, headers: Headers, part: str) -> Any:
        return serde.decode(
            identified(data, headers, part) if isinstance(serde, Registered) else data
        )

    def read_value(self) -> Any:
        """The next record's value."""
        return self.read_record().value

    def read_key_value(self) -> tuple[Any, Any]:
        """The next record's key and value."""
        return self.read_record()[:2]

    def read_records(self) -> list[TestRecord]:
        """All records not read yet, in the order in which they were written."""
        return [self.read_record() for _ in range(len(self._records))]

    def read_key_values(self) -> list[tuple[Any, Any]]:
        """Keys and values of all records not read yet."""
        return [record[:2] for record in self.read_records()]

    def read_table(self) -> dict[Any, Any]:
        """The last value per key of the records not read yet; null deletes a key. Keys must be
        hashable."""
        table: dict[Any, Any] = {}
        for record in self.read_records():
            if record.value is None:
                table.pop(record.key, None)
            else:
                table[record.key] = record.value
        return table


def _parts(record: object) -> tuple[Any, Any, int | datetime | None, Headers]:
    if not isinstance(record, tuple | list) or not 2 <= len(record) <= 4:
        raise TypeError(
            f"a record is a tuple (key, value), (key, value, timestamp) or (key, value, timestamp, "
            f"headers), found {record!r}"
        )
    key, value, timestamp, headers = (*record, None, None)[:4]
    return key, value, timestamp, headers or ()
