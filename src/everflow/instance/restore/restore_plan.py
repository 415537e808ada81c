"""Decides what of a changelog a store must read, and whether it may be trusted (D5, D9). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from everflow.clock import instant
from everflow.state.store_meta import StoreMeta

DEFAULT_DELETE_RETENTION_MS = 86_400_000
AGE_MARGIN_MS_MAX = 3_600_000
AGE_MARGIN_SHARE = 10
"""A store is too old a tenth of ``delete.retention.ms`` before brokers forget deletes."""


@dataclass(frozen=True, kw_only=True)
class ChangelogState:
    """``end``: by read_uncommitted (D5), of a reused topic the committed offset."""

    start: int
    end: int
    cluster_id: str | None
    topic_id: str | None
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS

    def __post_init__(self) -> None:
        # A wrong offset must never decide that a store is thrown away.
        if self.start < 0 or self.end < 0:
            raise ValueError(f"no offsets of a log: start {self.start}, end {self.end}")


@dataclass(frozen=True)
class RestorePlan:
    """Read offsets ``[start, end)``; with ``rebuild`` into a new, empty store."""

    start: int
    end: int
    rebuild: bool
    reason: str

    @property
    def records_max(self) -> int:
        """Offsets to be read; the records among them are fewer after compaction."""
        return max(0, self.end - self.start)


def restore_plan(
    meta: StoreMeta | None,
    changelog: ChangelogState,
    *,
    now_ms: int,
    kind: str,
    retention_ms: int | None = None,
    distrusted: str | None = None,
) -> RestorePlan:
    """Decides where to go on with a store, or why it must not be trusted and is rebuilt (D5,
    scenarios 13, 14). ``meta``: None without a store; ``distrusted``: the state folder's doubt."""
    end = max(changelog.end, changelog.start)
    if distrusted is not None:
        return RestorePlan(changelog.start, end, True, distrusted)
    if meta is None:
        return RestorePlan(changelog.start, end, False, "new store")
    doubt = _doubt(meta, changelog, now_ms, kind, retention_ms)
    if doubt is not None:
        return RestorePlan(changelog.start, end, True, doubt)
    if meta.position is None:
        return RestorePlan(changelog.start, end, False, "new store")
    reason = "up to date" if meta.position == end else f"{end - meta.position} offsets behind"
    return RestorePlan(meta.position, end, False, reason)


def trusted_until_ms(updated_ms: int, delete_retention_ms: int) -> int:
    """Until then (wall clock, ms) a store that was at its changelog's end missed no delete."""
    return updated_ms + delete_retention_ms - _margin_ms(delete_retention_ms)


def _margin_ms(delete_retention_ms: int) -> int:
    return min(AGE_MARGIN_MS_MAX, delete_retention_ms // AGE_MARGIN_SHARE)


def _doubt(
    meta: StoreMeta, changelog: ChangelogState, now_ms: int, kind: str, retention_ms: int | None
) -> str | None:
    if meta.kind != kind:
        return f"the store was {meta.kind}, the topology wants {kind}"
    if meta.retention_ms != retention_ms:
        return (
            f"the store's retention was {meta.retention_ms} ms, the topology wants "
            f"{retention_ms} ms"
        )
    position = meta.position
    if position is None:
        return None
    if changelog.cluster_id is not None and meta.cluster_id != changelog.cluster_id:
        return f"it was made from cluster {meta.cluster_id}, this is cluster {changelog.cluster_id}"
    if changelog.topic_id is not None and meta.topic_id != changelog.topic_id:
        return (
            f"it was made from a changelog topic with id {meta.topic_id}, the present one has id "
            f"{changelog.topic_id}: the topic was deleted and created again"
        )
    if not changelog.start <= position <= changelog.end:
        return (
            f"its position {position} is outside the changelog's offsets "
            f"{changelog.start}..{changelog.end}"
        )
    away_ms = now_ms - meta.updated_ms
    if position < changelog.end and -away_ms > _margin_ms(changelog.delete_retention_ms):
        return (
            f"by its own note it followed its changelog until {instant(meta.updated_ms)}, which is "
            f"ahead of this host's clock ({instant(now_ms)}): for how long it has not followed it "
            f"is not known"
        )
    if position < changelog.end and now_ms > trusted_until_ms(
        meta.updated_ms, changelog.delete_retention_ms
    ):
        since = "an unknown time" if meta.updated_ms < 0 else f"{away_ms / 1000:.0f} s"
        return (
            f"it has not followed its changelog for {since}; after delete.retention.ms = "
            f"{changelog.delete_retention_ms} ms deletes may be gone from the changelog"
        )
    return None
