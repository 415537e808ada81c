"""One record per rebalance: why it was, which tasks moved, how long each had no commit (note 068).

Each instance makes the records of the rebalances that it takes part in; a leader's have its whole
decision. A task that moves is ``lost`` in one instance's record and ``gained`` in another's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from everflow.clock import Clock
from everflow.logs import some
from everflow.records import TaskId

KEPT = 200
AROUND_MS = 10_000.0
"""A commit longer before a rebalance, or longer after its tasks run, is of an idle task."""
FOLLOW_UP = "the leader wanted a follow-up"
IN_PROGRESS, COMPLETE, OVERTAKEN, ENDED = "in progress", "complete", "overtaken", "ended"


@dataclass(frozen=True, kw_only=True)
class Route:
    """``tasks`` that ``to`` runs from now on and did not before; ``origin``: who had them, empty:
    nobody that is known."""

    tasks: Sequence[str]
    origin: str
    to: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the leader decided for all members; they are called by name, tasks by id.

    ``before``: the members of its last decision, with what each ran; None: somebody else made that
    one. ``withheld``: their owners give them up now. ``held_back``: for a lost instance, or
    ``held``, so that nobody runs them while a migration switches. ``later``: roles that are still
    to move."""

    tasks: int
    members: Sequence[str]
    before: Mapping[str, Sequence[str]] | None = None
    moved: Sequence[Route] = ()
    withheld: Sequence[str] = ()
    held_back: Sequence[str] = ()
    held: Sequence[str] = ()
    warmups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    standbys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    later: int = 0

    @property
    def gone(self) -> Mapping[str, Sequence[str]]:
        return {name: had for name, had in (self.before or {}).items() if name not in self.members}

    @property
    def new(self) -> Sequence[str]:
        return [n for n in self.members if self.before is not None and n not in self.before]


