"""A start that is told to stop gives up what it waits for; a wish to end is never an error. No
broker answers here."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everflow import KafkaStreams, StreamsBuilder
from everflow.errors import StateLockedError, TaskTimeoutError
from everflow.instance.client_state import ClientState
from everflow.state.task_directory import StateDirectory
from everflow.testing import wait_until

SOON_S = 10.0
"""Far less than ``task.timeout.ms`` (five minutes), for which a start waits for a broker."""


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[KafkaStreams]:
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    made = KafkaStreams(
        builder.build(),
        application_id="app",
        bootstrap_servers="localhost:1",
        state_dir=str(tmp_path),
    )
    yield made
    made.close(SOON_S)
    StateDirectory.open(tmp_path, "app").close()  # nobody holds it


def states_of(streams: KafkaStreams) -> list[str]:
    told: list[str] = []
    streams.set_state_listener(lambda new, old: told.append(new.name))
    return told


def test_close_from_another_thread_ends_a_start_that_waits_for_a_broker(
    streams: KafkaStreams,
) -> None:
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


def test_an_instance_whose_variable_a_second_one_has_taken_is_found_and_closed(
    streams: KafkaStreams,
) -> None:
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
    builder = StreamsBuilder()
    builder.stream("a").to("b")
    settings: dict[str, Any] = {
        "application_id": "app",
        "bootstrap_servers": "localhost:1",
        "state_dir": str(tmp_path),
    }
    streams = KafkaStreams(builder.build(), **settings, task_timeout_ms=500)
    with pytest.raises(TaskTimeoutError, match="no Kafka broker answered"):
        streams.start()
    assert streams.state is ClientState.ERROR
    assert isinstance(streams.error, TaskTimeoutError)
    assert streams.close(SOON_S)


def test_closed_before_its_start_it_never_runs(streams: KafkaStreams) -> None:
    told = states_of(streams)
    assert streams.close()
    assert told == ["PENDING_SHUTDOWN", "NOT_RUNNING"]
