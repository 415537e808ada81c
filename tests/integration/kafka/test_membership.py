"""Members on a real broker: tasks move one by one, and those that stay are never interrupted."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription
from kafka import errors as client_errors

from everflow.errors import TaskMigratedError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity
from everflow.membership.member import Assigned, Lost, Revoked, Roles
from everflow.records import CommittedOffset, TopicPartition
from everflow.testing.waiting import wait_until
from integration.kafka.group_members import (
    Instance,
    assignor_of,
    await_settled,
    await_told,
    settled,
)

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
        instance.member.leave(leave_group=True)


def test_tasks_move_one_by_one_and_others_stay(topic: Topic, join: Callable[..., Instance]) -> None:
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


def test_a_heartbeat_that_a_leaving_member_has_under_way_is_no_warning(
    topic: Topic, join: Callable[..., Instance], caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers have let it go when they read the heartbeat."""
    member = join({0: [topic(2)]}, "a")
    await_settled([member], 2)
    coordinator = member.member._channel._coordinator  # type: ignore[union-attr]
    member.member.leave()
    unknown = client_errors.UnknownMemberIdError.errno
    with caplog.at_level("WARNING", logger="kafka"):
        coordinator._handle_heartbeat_response(SimpleNamespace(error_code=unknown), 0.0)
    assert not [one for one in caplog.records if one.name == "kafka.coordinator.heartbeat"]


def test_the_rejoin_waits_for_revoked_batches(topic: Topic, join: Callable[..., Instance]) -> None:
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


def test_a_silent_member_loses_all_and_returns(topic: Topic, join: Callable[..., Instance]) -> None:
    """Evicted for holding the rejoin beyond its time-out: Lost, then new ownerships."""
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


def test_nobody_sees_a_static_member_s_bounce(topic: Topic, join: Callable[..., Instance]) -> None:
    source = topic(4)
    first, second = (
        join({0: [source]}, "a", instance_id="i-a"),
        join({0: [source]}, "b", instance_id="i-b"),
    )
    await_settled([first, second], 4)
    before, generation, heard = first.tasks, second.member.metadata().generation, list(second.told)
    first.member.leave()
    back = join({0: [source]}, "a", instance_id="i-a")
    await_settled([back, second], 4)
    assert back.tasks == before
    assert [instance.member.metadata().generation for instance in (back, second)] == [
        generation,
        generation,
    ]
    assert second.told == heard


def test_a_static_member_can_leave_on_purpose(topic: Topic, join: Callable[..., Instance]) -> None:
    source = topic(2)
    first, second = join({0: [source]}, "a", instance_id="i-a"), join({0: [source]}, "b")
    await_settled([first, second], 2)
    first.member.leave(leave_group=True)
    await_told(
        [second],
        lambda: len(second.tasks) == 2,
        "the other gets everything, long before the session would end",
        10,
    )


@pytest.mark.parametrize("instance_id", [None, "i-b"])
def test_a_member_that_waits_in_a_rebalance_leaves_at_once(
    topic: Topic, join: Callable[..., Instance], bootstrap: str, name: str, instance_id: str | None
) -> None:
    """The broker answers its JoinGroup after the other's join, and reads nothing meanwhile."""
    source = topic(2)
    first, second = join({0: [source]}, "a"), join({0: [source]}, "b", instance_id=instance_id)
    await_settled([first, second], 2)
    client = AdminClient({"bootstrap.servers": bootstrap})

    def group() -> ConsumerGroupDescription:
        found: ConsumerGroupDescription = client.describe_consumer_groups([name])[name].result(10)
        return found

    first.hold()
    second.member.request_rejoin()
    await_told(
        [second],
        lambda: group().state is ConsumerGroupState.PREPARING_REBALANCING,
        "the other waits in a rebalance",
    )
    second.member.leave(leave_group=True)
    left = group()
    assert len(left.members) == 1
    assert left.state is ConsumerGroupState.PREPARING_REBALANCING, "it has not waited for the first"
    first.member.release()
    await_told(
        [first],
        lambda: len(first.tasks) == 2 and first.member.stable,
        "the first gets everything",
        10,
    )


def test_of_one_id_the_older_member_is_fenced(topic: Topic, join: Callable[..., Instance]) -> None:
    source = topic(2)
    first = join({0: [source]}, "a", instance_id="same")
    await_settled([first], 2)
    second = join({0: [source]}, "b", instance_id="same")
    await_told([first, second], lambda: first.failed, "the older is fenced")
    assert first.failed is not None
    assert "the same group.instance.id" in str(first.failed.error)
    assert first.told_of(Lost)
    await_settled([second], 2)


CHILD = """
import sys, threading
sys.path.insert(0, sys.argv[4])
from integration.kafka.group_members import assignor_of
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity
from everflow.membership.member import GroupMember, Revoked

def told(event):
    print(type(event).__name__, len(getattr(event, "tasks", ())), flush=True)
    if isinstance(event, Revoked):
        threading.Thread(target=member.release).start()

settings = GroupSettings(bootstrap_servers=sys.argv[1], group_id=sys.argv[2], session_timeout_ms=2000)
member = GroupMember(settings, assignor_of(Identity(process_id="child"), {0: [sys.argv[3]]}), told)
member.start()
sys.stdin.read()
member.leave()
"""  # noqa: E501


class Child:
    """A member in a process of its own; what it was told arrives as lines."""

    def __init__(self, bootstrap: str, group: str, source: str) -> None:
        arguments = [
            sys.executable,
            "-c",
            CHILD,
            bootstrap,
            group,
            source,
            str(Path(__file__).parents[2]),
        ]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.told: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.told.extend(iter(self.process.stdout.readline, ""))

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)
        self._reader.join(5)


@pytest.fixture
def child(bootstrap: str, name: str, topic: Topic) -> Iterator[tuple[Child, str]]:
    source = topic(2)
    made = Child(bootstrap, name, source)
    yield made, source
    made.close()


def test_who_stood_still_is_new(join: Callable[..., Instance], child: tuple[Child, str]) -> None:
    """Scenario 8, and any long pause: what it owned is lost, even if it gets the same again."""
    paused, source = child
    wait_until(lambda: "Assigned 2\n" in paused.told, 30, "the process has both tasks", paused.told)
    other = join({0: [source]}, "other", session_timeout_ms=2_000)
    await_told(
        [other], lambda: len(other.tasks) == 1 and other.member.stable, "the tasks are shared"
    )
    paused.process.send_signal(signal.SIGSTOP)
    await_told([other], lambda: len(other.tasks) == 2, "the session of the other process ends")
    paused.told.clear()
    paused.process.send_signal(signal.SIGCONT)
    await_told([other], lambda: "Assigned 1\n" in paused.told, "the process is back")
    lost = paused.told.index("Lost 1\n")
    assert lost < paused.told.index("Assigned 1\n"), paused.told
    await_told(
        [other], lambda: len(other.tasks) == 1 and other.member.stable, "the tasks are shared again"
    )
