"""Asks whether a migration into this application has switched (note 067)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from everflow.clock import Clock, on_thread
from everflow.errors import EverflowError

log = logging.getLogger("everflow")

PERIOD_MS = 50.0
"""Of one partition, and the tasks stand still meanwhile."""


@dataclass
class SwitchWatch:
    """``filled``: whether the state is still being copied; blocks; EverflowError. ``switched``:
    called once, on the watch's thread, which then ends."""

    filled: Callable[[], bool]
    switched: Callable[[], None]
    clock: Clock
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        on_thread("everflow-switch-watch", self._run)

    def close(self) -> None:
        self._stop.set()

    def check_once(self) -> bool:
        """True if it has switched."""
        try:
            over = not self.filled()
        except EverflowError as error:
            log.debug("The mark of the migration cannot be read now: %s", error)
            return False
        if over:
            self.switched()
        return over

    def _run(self) -> None:
        while not self.clock.wait(self._stop, PERIOD_MS):
            if self.check_once():
                return
