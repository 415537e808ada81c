"""`GroupMember`: one thread joins the group and stays in it; any thread may read what it owns. What
a rebalance brings becomes events, on the group client's IO thread, which only marks and queues
(scenario 24). After tasks were taken away the thread does not rejoin until ``release``: the next
generation would hand them on while their last batch still runs here (D7)."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from everflow.assignment.user_data import AnswerError, AssignmentData, HostTasks, UserDataError
from everflow.clock import Clock, Running, SystemClock, on_thread
from everflow.errors import (
    AssignmentFailedError,
    EverflowError,
    FatalError,
    IncompatibleTopologyError,
    MissingSourceTopicError,
    ProcessIdClashError,
    RetriableError,
    ShutdownRequestedError,
    TaskMigratedError,
)
from everflow.kafka.group_channel import (
    GroupAssignor,
    GroupChannel,
    GroupListener,
    GroupSettings,
    watch_every,
)
from everflow.logs import ABOUT_ASSIGNMENT, counted, rebalance_log, some
from everflow.membership.assignor import Claims, Identity, MemberAssignor, name_of
from everflow.rebalances import FOLLOW_UP, Join, task_names
from everflow.records import MemberMetadata, TaskId, TopicPartition
from everflow.topology.known_programs import difference_of_lines


def refusal_error(group_id: str, data: AssignmentData, identity: Identity) -> EverflowError:
    if data.error is AnswerError.INCOMPATIBLE_TOPOLOGY:
        return _other_program(group_id, data, identity)
    if data.error is AnswerError.PROCESS_ID_CLASH:
        return ProcessIdClashError(
            f"Application {group_id}: {data.message}. This instance was refused; the other goes "
            f"on. Give this instance a state folder of its own: point state.dir somewhere else, or "
            f"delete the copy (the state is restored from the changelogs). If the other was only "
            f"stopped, start again when its session has ended (session.timeout.ms)."
        )
    if data.error is AnswerError.INCOMPLETE_SOURCE_METADATA:
        return MissingSourceTopicError(
            f"Application {group_id}: {data.message}. Was it deleted? Create it again, or take it "
            f"out of the program; then start the instances again."
        )
    if data.error is AnswerError.SHUTDOWN_REQUESTED:
        return ShutdownRequestedError(f"Application {group_id} shuts down: {data.message}.")
    return AssignmentFailedError(
        f"Application {group_id}: {data.message}. No task was assigned, so this instance stops."
    )


def _other_program(
    group_id: str, data: AssignmentData, identity: Identity
) -> IncompatibleTopologyError:
    differs = difference_of_lines(data.reference, identity.topology) if data.reference else ""
    shown = (
        f"Difference (before: the running program, now: this one):\n{differs}"
        if differs
        else (
            f"The lines of the running program (fingerprint {data.topology}) were not at hand; "
            f"compare describe() of both."
        )
    )
    return IncompatibleTopologyError(
        f"Application {group_id}: this instance's program does not fit the one that the group "
        f"runs, so it was refused; the others "
        f"go on. {shown}\nAsk everflow check what the change needs: everflow migrate carries the "
        "state over while the others run. Or start it under an application.id of its own, or, "
        "where no store has other types, stop all instances before the new program starts.",
        difference=differs,
    )


GATHER_MS = 1_000
"""Warm-ups turning hot are gathered for this long, counted from the first."""
AGAIN_MS = 2_000
"""A hot warm-up that the leader left where it is is named again then, and after twice that."""
AGAIN_AT_MOST_MS = 60_000
AT_ONCE_GAP_MS = 1_000
"""An assignor that always wants a follow-up at once must not keep the group rebalancing."""


class FollowUps:
    """Decides when this member asks for a rebalance: what can wait a second is gathered, and what
    the next join says anyway is not asked for again. Pure, not thread-safe; monotonic times in
    ms."""

    def __init__(self) -> None:
        self._asked: str | None = None
        self._hot: dict[TaskId, float] = {}  # not announced to the group yet -> when it is due
        # announced with a join -> how long to wait before the next time
        self._announced: dict[TaskId, float] = {}
        self._quiet: dict[TaskId, float] = {}  # not announced again before, while `reported`
        self._standby: frozenset[TaskId] = frozenset()
        self._unasked: frozenset[TaskId] = frozenset()  # standbys for which nobody waits
        self._probe_at: float | None = None
        self._last_at_once = float("-inf")
        self._requested = False

    @property
    def pending(self) -> bool:
        """True if a rebalance is wanted now (not one that waits for its time)."""
        return self._asked is not None or self._requested

    def ask(self, why: str) -> None:
        """As soon as no rebalance runs."""
        self._asked = why
        self._requested = False

    def became_hot(self, task: TaskId, now_ms: float) -> None:
        if task not in self._announced and task not in self._unasked:
            self._hot.setdefault(task, now_ms + GATHER_MS)

    def joining(self) -> None:
        self._asked = None
        self._requested = False
        for task in self._hot:
            self._announced.setdefault(task, AGAIN_MS)
        self._hot.clear()
        self._probe_at = None

    def completed(
        self,
        standby: Collection[TaskId],
        warmup: Collection[TaskId],
        followup_ms: int | None,
        now_ms: float,
        *,
        stale: bool = False,
    ) -> None:
        """A rebalance ended with this answer. ``stale``: a static member came back to what its
        former life had; that its standbys catch up must cost no rebalance (KIP-345)."""
        self._standby = frozenset(standby)
        self._unasked = self._standby if stale else frozenset()
        self._hot = {
            task: due for task, due in self._hot.items() if task in standby or task in warmup
        }
        for task, wait in list(self._announced.items()):
            if task not in warmup:
                del self._announced[task]
            elif task not in self._hot:
                self._hot[task] = now_ms + wait
                self._quiet[task] = now_ms + AGAIN_AT_MOST_MS
                self._announced[task] = min(2 * wait, AGAIN_AT_MOST_MS)
        if followup_ms is None:
            self._probe_at = None
        elif followup_ms > 0:
            self._probe_at = now_ms + followup_ms
        else:
            self._probe_at = self._last_at_once = max(now_ms, self._last_at_once + AT_ONCE_GAP_MS)

    def lost(self) -> None:
        self._hot.clear()
        self._announced.clear()
        self._unasked = frozenset()
        self._probe_at = None

    def due(
        self, now_ms: float, rebalancing: bool, reported: Collection[TaskId] = ()
    ) -> str | None:
        """Why to ask for a rebalance now, or None. The same reason is given once per join.
        ``reported``: tasks of which nobody waits for a later report than the last join's."""
        if rebalancing or self._requested:
            return None
        for task, at_ms in self._hot.items():
            until_ms = self._quiet.get(task, at_ms)
            if at_ms <= now_ms < until_ms and task in self._announced and task in reported:
                self._hot[task] = min(now_ms + AGAIN_MS, until_ms)
        why = self._asked
        if why is None and self._hot and min(self._hot.values()) <= now_ms:
            why = self._caught_up()
        if why is None and self._probe_at is not None and self._probe_at <= now_ms:
            why = FOLLOW_UP
        self._requested = why is not None
        return why

    def _caught_up(self) -> str:
        standbys = [task for task in sorted(self._hot) if task in self._standby]
        warmups = [task for task in sorted(self._hot) if task not in self._standby]
        parts = [
            f"{counted(len(tasks), noun)} caught up ({some(tasks)})"
            for noun, tasks in (("warm-up", warmups), ("standby", standbys))
            if tasks
        ]
        return "; ".join(parts)


