"""What may be asked of an instance: pause, clean up, shut down, bounds, where its inputs begin."""

import errno
import os
import re
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from everflow import (
    ErrorHandlerContext,
    IllegalStateError,
    KafkaStreams,
    Response,
    RetryOutages,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    TopologyError,
    serdes,
)
from everflow.assignment.cluster_state import AssignmentRules
from everflow.errors import (
    ConfigError,
    RetriableError,
    SchemaError,
    StateFormatError,
    StateLockedError,
    TaskTimeoutError,
)
from everflow.handlers import Handlers, dead_letter_and_continue, is_outage
from everflow.instance.assembly import Dependencies
from everflow.instance.bounded_run import bounded_run
from everflow.instance.client_state import ClientState, Pause
from everflow.instance.commit_gate import GateBook
from everflow.instance.life import drain_limit, drained_or_ended
from everflow.instance.start_up import offset_resets, prepare_cluster
from everflow.instance.tasks.blueprint import Blueprint
from everflow.records import TaskId, TopicPartition
from everflow.setting_checks import offset_reset, reset_duration_ms
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from everflow.testing import SchemaRegistry, wait_until
from everflow.topology.graph import EdgeType, Reading, SourceNode
from everflow.topology.subtopologies import cut
from everflow_simulation.instance import SimulatedPorts, _Loop
from everflow_simulation.pool import FiberPool
from everflow_simulation.scheduler import SimulatedClock
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings
from everflow_simulation.simulation import Simulation
from unit.builders import streams_config
from unit.manual_clock import ManualClock

TASK = TaskId(0, 1)


def topology(output: str | None = "out") -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    if output is None:
        stream.for_each(lambda value: None)
    else:
        stream.to(output)
    return builder.build()


def instance(folder: Path, output: str | None = "out") -> KafkaStreams:
    return KafkaStreams(
        topology(output), application_id="app", bootstrap_servers="nowhere:1", state_dir=str(folder)
    )


def filled(folder: Path) -> Path:
    """A folder with a store, as a closed instance leaves it."""
    directory = StateDirectory.open(folder, "app")
    directory.record_transactional_ids(["app-p-0"])
    path = directory.store_path(TASK, "counts")
    LmdbStore.open(path, kind="key_value").touch(1)
    directory.close()
    assert (path / "data.mdb").exists()
    return path


@pytest.mark.parametrize("ended", [False, True])
def test_clean_up_deletes_before_the_start_and_after_the_end(tmp_path: Path, ended: bool) -> None:
    path, streams = filled(tmp_path), instance(tmp_path)
    before = StateDirectory.open(tmp_path, "app")
    before.close()
    if ended:
        streams.close()
    streams.clean_up()
    assert not path.parent.exists()
    after = StateDirectory.open(tmp_path, "app")
    try:
        assert after.tasks() == []
        # The same instance, and it still knows which transactions to end.
        assert (after.process_id, after.transactional_ids) == (before.process_id, ("app-p-0",))
    finally:
        after.close()


def test_clean_up_of_no_folder_makes_none(tmp_path: Path) -> None:
    instance(tmp_path / "state").clean_up()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "state", [ClientState.REBALANCING, ClientState.RUNNING, ClientState.PENDING_SHUTDOWN]
)
def test_clean_up_while_it_runs_is_refused(tmp_path: Path, state: ClientState) -> None:
    path, streams = filled(tmp_path), instance(tmp_path)
    steps = [ClientState.REBALANCING, ClientState.RUNNING, ClientState.PENDING_SHUTDOWN]
    for step in steps[: steps.index(state) + 1]:
        streams._life.states.to(step)
    with pytest.raises(IllegalStateError, match=rf"{state.name}.*stores"):
        streams.clean_up()
    assert (path / "data.mdb").exists()


def test_clean_up_leaves_what_others_hold_or_own(tmp_path: Path) -> None:
    path = filled(tmp_path)
    directory = StateDirectory.open(tmp_path, "app")
    with pytest.raises(StateLockedError):
        instance(tmp_path).clean_up()
    directory.close()
    metadata = tmp_path / "app" / "process-metadata"
    metadata.write_text(metadata.read_text().replace('"app"', '"another"'))
    with pytest.raises(StateFormatError):
        instance(tmp_path).clean_up()
    assert (path / "data.mdb").exists()


def test_a_pause_may_come_before_the_start_and_ends_with_resume(tmp_path: Path) -> None:
    streams = instance(tmp_path)
    assert not streams.is_paused()
    streams.resume()
    streams.pause()
    streams.pause()
    assert (streams.is_paused(), streams.state) == (True, ClientState.CREATED)
    streams.resume()
    assert not streams.is_paused()


