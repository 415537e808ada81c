"""Where a record's time comes from: Kafka Streams' timestamp extractors, as values.

``stream(..., timestamp=...)`` and ``default.timestamp.extractor`` take them (note 032).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple


class RecordContext(NamedTuple):
    """Where a record of a source lies, its time in Kafka (ms) and its headers, in their order."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class TimestampExtractor:
    """Gives each record of a source its time, before the inputs of a task are merged by time."""

    @property
    def remembers(self) -> bool:
        """Whether it needs the partition time: the highest time of the partition's records so far,
        which is kept beside the committed offsets."""
        return False


class FailOnInvalidTimestamp(TimestampExtractor):
    """The time of the record in Kafka; a negative one stops the application. The default."""


class LogAndSkipOnInvalidTimestamp(TimestampExtractor):
    """The time of the record in Kafka; one with a negative time is dropped, counted
    (``negative-timestamp``) and told."""


class UsePartitionTimeOnInvalidTimestamp(TimestampExtractor):
    """The time of the record in Kafka; one with a negative time gets the highest time that its
    partition has had so far. A first record without a time stops the application."""

    @property
    def remembers(self) -> bool:
        """True: a record without a time gets that of its partition."""
        return True


class WallclockTimestampExtractor(TimestampExtractor):
    """The time of the machine when the record's micro-batch was planned: all its records have the
    same, and so they have when it is run again after a failure."""


@dataclass(frozen=True)
class TimeFunction(TimestampExtractor):
    """A function of the user: ``fn(key, value, record, partition_time)``, of which it is given the
    value, or the first ``takes``."""

    fn: Callable[..., Any]
    takes: int

    @property
    def remembers(self) -> bool:
        """Whether the function is given the partition time."""
        return self.takes > 3


EXTRACTORS: Mapping[str, type[TimestampExtractor]] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            FailOnInvalidTimestamp,
            LogAndSkipOnInvalidTimestamp,
            UsePartitionTimeOnInvalidTimestamp,
            WallclockTimestampExtractor,
        )
    }
)
"""Those that a setting can name."""


def extractor_named(text: str) -> TimestampExtractor | None:
    """Of ``default.timestamp.extractor``: a class by its name, with or without a module or Java's
    package before it; None for any other."""
    name = text.replace(":", ".").rpartition(".")[2]
    found = EXTRACTORS.get(name)
    return None if found is None else found()