log = logging.getLogger("everflow.membership")

METADATA_TIMEOUT_MS = 30_000
"""For so long a leader may miss a source topic before this member gives up."""
CLASH_MARGIN_MS = 3_000
"""So long after the session's time-out a former life may still be named as a clash."""
SPREADS_MS = 30_000.0
"""For so long at most who asked all to end stays until the others have heard it."""
FINISHING_MS = 1_000.0
"""For so long at most a join is put off for a batch that runs again."""
_POLL_MS = 50.0
_JOIN_SLICE_S = 1.0
_RETRY_S = 0.5
_LEAVE_SLACK_S = 5.0


@dataclass(frozen=True)
class Assigned:
    """Tasks are this member's from now on; ``partitions`` are their inputs."""

    tasks: frozenset[TaskId]
    partitions: frozenset[TopicPartition]
    generation: int


@dataclass(frozen=True)
class Revoked:
    """Tasks have to be given up: end their batches, close them, then ``GroupMember.release()``."""

    tasks: frozenset[TaskId]
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class Lost:
    """Membership was lost, others may own the tasks already: close them without committing."""

    tasks: frozenset[TaskId]
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class Roles:
    """The copies this member keeps, after every completed rebalance, after its Assigned and
    Revoked. ``hosts`` by end point; None: left out for its size. ``draining_done``: nobody could
    take the rest. ``join``: how it came to this rebalance."""

    generation: int
    standby: frozenset[TaskId]
    warmup: frozenset[TaskId]
    hosts: Mapping[str, HostTasks] | None
    draining_done: bool
    join: Join | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Failed:
    """The membership cannot go on (``error`` says why); the thread has ended, or ends now."""

    error: EverflowError


