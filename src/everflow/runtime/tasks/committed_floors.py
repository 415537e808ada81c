"""Knows how far the group has committed at least: a coordinator that tells less is not believed.

Committed offsets only grow while the group lives. A coordinator that lost some (a load that was cut
off, an unclean election of its log) tells old ones, and whoever begins there processes twice what
lies between (note 064).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from everflow.clock import Clock
from everflow.records import CommittedOffset, TopicPartition

HERE = "this instance has seen that"
ON_DISK = "a store in the state folder has applied it"
PURGED = "records are deleted only behind what is committed"
SETTLED_MS = 10_000.0
"""By then the markers of a transaction have landed: an offset of another task that was committed so
long ago is told without waiting for those that are pending."""


class Floor(NamedTuple):
    """At least ``offset`` is committed; ``witness``: who knows that."""

    offset: int
    witness: str


class WentBack(NamedTuple):
    """``told``: what the coordinator says, None for nothing; ``floor``: what was committed."""

    told: int | None
    floor: Floor


Floors = dict[TopicPartition, Floor]


@dataclass
class CommittedFloors:
    """Of one process; any thread may call. Floors only rise."""

    clock: Clock
    _floors: Floors = field(default_factory=dict)
    _settling: Floors = field(default_factory=dict)
    _settled: Floors = field(default_factory=dict)
    _next_ms: float = 0.0
    """When those that settle have settled."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def raised(self, offsets: Mapping[TopicPartition, int], witness: str = HERE) -> None:
        """These, or later ones, are committed: the brokers have confirmed it."""
        with self._lock:
            self._settle()
            found = {tp: Floor(offset, witness) for tp, offset in offsets.items()}
            _raise(self._floors, found)
            if witness != HERE:  # it was committed long ago
                _raise(self._settled, found)

    def _settle(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._next_ms:
            _raise(self._settled, self._settling)
            self._settling, self._next_ms = dict(self._floors), now_ms + SETTLED_MS

    def settled(self) -> list[TopicPartition]:
        """Partitions that `others_went_back` can say something of."""
        with self._lock:
            self._settle()
            return sorted(self._settled)

    def went_back(
        self, told: Mapping[TopicPartition, CommittedOffset], asked: Collection[TopicPartition]
    ) -> dict[TopicPartition, WentBack]:
        """Those of ``asked`` whose stable offset lies below its floor, or is gone although this
        process saw it committed: a group with members loses none. Between two lives of a process
        offsets may have expired, or were deleted."""
        with self._lock:
            floors = {tp: self._floors[tp] for tp in asked if tp in self._floors}
        lower = _below(floors, told)
        gone = {
            tp: WentBack(None, floor)
            for tp, floor in floors.items()
            if tp not in told and floor.witness == HERE
        }
        return {**lower, **gone}

    def others_went_back(
        self, told: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, WentBack]:
        """Those whose offset, maybe with later ones pending, lies below what has settled."""
        with self._lock:
            self._settle()
            return _below(self._settled, told)


def _raise(floors: Floors, found: Mapping[TopicPartition, Floor]) -> None:
    for tp, floor in found.items():
        known = floors.get(tp)
        # Of two with the same offset the one in this life says more.
        if known is None or _said(floor) > _said(known):
            floors[tp] = floor


def _said(floor: Floor) -> tuple[int, bool]:
    return floor.offset, floor.witness == HERE


def _below(
    floors: Floors, told: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, WentBack]:
    return {
        tp: WentBack(told[tp].offset, floor)
        for tp, floor in floors.items()
        if tp in told and told[tp].offset < floor.offset
    }
