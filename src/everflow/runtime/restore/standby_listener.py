"""What a user is told of standby tasks (KIP-988)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from everflow.runtime.restore.restore_listener import RestoreProgress
from everflow.user_listener import ListenerGuard


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

    def update_start(self, progress: RestoreProgress) -> None:
        """Nothing."""

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None:
        """Nothing."""

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None:
        """Nothing."""


class GuardedStandbyListener:
    """A `StandbyUpdateListener` that passes everything on to the user's and survives what that
    raises."""

    def __init__(self, listener: Callable[[], StandbyUpdateListener]) -> None:
        """``listener``: the user's, as it is set now."""
        self._listener = listener
        self._guard = ListenerGuard("standby update listener")

    def update_start(self, progress: RestoreProgress) -> None:
        """Passed on."""
        self._guard.tell("update_start", lambda: self._listener().update_start(progress))

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None:
        """Passed on."""
        self._guard.tell("batch_loaded", lambda: self._listener().batch_loaded(progress, records))

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None:
        """Passed on."""
        self._guard.tell(
            "update_suspended", lambda: self._listener().update_suspended(progress, reason)
        )
