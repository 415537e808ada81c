"""Asks whether a migration into this application has switched (note 067)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from everflow.clock import Clock, on_thread
from everflow.errors import EverflowError
from everflow.records import TaskId

log = logging.getLogger("everflow")

PERIOD_MS = 250.0
TELL_MS = 10_000.0
"""A rebalance of the followers at most each of these."""


@dataclass
class SwitchWatch:
    """``filled``: whether the state is still being copied; blocks; EverflowError. ``switched``:
    called once, on the watch's thread, which then ends. ``tell``: called meanwhile where a copy in
    ``sums`` has grown by more than ``tolerance`` since then: the migrator goes by what members say
    when they join, and a copy that is always near its end gives no cause for a rebalance."""

    filled: Callable[[], bool]
    switched: Callable[[], None]
    clock: Clock
    sums: Callable[[], Mapping[TaskId, int]] = dict
    tell: Callable[[], None] = lambda: None
    tolerance: int = 0
    _told: dict[TaskId, int] = field(default_factory=dict)
    _told_ms: float = float("-inf")
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
        else:
            self._tell_if_grown()
        return over

    def _tell_if_grown(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._told_ms < TELL_MS:
            return
        sums = dict(self.sums())
        if any(now - self._told.get(task, 0) > self.tolerance for task, now in sums.items()):
            self._told, self._told_ms = sums, now_ms
            self.tell()

    def _run(self) -> None:
        while not self.clock.wait(self._stop, PERIOD_MS):
            if self.check_once():
                return
