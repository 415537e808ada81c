"""Reports restores, and the progress of standby tasks (KIP-988), to the user's listeners."""

from __future__ import annotations

import enum
import logging
import threading
from dataclasses import dataclass
from typing import Protocol

from everflow import metrics as names
from everflow.logs import rebalance_log
from everflow.metrics import Metrics
from everflow.rebalances import Restored
from everflow.records import TaskId, TopicPartition
from everflow.user_program import ListenerGuard

log = logging.getLogger("everflow")


@dataclass(frozen=True, kw_only=True)
class RestoreProgress:
    """Progress of one store's restore, in changelog offsets and in seconds since it began."""

    task: TaskId
    store: str
    changelog: TopicPartition
    start: int
    end: int
    position: int
    records: int
    elapsed_s: float
    rebuild: bool = False
    """True if the store was not trusted and begins empty; ``reason`` (`RestorePlan`) says why."""
    reason: str = ""
    bytes: int = 0
    """Of the records' keys and values."""

    @property
    def done(self) -> bool:
        """True if ``position`` has reached ``end``."""
        return self.position >= self.end

    @property
    def fraction(self) -> float:
        """Share of the offsets from ``start`` to ``end`` that are restored, 0 to 1."""
        offsets = self.end - self.start
        return 1.0 if offsets <= 0 else (self.position - self.start) / offsets

    @property
    def rate(self) -> float:
        """Records per second since the restore began; 0 before the first chunk."""
        return self.records / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Expected seconds until the end, at the average speed so far; None before the first chunk,
        0 at the end."""
        if self.done:
            return 0.0
        if self.position <= self.start or self.elapsed_s <= 0:
            return None
        return self.elapsed_s * (self.end - self.position) / (self.position - self.start)


class RestoreListener(Protocol):
    """Methods called for each store that is restored: first `restore_start`, then `batch_restored`
    per chunk, last `restore_end` or `restore_suspended`. Called on the restoring thread: return at
    once, as the restore waits."""

    def restore_start(self, progress: RestoreProgress) -> None:
        """The restore begins at the changelog offset ``progress.position``."""

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        """A chunk of ``records`` records has been stored."""

    def restore_end(self, progress: RestoreProgress) -> None:
        """The store is restored up to ``progress.end``."""

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        """The restore ended early, for instance because the task was revoked or reading failed;
        ``reason`` says why."""


class RestoreTracker:
    """Adds up the restores under way; calls the user's ``listener``. From any thread."""

    def __init__(self, metrics: Metrics) -> None:
        self.listener: RestoreListener | None = None
        self._guard = ListenerGuard("restore listener")
        self._metrics = metrics
        self._lock = threading.Lock()
        self._active: dict[tuple[TaskId, str], RestoreProgress] = {}
        self._restored = Restored()

    def restored(self) -> Restored:
        return self._restored

    def fraction(self) -> float | None:
        with self._lock:
            active = list(self._active.values())
        total = sum(p.end - p.start for p in active)
        if not total:
            return None
        return sum(p.position - p.start for p in active) / total

    def progress(self) -> dict[TaskId, list[RestoreProgress]]:
        found: dict[TaskId, list[RestoreProgress]] = {}
        with self._lock:
            for (task, _), progress in self._active.items():
                found.setdefault(task, []).append(progress)
        return found

    def positions(self) -> dict[TaskId, int]:
        return {task: sum(p.position for p in listed) for task, listed in self.progress().items()}

    def restore_start(self, progress: RestoreProgress) -> None:
        if progress.rebuild:
            text = "Rebuilding %s of task %s from its changelog: %s"
            log.warning(text, progress.store, progress.task, progress.reason)
        self._note(progress)
        self._tell("restore_start", progress)

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        self._metrics.add(names.RESTORED_RECORDS, records)
        with self._lock:
            before = self._active.get((progress.task, progress.store))
            more = progress.bytes - (0 if before is None else before.bytes)
            self._restored = Restored(self._restored.records + records, self._restored.bytes + more)
        self._note(progress)
        self._tell("batch_restored", progress, records)

    def restore_end(self, progress: RestoreProgress) -> None:
        self._forget(progress)
        if progress.records:
            text, of = "Restored %s of task %s: %d records in %.1f s", progress
            rebalance_log.info(text, of.store, of.task, of.records, of.elapsed_s)
        self._tell("restore_end", progress)

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        self._forget(progress)
        self._tell("restore_suspended", progress, reason)

    def _tell(self, event: str, *about: object) -> None:
        listener = self.listener
        if listener is not None:
            self._guard.tell(event, lambda: getattr(listener, event)(*about))

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


class SuspendReason(enum.Enum):
    """Why a store of a standby stopped following its changelog. PROMOTED: its task becomes active
    on this instance; MIGRATED: any other reason, usually that the task left this instance."""

    MIGRATED = "MIGRATED"
    PROMOTED = "PROMOTED"


class StandbyUpdateListener(Protocol):
    """Methods called for each store of a standby task: first `update_start`, then `batch_loaded`
    per batch, last `update_suspended`. Called on the state updater's thread: return at once, as all
    standby tasks wait.
    ``progress.end``: the changelog's last known stable offset."""

    def update_start(self, progress: RestoreProgress) -> None:
        """The store starts to follow its changelog at ``progress.position``."""

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None:
        """A batch of ``records`` records has been stored."""

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None:
        """The store stops following its changelog."""
