"""What the logs of all instances together say of I1, I4 and I5. Pure: histories in, a verdict out.

An instance (`chaos.elastic_instance`) notes: ``assigned`` (`generation`, `tasks`, `sums`: the
offset sum of every copy here at that moment), ``revoked`` and ``lost`` (`tasks`), ``roles``
(`generation`, `owned`, `standby`, `warmup`: after every completed rebalance), ``copies``
(`running`, `sums`: twice a second) and ``batch`` (`tasks`, `began_ms`, `committed`: when a
micro-batch has ended). The end sums of the changelogs come from an observer outside, so that no
figure is the judged program's own.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.events import Event

HANDED_ON = ("assigned", "revoked", "lost")
SNAPSHOT_AGE_S = 3.0
"""A look at the copies of another instance counts for so long (it looks twice a second; a busy
machine may hold it up)."""


@dataclass(frozen=True)
class Life:
    """One process of an instance, from its start to its end (None: it lives); times in s since the
    epoch."""

    instance: str
    number: int
    started_s: float
    gone_s: float | None
    events: Sequence[Event]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.instance}.{self.number}"

    def alive(self, at_s: float) -> bool:
        """Whether the process lived at a moment."""
        return self.started_s <= at_s and (self.gone_s is None or at_s < self.gone_s)

    def of(self, *kinds: str) -> Iterator[Event]:
        """The events of some kinds, in order."""
        return (event for event in self.events if event.kind in kinds)


@dataclass(frozen=True)
class Rules:
    """``hot_lag``: a copy with so many offsets to go is hot; ``slack``: offsets that may have come
    since the figures were taken.

    A task that stays may pause for two micro-batches: of its next ``batches`` one commits,
    ``idle_s`` pass between them, and the whole takes no longer than ``pause_s`` (a batch that takes
    longer hangs).
    """

    hot_lag: int
    slack: int
    batches: int = 2
    idle_s: float = 1.0
    pause_s: float = 10.0


class Pause(NamedTuple):
    """A task that stayed on an instance went without a commit; ``batches`` ran for it meanwhile,
    the committing one included, and none for ``idle_s``."""

    seconds: float
    task: str
    life: str
    began_s: float
    batches: int
    idle_s: float


NO_PAUSE = Pause(0.0, "", "", 0.0, 0, 0.0)


@dataclass
class Verdict:
    """One text for each breach; ``pauses`` beyond the rules, ``longest`` whatever its length;
    ``most_batches`` that a task which stayed needed for one commit (2: one was aborted because the
    group moved on)."""

    two_actives: list[str] = field(default_factory=list)
    cold_handovers: list[str] = field(default_factory=list)
    pauses: list[str] = field(default_factory=list)
    longest: Pause = NO_PAUSE
    most_batches: int = 0


class EndSums:
    """End sums of the changelogs as an observer read them: (s since the epoch, task -> sum),
    ascending."""

    def __init__(self, samples: Sequence[tuple[float, Mapping[str, int]]]) -> None:
        self._times = [at_s for at_s, _ in samples]
        self._sums = [sums for _, sums in samples]

    def at(self, at_s: float, task: str) -> int:
        """The last sum read before a moment; 0 before the first."""
        place = bisect.bisect_right(self._times, at_s) - 1
        return 0 if place < 0 else self._sums[place].get(task, 0)


def judge(lives: Sequence[Life], ends: EndSums, rules: Rules, load: tuple[float, float]) -> Verdict:
    """Judge everything; pauses only while the load was on (from, to)."""
    verdict = Verdict(two_owners(lives) + overlaps(lives), cold_handovers(lives, ends, rules))
    found = sorted((pause for life in lives for pause in pauses(life, *load)), reverse=True)
    if found:
        verdict.longest = found[0]
        verdict.most_batches = max(pause.batches for pause in found)
    verdict.pauses = [
        f"{at.task} stayed on {at.life}, no commit for {at.seconds:.2f} s from {at.began_s:.1f} "
        f"on: {at.batches} batches, none for "
        f"{at.idle_s:.2f} s"
        for at in found
        if at.batches > rules.batches or at.idle_s > rules.idle_s or at.seconds > rules.pause_s
    ]
    return verdict


def two_owners(lives: Sequence[Life]) -> list[str]:
    """I1 by what the group said: a task is on one member of a generation."""
    owners: dict[tuple[int, str], set[str]] = {}
    for life in lives:
        for event in life.of("roles"):
            for task in event.fields["owned"]:
                owners.setdefault((event.fields["generation"], task), set()).add(life.instance)
    return [
        f"generation {generation}: task {task} is on {', '.join(sorted(instances))}"
        for (generation, task), instances in sorted(owners.items())
        if len(instances) > 1
    ]


def overlaps(lives: Sequence[Life]) -> list[str]:
    """I1 by what was done: micro-batches of one task that committed on two instances at overlapping
    times."""
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for life in lives:
        for event in _committed(life):
            for task in event.fields["tasks"]:
                spans.setdefault(task, []).append(
                    (event.fields["began_ms"] / 1000, event.at_s, life.name)
                )
    found = []
    for task, listed in sorted(spans.items()):
        longest = (0.0, 0.0, "")  # the one that ended last so far
        for span in sorted(listed):
            if span[0] < longest[1] and span[2] != longest[2]:
                found.append(
                    f"task {task}: a batch of {longest[2]} until {longest[1]:.3f}, one of "
                    f"{span[2]} from {span[0]:.3f}"
                )
            longest = max(longest, span, key=lambda each: each[1])
    return found


def cold_handovers(lives: Sequence[Life], ends: EndSums, rules: Rules) -> list[str]:
    """I5: a task was given to an instance whose copy was far behind, while a member of that
    generation had a hot one."""
    found = []
    for life in lives:
        for event in life.of("assigned"):
            for task in event.fields["tasks"]:
                lag = ends.at(event.at_s, task) - event.fields["sums"].get(task, 0)
                if lag <= rules.hot_lag + rules.slack:
                    continue
                generation = event.fields["generation"]
                hot = [
                    other.name
                    for other in lives
                    if other.instance != life.instance
                    and _took_part(other, generation, event.at_s)
                    and _has_hot(other, task, event.at_s, ends, rules)
                ]
                if hot:
                    found.append(
                        f"generation {generation}: task {task} went to {life.name}, {lag} behind, "
                        f"while {', '.join(hot)} had it hot"
                    )
    return found


def pauses(life: Life, from_s: float, to_s: float) -> Iterator[Pause]:
    """The time between two commits of a task that stayed here, for every two that follow one
    another."""
    last: dict[str, float] = {}
    batches: dict[str, int] = {}
    busy_s: dict[str, float] = {}
    for event in life.events:
        if event.kind in HANDED_ON:
            for task in event.fields["tasks"]:
                last.pop(task, None)
        if event.kind != "batch":
            continue
        for task in event.fields["tasks"]:
            batches[task] = batches.get(task, 0) + 1
            busy_s[task] = busy_s.get(task, 0.0) + event.at_s - event.fields["began_ms"] / 1000
            if not event.fields["committed"]:
                continue
            began_s = last.get(task)
            if began_s is not None and began_s >= from_s and event.at_s <= to_s:
                seconds = event.at_s - began_s
                yield Pause(
                    seconds,
                    task,
                    life.name,
                    began_s,
                    batches[task],
                    max(0.0, seconds - busy_s[task]),
                )
            last[task], batches[task], busy_s[task] = event.at_s, 0, 0.0


def _committed(life: Life) -> Iterator[Event]:
    return (event for event in life.of("batch") if event.fields["committed"])


def _took_part(life: Life, generation: int, at_s: float) -> bool:
    return life.alive(at_s) and any(
        event.fields["generation"] == generation for event in life.of("roles")
    )


def _has_hot(life: Life, task: str, at_s: float, ends: EndSums, rules: Rules) -> bool:
    looks = [event for event in life.of("copies") if event.at_s <= at_s]
    if not looks or at_s - looks[-1].at_s > SNAPSHOT_AGE_S:
        return False
    if task in looks[-1].fields["running"]:
        return True
    have = looks[-1].fields["sums"].get(task)
    return have is not None and ends.at(looks[-1].at_s, task) - have <= rules.hot_lag
