"""Metadata of a store: its owner and its checkpointed changelog offset (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from everflow.clock import believed_ms
from everflow.errors import StateFormatError, StoreMismatchError

FORMAT = 2
"""Version of the bytes inside a store; a higher one was written by a later release."""
NO_INPUTS: Mapping[str, int] = {}


class Owner(NamedTuple):
    """The writer: owner incarnation and the last batch that it applied (``""`` = none)."""

    incarnation: str
    last_batch: str


CLOCK_AHEAD_MS = 60_000
"""Allowed difference of two clocks, and of moments that are noted out of order."""


@dataclass(frozen=True, kw_only=True)
class StoreMeta:
    """Written in the same transaction as the data, so it is always as true as they are.

    ``position``: next changelog offset to be read (None: nothing loaded yet), in the changelog
    ``topic_id`` of ``cluster_id``. ``segments``: the time segment of each sub-database of a window
    or session store. ``stream_time``: highest window start or session end written (ms, -1 = none).
    ``updated_ms``: wall clock at which the store was last known to be at its changelog's end,
    before that when it was begun (-1 = unknown): it has missed no delete since. ``inputs``:
    committed offsets of the task's input partitions (``topic-0``) when a batch was applied last:
    the group never commits less (note 064). Since format 2.
    """

    kind: str
    retention_ms: int | None = None
    segment_ms: int | None = None
    position: int | None = None
    incarnation: str | None = None
    last_batch: str | None = None
    topic_id: str | None = None
    cluster_id: str | None = None
    stream_time: int = -1
    updated_ms: int = -1
    segments: dict[int, int] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def owner(self) -> Owner:
        return Owner(self.incarnation or "", self.last_batch or "")

    @property
    def expired_ms(self) -> int:
        """Windows that start, sessions and versions that end, up to this time are not shown."""
        return self.stream_time - (self.retention_ms or 0)

    def encode(self) -> bytes:
        """JSON in this release's format: an earlier one does not know what else is in it now."""
        # `asdict` copies what is in it, which takes longer than all the rest.
        return json.dumps({**vars(self), "format": FORMAT}).encode()

    @staticmethod
    def decode(data: bytes, where: str) -> StoreMeta:
        """Inverse of ``encode``; ``where``: the folder. StateFormatError for a newer release's."""
        raw = json.loads(data)
        if raw.get("format", 0) > FORMAT:
            raise StateFormatError(
                f"The store in {where} has format {raw['format']}, this release reads up to "
                f"{FORMAT}. Run the release that wrote it, or remove the folder: the store is then "
                "rebuilt from its changelog."
            )
        raw["segments"] = {int(slot): segment for slot, segment in raw["segments"].items()}
        return StoreMeta(**raw)

    def check_owner(self, expected: Owner, where: str) -> None:
        """StoreMismatchError unless ``expected`` is who may write now."""
        if self.owner != expected:
            raise StoreMismatchError(
                f"Nothing was written to the store in {where}: it belongs to incarnation "
                f"{self.owner.incarnation or 'none'} after batch "
                f"{self.owner.last_batch or 'none'}, but the change comes from incarnation "
                f"{expected.incarnation or 'none'} after batch {expected.last_batch or 'none'}. "
                "The task has been taken over meanwhile; the batch is replayed from the changelog."
            )

    def followed(self, now_ms: int) -> int:
        """``updated_ms`` of a store that has followed until ``now_ms`` (-1: unknown)."""
        if now_ms < 0:
            return self.updated_ms
        return max(now_ms, believed_ms(self.updated_ms, now_ms, CLOCK_AHEAD_MS))

    def moved_to(self, position: int | None, where: str, **changes: Any) -> StoreMeta:
        """The metadata with a later position (None keeps it) and other ``changes`` of its fields.
        StoreMismatchError for an earlier."""
        if position is None:
            return replace(self, **changes) if changes else self
        if self.position is not None and position < self.position:
            raise StoreMismatchError(
                f"Nothing was written to the store in {where}: it is at changelog offset "
                f"{self.position} and cannot go back to {position}."
            )
        return replace(self, position=position, **changes)
