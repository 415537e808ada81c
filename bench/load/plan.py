"""What `bench load` measures, and in which order: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from bench.topics import PARTITIONS, case_name

RATES = (100, 1_000)
SHARES = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
AT = " at "
OF_CEILING = " of the ceiling"
HELD = "held to "
BESIDE_NEIGHBOUR = "beside a neighbour"


@dataclass(frozen=True)
class Pace:
    """A pace in records/s, or a share of the ceiling of Kafka Streams."""

    rate: int = 0
    share: Fraction | None = None

    @property
    def label(self) -> str:
        """As it stands in a case."""
        return str(self.rate) if self.share is None else f"{self.share}{OF_CEILING}"

    def records_per_s(self, ceiling: float) -> int:
        """At least one; `ceiling` in records/s."""
        return self.rate if self.share is None else max(1, round(self.share * round(ceiling)))


def paces(rates: Sequence[int] | None, shares: Sequence[Fraction] | None) -> tuple[Pace, ...]:
    """Those that are asked for, slow ones first; all usual ones where nothing is."""
    if rates is None and shares is None:
        rates, shares = RATES, SHARES
    return (
        *(Pace(rate) for rate in sorted(rates or ())),
        *(Pace(share=share) for share in sorted(shares or ())),
    )


@dataclass(frozen=True)
class LoadPlan:
    """What to measure; times in s. `cores`: what an instance is held to, None: nothing holds it.
    `ceilings`: records/s by program, in place of those that the bench measures, with
    `ceiling_records` each (None: as many as the program has)."""

    guarantee: str
    programs: Sequence[str]
    paces: Sequence[Pace]
    partitions: Sequence[int] = (PARTITIONS,)
    threads: int = 2
    rounds: int = 1
    warm_up_s: float = 60.0
    measured_s: float = 60.0
    cores: float | None = None
    neighbour: bool = False
    transactions: int = 3_000
    timeout_s: float = 600.0
    ceilings: Mapping[str, float] = field(default_factory=dict)
    ceiling_records: int | None = None

    def setting(self, program: str, partitions: int) -> str:
        """A case without its pace."""
        held = (
            ()
            if self.cores is None
            else (f"{HELD}{self.cores:g} core{'s' if self.cores > 1 else ''}",)
        )
        beside = (BESIDE_NEIGHBOUR,) if self.neighbour else ()
        return ", ".join((case_name(program, partitions), *held, *beside))


@dataclass(frozen=True)
class Turn:
    """One start of a system."""

    round: int
    pace: Pace
    system: str


def turns(plan: LoadPlan, systems: Sequence[str]) -> Iterator[Turn]:
    """Each system at each pace in each round. The order of the systems is turned round from one
    pace to the next, and from one round to the next: who comes second finds a warmer machine."""
    for number in range(plan.rounds):
        for place, pace in enumerate(plan.paces):
            for system in systems[:: -1 if (number + place) % 2 else 1]:
                yield Turn(number, pace, system)


def is_warm(transactions: int, compiler_share: float | None, least: int) -> bool:
    """Whether a broker is: after the least transactions, once its compiler takes next to nothing of
    a core (None: nobody knows), and at the latest after five times as many."""
    rests = compiler_share is None or compiler_share < COMPILER_RESTS
    return transactions >= (least if rests else 5 * least)


COMPILER_RESTS = 0.1
"""Cores: a cold broker's compiler takes about half of all that the broker takes."""
