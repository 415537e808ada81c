"""Decides when this member asks for a rebalance: a state machine over a clock passed in. Pure. What
can wait a second is gathered, and what the next join says anyway is not asked for again."""

from __future__ import annotations

from collections.abc import Collection

from everflow.logs import counted, some
from everflow.records import TaskId

GATHER_MS = 1_000
"""Warm-ups turning hot are gathered for this long, counted from the first."""
AGAIN_MS = 2_000
"""A hot warm-up that the leader left where it is is named again then, and after twice that."""
AGAIN_AT_MOST_MS = 60_000
AT_ONCE_GAP_MS = 1_000
"""An assignor that always wants a follow-up at once must not keep the group rebalancing."""


class FollowUps:
    """Not thread-safe; times are monotonic, in ms."""

    def __init__(self) -> None:
        self._asked: str | None = None
        self._hot: dict[TaskId, float] = {}  # not told to the group yet -> when it is due
        self._told: dict[
            TaskId, float
        ] = {}  # told with a join -> how long to wait before telling it again
        self._standby: frozenset[TaskId] = frozenset()
        self._unasked: frozenset[TaskId] = frozenset()  # standbys for which nobody waits
        self._probe_at: float | None = None
        self._last_at_once = float("-inf")
        self._requested = False

    @property
    def pending(self) -> bool:
        """True if a rebalance is wanted now (not one that waits for its time)."""
        return self._asked is not None or self._requested

    def ask(self, why: str) -> None:
        """As soon as no rebalance runs."""
        self._asked = why
        self._requested = False

    def became_hot(self, task: TaskId, now_ms: float) -> None:
        if task not in self._told and task not in self._unasked:
            self._hot.setdefault(task, now_ms + GATHER_MS)

    def joining(self) -> None:
        self._asked = None
        self._requested = False
        for task in self._hot:
            self._told.setdefault(task, AGAIN_MS)
        self._hot.clear()
        self._probe_at = None

    def completed(
        self,
        standby: Collection[TaskId],
        warmup: Collection[TaskId],
        followup_ms: int | None,
        now_ms: float,
        *,
        stale: bool = False,
    ) -> None:
        """A rebalance ended; ``standby``, ``warmup``, ``followup_ms``: this member's answer.
        ``stale``: a static member came back to what its former life had. Nobody waits for its
        standbys: that they catch up must not cost the group a rebalance (KIP-345)."""
        self._standby = frozenset(standby)
        self._unasked = self._standby if stale else frozenset()
        self._hot = {
            task: due for task, due in self._hot.items() if task in standby or task in warmup
        }
        for task, wait in list(self._told.items()):
            if task not in warmup:
                del self._told[task]
            elif task not in self._hot:
                self._hot[task] = now_ms + wait
                self._told[task] = min(2 * wait, AGAIN_AT_MOST_MS)
        if followup_ms is None:
            self._probe_at = None
        elif followup_ms > 0:
            self._probe_at = now_ms + followup_ms
        else:
            self._probe_at = self._last_at_once = max(now_ms, self._last_at_once + AT_ONCE_GAP_MS)

    def lost(self) -> None:
        self._hot.clear()
        self._told.clear()
        self._unasked = frozenset()
        self._probe_at = None

    def due(self, now_ms: float, rebalancing: bool) -> str | None:
        """Why to ask for a rebalance now, or None. The same reason is given once per join."""
        if rebalancing or self._requested:
            return None
        why = self._asked
        if why is None and self._hot and min(self._hot.values()) <= now_ms:
            why = self._caught_up()
        if why is None and self._probe_at is not None and self._probe_at <= now_ms:
            why = "the leader wanted a follow-up"
        self._requested = why is not None
        return why

    def _caught_up(self) -> str:
        standbys = [task for task in sorted(self._hot) if task in self._standby]
        warmups = [task for task in sorted(self._hot) if task not in self._standby]
        parts = [
            f"{counted(len(tasks), noun)} caught up ({some(tasks)})"
            for noun, tasks in (("warm-up", warmups), ("standby", standbys))
            if tasks
        ]
        return "; ".join(parts)
