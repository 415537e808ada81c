"""Gives each role of copies a reader and a budget of its own.

So standbys never hold up a warm-up, for which the group waits, and a warm-up never starves the
standbys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from everflow.errors import RetriableError
from everflow.records import TopicPartition
from everflow.runtime.restore.restoration import FoldedChunk
from everflow.runtime.tasks.task import TaskRole

ROUND_WAIT_S = 0.05


@dataclass(frozen=True)
class RoundBudget:
    """What one role may read in one round: ``records`` near the ends of its changelogs, over all
    its partitions, and besides ``bulk_bytes`` of keys and values far behind. The chunks are loaded
    before the next role is read."""

    records: int
    bulk_bytes: int


BUDGETS: Mapping[TaskRole, RoundBudget] = {
    TaskRole.GLOBAL: RoundBudget(20_000, 1 << 22),
    TaskRole.WARMUP: RoundBudget(5_000, 1 << 20),
    TaskRole.STANDBY: RoundBudget(5_000, 1 << 18),
}
"""In the order of the round. Both far behind, a warm-up has four fifths. A round bounds how long a
promotion waits; larger slices are no cheaper (measured: 0.9 to 1.1 us of a core for a record from
256 KiB on, message by message 2.5)."""


class FollowedRound(Protocol):
    """See `everflow.kafka.reading.copy_follower.FollowedRound`."""

    @property
    def chunks(self) -> Mapping[TopicPartition, FoldedChunk]: ...
    @property
    def gone(self) -> Mapping[TopicPartition, str]: ...


class Follower(Protocol):
    """The part of `everflow.kafka.reading.copy_follower.CopyFollower` that the updater needs."""

    @property
    def far_behind(self) -> Mapping[TopicPartition, int]: ...
    def follow(self, starts: Mapping[TopicPartition, int]) -> None: ...
    def unfollow(self, partitions: Collection[TopicPartition]) -> None: ...
    def poll(
        self,
        records_max: int,
        bulk_bytes: int,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
    ) -> FollowedRound: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...


class CopyLanes:
    """One `Follower` per role, opened with its first partition; owned by one thread."""

    def __init__(self, open_follower: Callable[[], Follower]) -> None:
        self._open_follower = open_follower
        self._followers: dict[TaskRole, Follower] = {}
        self._role: dict[TopicPartition, TaskRole] = {}
        self._moved = False
        """Whether the last round brought something: then the next one does not wait for its first
        record."""

    def follow(self, role: TaskRole, starts: Mapping[TopicPartition, int]) -> None:
        """Begin with these partitions, at these offsets; what another role follows is taken from
        it."""
        self.unfollow(starts)
        if not starts:
            return
        if role not in self._followers:
            self._followers[role] = self._open_follower()
        self._followers[role].follow(starts)
        self._role.update(dict.fromkeys(starts, role))

    def unfollow(self, partitions: Collection[TopicPartition]) -> None:
        """Stop with these partitions; those that are not followed are ignored."""
        for role, follower in self._followers.items():
            gone = [tp for tp in partitions if self._role.get(tp) is role]
            for tp in gone:
                del self._role[tp]
            if gone:
                follower.unfollow(gone)

    def rounds(self, ends: Mapping[TopicPartition, int]) -> Iterator[FollowedRound]:
        """One round, role by role; ``ends`` are the last stable offsets as far as known. Raises
        what `Follower.poll` raises; what may pass, once the other roles had their turn."""
        roles = [role for role in BUDGETS if role in self._role.values()]
        self.rest()
        wait_s = 0.0 if self._moved else ROUND_WAIT_S / max(1, len(roles))
        self._moved = False
        fault: RetriableError | None = None
        for role in roles:
            budget = BUDGETS[role]
            try:
                found = self._followers[role].poll(budget.records, budget.bulk_bytes, ends, wait_s)
            except RetriableError as error:
                fault = fault or error
                continue
            self._moved = self._moved or bool(found.chunks)
            yield found
        if fault is not None:
            raise fault

    def far_behind(self) -> Set[TopicPartition]:
        """Those that are read in bulk, or wait for it behind others."""
        return {tp for follower in self._followers.values() for tp in follower.far_behind}

    def rest(self) -> None:
        """Let the readers of roles without copies give back what they hold for long reads."""
        for role, follower in self._followers.items():
            if role not in self._role.values():
                follower.rest()

    def close(self) -> None:
        """Give up everything that is followed; may be used again afterwards."""
        followers, self._followers = self._followers, {}
        self._role.clear()
        for follower in followers.values():
            follower.close()
