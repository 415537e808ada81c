"""What the progress line says about stores being restored."""

from __future__ import annotations

import threading

from everflow.records import TaskId
from everflow.runtime.restoration import RestoreProgress


class RestoreWatch:
    """A `RestoreListener` that keeps the share restored. Told by the restoring threads, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[TaskId, str], RestoreProgress] = {}

    def share(self) -> float | None:
        """Restored offsets over those of all stores being restored now, 0 to 1; None if there is none."""
        with self._lock:
            running = list(self._running.values())
        total = sum(progress.end - progress.start for progress in running)
        if total <= 0:
            return None
        return sum(progress.position - progress.start for progress in running) / total

    def restore_start(self, progress: RestoreProgress) -> None:
        """Listener method."""
        self._note(progress)

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        """Listener method."""
        self._note(progress)

    def restore_end(self, progress: RestoreProgress) -> None:
        """Listener method."""
        self._forget(progress)

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        """Listener method."""
        self._forget(progress)

    def _note(self, progress: RestoreProgress) -> None:
        with self._lock:
            self._running[progress.task, progress.store] = progress

    def _forget(self, progress: RestoreProgress) -> None:
        with self._lock:
            self._running.pop((progress.task, progress.store), None)
