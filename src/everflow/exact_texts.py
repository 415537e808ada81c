"""Numbers, dates and times as text: each is read as it is written, or refused.

Python's own readers take more than any format says: ``int`` takes ``1_000``, spaces and the digits
of every script, ``fromisoformat`` cuts nanoseconds. Raises ValueError, whose text says why or is
empty.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta, timezone

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]((?:[01][0-9]|2[0-3]):[0-5][0-9])"
    r"(?::([0-5][0-9])(?:\.([0-9]+))?)?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3])(?::?([0-5][0-9]))?)?"
)
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOST_DIGITS = 4_000
"""Python reads no longer ones; nothing holds them."""


def whole(text: str) -> int:
    """An integer as JSON writes it."""
    if _WHOLE.fullmatch(text) is None or len(text) > _MOST_DIGITS:
        raise ValueError
    return int(text)


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def number(text: str) -> float:
    """The nearest double to a number as JSON writes it; ``NaN``, ``Infinity`` and ``-Infinity``,
    as Java and Spark write them. ValueError also for what is too large for a double."""
    if text in _NO_NUMBERS:
        return _NO_NUMBERS[text]
    if not is_number(text) or math.isinf(found := float(text)):
        raise ValueError
    return found


def number_text(value: float) -> str:
    """Inverse of `number`."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def is_day(text: str) -> bool:
    return _DATE.fullmatch(text) is not None


def day(text: str) -> date:
    """A date, ``2024-01-31``."""
    if not is_day(text):
        raise ValueError
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError("there is no such day") from None


def moment(text: str) -> datetime:
    """A date and a time of RFC 3339, or of ISO 8601 without seconds; in UTC where it names a zone,
    else without one. ValueError also for digits beyond microseconds that are no zeros, and where
    the year in UTC is none of 1 to 9999."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError
    on, at, second, fraction, sign, hours, minutes = found.groups()
    fraction = fraction or ""
    if fraction[6:].strip("0"):
        raise ValueError("it has digits beyond microseconds, which no timestamp holds")
    day(on)
    read = datetime.fromisoformat(f"{on}T{at}:{second or '00'}.{fraction[:6].ljust(6, '0')}")
    if sign is None:
        return read.replace(tzinfo=timezone.utc) if text[-1] in "Zz" else read
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    try:
        read = read - offset if sign == "+" else read + offset
    except OverflowError:
        raise ValueError("in UTC it lies outside of the years 1 to 9999") from None
    return read.replace(tzinfo=timezone.utc)


def exact_ms(span: timedelta) -> int:
    """``span`` in ms. ValueError where it is no whole number of them."""
    ms, rest = divmod(span, timedelta(milliseconds=1))
    if rest:
        raise ValueError(f"{span!r} is not a whole number of milliseconds")
    return ms


def epoch_ms(when: datetime) -> int:
    """Ms since 1970; UTC where ``when`` names no zone. ValueError as of `exact_ms`."""
    zoned = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    try:
        return exact_ms(zoned - _EPOCH)
    except ValueError:
        raise ValueError(f"{when.isoformat()} is not a whole number of milliseconds") from None
