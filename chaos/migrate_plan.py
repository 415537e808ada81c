"""Who is struck at which point of a migration, in rounds that are the seed's alone."""

from __future__ import annotations

import random
from typing import NamedTuple

from everflow.migration.copying import COPIED_CHUNK, SENT
from everflow.migration.migrator import (
    ASKED,
    CAUGHT_UP,
    COMPARED,
    CREATED,
    DRAINED,
    FOLLOWED,
    HELD,
    INPUTS_HELD,
    MARKED,
    REST_COPIED,
    SWITCHED,
    SWITCHING,
)
from everflow.worker.crash_points import OFFSETS_SENT, RECOVERING, SWITCH_SEEN

COMMIT_SENT = "commit-sent"
"""The migrator has asked for the commit; the broker gets it once the victim is dead."""
BEFORE = (
    *(MARKED, CREATED, SENT, COPIED_CHUNK, CAUGHT_UP, FOLLOWED, ASKED, INPUTS_HELD, DRAINED, HELD),
    *(REST_COPIED, COMPARED, SWITCHING, COMMIT_SENT),
)
BEHIND = (SWITCHED, SWITCH_SEEN, RECOVERING, OFFSETS_SENT)
"""The last three are reached by an instance of the new version, while the migrator waits at the
first: the new version sees the switch, restores its tasks, has its first transaction open."""
POINTS = (*BEFORE, *BEHIND)
MIGRATOR, OLD, NEW, BROKER, CONNECTION = "migrator", "old", "new", "broker", "connection"
AGAIN, BACK, NOTHING = "again", "back", "nothing"
CHAINED = (AGAIN, AGAIN, BACK, NOTHING)
SURROUNDINGS = (
    *((SENT, BROKER), (SWITCHING, BROKER), (COMMIT_SENT, BROKER)),
    *((SENT, CONNECTION), (HELD, CONNECTION), (SWITCHING, CONNECTION), (COMMIT_SENT, CONNECTION)),
)
STRIKES = 4
"""At most, in one migration."""
LONGEST_CUT_S = 3.0
EXACT, LEAST = "exactly_once_v2", "at_least_once"


class Strike(NamedTuple):
    """``then``: what follows the migrator's kill. ``whole``: with all child processes, or the
    driver alone. ``late``: who was killed comes back when the migration has gone on."""

    point: str
    victim: str
    then: str = AGAIN
    whole: bool = True
    late: bool = False
    seconds: float = 0.0


class Round(NamedTuple):
    """``instances`` of the new version; ``grows``: it has more partitions than the old one."""

    strikes: tuple[Strike, ...]
    guarantee: str = EXACT
    instances: int = 1
    grows: bool = False


def deal(seed: int) -> list[Round]:
    """All pairs of point and victim, once each, in rounds. Pure."""
    chance = random.Random(seed)
    pairs = [(point, victim) for point in POINTS for victim in (MIGRATOR, OLD, NEW)]
    deck = [
        Strike(
            point,
            victim,
            chance.choice(CHAINED) if victim == MIGRATOR else AGAIN,
            chance.random() < 0.5,
            chance.random() < 0.5,
            round(chance.uniform(0.5, LONGEST_CUT_S), 1),
        )
        for point, victim in (*pairs, *SURROUNDINGS)
    ]
    chance.shuffle(deck)
    rounds: list[Round] = []
    while deck:
        hand: list[Strike] = []
        for strike in deck:
            if len(hand) < STRIKES and all(_go_together(strike, other) for other in hand):
                hand.append(strike)
        deck = [strike for strike in deck if strike not in hand]
        hand.sort(key=lambda strike: POINTS.index(strike.point))
        guarantee = LEAST if len(rounds) % 4 == 3 else EXACT
        instances, grows = chance.choice((1, 2)), chance.random() < 0.2
        rounds.append(Round(tuple(hand), guarantee, instances, grows))
    return rounds


def _go_together(one: Strike, two: Strike) -> bool:
    """A point is reached once in a migration; nothing follows one that is given up; and behind the
    switch no migrator is called that could be killed again. An instance that was killed may come
    back behind the switch, and then has nothing to see."""
    first, second = sorted((one, two), key=lambda strike: POINTS.index(strike.point))
    late = (COMMIT_SENT, *BEHIND)
    return not (
        first.point == second.point
        or {first.point, second.point} == {SWITCHING, COMMIT_SENT}
        or (first.point not in late and first.then != AGAIN)
        or (first.victim == second.victim == MIGRATOR and first.point in late)
        or (first.victim == NEW and second.point == SWITCH_SEEN)
    )
