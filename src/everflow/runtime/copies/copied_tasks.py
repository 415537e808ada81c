"""What the state updater knows of a task whose stores it follows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from everflow.records import TopicPartition
from everflow.runtime.restore.restore_listener import RestoreProgress
from everflow.runtime.tasks.task import StandbyTask, TaskRole
from everflow.state.lmdb_store import LmdbStore

RATE_WINDOW_MS = 5_000.0


@dataclass(frozen=True)
class FollowedTask:
    """Figures of one followed task: ``offset_sum`` over its changelogs, ``lag`` in offsets against
    the last stable offsets (None: not measured yet), ``rate`` in records/s over the last seconds,
    ``remaining_s`` until the end at that rate."""

    role: TaskRole
    offset_sum: int
    lag: int | None
    rate: float = 0.0
    remaining_s: float | None = None


@dataclass(kw_only=True)
class CopiedStore:
    """One store being followed. ``progress`` is the present figures; ``restoring``: the restore
    listener follows it."""

    store: LmdbStore
    incarnation: str
    progress: RestoreProgress
    began_ms: float
    end: int | None = None
    restoring: bool = False


@dataclass(kw_only=True)
class CopiedTask:
    task: StandbyTask
    stores: dict[TopicPartition, CopiedStore] = field(default_factory=dict)
    cold: bool = False
    hot: bool = False
    said_ms: float = float("-inf")
    """When it was last reported as hot."""
    quiet_ms: float = 0.0
    """How long not to report it again."""
    loaded: deque[tuple[float, int]] = field(default_factory=deque)

    def lag(self) -> int | None:
        """Offsets to the last stable ends; None while one of them is unknown."""
        if any(store.end is None for store in self.stores.values()):
            return None
        return sum(
            max(0, (store.end or 0) - store.progress.position) for store in self.stores.values()
        )


def figures_of(task: CopiedTask, now_ms: float) -> FollowedTask:
    """Its figures now."""
    while task.loaded and now_ms - task.loaded[0][0] > RATE_WINDOW_MS:
        task.loaded.popleft()
    began_ms = max(
        now_ms - RATE_WINDOW_MS,
        min((store.began_ms for store in task.stores.values()), default=now_ms),
    )
    rate = sum(records for _, records in task.loaded) / max(0.001, (now_ms - began_ms) / 1000)
    lag = task.lag()
    remaining = 0.0 if lag == 0 else None if lag is None or rate <= 0 else lag / rate
    offset_sum = sum(store.progress.position for store in task.stores.values())
    return FollowedTask(task.task.role, offset_sum, lag, rate, remaining)
