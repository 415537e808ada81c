"""Keeps offsets that a rebalancing group would not take, for the next commit (D5, scenario 26)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from everflow.records import TopicPartition
from everflow.runtime.commit.commit_gate import Offset

log = logging.getLogger("everflow")

CommitOffsets = Callable[[Mapping[TopicPartition, tuple[int, str]]], bool]


class DeferredOffsets:
    """Commits offsets through the member and keeps those that it would not take. Any thread may
    call. ``told``: of what was committed."""

    def __init__(
        self, commit: CommitOffsets, told: Callable[[Mapping[TopicPartition, int]], None]
    ) -> None:
        self._commit, self._told = commit, told
        self._committing = threading.Lock()
        # Never held over a commit: `forget` is called on the group client's thread, which the
        # commit itself needs.
        self._lock = threading.Lock()
        self._forgotten: set[TopicPartition] = set()
        self._held: dict[TopicPartition, tuple[int, str]] = {}

    def commit(self, offsets: Sequence[Offset]) -> bool:
        """Commit these and all held ones; False = the group is rebalancing, they are held now.
        Raises what the member raises; then nothing is held that was not before."""
        with self._committing:
            with self._lock:
                self._forgotten.clear()
                merged = dict(self._held)
            for topic, partition, offset, metadata in offsets:
                merged[TopicPartition(topic, partition)] = (offset, metadata)
            if not merged:
                return True
            taken = self._commit(merged)
            if taken:
                self._told({tp: offset for tp, (offset, _) in merged.items()})
            else:
                log.info(
                    "The group rebalances: the offsets of %d partitions go with the next commit",
                    len(merged),
                )
            with self._lock:
                self._held = (
                    {}
                    if taken
                    else {tp: at for tp, at in merged.items() if tp not in self._forgotten}
                )
            return taken

    def held(self) -> frozenset[TopicPartition]:
        """Partitions whose offsets wait."""
        with self._lock:
            return frozenset(self._held)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are others' now; their offsets must not be committed over theirs.
        Returns at once."""
        with self._lock:
            self._forgotten.update(partitions)
            for tp in partitions:
                self._held.pop(tp, None)
