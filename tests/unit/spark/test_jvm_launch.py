"""Whatever ends the start of a session, the JVM that it launched ends first."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway

from everflow.instance.thread.worker_processes import alive
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure


class Gateway:
    shutdowns = 0

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.fixture(autouse=True)
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """In place of a session that other tests may have started."""
    fake = Gateway()
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, fake)
    yield fake
    assert vars(java_gateway)["Popen"] is subprocess.Popen


def launch() -> subprocess.Popen[bytes]:
    """As `launch_gateway` does, by the name it uses."""
    started: subprocess.Popen[bytes] = vars(java_gateway)["Popen"](
        ["sleep", "60"], stdin=subprocess.PIPE
    )
    return started


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), RuntimeError("JAVA_GATEWAY_EXITED")]
)
def test_a_failed_start_ends_what_it_launched_and_forgets_it(
    error: BaseException, gateway: Gateway
) -> None:
    launched = []

    def start() -> None:
        launched.append(launch())
        assert alive(launched[0].pid)
        raise error

    with pytest.raises(type(error)), jvm_ends_with_failure():
        start()
    assert not alive(launched[0].pid)
    assert launched[0].returncode == -9
    assert (SparkContext._gateway, SparkContext._active_spark_context, gateway.shutdowns) == (
        None,
        None,
        1,
    )


def test_a_jvm_of_an_earlier_start_is_left_alone(gateway: Gateway) -> None:
    process = launch()
    with pytest.raises(KeyboardInterrupt), jvm_ends_with_failure():
        raise KeyboardInterrupt
    assert alive(process.pid)
    assert SparkContext._gateway is gateway
    process.kill()
    process.communicate()


def test_a_start_that_works_keeps_its_jvm() -> None:
    with jvm_ends_with_failure():
        process = launch()
    assert alive(process.pid)
    process.kill()
    process.communicate()


def test_an_interrupt_inside_the_launch_itself_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child runs, but the constructor has not come back."""
    original = subprocess.Popen.__init__
    pids: list[int] = []

    def interrupted(self: subprocess.Popen[bytes], *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        pids.append(self.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt), jvm_ends_with_failure():
        launch()
    assert [alive(pid) for pid in pids] == [False]


def test_a_program_that_cannot_be_launched_says_so() -> None:
    with pytest.raises(FileNotFoundError), jvm_ends_with_failure():
        java_gateway.Popen(["/no/such/spark-submit"])  # type: ignore[attr-defined]
