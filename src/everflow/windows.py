"""Windows over time, sessions and counts: which take a record, when one is closed. In epoch ms."""

from __future__ import annotations

import datetime as dt
import operator
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from everflow.errors import TopologyError
from everflow.exact_texts import exact_ms
from everflow.foreign_names import FittingClass, Telling
from everflow.records import Int64
from everflow.user_program import user_line

_MOST_DIGITS = 30
"""More than a long has: a number that is cut to so many is too large anyway."""
Duration: TypeAlias = "str | int | dt.timedelta"
"""Text (``"5 minutes"``), ms or a timedelta; TopologyError for what is none, or cannot be one."""


def _refused(text: str) -> TopologyError:
    return TopologyError(text, where=user_line())


_UNITS_MS = {
    "ms": 1,
    "milli": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_PART = re.compile(r"\s*([0-9]+)\s*([a-z]+)\s*,?", re.IGNORECASE)


def duration_ms(duration: Duration) -> int:
    """Ms of ``"1 day 12 hours"``, ``500`` or a timedelta. TopologyError unless whole and 64
    bits."""
    if isinstance(duration, dt.timedelta):
        try:
            return exact_ms(duration)
        except ValueError as error:
            raise _refused(f"{error}; round it: timedelta(milliseconds=...)") from None
    if not isinstance(duration, str):
        return _whole_ms(duration, "a duration is text, ms or a timedelta")
    total, at, text = 0, 0, duration.strip()
    while at < len(text) or not text:
        part = _PART.match(text, at)
        unit = part.group(2).lower() if part else ""
        factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
        if part is None or factor is None:
            raise _refused(
                f"cannot read the duration {duration!r}; write '5 seconds' or '1 day 6 hours'"
            )
        total += int(part.group(1)[:_MOST_DIGITS]) * factor
        at = part.end()
    return _whole_ms(total, "a duration is text, ms or a timedelta")


def checked_ms(duration: Duration, what: str, least: int = 0, cure: str = "") -> int:
    """`duration_ms` of ``what``; TopologyError below ``least``."""
    found = duration_ms(duration)
    if found < least:
        bounds = {0: "may not be negative", 1: "is above 0"}
        bound = bounds.get(least, f"is at least {least} ms")
        raise _refused(f"{what} {bound}, found {found} ms{cure}")
    return found


def _whole_ms(value: Any, wanted: str) -> int:
    """``value`` as an int; TopologyError that says what is ``wanted`` for anything but a whole
    number that a long can hold."""
    try:
        ms = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        ms = None
    if ms is None:
        raise _refused(f"{wanted}, found {value!r} ({type(value).__name__})")
    if ms >= 1 << 63:
        raise _refused(
            f"{ms} ms are more than a long can hold; write '5 seconds' or '1 day 6 hours'"
        )
    return ms


def _require_ms(windows: Any, *times: int) -> None:
    """TopologyError unless ``times`` and the grace are whole ms, and the grace is not negative."""
    wanted = f"{type(windows).__name__}(...) takes whole milliseconds; write {windows._WRITTEN}"
    for value in (*times, windows.grace_ms):
        _whole_ms(value, wanted)
    if windows.grace_ms < 0:
        raise _refused(
            f"a grace may not be negative, found {windows.grace_ms} ms; it is how long a window "
            "takes late records, grace('5 minutes'); leave it out for none"
        )


class Windowed(NamedTuple):
    """A key with its window: the form of windowed keys in Python functions, queries, serdes and
    tests. Times in ms (epoch).

    A time window is ``[start, end)``, a sliding window ``[start, end]``. A session is ``[start,
    end]``, from its first to its last record. In Columns the fields have the same names:
    ``F.col("key.start")``.
    """

    key: Any
    start: int
    end: int


@dataclass(frozen=True)
class TimeWindows(Telling, metaclass=FittingClass):
    """Windows ``[start, start + size)`` that start at every multiple of ``advance_ms``.

    Tumbling if the advance equals the size, hopping if it is smaller. ``grace_ms``: how long after
    its end, in stream time, a window still accepts records. Durations are text (``"5 minutes"``),
    ms or a timedelta; others raise TopologyError.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int = 0

    _WRITTEN: ClassVar[str] = "TimeWindows.of_size('1 hour')"
    _FOR_OPERATORS: ClassVar[tuple[str, ...]] = ("expand", "is_open")

    def __post_init__(self) -> None:
        _require_ms(self, self.size_ms, self.advance_ms)
        if self.size_ms <= 0:
            raise _refused(f"a window takes a size above zero, found {self.size_ms} ms")
        if not 0 < self.advance_ms <= self.size_ms:
            raise _refused(
                f"windows of {self.size_ms} ms advance by 1 to {self.size_ms} ms, found "
                f"{self.advance_ms} ms"
            )

    @staticmethod
    def of_size(size: Duration) -> TimeWindows:
        """Tumbling windows without grace."""
        size_ms = duration_ms(size)
        return TimeWindows(size_ms, size_ms)

    @staticmethod
    def of_size_with_no_grace(size: Duration) -> TimeWindows:
        """As `of_size`; Kafka Streams' name (KIP-633)."""
        return TimeWindows.of_size(size)

    @staticmethod
    def of_size_and_grace(size: Duration, grace: Duration) -> TimeWindows:
        """Tumbling windows with a grace; Kafka Streams' name (KIP-633)."""
        return TimeWindows.of_size(size).grace(grace)

    def advance_by(self, advance: Duration) -> TimeWindows:
        """Hopping windows: a window starts every ``advance``."""
        return replace(self, advance_ms=duration_ms(advance))

    def grace(self, grace: Duration) -> TimeWindows:
        """The same windows, but they accept records until stream time reaches their end +
        ``grace``."""
        return replace(self, grace_ms=duration_ms(grace))

    @property
    def retention_ms(self) -> int:
        """The default and shortest retention of a store of these windows: size + grace."""
        return self.size_ms + self.grace_ms

    def expand(self, timestamps: Int64) -> tuple[Int64, Int64]:
        """Pairs (index into ``timestamps``, window start): all windows of all records, by record,
        then start. Windows that would start before 0 are left out, as in Kafka Streams; so records
        before 0 are in none."""
        per_record = -(-self.size_ms // self.advance_ms)
        first = (
            np.maximum(timestamps - self.size_ms + self.advance_ms, 0)
            // self.advance_ms
            * self.advance_ms
        )
        if per_record == 1:
            rows = (timestamps >= 0).nonzero()[0]  # no window begins before 0
            return rows, first if len(rows) == len(first) else first[rows]
        starts = first[:, None] + np.arange(per_record, dtype=np.int64) * self.advance_ms
        inside = starts <= timestamps[:, None]
        return np.nonzero(inside)[0].astype(np.int64), starts[inside]

    def is_open(self, starts: Int64, stream_times: Int64) -> npt.NDArray[np.bool_]:
        """True where the window that starts at ``starts`` takes a record while stream time is
        ``stream_times``."""
        return starts + self.size_ms > stream_times - self.grace_ms

    def __str__(self) -> str:
        advance = "" if self.advance_ms == self.size_ms else f" every {self.advance_ms} ms"
        return f"{self.size_ms} ms{advance}, grace {self.grace_ms} ms"


@dataclass(frozen=True)
class JoinWindows(Telling, metaclass=FittingClass):
    """Which records of two streams match: those with the same key and times close to each other.

    A left record at time t matches right records from t - ``before_ms`` to t + ``after_ms``, both
    included. ``grace_ms``: how long after the end of its window, in stream time, a record still
    waits for its match (the rule is in `everflow.operators.joins.stream_stream`). Durations are
    text (``"5 minutes"``), ms or a timedelta; others raise TopologyError.
    """

    before_ms: int
    after_ms: int
    grace_ms: int = 0

    _WRITTEN: ClassVar[str] = "JoinWindows.of_time_difference('5 minutes')"

    def __post_init__(self) -> None:
        _require_ms(self, self.before_ms, self.after_ms)
        if self.before_ms + self.after_ms < 0:
            raise _refused(
                f"a join's window ends {self.after_ms} ms after the left record and begins "
                f"{self.before_ms} ms before it: its end is before its beginning"
            )

    @staticmethod
    def of_time_difference(difference: Duration) -> JoinWindows:
        """Matches records that are at most ``difference`` apart, without grace."""
        ms = checked_ms(difference, "a time difference")
        return JoinWindows(ms, ms)

    @staticmethod
    def of_time_difference_with_no_grace(difference: Duration) -> JoinWindows:
        """As `of_time_difference`; Kafka Streams' name (KIP-633)."""
        return JoinWindows.of_time_difference(difference)

    @staticmethod
    def of_time_difference_and_grace(difference: Duration, grace: Duration) -> JoinWindows:
        """As `of_time_difference`, with a grace; Kafka Streams' name (KIP-633)."""
        return JoinWindows.of_time_difference(difference).grace(grace)

    def before(self, difference: Duration) -> JoinWindows:
        """The right record may be at most ``difference`` earlier than the left one. A negative
        ``difference``: it must be at least that much later."""
        return replace(self, before_ms=duration_ms(difference))

    def after(self, difference: Duration) -> JoinWindows:
        """The right record may be at most ``difference`` later than the left one. A negative
        ``difference``: it must be at least that much earlier."""
        return replace(self, after_ms=duration_ms(difference))

    def grace(self, grace: Duration) -> JoinWindows:
        """The same windows, but a record waits for its match until stream time passes its window's
        end + ``grace``."""
        return replace(self, grace_ms=duration_ms(grace))

    @property
    def size_ms(self) -> int:
        """The distance between the earliest and the latest right record that match a left one."""
        return self.before_ms + self.after_ms

    def __str__(self) -> str:
        return (
            f"from {self.before_ms} ms before to {self.after_ms} ms after, grace {self.grace_ms} ms"
        )


@dataclass(frozen=True)
class SlidingWindows(Telling, metaclass=FittingClass):
    """Windows of a key's records that are at most ``difference_ms`` apart, both ends included. A
    record at time t makes the window ``[t - difference_ms, t]``, and ``[t + 1, t + 1 +
    difference_ms]`` once that contains a record (KIP-450).

    A record counts in every window that contains its time. Records before ``difference_ms`` share
    the window ``[0, difference]``. ``grace_ms``: how long after its end, in stream time, a window
    still accepts records. Durations are text (``"5 minutes"``), ms or a timedelta; others raise
    TopologyError.
    """

    difference_ms: int
    grace_ms: int = 0

    _WRITTEN: ClassVar[str] = "SlidingWindows.of_time_difference_and_grace('5 minutes', '1 minute')"

    def __post_init__(self) -> None:
        _require_ms(self, self.difference_ms)
        if self.difference_ms < 0:
            raise _refused(f"a time difference may not be negative, found {self.difference_ms} ms")

    @staticmethod
    def of_time_difference(difference: Duration) -> SlidingWindows:
        """Windows of records that are at most ``difference`` apart, without grace."""
        return SlidingWindows(duration_ms(difference))

    @staticmethod
    def of_time_difference_with_no_grace(difference: Duration) -> SlidingWindows:
        """As `of_time_difference`; Kafka Streams' name (KIP-633)."""
        return SlidingWindows.of_time_difference(difference)

    @staticmethod
    def of_time_difference_and_grace(difference: Duration, grace: Duration) -> SlidingWindows:
        """As `of_time_difference`, with a grace; Kafka Streams' name (KIP-633)."""
        return SlidingWindows.of_time_difference(difference).grace(grace)

    def grace(self, grace: Duration) -> SlidingWindows:
        """The same windows, but they accept records until stream time passes their end +
        ``grace``."""
        return replace(self, grace_ms=duration_ms(grace))

    @property
    def retention_ms(self) -> int:
        """The default and shortest retention of a store of these windows: twice the difference +
        grace, because the windows of a late record are computed from earlier windows."""
        return 2 * self.difference_ms + self.grace_ms

    def __str__(self) -> str:
        return f"sliding over {self.difference_ms} ms, grace {self.grace_ms} ms"


@dataclass(frozen=True)
class CountWindows(Telling, metaclass=FittingClass):
    """Windows of ``size`` successive records of a key, whatever their times.

    A key's records are numbered from 0 in processing order, including those with a null value. A
    window ``[start, end)`` of record numbers starts at every multiple of ``step``: tumbling if the
    step equals the size, hopping if it is smaller. A window is complete with its last record, and
    no record is late.

    Raises TopologyError if ``size`` or ``step`` is no number of records.
    """

    size: int
    step: int

    _WRITTEN: ClassVar[str] = "CountWindows.of_size(100)"

    def __post_init__(self) -> None:
        for value in (self.size, self.step):
            if isinstance(value, bool) or not isinstance(value, int):
                raise _refused(
                    f"CountWindows(...) takes numbers of records, found {value!r}; write "
                    f"{self._WRITTEN}"
                )
        if self.size < 1:
            raise _refused(f"a count window has at least one record, found {self.size}")
        if not 0 < self.step <= self.size:
            raise _refused(
                f"windows of {self.size} records advance by 1 to {self.size} of them, found "
                f"{self.step}"
            )

    @staticmethod
    def of_size(size: int) -> CountWindows:
        """Tumbling windows of ``size`` records of a key."""
        return CountWindows(size, size)

    def advance_by(self, step: int) -> CountWindows:
        """Hopping windows: a window starts every ``step`` records."""
        return replace(self, step=step)

    @property
    def of_numbers(self) -> TimeWindows:
        """The same windows as `TimeWindows`, with record numbers as times."""
        return TimeWindows(self.size, self.step)

    def __str__(self) -> str:
        advance = "" if self.step == self.size else f" every {self.step}"
        return f"{self.size} records{advance}"


@dataclass(frozen=True)
class SessionWindows(Telling, metaclass=FittingClass):
    """Sessions of a key: windows ``[start, end]`` of records with no gap of more than ``gap_ms``
    between them.

    A record opens a session, extends one, or merges several; both ends are times of records.
    ``grace_ms``: how long after a session's end + gap, in stream time, it still accepts records
    (KIP-94, KIP-328). Durations are text (``"5 minutes"``), ms or a timedelta; others raise
    TopologyError.
    """

    gap_ms: int
    grace_ms: int = 0

    _WRITTEN: ClassVar[str] = "SessionWindows.of_inactivity_gap('5 minutes')"

    def __post_init__(self) -> None:
        _require_ms(self, self.gap_ms)
        if self.gap_ms < 0:
            raise _refused(f"the gap between sessions may not be negative, found {self.gap_ms} ms")

    @staticmethod
    def of_inactivity_gap(gap: Duration) -> SessionWindows:
        """Sessions that end when a key has no records for longer than ``gap``, without grace."""
        return SessionWindows(duration_ms(gap))

    @staticmethod
    def of_inactivity_gap_with_no_grace(gap: Duration) -> SessionWindows:
        """As `of_inactivity_gap`; Kafka Streams' name (KIP-633)."""
        return SessionWindows.of_inactivity_gap(gap)

    @staticmethod
    def of_inactivity_gap_and_grace(gap: Duration, grace: Duration) -> SessionWindows:
        """Sessions with a grace; Kafka Streams' name (KIP-633)."""
        return SessionWindows.of_inactivity_gap(gap).grace(grace)

    def grace(self, grace: Duration) -> SessionWindows:
        """The same sessions, accepting records until stream time passes their end + gap +
        ``grace``."""
        return replace(self, grace_ms=duration_ms(grace))

    @property
    def retention_ms(self) -> int:
        """The default and shortest retention of a store of these sessions: gap + grace."""
        return self.gap_ms + self.grace_ms

    def __str__(self) -> str:
        return f"sessions with a gap of {self.gap_ms} ms, grace {self.grace_ms} ms"
