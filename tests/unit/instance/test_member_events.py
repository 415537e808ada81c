"""A rebalance is only marked on the client's thread: heart-beats go on (scenario 24)."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from everflow import KafkaStreams, StreamThreadExceptionResponse
from everflow.errors import (
    ConfigError,
    EverflowError,
    FatalError,
    InternalTopicError,
    RetriableError,
    ShutdownRequestedError,
    TaskTimeoutError,
)
from everflow.instance import kafka_streams
from everflow.instance.assembly import ClusterPorts, Dependencies
from everflow.instance.client_state import ClientState, IllegalStateError, Pause, StateMachine
from everflow.instance.copies.state_updater import StateUpdater
from everflow.instance.instance import EventLoop, Instance, InstanceSettings
from everflow.instance.restore.listeners import RestoreProgress, RestoreTracker, SuspendReason
from everflow.membership.member import Assigned, Failed, Lost, MemberEvent, Revoked, Roles
from everflow.metrics import Metrics
from everflow.records import MemberMetadata, TaskId, TopicPartition
from everflow.topology.program import Topology
from everflow.user_program import ListenerGuard

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


class Purges(Ports):
    """The first time, no broker answers."""

    def __init__(self) -> None:
        self.purged = 0

    def purge(self, positions: object) -> None:
        self.purged += 1
        if self.purged == 1:
            raise RetriableError("no broker answers")


def wired(
    streams: KafkaStreams, monkeypatch: pytest.MonkeyPatch, ports: Ports | None = None
) -> Instance:
    """Its instance, of which nothing was started that would have to end."""
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
    instance = streams._wired(cast(Any, ports or Ports()))
    monkeypatch.setattr(streams._life, "_begin_end", streams._life.states.to)
    monkeypatch.setattr(instance, "_tick", lambda: None)
    return instance


def test_events_return_while_the_loop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = KafkaStreams(Topology(()), application_id="a", bootstrap_servers="b:1")
    manager, unblocked, listened = Manager(), threading.Event(), []

    def listener(new: ClientState, old: ClientState) -> None:
        listened.append((new, threading.current_thread().name))

    streams.set_state_listener(listener)
    streams._life.states.to(ClientState.REBALANCING)
    listened.clear()
    instance = wired(streams, monkeypatch)
    instance.manager = cast(Any, manager)
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


def test_records_that_cannot_be_deleted_now_are_deleted_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    streams = KafkaStreams(Topology(()), application_id="a", bootstrap_servers="b:1")
    ports = Purges()
    instance = wired(streams, monkeypatch, ports)
    for state in (ClientState.REBALANCING, ClientState.RUNNING):
        instance.states.to(state)
    for _ in range(2):
        instance._next_purge_ms = 0.0
        Instance._tick(instance)
    assert ports.purged == 2
    assert "no broker answers" in caplog.text
    assert streams.error is None


# Errors that no stream thread met go to the handler of uncaught exceptions, too (KIP-671).

LATE = TaskTimeoutError("Task 0_0 made no progress")


class Ending:
    """An instance whose handler gives this ``answer``."""

    def __init__(
        self, answer: StreamThreadExceptionResponse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.streams = KafkaStreams(Topology(()), application_id="a", bootstrap_servers="b:1")
        self.asked: list[EverflowError] = []
        self.spread = 0

        def handler(error: EverflowError) -> StreamThreadExceptionResponse:
            self.asked.append(error)
            return answer

        self.streams.set_uncaught_exception_handler(handler, most=2)
        self.streams._life.states.to(ClientState.REBALANCING)
        self.instance = wired(self.streams, monkeypatch)
        self.instance.uncaught = self.streams._uncaught
        self.streams._life.instance = self.instance
        cast(Any, self.instance.member).shut_down_application = self.shut_down

    def shut_down(self) -> None:
        self.spread += 1

    def fails(self, error: EverflowError) -> None:
        """On its loop."""

        def fail() -> None:
            raise error

        self.instance.turn(fail)

    @property
    def ended(self) -> bool:
        return self.streams.state is ClientState.PENDING_ERROR


def test_a_handler_is_set_before_the_start_and_may_replace_once_at_least() -> None:
    streams = KafkaStreams(Topology(()), application_id="a", bootstrap_servers="b:1")
    end = lambda _: StreamThreadExceptionResponse.SHUTDOWN_CLIENT  # noqa: E731
    with pytest.raises(ConfigError, match=r"most.*found 0"):
        streams.set_uncaught_exception_handler(end, most=0)
    streams._life.states.to(ClientState.REBALANCING)
    with pytest.raises(IllegalStateError, match="REBALANCING"):
        streams.set_uncaught_exception_handler(end)


def test_what_its_loop_meets_ends_the_instance_and_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending(StreamThreadExceptionResponse.REPLACE_THREAD, monkeypatch)
    error = InternalTopicError("app-c-changelog is gone")
    ending.fails(error)
    ending.fails(error)
    assert (ending.asked, ending.ended) == ([error], True)
    assert ending.streams.error is error
    assert "[EF-INTERNAL-TOPIC]" in caplog.text


def test_tasks_are_recovered_anew_as_often_as_a_thread_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending = Ending(StreamThreadExceptionResponse.REPLACE_THREAD, monkeypatch)
    assert [ending.instance.uncaught_elsewhere(LATE) for _ in range(3)] == [True, True, False]
    assert (len(ending.asked), ending.ended) == (3, True)


def test_the_others_hear_of_it_before_this_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(StreamThreadExceptionResponse.SHUTDOWN_APPLICATION, monkeypatch)
    ending.fails(LATE)
    ending.fails(FatalError("met meanwhile"))
    assert (ending.asked, ending.spread, ending.ended) == ([LATE], 1, False)
    ending.instance.on_member_event(Failed(ShutdownRequestedError("as asked")))
    ending.instance.loop.start()
    ending.instance.loop.end()
    assert (ending.asked, ending.ended) == ([LATE], True), "the group's answer is no error of ours"
    assert ending.streams.error is LATE


# Users' listeners: they reach what tells them, and what they raise is logged and ends nothing.


PROGRESS = RestoreProgress(
    task=TaskId(0, 1),
    store="counts",
    changelog=TopicPartition("log", 1),
    start=0,
    end=10,
    position=5,
    records=5,
    elapsed_s=1.0,
)


class Listener:
    """Notes what it is told, or fails."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.fault = fault

    def __getattr__(self, name: str) -> Any:
        def note(*arguments: Any) -> None:
            self.told.append((name, *arguments))
            if self.fault is not None:
                raise self.fault

        return note


