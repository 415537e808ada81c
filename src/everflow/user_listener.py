"""Calls a user's listeners: what one raises is logged with its line, and the work goes on."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable

log = logging.getLogger("everflow")


class ListenerGuard:
    """Around one listener; any thread may call. The first failure of each call is logged, then the
    second, fourth, eighth and so on: a listener of every batch that always fails must not fill the
    disk."""

    def __init__(self, listener: str) -> None:
        """``listener``: its name for people, such as ``restore listener``."""
        self._listener = listener
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()

    def tell(self, event: str, call: Callable[[], object]) -> None:
        """Call it; ``event`` is the name of the call."""
        try:
            call()
        except Exception as error:  # the user's code must not stop the instance
            with self._lock:
                self._failures[event] += 1
                count = self._failures[event]
            if count & (count - 1):
                return
            line = traceback.extract_tb(error.__traceback__)[-1]
            times = "" if count == 1 else f", for the {count}th time"
            log.error(
                "The %s failed in %s at %s:%s%s: %s: %s. What it was told of goes on.",
                self._listener,
                event,
                line.filename,
                line.lineno,
                times,
                type(error).__name__,
                error,
                exc_info=True,
            )