def test_a_restore_stands_still_while_paused_and_ends_when_it_is_stopped() -> None:
    pause, stop, wake = Pause(), threading.Event(), threading.Event()
    pause.wakes.append(wake)
    assert not pause.hold(stop)
    answers: list[bool] = []
    for end in (pause.resume, stop.set):
        pause.pause()
        waiting = threading.Thread(target=lambda: answers.append(pause.hold(stop)))
        waiting.start()
        assert waiting.is_alive()
        end()
        wait_until(lambda waiting=waiting: not waiting.is_alive(), 10, ("the restore to go on"))  # type: ignore[misc]
    assert answers == [False, True]
    assert wake.is_set()


def test_the_whole_application_is_shut_down_through_the_group(tmp_path: Path) -> None:
    class Member:
        asked = 0

        def shut_down_application(self) -> None:
            self.asked += 1

    streams, member = instance(tmp_path), Member()
    with pytest.raises(IllegalStateError, match="In state CREATED"):
        streams.shut_down_application()
    stand_in: Any = SimpleNamespace(member=member)
    streams._life.instance = stand_in
    streams._life.states.to(ClientState.REBALANCING)
    streams.shut_down_application()
    assert member.asked == 1


@pytest.mark.parametrize("leave_group", [None, True, False])
def test_a_signal_closes_it_as_run_was_told(
    tmp_path: Path, leave_group: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, closed = instance(tmp_path), []

    def start() -> None:
        streams._life.states.to(ClientState.REBALANCING)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()

    def begin_close(timeout: float, leave_group: bool | None) -> None:
        closed.append(leave_group)
        streams._life.states.to(ClientState.PENDING_SHUTDOWN)
        streams._life.states.to(ClientState.NOT_RUNNING)

    monkeypatch.setattr(streams, "start", start)
    monkeypatch.setattr(streams, "_begin_close", begin_close)
    before = signal.getsignal(signal.SIGTERM)
    streams.run(leave_group)
    assert closed == [leave_group]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("output", "asked", "told"),
    [
        ("out", {"count": 0}, "1 at least, found 0"),
        ("out", {"count": True}, "1 at least, found True"),
        ("out", {"count": "5"}, "1 at least, found '5'"),
        ("out", {"timeout": 0}, "timeout is above 0, '30 seconds'"),
        ("out", {"timeout": float("nan")}, "timeout is above 0"),
        ("out", {"timeout": "soon"}, "the duration 'soon'"),
        ("out", {"collect": "in"}, "collect='in' is no .*; it writes o"),
        ("out", {"collect": []}, r"list of names, found \[\]"),
        ("out", {"collect": 7}, "list of names, found 7"),
        (None, {"count": 1}, r"\.to\('topic'\), or .*timeout='30 seconds'"),
    ],
)
def test_a_bound_that_cannot_be_is_refused_with_the_cure(
    tmp_path: Path, output: str | None, asked: dict[str, Any], told: str
) -> None:
    streams = instance(tmp_path, output)
    with pytest.raises(TopologyError, match=told) as refused:
        streams.run(**asked)
    assert "test_instance_operations.py:" in str(refused.value)
    assert streams.state is ClientState.CREATED, "it can be run again, corrected"


@pytest.mark.parametrize("timeout", [1.5, "1500 ms", timedelta(milliseconds=1500)])
def test_a_time_is_seconds_text_or_a_timedelta(timeout: object) -> None:
    bound = bounded_run(topology(), streams_config(), None, timeout, None)
    assert bound is not None
    assert bound.timeout_s == 1.5
    assert bound.sinks == {}, "nothing is read that nobody asked for"


CONTEXT = ErrorHandlerContext(
    stage="processing",
    topic="in",
    partition=0,
    offset=7,
    timestamp=1,
    headers=(),
    source_raw_key=None,
    source_raw_value=b"v",
    processor_node_id="parse",
    task_id="0_0",
    attempt=0,
)


