"""The long-running Spark job of a stream thread: one task, whose Python worker hosts operators.

A daemon of the workers that has done its imports (0.7 s) beside the start of Spark takes the place
of the one that Spark launches for the first job (`everflow.spark.launch.daemon.give`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.errors import PySparkException

from everflow.errors import EverflowError, SetupError
from everflow.sockets import remove_socket_folder, socket_folder_of_process
from everflow.spark.launch.daemon import AHEAD, MODULE, SOCKET_VARIABLE
from everflow.spark.launch.jvm_launch import deaf
from everflow.spark.session import OURS, prepare_environment, running_context
from everflow.travel.own_code import program_folders

_AHEAD_S = 20.0
_ahead: dict[int, ServingJob] = {}
"""The job that starts a stream thread's worker ahead, by the thread's number; the first job that
needs the worker takes it out."""
_NAMED_BY = ("spark.job.description", "callSite.short")
"""Local properties from which Spark's UI takes the names of a job and of its stage."""
_BY_SPARK = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES"}
"""Variables that Spark sets for a daemon and that libraries read when they are imported."""


class SparkJobError(EverflowError):
    """A job failed; the text is the JVM's. ``stack``: the JVM's, where the text is without."""

    code = "EF-SPARK-JOB"

    def __init__(self, message: str, stack: str = "") -> None:
        super().__init__(message)
        self.stack = stack


class SparkGoneError(SparkJobError):
    """The JVM is gone or its SparkContext was stopped: no job will run again in this process."""

    code = "EF-SPARK-GONE"


class ServingJob:
    """A job of one task, stream thread ``number``'s, that calls ``serve``; ``name`` in Spark's UI.

    It runs on a Python thread; `ended` is set when it is over, `failure` says how. One daemon forks
    a worker for each job. No DataFrame: Catalyst, which many never need, takes 2 s more to load.
    """

    def __init__(
        self,
        context: SparkContext,
        number: int,
        name: str,
        serve: Callable[[], None],
    ) -> None:
        def run(rows: Iterable[int]) -> Iterable[int]:
            for _ in rows:  # a worker that leaves input unread is not used again
                pass
            serve()
            return ()

        self._context = context
        self._properties = {OURS: "true", **dict.fromkeys(_NAMED_BY, name)}
        self._before = _ahead.pop(number, None)
        self._rdd = _in_own_workers(context, run)
        self.ended = threading.Event()
        self.failure: SparkJobError | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"everflow-t{number}-serving", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        return self.ended.wait(timeout_s)

    def _run(self) -> None:
        if self._before is not None:
            self._before.join(_AHEAD_S)
        try:
            for name, text in self._properties.items():
                self._context.setLocalProperty(name, text)
            self._rdd.collect()
        except (PySparkException, Py4JError, OSError, AttributeError) as error:
            self.failure = failure(self._context, error)
        finally:
            self.ended.set()


def launch_daemon_ahead() -> None:
    """Let the workers' daemon import while Spark starts, with the path that the program has by
    then; returns at once. Nothing happens where a Spark runs. Not for several threads at once."""
    if running_context() is not None:
        return
    with suppress(SetupError):  # the start of Spark reports it
        prepare_environment()
        launch_daemon(worker_environment())


