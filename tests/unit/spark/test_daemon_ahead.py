"""A daemon that has imported ahead takes the place of Spark's, if it would be the same."""

import os
import pty
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from everflow.instance.thread.worker_processes import alive
from everflow.spark import job
from everflow.spark.job import worker_environment
from everflow.spark.launch.daemon import SOCKET_VARIABLE, DaemonPlace, same_imports
from everflow.testing.waiting import wait_until

DEADLINE_S = 30.0
Daemon = subprocess.Popen[bytes]
Launch = Callable[..., Daemon]
OF_PYTEST = "PYTEST_CURRENT_TEST"
"""Another one in a fixture than in its test."""
BY_SPARK = {
    "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "YES",
    "SPARK_REUSE_WORKER": "1",
    "SPARK_LOCAL_DIRS": "/somewhere",
    "PYTHON_UDF_BATCH_SIZE": "100",
}
MINE = DaemonPlace(
    executable="/usr/bin/python3",
    folder="/programs",
    environment={"HOME": "/of/ada", "OMP_NUM_THREADS": "1", "PYTHONPATH": "/one", "_": "python3"},
    path=["/lib/python3", "/programs"],
    arguments=["daemon.py", "--ahead", "3"],
)


HERE = str(Path(__file__).parent)


def with_variable(name: str, value: str) -> DaemonPlace:
    return replace(MINE, environment={**MINE.environment, name: value})


def without_variable(name: str) -> DaemonPlace:
    left = {key: value for key, value in MINE.environment.items() if key != name}
    return replace(MINE, environment=left)


@pytest.mark.parametrize(
    "asked",
    [
        MINE,
        replace(MINE, arguments=["daemon.py", "pyspark.worker"]),
        with_variable("SPARK_LOCAL_DIRS", "/blocks"),
        with_variable("PYTHON_UNIX_DOMAIN_ENABLED", "true"),
        with_variable("PYTHONPATH", "/spark/pyspark.zip:/one"),
        with_variable("SHLVL", "2"),
        without_variable("_"),
        replace(MINE, path=["/not/there", "/lib/python3", "/jars/spark-core.jar", "/programs"]),
    ],
)
def test_what_spark_adds_makes_no_other_daemon(asked: DaemonPlace) -> None:
    assert same_imports(MINE, asked)


