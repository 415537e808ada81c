"""A long wait is shown, a quick one is silent; one for a condition tells what happened."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everflow import KafkaStreams
from everflow.errors import ConfigError
from everflow.retry import logged, shown_by, shown_elsewhere, waiting
from everflow.testing import wait_until
from everflow.topology.program import Topology


def test_a_long_wait_is_said_with_its_seconds_again_and_again_until_it_is_over() -> None:
    said: list[str] = []
    with logged("starting Spark", said.append, first_s=0.02):
        wait_until(lambda: len(said) >= 3, 20, "three lines")
    assert set(said) == {"starting Spark, 0 s so far"}
    assert not [thread for thread in threading.enumerate() if thread.name == "everflow-waits"]


def test_a_quick_wait_says_nothing() -> None:
    said: list[str] = []
    with logged("starting Spark", said.append, first_s=60):
        pass
    assert said == []


def test_the_owner_of_the_screen_shows_all_waits_while_it_owns_it() -> None:
    shown: list[str] = []

    @contextmanager
    def show(what: str) -> Iterator[None]:
        shown.append(what)
        yield
        shown.append("over")

    with shown_by(show):
        with waiting("starting Spark"):
            assert shown == ["starting Spark"]
        with shown_by(shown_elsewhere), waiting("joining"):
            pass
    with waiting("not the owner's"):
        pass
    assert shown == ["starting Spark", "over"]


PROGRAM = """
from everflow import retry
retry.logged.__wrapped__.__kwdefaults__["first_s"] = 0.02
import threading
said, say = threading.Event(), retry.rebalance_log.info
retry.logged.__wrapped__.__defaults__ = (lambda line: (say(line), said.set()),)
with retry.waiting("starting Spark"):
    assert said.wait(30)
"""


def test_a_plain_program_reads_it_on_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[0].endswith(" starting Spark, 0 s so far")


TEST = """
import threading
from functools import partial
from everflow.testing import pytest_waits
from everflow.retry import logged, waiting

def test_waits(monkeypatch):
    written, write = threading.Event(), pytest_waits._write
    monkeypatch.setattr(pytest_waits, "logged", partial(logged, first_s=0.02))
    monkeypatch.setattr(pytest_waits, "_write", lambda config, line: (write(config, line), written.set()))
    with waiting("starting Spark"):
        print("captured")
        assert written.wait(30)
    print("captured too")
"""  # noqa: E501


@pytest.mark.parametrize("options", [(), ("-s",)])
def test_under_pytest_it_is_read_in_time(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "everflow.testing.pytest_waits",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starting Spark, 0 s so far\n" in done.stdout
    assert ("captured" in done.stdout) == bool(options)


def test_an_instance_introduces_itself(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level("INFO", "everflow")
    settings = {
        "application.id": "shop",
        "bootstrap.servers": "b:1",
        "state.dir": str(tmp_path),
        "producer.linger.ms": "no number",
    }
    for shown_before, times in ((False, 1), (True, 0)):
        caplog.clear()
        streams = KafkaStreams(Topology(()), settings)
        if shown_before:
            assert streams._introduction("shop.py").splitlines()[1] == "program      shop.py"
        with pytest.raises(ConfigError, match="linger"):
            streams.start()
        lines = [one.getMessage() for one in caplog.records if one.name == "everflow.moves"]
        assert sum(line.startswith("application  shop ") for line in lines) == times
        assert lines.count(f"log          {tmp_path}/shop/logs/everflow.log") == times
        states = [line for line in lines if line.startswith("state ") and "->" in line]
        assert states == [
            "state CREATED -> REBALANCING",
            "state REBALANCING -> PENDING_ERROR",
            "state PENDING_ERROR -> ERROR",
        ]


def test_returns_the_first_true_value() -> None:
    answers = iter([None, 0, "ready"])
    assert wait_until(lambda: next(answers), 5, "the third answer") == "ready"


def test_looks_at_least_once_even_without_time() -> None:
    assert wait_until(lambda: 7, 0, "seven") == 7


def test_failure_names_the_wait_the_last_value_and_the_history() -> None:
    events: list[str] = []

    def condition() -> list[str]:
        events.append(f"look {len(events)}")
        return []

    with pytest.raises(AssertionError) as failure:
        wait_until(condition, 0.05, "a member to join", history=lambda: events)
    text = str(failure.value)
    assert "0.05 s for a member to join; last value: []" in text
    assert "look 0" in text
