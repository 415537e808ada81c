"""Recovers tasks: the one order to become active, or go on after an unknown outcome (D5, D6).

fence -> committed offsets (require_stable), none below what is known to be committed -> target =
log end read_uncommitted, taken after that -> wait until the last stable offset reaches it -> claim
and replay [store's position, target] -> run. Each arrow: scenarios 1, 2 and 4."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from everflow.clock import Clock, Deadline
from everflow.errors import (
    ApplicationMigratedError,
    EverflowError,
    FatalError,
    OffsetsExpiredError,
    OffsetsWentBackError,
    RetriableError,
    TaskMigratedError,
    start_over,
)
from everflow.instance.tasks.task import ActiveTask, TaskStore
from everflow.instance.topics.internal_topics import NO_IDS, why_no_offsets
from everflow.logs import some
from everflow.protocol.messages import FILLED, GONE, mark_in, parse_metadata
from everflow.records import CommittedOffset, Offsets, TaskId, TopicPartition
from everflow.retry import StoppedError, attempting
from everflow.setting_checks import reset_duration_ms
from everflow.topology.idle_sources import ProgramTimes
from everflow.topology.store_layouts import TIMES
from everflow.worker import crash_points

log = logging.getLogger("everflow")

_T = TypeVar("_T")
Committed = Mapping[TopicPartition, CommittedOffset]
Spans = Mapping[TopicPartition, tuple[int, int]]
"""Where each log begins and ends."""

STABLE_POLL_MS = 10.0
_NAMED = 5
ATTEMPT_MS = 10_000.0
"""Tasks are recovered together for so long, while others wait; then each by itself."""


class _Patience(Deadline):
    def __init__(self, clock: Clock, timeout_ms: float, lost: Callable[[], bool]) -> None:
        super().__init__(clock, timeout_ms)
        self._lost = lost

    def check(self) -> None:
        if self._lost():
            raise TaskMigratedError("a task was lost while it was recovered")


class RecoveryPorts(Protocol):
    """Recovery's access to Kafka and to the stores. Every call may raise RetriableError."""

    def fence(self, transactional_ids: Collection[str]) -> None:
        """End all transactions of these ids; no writer can use them any more."""

    def committed(
        self,
        partitions: Sequence[TopicPartition],
        *,
        stable: bool = True,
    ) -> Committed:
        """Those of the group; ``stable`` False: without waiting for open transactions."""

    def purged(self) -> Sequence[TopicPartition]:
        """Partitions of which only everflow deletes records, behind committed offsets."""

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Offsets: ...

    def stable_ends(self, partitions: Sequence[TopicPartition]) -> Offsets: ...

    def log_starts(
        self,
        partitions: Sequence[TopicPartition],
        *,
        known: bool = False,
    ) -> Offsets:
        """First offsets in the log; ``known``: of those whose leaders answer at once."""

    def offsets_since(self, partitions: Sequence[TopicPartition], time_ms: int) -> Offsets:
        """First offset of a record of this time or later; -1 without one."""

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Offsets
    ) -> tuple[TaskStore, ...]:
        """Open the task's stores for ``incarnation``, rebuild those not to be trusted, and replay
        ``[position, target)``. Returns them, maybe at new paths. May be called again."""


