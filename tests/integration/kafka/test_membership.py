"""Members of one group against a real broker: tasks move one by one, and those that stay are never
interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from everflow.errors import TaskMigratedError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity
from everflow.membership.member import Assigned, Lost, Revoked, Roles
from everflow.records import CommittedOffset, TopicPartition
from everflow.testing.waiting import wait_until
from integration.kafka.group_members import Instance, assignor_of, await_settled, settled

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


@pytest.fixture
def join(bootstrap: str, name: str) -> Iterator[Callable[..., Instance]]:
    running: list[Instance] = []

    def start(subtopologies: dict[int, list[str]], process_id: str, **settings: Any) -> Instance:
        assignor = assignor_of(Identity(process_id=process_id), subtopologies)
        running.append(
            Instance(
                GroupSettings(bootstrap_servers=bootstrap, group_id=name, **settings), assignor
            )
        )
        return running[-1]

    yield start
    for instance in running:
        instance.member.leave()


def test_tasks_move_one_by_one_and_the_others_stay(
    topic: Topic, join: Callable[..., Instance]
) -> None:
    source, repartition = topic(4), topic(2)
    subtopologies = {0: [source], 1: [repartition]}
    first = join(subtopologies, "a")
    await_settled([first], 6)
    first.step()
    assert [type(event) for event in first.told] == [Assigned, Roles]
    before = first.member._owned
    second = join(subtopologies, "b")
    await_settled([first, second], 6)
    # Tasks that stayed kept the number of their ownership: no break, whatever the generation did
    # (I4).
    after = first.member._owned
    assert after
    assert all(before[tp] == number for tp, number in after.items())
    moved = frozenset().union(*(event.tasks for event in first.told if isinstance(event, Revoked)))
    assert moved == second.tasks
    assert first.member.metadata().generation == second.member.metadata().generation
    second.member.leave()
    await_settled([first], 6)
    assert second.member.metadata().generation == -1
    again = first.member._owned
    assert all(again[tp] == number for tp, number in after.items())
    assert all(again[tp] > before[tp] for tp in set(before) - set(after))
    assert not any(isinstance(event, Lost) for event in first.told)


def test_the_rejoin_waits_for_the_revoked_tasks_batches(
    topic: Topic, join: Callable[..., Instance]
) -> None:
    subtopologies = {0: [topic(2)]}
    first = join(subtopologies, "a", session_timeout_ms=2_000)
    await_settled([first], 2)
    first.keeps = True
    second = join(subtopologies, "b", session_timeout_ms=2_000)

    def revoked() -> bool:
        first.step()
        second.step()
        return any(isinstance(event, Revoked) for event in first.told)

    wait_until(revoked, 20, "a task is revoked", lambda: first.told)
    generation = first.member.metadata().generation
    # While the batch runs on, the old owner's generation still commits and the task is on nobody.
    held = TopicPartition(
        *next(
            (tp.topic, tp.partition)
            for e in first.told
            if isinstance(e, Revoked)
            for tp in e.partitions
        )
    )
    # Longer than a session: heartbeats are nobody's business but the client's (scenario 24).
    end = time.monotonic() + 4.5
    wait_until(
        lambda: first.member.commit({held: (7, "last words")}) and time.monotonic() > end,
        10,
        "two sessions",
    )
    assert first.member.metadata().generation == generation
    assert not second.tasks
    first.member.release()
    await_settled([first, second], 2)
    assert first.member.metadata().generation > generation


def test_a_hand_over_takes_heartbeats_of_half_a_second_not_of_three(
    topic: Topic, join: Callable[..., Instance]
) -> None:
    """Scenario 21: from the last batch of the old owner to the new owner's assignment."""
    subtopologies = {0: [topic(4)]}
    first = join(subtopologies, "a")
    await_settled([first], 4)
    second = join(subtopologies, "b")
    seen: dict[str, float] = {}

    def handed_over() -> bool:
        first.step()
        second.step()
        if first.told_of(Revoked):
            seen.setdefault("revoked", time.monotonic())
        if second.tasks:
            seen.setdefault("assigned", time.monotonic())
        return len(seen) == 2

    wait_until(handed_over, 20, "tasks move", lambda: first.told)
    assert seen["assigned"] - seen["revoked"] < 1.5, seen


