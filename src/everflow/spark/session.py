"""The Spark of an instance: its context, the SQL session for Columns, the workers' environment.

An instance is one Spark application whose driver and executor share one host (design section 2).
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.core.context import DEFAULT_CONFIGS
from pyspark.sql import SparkSession

from everflow import logs
from everflow.errors import SetupError
from everflow.jvm.class_archive import start_options
from everflow.jvm.java import find_java
from everflow.memory.spare import share_one_area
from everflow.retry import waiting
from everflow.sockets import socket_folder_of_process
from everflow.spark.foreign import (
    adopt,
    differing,
    hush_accumulators,
    hush_py4j,
    is_own,
    refuse_connect,
    require_local,
    wanted_settings,
)
from everflow.spark.later import real_one_starts, running_context, stand_in
from everflow.spark.launch import jvm_ahead
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure

log = logging.getLogger("everflow.spark")

DEFAULT_SLOTS = 32
"""Task slots of a local session at least: it may start before the number of stream threads is
known, and they may become more. Slots are threads of the JVM, not cores; too few would let a full
batch of one thread delay another (design section 2)."""

SQL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.useV1SourceList": "",
    # Spark 4.2 asks at each row how large the Arrow batch is by now, which walks a column of nulls
    # (keys, headers) from its start: 76 us a record with 50,000 rows in one, 5.5 with 2,000.
    # Without the bound in bytes it is 2.6, but large records of a few tasks are more than the JVM
    # may allocate.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.legacy.allowUntypedScalaUDF": "false",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
"""What Columns of a topology are computed with; of all other SQL settings Spark's defaults hold."""

_COMPILED_LATER = {
    "Tier4InvocationThreshold": 50_000,
    "Tier4MinInvocationThreshold": 6_000,
    "Tier4CompileThreshold": 150_000,
    "Tier4BackEdgeThreshold": 400_000,
}
"""Ten times the JVM's own: while Spark starts, its best compiler works two seconds on code that
runs seldom afterwards. What computes Columns gets there within its first batch (note 017)."""
JAVA_OPTIONS = (
    # `upper` and `lower` of Spark go by Java's locale where a text is not ASCII.
    "-Duser.language=en",
    "-Duser.country=US",
    "-XX:+UseSerialGC",
    "-XX:MaxHeapFreeRatio=40",
    "-XX:MinHeapFreeRatio=10",
    *(f"-XX:{name}={value}" for name, value in _COMPILED_LATER.items()),
)

_LAUNCHER_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of the JVM that only puts together the command of Spark's own: 0.16 s, with them 0.11."""

_TOLD = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.legacy.timeParserPolicy",
)
"""Settings that change results and are often set: who has set one reads that a topology goes by its
own."""

_SQL_MAY_DIFFER = ("spark.sql.", "spark.jars", "spark.plugins", "spark.driver.extraClassPath")
"""Beginnings of settings that may give SQL other functions, rules or defaults."""

_lock = threading.RLock()
_own: tuple[SparkContext, SparkSession] | None = None
_plain: SparkContext | None = None
"""The last one that everflow has started, where nothing but everflow has a say in its SQL."""


def session(
    app_name: str | None = None,
    *,
    slots: int | None = None,
    conf: Mapping[str, object] | None = None,
) -> SparkSession:
    """A SparkSession of your own, in the Spark that everflow uses; starts it with everflow's
    settings unless one runs.

        spark = everflow.session("shop", slots=8, conf={"spark.driver.memory": "4g", "spark.jars":
        "own.jar"})

    It is there for convenience: a session that you started yourself (``local[N]``) serves everflow
    as it is. Neither's SQL settings reach a topology, whose Columns are computed in UTC and ANSI
    mode on every instance.

    Args:
        app_name: ``spark.app.name``, by default ``everflow``.
        slots: tasks that run at once, ``local[N]``; by default 32. Each stream thread keeps one for
        as long as it runs.
        conf: any other settings of Spark, jars (``spark.jars``, ``spark.jars.packages``) included;
        they win over everflow's.

    Raises SetupError where Java is missing, for a master that is not ``local[N]``, for Spark
    Connect, and for settings that differ from those of the Spark that runs already.
    """
    wanted = wanted_settings(app_name, slots, conf)
    with _lock:
        running = _running()
        if running is None:
            _start(slots or DEFAULT_SLOTS, wanted)
        else:
            differing(
                running,
                {key: value for key, value in wanted.items() if not key.startswith("spark.sql.")},
            )
    found = _users()
    for key, value in wanted.items():
        if key.startswith("spark.sql.") and found.conf.isModifiable(key):
            found.conf.set(key, value)
    return found


