"""The faults of a chaos run, drawn from its seed before anything runs."""

from __future__ import annotations

import random
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from everflow.worker.crash_points import NAMES as POINTS

INSTANCES = 3
LONGEST_WAIT_S = 3.0
LONGEST_AWAY_S = 8.0
MOST_AT_ONCE = 2
QUIET = 0.1
"""The part of the rounds in which nothing is struck."""


class FaultKind(Enum):
    """What happens, to whom."""

    KILL_INSTANCE = "kill-instance"
    KILL_DRIVER = "kill-driver"
    KILL_WORKER = "kill-worker"
    KILL_JVM = "kill-jvm"
    KILL_BROKER = "kill-broker"
    RESTART_BROKER = "restart-broker"
    PAUSE = "pause"
    HOLD_WORKER = "hold-worker"
    ORPHAN = "orphan"
    STALL = "stall"
    CUT = "cut"
    FULL_DISK = "full-disk"
    CLOCK = "clock"
    LATE_MARKERS = "late-markers"
    POISON = "poison"
    OVERSIZED = "oversized"


AT_A_POINT = frozenset(
    {FaultKind.KILL_WORKER, FaultKind.HOLD_WORKER, FaultKind.ORPHAN, FaultKind.STALL}
)
"""They meet a worker at a named point of a micro-batch."""
NEED_OTHERS = frozenset({FaultKind.PAUSE, FaultKind.STALL, FaultKind.CUT, FaultKind.LATE_MARKERS})
"""They are shown by other instances that run the tasks meanwhile."""
RECORDS = frozenset({FaultKind.POISON, FaultKind.OVERSIZED})
OFFSETS, LOGS = "offsets", "logs"
"""Where markers come late: at the group's committed offsets, or at all other logs."""
STRIKES = tuple(kind for kind in FaultKind if kind not in RECORDS)


class Fault(NamedTuple):
    """``instance`` counts from 1. ``point``: of `crash_points`, or "" for any moment, ``wait_s``
    after the fault before it. ``away_s``: how long what was stopped stays away, at least.
    ``minutes``: of a clock. ``records``: of bad ones, of each kind. ``early``: an orphan goes on
    at the moment in which others begin to take over, not after it. ``late``: where markers are,
    `OFFSETS` or `LOGS`."""

    kind: FaultKind
    instance: int = 0
    point: str = ""
    wait_s: float = 0.0
    away_s: float = 0.0
    minutes: int = 0
    records: int = 0
    early: bool = False
    late: str = ""

    def __str__(self) -> str:
        told = [self.kind.value]
        told += [f"instance {self.instance}"] if self.instance else []
        told += [f"at {self.point}"] if self.point else []
        told += ["early"] if self.early else []
        told += [f"at the {self.late}"] if self.late else []
        told += [f"{self.minutes:+d} minutes"] if self.minutes else []
        told += [f"{self.records} of a kind"] if self.records else []
        return " ".join(told)


class Round(NamedTuple):
    """Faults that begin one after the other, under load; then all of it heals."""

    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.faults)) or "quiet"


def draw(
    rounds: int,
    seed: int,
    kinds: Iterable[FaultKind] = tuple(FaultKind),
    instances: int = INSTANCES,
) -> list[Round]:
    """The same for the same arguments. No instance is met twice in a round; nothing that needs
    others is drawn for one that is alone."""
    chance = random.Random(f"schedule-{seed}")
    alone = instances == 1
    possible = sorted(set(kinds) - (NEED_OTHERS if alone else set()), key=lambda kind: kind.value)
    strikes = [kind for kind in possible if kind in STRIKES]
    records = [kind for kind in possible if kind in RECORDS]
    drawn = []
    deck: list[FaultKind] = []
    for _ in range(rounds):
        faults = [
            Fault(kind, records=chance.randint(1, 3)) for kind in records if chance.random() < 0.4
        ]
        if strikes and chance.random() >= QUIET:
            struck = min(chance.randint(1, MOST_AT_ONCE), instances)
            for victim in chance.sample(range(1, instances + 1), struck):
                # A deck that is shuffled anew when it is empty: every kind comes up soon.
                if not deck:
                    deck = chance.sample(strikes, len(strikes))
                fault = _strike(deck.pop(), victim, chance)
                faults.append(fault._replace(early=fault.early and not alone))
        drawn.append(Round(tuple(faults)))
    return drawn


def _strike(kind: FaultKind, victim: int, chance: random.Random) -> Fault:
    at_a_point = kind in AT_A_POINT and (kind is not FaultKind.KILL_WORKER or chance.random() < 0.8)
    drawn = Fault(
        kind,
        instance=victim,
        point=chance.choice(POINTS) if at_a_point else "",
        wait_s=round(chance.uniform(0.0, LONGEST_WAIT_S), 1),
        away_s=round(chance.uniform(0.0, LONGEST_AWAY_S), 1),
        early=kind is FaultKind.ORPHAN and chance.random() < 0.5,
        minutes=chance.choice((-1, 1)) * chance.randint(2, 30) if kind is FaultKind.CLOCK else 0,
        late=chance.choice((OFFSETS, LOGS)) if kind is FaultKind.LATE_MARKERS else "",
    )
    broker = kind in (FaultKind.KILL_BROKER, FaultKind.RESTART_BROKER)
    return drawn._replace(instance=0) if broker else drawn
