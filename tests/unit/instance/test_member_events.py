"""A rebalance is only marked on the client's thread: heart-beats go on (scenario 24)."""

import threading
from typing import Any, cast

import pytest

from everflow import KafkaStreams
from everflow.errors import FatalError
from everflow.instance import kafka_streams
from everflow.instance.client_state import ClientState
from everflow.instance.instance import EventLoop, Instance, InstanceSettings
from everflow.membership.member import Assigned, Failed, Lost, MemberEvent, Revoked, Roles
from everflow.records import MemberMetadata, TaskId, TopicPartition
from everflow.topology.program import Topology

TASKS, INPUTS = frozenset({TaskId(0, 0)}), frozenset({TopicPartition("in", 0)})
NONE: frozenset[TaskId] = frozenset()
EVENTS: list[MemberEvent] = [
    Assigned(TASKS, INPUTS, 1),
    Roles(1, NONE, NONE, {}, False),
    Revoked(TASKS, INPUTS),
    Lost(TASKS, INPUTS),
    Failed(FatalError("the group does not want it")),
]
BOUND_S = 5.0


class Manager:
    """Notes what the loop tells it, and on which thread."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append((name, threading.current_thread().name))


class Parts:
    """The other parts of an instance: nothing is asked of them."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Member(Parts):
    def metadata(self) -> MemberMetadata:
        return MemberMetadata(1, "m", None)


class Ports:
    """Without a thread, a cluster or a folder."""

    loop = EventLoop

    def member(self, instance: Instance) -> Member:
        return Member()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: Parts()


def test_events_return_while_the_loop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = KafkaStreams(Topology(()), application_id="a", bootstrap_servers="b:1")
    manager, unblocked, listened = Manager(), threading.Event(), []

    def listener(new: ClientState, old: ClientState) -> None:
        listened.append((new, threading.current_thread().name))

    streams.set_state_listener(listener)
    streams._life.states.to(ClientState.REBALANCING)
    listened.clear()
    monkeypatch.setattr(
        kafka_streams,
        "instance_settings",
        lambda config: InstanceSettings(
            threads=0,
            exactly_once=True,
            task_timeout_ms=1.0,
            max_poll_interval_ms=1.0,
            drain_timeout_ms=1.0,
            purge_interval_ms=1.0,
            memory=config.memory,
        ),
    )
    instance = streams._wired(cast(Any, Ports()))
    instance.manager = cast(Any, manager)
    monkeypatch.setattr(
        streams._life, "_begin_end", streams._life.states.to
    )  # nothing was started that would have to end
    monkeypatch.setattr(instance, "_tick", lambda: None)
    instance.loop.post(lambda: cast(None, unblocked.wait(60)))
    instance.loop.start()

    def tell_all() -> None:
        for event in EVENTS:
            instance.on_member_event(event)

    client = threading.Thread(target=tell_all, name="client", daemon=True)
    client.start()
    client.join(BOUND_S)
    try:
        assert not client.is_alive(), "an event waits for the loop"
        assert (manager.told, listened) == ([], []), "the client's thread did the loop's work"
    finally:
        unblocked.set()
        instance.loop.end()
    assert manager.told == [
        (name, "everflow-instance") for name in ("assigned", "roles", "revoked", "lost")
    ]
    assert listened == [(ClientState.PENDING_ERROR, "everflow-instance")]
    assert isinstance(streams.error, FatalError)
