"""Keeps the state folder in order: running stores stay trusted, what nobody needs goes.

Looking is the instance's loop's, the work that may wait (for a batch's apply, for the disk) has a
thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from everflow.clock import Clock
from everflow.runtime.copies.freshness import Freshness
from everflow.runtime.copies.state_cleaner import StateCleaner
from everflow.state.lmdb_store import LmdbStore

log = logging.getLogger("everflow")

NOTE_PERIOD_MS = 60_000.0
"""Far below the margin of an hour that is left to stores (`restore_plan.AGE_MARGIN_MS_MAX`), also
where deletes are kept for minutes only."""
LOOK_PERIOD_MS = 10_000.0
"""Between two looks at the stores, as one at a thousand takes milliseconds: a note has claims that
are twice as old at the most (note 018)."""


class StateKeeper:
    """``look`` belongs to one thread; ``close`` comes after its last call. ``sweep``:
    `StateDirectory.sweep`."""

    def __init__(
        self, freshness: Freshness, cleaner: StateCleaner, sweep: Callable[[], None], clock: Clock
    ) -> None:
        self._freshness, self._cleaner, self._sweep, self._clock = freshness, cleaner, sweep, clock
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="everflow-state-keeper")
        self._noting: Future[None] | None = None
        self._next_look_ms = 0.0
        self._next_note_ms = clock.monotonic_ms() + NOTE_PERIOD_MS
        self._start(self._delete)  # what an earlier life did not get to delete

    def look(self) -> None:
        """Quick; often."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + LOOK_PERIOD_MS
            self._freshness.look()
        if now_ms >= self._next_note_ms and (self._noting is None or self._noting.done()):
            self._next_note_ms = now_ms + NOTE_PERIOD_MS
            self._noting = self._start(self._freshness.note)
        if self._cleaner.look():
            self._start(self._delete)

    def close(self) -> None:
        """Note what is proven. No batch runs any more, so nothing is waited for but a deletion
        under way."""
        self._start(self._freshness.note)
        self._worker.shutdown(wait=True)

    def _delete(self) -> None:
        LmdbStore.close_removed()
        self._sweep()

    def _start(self, work: Callable[[], None]) -> Future[None]:
        def run() -> None:
            try:
                work()
            except Exception:  # not worth the instance; the next round tries again
                log.exception("Keeping the state folder in order failed")

        return self._worker.submit(run)
