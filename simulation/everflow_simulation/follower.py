"""`CopyFollower` over the simulated log: feeds the real state updater at a bounded rate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everflow.records import Int64, TopicPartition
from everflow_simulation.log import SimulatedLog
from everflow_simulation.scheduler import SimulatedClock

_NO_TIMES: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True)
class Chunk:
    """`everflow.state.left_out.Chunk`: only the number of its records counts, and the content
    behind them (see `SimulatedStore`)."""

    keys: Any
    values: Any
    next_position: int
    records: int
    timestamps: Int64 = field(default_factory=lambda: _NO_TIMES)


@dataclass(frozen=True)
class SimulatedRound:
    """See `everflow.kafka.reading.copy_follower.SimulatedRound`."""

    chunks: Mapping[TopicPartition, Chunk]
    gone: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class SimulatedFollower:
    """``rate`` records a second over all partitions of one role: a lagging restore lowers it.
    ``poll`` waits in virtual time until a period has passed since the last one, so that the
    followers of both roles wait together."""

    log: SimulatedLog
    clock: SimulatedClock
    rate: float
    period_ms: float
    slowdown: list[float] = field(default_factory=lambda: [1.0])
    """One number shared with the world: how much slower everything restores now."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    polled_ms: float = float("-inf")

    @property
    def far_behind(self) -> Mapping[TopicPartition, int]:
        """As it is: a slow restore is no silent leader."""
        return self.positions

    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        self.positions.update(starts)

    def unfollow(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.positions.pop(tp, None)

    def poll(
        self,
        records_max: int,
        bulk_bytes: int,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
    ) -> SimulatedRound:
        """What arrives in one period. The bounds are those of memory, which is none here."""
        missing_ms = self.polled_ms + self.period_ms - self.clock.monotonic_ms()
        if missing_ms > 0:
            self.clock.park(min(missing_ms, self.period_ms))
        self.polled_ms = self.clock.monotonic_ms()
        budget = int(self.rate * self.period_ms / 1000 / self.slowdown[0]) + 1
        stable = self.log.stable_ends(self.positions)
        waiting = sorted(
            (stable[tp] - at, tp) for tp, at in self.positions.items() if stable[tp] > at
        )
        chunks: dict[TopicPartition, Chunk] = {}
        for number, (behind, tp) in enumerate(waiting):
            share = min(behind, max(1, budget // (len(waiting) - number)))
            budget -= share
            start, end = self.positions[tp], self.positions[tp] + share
            content, _ = self.log.read(tp, start, end)
            self.positions[tp] = end
            chunks[tp] = Chunk(range(share), content or {}, end, share)
        return SimulatedRound(chunks)

    def rest(self) -> None:
        """Nothing is held open."""

    def close(self) -> None:
        """Nothing is held open."""
