"""D7's watchdog: a batch that hangs is ended with its workers; its job then fails, and the thread recovers in D6's order."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from everflow.clock import Clock
from everflow.runtime.commit_gate import GateBook
from everflow.runtime.stream_thread import StreamThread
from everflow.runtime.worker_processes import kill_and_wait

log = logging.getLogger("everflow")


def end_hanging(threads: Iterable[StreamThread], book: GateBook, limit_ms: float, clock: Clock) -> None:
    """Kill the workers of every batch that has run for longer than ``limit_ms`` (``max.poll.interval.ms``)."""
    now_ms = clock.monotonic_ms()
    for thread in threads:
        since = thread.batch_since_ms
        if since is not None and now_ms - since > limit_ms:
            pids = book.take_pids(thread.number)
            if pids:
                log.warning("Stream thread %d: a batch hangs, ending its workers %s", thread.number, list(pids))
                kill_and_wait(pids, clock)
