"""Pacing: how late records are, and what batches take of the processor, by the rule after which
stream threads begin batches. On virtual time (`everflow_simulation.pacing`): without a broker, and
without the noise of the machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.results import Measurement
from bench.systems import EVERFLOW
from everflow_simulation.pacing import TROUBLES, PacingCase, Run, simulate

BENCH = "pacing"
WARM_MS = 4_000.0
"""Of a case without trouble: what comes before is left out."""
LAST_MS = 20_000.0
"""Of one with trouble: so much at its end counts, and all of it for the longest latency."""


@dataclass(frozen=True)
class PacingPlan:
    """Cases: each of these with each other, and the troubles."""

    partitions: tuple[int, ...] = (4, 16, 64, 200)
    subtopologies: tuple[int, ...] = (1, 2, 3)
    rates: tuple[int, ...] = (10, 100, 1_000, 10_000)
    troubles: bool = True
    seconds: float = 12.0


def measure(plan: PacingPlan) -> Iterator[Measurement]:
    """p50, p99, cores, and how much the intervals differ."""
    cases = itertools.product(plan.partitions, plan.subtopologies, plan.rates)
    for partitions, subtopologies, rate in cases:
        seconds = plan.seconds * (4 if rate < 100 else 1)
        case = PacingCase(
            partitions=partitions, subtopologies=subtopologies, rate=rate, seconds=seconds
        )
        name = f"{partitions} partitions, {subtopologies} sub-topologies, {rate:,} records/s"
        yield from _steady(name, case, simulate(case), WARM_MS)
    for name, case in TROUBLES.items() if plan.troubles else ():
        run = simulate(case)
        yield from _steady(name, case, run, case.seconds * 1000 - LAST_MS)


def _steady(name: str, case: PacingCase, run: Run, since_ms: float) -> Iterator[Measurement]:
    figures = (
        ("latency_p50", "ms", run.latency(50, since_ms)),
        ("latency_p99", "ms", run.latency(99, since_ms)),
        ("latency_max", "ms", run.latency(100)),
        ("processor", "cores", run.cores(since_ms, case.seconds * 1000)),
        ("spread", "of the interval", run.spread(since_ms)),
    )
    for metric, unit, value in figures:
        if not math.isnan(value):
            yield Measurement(BENCH, name, EVERFLOW, "exactly_once_v2", metric, unit, value)
