"""Until when the stores of running tasks are known to have followed their changelogs (scenario 13).

A store says in itself when that was last so; one that has not for ``delete.retention.ms`` is
rebuilt, as it may have missed deletes. A batch's apply says it for the tasks it touched, but a task
without records has none for days. That nothing was written to the changelog meanwhile is true as
long as the task is owned, and that is known of the past only: of a moment before a heartbeat was
*sent* that the group confirmed. So a claim is made for a moment between two batches and counts once
two more heartbeats were confirmed in the same ownership. A machine that was suspended, or cut off
from the group, claims nothing that it does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from everflow.errors import EverflowError
from everflow.records import TaskId
from everflow.state.lmdb_store import LmdbStore

log = logging.getLogger("everflow")

PROVING_HEARTBEATS = 2
"""One of them was sent after the first look, whichever was under way then."""


@dataclass(frozen=True)
class Settled:
    """A running task at a moment between two batches: all that it had committed is in its stores.

    Attributes:
        epoch: its ownership (`GateBook.epoch`).
        incarnation: who may write to its stores.
        stores: where they lie.
        at_ms: the moment, wall clock.
    """

    task: TaskId
    epoch: int
    incarnation: str
    stores: tuple[Path, ...]
    at_ms: int


class Freshness:
    """Collects claims (`look`, often, on one thread) and writes those that are proven into the
    stores (`note`, which waits for the apply of a batch in flight: on a thread that may).

    Args:
        settled: running tasks as of their threads' last moment between batches.
        broken: (task, epoch) whether that ownership is over.
        heartbeats: how many of them the group has confirmed.
    """

    def __init__(
        self,
        settled: Callable[[], Collection[Settled]],
        broken: Callable[[TaskId, int], bool],
        heartbeats: Callable[[], int],
    ) -> None:
        self._settled, self._broken, self._heartbeats = settled, broken, heartbeats
        self._claims: Collection[Settled] = ()
        self._claimed_at = 0
        self.proven: tuple[Settled, ...] = ()
        """The latest that have been proven."""

    def look(self) -> None:
        """Take over what has been proven, and make new claims."""
        confirmed = self._heartbeats()
        if self._claimed_at <= confirmed < self._claimed_at + PROVING_HEARTBEATS:
            return
        if (
            confirmed >= self._claimed_at
        ):  # fewer: another membership, which proves nothing of this one
            self.proven = tuple(
                claim for claim in self._claims if not self._broken(claim.task, claim.epoch)
            )
        self._claims = list(self._settled())
        # After the claims: what is sent from now on is sent after them.
        self._claimed_at = self._heartbeats()

    def note(self) -> None:
        """Write the proven claims. A store that has another owner by now, was rebuilt or closed, is
        left alone."""
        for claim in self.proven:
            for path in claim.stores:
                try:
                    LmdbStore.open(path).touch(claim.at_ms, claim.incarnation)
                except EverflowError as error:
                    log.debug("Task %s: %s", claim.task, error)
