"""Joins the pure assignor to the group protocol: user data in, partitions per member out, checked before it is sent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from everflow.assignment import range as range_assignment
from everflow.assignment.cluster_state import Assignment, Member, tasks_of, validate_assignment
from everflow.assignment.user_data import UserData, decode, encode
from everflow.errors import FatalError
from everflow.records import TaskId, TopicPartition

log = logging.getLogger("everflow.membership")

Decide = Callable[[Sequence[Member], Sequence[TaskId]], Assignment]


class TaskAssignor:
    """The group's ``everflow`` protocol (cooperative, KIP-429). Called on the group client's IO thread; no waiting.

    Args:
        process_id: this instance's, kept in its state folder.
        subtopologies: index -> full names of its source and repartition topics.
        threads: number of stream threads, told to the others.
        decide: the pure decision; range assignment unless another is given.
    """

    name = "everflow"

    def __init__(
        self,
        process_id: str,
        subtopologies: Mapping[int, Sequence[str]],
        threads: int = 1,
        decide: Decide = range_assignment.assign,
    ) -> None:
        self._process_id = process_id
        self._subtopologies = {index: tuple(topics) for index, topics in subtopologies.items()}
        self._subtopology_of = {topic: index for index, topics in self._subtopologies.items() for topic in topics}
        self._threads = threads
        self._decide = decide
        self._owned: Callable[[], frozenset[TaskId]] = frozenset
        self._generation = -1
        self._nonce = 0
        self._lock = threading.Lock()

    @property
    def topics(self) -> frozenset[str]:
        """Every source and repartition topic: what the member subscribes to."""
        return frozenset(self._subtopology_of)

    def bind(self, owned: Callable[[], frozenset[TaskId]]) -> None:
        """Where to ask what this member holds when it joins; set by the member."""
        self._owned = owned

    def task_of(self, tp: TopicPartition) -> TaskId:
        """The task that reads a partition. KeyError for a topic of no sub-topology."""
        return TaskId(self._subtopology_of[tp.topic], tp.partition)

    def user_data(self) -> bytes:
        """This member's bytes; they differ from join to join (scenario 20)."""
        with self._lock:
            self._nonce += 1
            nonce = self._nonce & 0xFF
        return encode(UserData(self._process_id, self._owned(), self._generation, self._threads, nonce))

    def completed(self, generation: int) -> None:
        """What this member claims from now on is as of ``generation``."""
        self._generation = generation

    def assign(self, members: Mapping[str, bytes], partition_counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
        """On the leader: partitions per member id. FatalError if the decision breaks a rule (a bug: nothing is sent)."""
        state = [_member(member_id, decode(blob)) for member_id, blob in sorted(members.items())]
        tasks = tasks_of(self._subtopologies, partition_counts)
        decided = self._decide(state, sorted(tasks))
        problems = validate_assignment(decided, state, tasks)
        if problems:
            raise FatalError(f"the assignor broke its own rules, nothing was assigned: {'; '.join(problems)}")
        log.info(
            "assigned %d tasks to %d members, %d move in the follow-up rebalance",
            len(tasks) - len(decided.withheld),
            len(state),
            len(decided.withheld),
        )
        return {member_id: [tp for task in sorted(given) for tp in tasks[task]] for member_id, given in decided.active.items()}


def _member(member_id: str, data: UserData) -> Member:
    return Member(member_id, data.process_id, data.owned, data.generation)
