"""Ends a batch that hangs, with its workers (D7); its job fails and the thread recovers (D6).

A recovery that hangs in turn (the brokers, a changelog that is gone) is shown: the instance is
REBALANCING."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from everflow.clock import Clock
from everflow.records import TaskId
from everflow.runtime.commit.commit_gate import GateBook
from everflow.runtime.thread.repeated_failures import Trouble
from everflow.runtime.thread.stream_thread import StreamThread
from everflow.runtime.thread.struggle import Hung
from everflow.runtime.thread.worker_processes import trace_and_kill

log = logging.getLogger("everflow")

SHOWN_AFTER_MS = 3_000.0
"""A recovery usually takes less: its failed batch is in the log and the metrics, and the state does
not flicker."""


def end_hanging(
    threads: Iterable[StreamThread], book: GateBook, limit_ms: float, clock: Clock
) -> None:
    """Kill the workers of every batch that has run for longer than ``limit_ms``
    (``max.poll.interval.ms``)."""
    now_ms = clock.monotonic_ms()
    for thread in threads:
        since = thread.batch_since_ms
        if since is not None and now_ms - since > limit_ms:
            pids = book.take_pids(thread.number)
            if pids:
                log.warning(
                    "Stream thread %d: a batch hangs, ending its workers %s",
                    thread.number,
                    list(pids),
                )
                thread.hung = Hung(since, limit_ms)
                trace_and_kill(pids, clock)


def any_stalled(threads: Iterable[StreamThread], clock: Clock) -> bool:
    """Whether a thread has been recovering all its tasks for a while."""
    now_ms = clock.monotonic_ms()
    recoveries = [thread.recovering for thread in threads]
    return any(
        recovery is not None and now_ms - recovery.since_ms > SHOWN_AFTER_MS
        for recovery in recoveries
    )


def troubles(threads: Iterable[StreamThread]) -> dict[TaskId, Trouble]:
    """What keeps tasks from getting on, of those whose stream thread's batches fail, or that rest
    after they have failed."""
    threads = list(threads)
    found = [(thread.trouble, list(thread.tasks)) for thread in threads]
    failing = {task: trouble for trouble, tasks in found if trouble is not None for task in tasks}
    late = {
        task: trouble
        for thread in threads
        for task, trouble in thread.late.troubles(
            thread.clock.monotonic_ms(), thread.clock.now_ms()
        ).items()
    }
    return {
        **failing,
        **late,
        **{
            task: trouble
            for thread in threads
            for task, trouble in thread.quarantine.troubles().items()
        },
    }
