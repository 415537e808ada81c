"""Starts that are told to stop or meet a busy broker, and ends of which a part hangs."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from everflow import KafkaStreams, StreamsBuilder
from everflow.assignment.cluster_state import AssignmentRules
from everflow.errors import RetriableError, StateLockedError, TaskTimeoutError
from everflow.instance.client_state import ClientState
from everflow.instance.commit_gate import GateBook
from everflow.instance.life import drain_limit, drained_or_ended
from everflow.instance.start_up import prepare_cluster
from everflow.instance.tasks.blueprint import Blueprint
from everflow.records import TopicPartition
from everflow.state.task_directory import StateDirectory
from everflow.testing import wait_until
from everflow_simulation.instance import SimulatedPorts, _Loop
from everflow_simulation.pool import FiberPool
from everflow_simulation.scheduler import SimulatedClock
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings
from everflow_simulation.simulation import Simulation
from unit.builders import streams_config
from unit.manual_clock import ManualClock

SOON_S = 10.0
"""Far less than ``task.timeout.ms`` (five minutes), for which a start waits for a broker."""


def instance(folder: Path, **more: Any) -> KafkaStreams:
    """One whose broker does not answer."""
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    config = streams_config(bootstrap_servers="localhost:1", state_dir=str(folder), **more)
    return KafkaStreams(builder.build(), config)


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[KafkaStreams]:
    made = instance(tmp_path)
    yield made
    made.close(SOON_S)
    StateDirectory.open(tmp_path, "app").close()  # nobody holds it


def states_of(streams: KafkaStreams) -> list[str]:
    told: list[str] = []
    streams.set_state_listener(lambda new, old: told.append(new.name))
    return told


def test_close_from_another_thread_ends_a_start_that_waits(streams: KafkaStreams) -> None:
    told = states_of(streams)
    failures: list[BaseException] = []

    def start() -> None:
        try:
            streams.start()
        except BaseException as error:
            failures.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    wait_until(lambda: streams._log_file is not None, SOON_S, "the state folder to be locked")
    began_s = time.monotonic()
    assert streams.close(SOON_S)
    assert time.monotonic() - began_s < SOON_S / 2
    starting.join(SOON_S)
    assert failures == []
    assert streams.error is None
    assert told == ["REBALANCING", "PENDING_SHUTDOWN", "NOT_RUNNING"]


def test_ctrl_c_in_a_start_ends_it_in_order_and_goes_on(streams: KafkaStreams) -> None:
    told = states_of(streams)

    def interrupt() -> None:
        wait_until(lambda: streams._log_file is not None, SOON_S, "the state folder to be locked")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        streams.start()
    assert streams.error is None
    assert told == ["REBALANCING", "PENDING_SHUTDOWN", "NOT_RUNNING"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_returns_where_a_signal_comes_while_it_starts(
    number: signal.Signals, streams: KafkaStreams, caplog: pytest.LogCaptureFixture
) -> None:
    told = states_of(streams)

    def interrupt() -> None:
        wait_until(lambda: streams._log_file is not None, SOON_S, "the state folder to be locked")
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    with caplog.at_level("INFO", "everflow.moves"):
        streams.run()
    assert told == ["REBALANCING", "PENDING_SHUTDOWN", "NOT_RUNNING"]
    lines = [record.getMessage() for record in caplog.records if "stopping" in record.getMessage()]
    assert set(lines) == {
        f"stopping: it had not joined its group yet ({number.name}; a second one does not wait)"
    }


def test_an_instance_whose_variable_was_taken_is_found_and_closed(streams: KafkaStreams) -> None:
    starting = threading.Thread(target=streams.start)
    starting.start()
    wait_until(lambda: streams._log_file is not None, SOON_S, "the state folder to be locked")
    second = KafkaStreams(streams._topology, streams.config)
    with pytest.raises(StateLockedError, match="variable"):
        second.start()
    assert (KafkaStreams.running("another"), KafkaStreams.running("app")) == ([], [streams])
    for one in KafkaStreams.running("app"):
        one.close()
    starting.join(SOON_S)
    assert (KafkaStreams.running(), streams.state) == ([], ClientState.NOT_RUNNING)


def test_a_start_that_fails_by_itself_still_ends_in_error(tmp_path: Path) -> None:
    streams = instance(tmp_path, task_timeout_ms=500)
    with pytest.raises(TaskTimeoutError, match="no Kafka broker answered"):
        streams.start()
    assert streams.state is ClientState.ERROR
    assert isinstance(streams.error, TaskTimeoutError)
    assert streams.close(SOON_S)


def test_closed_before_its_start_it_never_runs(streams: KafkaStreams) -> None:
    told = states_of(streams)
    assert streams.close()
    assert told == ["PENDING_SHUTDOWN", "NOT_RUNNING"]


class BusyCluster:
    """What a start asks of a `ClusterAdmin`; ``leaderless`` questions about offsets are in vain."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, Mapping[str, str]]] = {"a": (2, {}), "b": (2, {})}
        self.leaderless = 0

    def wait_until_reachable(self, *_: object, **__: object) -> str:
        return "cluster"

    def describe_topics(self, names: Iterable[str]) -> dict[str, Any]:
        found = {name: self.kept[name] for name in names if name in self.kept}
        return {
            name: SimpleNamespace(partitions=partitions, topic_id=name)
            for name, (partitions, _) in found.items()
        }

    def topic_configs(self, names: Iterable[str]) -> dict[str, Mapping[str, str]]:
        return {name: self.kept[name][1] for name in names}

    def list_topics(self) -> list[str]:
        return list(self.kept)

    def create_topics(self, wanted: Mapping[str, Any], *_: object, **__: object) -> None:
        self.kept.update(wanted)

    def committed(self, *_: object, **__: object) -> dict[TopicPartition, Any]:
        return {}

    def list_offsets(
        self, partitions: Iterable[TopicPartition], *_: object
    ) -> dict[TopicPartition, int]:
        if self.leaderless:
            self.leaderless -= 1
            raise RetriableError("asking for offsets of app-c-changelog-0: Not leader")
        return dict.fromkeys(partitions, 0)

    end_offsets = list_offsets


