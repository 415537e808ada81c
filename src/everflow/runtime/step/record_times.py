"""Bounds a record's time: not before 1970, and what Spark holds, microseconds in 64 bits.

The same on every road.
"""

from __future__ import annotations

import numpy as np

from everflow.errors import RecordTimeError
from everflow.records import EdgeBatch, Int64
from everflow.topology.batches import BatchInput
from everflow.topology.plan import Source

MOST_MS = (2**63 - 1) // 1000
_MOVE_ON = (
    "delete the record (kafka-delete-records), or move the group's offset past it while the "
    "application is stopped."
)


def odd_times(times: Int64) -> bool:
    """Whether some of the records that were read have a time that is negative or beyond
    `MOST_MS`."""
    # One look at each record: a negative time is a high one without its sign.
    return bool((times.view(np.uint64) > MOST_MS).any())


def far_times(source: Source, raw: EdgeBatch) -> dict[int, RecordTimeError]:
    """Why records of a source are left to their handler, by row: their time lies beyond
    `MOST_MS`."""
    return {
        row: far_time(
            f"{source.topic}-{int(raw.partition[row])}@{int(raw.offset[row])}",
            int(raw.timestamp[row]),
        )
        for row in np.flatnonzero(raw.timestamp > MOST_MS).tolist()
    }


def timely(hop: BatchInput, otherwise_ms: int) -> Int64:
    """The times of a hop's rows. A record beyond `MOST_MS` has that of the one before it in its
    partition, else of the next one, else ``otherwise_ms``: it is left out, and its dead letter
    keeps its place."""
    far = hop.timestamp > MOST_MS
    times: Int64 = hop.timestamp.copy()
    logs = zip(hop.source[far].tolist(), hop.partition[far].tolist(), strict=True)
    for source, partition in {*logs}:
        rows = np.flatnonzero((hop.source == source) & (hop.partition == partition))
        good = ~far[rows]
        if not good.any():
            times[rows] = otherwise_ms
            continue
        before = np.maximum.accumulate(np.where(good, np.arange(len(rows)), -1))
        times[rows] = times[rows[np.where(before < 0, int(np.argmax(good)), before)]]
    return times


def refuse_negative(source: Source, decoded: EdgeBatch) -> None:
    """RecordTimeError for the first record with a negative time (FailOnInvalidTimestamp)."""
    rows = np.flatnonzero(decoded.timestamp < 0)
    if len(rows):
        row = int(rows[0])
        place = f"{source.topic}-{int(decoded.partition[row])}@{int(decoded.offset[row])}"
        raise RecordTimeError(
            f"A record's time is negative, {int(decoded.timestamp[row])} ms (record {place}): its "
            f"producer gave it none, or one before 1970\n"
            f"  Leave such records out with timestamp=LogAndSkipOnInvalidTimestamp() of the "
            f"source, take the time from elsewhere, as in timestamp=F.col('value.at') or "
            f"UsePartitionTimeOnInvalidTimestamp(), or set default.timestamp.extractor for all "
            f"sources. Or correct the producer; {_MOVE_ON}"
        )


def no_time(time_ms: int) -> RecordTimeError:
    """The error of a partition's first record, that has no time of its own."""
    return RecordTimeError(
        f"A record's time is negative, {time_ms} ms, and UsePartitionTimeOnInvalidTimestamp knows "
        f"none of an earlier record of its partition; give the source a function that knows one: "
        f"timestamp=lambda key, value, record, partition_time: ..."
    )


def far_time(
    place: str | None, time_ms: int | None = None, *, extracted: bool = False
) -> RecordTimeError:
    """The error of a record, ``in-0@7``, where it is known. ``extracted``: the user's timestamp=
    said the time."""
    time = "beyond the year 294247" if time_ms is None else f"{time_ms} ms, beyond the year 294247"
    where = "" if place is None else f" (record {place})"
    cure = (
        "timestamp= of its source gave micro- or nanoseconds; divide them, a time is in ms."
        if extracted
        else "Its producer wrote micro- or nanoseconds where Kafka expects milliseconds. Correct "
        f"the producer; {_MOVE_ON}"
    )
    return RecordTimeError(f"A record's time is {time}, which Spark cannot hold{where}\n  {cure}")
