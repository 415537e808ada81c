"""What the driver knows of the slots: what it wants of each, and what their keepers reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from everflow.autoscale.decision import InstanceSeen
from everflow.fleet.decision import answer, moved, shown_lines
from everflow.fleet.messages import Report, Wanted

HEARD_S = 10.0
"""A slot that has not been heard of for so long has no place."""


@dataclass
class _Place:
    since_s: float
    wanted: Wanted = Wanted.run
    newest: int = -1
    last: Report | None = None


class Places:
    """Used by the loop's thread and those of the HTTP server. ``say`` gets what is told, on
    either."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}

    def open(self, slot: int) -> None:
        """A slot is to be hosted from now on."""
        with self._lock:
            self._places[slot] = _Place(self._clock())

    def close(self, slot: int) -> Report | None:
        """Its instance has ended; its last report."""
        with self._lock:
            place = self._places.pop(slot, None)
            return None if place is None else place.last

    def want(self, slot: int, wanted: Wanted) -> None:
        """What its keeper is told from now on."""
        with self._lock:
            if slot in self._places:
                self._places[slot].wanted = wanted

    def reported(self, report: Report) -> Wanted:
        """What the keeper that reports is to do; one of no slot is to stop."""
        with self._lock:
            place = self._places.get(report.slot)
            wanted = answer(
                None if place is None else place.wanted,
                -1 if place is None else place.newest,
                report.attempt,
            )
            if place is None or report.attempt < place.newest:
                return wanted
            place.newest, place.since_s = report.attempt, self._clock()
            told = moved(place.last, report)
            # its lines are shown and not kept
            place.last = replace(report, lines=[], left_out=0)
        for line in ([told] if told else []) + shown_lines(report):
            self._say(line)
        return wanted

    def seen(self, slot: int, ending: bool) -> InstanceSeen:
        """As the loop decides by it."""
        with self._lock:
            place = self._places.get(slot)
            if place is None or place.last is None or self._silent_s(place) > HEARD_S:
                return InstanceSeen(False, None, ending)
            last = place.last
            return InstanceSeen(last.state == "RUNNING" and last.ready, last.desired, ending)

    def last(self, slot: int) -> Report | None:
        """The last report of a slot."""
        with self._lock:
            place = self._places.get(slot)
            return None if place is None else place.last

    def placed(self, slot: int) -> bool:
        """Whether some keeper speaks for the slot."""
        with self._lock:
            place = self._places.get(slot)
            return place is not None and self._without_s(place) == 0.0

    def without_s(self) -> dict[int, float]:
        """Slot -> for how long it has had no place; 0 where it has one."""
        with self._lock:
            return {slot: self._without_s(place) for slot, place in self._places.items()}

    def _without_s(self, place: _Place) -> float:
        silent_s = self._silent_s(place)
        return 0.0 if place.last is not None and silent_s <= HEARD_S else silent_s

    def _silent_s(self, place: _Place) -> float:
        return self._clock() - place.since_s
