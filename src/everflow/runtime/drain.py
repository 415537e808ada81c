"""How long a closing instance goes on processing until others have hot copies of its tasks (D8), and which setting says so."""

from __future__ import annotations

DRAIN_SHARE = 0.8
"""Of a close's time-out; the rest is for ending."""


def drain_limit(drain_s: float, drain_timeout_s: float) -> str:
    """What ends a drain after ``drain_s`` seconds: ``drain.timeout.ms``, or the share of a close's time-out where that is less."""
    return "drain.timeout.ms" if drain_s >= drain_timeout_s else f"{DRAIN_SHARE:.0%} of close(timeout={drain_s / DRAIN_SHARE:g})"