@pytest.mark.parametrize(
    "asked",
    [
        replace(MINE, executable="/opt/bin/python3"),
        replace(MINE, folder="/other"),
        with_variable("HOME", "/of/eve"),
        with_variable("OMP_NUM_THREADS", "8"),
        with_variable("OF_THE_PROGRAM", "1"),
        without_variable("HOME"),
        replace(MINE, path=["/programs", "/lib/python3"]),
        replace(MINE, path=[HERE, *MINE.path]),
        replace(MINE, path=[MINE.path[0], HERE, *MINE.path[1:]]),
    ],
)
def test_what_could_be_imported_otherwise_does(asked: DaemonPlace) -> None:
    assert not same_imports(MINE, asked)
    assert not same_imports(replace(MINE, path=[*MINE.path, HERE]), MINE)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """One that waits, or imports still."""
    monkeypatch.delenv(OF_PYTEST)
    job.launch_daemon(worker_environment())
    job.launch_daemon(worker_environment())  # once is enough
    (one,) = job._daemon
    yield one.process
    job.discard_daemon()
    one.process.wait(DEADLINE_S)
    wait_until(lambda: not Path(one.socket).parent.exists(), DEADLINE_S, "its folder to go")
    job._daemon.clear()
    assert worker_environment().get(SOCKET_VARIABLE) is None


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """As Spark launches its daemon, which then tells its port."""
    launched = []

    def as_spark_does(**variables: str) -> Daemon:
        added_files = tmp_path / "userFiles"
        added_files.mkdir()
        workers = worker_environment()
        path = os.pathsep.join([str(added_files), workers["PYTHONPATH"]])
        ours = {name: value for name, value in os.environ.items() if name != OF_PYTEST}
        process = subprocess.Popen(
            [sys.executable, "-m", "everflow.spark.launch.daemon", "pyspark.worker"],
            env={**ours, **workers, **BY_SPARK, "PYTHONPATH": path, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        launched.append(process)
        return process

    yield as_spark_does
    for process in launched:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(DEADLINE_S)


def listening(daemon: Daemon) -> int:
    """The process that listens at the port that the daemon has told."""
    assert daemon.stdout is not None
    (port,) = struct.unpack(">i", daemon.stdout.read(4))
    for process in psutil.Process().children(recursive=True):
        if any(one.laddr.port == port for one in process.net_connections("tcp")):
            return int(process.pid)
    raise AssertionError(f"nobody listens at {port}")


def test_the_one_that_was_ahead_is_the_daemon(ahead: Daemon, launch: Launch) -> None:
    launched = launch()
    assert listening(launched) == ahead.pid
    process = psutil.Process(launched.pid)
    wait_until(lambda: process.name() == "cat", DEADLINE_S, "a stand-in of a megabyte")
    environment = psutil.Process(ahead.pid).environ()
    assert "EVERFLOW_SLOT" in environment  # by which a worker is known as ours
    # As Spark ends a daemon.
    launched.terminate()
    assert launched.stdin is not None
    launched.stdin.close()
    ahead.wait(DEADLINE_S)


def test_spark_sees_when_it_dies(ahead: Daemon, launch: Launch) -> None:
    launched = launch()
    assert listening(launched) == ahead.pid
    ahead.kill()
    launched.wait(DEADLINE_S)


def test_where_it_would_differ_it_ends_and_spark_has_its_own(ahead: Daemon, launch: Launch) -> None:
    launched = launch(OF_THE_PROGRAM="1")
    assert listening(launched) == launched.pid
    ahead.wait(DEADLINE_S)


def test_where_it_has_died_spark_has_its_own(ahead: Daemon, launch: Launch) -> None:
    ahead.kill()
    ahead.wait(DEADLINE_S)
    launched = launch()
    assert listening(launched) == launched.pid


def test_it_ends_with_a_process_that_is_killed(ahead: Daemon) -> None:
    """As by ``kill -9``: nobody calls `discard`."""
    assert ahead.stdin is not None
    ahead.stdin.close()  # as the system does
    ahead.wait(DEADLINE_S)
    assert not alive(ahead.pid)


def test_the_terminals_signals_are_not_for_it(ahead: Daemon) -> None:
    assert os.getpgid(ahead.pid) == ahead.pid


AS_A_JVMS = """
import os, resource
from everflow.spark.launch.daemon import as_a_jvms
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
os.close(os.open("/dev/tty", os.O_RDWR))
as_a_jvms()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError:
    print("none")
"""
WITH_A_TERMINAL = """
import fcntl, os, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
apart = lambda: os.setpgid(0, 0)
subprocess.run([sys.executable, "-c", sys.argv[1]], preexec_fn=apart, check=True)
"""


def test_it_has_no_terminal_and_all_the_files_that_a_jvms_has() -> None:
    terminal, end = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", WITH_A_TERMINAL, AS_A_JVMS],
            stdin=end,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
    finally:
        os.close(terminal)
        os.close(end)
    assert (done.stdout, done.returncode) == ("none\n", 0), done.stderr


def test_it_is_the_python_that_spark_launches(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    python = str(Path(sys.executable).with_name("python3"))
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    ahead: Daemon = request.getfixturevalue("ahead")
    assert psutil.Process(ahead.pid).cmdline()[0] == python


def no_room() -> Path:
    raise OSError("no space left on device")


def test_what_cannot_be_launched_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # somebody else's JVM, as by spark-submit
    job.launch_daemon({})
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    monkeypatch.setenv("PYSPARK_PYTHON", "/not/there/python3")
    job.launch_daemon({})
    monkeypatch.setattr(job, "socket_folder_of_process", no_room)
    job.launch_daemon({})
    assert not job._daemon
