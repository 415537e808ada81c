"""The port through which logs are read, and the rule which implementation reads one (note 012)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from everflow.kafka.reading.log_chunk import LogChunk
from everflow.records import UNBOUNDED_BYTES, TopicPartition

UNBOUNDED_RECORDS = 1 << 62
CONNECT_S = 30.0
CHECK_CRCS = "check.crcs"
"""Kafka's setting of consumers; on by default here, as in Java's client and not in librdkafka."""

_log = logging.getLogger(__name__)


class Tap(Protocol):
    """Logs read forward from positions of its own, without a group. Owned by one thread; connects
    when first used."""

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Where it reads: of each log the offset behind what was taken."""

    def go_to(self, starts: Mapping[TopicPartition, int], timeout_s: float = CONNECT_S) -> None:
        """Read these logs from these offsets on, and no others. A log that is there already goes on
        undisturbed: reading it anew would let its tasks wait whenever another task comes or goes
        (I4). Raises RetriableError if it has to connect first and no broker answers within
        ``timeout_s`` seconds."""

    def take(
        self,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
        most_bytes: int = UNBOUNDED_BYTES,
        most_records: int = UNBOUNDED_RECORDS,
    ) -> dict[TopicPartition, LogChunk]:
        """What is there of these logs before their ends, waiting up to ``timeout_s`` seconds for
        the first of it, and the position moved behind it. A log whose position did not move is not
        in the result, one that moved over markers or aborted records has an empty chunk. A chunk
        has about ``most_bytes`` bytes of keys and values, and at least a record if it is not empty.

        Raises:
            LogStartMovedError: the position of the named log lies outside it; the others can be
            taken from on.
            RetriableError: a fault that is not waited out here. CorruptBatchError: librdkafka
                refuses a batch of the named log too; the others can be taken from on.
            FatalError: refused for good, as classified in `everflow.kafka.errors`.
            UnsupportedBatchError: only librdkafka reads one of these logs, or a batch of it is
                broken and librdkafka may be asked for a second opinion. Where it stands is in
            `positions`.
        """

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect now instead of at the first read of these topics; reads nothing, and gives up
        what was read ahead. Raises RetriableError if no broker answers within ``timeout_s``
        seconds."""

    def close(self) -> None:
        """Go to no log, and drop the connections; another `go_to` makes new ones."""


class Taps:
    """Both taps, and the rule: our own fetches read a log, three times as fast for a record's CPU.
    librdkafka has what they cannot read: logs with batches of an old format or an unknown
    compression."""

    def __init__(self, own: Tap | None, client: Tap) -> None:
        """``own``: None: librdkafka reads all."""
        self._own = own
        self.client = client
        self._unsuited: set[TopicPartition] = set()

    def own(self, logs: Iterable[TopicPartition] = ()) -> Tap | None:
        """The tap of our own fetches if it may read these logs."""
        return self._own if self._unsuited.isdisjoint(logs) else None

    def leave(self, starts: Mapping[TopicPartition, int], reason: Exception) -> None:
        """From these offsets on, these logs are left to librdkafka."""
        self._unsuited.update(starts)
        for tp, at in starts.items():
            _log.info("%s: librdkafka reads on from offset %d (%s)", tp, at, reason)

    def forget(self, logs: Iterable[TopicPartition]) -> None:
        """These logs begin anew: they may have other batches by now."""
        self._unsuited.difference_update(logs)

    def close(self) -> None:
        """Drop the connections."""
        self.client.close()
        if self._own is not None:
            self._own.close()
