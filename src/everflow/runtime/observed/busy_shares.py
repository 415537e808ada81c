"""How busy stream threads were in the last half minute, the batches that run included. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BUSY_MS = 30_000


@dataclass
class BusyShares:
    """Owned by one thread; whoever else reads `of` may get the share before."""

    _samples: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def note(
        self, now_ms: float, done_s: Mapping[int, float], since_ms: Mapping[int, float | None]
    ) -> None:
        """Look at the threads, by number. ``done_s``: seconds in batches that have ended;
        ``since_ms``: when the one that runs began (monotonic), None where none runs. A batch of a
        minute is told by its end only: until then its thread would look idle."""
        for thread in done_s.keys() | since_ms.keys():
            since = since_ms.get(thread)
            running_s = 0.0 if since is None else max(0.0, now_ms - since) / 1000
            seconds = done_s.get(thread, 0.0) + running_s
            samples = self._samples.setdefault(thread, [])
            if samples:
                # One that ends right now may be in both: no thread is busy for longer than it was.
                last_ms, last = samples[-1]
                seconds = min(max(seconds, last), last + (now_ms - last_ms) / 1000)
            keep(samples, now_ms, seconds)

    def of(self, thread: int) -> float:
        """Share of the time since the oldest look that it was in batches (0 to 1)."""
        samples = self._samples.get(thread, [])
        if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
            return 0.0
        (began_ms, before), (ended_ms, after) = samples[0], samples[-1]
        return min(1.0, (after - before) * 1000 / (ended_ms - began_ms))


def keep(samples: list[tuple[float, float]], now_ms: float, value: float) -> None:
    """One more; of the older ones those of the last half minute, and the one before."""
    samples.append((now_ms, value))
    while len(samples) > 2 and samples[1][0] <= now_ms - BUSY_MS:
        samples.pop(0)
