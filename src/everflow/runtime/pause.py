"""Says whether an instance is paused (KIP-834) to its threads, restores and state updater."""

from __future__ import annotations

import threading

_LOOK_S = 0.1


class Pause:
    """A flag of one instance, from its creation on, whatever becomes of its tasks meanwhile. Safe
    from any thread."""

    def __init__(self) -> None:
        self._resumed = threading.Event()
        self._resumed.set()
        self.wakes: list[threading.Event] = []
        """Of those who wait for something else while they are paused."""

    def pause(self) -> None:
        """From now on nothing new begins; what is in flight ends as usual."""
        self._resumed.clear()

    def resume(self) -> None:
        """Go on where it stopped."""
        self._resumed.set()
        for wake in list(self.wakes):
            wake.set()

    @property
    def paused(self) -> bool:
        return not self._resumed.is_set()

    def hold(self, stop: threading.Event) -> bool:
        """Wait while paused, until ``stop`` is set; whether it is."""
        while self.paused and not stop.is_set():
            self._resumed.wait(_LOOK_S)
        return stop.is_set()
