"""Coming and going of static and dynamic members, and who is refused, against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from everflow.errors import IncompatibleTopologyError, ProcessIdClashError
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity
from everflow.membership.member import Assigned, Lost
from everflow.records import TaskId
from integration.kafka.group_members import (
    Instance,
    Ports,
    assignor_of,
    await_settled,
    await_told,
    history,
)

pytestmark = pytest.mark.broker
Topic = Callable[..., str]
Join = Callable[..., Instance]
TASK = TaskId(0, 0)


@pytest.fixture
def join(bootstrap: str, name: str) -> Iterator[Join]:
    running: list[Instance] = []

    def start(
        source: str,
        process_id: str,
        *,
        instance_id: str | None = None,
        session_ms: int = 30_000,
        topology: tuple[str, ...] = (),
        ports: Ports | None = None,
        latest_version: int = 2,
    ) -> Instance:
        settings = GroupSettings(
            bootstrap_servers=bootstrap,
            group_id=name,
            instance_id=instance_id,
            session_timeout_ms=session_ms,
        )
        identity = Identity(process_id=process_id, instance_id=instance_id, topology=topology)
        running.append(
            Instance(settings, assignor_of(identity, {0: [source]}, ports, latest_version))
        )
        return running[-1]

    yield start
    for instance in running:
        instance.member.leave(leave_group=True)


def test_a_bounce_of_a_static_member_is_seen_by_nobody(topic: Topic, join: Join) -> None:
    source = topic(4)
    first, second = join(source, "a", instance_id="i-a"), join(source, "b", instance_id="i-b")
    await_settled([first, second], 4)
    before, generation, heard = first.tasks, second.member.metadata().generation, list(second.told)
    first.member.leave()
    back = join(source, "a", instance_id="i-a")
    await_settled([back, second], 4)
    assert back.tasks == before
    assert [instance.member.metadata().generation for instance in (back, second)] == [
        generation,
        generation,
    ]
    assert second.told == heard


def test_a_static_member_with_an_empty_disk_does_not_take_what_is_hot_elsewhere(
    topic: Topic, join: Join
) -> None:
    """Scenario 22: the broker hands it its old tasks without a rebalance; it takes none of them and
    asks for one."""
    source, ends = topic(1), {TASK: 1_000}
    full, standby = Ports({TASK: 1_000}, ends), Ports({}, ends)
    first = join(source, "a", instance_id="i-a", ports=full)
    await_settled([first], 1)
    second = join(source, "b", instance_id="i-b", ports=standby)
    await_settled([first, second], 1)
    assert first.tasks == {TASK}
    standby.sums = {TASK: 995}
    first.member.leave()
    empty = join(source, "a", instance_id="i-a", ports=Ports({}, ends))
    await_told([empty, second], lambda: second.tasks == {TASK}, "the task goes to the hot copy")
    await_settled([empty, second], 1)
    assert empty.told_of(Assigned) == [], history([empty, second])


def test_a_static_member_can_leave_on_purpose(topic: Topic, join: Join) -> None:
    source = topic(2)
    first, second = join(source, "a", instance_id="i-a"), join(source, "b")
    await_settled([first, second], 2)
    first.member.leave(leave_group=True)
    await_told(
        [second],
        lambda: len(second.tasks) == 2,
        "the other gets everything, long before the session would end",
        10,
    )


def test_a_dynamic_member_can_leave_silently(topic: Topic, join: Join) -> None:
    """Its tasks wait for the end of the session: nobody is told before."""
    source = topic(2)
    first, second = join(source, "a", session_ms=3_000), join(source, "b", session_ms=3_000)
    await_settled([first, second], 2)
    began = time.monotonic()
    first.member.leave(leave_group=False)
    await_told([second], lambda: len(second.tasks) == 2, "the other gets everything")
    assert time.monotonic() - began > 2.0, "the session lasted from the last heartbeat on"


@pytest.mark.parametrize("instance_id", [None, "i-b"])
def test_a_member_that_waits_in_a_rebalance_leaves_at_once(
    topic: Topic, join: Join, bootstrap: str, name: str, instance_id: str | None
) -> None:
    """Its JoinGroup is not answered before the other has joined too, and the broker reads nothing
    behind it on that connection."""
    source = topic(2)
    first, second = join(source, "a"), join(source, "b", instance_id=instance_id)
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


def test_a_drain_gives_everything_to_hot_copies_and_ends(topic: Topic, join: Join) -> None:
    """Scenario 23: two tasks with state; each goes when the other member's copy of it is hot, none
    goes cold."""
    source, ends = topic(2), {TASK: 1_000, TaskId(0, 1): 1_000}
    leaving, copies = join(source, "a", ports=Ports({}, ends)), Ports({}, ends)
    await_settled([leaving], 2)
    staying = join(source, "b", ports=copies)
    await_settled([leaving, staying], 2, even=False)
    leaving.member.drain()
    for moved in range(2):
        await_told(
            [leaving, staying],
            lambda: staying.roles and staying.roles.warmup - staying.tasks,
            "a warm-up",
        )
        assert staying.roles is not None
        assert len(leaving.tasks) == 2 - moved, history([leaving, staying])
        assert not leaving.member.await_drained(0)
        task = min(staying.roles.warmup - staying.tasks)
        copies.sums[task] = 995
        staying.member.became_hot(task)
        await_told(
            [leaving, staying],
            partial(lambda t: t in staying.tasks, task),
            "the hot copy takes over",
        )
        del copies.sums[task]  # it runs active now
    await_told([leaving, staying], lambda: leaving.member.await_drained(0), "the drain is over")
    assert not leaving.tasks
    assert not leaving.told_of(Lost)


def test_of_two_members_with_one_instance_id_the_older_is_fenced_and_says_so(
    topic: Topic, join: Join
) -> None:
    source = topic(2)
    first = join(source, "a", instance_id="same")
    await_settled([first], 2)
    second = join(source, "b", instance_id="same")
    await_told([first, second], lambda: first.failed, "the older is fenced")
    assert first.failed is not None
    assert "Another instance runs with the same group.instance.id" in str(first.failed.error)
    assert first.told_of(Lost)
    await_settled([second], 2)


def test_refused_members_leave_and_the_others_do_not_notice(topic: Topic, join: Join) -> None:
    """An incompatible program with its difference; a cloned state folder (scenario 31)."""
    source, lines = (
        topic(2),
        ("sub-topology 0 has key_value store s", "sub-topology 0 reads topic a"),
    )
    first = join(source, "a", topology=lines)
    await_settled([first], 2)
    owned = first.member._owned
    other = join(source, "b", topology=(*lines, "sub-topology 0 has key_value store t"))
    await_told([first, other], lambda: other.failed, "the other program is refused")
    assert other.failed is not None
    assert isinstance(other.failed.error, IncompatibleTopologyError)
    assert other.failed.error.difference == "  + sub-topology 0 has key_value store t   (only here)"
    clone = join(source, "a", topology=lines, session_ms=6_000)
    await_told([first, clone], lambda: clone.failed, "the clone is refused, after one session")
    assert clone.failed is not None
    assert isinstance(clone.failed.error, ProcessIdClashError)
    assert not other.told_of(Assigned)
    assert not clone.told_of(Assigned)
    await_settled([first], 2)
    assert first.member._owned == owned, "owned without a break"


def test_a_refused_static_clone_that_is_closed_while_it_waits_is_out_of_the_group(
    topic: Topic, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next rebalance would wait for it: ``rebalance.timeout.ms``, 30 s."""
    source = topic(2)
    first = join(source, "a", instance_id="one")
    await_settled([first], 2)
    clone = join(source, "a", instance_id="two")
    await_told(
        [first, clone],
        lambda: "it may be its own former life" in caplog.text,
        "the clone is refused, and waits",
    )
    clone.member.leave()
    generation = first.member.metadata().generation
    first.member.request_rejoin()
    await_told(
        [first],
        lambda: first.member.metadata().generation > generation and first.member.stable,
        "a rebalance without it",
        10,
    )


def test_a_member_of_a_newer_version_comes_down_to_what_the_leader_reads(
    topic: Topic, join: Join
) -> None:
    source = topic(2)
    first = join(source, "a")
    await_settled([first], 2)
    newer = join(source, "b", latest_version=3)
    await_settled([first, newer], 2)
