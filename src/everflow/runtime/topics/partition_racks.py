"""Finds the racks that hold a replica of each partition, for the rack-aware assignor (KIP-925)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from everflow.clock import Clock
from everflow.errors import EverflowError
from everflow.records import TopicPartition

log = logging.getLogger("everflow")

PERIOD_MS = 60_000.0


class PartitionRacks:
    """`membership.assignor.PartitionRacks`. ``read(topics)`` asks the brokers. `refresh` blocks;
    `racks` does not."""

    def __init__(
        self,
        read: Callable[[Collection[str]], Mapping[TopicPartition, frozenset[str]]],
        topics: Collection[str],
        clock: Clock,
    ) -> None:
        self._read = read
        self._topics = topics
        self._clock = clock
        self._racks: Mapping[TopicPartition, frozenset[str]] = {}
        self._read_ms = float("-inf")

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        """As of the last refresh; what is not known is left out."""
        return self._racks

    def refresh(self) -> None:
        """Ask anew, if the last answer is older than a minute: replicas move seldom."""
        now_ms = self._clock.monotonic_ms()
        if not self._topics or now_ms - self._read_ms < PERIOD_MS:
            return
        self._read_ms = now_ms
        try:
            self._racks = self._read(self._topics)
        except EverflowError as error:
            log.warning("The racks of the partitions cannot be read: %s", error)
