"""Two instances, two sinks, one of which is down (note 074): it is paused alone, stays paused over
a kill and a restart of both, and loses nothing."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app as command_line
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from integration.crash.crash_instance import PARTITIONS, Application, kill, records
from integration.crash.crash_topologies import DOWN, ROWS

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

DONE_S = 60.0


class Two:
    """Two instances of one application, and the folder of its rows."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.folder, name = folder, f"two{uuid.uuid4().hex[:8]}"
        self.first, self.second = (
            Application(
                name,
                broker,
                folder / number,
                "sinks-apart",
                {"scheduled.rebalance.max.delay.ms": 0},
            )
            for number in ("1", "2")
        )
        self.name, self.servers = name, broker.bootstrap_servers

    @property
    def both(self) -> tuple[Application, Application]:
        return self.first, self.second

    def start(self) -> None:
        for one in self.both:
            one.launch()
        for one in self.both:
            one.await_running()

    def kill_both(self) -> None:
        for one in self.both:
            family = one.family()
            kill(one.driver)
            one.wait_end()
            for member in family:
                if member.is_running():
                    member.kill()

    def rows(self, sink: str) -> list[list[str]]:
        path = self.folder / sink
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def has_all(self, sink: str) -> bool:
        return {(key, value) for key, value, _ in self.rows(sink)} == set(self.first.sent)

    def connect(self, *arguments: str) -> tuple[int, Any]:
        where = ["--bootstrap-servers", self.servers, "--output", "json"]
        found = CliRunner().invoke(command_line, ["connect", self.name, *arguments, *where])
        return found.exit_code, json.loads(found.stdout) if found.stdout else found.stderr

    def states(self, connector: str) -> list[str]:
        _, rows = self.connect("status", connector)
        return [task["state"] for task in rows[0]["tasks"]]

    def await_states(self, connector: str, *wanted: str) -> None:
        wait_until(
            lambda: set(self.states(connector)) <= set(wanted),
            DONE_S,
            f"{connector} to be {wanted}",
            lambda: [str(self.connect("status")), *self.first.history(), *self.second.history()],
        )

    def await_rows(self, sink: str) -> None:
        wait_until(lambda: self.has_all(sink), DONE_S, f"all rows in {sink}", self.first.history)

    def is_down(self, down: bool) -> None:
        path = self.folder / DOWN
        path.touch() if down else path.unlink()


@pytest.fixture
def two(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Two]:
    os.environ[ROWS] = str(tmp_path)
    found = Two(broker, tmp_path)
    yield found
    for one in found.both:
        one.close()
    del os.environ[ROWS]


@pytest.mark.slow
def test_a_paused_sink_stays_paused_and_loses_nothing(two: Two) -> None:
    two.start()
    two.first.produce(records(8, 40, "a"))
    for sink in ("steady", "moody"):
        two.await_rows(sink)
    code, rows = two.connect("list")
    assert code == 0
    assert [row["connector"] for row in rows] == ["moody", "steady"]
    two.await_states("moody", "RUNNING")

    # It is down: its tasks fail, and say why; the other flow goes on.
    two.is_down(True)
    two.first.produce(records(8, 40, "b"))
    two.await_states("moody", "FAILED")
    two.await_rows("steady")
    code, rows = two.connect("status", "moody")
    assert code == 1
    assert all("moody" in task["error"] and task["failed_ms"] for task in rows[0]["tasks"])

    # Paused alone: also while it fails.
    code, rows = two.connect("pause", "moody")
    assert code == 0
    assert [task["state"] for task in rows[0]["tasks"]] == ["PAUSED"] * PARTITIONS
    assert set(two.states("steady")) == {"RUNNING"}
    two.is_down(False)
    written = len(two.rows("moody"))
    two.first.produce(records(8, 40, "c"))
    two.await_rows("steady")

    # Both instances are killed, and come back: it is paused before their first batch.
    two.kill_both()
    two.start()
    two.first.produce(records(8, 40, "d"))
    two.await_rows("steady")
    two.await_states("moody", "PAUSED")
    assert len(two.rows("moody")) == written
    code, rows = two.connect("list", "moody")
    assert rows[0]["lag"] >= 80

    # One is killed: the other's tasks of the sink are paused, too.
    family = two.second.family()
    kill(two.second.driver)
    two.second.wait_end()
    for member in family:
        if member.is_running():
            member.kill()
    two.first.produce(records(8, 40, "e"))
    two.await_rows("steady")
    two.await_states("moody", "PAUSED")
    assert len(two.rows("moody")) == written

    code, _ = two.connect("resume", "moody")
    assert code == 0
    two.await_rows("moody")
    two.await_states("moody", "RUNNING")


@pytest.mark.slow
def test_a_restart_ends_the_worker_and_goes_on(two: Two) -> None:
    two.first.start()
    two.first.produce(records(8, 40, "a"))
    two.await_rows("moody")
    before = {process for _, _, process in two.rows("moody")}
    two.await_states("moody", "RUNNING")
    code, _ = two.connect("restart", "moody", "--only-failed")
    assert code == 0
    two.first.produce(records(8, 40, "b"))
    two.await_rows("moody")
    assert {process for _, _, process in two.rows("moody")} == before

    code, rows = two.connect("restart", "moody", "--task", "1")
    assert code == 0
    assert {task["state"] for task in rows[0]["tasks"]} == {"RUNNING"}
    two.first.produce(records(8, 40, "c"))
    two.await_rows("moody")
    two.await_rows("steady")
    assert {process for _, _, process in two.rows("moody")} - before

    # What fails is restarted, and fails on until the sink is back.
    two.is_down(True)
    two.first.produce(records(8, 40, "d"))
    two.await_states("moody", "FAILED")
    code, _ = two.connect("restart", "moody", "--only-failed")
    assert code == 0
    two.is_down(False)
    two.await_rows("moody")
    two.await_rows("steady")
    two.await_states("moody", "RUNNING")

    code, rows = two.connect("pause", "steady")
    assert (code, rows[0]["state"]) == (0, "PAUSED")
    assert f"topic {two.name}-copies" in rows[0]["shares"]
    assert two.connect("resume", "steady")[0] == 0

    code, said = two.connect("restart", "moody", "--task", "7")
    assert (code, "--task 7" in said) == (2, True)
    code, said = two.connect("pause", "nobody")
    assert (code, "moody, steady" in said) == (2, True)


def test_an_application_without_a_topic_of_connectors_is_named(broker: EmbeddedBroker) -> None:
    found = CliRunner().invoke(
        command_line,
        ["connect", "nobody", "list", "--bootstrap-servers", broker.bootstrap_servers],
    )
    assert found.exit_code == 1
    assert "nobody-everflow-connectors-changelog" in found.stderr
