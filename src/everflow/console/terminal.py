"""The output of the commands: progress, errors. Text in, text out; times are passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everflow.instance.client_state import ENDED, ClientState
from everflow.user_program import printable

_SETTLED = frozenset({ClientState.RUNNING, *ENDED})


@dataclass(frozen=True)
class Sample:
    """One look at an application and at the instance here.

    ``consumed`` and ``log_end`` are the application's: committed offsets and ends summed over all
    input partitions, repartition topics included. ``tasks`` says what the tasks of this instance do
    (`everflow.instance.describe.summary`).
    """

    at_s: float
    consumed: int
    log_end: int
    tasks: str = ""


@dataclass
class Progress:
    """Samples -> the progress line. Rates are taken over the last ``window_s`` seconds. Not
    thread-safe."""

    window_s: float = 10.0
    _samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample) -> None:
        """Take a sample; times must not go back."""
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[0].at_s > self.window_s:
            self._samples.popleft()

    @property
    def records_per_s(self) -> float:
        """Records a second over the window; 0 before the second sample."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        elapsed = last.at_s - first.at_s
        return max(0, last.consumed - first.consumed) / elapsed if elapsed > 0 else 0.0

    @property
    def lag(self) -> int | None:
        """Records not yet committed; None before the first sample."""
        last = self._samples[-1] if self._samples else None
        return None if last is None else max(0, last.log_end - last.consumed)

    def line(self) -> str:
        """``45,120 records/s · lag 12,345 · here: 6 active, 2 standby``; rate and lag are of all
        instances together."""
        lag = self.lag
        parts = [
            f"{self.records_per_s:,.0f} records/s",
            "lag unknown" if lag is None else f"lag {lag:,}",
        ]
        if self._samples and self._samples[-1].tasks:
            parts.append(f"here: {self._samples[-1].tasks}")
        return " · ".join(parts)


@dataclass
class StateWait:
    """For how long an instance has been in a state that is not the one it is meant for. Not
    thread-safe."""

    state: ClientState
    since_s: float

    def text(self, state: ClientState, at_s: float, *, said: str) -> str:
        """``REBALANCING for 12 s: Joining the group``, with what was ``said`` last; empty while it
        runs and in the first second."""
        if state is not self.state:
            self.state, self.since_s = state, at_s
        elapsed = at_s - self.since_s
        if state in _SETTLED or elapsed < 1.0:
            return ""
        return f"{state.name} for {elapsed:.0f} s" + (f": {said}" if said else "")


def parse_settings(assignments: Sequence[str]) -> dict[str, str]:
    """``--set key=value`` arguments as a mapping; the last of equal keys wins.

    Raises:
        ValueError: an argument without ``=`` or without a key; the message names it.
    """
    settings: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"{assignment!r}: write it as key=value, e.g. commit.interval.ms=50")
        settings[key.strip()] = value.strip()
    return settings


def error_text(error: BaseException, code: str, more: Sequence[str] = ()) -> str:
    """``error: [code] message``, continuation lines and ``more`` indented, without control
    characters."""
    first, *rest = printable(str(error)).splitlines() or [type(error).__name__]
    further = (*rest, *printable("\n".join(more)).splitlines())
    return "\n".join([f"error: [{code}] {first}", *(f"  {line.strip()}" for line in further)])


def merge_settings(*layers: Mapping[str, object | None]) -> dict[str, object]:
    """Later layers win; None means not given."""
    merged: dict[str, object] = {}
    for layer in layers:
        merged.update({key: value for key, value in layer.items() if value is not None})
    return merged
