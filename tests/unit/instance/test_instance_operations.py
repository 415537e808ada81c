"""What may be asked of an instance: pause, clean up, shut down, bounds, where its inputs begin."""

import os
import re
import signal
import threading
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
from everflow.errors import ConfigError, StateFormatError, StateLockedError
from everflow.handlers import Handlers, dead_letter_and_continue, is_outage
from everflow.instance.assembly import Dependencies
from everflow.instance.bounded_run import bounded_run
from everflow.instance.client_state import ClientState, Pause
from everflow.instance.start_up import offset_resets
from everflow.records import TaskId
from everflow.setting_checks import offset_reset, reset_duration_ms
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from everflow.testing.waiting import wait_until
from everflow.topology.graph import EdgeType, Reading, SourceNode
from everflow.topology.subtopologies import cut
from unit.builders import streams_config

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
        ("out", {"count": 0}, "count is a number of records, 1 at least, found 0"),
        ("out", {"count": True}, "1 at least, found True"),
        ("out", {"count": "5"}, "1 at least, found '5'"),
        ("out", {"timeout": 0}, "timeout is above 0, '30 seconds'"),
        ("out", {"timeout": float("nan")}, "timeout is above 0"),
        ("out", {"timeout": "soon"}, "cannot read the duration 'soon'"),
        ("out", {"collect": "in"}, "collect='in' is no topic that the program writes; it writes o"),
        ("out", {"collect": []}, "the name of an output topic or a list of names, found []"),
        ("out", {"collect": 7}, "the name of an output topic or a list of names, found 7"),
        (None, {"count": 1}, "write .to('topic'), or end the run with timeout='30 seconds'"),
    ],
)
def test_a_bound_that_cannot_be_is_refused_with_the_cure(
    tmp_path: Path, output: str | None, asked: dict[str, Any], told: str
) -> None:
    streams = instance(tmp_path, output)
    with pytest.raises(TopologyError, match=re.escape(told)) as refused:
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


def outage_behind() -> Exception:
    error = ValueError("cannot read the value")
    error.__cause__ = ConnectionRefusedError("nobody there")
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError("gone"), True),
        (TimeoutError("no answer"), True),
        (Answer(401), True),
        (Answer(429), True),
        (Answer(503), True),
        (Answer(404), False),
        (Answer(422), False),
        (outage_behind(), True),
        (ValueError("no number"), False),
        (FileNotFoundError("no such file"), False),
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