@pytest.mark.parametrize("error", [ValueError("no such row"), SystemExit("no such row")])
def test_a_listener_s_errors_are_logged_ever_more_seldom(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """``sys.exit()``, too: it would end the thread that calls, and the instance would hang."""
    guard, calls = ListenerGuard("restore listener"), 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        raise error

    for _ in range(100):
        guard.tell("batch_restored", fails)
    guard.tell("restore_end", fails)
    messages = [record.getMessage() for record in caplog.records]
    assert calls == 101
    assert [message.count("batch_restored") for message in messages] == [1] * 7 + [0], (
        "1, 2, 4, ... 64, then another event"
    )
    assert f"failed in batch_restored at {__file__}:" in messages[0]
    assert f"{type(error).__name__}: no such row" in messages[0]
    assert "for the 64th time" in messages[6]


def test_a_restore_listener_that_raises_ends_no_restore_and_the_figures_stay_right() -> None:
    tracker = RestoreTracker(Metrics())
    tracker.listener = listener = Listener(RuntimeError("the user's own fault"))
    tracker.restore_start(PROGRESS)
    tracker.batch_restored(PROGRESS, 5)
    assert tracker.fraction() == 0.5
    tracker.restore_suspended(PROGRESS, "stopped")
    tracker.restore_start(PROGRESS)
    tracker.restore_end(PROGRESS)
    assert tracker.fraction() is None
    told = [name for name, *_ in listener.told]
    assert told == [
        "restore_start",
        "batch_restored",
        "restore_suspended",
        "restore_start",
        "restore_end",
    ]


def test_a_state_listener_that_raises_stops_no_change(caplog: pytest.LogCaptureFixture) -> None:
    machine = StateMachine()
    machine.listener = Listener(RuntimeError("the user's own fault")).state
    assert machine.to(ClientState.REBALANCING)
    assert machine.state is ClientState.REBALANCING
    assert "failed in CREATED -> REBALANCING" in caplog.text


class EnoughError(Exception):
    """Ends the start behind the state updater."""


def test_the_standby_listener_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updaters: list[StateUpdater] = []

    def ports_with_an_updater(
        dependencies: Dependencies, context: object, standbys: object, *_: object
    ) -> None:
        ports: Any = SimpleNamespace(
            _dependencies=dependencies,
            _config=dependencies.config,
            _clock=dependencies.clock,
            _changelogs=dependencies.changelogs,
            _standbys=standbys,
            _distrust=None,
            doubt_topics=lambda _: None,
        )
        instance: Any = SimpleNamespace(tracker=RestoreTracker(Metrics()), pause=Pause())
        updaters.append(ClusterPorts.updater(ports, instance))
        raise EnoughError

    blueprint = SimpleNamespace(
        cluster_id="cluster", store_specs=dict, reused=frozenset(), left_out={}
    )
    monkeypatch.setattr(kafka_streams, "check_clients", lambda config: None)
    monkeypatch.setattr(kafka_streams, "prepare_cluster", lambda *_: blueprint)
    monkeypatch.setattr("everflow.spark.session.get_context", lambda *_: None)
    monkeypatch.setattr(kafka_streams, "ClusterPorts", ports_with_an_updater)
    topology = Topology(())  # the Spark that a real one needs takes seconds to start
    streams = KafkaStreams(
        topology, application_id="app", bootstrap_servers="localhost:1", state_dir=str(tmp_path)
    )
    listener = Listener()
    streams.set_standby_update_listener(listener)
    with pytest.raises(EnoughError):
        streams.start()
    (updater,) = updaters
    updater._tell_standby("update_start", PROGRESS)
    updater._tell_standby("batch_loaded", PROGRESS, 5)
    updater._tell_standby("update_suspended", PROGRESS, SuspendReason.PROMOTED)
    assert listener.told == [
        ("update_start", PROGRESS),
        ("batch_loaded", PROGRESS, 5),
        ("update_suspended", PROGRESS, SuspendReason.PROMOTED),
    ]
