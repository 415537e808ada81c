"""A coordinator that goes away and comes back, a process that stands still for longer than its
session, against a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everflow.errors import RetriableError
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity
from everflow.membership.member import Lost
from everflow.records import TopicPartition
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until
from integration.kafka.group_members import (
    Instance,
    assignor_of,
    await_settled,
    await_told,
    history,
)

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


def member_of(
    bootstrap: str, group: str, source: str, process_id: str, session_ms: int = 30_000
) -> Instance:
    settings = GroupSettings(
        bootstrap_servers=bootstrap, group_id=group, session_timeout_ms=session_ms
    )
    return Instance(settings, assignor_of(Identity(process_id=process_id), {0: [source]}))


@pytest.mark.slow  # two starts of a broker of its own
def test_a_restarted_coordinator_finds_its_members_where_they_were(name: str) -> None:
    """The group is loaded from its log: nobody loses a task, commits go on, and the next rebalance
    works."""
    with EmbeddedBroker() as broker:
        broker.create_topic(name, 4)
        first, second = (
            member_of(broker.bootstrap_servers, name, name, process_id) for process_id in "ab"
        )
        try:
            await_settled([first, second], 4)
            owned = [instance.member._owned for instance in (first, second)]
            broker.kill()
            broker.start()
            mine = next(iter(owned[0]))
            wait_until(
                lambda: committed(first, mine),
                30,
                "a commit is taken again",
                lambda: history([first, second]),
            )
            await_settled([first, second], 4)
            assert [instance.member._owned for instance in (first, second)] == owned, history(
                [first, second]
            )
            generation = second.member.metadata().generation
            second.member.request_rejoin()
            await_told(
                [first, second],
                lambda: first.member.metadata().generation > generation,
                "a new generation",
                30,
            )
            await_settled([first, second], 4)
            assert not any(instance.told_of(Lost) for instance in (first, second)), history(
                [first, second]
            )
        finally:
            first.member.leave()
            second.member.leave()


def committed(instance: Instance, tp: TopicPartition) -> bool:
    """True if a commit went through; errors on the way pass."""
    try:
        return instance.member.commit({tp: (1, "")})
    except RetriableError:
        return False


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


def test_a_process_that_stood_still_comes_back_as_a_new_member(
    bootstrap: str, name: str, child: tuple[Child, str]
) -> None:
    """Scenario 8, and long pauses of any kind: what it owned is lost, even when it gets the same
    again."""
    paused, source = child
    wait_until(lambda: "Assigned 2\n" in paused.told, 30, "the process has both tasks", paused.told)
    other = member_of(bootstrap, name, source, "other", session_ms=2_000)
    try:
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
            [other],
            lambda: len(other.tasks) == 1 and other.member.stable,
            "the tasks are shared again",
        )
    finally:
        other.member.leave()