MemberEvent = Assigned | Revoked | Lost | Roles | Failed


class MemberChannel(Protocol):
    """What a member needs of its group; `GroupChannel` is the real one and says what each does."""

    def subscribe(self, topics: Iterable[str]) -> None: ...
    def poll(self, timeout_s: float) -> None: ...
    def keep_alive(self) -> None: ...
    @property
    def joining(self) -> bool: ...
    @property
    def stable(self) -> bool: ...
    @property
    def heartbeats(self) -> int: ...
    def request_rejoin(self) -> None: ...
    def metadata(self) -> MemberMetadata: ...
    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool: ...
    def close(self, timeout_s: float, leave_group: bool | None = None) -> bool: ...


OpenChannel = Callable[
    [GroupSettings, Iterable[str], GroupAssignor, GroupListener, float], MemberChannel
]


class GroupMember:
    """One member of the group ``application.id``. Events arrive through ``on_event`` (on the group
    client's IO thread or the membership thread: it returns at once), else in ``events``. Every
    ``Revoked`` holds the rejoin until ``release``. Safe from any thread but not from ``on_event``.
    ``finishing``: a batch in flight should not be refused once more; quick, any thread. ``drive``
    calls ``turn`` until None, on ``wake`` or after the seconds that it returned."""

    def __init__(
        self,
        settings: GroupSettings,
        assignor: MemberAssignor,
        on_event: Callable[[MemberEvent], None] | None = None,
        clock: Clock | None = None,
        open_channel: OpenChannel = GroupChannel,
        finishing: Callable[[], bool] = lambda: False,
        drive: Callable[[GroupMember], Running] | None = None,
    ) -> None:
        self.events: queue.SimpleQueue[MemberEvent] = queue.SimpleQueue()
        self._settings = settings
        self._assignor = assignor
        self._emit = on_event or self.events.put
        self._clock = clock or SystemClock()
        self._open_channel = open_channel
        self._finishing = finishing
        self._finishing_since_ms: float | None = None
        self._channel: MemberChannel | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._owned: Mapping[TopicPartition, int] = {}
        """A partition's number is a new one each time it is assigned."""
        self._serial = 0
        self._generation = -1  # the last one completed without an error
        self._completed_ms = self._clock.monotonic_ms()
        self._joined_ms: float | None = None
        """When the first join after the last answer went out."""
        self._why_asked = ""
        self._follow_ups = FollowUps()
        self._asking = threading.Lock()  # for _follow_ups, and for giving everything up
        self._revoking = threading.Event()
        self.wake = threading.Event()
        self._drained = threading.Event()
        self._closing, self._leave_s = False, 5.0
        self._silent = False
        self._leave_group: bool | None = None
        self._error: EverflowError | None = None
        self._incomplete_since: float | None = None
        # when this member gives up waiting, and what to say then
        self._ending: tuple[float, EverflowError] | None = None
        self._drive = drive or (lambda member: on_thread("everflow-membership", member._run))
        self._running: Running | None = None
        assignor.bind(self._claims)

    # --- for the owner

    def start(self, timeout_s: float = 30.0) -> None:
        """Connect and begin to join, on a thread of its own. RetriableError: no broker answers in
        ``timeout_s`` s; try again."""
        self.open(timeout_s)
        self._running = self._drive(self)

    def metadata(self) -> MemberMetadata:
        """At this moment; generation -1 when there is no membership."""
        return MemberMetadata(-1, "", None) if self._channel is None else self._channel.metadata()

    def owned(self) -> frozenset[TaskId]:
        return self._tasks(self._owned)

    @property
    def stable(self) -> bool:
        """True in a completed generation while no rebalance is known or wanted, and no end of this
        member is awaited."""
        settled = (
            self._ending is None and not self._revoking.is_set() and not self._follow_ups.pending
        )
        return self._channel is not None and self._channel.stable and settled

    @property
    def heartbeats(self) -> int:
        """How many the group has confirmed. Once two more are, one was *sent* after the first
        check: what this owned without a break until now was nobody else's."""
        return 0 if self._channel is None else self._channel.heartbeats

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """at_least_once: commit (next offset, metadata text); False = deferred. TaskMigratedError:
        not a member (any more); RetriableError; FatalError: refused for good."""
        if self._channel is None or self._channel.metadata().generation < 0:
            raise TaskMigratedError(
                f"no membership in group {self._settings.group_id}: offsets were not committed"
            )
        return self._channel.commit(offsets)

    def release(self) -> None:
        """The revoked tasks' batches have ended and they are closed: rejoin."""
        if self._revoking.is_set():
            self._revoking.clear()
            if self._handed_over:
                self._drained.set()
                self.wake.set()
            else:
                self.request_rejoin("revoked tasks are closed")

    def request_rejoin(self, why: str = "asked for") -> None:
        """Ask for a rebalance at once; the user data differ each time."""
        with self._asking:
            self._follow_ups.ask(why)
        self.wake.set()

    def became_hot(self, task: TaskId) -> None:
        """A warm-up, or a standby whose active waits, reached the acceptable lag (`FollowUps`)."""
        with self._asking:
            self._follow_ups.became_hot(task, self._clock.monotonic_ms())
        self.wake.set()

    def lost_copies(self) -> None:
        """No copy of this member follows any more: a migrator that counts on them hears of it."""
        if self._assignor.held:
            self.request_rejoin("its copies cannot follow their changelogs")

    def drain(self, leave_group: bool | None = None) -> None:
        """Ask the others to take this member's tasks, each once somebody has a hot copy; events go
        on. Having released the last one it leaves, as ``leave_group`` says: that hands it over."""
        if not self._assignor.draining:
            self._leave_group = leave_group
            self._assignor.draining = True
            self.request_rejoin("this member drains")

    def await_drained(self, timeout_s: float) -> bool:
        return self._clock.wait(self._drained, timeout_s * 1000)

    def set_threads(self, threads: int) -> None:
        """So many stream threads work here from now on (KIP-663): the balance is per thread."""
        self._assignor.identity = replace(self._assignor.identity, threads=threads)
        self.request_rejoin(f"{threads} stream threads work here now")

    def read_more(
        self, subtopologies: Mapping[int, Sequence[str]], counts: Mapping[str, int]
    ) -> None:
        known = self._assignor.topics
        self._assignor.read_more(subtopologies, counts)
        if resized := sorted(known.intersection(counts)):
            self.request_rejoin(f"{', '.join(resized)} has more partitions")
        self.wake.set()

    def shut_down_application(self) -> None:
        """Ask every instance to end, this one last: each gets Failed(ShutdownRequestedError)
        (KIP-671)."""
        self._assignor.shutting_down_all = True
        gives_up_ms = self._clock.monotonic_ms() + SPREADS_MS
        late = ShutdownRequestedError(
            f"Application {self._settings.group_id} shuts down, as this instance asked. Not all "
            f"others were seen to end within {SPREADS_MS / 1000:g} s: look whether some still run."
        )
        self._ending = gives_up_ms, late
        self.request_rejoin("the whole application is to shut down")

    def leave(self, timeout_s: float = 5.0, leave_group: bool | None = None) -> None:
        """End the membership, unless a drain has. No events follow. The group is notified
        for ``timeout_s`` seconds at most. ``leave_group``: see `GroupChannel.close`."""
        self._silent = True
        if not self._closing:
            self._leave_group = leave_group
        self._closing, self._leave_s = True, timeout_s
        self.wake.set()
        if self._running is not None:
            self._running.join(timeout_s + _LEAVE_SLACK_S)

    # --- on the membership thread, or a simulation's

    def open(self, timeout_s: float = 30.0) -> None:
        topics = self._assignor.topics
        self._channel = self._open_channel(
            self._settings,
            topics,
            self._assignor,
            self,
            timeout_s,
        )
        self._subscribed = topics

    def turn(self) -> float | None:
        """`step`, until it is over or ``leave`` was called: then `close`, and None."""
        again = None if self._closing else self.step()
        if again is None:
            self.close(self._leave_s)
        return again

    def step(self) -> float | None:
        """One check of the group. Seconds until the next, or None: it is over, call ``close``."""
        assert self._channel is not None, "open() first"
        if self._handed_over:
            return None
        try:
            self._step(self._channel)
            if self._error is not None:
                raise self._error
        except RetriableError as failure:
            log.warning("%s; trying again", failure)
            return _RETRY_S
        except TaskMigratedError as failure:
            log.warning("%s", failure)
        except EverflowError as failure:
            self._fail(failure)
            return None
        except Exception as failure:
            log.exception("the membership failed")
            self._fail(
                FatalError(f"membership of group {self._settings.group_id} ended: {failure!r}")
            )
            return None
        return watch_every(self._clock.monotonic_ms() - self._completed_ms, _POLL_MS) / 1000

    def close(self, timeout_s: float = 5.0) -> None:
        """Leave as ``leave`` said and give up everything; no events follow."""
        self._silent = True
        try:
            # Who was refused or ends all has nothing to return to, and the others would wait.
            leave_group = True if self._ending is not None else self._leave_group
            if self._channel is not None and not self._channel.close(timeout_s, leave_group):
                rebalance_log.warning(
                    (
                        "Group %s could not be told that this instance leaves: the others notice "
                        "within %g s (session.timeout.ms)"
                    ),
                    self._settings.group_id,
                    self._settings.session_timeout_ms / 1000,
                )
        except Exception as failure:
            log.warning("leaving group %s: %s", self._settings.group_id, failure)
        self._owned = {}
        self._drained.set()

    @property
    def _handed_over(self) -> bool:
        """A drain has nothing left to give away: leaving gives the others what was released
        last."""
        return (
            self._assignor.draining
            and self._generation >= 0
            and not self._owned
            and not self._revoking.is_set()
        )

    def _run(self) -> None:
        while (pause := self.turn()) is not None:
            self.wake.wait(pause)
            self.wake.clear()

    def _step(self, channel: MemberChannel) -> None:
        self._notice_eviction(channel)
        if self._subscribed != (topics := self._assignor.topics):
            channel.subscribe(topics)
            self._subscribed = topics
            self.request_rejoin("topics came that a pattern names")
        self._give_up()
        if self._error is not None:
            return  # a poll in vain, of brokers that are away, must not delay the end
        reported = self._assignor.reported()
        with self._asking:
            why = self._follow_ups.due(self._clock.monotonic_ms(), channel.joining, reported)
        if why is not None:
            rebalance_log.info("Asking for a rebalance: %s", why, extra=ABOUT_ASSIGNMENT)
            self._why_asked = why
            channel.request_rejoin()
        if not channel.joining and (self._revoking.is_set() or self._must_finish()):
            channel.keep_alive()
        else:
            channel.poll(_JOIN_SLICE_S)

    def _must_finish(self) -> bool:
        """True while the next generation waits for a refused batch, at most `FINISHING_MS`."""
        now_ms = self._clock.monotonic_ms()
        if not self._finishing():
            self._finishing_since_ms = None
            return False
        if self._finishing_since_ms is None:
            self._finishing_since_ms = now_ms
        return now_ms - self._finishing_since_ms < FINISHING_MS

    def _notice_eviction(self, channel: MemberChannel) -> None:
        """Without a generation others may own the tasks already: there is nothing to hand over."""
        if channel.metadata().generation < 0 and (self._owned or self._revoking.is_set()):
            self._lose()

    def _lose(self) -> None:
        with self._asking:  # both threads may notice it
            lost, self._owned = frozenset(self._owned), {}
            self._follow_ups.lost()
        self._generation = -1
        self._revoking.clear()
        if lost and not self._silent:
            self._emit(Lost(self._tasks(lost), lost))

    def _fail(self, error: EverflowError) -> None:
        self._lose()
        self._drained.set()
        if not self._silent:
            self._emit(Failed(error))

    # --- on the client's IO thread

    def _claims(self) -> Claims:
        """A join goes out; a claim from before an eviction would be false."""
        if self._channel is not None:
            self._notice_eviction(self._channel)
        with self._asking:
            self._follow_ups.joining()
        if self._joined_ms is None:
            self._joined_ms = self._clock.monotonic_ms()
        return Claims(self.owned(), self._generation)

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes, generation: int
    ) -> None:
        began_ms, self._joined_ms = self._joined_ms, None
        asked, self._why_asked = self._why_asked, ""
        try:
            data = self._assignor.answer(user_data)
        except UserDataError as failure:
            self._error = FatalError(
                f"group {self._settings.group_id}, generation {generation}: {failure}"
            )
            return
        if data.error is not AnswerError.NONE:
            self._refused(data)
            return
        self._incomplete_since = None
        if not self._assignor.shutting_down_all:
            self._ending = None
        partitions = self._assignor.known(partitions, data.active)
        stale = self._assignor.is_stale(data)
        taken = self._taken_from_stale(partitions, data) if stale else partitions
        self._take(taken, generation)
        with self._asking:
            now_ms = self._clock.monotonic_ms()
            self._follow_ups.completed(
                data.standby, data.warmup, data.followup_ms, now_ms, stale=stale
            )
        if self._handed_over or (self._assignor.draining and data.draining_done):
            self._drained.set()
        if not self._silent:
            hosts = {host: task_names(on.active) for host, on in (data.hosts or {}).items()}
            join = Join(
                member=name_of(self.metadata().member_id, self._assignor.identity.endpoint),
                generation=generation,
                began_ms=self._completed_ms if began_ms is None else began_ms,
                standby=data.standby,
                warmup=data.warmup,
                asked=asked,
                hosts=hosts or None,
                decision=self._assignor.decision,
            )
            self._emit(
                Roles(
                    generation,
                    data.standby,
                    data.warmup,
                    data.hosts,
                    data.draining_done,
                    join,
                )
            )

    def _take(self, taken: frozenset[TopicPartition], generation: int) -> None:
        revoked = frozenset(self._owned) - taken
        added = taken - frozenset(self._owned)
        if added:
            self._serial += 1
        kept = {tp: serial for tp, serial in self._owned.items() if tp in taken}
        # A task that gets or loses one topic of several (note 037) is the same task.
        before, after = self._tasks(self._owned), self._tasks(taken)
        if before - after and not self._silent:
            # before they are gone from what is owned: else it would look as if they were handed
            # over
            self._revoking.set()
        self._owned = {**kept, **dict.fromkeys(added, self._serial)}
        self._generation, self._completed_ms = generation, self._clock.monotonic_ms()
        if before - after and not self._silent:
            self._emit(Revoked(before - after, revoked))
        if after - before and not self._silent:
            self._emit(Assigned(after - before, added, generation))

    def _taken_from_stale(
        self, partitions: frozenset[TopicPartition], data: AssignmentData
    ) -> frozenset[TopicPartition]:
        """A static member got what its former life had (KIP-345): right for a bounce, not for
        another program or an empty disk (scenario 22), for which it asks for a rebalance."""
        if data.topology != self._assignor.topology:
            self.request_rejoin("this instance came back with another program")
            return frozenset()
        cold = self._assignor.cold(self._tasks(partitions))
        if cold:
            self.request_rejoin(f"this instance came back without the state of {len(cold)} tasks")
        return frozenset(tp for tp in partitions if self._assignor.task_of(tp) not in cold)

    def _refused(self, data: AssignmentData) -> None:
        """No assignment: a member that goes on keeps its tasks, as no other got them."""
        now_ms = self._clock.monotonic_ms()
        if data.error is AnswerError.UNSUPPORTED_VERSION:
            self.request_rejoin(f"the leader reads user data up to version {data.latest_version}")
        elif self._assignor.is_stale(data):
            self.request_rejoin("the answer was to a former life of this instance")
        elif data.error is AnswerError.INCOMPLETE_SOURCE_METADATA and not self._missing_too_long(
            now_ms
        ):
            with self._asking:
                self._follow_ups.completed((), (), data.followup_ms, now_ms)
        else:
            error = refusal_error(self._settings.group_id, data, self._assignor.identity)
            if data.error is AnswerError.PROCESS_ID_CLASH and not self._owned:
                self._await_former_life(now_ms, error)
            elif self._is_awaited(data):
                rebalance_log.info("%s This instance ends when the others have left.", error)
            else:
                self._end_with(error)

    def _await_former_life(self, now_ms: float, error: EverflowError) -> None:
        """Killed while it joined and started again, this instance meets itself until its session
        ends. A clone of a running instance (scenario 31) is still there after that."""
        if self._ending is None:
            wait_ms = self._settings.session_timeout_ms + CLASH_MARGIN_MS
            log.warning("%s Waiting %g s: it may be its own former life.", error, wait_ms / 1000)
            self._ending = (now_ms + wait_ms, error)

    def _is_awaited(self, data: AssignmentData) -> bool:
        """True if this member asked all to end, and has to tell it again to those that missed it:
        its leaving starts a generation that knows nothing of it."""
        return (
            data.error is AnswerError.SHUTDOWN_REQUESTED
            and self._assignor.shutting_down_all
            and not self._assignor.all_asked
        )

    def _give_up(self) -> None:
        if self._ending is not None and self._clock.monotonic_ms() >= self._ending[0]:
            self._end_with(self._ending[1])

    def _end_with(self, error: EverflowError) -> None:
        self._leave_group = True
        self._error = error

    def _missing_too_long(self, now_ms: float) -> bool:
        if self._incomplete_since is None:
            self._incomplete_since = now_ms
        return now_ms - self._incomplete_since >= METADATA_TIMEOUT_MS

    def _tasks(self, partitions: Iterable[TopicPartition]) -> frozenset[TaskId]:
        return frozenset(self._assignor.task_of(tp) for tp in partitions)
