"""Ends of the changelogs, summed per task, ready when this member has to assign (note 005)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from everflow.clock import Clock
from everflow.errors import EverflowError
from everflow.records import TaskId, TopicPartition

log = logging.getLogger("everflow")

FRESH_MS = 5_000.0
"""Older figures are none: every member's positions move on, and one beyond the end counts as no
copy (X1)."""
WAIT_S = 0.5


class EndSums:
    """`membership.assignor.EndSums` on the cluster. Any thread may call.

    ``read``: last stable offsets of partitions, blocking. ``partitions``: the changelog partitions
    of every task.
    """

    def __init__(
        self,
        read: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]],
        partitions: Mapping[TaskId, Sequence[TopicPartition]],
        clock: Clock,
        stopping: threading.Event | None = None,
    ) -> None:
        """``stopping``: set once ``read`` may refuse because the instance ends."""
        self._stopping = stopping or threading.Event()
        self._read = read
        self._partitions = partitions
        self._clock = clock
        self._asked = 0
        self._answered = 0
        self._changed = threading.Condition()
        self._sums: Mapping[TaskId, int] | None = None
        self._read_ms = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Read the ends on the figures' own thread; returns at once. Only leaders need them, so the
        first call starts it."""
        with self._changed:
            self._asked += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="everflow-end-sums", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def latest(self) -> Mapping[TaskId, int] | None:
        """End sums read after this call, or at most 5 s old ones where the brokers take longer than
        0.5 s; None where there are none (X2). Called by the leader once all members have told their
        positions: ends read before could lie behind those, and a position beyond the end counts as
        no copy (X1). So this waits, for a request of a ms or two."""
        self.refresh()
        with self._changed:
            wanted = self._asked
            self._changed.wait_for(lambda: self._answered >= wanted or self._closed, WAIT_S)
            if self._sums is None or self._clock.monotonic_ms() - self._read_ms > FRESH_MS:
                return None
            return self._sums

    def read_once(self) -> None:
        """Read the ends now; what fails is said and leaves no figure."""
        with self._changed:
            asked = self._asked
        sums: dict[TaskId, int] | None = None
        try:
            ends = self._read({tp for listed in self._partitions.values() for tp in listed})
            sums = {
                task: sum(ends[tp] for tp in listed) for task, listed in self._partitions.items()
            }
        except EverflowError as error:
            if not self._stopping.is_set():
                log.warning("The ends of the changelogs cannot be read: %s", error)
        except Exception as error:  # a defect must not end the thread the leader waits for
            log.exception("The ends of the changelogs cannot be read: %r", error)
        with self._changed:
            self._sums, self._read_ms, self._answered = sums, self._clock.monotonic_ms(), asked
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread; returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._answered or self._closed)
                if self._closed:
                    return
            self.read_once()
