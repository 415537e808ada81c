"""Bounds a record's time: not before 1970, and what Spark holds, microseconds in 64 bits.

The same on every road.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everflow.errors import RecordTimeError
from everflow.records import EdgeBatch
from everflow.topology.hops import HopInput
from everflow.topology.physical_plan import Source

MOST_MS = (2**63 - 1) // 1000
_MOVE_ON = (
    "delete the record (kafka-delete-records), or move the group's offset past it while the "
    "application is stopped."
)


def odd_times(hop: HopInput, sources: Sequence[Source]) -> bool:
    """Whether a time of the records that were read may have to be refused. RecordTimeError for the
    first record whose time lies beyond `MOST_MS`."""
    # One look at each record: a negative time is a high one without its sign.
    if not (hop.timestamp.view(np.uint64) > MOST_MS).any():
        return False
    beyond = np.flatnonzero(hop.timestamp > MOST_MS)
    if len(beyond):
        row = int(beyond[0])
        topic = next(one.topic for one in sources if one.index == int(hop.source[row]))
        place = f"{topic}-{int(hop.partition[row])}@{int(hop.offset[row])}"
        raise far_time(place, int(hop.timestamp[row]))
    return True


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


def no_time(place: str, time_ms: int) -> RecordTimeError:
    """The error of a partition's first record, ``in-0@7``, that has no time of its own."""
    return RecordTimeError(
        f"A record's time is negative, {time_ms} ms, and UsePartitionTimeOnInvalidTimestamp knows "
        f"none of an earlier record of its partition (record {place})\n"
        f"  Give the source a function that knows one: timestamp=lambda key, value, record, "
        f"partition_time: ...; or {_MOVE_ON}"
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
