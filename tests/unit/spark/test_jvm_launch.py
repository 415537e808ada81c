"""Starts that fail end their JVM; workers' paths, py4j's lines, and a Spark that has ended."""

import os
import pty
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pyspark import SparkContext, java_gateway

from everflow.errors import SetupError
from everflow.instance.thread.worker_processes import alive
from everflow.spark import job
from everflow.spark.job import SparkGoneError, SparkJobError, failure, worker_environment
from everflow.spark.launch.daemon import (
    SOCKET_VARIABLE,
    DaemonPlace,
    program_last,
    same_imports,
    without_archives,
)
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure
from everflow.spark.session import _reap, refuse_connect, require_local, wanted_settings
from everflow.testing import wait_until


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


def test_workers_import_nothing_of_the_driver() -> None:
    """What the daemon imports for its workers is what their task is made of."""
    show = (
        "import importlib, sys\n"
        "from everflow.spark.launch import daemon\n"
        "for name in daemon.PRELOADED:\n"
        "    importlib.import_module(name)\n"
        "print(*sorted(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "everflow.worker.serve" in loaded
    drivers = ("everflow.instance", "everflow.dsl", "everflow.membership", "everflow.spark.session")
    assert [name for name in loaded if name.startswith(drivers)] == []


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


# A daemon that has imported ahead takes the place of Spark's, if it would be the same.

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
def daemon_launch(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
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


def test_the_one_that_was_ahead_is_the_daemon(ahead: Daemon, daemon_launch: Launch) -> None:
    launched = daemon_launch()
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


def test_spark_sees_when_it_dies(ahead: Daemon, daemon_launch: Launch) -> None:
    launched = daemon_launch()
    assert listening(launched) == ahead.pid
    ahead.kill()
    launched.wait(DEADLINE_S)


def test_where_it_would_differ_it_ends_and_spark_has_its_own(
    ahead: Daemon, daemon_launch: Launch
) -> None:
    launched = daemon_launch(OF_THE_PROGRAM="1")
    assert listening(launched) == launched.pid
    ahead.wait(DEADLINE_S)


def test_where_it_has_died_spark_has_its_own(ahead: Daemon, daemon_launch: Launch) -> None:
    ahead.kill()
    ahead.wait(DEADLINE_S)
    launched = daemon_launch()
    assert listening(launched) == launched.pid


def test_a_daemon_ends_with_a_process_that_is_killed(ahead: Daemon) -> None:
    assert ahead.stdin is not None
    ahead.stdin.close()  # as the system does
    ahead.wait(DEADLINE_S)
    assert not alive(ahead.pid)


def test_the_terminals_signals_are_not_for_a_daemon(ahead: Daemon) -> None:
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


# What a Spark of the user's must be, and what `everflow.session` refuses.


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[8,1]", "local[*, 4]"])
def test_every_local_master_serves(master: str) -> None:
    require_local(master)


@pytest.mark.parametrize(
    "master", ["yarn", "spark://host:7077", "local-cluster[2,1,1024]", "k8s://https://host"]
)
def test_a_cluster_is_refused_with_what_to_start_instead(master: str) -> None:
    with pytest.raises(SetupError) as told:
        require_local(master)
    assert str(told.value).startswith(f"spark.master is {master!r}, but everflow")
    assert "everflow.session(slots=8)" in str(told.value)


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(SetupError, match=r"Spark Connect session"):
        refuse_connect()


def test_spark_connect_is_refused_before_a_session_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    with pytest.raises(SetupError, match="without SPARK_REMOTE"):
        refuse_connect()


def test_settings_are_texts_as_spark_writes_them() -> None:
    found = wanted_settings("shop", 4, {"spark.ui.enabled": True, "spark.ui.port": 4050})
    assert found == {
        "spark.ui.enabled": "true",
        "spark.ui.port": "4050",
        "spark.app.name": "shop",
        "spark.master": "local[4,1]",
    }


@pytest.mark.parametrize(
    ("slots", "conf", "said"),
    [
        (4, {"spark.master": "local[2]"}, r"spark.master=local\[2\].*arguments"),
        (None, {"spark.master": "yarn"}, "spark.master is 'yarn'"),
        (0, {}, r"slots.*0"),
        (None, {"spark.remote": "sc://host"}, "classic session"),
        (None, {"spark.api.mode": "connect"}, "classic session"),
    ],
)
def test_contradictions_are_refused(slots: int | None, conf: dict[str, str], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        wanted_settings(None, slots, conf)


def test_what_the_jvm_reads_first_is_refused_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with pytest.raises(
        SetupError,
        match=r"spark.driver.memory: read when Spark's JVM starts.*also after spark.stop\(\)",
    ):
        wanted_settings(None, None, {"spark.driver.memory": "4g", "spark.ui.port": 1})


def test_the_jvm_of_a_session_of_the_users_leaves_no_dead_process_that_a_kernel_waits_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    running: Any = SimpleNamespace(_gateway=SimpleNamespace(proc=process))
    _reap(running)
    wait_until(lambda: process.returncode is not None, 30, "somebody to have waited for it", list)