def started(cluster: BusyCluster, folder: Path, clock: ManualClock) -> Blueprint:
    builder = StreamsBuilder()
    builder.stream("a").group_by_key().count(store="c").to_stream().to("b")
    config = streams_config(task_timeout_ms=60_000)
    directory = StateDirectory.open(folder, "app")
    admin: Any = cluster
    try:
        return prepare_cluster(builder.build(), config, admin, directory, clock, threading.Event())
    finally:
        directory.close()


def test_an_instance_waits_for_the_topics_that_another_one_has_just_created(tmp_path: Path) -> None:
    cluster, clock = BusyCluster(), ManualClock()
    first = started(cluster, tmp_path / "one", clock)
    assert "app-c-changelog" in cluster.kept
    cluster.leaderless = 4
    second = started(cluster, tmp_path / "two", clock)
    assert (second.inputs, cluster.leaderless) == (first.inputs, 0)


def test_but_not_for_ever(tmp_path: Path) -> None:
    cluster, clock = BusyCluster(), ManualClock()
    started(cluster, tmp_path / "one", clock)
    cluster.leaderless = 1_000_000
    with pytest.raises(TaskTimeoutError, match=r"preparing.*60.*app-c-changelog-0"):
        started(cluster, tmp_path / "two", clock)


NEVER_MS = 3_600_000.0
SMALL = SimulationSettings(
    subtopologies=(SimulatedSubTopology(4),), rules=AssignmentRules(num_standbys=0)
)


def for_ever(clock: SimulatedClock) -> Callable[..., None]:
    return lambda *_, **__: clock.park(NEVER_MS)


def ended_ms(group: Simulation, name: str) -> float:
    """How long its end takes, ten minutes at most."""
    began = group.now_ms
    # Nobody processes its tasks meanwhile: who takes them over has a larger batch once.
    group.checks.all_disturbed(120_000.0)
    group.close_instance(name, leave_group=True, drain_ms=None)
    while not group.instances[name].ended and group.now_ms - began < 600_000:
        group.run_for(1_000)
    return group.now_ms - began


def test_a_batch_of_which_no_worker_is_known_holds_no_end_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where others have all of Spark's places: no hello was said, nobody can be killed."""
    with Simulation(SMALL, seed=21) as group:
        group.add(2)
        group.settle(60_000)
        monkeypatch.setattr(GateBook, "take_pids", lambda self, thread: ())
        group.stall_batch("i2", 0, NEVER_MS)
        group.backlog(1_000)
        group.run_for(1_000)
        book = group.instances["i2"].book
        held = [batch.batch_id for batch in book._open.values() if batch.thread == 0]
        assert held
        assert ended_ms(group, "i2") < 60_000
        assert "Stream threads 0 have not ended within 10 s" in caplog.text
        life = group.instances["i2"].lifecycle
        assert life.states.state is ClientState.NOT_RUNNING
        assert "Stream threads 0" in str(life.error)
        assert not book.hello(held[0], "t0-sink", 1), "a worker that comes later is sent away"
        group.settle(60_000)
        group.require_progress(10_000)


HANGING: dict[str, tuple[type, str]] = {
    "Finishing the events of its loop": (_Loop, "end"),
    "Waiting for restores and copies to stop": (FiberPool, "shutdown"),
    "Closing the stores": (SimulatedPorts, "checkpoint"),
}


@pytest.mark.parametrize("step", HANGING)
def test_a_step_that_hangs_holds_no_end_up(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, name = HANGING[step]
    with Simulation(SMALL, seed=22) as group:
        group.add(2)
        group.settle(60_000)
        clock = cast("SimulatedPorts", group.instances["i2"].ports).clock
        monkeypatch.setattr(owner, name, for_ever(clock))
        assert ended_ms(group, "i2") < 60_000
        assert f"{step} has not ended within 30 s" in caplog.text
        monkeypatch.undo()
        group.settle(60_000)
        group.require_progress(10_000)


def test_the_smaller_limit_is_named() -> None:
    assert drain_limit(60.0, 60.0) == "drain.timeout.ms"
    assert drain_limit(48.0, 60.0) == "80% of close(timeout=60)"
    assert drain_limit(24.0, 60.0) == "80% of close(timeout=30)"


def test_a_drain_ends_with_the_first_reason_that_applies_or_well() -> None:
    answers = iter([False, False, True])
    assert drained_or_ended(lambda _: next(answers), {"late": lambda: False}) is None
    looks = iter([False, True])
    assert drained_or_ended(lambda _: False, {"late": bool, "evicted": looks.__next__}) == "evicted"
