"""Pause, clean up and shut down the application: what an operator may ask of an instance, and
when."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everflow import IllegalStateError, KafkaStreams, StreamsBuilder, serdes
from everflow.errors import StateFormatError, StateLockedError
from everflow.instance.client_state import ClientState, Pause
from everflow.records import TaskId
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from everflow.testing.waiting import wait_until

TASK = TaskId(0, 1)


def instance(folder: Path) -> KafkaStreams:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string(), value=serdes.string()).to("out")
    return KafkaStreams(
        builder.build(), application_id="app", bootstrap_servers="nowhere:1", state_dir=str(folder)
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
def test_clean_up_deletes_the_stores_before_the_start_and_after_the_end(
    tmp_path: Path, ended: bool
) -> None:
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
def test_clean_up_while_it_runs_is_refused_and_deletes_nothing(
    tmp_path: Path, state: ClientState
) -> None:
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
