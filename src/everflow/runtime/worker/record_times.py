"""Bounds a record's time to what Spark holds, microseconds in 64 bits, the same on every road."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from everflow.errors import RecordTimeError
from everflow.kafka.reading.log_columns import LogColumns
from everflow.records import TopicPartition

MOST_MS = (2**63 - 1) // 1000


def require_times(read: Mapping[TopicPartition, LogColumns]) -> None:
    """RecordTimeError for the first record, partition after partition, whose time lies beyond
    `MOST_MS`."""
    for tp, columns in sorted(read.items()):
        late = np.flatnonzero(columns.timestamps > MOST_MS)
        if len(late):
            raise too_late(
                f"{tp}@{int(columns.offsets[late[0]])}", int(columns.timestamps[late[0]])
            )


def too_late(record: str | None, time_ms: int | None = None) -> RecordTimeError:
    """The error of a record, ``in-0@7``, where it is known."""
    time = "beyond the year 294247" if time_ms is None else f"{time_ms} ms, beyond the year 294247"
    place = "" if record is None else f" (record {record})"
    return RecordTimeError(
        f"A record's time is {time}, which Spark cannot hold{place}\n"
        "  Its producer wrote micro- or nanoseconds where Kafka expects milliseconds. Correct the "
        "producer; delete the record "
        "(kafka-delete-records), or move the group's offset past it while the application is "
        "stopped."
    )
