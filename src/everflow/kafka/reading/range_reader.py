"""Reads exact ranges of several partitions into columns: the resident step's source (note 004).

Two ways, batch by batch: librdkafka for small ranges, because it fetches ahead and has the records of the tail here already when
the driver asks for them (`TailReader`); whole fetch responses for large ones, because an object per record costs more than
everything that is done with the record (`StreamReader`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from everflow.kafka.reading.fetch_connection import bulk_settings
from everflow.kafka.reading.log_columns import Read
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.kafka.reading.stream_reader import StreamReader
from everflow.kafka.reading.tail_reader import TailReader
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TopicPartition

_log = logging.getLogger(__name__)

TAIL_RECORDS = 20_000
"""Up to here librdkafka's messages cost less than the switch: 30 ms."""


class RangeReader:
    """Connections over the partitions it is asked for; owned by one thread."""

    def __init__(
        self,
        client: Mapping[str, Any],
        group: str,
        read_committed: bool,
        headers: bool = False,
        *,
        tail_records: int = TAIL_RECORDS,
    ) -> None:
        """``client``: librdkafka properties. ``group``: a group id, never joined. ``headers``: whether records' headers are read.
        ``tail_records``: up to so many offsets, librdkafka reads."""
        self._tail = TailReader(client, group, read_committed, headers)
        settings = bulk_settings(client)
        self._stream = None if settings is None else StreamReader(settings, read_committed, headers)
        self._tail_records = tail_records

    def read(self, ranges: Mapping[TopicPartition, OffsetRange], timeout_s: float, most_bytes: int = UNBOUNDED_BYTES) -> Read:
        """The records of ``ranges`` in offset order, by partition; ranges follow one another except after a failure.

        It ends early where keys and values have about ``most_bytes`` bytes, with one record at least of each range that has one:
        then the next range begins where the read ended.

        Raises RetriableError if they do not come within ``timeout_s`` seconds (an end beyond the last stable offset never comes),
        LogStartMovedError if a range begins outside the log, FatalError as classified in `everflow.kafka.errors`; after any of
        them, `close` and make another reader.
        """
        large = sum(max(0, wanted.end - wanted.start) for wanted in ranges.values()) > self._tail_records
        if self._stream is None or not (large or self._stream.ahead):
            return self._tail.read(ranges, timeout_s, most_bytes)
        try:
            read = self._stream.read(ranges, timeout_s, most_bytes)
        except UnsupportedBatchError as reason:
            _log.info("librdkafka reads large batches too from now on (%s)", reason)
            self._stream.close()
            self._stream = None
            return self._tail.read(ranges, timeout_s, most_bytes)
        if large:
            self._tail.rest()
        else:  # the first small one after large ones was under way already; librdkafka begins behind it
            self._stream.rest()
            self._tail.go_to(read.ends)
        return read

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect now instead of at the first range of these topics. Raises RetriableError if no broker answers within
        ``timeout_s`` s."""
        self._tail.warm_up(topics, timeout_s)
        if self._stream is not None:
            self._stream.connect(timeout_s)

    def close(self) -> None:
        """Drop the connections."""
        self._tail.close()
        if self._stream is not None:
            self._stream.close()
