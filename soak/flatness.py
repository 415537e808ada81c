"""Whether a figure grew over a run: pure.

A straight line through the samples behind the warm-up (Theil and Sen: the median of the slopes of
all pairs, which a rebalance's peak does not move), against how far the samples lie from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

NOISE_TIMES = 2.0
"""How many standard deviations of the samples around the line the line may rise."""
LEAST_SHARE = 0.03
"""...or this share of the level, whichever is more: a page more or less is no growth."""
_NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True)
class Trend:
    """``level``: the median; ``growth``: by how much the line rises from the first to the last
    sample; ``per_hour``: in an hour; ``noise``: how much of it would be none."""

    level: float
    growth: float
    per_hour: float
    noise: float

    @property
    def flat(self) -> bool:
        """Whether it did not grow."""
        return self.growth <= self.noise


def trend(at_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Of at least three samples; ValueError of fewer."""
    if len(values) < 3:
        raise ValueError(f"{len(values)} samples tell no trend: run for longer")
    times, seen = np.asarray(at_s, float), np.asarray(values, float)
    first, second = np.triu_indices(len(times), 1)
    slope = float(np.median((seen[second] - seen[first]) / (times[second] - times[first])))
    around: Numbers = seen - slope * times
    spread = _NORMAL * float(np.median(np.abs(around - np.median(around))))
    level = float(np.median(seen))
    growth = slope * float(times[-1] - times[0])
    return Trend(level, growth, slope * 3_600, max(NOISE_TIMES * spread, LEAST_SHARE * level))
