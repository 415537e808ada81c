"""Polls where the input partitions end; wakes the stream threads that have new records (D1)."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence

from everflow.clock import Clock
from everflow.errors import EverflowError, RetriableError
from everflow.records import TopicPartition
from everflow.runtime.topics.shrunk_logs import ShrunkLogs

log = logging.getLogger("everflow")

FRESH_MS = 3.0
"""An answer that was asked for within this time is as good as another one."""
BUSY_PERIOD_MS = 50.0
"""While no stream thread waits for records the ends are only refreshed now and then."""


class EndOffsets:
    """Ends of all watched partitions: last stable offsets under exactly-once, high watermarks
    otherwise.

    ``read`` asks the brokers. ``check`` None: nobody minds an end before a position. ``stopping``:
    set once ``read`` may refuse because of the instance's end. `watch`, `unwatch`, `ends` and
    `idle` may be called from any thread.
    """

    def __init__(
        self,
        read: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]],
        clock: Clock,
        period_ms: float,
        check: ShrunkLogs | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self._read = read
        self._clock = clock
        self._period_ms = period_ms
        self._check = check
        self._stopping = stopping or threading.Event()
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[frozenset[TopicPartition], threading.Event]] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._idle: set[int] = set()
        self._stop = threading.Event()
        self._look = threading.Event()
        """There is a reason to ask before the period is over."""
        self._answered = threading.Condition(self._lock)
        self._asked = self._answers = 0
        """Questions so far, and the last one with an answer."""
        self._began_ms = -math.inf
        """When that one was asked."""
        self._polls = False
        self._failing_since_ms: float | None = None
        self._asked_ms: float | None = None
        """Since when a question is unanswered, the retries inside it included."""
        self.failure: EverflowError | None = None

    def watch(
        self, thread: int, partitions: Sequence[TopicPartition], wake: threading.Event
    ) -> None:
        """Partitions of a stream thread, in place of earlier ones; ``wake`` is set when one of them
        has grown."""
        with self._lock:
            self._watched[thread] = (frozenset(partitions), wake)
        self._look.set()

    def unwatch(self, thread: int) -> None:
        """The stream thread has no partitions any more."""
        with self._lock:
            self._watched.pop(thread, None)
            self._idle.discard(thread)

    def idle(self, thread: int, waiting: bool) -> None:
        """The stream thread waits (or no longer waits) for records."""
        with self._lock:
            first = not self._idle
            (self._idle.add if waiting else self._idle.discard)(thread)
        if waiting and first:
            self._look.set()

    def ends(self) -> Mapping[TopicPartition, int]:
        """The ends as last read; a partition that was never read is missing."""
        return self._ends

    def refresh(self, timeout_ms: float) -> None:
        """Have the ends asked for now, unless they were a moment ago, and wait for the answer for
        at most ``timeout_ms``. Without a poller of its own (`start`) nothing is asked."""
        with self._answered:
            if not self._polls or self._clock.monotonic_ms() - self._began_ms < FRESH_MS:
                return
            wanted = self._asked + 1
            self._look.set()
            self._answered.wait_for(lambda: self._answers >= wanted, timeout_ms / 1000)

    def failing_ms(self) -> float:
        """For how long the brokers have not answered; 0 when they do."""
        waiting = [since for since in (self._failing_since_ms, self._asked_ms) if since is not None]
        return self._clock.monotonic_ms() - min(waiting) if waiting else 0.0

    def poll_once(self) -> None:
        """Read all ends and wake the threads for which something is new. Raises FatalError for a
        log that has shrunk."""
        with self._lock:
            watched = dict(self._watched)
            self._asked = number = self._asked + 1
        partitions = sorted({tp for mine, _ in watched.values() for tp in mine})
        if not partitions:
            return
        # Before the ends: what was read until now cannot lie beyond an end that is asked for later.
        held = {} if self._check is None else self._check.held()
        self._asked_ms = began_ms = self._clock.monotonic_ms()
        try:
            now = self._read(partitions)
            if self._check is not None and held:
                self._check.require(held, now)
        except RetriableError as error:
            # An instance that ends is refused by its own client: that says nothing of the brokers
            # (a batch in flight was cut off).
            if self._failing_since_ms is None and not self._stopping.is_set():
                self._failing_since_ms = self._asked_ms
                log.warning("The brokers do not tell the ends of the input: %s", error)
            return
        finally:
            self._asked_ms = None
        if self._failing_since_ms is not None:
            log.info("The brokers answer again")
            self._failing_since_ms = None
        before, self._ends = self._ends, dict(now)
        with self._answered:
            self._answers, self._began_ms = number, began_ms
            self._answered.notify_all()
        for mine, wake in watched.values():
            if any(now[tp] != before.get(tp) for tp in mine if tp in now):
                wake.set()

    def start(self) -> None:
        """Poll from a thread of its own until `close`."""
        self._polls = True
        threading.Thread(target=self._run, name="everflow-end-offsets", daemon=True).start()

    def close(self) -> None:
        """End the polling; returns at once."""
        self._stop.set()
        self._look.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll_once()
            except EverflowError as error:  # not retriable: the stream threads raise it
                self.failure = error
                log.error("The ends of the input are no longer asked for: %s", error)
                return
            except Exception as error:
                self.failure = EverflowError(f"The ends of the input cannot be read: {error!r}")
                log.exception("The ends of the input cannot be read")
                return
            with self._lock:
                waiting = bool(self._idle)
            self._clock.wait(self._look, self._period_ms if waiting else BUSY_PERIOD_MS)
            self._look.clear()
