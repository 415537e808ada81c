"""What everflow's figures are to be, measured by those of the systems beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.load.plan import AT, BESIDE_NEIGHBOUR, HELD
from bench.nexmark.ratios import MEAN, THROUGHPUT_RATIO, TO
from bench.programs.catalogue import PROGRAMS, Kind
from bench.results import Row, print_table
from bench.systems import EVERFLOW, FLINK_SQL, KAFKA_STREAMS, KAFKA_STREAMS_KIP1071, OURS

EXACTLY_ONCE = "exactly_once_v2"
START_S = 6.0
FLINK_MARK = 2.0
KIND_MARKS = {
    Kind.FUNCTIONS: 1.0,
    Kind.VECTORISED: 3.0,
    Kind.OPERATORS: 4.0,
    Kind.OPERATORS_OF_FUNCTIONS: 1.0,
    Kind.NEXMARK: 1.0,
}
# The geometric mean of the ratios of NEXMark's queries, beside which no query may be below 1. They
# are of `bench.nexmark.ratios`.
WORST_MARK = 1.0
MEAN_MARKS = {FLINK_SQL: 2.5, KAFKA_STREAMS: 5.0, KAFKA_STREAMS_KIP1071: 5.0}
LOAD_RATE = "1000"
LOAD_MARKS = {"latency_p50": 0.6, "latency_p99": 0.8, "processor": 1.0, "memory": 1.5}
# With another number of partitions than `bench.topics.PARTITIONS`.
TASKS_MARKS = {"latency_p50": 0.8, "latency_p99": 0.8, "processor": 0.7}
# Held to less than the machine has.
HELD_MARKS = {"latency_p50": 1.0, "latency_p99": 1.0}
LOAD_START = 1.3


@dataclass(frozen=True)
class Mark:
    """A figure of everflow's beside its bound: a ratio to `reference`, or the figure itself."""

    case: str
    guarantee: str
    metric: str
    reference: str
    value: float
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def marks(rows: Sequence[Row], system: str) -> Iterator[Mark]:
    """The marks of all figures that `rows` have and that have a bound."""
    for own in rows:
        if own.system != system:
            continue
        if own.metric == THROUGHPUT_RATIO:
            case, _, reference = own.case.partition(TO)
            bound = MEAN_MARKS.get(reference) if case.startswith(MEAN) else WORST_MARK
            if bound is not None:
                yield Mark(case, own.guarantee, own.metric, reference, own.value, bound, True)
            continue
        if own.metric == "start" and AT not in own.case:
            yield Mark(own.case, own.guarantee, own.metric, own.unit, own.value, START_S, False)
        for other in rows:
            same = (other.case, other.guarantee, other.metric)
            if other.system in OURS or same != (own.case, own.guarantee, own.metric):
                continue
            bound, at_least = _bound(own, other.system)
            if bound is not None:
                yield Mark(*same, other.system, own.value / other.value, bound, at_least)


def _kind(row: Row) -> Kind:
    return PROGRAMS[row.case.partition(AT)[0].partition(",")[0]].kind


def _bound(row: Row, other: str) -> tuple[float | None, bool]:
    """The bound of the ratio to the `other` system, and whether it is a lower one."""
    setting, _, pace = row.case.partition(AT)
    if row.metric == "throughput":
        if other == FLINK_SQL and _kind(row) is not Kind.NEXMARK:
            return FLINK_MARK, True
        columns = 5.0 if row.guarantee == EXACTLY_ONCE else 3.0
        return KIND_MARKS.get(_kind(row), columns), True
    measured = other == KAFKA_STREAMS and row.guarantee == EXACTLY_ONCE and row.system == EVERFLOW
    if not measured or pace != LOAD_RATE or BESIDE_NEIGHBOUR in setting:
        return None, False
    if row.metric == "start":
        return LOAD_START, False
    if HELD in setting:
        return HELD_MARKS.get(row.metric), False
    return (TASKS_MARKS if "partitions" in setting else LOAD_MARKS).get(row.metric), False


def print_marks(rows: Sequence[Row], system: str) -> None:
    """A line for each mark: the figure, its bound, and whether it falls short."""
    lines = [("case", "guarantee", "metric", f"{system} /", "ratio", "mark", "")]
    for mark in marks(rows, system):
        lines.append(
            (
                mark.case,
                mark.guarantee,
                mark.metric,
                mark.reference,
                f"{mark.value:.2f}",
                f"{'>=' if mark.at_least else '<='} {mark.bound:g}",
                "" if mark.met else "short",
            )
        )
    if len(lines) > 1:
        print()
        print_table(lines)