class _DaemonAhead(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: str


_daemon: list[_DaemonAhead] = []
"""One at the most; it stays here when it has become the daemon."""


def launch_daemon(workers: Mapping[str, str]) -> None:
    """Let a daemon start for workers of this environment; returns at once, does nothing where there
    is one or another launched this JVM, and reports no error. Not for several threads at once."""
    running = bool(_daemon) and _daemon[0].process.poll() is None
    if running or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    _daemon.clear()
    try:
        folder = socket_folder_of_process()
        process = _launched(path := str(folder / "p"), workers)
    except OSError:
        return
    _daemon.append(_DaemonAhead(process, path))

    def reap() -> None:
        process.wait()  # it is this process's child, and nobody else's to be reaped
        remove_socket_folder(folder)

    threading.Thread(target=reap, name="everflow-daemon-ahead", daemon=True).start()


def _launched(path: str, workers: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {
        "PYTHONHASHSEED": "0",  # PySpark's, where none is set
        **os.environ,
        **workers,
        **_BY_SPARK,
        SOCKET_VARIABLE: path,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(1)
        number = listening.fileno()
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        return subprocess.Popen(
            [python, "-m", MODULE, AHEAD, str(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(number,),
            preexec_fn=_apart,
        )


def _apart() -> None:
    deaf()
    os.setpgid(0, 0)


def discard_daemon() -> None:
    """End it, if it is no daemon yet; Spark has ended then, or is somebody else's. Idempotent."""
    for one in _daemon:
        if one.process.stdin is not None:
            one.process.stdin.close()


def workers_ahead(context: SparkContext, threads: int) -> None:
    """Start the workers of so many stream threads (imports and Spark's first job: 1.5 s). Returns
    at once; the job that then needs a worker reports a failure. Not for several threads at once."""
    for number in range(threads):
        if number not in _ahead:
            name = f"everflow starts the worker of stream thread {number}"
            job = ServingJob(context, number, name, lambda: None)
            _ahead[number] = job
            job.start()


def failure(context: SparkContext, error: Exception) -> SparkJobError:
    """SparkGoneError if Spark ended, else SparkJobError. Another AttributeError than of a stopped
    context goes on."""
    try:
        lives = context._jsc is not None and not context._jsc.sc().isStopped()
    except (Py4JError, OSError):  # nobody answers any more
        lives = False
    if isinstance(error, AttributeError):
        if lives:
            raise error
        return SparkGoneError("its SparkContext was stopped: spark.stop() in this process?")
    # PySpark leaves the stack out of the text of the errors that it knows.
    stack = str(getattr(error, "_stackTrace", None) or "")
    return SparkJobError(str(error), stack) if lives else SparkGoneError(str(error), stack)


def _in_own_workers(context: SparkContext, run: Callable[[Iterable[int]], Iterable[int]]) -> Any:
    """The RDD of ``run`` on one partition, in our workers: ``environment`` is the users', too."""
    source = context.parallelize([0], 1)
    serializer = source._jrdd_deserializer
    command = (lambda _, rows: run(rows), None, serializer, serializer)
    pickled, broadcasts, _, includes = _prepare_for_python_RDD(context, command)
    jvm: Any = context._jvm
    function = jvm.SimplePythonFunction(
        bytearray(pickled),
        {**context.environment, **worker_environment()},
        includes,
        context.pythonExec,
        context.pythonVer,
        broadcasts,
        context._javaAccumulator,
    )
    return jvm.PythonRDD(source._jrdd.rdd(), function, False, False).asJavaRDD()


def worker_environment() -> dict[str, str]:
    """Environment of everflow's workers; Spark keeps one daemon per distinct environment, so the
    user's functions run in others. The program's folders come last on the workers' path: its
    ``queue.py`` hides no library there."""
    path = [os.path.abspath(entry) for entry in sys.path]  # "" is the current folder
    own = program_folders(path)
    return {
        "EVERFLOW_SLOT": "serving",  # by which a process is known as a worker of everflow's
        "PYTHONPATH": os.pathsep.join(entry for entry in path if entry not in own),
        "PYTHONSAFEPATH": "1",
        "EVERFLOW_PROGRAM_PATH": os.pathsep.join(own),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "2",
        # Columns of some megabytes come and go with each batch: given back to the system each time,
        # their pages would be taken anew at 2 us each (joining 16,384 records: 3.5 ms, then 2.4).
        "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
        # By this the daemon that was started ahead is found; Spark has one for each environment.
        **({SOCKET_VARIABLE: _daemon[0].socket} if _daemon else {}),
    }
