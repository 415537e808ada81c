"""Range assignment under cooperative rules: tasks in order, dealt evenly and in runs, moved in two steps. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from everflow.assignment.cluster_state import Assignment, Member, owners_of
from everflow.records import TaskId


def assign(members: Iterable[Member], tasks: Iterable[TaskId]) -> Assignment:
    """The next assignment; the same cluster state gives the same answer, in whatever order it is listed (I8).

    A task moves in two generations (KIP-429): in the first it is taken from its owner and given to nobody, in the
    follow-up, which the owner asks for once it has let go, to its new owner. Tasks that stay are never paused (I4).
    """
    ordered = sorted(members, key=lambda member: member.order)
    target = _target(ordered, tasks)
    owners = owners_of(ordered)
    active: dict[str, set[TaskId]] = {member.member_id: set() for member in ordered}
    withheld: set[TaskId] = set()
    for member_id, wanted in target.items():
        for task in wanted:
            if owners.get(task, frozenset()) <= {member_id}:
                active[member_id].add(task)
            else:
                withheld.add(task)
    given = {member: frozenset(some) for member, some in active.items()}
    return Assignment(given, withheld=frozenset(withheld), target=target)


def _target(ordered: Sequence[Member], tasks: Iterable[TaskId]) -> dict[str, frozenset[TaskId]]:
    """Each sub-topology's tasks in runs, sizes differing by one at most, over all of them too.

    The members that get one task more rotate from sub-topology to sub-topology; always beginning at the first
    would pile the remainders up on it.
    """
    by_subtopology: dict[int, list[TaskId]] = defaultdict(list)
    for task in sorted(set(tasks)):
        by_subtopology[task.subtopology].append(task)
    given: dict[str, set[TaskId]] = {member.member_id: set() for member in ordered}
    first = 0
    for index in sorted(by_subtopology):
        run = iter(by_subtopology[index])
        if not ordered:
            break
        least, more = divmod(len(by_subtopology[index]), len(ordered))
        for place, member in enumerate(ordered):
            extra = (place - first) % len(ordered) < more
            given[member.member_id].update(next(run) for _ in range(least + extra))
        first = (first + more) % len(ordered)
    return {member: frozenset(some) for member, some in given.items()}
