"""Fetches of one partition, one ahead of what was handed out: all bulk readers go through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kafka.errors as client_errors

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.group_channel import classify
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import Answer, FetchConnection
from everflow.kafka.reading.record_batches import Batch
from everflow.records import TopicPartition


class PartitionFetches:
    """The fetches from an offset on, nothing behind ``end`` (None: for ever). Owned by the connection's thread."""

    def __init__(self, connection: FetchConnection, tp: TopicPartition, start: int, end: int | None, doing: str) -> None:
        self._connection = connection
        self._tp = tp
        self._end = end
        self._doing = doing
        self._coming: Any = None
        self.position = start
        """Offset behind what was handed out."""

    def send(self) -> None:
        """See to it that a fetch is under way."""
        if self._coming is None:
            self._coming = self._connection.fetch(self._tp, self.position)

    def ready(self, timeout_s: float) -> bool:
        """Whether `next_batches` finds an answer there, be it a fault; waits for it up to ``timeout_s`` seconds."""
        self.send()
        return self._connection.arrived(self._coming, timeout_s)

    def next_batches(self, clock: Callable[[], float], stall_timeout_s: float) -> tuple[bytes, list[Batch]]:
        """The next bytes and those of their batches that count; moves the position and sends the fetch behind it.

        The first batch may begin before the position, the last one may end behind ``end``.

        Raises:
            LogStartMovedError: the position lies outside the log.
            RetriableError: nothing for ``stall_timeout_s`` seconds.
            FatalError: refused for good.
            UnsupportedBatchError: a batch of an old format.
        """
        deadline = clock() + stall_timeout_s
        while True:
            answer = self._answer(deadline - clock())
            if answer is not None:
                found = record_batches.batches(answer.records)
                behind = found[-1].next_offset if found else self.position
                if behind > self.position:
                    begun, self.position = self.position, behind
                    if self._end is None or behind < self._end:
                        self.send()
                    seen = record_batches.committed(answer.records, found, answer.aborted)
                    return answer.records, [batch for batch in seen if batch.next_offset > begun and self._wanted(batch)]
            if clock() > deadline:
                raise RetriableError(
                    f"{self._doing}: nothing came behind {self.position} for {stall_timeout_s:g} s. "
                    "Either the broker is away or a transaction is still open below the end."
                )

    def _wanted(self, batch: Batch) -> bool:
        return self._end is None or batch.base_offset < self._end

    def _answer(self, timeout_s: float) -> Answer | None:
        """The answer to the fetch at the position; None if it failed for a passing reason, which was attended to."""
        self.send()
        coming, self._coming = self._coming, None
        try:
            return self._connection.answer(coming, timeout_s)
        except client_errors.OffsetOutOfRangeError as failure:
            if self._connection.back_to_leader(self._tp):
                return None  # a replica may be behind; the leader decides
            raise LogStartMovedError(f"{self._tp}: offset {self.position} is outside the log") from failure
        except client_errors.KafkaError as failure:
            problem = classify(failure, f"{self._doing}, at {self.position}")
            if not isinstance(problem, RetriableError) or isinstance(failure, client_errors.SaslAuthenticationFailedError):
                raise problem from failure
            self._connection.refresh(self._tp, timeout_s)
            return None
