"""Says how long a closing instance goes on until others have hot copies (D8), and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping

DRAIN_SHARE = 0.8
"""Of a close's time-out; the rest is for ending."""
DRAIN_WITHOUT_BROKER_MS = 3_000.0
LOOK_S = 0.1


def leaves(leave_group: bool | None, *, static: bool) -> bool:
    """Whether a member that ends leaves its group (KIP-812): None as is usual, a static one
    stays."""
    return not static if leave_group is None else leave_group


def drain_limit(drain_s: float, drain_timeout_s: float) -> str:
    """What ends a drain after ``drain_s`` seconds: ``drain.timeout.ms``, or the share of a close's
    time-out where that is less."""
    return (
        "drain.timeout.ms"
        if drain_s >= drain_timeout_s
        else f"{DRAIN_SHARE:.0%} of close(timeout={drain_s / DRAIN_SHARE:g})"
    )


def drained_or_ended(
    await_drained: Callable[[float], bool], ended: Mapping[str, Callable[[], bool]]
) -> str | None:
    """Wait until ``await_drained`` (seconds) says that all is handed over; the first reason that
    applies meanwhile, else None."""
    while not await_drained(LOOK_S):
        for reason, applies in ended.items():
            if applies():
                return reason
    return None