class Answer(Exception):
    """As clients of registries raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


def in_sqlite(*scripts: str) -> sqlite3.OperationalError:
    """What the last of them, each on a connection of its own, fails with."""
    with tempfile.NamedTemporaryFile() as file:
        opened = [sqlite3.connect(file.name, timeout=0) for _ in scripts]
        try:
            for connection, script in zip(opened, scripts, strict=True):
                connection.executescript(script)
        except sqlite3.OperationalError as error:
            return error
        finally:
            for connection in opened:
                connection.close()
    raise AssertionError("it did not fail")


def outage_behind() -> Exception:
    error = ValueError("cannot read the value")
    error.__cause__ = ConnectionRefusedError("nobody there")
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError("gone"), True),
        (TimeoutError("no answer"), True),
        (type("ServerDisconnectedError", (Exception,), {})(), True),
        (type("RemoteProtocolError", (Exception,), {})(), True),
        (Answer(401), True),
        (Answer(429), True),
        (Answer(503), True),
        (Answer(404), False),
        (Answer(422), False),
        (outage_behind(), True),
        (ValueError("no number"), False),
        (FileNotFoundError("no such file"), False),
        (OSError(errno.ENOSPC, "full"), True),
        (type("OperationalError", (Exception,), {})("the server is shut down"), True),
        (in_sqlite("BEGIN EXCLUSIVE; SELECT * FROM none"), False),
        (in_sqlite("BEGIN EXCLUSIVE", "BEGIN EXCLUSIVE"), True),
    ],
)
def test_an_outage_is_told_from_a_bad_record(error: Exception, expected: bool) -> None:
    assert is_outage(error) is expected
    answer = RetryOutages(dead_letter_and_continue)(CONTEXT, error)
    assert answer is (Response.RETRY if expected else Response.DEAD_LETTER)


def test_what_they_answer_with_and_without_a_topic() -> None:
    found = {
        (setting, topic): Handlers.of(topic, {"processing": setting}).answer(CONTEXT, ValueError())
        for setting in ("dead-letter", "continue", "fail")
        for topic in ("dead", None)
    }
    assert found == {
        ("dead-letter", "dead"): Response.DEAD_LETTER,
        ("dead-letter", None): Response.FAIL,
        ("continue", "dead"): Response.DEAD_LETTER,
        ("continue", None): Response.CONTINUE,
        ("fail", "dead"): Response.FAIL,
        ("fail", None): Response.FAIL,
    }


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
        "LogAndContinueProcessingExceptionHandler",
        "everflow.handlers:log_and_continue",
    ],
)
def test_javas_names_and_a_path_mean_the_same(name: str) -> None:
    handlers = Handlers.of(None, {"processing": name})
    assert handlers.answer(CONTEXT, ValueError()) is Response.CONTINUE


@pytest.mark.parametrize("given", ["skip", 3, {"parse": "skip"}])
def test_what_is_no_handler_is_told_with_what_there_is(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"processing\.exception\.handler.*(dead-letter|text)"):
        streams_config(processing_exception_handler=given)


def test_a_handler_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no_such_module_here:name.*cannot be loaded"):
        Handlers.of(None, {"processing": "no_such_module_here:name"})


def dependencies(**settings: Any) -> Dependencies:
    """The readers' settings stand on the configuration only."""
    config = StreamsConfig(**{"application.id": "a", "bootstrap.servers": "b:9092", **settings})
    nothing = cast(Any, None)
    return Dependencies(
        config=config,
        clock=nothing,
        admin=nothing,
        blueprint=nothing,
        directory=nothing,
        changelogs=nothing,
    )


def test_the_rack_reaches_the_readers_of_inputs_and_changelogs_where_there_is_one() -> None:
    found, bare = dependencies(**{"client.rack": "zone-a"}), dependencies()
    assert found.reader["client.rack"] == "zone-a"
    assert found.main_reader["client.rack"] == "zone-a"
    assert "client.rack" not in {**bare.reader, **bare.main_reader}


def test_each_reader_has_its_prefix() -> None:
    found = dependencies(
        **{"consumer.fetch.min.bytes": 1, "main.consumer.fetch.min.bytes": 2, "client.rack": "a"}
    )
    assert (found.reader["fetch.min.bytes"], found.main_reader["fetch.min.bytes"]) == (1, 2)
    assert found.main_reader["bootstrap.servers"] == "b:9092"


BYTES = EdgeType(pa.binary(), pa.binary())


def source(topic: str, offset_reset: str | None = None, kind: str = "stream") -> SourceNode:
    return SourceNode(
        f"source-{topic}",
        (),
        BYTES,
        (topic,),
        serdes.bytes_(),
        serdes.bytes_(),
        kind,
        Reading(offset_reset=offset_reset),
    )


def test_a_source_without_a_policy_begins_as_the_setting_says() -> None:
    topology = Topology((source("orders"), source("prices", "earliest")), ())
    config = streams_config(auto_offset_reset="latest")
    assert offset_resets(cut(topology), config) == {"orders": "latest", "prices": "earliest"}


