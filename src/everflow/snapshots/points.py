"""Where in its changelog a store is read: its end, a time, or offsets. Pure.

A changelog's records have the times of the records that made them. So a time is a place in the log:
the first record of that time or later, as of ``kafka-consumer-groups --to-datetime``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from everflow.clock import instant, time_of
from everflow.errors import StatePointError
from everflow.exact_texts import epoch_ms
from everflow.records import OffsetRange

At = None | int | str | datetime | Mapping[int, int]
"""None or "end": the end; a time in ms, in ISO 8601 or as a datetime (UTC where it names no zone);
offsets by partition, also as text: "0=120,1=98"."""

NOTHING_BEHIND = -1
"""What the brokers say for the offset of a time that is behind the last record."""
_OFFSETS = re.compile(r"\d{1,18}=\d{1,18}(,\d{1,18}=\d{1,18})*", re.ASCII)


class Span(NamedTuple):
    """Offsets of a changelog partition, from ``start`` to before ``end``. Transactions before
    ``stable`` are decided."""

    start: int
    stable: int
    end: int


@dataclass(frozen=True)
class Point:
    """A place in every partition's log. Neither time nor offsets: the end."""

    time_ms: int | None = None
    offsets: Mapping[int, int] | None = None

    @staticmethod
    def of(at: At) -> Point:
        """StatePointError for what is no point."""
        if at is None or at == "end":
            return Point()
        if isinstance(at, Mapping):
            return Point(offsets=dict(at))
        if isinstance(at, datetime):
            try:
                return Point(time_ms=epoch_ms(at))
            except ValueError as error:
                raise StatePointError(f"{error}; round it.") from None
        if isinstance(at, str) and _OFFSETS.fullmatch(at):
            pairs = [pair.split("=") for pair in at.split(",")]
            return Point(offsets={int(partition): int(offset) for partition, offset in pairs})
        try:
            return Point(time_ms=time_of(str(at)))
        except ValueError as error:
            raise StatePointError(
                f"{error}; or offsets of partitions as 0=120,1=98; or end."
            ) from None

    def __str__(self) -> str:
        if self.time_ms is not None:
            return instant(self.time_ms)
        if self.offsets is not None:
            return ",".join(f"{one}={offset}" for one, offset in sorted(self.offsets.items()))
        return "end"

    def reaches(
        self, topic: str, spans: Mapping[int, Span], times: Mapping[int, int]
    ) -> dict[int, OffsetRange]:
        """Offsets to replay of each partition. ``times``: the offsets of the point's time, if it
        has one. StatePointError for a point that the log does not have."""
        if self.offsets is not None:
            if missing := sorted(self.offsets.keys() - spans.keys()):
                raise StatePointError(
                    f"{topic} has the partitions 0 to {max(spans)}, not "
                    f"{', '.join(map(str, missing))}."
                )
            return {
                one: _to_offset(f"{topic}-{one}", spans[one], offset)
                for one, offset in sorted(self.offsets.items())
            }
        if self.time_ms is None:
            return {
                one: OffsetRange(span.start, span.stable) for one, span in sorted(spans.items())
            }
        return {
            one: self._to_time(f"{topic}-{one}", spans[one], times[one]) for one in sorted(spans)
        }

    def _to_time(self, log: str, span: Span, found: int) -> OffsetRange:
        end = span.stable if found == NOTHING_BEHIND else min(found, span.stable)
        if end <= span.start and span.start > 0:
            raise StatePointError(
                f"{log} begins behind {self}, at offset {span.start}: what it had before was "
                f"deleted. Take a later time."
            )
        return OffsetRange(span.start, max(end, span.start))


def before_all(reaches: Mapping[int, OffsetRange], spans: Mapping[int, Span]) -> bool:
    """True if no partition has a record before the point, but some have one behind it."""
    found = any(spans[one].stable > reach.end for one, reach in reaches.items())
    return found and all(reach.start == reach.end for reach in reaches.values())


def _to_offset(log: str, span: Span, offset: int) -> OffsetRange:
    if offset < span.start:
        raise StatePointError(
            f"{log} begins at offset {span.start}, behind {offset}: what it had before was deleted."
        )
    if offset > span.end:
        raise StatePointError(f"{log} ends at offset {span.end}, before {offset}.")
    if offset > span.stable:
        raise StatePointError(
            f"{log} has an open transaction at offset {span.stable}, before {offset}: nobody knows "
            f"yet what counts there. Ask again when it has ended (transaction.timeout.ms), or take "
            f"an offset up to {span.stable}."
        )
    return OffsetRange(span.start, offset)
