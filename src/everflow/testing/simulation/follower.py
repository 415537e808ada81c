"""`kafka.log_follower.LogFollower` over the simulated log: hands changelog records to the real state updater at a bounded rate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everflow.records import Int64, TopicPartition
from everflow.testing.simulation.log import SimulatedLog
from everflow.testing.simulation.scheduler import SimulatedClock

_NO_TIMES: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True)
class Chunk:
    """`restoration.LogChunk`: only the number of its records counts, and the content behind them (`SimulatedStore.load_chunk`)."""

    keys: Any
    values: Any
    next_position: int
    timestamps: Int64 = field(default_factory=lambda: _NO_TIMES)


@dataclass(frozen=True)
class FollowedRound:
    """See `everflow.kafka.log_follower.FollowedRound`."""

    chunks: Mapping[TopicPartition, Chunk]
    gone: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass
class SimulatedFollower:
    """``rate()`` records a second over all partitions: a lagging restore lowers it. ``poll`` waits in virtual time."""

    log: SimulatedLog
    clock: SimulatedClock
    rate: float
    period_ms: float
    slowdown: list[float] = field(default_factory=lambda: [1.0])
    """One number shared with the world: how much slower everything restores now."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)

    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        self.positions.update(starts)

    def unfollow(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.positions.pop(tp, None)

    def poll(self, records_max: int, timeout_s: float) -> FollowedRound:
        """What arrives in one period. ``records_max`` bounds memory, which is none here."""
        self.clock.park(self.period_ms)
        budget = int(self.rate * self.period_ms / 1000 / self.slowdown[0]) + 1
        ends = self.log.stable_ends(self.positions)
        waiting = sorted((ends[tp] - at, tp) for tp, at in self.positions.items() if ends[tp] > at)
        chunks: dict[TopicPartition, Chunk] = {}
        for number, (behind, tp) in enumerate(waiting):
            share = min(behind, max(1, budget // (len(waiting) - number)))
            budget -= share
            start, end = self.positions[tp], self.positions[tp] + share
            content, _ = self.log.read(tp, start, end)
            self.positions[tp] = end
            chunks[tp] = Chunk(range(share), content or {}, end)
        return FollowedRound(chunks)

    def close(self) -> None:
        """Nothing is held open."""
