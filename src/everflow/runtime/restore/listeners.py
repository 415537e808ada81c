"""What a user is told of restores (KIP-988 for standby tasks: `standby_listener`)."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from everflow import metrics as names
from everflow.metrics import Metrics
from everflow.moves import moves
from everflow.records import TaskId, TopicPartition
from everflow.user_listener import ListenerGuard

log = logging.getLogger("everflow")


@dataclass(frozen=True, kw_only=True)
class RestoreProgress:
    """One store's restore, as far as it is; offsets of the changelog, seconds since it began."""

    task: TaskId
    store: str
    changelog: TopicPartition
    start: int
    end: int
    position: int
    records: int
    elapsed_s: float
    rebuild: bool = False
    """Whether the store was not trusted and begins empty; ``reason`` (`RestorePlan`) says why."""
    reason: str = ""

    @property
    def done(self) -> bool:
        """Whether the whole range is in the store."""
        return self.position >= self.end

    @property
    def fraction(self) -> float:
        """Share of the offsets that are done, 0 to 1."""
        return (
            1.0
            if self.end <= self.start
            else (self.position - self.start) / (self.end - self.start)
        )

    @property
    def rate(self) -> float:
        """Records a second so far; 0 before the first chunk."""
        return self.records / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Expected seconds to the end by the offsets done so far; None before the first chunk."""
        if self.done:
            return 0.0
        if self.position <= self.start or self.elapsed_s <= 0:
            return None
        return self.elapsed_s * (self.end - self.position) / (self.position - self.start)


class RestoreListener(Protocol):
    """Told in this order: start, batch (per chunk), then end or suspended (KIP-988 gave the last
    its name).

    Called on the restoring thread; return at once.
    """

    def restore_start(self, progress: RestoreProgress) -> None:
        """Restoring begins; ``position`` is the start."""

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        """A chunk of ``records`` records has been stored."""

    def restore_end(self, progress: RestoreProgress) -> None:
        """The store holds its changelog up to the end that `restore_start` told."""

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        """It ended early: the task went away, or reading failed. The store keeps what it has."""


class SilentListener:
    """A `RestoreListener` that does nothing."""

    def restore_start(self, progress: RestoreProgress) -> None: ...

    def batch_restored(self, progress: RestoreProgress, records: int) -> None: ...

    def restore_end(self, progress: RestoreProgress) -> None: ...

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None: ...


# --- restore progress -----------------------------------------------------------------------------
# Restores under way, added up for the progress line, and passed on to the user's listener.


class RestoreTracker:
    """A `RestoreListener` called from the restore threads and the state updater; the user's
    ``listener`` cannot end either."""

    def __init__(self, metrics: Metrics) -> None:
        self.listener: RestoreListener = SilentListener()
        self._guard = ListenerGuard("restore listener")
        self._metrics = metrics
        self._lock = threading.Lock()
        self._active: dict[tuple[TaskId, str], RestoreProgress] = {}

    def fraction(self) -> float | None:
        """Share of the offsets that are done, over all restores under way; None when none is."""
        with self._lock:
            active = list(self._active.values())
        total = sum(p.end - p.start for p in active)
        if not total:
            return None
        return sum(p.position - p.start for p in active) / total

    def progress(self) -> dict[TaskId, list[RestoreProgress]]:
        """The restores under way, by task."""
        found: dict[TaskId, list[RestoreProgress]] = {}
        with self._lock:
            for (task, _), progress in self._active.items():
                found.setdefault(task, []).append(progress)
        return found

    def positions(self) -> dict[TaskId, int]:
        """Changelog positions of the stores under way, summed per task."""
        return {task: sum(p.position for p in listed) for task, listed in self.progress().items()}

    def restore_start(self, progress: RestoreProgress) -> None:
        """See `RestoreListener`. A store that is not trusted is rebuilt from all of its changelog:
        that is shown (D5)."""
        if progress.rebuild:
            log.warning(
                "Rebuilding %s of task %s from its changelog: %s",
                progress.store,
                progress.task,
                progress.reason,
            )
        self._note(progress)
        self._guard.tell("restore_start", lambda: self.listener.restore_start(progress))

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        self._metrics.add(names.RESTORED_RECORDS, records)
        self._note(progress)
        self._guard.tell("batch_restored", lambda: self.listener.batch_restored(progress, records))

    def restore_end(self, progress: RestoreProgress) -> None:
        self._forget(progress)
        if progress.records:
            moves.info(
                "Restored %s of task %s: %d records in %.1f s",
                progress.store,
                progress.task,
                progress.records,
                progress.elapsed_s,
            )
        self._guard.tell("restore_end", lambda: self.listener.restore_end(progress))

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        self._forget(progress)
        self._guard.tell(
            "restore_suspended", lambda: self.listener.restore_suspended(progress, reason)
        )

    def _note(self, progress: RestoreProgress) -> None:
        with self._lock:
            self._active[progress.task, progress.store] = progress
            self._count()

    def _forget(self, progress: RestoreProgress) -> None:
        with self._lock:
            self._active.pop((progress.task, progress.store), None)
            self._count()

    def _count(self) -> None:
        self._metrics.set(
            names.RESTORE_REMAINING, sum(p.end - p.position for p in self._active.values())
        )


# --- standby listener -----------------------------------------------------------------------------
# What a user is told of standby tasks (KIP-988).


class SuspendReason(enum.Enum):
    """Why a standby stopped following: its task went elsewhere, or becomes active here."""

    MIGRATED = "MIGRATED"
    PROMOTED = "PROMOTED"


class StandbyUpdateListener(Protocol):
    """Told per store of a standby: start, batch after batch, suspended. Called on the state
    updater's thread: return at once.

    In ``progress`` ``end`` is the changelog's last stable offset as far as known.
    """

    def update_start(self, progress: RestoreProgress) -> None:
        """The store begins to follow its changelog at ``progress.position``."""

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None:
        """``records`` records have been stored."""

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None:
        """It follows no more; the store keeps what it has."""


class SilentStandbyListener:
    """A `StandbyUpdateListener` that does nothing."""

    def update_start(self, progress: RestoreProgress) -> None: ...

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None: ...

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None: ...


class GuardedStandbyListener:
    """A `StandbyUpdateListener` that passes everything on to the user's and survives what that
    raises."""

    def __init__(self, listener: Callable[[], StandbyUpdateListener]) -> None:
        """``listener``: the user's, as it is set now."""
        self._listener = listener
        self._guard = ListenerGuard("standby update listener")

    def update_start(self, progress: RestoreProgress) -> None:
        self._guard.tell("update_start", lambda: self._listener().update_start(progress))

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None:
        self._guard.tell("batch_loaded", lambda: self._listener().batch_loaded(progress, records))

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None:
        self._guard.tell(
            "update_suspended", lambda: self._listener().update_suspended(progress, reason)
        )