def get_context(slots: int | None = None, stop: threading.Event | None = None) -> SparkContext:
    """The running SparkContext, or a new local one with everflow's settings: Spark without SQL,
    which is all that ``pyspark.sql.functions`` and a resident step need. (SQL takes 1.5 s more, and
    3.5 s of CPU.)

    One that the user (or ``spark-submit``) started is adopted as it is. Safe to call from any
    thread, any number of times. Raises SetupError where Java is missing, and for a Spark that
    cannot serve (Spark Connect, a cluster). If it is interrupted while Spark starts, Spark's JVM
    ends first; ``stop``, set meanwhile, ends it too, with some error of PySpark's.
    """
    with _lock:
        return _running() or _start(max(slots or 0, DEFAULT_SLOTS), {}, stop)


def launch_ahead() -> None:
    """Launch the JVM of everflow's own Spark now, beside what the caller does next, for
    `get_context` to find it. Nothing happens where a Spark runs, or cannot be started: who starts
    it is told."""
    with _lock, suppress(SetupError):
        if running_context() is None and "SPARK_REMOTE" not in os.environ:
            jvm_ahead.launch_ahead(_launch_settings(DEFAULT_SLOTS, {}))


def start_when_asked() -> None:
    """From now on PySpark finds a Spark when it is asked for one, by the first Column at the
    latest: the one that runs, or one that `get_context` starts then. Raises SetupError for a Spark
    that runs and cannot serve."""
    with _lock:
        _running()
        stand_in(get_context)


def get_session() -> SparkSession:
    """everflow's own SQL session in the SparkContext that `get_context` gives: the same for every
    topology, whatever is set in the user's, which it leaves alone."""
    global _own
    with _lock:
        context = get_context()
        if _own is None or _own[0] is not context:
            with waiting("starting Spark SQL"):
                _own = context, _own_session(_users())
        return _own[1]


def plain_context() -> SparkContext | None:
    """The running Spark, where it is everflow's own and nothing else has a say in its SQL (a user's
    session, extension, catalog or library); None for any other, and where none runs."""
    running = running_context()
    return running if running is not None and running is _plain else None


def sql_runs() -> bool:
    """Whether Spark SQL has been started, by everflow or by the user."""
    return SparkSession._instantiatedSession is not None


def slots_of(context: SparkContext) -> int:
    """How many tasks run at once. Not ``defaultParallelism``: that is a setting of its own."""
    cores = int(context._jsc.sc().schedulerBackend().totalCores())
    return cores // int(context.getConf().get("spark.task.cpus", "1") or 1)


def _running() -> SparkContext | None:
    refuse_connect()
    running = running_context()
    if running is None:
        return None
    jvm_ahead.discard()  # the user's program has started a Spark
    return adopt(running)


def _start(
    slots: int, wanted: Mapping[str, str], stop: threading.Event | None = None
) -> SparkContext:
    global _plain
    logs.install()
    hush_py4j()
    settings = _launch_settings(slots, wanted)
    require_local(settings.get("spark.master") or "")
    with (
        waiting("starting Spark"),
        real_one_starts(),
        jvm_ends_with_failure(stop),
        interrupt_kept(),
    ):
        context = SparkContext(conf=settings)
        context.setLogLevel("ERROR")
        is_own(context)
        hush_accumulators(context)
        # By one call: ``getConf().getAll()`` asks the JVM some hundred times.
        told = context._conf.toDebugString().splitlines()
        _plain = context if is_plain(line.partition("=")[0] for line in told) else None
        return context


