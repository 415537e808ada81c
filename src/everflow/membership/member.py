"""This instance's membership in the group: one thread that joins, and ownership that any thread may read.

The listeners run on the group client's IO thread and only mark and queue (scenario 24). After tasks were taken
away the thread does not rejoin until ``release``: the next generation would hand them to their new owner while
their last batch still runs here (D7).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from everflow.errors import EverflowError, FatalError, RetriableError, TaskMigratedError
from everflow.kafka.group_channel import GroupChannel, GroupSettings, MemberMetadata
from everflow.membership.assignor import TaskAssignor
from everflow.records import TaskId, TopicPartition

log = logging.getLogger("everflow.membership")

_POLL_S = 0.05
_JOIN_SLICE_S = 1.0
_RETRY_S = 0.5


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
class Failed:
    """The membership cannot go on (``error`` says why); the thread has ended."""

    error: EverflowError


MemberEvent = Assigned | Revoked | Lost | Failed


@dataclass(frozen=True)
class MemberSnapshot:
    """Identity and ownership at one moment, for the commit gate.

    ``owned`` maps a partition to the number of its ownership: a new one each time the partition is assigned, so an
    equal number means "owned without a break". It is read after the metadata: an eviction clears the generation
    first, and a new generation comes only after the ownership was taken back.
    """

    metadata: MemberMetadata
    owned: Mapping[TopicPartition, int]


class GroupMember:
    """One member of the group ``application.id``.

    ``start`` joins; events arrive through ``on_event`` (called on the group client's IO thread or the membership
    thread: it must return at once, e.g. ``queue.put``) or, without one, in ``events``. Every ``Revoked`` holds the
    rejoin until ``release``. All methods are safe from any thread but not from ``on_event``.
    """

    def __init__(
        self,
        settings: GroupSettings,
        assignor: TaskAssignor,
        on_event: Callable[[MemberEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.events: queue.SimpleQueue[MemberEvent] = queue.SimpleQueue()
        self._settings = settings
        self._assignor = assignor
        self._emit = on_event or self.events.put
        self._clock = clock
        self._channel: GroupChannel | None = None
        self._owned: Mapping[TopicPartition, int] = {}
        self._serial = 0
        self._held = threading.Event()
        self._wake = threading.Event()
        self._closing = False
        self._silent = False
        self._thread: threading.Thread | None = None
        assignor.bind(self.owned)

    def start(self, timeout_s: float = 30.0) -> None:
        """Connect and begin to join, on a thread of its own.

        Raises RetriableError when no broker answers within ``timeout_s`` seconds; it may then be called again.
        """
        self._channel = GroupChannel(self._settings, self._assignor.topics, self._assignor, self, timeout_s)
        self._thread = threading.Thread(target=self._run, name="everflow-membership", daemon=True)
        self._thread.start()

    def metadata(self) -> MemberMetadata:
        """(generation, member id, instance id) at this moment; generation -1 when there is no membership."""
        return MemberMetadata(-1, "", None) if self._channel is None else self._channel.metadata()

    def snapshot(self) -> MemberSnapshot:
        """Identity and ownership for one answer of the commit gate."""
        metadata = self.metadata()
        return MemberSnapshot(metadata, self._owned)

    def owned(self) -> frozenset[TaskId]:
        """The tasks this member holds."""
        return frozenset(self._assignor.task_of(tp) for tp in self._owned)

    @property
    def stable(self) -> bool:
        """True while a member of a completed generation, with no rebalance known to be under way."""
        return self._channel is not None and self._channel.stable and not self._held.is_set()

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """at_least_once: commit (next offset, metadata text); False = deferred, commit with the next batch.

        Raises:
            TaskMigratedError: not a member (any more). RetriableError: passing. FatalError: refused for good.
        """
        if self._channel is None or self._channel.metadata().generation < 0:
            raise TaskMigratedError(f"no membership in group {self._settings.group_id}: offsets were not committed")
        return self._channel.commit(offsets)

    def hold_rejoin(self) -> None:
        """Do not join a new generation until ``release`` (a join already sent is completed first)."""
        self._held.set()

    def release(self) -> None:
        """The revoked tasks' batches have ended and they are closed: rejoin."""
        self._held.clear()
        self._wake.set()

    def request_rejoin(self) -> None:
        """Ask for a rebalance (a hot warm-up, a drain, a changed task list); the user data differ each time."""
        if self._channel is not None:
            self._channel.request_rejoin()
            self._wake.set()

    def leave(self, timeout_s: float = 10.0) -> None:
        """End the membership; the caller has drained its tasks. No events follow. Static members stay in the group."""
        self._silent = True
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    # --- on the membership thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._channel is not None
        try:
            while not self._closing:
                try:
                    self._step(self._channel)
                    pause = _POLL_S
                except RetriableError as failure:
                    log.warning("%s; trying again", failure)
                    pause = _RETRY_S
                except TaskMigratedError as failure:
                    log.warning("%s", failure)
                    pause = _POLL_S
                self._wake.wait(pause)
                self._wake.clear()
        except EverflowError as failure:
            self._fail(failure)
        except Exception as failure:
            self._fail(FatalError(f"membership of group {self._settings.group_id} ended: {failure!r}"))
        finally:
            self._close(self._channel)

    def _step(self, channel: GroupChannel) -> None:
        # A member that was evicted has nothing to wait for: others may own its tasks already.
        evicted = channel.metadata().generation < 0
        if self._held.is_set() and not channel.joining and not evicted:
            channel.keep_alive()
        else:
            channel.poll(_JOIN_SLICE_S)

    def _fail(self, error: EverflowError) -> None:
        self.on_lost(frozenset(self._owned))
        if not self._silent:
            self._emit(Failed(error))

    def _close(self, channel: GroupChannel) -> None:
        self._silent = True
        try:
            channel.close(5.0)
        except Exception as failure:
            log.warning("leaving group %s: %s", self._settings.group_id, failure)
        self._owned = {}

    # --- GroupListener: on the client's IO thread --------------------------------------------------------------

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Mark and queue."""
        self._serial += 1
        self._owned = {**self._owned, **dict.fromkeys(partitions, self._serial)}
        generation = self.metadata().generation
        if not self._silent:
            self._emit(Assigned(self._tasks(partitions), partitions, generation))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Mark, hold the rejoin and queue. The partitions stay claimed by nobody until the next join."""
        self._take_away(partitions)
        if not self._silent:
            self._held.set()
            self._emit(Revoked(self._tasks(partitions), partitions))

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Mark and queue; a hold ends, there is nothing left to hand over."""
        self._take_away(partitions)
        self._held.clear()
        if partitions and not self._silent:
            self._emit(Lost(self._tasks(partitions), partitions))

    # --- inside ----------------------------------------------------------------------------------------------

    def _take_away(self, partitions: frozenset[TopicPartition]) -> None:
        self._owned = {tp: serial for tp, serial in self._owned.items() if tp not in partitions}

    def _tasks(self, partitions: frozenset[TopicPartition]) -> frozenset[TaskId]:
        return frozenset(self._assignor.task_of(tp) for tp in partitions)