@dataclass(kw_only=True)
class Recovery:
    """Used by one thread at a time. ``stop`` ends every wait with StoppedError. ``offset_reset``:
    policy per input topic. ``timeout_ms``: of one attempt."""

    ports: RecoveryPorts
    application_id: str
    offset_reset: Mapping[str, str]
    lower_bounds: CommittedLowerBounds
    clock: Clock
    timeout_ms: float
    stop: threading.Event
    new_incarnation: Callable[[], str]
    times: ProgramTimes

    def recover(
        self,
        tasks: Sequence[ActiveTask],
        fence: Collection[str],
        lost: Callable[[], bool] = lambda: False,
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, CommittedOffset]]:
        """Bring ``tasks`` to where the log is: positions, stream times, stores, a new incarnation.
        ``fence``: transactional ids that may still write for them. Returns the starting offsets of
        partitions without a committed one, which the caller commits before anything is processed,
        and the committed offsets. Raises RetriableError, OffsetsWentBackError among them;
        OffsetsExpiredError, StoppedError; FatalError for an offset out of range with policy
        ``none``; TaskMigratedError once it has to wait although ``lost()``."""
        deadline = _Patience(self.clock, self.timeout_ms, lost)
        inputs = sorted({tp for task in tasks for tp in task.inputs})
        changelogs = sorted(
            {s.changelog for task in tasks for s in task.stores if s.changelog is not None}
        )
        ask = partial(self._retry, deadline=deadline)
        if fence:
            ask(lambda: self.ports.fence(fence), "fencing earlier writers")
        if not tasks:
            return {}, {}
        committed = ask(lambda: self._committed(inputs), "reading committed offsets")
        read_already = ask(
            lambda: self._read_already(tasks, committed), "reading committed offsets"
        )
        reused = set(inputs).intersection(changelogs)
        logs = [tp for tp in changelogs if tp not in reused]
        targets = ask(lambda: self.ports.log_ends(logs), "reading ends of changelogs")
        ends = self._stable_ends(inputs, targets, deadline)
        # A topic that is input and changelog has been applied up to its committed offset.
        read = {tp: committed[tp].offset if tp in committed else 0 for tp in reused}
        targets = {**targets, **read}
        starts = ask(lambda: self.ports.log_starts(sorted(ends)), "reading starts of topics")
        spans = {tp: (starts[tp], end) for tp, end in ends.items()}
        self._refuse_expired(tasks, committed, spans)
        started: dict[TopicPartition, int] = {}
        crash_points.reached(crash_points.RECOVERING)
        for task in tasks:
            self._restore(task, targets, deadline)
            real = self._real_ends(task, committed, spans, deadline)
            self._take_positions(task, committed, real, started, read_already)
            task.ends = {tp: ends[tp] for tp in task.inputs}
        return started, committed

    def _retry(self, operation: Callable[[], _T], what: str, deadline: _Patience) -> _T:
        def attempt() -> _T:
            deadline.check()
            return operation()

        return attempting(attempt, what, clock=self.clock, deadline=deadline, stop=self.stop)

    def _committed(self, inputs: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Stable committed offsets. OffsetsWentBackError, and none is used, if one went back."""
        # Starts first: another instance may commit and delete records between the two requests.
        starts = self._starts_of_purged(inputs)
        self.lower_bounds.raised({tp: start for tp, start in starts.items() if start > 0}, PURGED)
        committed = dict(self.ports.committed(inputs))
        require_not_migrated(self.application_id, committed)
        if filled := [tp for tp, found in committed.items() if _is(found, FILLED)]:
            raise RetriableError("the state is still being copied by everflow migrate", filled)
        others = sorted(set(self.lower_bounds.settled()).difference(inputs))
        last = self.ports.committed(others, stable=False) if others else {}
        back = self.lower_bounds.others_went_back(last, others)
        back.update(self.lower_bounds.went_back(committed, inputs))
        if back:
            raise OffsetsWentBackError(_refused(back))
        self.lower_bounds.raised({tp: found.offset for tp, found in committed.items()})
        return committed

    def _read_already(
        self, tasks: Sequence[ActiveTask], committed: Committed
    ) -> set[tuple[TaskId, str]]:
        """Topics with partitions that came while a task read them: they are read from their first
        record, whatever ``auto.offset.reset`` says of a topic that was not read before."""
        own = {
            (task.id, tp.topic): TopicPartition(tp.topic, task.id.partition)
            for task in tasks
            for tp in task.inputs
            if tp.partition != task.id.partition and tp not in committed
        }
        others = sorted(set(own.values()).difference(committed))
        # Their tasks may be running: some transaction of theirs is always pending.
        known = {*committed, *(self.ports.committed(others, stable=False) if others else ())}
        return {place for place, tp in own.items() if tp in known}

    def _starts_of_purged(self, inputs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """A partition of another task may have no leader for long: only that task waits."""
        purged = self.ports.purged()
        others = sorted(set(purged).difference(inputs))
        own = sorted(set(purged).difference(others))
        starts = dict(self.ports.log_starts(own)) if own else {}
        try:
            starts.update(self.ports.log_starts(others, known=True) if others else {})
        except RetriableError as error:
            log.debug("The starts of other tasks' repartition topics are not known: %s", error)
        return starts

    def _stable_ends(
        self, inputs: Sequence[TopicPartition], targets: Offsets, deadline: _Patience
    ) -> dict[TopicPartition, int]:
        """Last stable offsets, once no transaction is open below the changelogs' targets: markers
        land one by one (KAFKA-10167), those of offsets maybe before those of changelogs."""
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
        self, task: ActiveTask, committed: Committed, spans: Spans, deadline: _Patience
    ) -> Spans:
        """``spans``, with the log's end where at least once has committed behind the stable one."""
        known = [tp for tp in task.inputs if tp in committed]
        behind = [tp for tp in known if committed[tp].offset > spans[tp][1]]
        if not behind:
            return spans
        ends = self._retry(lambda: self.ports.log_ends(behind), "reading ends of topics", deadline)
        return {**spans, **{tp: (spans[tp][0], ends[tp]) for tp in behind}}

    def _refuse_expired(
        self, tasks: Iterable[ActiveTask], committed: Committed, spans: Spans
    ) -> None:
        """A task commits its starting offsets before it writes: without them offsets are gone."""
        for task in tasks:
            if any(tp in committed for tp in task.inputs):
                continue
            logs = [store.changelog for store in task.stores if store.changelog is not None]
            filled = [tp for tp in logs if spans[tp][1] > spans[tp][0] and tp not in task.inputs]
            if filled:
                inputs, others = map(str, task.inputs), committed.keys() - set(task.inputs)
                why = why_no_offsets(self.application_id, inputs, NO_IDS, map(str, others))
                raise OffsetsExpiredError(
                    f"Task {task.id} has no committed offsets of {some(task.inputs, _NAMED)}, but "
                    f"its changelog {filled[0]} holds records. {why} Starting would count the "
                    f"input twice. {start_over(self.application_id)}"
                )

    def _restore(self, task: ActiveTask, targets: Offsets, deadline: _Patience) -> None:
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
        committed: Committed,
        spans: Spans,
        started: dict[TopicPartition, int],
        read_already: Collection[tuple[TaskId, str]],
    ) -> None:
        task.stream_times = {}
        for tp in task.inputs:
            found = committed.get(tp)
            if found is None:
                later = (task.id, tp.topic) in read_already
                at = spans[tp][0] if later else self._reset(tp, spans[tp], "no committed offset")
                task.positions[tp] = started[tp] = at
                continue
            kept = parse_metadata(found.metadata)
            times = self.times.now(kept.stream_times, kept.layouts.get(TIMES))
            for node, time_ms in times.items():
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
                    f"{tp}: committed offset {found.offset} is beyond the end of the log ({end}): "
                    f"the topic was re-created or truncated. {start_over(self.application_id)}"
                )
        task.stream_times = self.times.fitting(task.stream_times, task.id.subtopology)

    def _reset(self, tp: TopicPartition, span: tuple[int, int], why: str) -> int:
        policy = self.offset_reset.get(tp.topic, "earliest")
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
            found = self._retry(
                lambda: self.ports.offsets_since([tp], since_ms),
                f"looking for the records of {tp} since {since_ms} ms",
                _Patience(self.clock, self.timeout_ms, lambda: False),
            )[tp]
            return span[1] if found < 0 else min(max(found, span[0]), span[1])
        return span[1] if policy == "latest" else span[0]