@pytest.mark.parametrize(
    ("policy", "ms"),
    [
        ("by_duration:PT12H", 43_200_000),
        ("by_duration:P1DT6H30M", 109_800_000),
        ("by_duration:PT0.5S", 500),
        ("by_duration:pt1m", 60_000),
        *[(text, None) for text in ("by_duration:", "by_duration:P", "by_duration:PT", "PT1H")],
        ("by_duration:1 hour", None),
        ("latest", None),
    ],
)
def test_a_duration_is_written_as_in_java(policy: str, ms: int | None) -> None:
    assert reset_duration_ms(policy) == ms
    assert (offset_reset(policy) is None) is (ms is not None or policy == "latest")


def test_a_timedelta_is_a_duration() -> None:
    builder = StreamsBuilder()
    builder.stream("orders", offset_reset=timedelta(hours=1, milliseconds=5))
    policies = offset_resets(cut(builder.build()), streams_config())
    assert reset_duration_ms(policies["orders"]) == 3_600_005


def test_a_repartition_topic_is_read_from_its_start_whatever_is_set() -> None:
    topology = Topology((source("orders"), source("by-key-repartition", kind="repartition")), ())
    config = streams_config(auto_offset_reset="latest")
    assert offset_resets(cut(topology), config)["app-by-key-repartition"] == "earliest"


# Starts that are told to stop or meet a busy broker, and ends of which a part hangs.

SOON_S = 10.0
"""Far less than ``task.timeout.ms`` (five minutes), for which a start waits for a broker."""


def stopped_instance(folder: Path, **more: Any) -> KafkaStreams:
    """One whose broker does not answer."""
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    config = streams_config(bootstrap_servers="localhost:1", state_dir=str(folder), **more)
    return KafkaStreams(builder.build(), config)


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[KafkaStreams]:
    made = stopped_instance(tmp_path)
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
    (line,) = set(lines)
    assert line.startswith("stopping: ")
    assert f" ({number.name}; " in line


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
    streams = stopped_instance(tmp_path, task_timeout_ms=500)
    with pytest.raises(TaskTimeoutError, match="no Kafka broker"):
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


def started(
    cluster: BusyCluster, folder: Path, clock: ManualClock, builder: StreamsBuilder | None = None
) -> Blueprint:
    if builder is None:
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


ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def schema_program(registry: SchemaRegistry, **more: Any) -> StreamsBuilder:
    order = serdes.avro(ORDER, registry={"url": registry.url, "request.timeout.ms": "2000"}, **more)
    builder = StreamsBuilder()
    orders = builder.stream("a", key=serdes.string(), value=order)
    orders.to("b")
    return builder


@pytest.mark.parametrize("header_id", [False, True])
def test_a_schema_that_nobody_registered_is_known_at_the_start(
    tmp_path: Path, header_id: bool
) -> None:
    with SchemaRegistry() as registry:
        registry.register("a-value", ORDER)
        builder, cluster = schema_program(registry, header_id=header_id), BusyCluster()
        with pytest.raises(SchemaError, match="b-value") as refused:
            started(cluster, tmp_path, ManualClock(), builder)
        assert Path(__file__).name in str(refused.value)
        registry.register("b-value", {**ORDER, "fields": [{"name": "id", "type": "string"}]})
        with pytest.raises(SchemaError, match="id"):
            started(cluster, tmp_path, ManualClock(), builder)
        registry.register("b-value", ORDER)
        started(cluster, tmp_path, ManualClock(), builder)


def test_a_store_asks_for_its_schema_too(tmp_path: Path) -> None:
    with SchemaRegistry() as registry:
        order = serdes.avro(ORDER, registry=registry.url)
        builder = StreamsBuilder()
        builder.table("a", key=serdes.string(), value=order, store="orders")
        with pytest.raises(SchemaError, match=r"store orders.*a-value"):
            started(BusyCluster(), tmp_path, ManualClock(), builder)


def test_a_start_registers_no_schema(tmp_path: Path) -> None:
    with SchemaRegistry() as registry:
        started(
            BusyCluster(), tmp_path, ManualClock(), schema_program(registry, auto_register=True)
        )
        assert registry.asked == []


def test_a_registry_that_is_away_refuses_no_start(tmp_path: Path) -> None:
    with SchemaRegistry() as registry:
        registry.fails = 503
        started(BusyCluster(), tmp_path, ManualClock(), schema_program(registry))
        assert registry.asked, "it was asked"


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
    """As where others have all of Spark's places: no worker has come, nobody can be killed."""
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
        assert re.search("threads 0 .* ended .* 10 s", caplog.text)
        life = group.instances["i2"].lifecycle
        assert life.states.state is ClientState.NOT_RUNNING
        assert "Stream threads 0" in str(life.error)
        assert not book.serves(held[0], 1), "a worker that comes later is sent away"
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
        assert re.search(f"{step} .* ended .* 30 s", caplog.text)
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