def is_plain(settings: Iterable[str]) -> bool:
    """Whether a Spark with settings of these names has an SQL that only everflow has a say in; some
    may come from ``spark-defaults.conf``."""
    ours = {**context_settings(""), **DEFAULT_CONFIGS}
    return all(key in ours or not key.startswith(_SQL_MAY_DIFFER) for key in settings)


def _launch_settings(slots: int, wanted: Mapping[str, str]) -> SparkConf:
    """What everflow's own Spark is started with, ``wanted`` above all; the environment and this
    process are made ready for it, too."""
    prepare_environment()
    share_one_area()  # before PySpark's threads have one each
    defaults = {
        "spark.master": f"local[{slots},1]",
        "spark.app.name": "everflow",
        **context_settings(_socket_folder()),
    }
    return SparkConf().setAll(list({**defaults, **wanted}.items()))


def prepare_environment() -> None:
    """What Spark's JVM is launched with, where nobody has set it. SetupError where Java is
    missing."""
    java = find_java()
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    # Workers must be the interpreter that runs the driver, also where `python3` on the PATH is
    # another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER_OPTIONS)


@cache
def _socket_folder() -> str:
    return str(socket_folder_of_process())


@contextmanager
def interrupt_kept() -> Iterator[None]:
    """A new SparkContext installs a handler of Ctrl-C that cancels every job, a running instance's
    too: ours is not to have it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def context_settings(socket_folder: str) -> dict[str, str]:
    """Settings of Spark itself; each line was measured or broke something without it (design
    section 7)."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": shlex.join([*JAVA_OPTIONS, *start_options("spark")]),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.python.daemon.module": "everflow.spark.launch.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": socket_folder,
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "100",
        "spark.ui.retainedDeadExecutors": "1",
        "spark.cleaner.periodicGC.interval": "10min",
    }


def _users() -> SparkSession:
    """The user's session, made if there is none: the first one becomes the process's default, so it
    must not be ours."""
    get_context()
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


_OTHER_CASES = ("az", "lt", "tr")
"""Languages in which Java's small and capital letters are others."""


_letters = ""


def letters_of() -> str:
    """The language whose small and capital letters the JVM of Columns has, where those are others
    than elsewhere; else nothing. (Everflow's JVM has `JAVA_OPTIONS`; one of the user's own may have
    any, for all that runs in it, so it stays what it is.)"""
    return _letters


def note_letters(users: SparkSession) -> None:
    """Ask the session's JVM for what `letters_of` says."""
    global _letters
    jvm: Any = users._jvm
    language = str(jvm.java.util.Locale.getDefault().getLanguage())
    _letters = language if language in _OTHER_CASES else ""


def _own_session(users: SparkSession) -> SparkSession:
    note_letters(users)
    own = users.newSession()
    given = {
        key: value
        for key, value in own.conf.getAll.items()
        if key.startswith("spark.sql.") and own.conf.isModifiable(key)
    }
    for key in given:
        own.conf.unset(key)
    _tell(users, own)
    for key, value in SQL_SETTINGS.items():
        own.conf.set(key, value)
    return own


def _tell(users: SparkSession, own: SparkSession) -> None:
    """``own`` has Spark's defaults still."""
    now = users.conf.getAll
    other = [
        f"{key}={now[key]}"
        for key in _TOLD
        if key in now and now[key] != SQL_SETTINGS.get(key, own.conf.get(key))
    ]
    if other:
        log.warning(
            "Your Spark session has %s, and keeps it. Columns of a topology are computed in UTC, "
            "in ANSI mode and with Spark's "
            "other defaults, here as on every instance",
            ", ".join(other),
        )
