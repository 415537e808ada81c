"""``offset_reset=``: where a source begins without a committed offset."""

from __future__ import annotations

from datetime import timedelta

from everflow.errors import TopologyError
from everflow.setting_checks import BY_DURATION, offset_reset


def reset_of(given: object, where: str | None) -> str | None:
    """``given`` as ``auto.offset.reset`` has it; None stays None."""
    if given is None:
        return None
    if isinstance(given, timedelta):
        given = f"{BY_DURATION}PT{given.total_seconds():f}S"
    problem = offset_reset(given)
    if problem is not None:
        raise TopologyError(f"offset_reset = {given!r} {problem}", where=where)
    return str(given)
