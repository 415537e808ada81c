"""Follows topics from given offsets on, committed records only, and keeps what it reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.records import TopicPartition

_WAIT_S = 0.2


class RawWritten(NamedTuple):
    """A record as it is in Kafka."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class WrittenRecords:
    """``settings``: librdkafka's, of a reader; ``starts``: of every partition to follow. One thread
    at a time uses it. Raises EverflowError for what the broker refuses."""

    def __init__(self, settings: Mapping[str, Any], starts: Mapping[TopicPartition, int]) -> None:
        self.records: dict[TopicPartition, list[RawWritten]] = {tp: [] for tp in starts}
        self.count = 0
        self._tap = FetchTap.over(settings)
        self._tap.go_to(starts)

    def read(self, wait_s: float = 0.0) -> None:
        """Take what has come; if there is nothing, wait for it so long."""
        found = self._tap.take(dict.fromkeys(self.records, sys.maxsize), wait_s)
        for tp, chunk in found.items():
            self.count += chunk.records
            rows = zip(
                chunk.offsets.tolist(),
                chunk.keys,
                chunk.values,
                chunk.timestamps.tolist(),
                strict=True,
            )
            self.records[tp] += [RawWritten(*row) for row in rows]

    def read_to(self, ends: Mapping[TopicPartition, int], timeout_s: float) -> bool:
        """Read until all these offsets; False if that took longer."""
        deadline = time.monotonic() + timeout_s
        while any(self._tap.positions[tp] < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            self.read(_WAIT_S)
        return True

    def close(self) -> None:
        self._tap.close()
