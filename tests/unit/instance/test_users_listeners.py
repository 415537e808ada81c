"""Users' listeners: they reach what tells them, and what they raise is logged and ends nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everflow import KafkaStreams
from everflow.instance import kafka_streams
from everflow.instance.assembly import ClusterPorts, Dependencies
from everflow.instance.client_state import ClientState, Pause, StateMachine
from everflow.instance.copies.state_updater import StateUpdater
from everflow.instance.restore.listeners import RestoreProgress, RestoreTracker, SuspendReason
from everflow.metrics import Metrics
from everflow.records import TaskId, TopicPartition
from everflow.topology.program import Topology
from everflow.user_program import ListenerGuard

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


def test_a_listener_s_errors_are_logged_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    guard, calls = ListenerGuard("restore listener"), 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("no such row")

    for _ in range(100):
        guard.tell("batch_restored", fails)
    guard.tell("restore_end", fails)
    messages = [record.getMessage() for record in caplog.records]
    assert calls == 101
    assert [message.count("batch_restored") for message in messages] == [1] * 7 + [0], (
        "1, 2, 4, ... 64, then another event"
    )
    assert messages[0].startswith(f"The restore listener failed in batch_restored at {__file__}:")
    assert "ValueError: no such row" in messages[0]
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
    assert "The state listener failed in CREATED -> REBALANCING" in caplog.text


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