def test_the_first_start_takes_one_rebalance(topic: Topic, join: Callable[..., Instance]) -> None:
    """Scenario 30: topics made a moment before are in the leader's metadata when it deals them."""
    first = join({0: [topic(3)], 1: [topic(2)]}, "a")
    await_settled([first], 5)
    end = time.monotonic() + 1.0  # the refresh that every assignment starts has arrived by then
    wait_until(
        lambda: settled([first], 5) and time.monotonic() > end,
        5,
        "a second of calm",
        lambda: first.told,
    )
    assert [type(event) for event in first.told] == [Assigned, Roles]


def test_offsets_are_committed_deferred_or_refused(
    admin: ClusterAdmin, topic: Topic, name: str, join: Callable[..., Instance]
) -> None:
    """Scenario 26: a rebalance defers the commit, it does not stop the tasks that stay."""
    subtopologies = {0: [topic(2)]}
    first, second = join(subtopologies, "a"), join(subtopologies, "b")
    await_settled([first, second], 2)
    (mine,), (other,) = first.member._owned, second.member._owned
    assert first.member.commit({mine: (5, "ef1|text")})
    assert admin.committed(name, [mine, other]) == {mine: CommittedOffset(5, "ef1|text")}
    # The first joins a rebalance that the second, whose batch still runs, has not joined yet.
    second.hold()
    first.member.request_rejoin()
    wait_until(lambda: not first.member.commit({mine: (6, "")}), 10, "the commit is deferred")
    assert first.member.owned()
    assert second.member.commit({other: (8, "")}), (
        "while a rebalance is prepared the old generation commits"
    )
    second.member.release()
    await_settled([first, second], 2)
    assert first.member.commit({mine: (9, "")})
    assert {tp: c.offset for tp, c in admin.committed(name, [mine, other]).items()} == {
        mine: 9,
        other: 8,
    }
    first.member.leave()
    with pytest.raises(TaskMigratedError):
        first.member.commit({mine: (10, "")})


def test_a_member_silent_for_too_long_loses_its_tasks_and_comes_back(
    topic: Topic, join: Callable[..., Instance]
) -> None:
    """Evicted while it held the rejoin longer than the rebalance time-out: Lost, then new
    ownerships."""
    subtopologies = {0: [topic(2)]}
    first = join(subtopologies, "a", rebalance_timeout_ms=1500, session_timeout_ms=6000)
    await_settled([first], 2)
    before = first.member._owned
    first.hold()
    second = join(subtopologies, "b", rebalance_timeout_ms=1500, session_timeout_ms=6000)

    def lost() -> bool:
        first.step()
        second.step()
        return any(isinstance(event, Lost) for event in first.told)

    wait_until(lost, 20, "the first member is told that it lost its tasks", lambda: first.told)
    await_settled([first, second], 2)
    after = first.member._owned
    assert all(number > max(before.values()) for number in after.values())


def test_a_static_member_stays_in_the_group_when_it_closes(
    admin: ClusterAdmin, topic: Topic, name: str, join: Callable[..., Instance]
) -> None:
    subtopologies = {0: [topic(2)]}
    first = join(subtopologies, "a", instance_id="node-1", session_timeout_ms=30_000)
    await_settled([first], 2)
    before = first.member.metadata()
    assert before.instance_id == "node-1"
    first.member.leave()
    back = join(subtopologies, "a", instance_id="node-1", session_timeout_ms=30_000)
    await_settled([back], 2)
    assert back.member.metadata().generation == before.generation, (
        "had it left, its return would have made a new generation"
    )
    back.member.leave()


def test_a_rejoin_on_request_makes_a_new_generation(
    topic: Topic, join: Callable[..., Instance]
) -> None:
    """Scenario 20: for a follower too, although nothing about its subscription changed."""
    subtopologies = {0: [topic(2)]}
    instances = [join(subtopologies, "a"), join(subtopologies, "b")]
    await_settled(instances, 2)
    for instance in instances:
        generation = instance.member.metadata().generation
        instance.member.request_rejoin()
        newer = partial(
            lambda g: settled(instances, 2) and instances[0].member.metadata().generation > g,
            generation,
        )
        wait_until(newer, 15, "a new generation")
