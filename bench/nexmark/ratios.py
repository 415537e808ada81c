"""What NEXMark's queries come to together: everflow's throughput beside another system's. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.programs.catalogue import NEXMARK
from bench.results import Row
from bench.systems import OURS

THROUGHPUT = "throughput"
THROUGHPUT_RATIO = "throughput_ratio"
WORST, MEAN = "worst query", "geometric mean"
TO = " to "
"""In a case, before the system that the ratio is to."""


def together(rows: Sequence[Row]) -> Iterator[Row]:
    """For each of our systems, each guarantee and each other system: the lowest ratio of a query,
    and the geometric mean of those that both have.

    A query's ratio is that of the medians, as in the tables; `runs` has what the single rounds
    give.
    """
    throughputs = {
        (row.system, row.guarantee, row.case): row
        for row in rows
        if row.metric == THROUGHPUT and row.case.partition(",")[0] in NEXMARK
    }
    systems = dict.fromkeys(system for system, _, _ in throughputs)
    for own in (system for system in systems if system in OURS):
        for guarantee in dict.fromkeys(of for _, of, _ in throughputs):
            for other in (system for system in systems if system not in OURS):
                pairs = {
                    case: (row, throughputs[other, guarantee, case])
                    for (system, of, case), row in throughputs.items()
                    if (system, of) == (own, guarantee) and (other, guarantee, case) in throughputs
                }
                if pairs:
                    yield from _beside(own, other, guarantee, pairs)


def _beside(
    own: str, other: str, guarantee: str, pairs: dict[str, tuple[Row, Row]]
) -> Iterator[Row]:
    ratios = {case: one.value / beside.value for case, (one, beside) in pairs.items()}
    rounds = {
        case: [a / b for a, b in zip(one.runs, beside.runs, strict=False)]
        for case, (one, beside) in pairs.items()
    }
    worst = min(ratios, key=lambda case: ratios[case])
    means = map(statistics.geometric_mean, zip(*rounds.values(), strict=False))
    number = f"{len(pairs)} {'query' if len(pairs) == 1 else 'queries'}"
    for case, value, runs in (
        (f"{WORST}, {worst}", ratios[worst], rounds[worst]),
        (f"{MEAN}, {number}", statistics.geometric_mean(ratios.values()), list(means)),
    ):
        yield Row(
            pairs[worst][0].bench,
            f"{case}{TO}{other}",
            own,
            guarantee,
            THROUGHPUT_RATIO,
            round(value, 3),
            "x",
            tuple(round(run, 3) for run in runs),
        )
