"""Restores under way, added up for the progress line, and passed on to the user's listener."""

from __future__ import annotations

import logging
import threading

from everflow import metrics as names
from everflow.metrics import Metrics
from everflow.moves import moves
from everflow.records import TaskId
from everflow.runtime.restore.restore_listener import (
    RestoreListener,
    RestoreProgress,
    SilentListener,
)
from everflow.user_listener import ListenerGuard

log = logging.getLogger("everflow")


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