# --- what a migration has left beside the offsets (note 067) --------------------------------------


def require_not_migrated(application_id: str, committed: Committed) -> None:
    """ApplicationMigratedError if the application's state has gone to another one."""
    gone = [mark_in(found.metadata) for found in committed.values() if _is(found, GONE)]
    if gone and gone[0] is not None:
        to = gone[0].application_id
        raise ApplicationMigratedError(
            f"Application {application_id} was migrated to {to}, which goes on from its offsets, "
            f"so this instance does not run. Nothing was read or changed. Stop and undeploy the "
            f"instances of {application_id}, and run those of {to}. What is left of "
            f"{application_id}, its internal topics and state folders, can be deleted once {to} "
            f"has run well.",
            to=to,
        )


def _is(found: CommittedOffset, kind: str) -> bool:
    mark = mark_in(found.metadata)
    return mark is not None and mark.kind == kind


def _refused(back: Mapping[TopicPartition, WentBack]) -> str:
    worst = max(sorted(back), key=lambda tp: back[tp].bound.offset - (back[tp].offset or 0))
    offset, (bound, witness) = back[worst]
    others = f"; {len(back)} partitions are concerned" if len(back) > 1 else ""
    answer = "no committed offset" if offset is None else f"the committed offset {offset}"
    return (
        f"{worst}: the group's coordinator returns {answer}, but {bound} was committed before: "
        f"{witness}{others}. Going on there would process records twice, so tasks wait until the "
        f"coordinator returns the newer offset. Restart the broker that leads the group's "
        f"partition of __consumer_offsets, or make another one its leader: it loads the offsets "
        f"again. If they were set back on purpose, see EF-OFFSETS-WENT-BACK."
    )


# --- lower bounds of committed offsets (note 064) -------------------------------------------------
# A coordinator that lost offsets returns old ones: records behind them would be processed twice.

HERE = "this instance has seen that"
ON_DISK = "a store in the state folder has applied it"
PURGED = "records are deleted only behind what is committed"
SETTLED_MS = 10_000.0
"""The markers of a transaction have arrived by then: pending ones need no waiting."""


class LowerBound(NamedTuple):
    """At least ``offset`` is committed; ``witness``: the source of that knowledge."""

    offset: int
    witness: str


