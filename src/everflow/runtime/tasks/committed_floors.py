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
"""By then the markers of a transaction have landed: an offset that was committed so long ago is
told without waiting for those that are pending, and records are deleted behind that one only."""


class Floor(NamedTuple):
    """At least ``offset`` is committed; ``witness``: who knows that."""

    offset: int
    witness: str


class WentBack(NamedTuple):
    """``told``: what the coordinator says, None for nothing; ``floor``: what was committed."""

    told: int | None
    floor: Floor


@dataclass
class _Known:
    """Of one partition: the floor, and the one that was it `SETTLED_MS` ago or longer."""

    latest: Floor
    settling: Floor
    since_ms: float
    settled: Floor | None = None

    def look(self, now_ms: float) -> None:
        if now_ms - self.since_ms >= SETTLED_MS:
            self.settled = _higher(self.settled or self.settling, self.settling)
            self.settling, self.since_ms = self.latest, now_ms


@dataclass
class CommittedFloors:
    """Of one process; any thread may call. Floors only rise, but by `replaced`."""

    clock: Clock
    _known: dict[TopicPartition, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def raised(self, offsets: Mapping[TopicPartition, int], witness: str = HERE) -> None:
        """These, or later ones, are committed: the brokers have confirmed it."""
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            for tp, offset in offsets.items():
                floor = Floor(offset, witness)
                known = self._known.setdefault(tp, _Known(floor, floor, now_ms))
                known.look(now_ms)
                known.latest = _higher(known.latest, floor)
                if witness != HERE:  # it was committed long ago
                    known.settled = _higher(known.settled or floor, floor)

    def replaced(self, offsets: Mapping[TopicPartition, int]) -> None:
        """As `raised`, at least once: this process has just committed them, lower ones too. A task
        that is recovered while its offsets wait for the group begins before those, which are
        committed all the same, and then commits where it is."""
        with self._lock:
            for tp, offset in offsets.items():
                if tp in self._known and offset < self._known[tp].latest.offset:
                    del self._known[tp]
        self.raised(offsets)

    def settled(self) -> dict[TopicPartition, Floor]:
        """Those of which no marker is on its way any more."""
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            for known in self._known.values():
                known.look(now_ms)
            found = {tp: known.settled for tp, known in self._known.items()}
        return {tp: floor for tp, floor in found.items() if floor is not None}

    def went_back(
        self, told: Mapping[TopicPartition, CommittedOffset], asked: Collection[TopicPartition]
    ) -> dict[TopicPartition, WentBack]:
        """Those of ``asked`` whose stable offset lies below its floor, or is gone although this
        process saw it committed: a group with members loses none. Between two lives of a process
        offsets may have expired, or were deleted."""
        with self._lock:
            floors = {tp: self._known[tp].latest for tp in asked if tp in self._known}
        return _below(floors, told)

    def others_went_back(
        self, told: Mapping[TopicPartition, CommittedOffset], asked: Collection[TopicPartition]
    ) -> dict[TopicPartition, WentBack]:
        """As `went_back`, of offsets that may have later ones pending: below what has settled."""
        return _below({tp: floor for tp, floor in self.settled().items() if tp in asked}, told)


def _higher(one: Floor, other: Floor) -> Floor:
    """Of two with the same offset, the one that is of this life says more."""
    return max(one, other, key=lambda floor: (floor.offset, floor.witness == HERE))


def _below(
    floors: Mapping[TopicPartition, Floor], told: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, WentBack]:
    """Gone ones included, where they were seen in this life."""
    found = {}
    for tp, floor in floors.items():
        if tp in told and told[tp].offset < floor.offset:
            found[tp] = WentBack(told[tp].offset, floor)
        elif tp not in told and floor.witness == HERE:
            found[tp] = WentBack(None, floor)
    return found
