"""Starts that fail end their JVM; workers' paths, py4j's lines, and a Spark that has ended."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway

from everflow.instance.thread.worker_processes import alive
from everflow.spark.job import SparkGoneError, SparkJobError, failure, worker_environment
from everflow.spark.launch.daemon import program_last, without_archives
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure


class Gateway:
    shutdowns = 0

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.fixture
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
def test_a_failed_start_ends_what_it_launched(error: BaseException, gateway: Gateway) -> None:
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


@pytest.mark.usefixtures("gateway")
def test_a_start_that_works_keeps_its_jvm() -> None:
    with jvm_ends_with_failure():
        process = launch()
    assert alive(process.pid)
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("gateway")
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


@pytest.mark.usefixtures("gateway")
def test_a_program_that_cannot_be_launched_says_so() -> None:
    with pytest.raises(FileNotFoundError), jvm_ends_with_failure():
        java_gateway.Popen(["/no/such/spark-submit"])  # type: ignore[attr-defined]


def test_relative_folders_reach_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "lib", str(tmp_path / "app.zip")])
    found = worker_environment()["EVERFLOW_PROGRAM_PATH"].split(os.pathsep)
    assert found == [str(tmp_path), str(tmp_path / "lib"), str(tmp_path / "app.zip")]


def test_what_is_installed_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "target" / "shop-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "spark" / "pyspark").mkdir(parents=True)
    installed = [
        str(tmp_path / "target"),
        str(tmp_path / "spark"),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
    ]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *installed])
    found = worker_environment()
    assert found["PYTHONPATH"].split(os.pathsep) == installed
    assert found["EVERFLOW_PROGRAM_PATH"] == str(tmp_path)


def test_a_worker_takes_modules_of_libraries_before_those_of_the_program() -> None:
    assert program_last(
        ["/srv/shop", "", "/usr/lib/python3", "/srv"], ["/srv/shop", "/srv/two"], "/srv"
    ) == ["/usr/lib/python3", "/srv/shop", "/srv/two"]


def test_a_worker_takes_pyspark_as_it_is_installed_not_its_sources_in_an_archive() -> None:
    lib = "/site/pyspark/python/lib"
    path = [f"{lib}/pyspark.zip", f"{lib}/py4j-0.10-src.zip", "/site/pyspark/jars/core.jar"]
    assert without_archives([*path, "/stdlib", "/site"]) == [path[2], "/stdlib", "/site"]
    # Spark's own distribution: its Python is nowhere else.
    spark = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python", "/site"]
    assert without_archives(spark) == spark
    assert without_archives(path) == path


def test_an_own_queue_breaks_no_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("queue", "types", "json"):
        (tmp_path / f"{name}.py").write_text("ITEMS = []\n")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    show = (
        "import pyspark.daemon\n"
        "def manager():\n"
        "    import json, queue, types, beside, os\n"
        "    print([json.dumps, queue.Queue, types.ModuleType, beside.__file__, "
        "os.environ.get('PYTHONSAFEPATH')])\n"
        "pyspark.daemon.manager = manager\n"
        "from everflow.spark.launch import daemon\n"
        "daemon.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={**os.environ, **worker_environment()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"{str(tmp_path / 'beside.py')!r}, None]" in done.stdout


CUT_OFF = """
import logging
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JNetworkError
from everflow import logs
from everflow.spark.session import hush_py4j

class Connection:
    socket = None
    def send_command(self, command):
        raise {error}
    def close(self, reset):
        pass

class Client(GatewayClient):
    def _get_connection(self):
        return Connection()

logs.install()
{hushed}
try:
    Client().send_command("", retry=False)
except KeyboardInterrupt:
    pass
print(len(logging.getLogger().handlers))
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Py4JNetworkError('reset')"])
def test_a_call_that_is_cut_off_says_nothing_and_configures_no_logging(error: str) -> None:
    said = _run(CUT_OFF.format(error=error, hushed="hush_py4j()"))
    assert (said.stdout, said.stderr) == ("0\n", "")


def test_py4j_itself_would() -> None:
    said = _run(CUT_OFF.format(error="KeyboardInterrupt", hushed=""))
    assert said.stdout == "1\n"
    assert "while sending command" in said.stderr


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


STOPPED: Any = SimpleNamespace(_jsc=None)
"""As PySpark leaves a context after ``stop()``."""
LIVING: Any = SimpleNamespace(
    _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
)


def missing() -> AttributeError:
    """What a call on a stopped context meets."""
    try:
        STOPPED._jsc.setLocalProperty("a", "b")
    except AttributeError as error:
        return error
    raise AssertionError


def test_a_context_that_was_stopped_in_this_process_is_named() -> None:
    found = failure(STOPPED, missing())
    assert isinstance(found, SparkGoneError)
    assert "spark.stop()" in str(found)


def test_an_error_of_the_jvm_with_a_stopped_context_is_its_end() -> None:
    assert type(failure(STOPPED, OSError("Job 3 cancelled"))) is SparkGoneError


def test_where_spark_lives_a_failed_job_is_a_failed_job() -> None:
    assert type(failure(LIVING, OSError("an answer got lost"))) is SparkJobError


def test_an_error_in_our_own_code_is_no_matter_of_spark() -> None:
    error = missing()
    with pytest.raises(AttributeError) as raised:
        failure(LIVING, error)
    assert raised.value is error
