"""Knows which constants of Columns were datetimes without a zone.

``F.lit(datetime(2024, 3, 10))`` is the moment that such a local time is on the machine that builds
the program: the Column says that moment, and no longer how it was written. So the ones that would
be another moment elsewhere are kept while PySpark converts them.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

from py4j import protocol

MOST = 10_000
"""Moments that are kept; of more the oldest are forgotten."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_written: dict[int, datetime] = {}
"""The datetime by its moment, in µs since 1970."""


class _Watcher:
    """A converter of py4j that converts nothing: it sees what PySpark converts."""

    def can_convert(self, value: object) -> bool:
        """Never."""
        if isinstance(value, datetime) and value.tzinfo is None:
            _keep(value)
        return False

    def convert(self, value: object, client: Any) -> Any:
        """Is not called."""
        raise NotImplementedError


def _keep(value: datetime) -> None:
    try:
        local_s = int(time.mktime(value.timetuple()))
    except (OverflowError, ValueError):  # PySpark says so
        return
    moment = local_s * 1_000_000 + value.microsecond
    if moment == (value.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1):
        return  # this machine is where UTC is: it is the same moment elsewhere
    _written[moment] = value
    while len(_written) > MOST:
        _written.pop(next(iter(_written)), None)


def any_written() -> bool:
    """Whether there were any."""
    return bool(_written)


def written_at(moment_us: int) -> datetime | None:
    """The datetime without a zone that became this moment on this machine, and would be another one
    where the local time is UTC; None: there was none."""
    return _written.get(moment_us)


if not any(isinstance(one, _Watcher) for one in protocol.INPUT_CONVERTER):
    protocol.register_input_converter(_Watcher(), prepend=True)
