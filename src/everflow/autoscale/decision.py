"""What an autoscaler does next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_REST_S = 5.0
MOST_REST_S = 300.0


@dataclass(frozen=True)
class InstanceSeen:
    """An instance as it was seen last. ``settled``: it is RUNNING and processes all that is its
    own; ``desired``: what it says that there should be, None: nothing yet; ``ending``: it was told
    to end."""

    settled: bool
    desired: int | None
    ending: bool = False


def change(seen: Sequence[InstanceSeen], least: int, most: int) -> int:
    """How many instances to start, or (negative) to end, now.

    One step at a time: while an instance starts, restores or ends, what the others say is of a
    group that is about to be another one. Down it goes by one, as each takes copies with it.
    """
    present = [one for one in seen if not one.ending]
    if len(present) < least:
        return least - len(present)
    if len(present) > most:
        return -1
    if len(present) < len(seen) or not all(one.settled for one in present):
        return 0
    wanted = [one.desired for one in present if one.desired is not None]
    if not wanted:
        return 0
    target = min(most, max(least, *wanted))
    return target - len(present) if target >= len(present) else -1


def rest_s(failures: int) -> float:
    """How long no instance is started after so many failures above those that are borne."""
    return float(min(MOST_REST_S, LEAST_REST_S * 2 ** min(failures, 10)))
