"""Recovers tasks: the one order to become active, or go on after an unknown outcome (D5, D6).

fence -> committed offsets (require_stable), none below what is known to be committed -> target =
log end read_uncommitted, taken after that -> wait until the last stable offset reaches it -> claim
and replay [store's position, target] -> run. Each arrow closes a way to lose or double data:
scenarios 1, 2 and 4.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from everflow.clock import Clock, Deadline
from everflow.errors import (
    EverflowError,
    FatalError,
    OffsetsExpiredError,
    OffsetsWentBackError,
    RetriableError,
    TaskMigratedError,
    start_over,
)
from everflow.moves import some
from everflow.records import CommittedOffset, TopicPartition
from everflow.retry import StoppedError, attempting
from everflow.runtime.commit.batch import parse_metadata
from everflow.runtime.tasks.task import ActiveTask, TaskStore
from everflow.setting_checks import reset_duration_ms

log = logging.getLogger("everflow")

_T = TypeVar("_T")

STABLE_POLL_MS = 10.0
_NAMED = 5
ATTEMPT_MS = 10_000.0
"""How long tasks are tried to be recovered together, and those behind them wait: then each by
itself."""


class _Patience(Deadline):
    """How long a recovery goes on."""

    def __init__(self, clock: Clock, timeout_ms: float, given_up: Callable[[], bool]) -> None:
        super().__init__(clock, timeout_ms)
        self._given_up = given_up

    def check(self) -> None:
        """TaskMigratedError where waiting is in vain."""
        if self._given_up():
            raise TaskMigratedError("a task was lost while it was recovered")


class RecoveryPorts(Protocol):
    """What recovery needs from Kafka and from the stores. Every call may raise RetriableError."""

    def fence(self, transactional_ids: Collection[str]) -> None:
        """End whatever still writes under these ids."""

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Stable committed offsets of the group; partitions without one are left out."""

    def committed_last(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """As `committed`, but without what open transactions hold: nobody is waited for."""

    def purged(self) -> Sequence[TopicPartition]:
        """Partitions that nobody deletes records from but everflow, behind committed offsets."""

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Log ends, read_uncommitted."""

    def stable_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Last stable offsets (read_committed)."""

    def log_starts(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offsets still in the log."""

    def known_starts(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """As `log_starts`, of those whose leaders answer at once."""

    def offsets_since(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> Mapping[TopicPartition, int]:
        """First offset of a record of this time or later; -1 where there is none."""

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Mapping[TopicPartition, int]
    ) -> tuple[TaskStore, ...]:
        """Open the task's stores, make ``incarnation`` their owner with no batch applied, rebuild
        those that must not be trusted, and replay ``[position, target)`` of their changelogs. Gives
        the stores with their (maybe new) paths. May be called again after a RetriableError."""


@dataclass(frozen=True)
class RecoveryRules:
    """``offset_reset``: policy per input topic (``earliest``, ``latest``, ``none``);
    ``application_id`` for messages."""

    application_id: str
    offset_reset: Mapping[str, str]


@dataclass(kw_only=True)
class Recovery:
    """Recovers tasks; used by one thread at a time. ``stop`` ends every wait with StoppedError.
    ``timeout_ms``: how long one attempt may be in vain. ``lower_bounds``: of the instance."""

    ports: RecoveryPorts
    rules: RecoveryRules
    lower_bounds: CommittedLowerBounds
    clock: Clock
    timeout_ms: float
    stop: threading.Event
    new_incarnation: Callable[[], str]

    def recover(
        self,
        tasks: Sequence[ActiveTask],
        fence: Collection[str],
        given_up: Callable[[], bool] = lambda: False,
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, CommittedOffset]]:
        """Bring ``tasks`` to where the log is: positions, stream times, stores, a new incarnation.

        ``fence`` are the transactional ids that may still write for them. Gives the starting
        offsets of partitions that had no committed offset (the caller commits them before anything
        is processed, so that a later start is never taken for a first one), and the committed
        offsets that were found.

        Raises RetriableError for an attempt that was in vain, OffsetsWentBackError among them;
        OffsetsExpiredError, StoppedError; FatalError for an offset out of range with policy
        ``none``; TaskMigratedError as soon as something has to be waited for and ``given_up()``
        says that it is in vain.
        """
        deadline = _Patience(self.clock, self.timeout_ms, given_up)
        inputs = sorted({tp for task in tasks for tp in task.inputs})
        changelogs = sorted(
            {s.changelog for task in tasks for s in task.stores if s.changelog is not None}
        )
        if fence:
            self._retry(lambda: self.ports.fence(fence), "fencing earlier writers", deadline)
        if not tasks:
            return {}, {}
        committed = self._retry(
            lambda: self._committed(inputs), "reading committed offsets", deadline
        )
        reused = set(inputs).intersection(changelogs)
        own = [tp for tp in changelogs if tp not in reused]
        targets = self._retry(
            lambda: self.ports.log_ends(own), "reading ends of changelogs", deadline
        )
        ends = self._stable_ends(inputs, targets, deadline)
        # A topic that is read and is a changelog, too, has been applied as far as it was read.
        read = {tp: committed[tp].offset if tp in committed else 0 for tp in reused}
        targets = {**targets, **read}
        starts = self._retry(
            lambda: self.ports.log_starts(sorted(ends)), "reading starts of topics", deadline
        )
        spans = {tp: (starts[tp], end) for tp, end in ends.items()}
        self._refuse_expired(tasks, committed, spans)
        started: dict[TopicPartition, int] = {}
        for task in tasks:
            self._restore(task, targets, deadline)
            self._take_positions(
                task, committed, self._real_ends(task, committed, spans, deadline), started
            )
            task.ends = {tp: ends[tp] for tp in task.inputs}
        return started, committed

    # --- steps -----------------------------------------------------------------------------------

    def _retry(self, operation: Callable[[], _T], what: str, deadline: _Patience) -> _T:
        def attempt() -> _T:
            deadline.check()
            return operation()

        return attempting(attempt, what, clock=self.clock, deadline=deadline, stop=self.stop)

    def _committed(self, inputs: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Stable committed offsets. OffsetsWentBackError where the coordinator tells less of any
        partition of the application than is known: then it is believed in nothing."""
        # Starts first: another instance may commit and purge between the two questions.
        starts = self._starts_of_purged(inputs)
        self.lower_bounds.raised({tp: start for tp, start in starts.items() if start > 0}, PURGED)
        committed = dict(self.ports.committed(inputs))
        others = sorted(set(self.lower_bounds.settled()).difference(inputs))
        told = self.ports.committed_last(others) if others else {}
        back = self.lower_bounds.others_went_back(told, others)
        back.update(self.lower_bounds.went_back(committed, inputs))
        if back:
            raise OffsetsWentBackError(_refused(back))
        self.lower_bounds.raised({tp: found.offset for tp, found in committed.items()})
        return committed

    def _starts_of_purged(self, inputs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """All that are to be had: a partition of another task may be without a leader for long, and
        holds up only that task."""
        purged = self.ports.purged()
        others = sorted(set(purged).difference(inputs))
        own = sorted(set(purged).difference(others))
        starts = dict(self.ports.log_starts(own)) if own else {}
        try:
            starts.update(self.ports.known_starts(others) if others else {})
        except RetriableError as error:
            log.debug("Where other tasks' repartition topics begin is not known: %s", error)
        return starts

    def _stable_ends(
        self,
        inputs: Sequence[TopicPartition],
        targets: Mapping[TopicPartition, int],
        deadline: _Patience,
    ) -> dict[TopicPartition, int]:
        """Last stable offsets of inputs and changelogs, once no transaction is open below the
        changelogs' targets: markers of a transaction's partitions land independently (KAFKA-10167),
        so offsets may be committed while the changelog's end is not yet readable (scenario 4)."""
        waiting = sorted({*inputs, *targets})
        ends: dict[TopicPartition, int] = {}

        def reached() -> None:
            nonlocal waiting
            while waiting:
                ends.update(self.ports.stable_ends(waiting))
                waiting = [tp for tp in waiting if tp in targets and ends[tp] < targets[tp]]
                if not waiting:
                    return
                deadline.check()
                if self.stop.is_set():
                    raise StoppedError("stopped while waiting for open transactions")
                if deadline.expired():
                    raise RetriableError(
                        f"a transaction is still open on {', '.join(map(str, waiting[:3]))}",
                        waiting,
                    )
                self.clock.wait(self.stop, STABLE_POLL_MS)

        self._retry(reached, "waiting for open transactions to end", deadline)
        return ends

    def _real_ends(
        self,
        task: ActiveTask,
        committed: Mapping[TopicPartition, CommittedOffset],
        spans: Mapping[TopicPartition, tuple[int, int]],
        deadline: _Patience,
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """``spans`` with the log's end where the committed offset lies behind the stable one:
        at-least-once reads what open transactions of other applications have written."""
        behind = [
            tp for tp in task.inputs if tp in committed and committed[tp].offset > spans[tp][1]
        ]
        if not behind:
            return spans
        ends = self._retry(lambda: self.ports.log_ends(behind), "reading ends of topics", deadline)
        return {**spans, **{tp: (spans[tp][0], ends[tp]) for tp in behind}}

    def _refuse_expired(
        self,
        tasks: Iterable[ActiveTask],
        committed: Mapping[TopicPartition, CommittedOffset],
        spans: Mapping[TopicPartition, tuple[int, int]],
    ) -> None:
        """A task commits its starting offsets before it writes anything; records without offsets
        mean the offsets are gone."""
        for task in tasks:
            if any(tp in committed for tp in task.inputs):
                continue
            for store in task.stores:
                if (
                    store.changelog is not None
                    and store.changelog not in task.inputs
                    and spans[store.changelog][1] > spans[store.changelog][0]
                ):
                    names = some(map(str, task.inputs), _NAMED)
                    others = sorted(committed.keys() - set(task.inputs))
                    why = (
                        f"The group still has offsets of {some(others, _NAMED)}, so it was not "
                        f"deleted: those of {names} were, by themselves or with their topic."
                        if others
                        else "The brokers do not say why: the offsets expired "
                        "(offsets.retention.minutes), they were deleted with their topic or by "
                        "themselves, or the group was deleted."
                    )
                    raise OffsetsExpiredError(
                        f"Task {task.id} has no committed offsets of {names}, but its changelog "
                        f"{store.changelog} holds records. {why} Starting would count the input "
                        f"twice. {start_over(self.rules.application_id)}"
                    )

    def _restore(
        self, task: ActiveTask, targets: Mapping[TopicPartition, int], deadline: _Patience
    ) -> None:
        incarnation = self.new_incarnation()
        task.stores = self._retry(
            lambda: self.ports.restore(task, incarnation, targets),
            f"restoring task {task.id}",
            deadline,
        )
        task.incarnation, task.last_batch = incarnation, ""

    def _take_positions(
        self,
        task: ActiveTask,
        committed: Mapping[TopicPartition, CommittedOffset],
        spans: Mapping[TopicPartition, tuple[int, int]],
        started: dict[TopicPartition, int],
    ) -> None:
        task.stream_times = {}
        for tp in task.inputs:
            found = committed.get(tp)
            if found is None:
                task.positions[tp] = started[tp] = self._reset(tp, spans[tp], "no committed offset")
                continue
            for node, time_ms in parse_metadata(found.metadata).stream_times.items():
                task.stream_times[node] = max(time_ms, task.stream_times.get(node, -1))
            start, end = spans[tp]
            if start <= found.offset <= end:
                task.positions[tp] = found.offset
            elif found.offset < start:
                task.positions[tp] = self._reset(
                    tp, spans[tp], f"committed offset {found.offset} is below the log start {start}"
                )
            else:
                # Committed offsets never lie beyond the end of an unharmed log.
                raise FatalError(
                    f"{tp}: committed offset {found.offset} lies beyond the end of the log "
                    f"({end}): the topic was re-created "
                    f"or truncated. {start_over(self.rules.application_id)}"
                )

    def _reset(self, tp: TopicPartition, span: tuple[int, int], why: str) -> int:
        policy = self.rules.offset_reset.get(tp.topic, "earliest")
        if policy == "none":
            raise FatalError(
                f"{tp}: {why}, and auto.offset.reset is none. Set earliest or latest, or commit an "
                f"offset."
            )
        if why != "no committed offset":
            log.warning("%s: %s; going on from the %s offset", tp, why, policy)
        back_ms = reset_duration_ms(policy)
        if back_ms is not None:
            since_ms = max(0, self.clock.now_ms() - back_ms)
            what = f"looking for the records of {tp} since {since_ms} ms"
            found = self._retry(
                lambda: self.ports.offsets_since([tp], since_ms),
                what,
                _Patience(self.clock, self.timeout_ms, lambda: False),
            )[tp]
            return span[1] if found < 0 else min(max(found, span[0]), span[1])
        return span[1] if policy == "latest" else span[0]


def _refused(back: Mapping[TopicPartition, WentBack]) -> str:
    """Of the partition that went back farthest, what is told and what is known."""
    worst = max(sorted(back), key=lambda tp: back[tp].bound.offset - (back[tp].told or 0))
    told, (bound, witness) = back[worst]
    others = f"; it tells too little of {len(back)} partitions in all" if len(back) > 1 else ""
    return (
        f"{worst}: the group's coordinator tells "
        f"{'no committed offset' if told is None else f'the committed offset {told}'}, but {bound} "
        f"was committed before: {witness}{others}. Going on there would process records twice, so "
        f"tasks wait until it tells the truth. Restart the broker that leads the group's partition "
        f"of __consumer_offsets, or make another one its leader: it loads the offsets again. If "
        f"they were set back on purpose, see EF-OFFSETS-WENT-BACK."
    )


# --- committed bounds -----------------------------------------------------------------------------
# Knows how far the group has committed at least: a coordinator that tells less is not believed.
#
# Committed offsets only grow while the group lives. A coordinator that lost some (a load that was
# cut off, an unclean election of its log) tells old ones, and whoever begins there processes
# twice what lies between (note 064).

HERE = "this instance has seen that"
ON_DISK = "a store in the state folder has applied it"
PURGED = "records are deleted only behind what is committed"
SETTLED_MS = 10_000.0
"""By then the markers of a transaction have landed: an offset that was committed so long ago is
told without waiting for those that are pending, and records are deleted behind that one only."""


class LowerBound(NamedTuple):
    """At least ``offset`` is committed; ``witness``: who knows that."""

    offset: int
    witness: str


class WentBack(NamedTuple):
    """``told``: what the coordinator says, None for nothing; ``bound``: what was committed."""

    told: int | None
    bound: LowerBound


@dataclass
class _Known:
    """Of one partition: the bound, and the one that was it `SETTLED_MS` ago or longer."""

    latest: LowerBound
    settling: LowerBound
    since_ms: float
    settled: LowerBound | None = None

    def look(self, now_ms: float) -> None:
        if now_ms - self.since_ms >= SETTLED_MS:
            self.settled = _higher(self.settled or self.settling, self.settling)
            self.settling, self.since_ms = self.latest, now_ms


@dataclass
class CommittedLowerBounds:
    """Of one process; any thread may call. Bounds only rise, but by `replaced`."""

    clock: Clock
    _known: dict[TopicPartition, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def raised(self, offsets: Mapping[TopicPartition, int], witness: str = HERE) -> None:
        """These, or later ones, are committed: the brokers have confirmed it."""
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            for tp, offset in offsets.items():
                bound = LowerBound(offset, witness)
                known = self._known.setdefault(tp, _Known(bound, bound, now_ms))
                known.look(now_ms)
                known.latest = _higher(known.latest, bound)
                if witness != HERE:  # it was committed long ago
                    known.settled = _higher(known.settled or bound, bound)

    def replaced(self, offsets: Mapping[TopicPartition, int]) -> None:
        """As `raised`, at least once: this process has just committed them, lower ones too. A task
        that is recovered while its offsets wait for the group begins before those, which are
        committed all the same, and then commits where it is."""
        with self._lock:
            for tp, offset in offsets.items():
                if tp in self._known and offset < self._known[tp].latest.offset:
                    del self._known[tp]
        self.raised(offsets)

    def settled(self) -> dict[TopicPartition, LowerBound]:
        """Those of which no marker is on its way any more."""
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            for known in self._known.values():
                known.look(now_ms)
            found = {tp: known.settled for tp, known in self._known.items()}
        return {tp: bound for tp, bound in found.items() if bound is not None}

    def went_back(
        self, told: Mapping[TopicPartition, CommittedOffset], asked: Collection[TopicPartition]
    ) -> dict[TopicPartition, WentBack]:
        """Those of ``asked`` whose stable offset lies below its bound, or is gone although this
        process saw it committed: a group with members loses none. Between two lives of a process
        offsets may have expired, or were deleted."""
        with self._lock:
            lower_bounds = {tp: self._known[tp].latest for tp in asked if tp in self._known}
        return _below(lower_bounds, told)

    def others_went_back(
        self, told: Mapping[TopicPartition, CommittedOffset], asked: Collection[TopicPartition]
    ) -> dict[TopicPartition, WentBack]:
        """As `went_back`, of offsets that may have later ones pending: below what has settled."""
        return _below({tp: bound for tp, bound in self.settled().items() if tp in asked}, told)


def _higher(one: LowerBound, other: LowerBound) -> LowerBound:
    """Of two with the same offset, the one that is of this life says more."""
    return max(one, other, key=lambda bound: (bound.offset, bound.witness == HERE))


def _below(
    lower_bounds: Mapping[TopicPartition, LowerBound],
    told: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, WentBack]:
    """Gone ones included, where they were seen in this life."""
    found = {}
    for tp, bound in lower_bounds.items():
        if tp in told and told[tp].offset < bound.offset:
            found[tp] = WentBack(told[tp].offset, bound)
        elif tp not in told and bound.witness == HERE:
            found[tp] = WentBack(None, bound)
    return found


# --- lost writers ---------------------------------------------------------------------------------
# Fences what a vanished instance may have left open (D6).
#
# A transaction that nobody ends blocks committed offsets and readers until its time-out, 10 to 20
# s after the kill.
#
# Who took over a task asks which transactions are open, which processes live, and re-initialises
# the ids of those that do not. A member's client id ends with its process id
# (`wiring.group_settings`); where one does not, nothing is done.

_PROCESS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def lost_writers(
    application_id: str, open_ids: Iterable[str], clients: Collection[str], own_process: str
) -> list[str]:
    """Those of ``open_ids`` that belong to a process of the application which is no member any
    more.

    ``clients``: client ids of the group's members at a moment after ``open_ids`` was read: whoever
    opened one of them as a member of now is among them. A member whose process cannot be told could
    own any of them: then none is lost.
    """
    live = {own_process}
    for client in clients:
        found = _PROCESS.search(client)
        if found is None:
            return []
        live.add(found.group())
    lost = []
    for transactional_id in open_ids:
        owner, _, thread = transactional_id.rpartition("-")
        process = owner.removeprefix(f"{application_id}-")
        ours = (
            owner.startswith(f"{application_id}-")
            and thread.isdigit()
            and _PROCESS.fullmatch(process) is not None
        )
        if ours and process not in live:
            lost.append(transactional_id)
    return sorted(lost)


@dataclass(frozen=True)
class LostWriters:
    """``open_ids``, ``clients`` and ``fence`` ask the brokers and block; `fence_all` is called on a
    thread that may wait."""

    application_id: str
    own_process: str
    open_ids: Callable[[], Collection[str]]
    clients: Callable[[], Collection[str]]
    fence: Callable[[Collection[str]], None]

    def fence_all(self) -> list[str]:
        """Fence every lost writer; what fails is said: then the transactions' time-out ends them.
        The ids, if all were fenced."""
        fenced: list[str] = []
        try:
            open_ids = self.open_ids()
            clients = self.clients() if open_ids else ()
            lost = lost_writers(self.application_id, open_ids, clients, self.own_process)
            if lost:
                self.fence(lost)
                fenced = lost
        except EverflowError as error:
            log.warning(
                (
                    "Transactions of instances that are gone could not be ended, their time-out "
                    "will: "
                    "%s"
                ),
                error,
            )
        if fenced:
            log.info(
                "Ended the open transactions of instances that are gone: %s", ", ".join(fenced)
            )
        return fenced