Group = Mapping[str, Sequence[str]] | None
"""Instances and the tasks that they run; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Join:
    """A rebalance as a member knows it when it ends. ``began_ms``: when its join went out
    (monotonic); ``asked``: why this member asked for it, empty: another did, or the group;
    ``hosts``: by ``application.server``."""

    member: str
    generation: int
    began_ms: float
    standby: Collection[TaskId] = ()
    warmup: Collection[TaskId] = ()
    asked: str = ""
    hosts: Group = None
    decision: Decision | None = None


@dataclass(frozen=True, kw_only=True)
class Rebalance:
    """One rebalance as one instance saw it. Tasks are ids, times epoch ms, durations ms.

    Attributes:
        reason: ``start``, ``returned``, ``lost``, ``migration``, ``left``, ``joined``,
            ``follow-up``, ``asked`` or ``other``; ``why``: the same for people. ``asked``: see
            `Join`.
        before, members: who took part, as far as it is known here: the leader of two rebalances in
            a row names all, else the ``application.server`` of those that have one. None: not
            known.
        kept, gained, lost: active tasks of this instance; ``promoted``: gained with a copy here.
        joined_ms: from the join to the answer. ``duration_ms``: until all active tasks of this
            instance ran again; None: they do not yet, or did not.
        gaps_ms: the longest time without a committed micro-batch around the rebalance, by task.
            None: none was committed, as of a task with nothing to read. Of a gained task since the
            answer, as its last commit elsewhere is not known here: see ``last_commits``.
        last_commits: of lost tasks; ``first_commits``: of gained ones, and of those that the
            rebalance before did not get to run.
        restored_records, restored_bytes: of changelogs, since the record before.
        decision: of a leader.
    """

    instance: str
    generation: int
    began_ms: int
    reason: str
    why: str
    asked: str
    before: Sequence[str] | None
    members: Sequence[str] | None
    kept: Sequence[str]
    gained: Sequence[str]
    lost: Sequence[str]
    promoted: Sequence[str]
    standbys: Sequence[str]
    warmups: Sequence[str]
    joined_ms: float
    decision: Decision | None
    outcome: str = IN_PROGRESS
    duration_ms: float | None = None
    gaps_ms: Mapping[str, float | None] = field(default_factory=dict)
    last_commits: Mapping[str, int] = field(default_factory=dict)
    first_commits: Mapping[str, int] = field(default_factory=dict)
    restored_records: int = 0
    restored_bytes: int = 0


class Restored(NamedTuple):
    """Totals since the start."""

    records: int = 0
    bytes: int = 0


def task_names(tasks: Iterable[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks)]


def reason_of(
    asked: str, group_before: Group, group: Group, held: tuple[bool, bool] = (False, False)
) -> tuple[str, str]:
    """The code and the text of a rebalance between two groups; the gravest cause is the code.
    ``held``: whether a migration held tasks before, and whether it does now."""
    before, now = group_before or {}, group or {}
    gone = {name: had for name, had in before.items() if now and name not in now}
    lost = [f"{name} (it ran {some(had)})" for name, had in sorted(gone.items()) if had]
    left = [name for name, had in sorted(gone.items()) if not had]
    new = [name for name in sorted(now) if before and name not in before]
    causes = [("left", "left", left), ("joined", "joined", new)]
    said = [("lost", f"gone with its tasks: {some(lost)}")] if lost else []
    if any(held):
        does = "holds tasks" if held[1] else "holds tasks no more"
        said.append(("migration", f"everflow migrate {does}"))
    said += [(code, f"{word}: {some(names)}") for code, word, names in causes if names]
    if asked == FOLLOW_UP:
        said.append(("follow-up", asked))
    elif asked:
        said.append(("asked", f"this instance asked: {asked}"))
    elif not said:
        which = "asked" if before and now else "joined, left or asked"
        said.append(("other", f"another instance {which}"))
    return said[0][0], "; ".join(text for _, text in said)


@dataclass(kw_only=True)
class _Open:
    """The newest rebalance until its record is closed. Monotonic ms."""

    draft: Rebalance
    began_ms: float
    answered_ms: float
    owned: frozenset[TaskId]
    gained: frozenset[TaskId]
    lost: frozenset[TaskId]
    waits: Mapping[TaskId, float]
    """Since when tasks wait that did not run in the rebalance before."""
    running_ms: float | None = None
    gaps: dict[TaskId, float] = field(default_factory=dict)
    first: dict[TaskId, float] = field(default_factory=dict)
    settled: set[TaskId] = field(default_factory=set)
    """Tasks with a commit since all run: what they do later is of no rebalance."""

    def committed(self, task: TaskId, last_ms: float | None, now_ms: float) -> None:
        if task not in self.owned or task in self.settled:
            return
        self.gaps[task] = max(self.gaps.get(task, 0.0), now_ms - self.since(task, last_ms))
        if task in self.gained or task in self.waits:
            self.first.setdefault(task, now_ms)
        if self.running_ms is not None:
            self.settled.add(task)

    def since(self, task: TaskId, last_ms: float | None) -> float:
        """When the task's present gap began; ``last_ms``: its last commit here."""
        waited = self.waits.get(task)
        if waited is not None and (last_ms is None or last_ms <= waited):
            return waited
        gained = task in self.gained
        begin = self.answered_ms if gained else self.began_ms
        early = begin if gained else begin - AROUND_MS
        return begin if last_ms is None or last_ms < early else last_ms

    def due(self, now_ms: float) -> bool:
        if self.running_ms is None:
            return False
        return self.settled >= self.owned or now_ms - self.running_ms >= AROUND_MS