class WentBack(NamedTuple):
    """The coordinator's answer, None without one, and a committed offset above it."""

    offset: int | None
    bound: LowerBound


@dataclass
class _Known:
    """The bound of one partition, and the bound of `SETTLED_MS` ago or longer."""

    latest: LowerBound
    settling: LowerBound
    since_ms: float
    settled: LowerBound | None = None

    def settle(self, now_ms: float) -> None:
        if now_ms - self.since_ms >= SETTLED_MS:
            self.settled = _higher(self.settled or self.settling, self.settling)
            self.settling, self.since_ms = self.latest, now_ms


@dataclass
class CommittedLowerBounds:
    """Of one process; any thread may call. Bounds only rise, except by `replaced`."""

    clock: Clock
    _known: dict[TopicPartition, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def raised(self, offsets: Offsets, witness: str = HERE) -> None:
        """These, or later ones, are committed: the brokers have confirmed it."""
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            for tp, offset in offsets.items():
                bound = LowerBound(offset, witness)
                known = self._known.setdefault(tp, _Known(bound, bound, now_ms))
                known.settle(now_ms)
                known.latest = _higher(known.latest, bound)
                if witness != HERE:  # it was committed long ago
                    known.settled = _higher(known.settled or bound, bound)

    def replaced(self, offsets: Offsets) -> None:
        """As `raised`, at least once: this process has just committed them, maybe lower ones."""
        with self._lock:
            for tp, offset in offsets.items():
                if tp in self._known and offset < self._known[tp].latest.offset:
                    del self._known[tp]
        self.raised(offsets)

    def settled(self) -> dict[TopicPartition, LowerBound]:
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            for known in self._known.values():
                known.settle(now_ms)
            found = {tp: known.settled for tp, known in self._known.items()}
        return {tp: bound for tp, bound in found.items() if bound is not None}

    def went_back(
        self, committed: Committed, asked: Collection[TopicPartition]
    ) -> dict[TopicPartition, WentBack]:
        """Those whose stable offset is below its bound, or is gone although this process saw it
        committed. Between two runs of a process offsets may have expired, or were deleted."""
        with self._lock:
            lower_bounds = {tp: self._known[tp].latest for tp in asked if tp in self._known}
        return _below(lower_bounds, committed)

    def others_went_back(
        self, committed: Committed, asked: Collection[TopicPartition]
    ) -> dict[TopicPartition, WentBack]:
        """As `went_back`, of offsets that may have later ones pending: below what has settled."""
        return _below({tp: bound for tp, bound in self.settled().items() if tp in asked}, committed)


def _higher(one: LowerBound, other: LowerBound) -> LowerBound:
    return max(one, other, key=lambda bound: (bound.offset, bound.witness == HERE))


def _below(
    lower_bounds: Mapping[TopicPartition, LowerBound], committed: Committed
) -> dict[TopicPartition, WentBack]:
    """With bounds without any offset, if this process saw one committed."""
    found = {}
    for tp, bound in lower_bounds.items():
        if tp in committed and committed[tp].offset < bound.offset:
            found[tp] = WentBack(committed[tp].offset, bound)
        elif tp not in committed and bound.witness == HERE:
            found[tp] = WentBack(None, bound)
    return found


# --- transactions of instances that vanished (D6) -------------------------------------------------
# An open transaction blocks committed offsets and readers: who takes over a task fences the ids of
# processes that are gone. A member's client id ends with its process id (`assembly.client_id`).

_PROCESS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def lost_writers(
    application_id: str, open_ids: Iterable[str], clients: Collection[str], own_process: str
) -> list[str]:
    """The ``open_ids`` of processes that are no longer members. ``clients``: the members' client
    ids, read after ``open_ids``. None, if a member's process is unknown: it could own any."""
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
        ours = process != owner and thread.isdigit() and _PROCESS.fullmatch(process)
        if ours and process not in live:
            lost.append(transactional_id)
    return sorted(lost)


def fence_lost_writers(
    application_id: str,
    own_process: str,
    open_ids: Callable[[], Collection[str]],
    clients: Callable[[], Collection[str]],
    fence: Callable[[Collection[str]], None],
) -> list[str]:
    """Fence every lost writer; blocks. Returns the ids, if all were fenced; else logs the error."""
    fenced: list[str] = []
    try:
        found = open_ids()
        lost = lost_writers(application_id, found, clients() if found else (), own_process)
        if lost:
            fence(lost)
            fenced = lost
    except EverflowError as error:
        log.warning(
            "Open transactions of instances that have left the group could not be ended; their "
            "time-out ends them: %s",
            error,
        )
    if fenced:
        log.info(
            "Ended open transactions of instances that have left the group: %s", ", ".join(fenced)
        )
    return fenced