@dataclass(kw_only=True)
class RebalanceBook:
    """Makes an instance's records. `committed` and `records` are for any thread, the rest for the
    instance's loop. ``restored``: what has been read of changelogs since the start. ``write`` gets
    each record once, when it is closed."""

    clock: Clock
    restored: Callable[[], Restored] = Restored
    write: Callable[[Rebalance], None] = lambda _: None
    _closed: deque[Rebalance] = field(default_factory=lambda: deque(maxlen=KEPT))
    _unwritten: list[Rebalance] = field(default_factory=list)
    _open: _Open | None = None
    _commits: dict[TaskId, float] = field(default_factory=dict)
    _owned: frozenset[TaskId] = frozenset()
    _hosts: Group = None
    _held: bool = False
    _away: tuple[str, str] | None = ("start", "this instance joined")
    _restored_before: Restored = field(default_factory=Restored)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, join: Join, owned: Collection[TaskId], copies: Collection[TaskId]) -> None:
        """A rebalance ended: this instance owns ``owned``; ``copies``: those that it followed until
        now."""
        with self._lock:
            now, old, waits = frozenset(owned), self._open, dict[TaskId, float]()
            if old is not None and old.running_ms is None:
                waits = {task: old.since(task, self._commits.get(task)) for task in old.owned & now}
            self._close(OVERTAKEN)
            before, group, decision = self._hosts, join.hosts, join.decision
            if decision is not None and (decision.before is not None or not before):
                before, group = decision.before, dict.fromkeys(decision.members, ())
            held = self._held, decision is not None and bool(decision.held)
            reason, why = self._away or reason_of(join.asked, before, group, held)
            gained, lost = now - self._owned, self._owned - now
            answered_ms = self.clock.monotonic_ms()
            draft = Rebalance(
                instance=join.member,
                generation=join.generation,
                began_ms=self._wall_ms(join.began_ms),
                reason=reason,
                why=why,
                asked=join.asked,
                before=None if before is None else sorted(before),
                members=None if group is None else sorted(group),
                kept=task_names(now - gained),
                gained=task_names(gained),
                lost=task_names(lost),
                promoted=task_names(gained.intersection(copies)),
                standbys=task_names(join.standby),
                warmups=task_names(join.warmup),
                joined_ms=answered_ms - join.began_ms,
                decision=decision,
            )
            self._open = _Open(
                draft=draft,
                began_ms=join.began_ms,
                answered_ms=answered_ms,
                owned=now,
                gained=gained,
                lost=lost,
                waits=waits,
            )
            self._owned, self._hosts, self._away = now, join.hosts, None
            self._held = held[1]

    def running(self) -> None:
        """All active tasks of this instance run."""
        with self._lock:
            if self._open is not None and self._open.running_ms is None:
                self._open.running_ms = self.clock.monotonic_ms()

    def evicted(self) -> None:
        """The group removed this instance: it has no task until it joins again."""
        with self._lock:
            self._close(ENDED)
            self._owned = frozenset()
            self._away = self._away or ("returned", "this instance was out of the group")

    def committed(self, tasks: Iterable[TaskId]) -> None:
        """A micro-batch with records of these tasks was committed."""
        with self._lock:
            now_ms = self.clock.monotonic_ms()
            for task in tasks:
                if self._open is not None:
                    self._open.committed(task, self._commits.get(task), now_ms)
                self._commits[task] = now_ms

    def turn(self) -> None:
        """Some times a second: write what is closed."""
        with self._lock:
            if self._open is not None and self._open.due(self.clock.monotonic_ms()):
                self._close(COMPLETE)
            closed, self._unwritten = self._unwritten, []
        for record in closed:
            self.write(record)

    def close(self) -> None:
        """The instance ends."""
        with self._lock:
            self._close(ENDED)
        self.turn()

    def records(self) -> list[Rebalance]:
        """The last `KEPT`, the oldest first; the last one may be in progress."""
        with self._lock:
            present = [] if self._open is None else [self._record(self._open, IN_PROGRESS)]
            return [*self._closed, *present]

    # --- with the lock ---------------------------------------------------------------------------

    def _close(self, outcome: str) -> None:
        found, self._open = self._open, None
        if found is None:
            return
        record = self._record(found, outcome if found.running_ms is None else COMPLETE)
        self._closed.append(record)
        self._unwritten.append(record)
        self._restored_before = self.restored()
        self._commits = {task: at for task, at in self._commits.items() if task in found.owned}

    def _record(self, found: _Open, outcome: str) -> Rebalance:
        restored, before, running_ms = self.restored(), self._restored_before, found.running_ms
        last = {task: at for task, at in self._commits.items() if task in found.lost}
        return replace(
            found.draft,
            outcome=outcome,
            duration_ms=None if running_ms is None else running_ms - found.began_ms,
            gaps_ms={str(task): found.gaps.get(task) for task in sorted(found.owned)},
            last_commits={str(task): self._wall_ms(at) for task, at in sorted(last.items())},
            first_commits={
                str(task): self._wall_ms(at) for task, at in sorted(found.first.items())
            },
            restored_records=restored.records - before.records,
            restored_bytes=restored.bytes - before.bytes,
        )

    def _wall_ms(self, at_ms: float) -> int:
        return int(self.clock.now_ms() - self.clock.monotonic_ms() + at_ms)
