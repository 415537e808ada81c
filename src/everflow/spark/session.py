"""The Spark of an instance, its own or a user's, checked and adopted; the SQL session for Columns.
A stand-in for the active SparkContext starts Spark at first use: without Columns nobody waits."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from weakref import WeakSet

from py4j import java_gateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark import java_gateway as java_gateway_of_pyspark
from pyspark.core.context import DEFAULT_CONFIGS
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from everflow import logs
from everflow.errors import SetupError
from everflow.jvm import find_java, start_options
from everflow.memory import MIB, MOST_HEAP_BYTES, share_one_area
from everflow.retry import waiting
from everflow.sockets import socket_folder_of_process
from everflow.spark.launch import jvm_launch
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure

log = logging.getLogger("everflow.spark")

# --- a Spark that runs already --------------------------------------------------------------------

OURS = "mdc.everflow"
"""A local property of everflow's jobs: who runs them tells what fails."""
_prepared: WeakSet[SparkContext] = WeakSet()
_LEVELS = {
    "org.apache.spark.scheduler.TaskSetManager": "OFF",
    "org.apache.spark.api.python.PythonWorkerFactory": "ERROR",
}
_LOCAL = re.compile(r"local(\[\s*([0-9]+|\*)\s*(,\s*[0-9]+\s*)?\])?")
_BEFORE_THE_JVM = (
    "spark.driver.memory",
    "spark.driver.extra",
    "spark.driver.defaultJavaOptions",
    "spark.jars",
)


def _is_connect() -> bool:
    return is_remote() or ("SPARK_REMOTE" in os.environ and running_context() is None)


def refuse_connect() -> None:
    """SetupError under Spark Connect, whose JVM is elsewhere."""
    if _is_connect():
        raise SetupError(
            "This is a Spark Connect session: it has no Spark in this process, and everflow needs "
            "one on the host where it runs. Start a classic session instead: without SPARK_REMOTE "
            "and builder.remote(...), for example with everflow.session()."
        )


def require_local(master: str) -> None:
    """SetupError for a master that spreads tasks over other processes or hosts."""
    if _LOCAL.fullmatch(master) is None:
        raise SetupError(
            f"spark.master is {master!r}, but everflow runs its tasks on the driver's host, where "
            "their stores are: it takes local[N]. Call everflow.session(slots=8), or build your "
            "session with .master('local[8]'). To use more hosts start an instance on each: Kafka "
            "shares the work among them."
        )


def adopt(running: SparkContext) -> SparkContext | None:
    """The running context, ready for everflow; None if it was stopped. SetupError if it cannot
    serve."""
    try:
        if running._jsc is None or running._jsc.sc().isStopped():
            running.stop()  # stopped from the JVM's side: PySpark still takes it for the active one
            return None
    except (Py4JError, OSError):
        raise SetupError(
            "Spark's JVM, which this process started, has ended (killed, or out of memory). "
            "PySpark cannot start another one in "
            "the same process: restart it (in a notebook: restart the kernel)."
        ) from None
    require_local(str(running.master))
    if running not in _prepared:
        _prepared.add(running)
        hush_py4j()
        _hush(running)
        hush_accumulators(running)
        _reap(running)
    if "PYSPARK_PYTHON" not in os.environ and "PYSPARK_DRIVER_PYTHON" not in os.environ:
        # PySpark's default, the `python3` on the PATH, may have none of the functions' packages.
        running.pythonExec = sys.executable
    return running


def _hush(running: SparkContext) -> None:
    """Its JVM writes to the user's terminal, a hundred lines for every batch that fails. What our
    tasks log is dropped there (by a job's ``mdc.`` properties, which Spark gives to log4j), and
    what the scheduler says, as the caller's exception has it; a progress bar would stay."""
    gateway: Any = running._gateway
    try:
        log4j = gateway.jvm.org.apache.logging.log4j
        spark_logging = log4j.LogManager.getContext(False)
        pairs = gateway.new_array(log4j.core.util.KeyValuePair, 1)
        pairs[0] = log4j.core.util.KeyValuePair(OURS, "true")
        results = log4j.core.Filter.Result
        ours = log4j.core.filter.ThreadContextMapFilter.createFilter(
            pairs, "or", results.DENY, results.NEUTRAL
        )
        spark_logging.getConfiguration().addFilter(ours)
        spark_logging.updateLoggers()
        for name, level in _LEVELS.items():
            log4j.core.config.Configurator.setLevel(name, log4j.Level.valueOf(level))
        bar = running._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().stop()
    except (Py4JError, TypeError):
        log.debug("Spark's log stays as it is: it is not log4j's", exc_info=True)


def hush_py4j() -> None:
    """py4j reports calls cut off by Ctrl-C to the root logger; it gets its own here. Idempotent."""
    gateway: Any = java_gateway
    gateway.logging = gateway.logger


def hush_accumulators(context: SparkContext) -> None:
    """Its server prints a traceback when the JVM ends before this process."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: log.debug("PySpark's accumulator server", exc_info=True)


def _reap(running: SparkContext) -> None:
    """A notebook's kernel waits half a minute at its end for a child that nobody has reaped."""
    process = getattr(running._gateway, "proc", None)
    if process is not None:
        threading.Thread(target=process.wait, name="everflow-spark-jvm", daemon=True).start()


def wanted_settings(
    app_name: str | None, slots: int | None, conf: Mapping[str, object] | None
) -> dict[str, str]:
    """The arguments of `everflow.session` as settings of Spark. SetupError for contradictions."""
    found = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (conf or {}).items()
    }
    arguments = {
        "spark.app.name": app_name,
        "spark.master": None if slots is None else f"local[{slots},1]",
    }
    if slots is not None and slots < 1:
        raise SetupError(
            f"slots is {slots}: at least one task has to run, and each stream thread keeps one."
        )
    for key, value in arguments.items():
        if value is not None and found.setdefault(key, value) != value:
            raise SetupError(
                f"conf has {key}={found[key]}, the arguments of session() say {value}: leave one "
                f"of them out."
            )
    if "spark.master" in found:
        require_local(found["spark.master"])
    if "spark.remote" in found or found.get("spark.api.mode", "classic") != "classic":
        raise SetupError(
            "everflow needs a classic session: leave spark.remote and spark.api.mode out of conf."
        )
    late = [key for key in found if key.startswith(_BEFORE_THE_JVM)]
    if late and SparkContext._gateway is not None and running_context() is None:
        raise SetupError(
            f"{', '.join(late)}: read when Spark's JVM starts, and this process has one already, "
            f"also after spark.stop(). Restart "
            "the process (in a notebook: the kernel) and call session() first."
        )
    return found


def differing(running: SparkContext, wanted: Mapping[str, str]) -> None:
    """SetupError if the running context has other settings than those wanted."""
    conf = running.getConf()
    other = [
        f"{key}={conf.get(key)} instead of {value}"
        for key, value in wanted.items()
        if conf.get(key) != value
    ]
    if other:
        raise SetupError(
            f"Spark runs already in this process, with {', '.join(other)}. Leave the setting out "
            "to use it as it is, or stop it first: spark.stop()."
        )


# --- a stand-in until Spark is needed -------------------------------------------------------------

_starts: list[Callable[[], object]] = []
"""Ways to start Spark, of the callers that are inside `started_by`; else it is `get_context`."""


class LaterContext:
    """Stands in for the active SparkContext: the first access starts the real one. Any thread."""

    _real: SparkContext | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by copy, pickle, notebooks: not meant for Spark
            raise AttributeError(name)
        if self._real is None:
            (_starts[-1] if _starts else get_context)()
            self._real = running_context()
        return getattr(self._real, name)

    def __bool__(self) -> bool:
        """PySpark refuses a second SparkContext where there is one: here there is none yet."""
        return False


class ImportedContext(LaterContext):
    """The stand-in from the import of everflow to the first builder: of Columns that a module has
    above it. A program that asks for a Spark of its own meanwhile gets that."""


def stand_in_for_columns() -> None:
    """From now on PySpark's first Column starts Spark, in a process that has none. PySpark itself
    finds none still, and makes one of a user's settings."""
    if SparkContext._active_spark_context is not None or _is_connect():
        return
    get_or_create, active = SparkContext.getOrCreate, SparkSession.getActiveSession
    classes: Any = (SparkContext, SparkSession)

    def step_aside(conf: SparkConf | None = None) -> SparkContext:
        with SparkContext._lock:
            found: object = SparkContext._active_spark_context
            if isinstance(found, ImportedContext):
                SparkContext._active_spark_context = None
            return get_or_create(conf)

    def active_session() -> SparkSession | None:
        found: object = SparkContext._active_spark_context
        return None if isinstance(found, ImportedContext) else active()

    classes[0].getOrCreate = staticmethod(step_aside)
    classes[1].getActiveSession = staticmethod(active_session)
    SparkContext._active_spark_context = ImportedContext()  # type: ignore[assignment]


def running_context() -> SparkContext | None:
    """The SparkContext that runs; None where there is a stand-in or nothing."""
    found: object = SparkContext._active_spark_context
    return found if isinstance(found, SparkContext) else None


@contextmanager
def started_by(start: Callable[[], object]) -> Iterator[None]:
    """While in the block a stand-in starts Spark by ``start``, which calls `get_context` and says
    that it does."""
    _starts.append(start)
    try:
        yield
    finally:
        _starts.remove(start)


@contextmanager
def real_one_starts() -> Iterator[None]:
    """The stand-in steps aside for the block, and comes back if no SparkContext was started."""
    before: object = SparkContext._active_spark_context
    SparkContext._active_spark_context = None
    try:
        yield
    finally:
        if isinstance(before, LaterContext) and SparkContext._active_spark_context is None:
            SparkContext._active_spark_context = before  # type: ignore[assignment]


# --- everflow's own Spark, and the session for Columns --------------------------------------------

DEFAULT_SLOTS = 32
"""Task slots of a local session at least: it may start before the stream threads are known. Slots
are the JVM's threads, not cores; with too few one thread would delay another (design section 2)."""

SQL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.useV1SourceList": "",
    # Spark 4.2 asks at each row how large the Arrow batch is by now, which walks a column of nulls
    # from its start: 76 us a record with 50,000 rows in one, 5.5 with 2,000. Without the bound in
    # bytes it is 2.6, but large records of a few tasks are more than the JVM may allocate.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.legacy.allowUntypedScalaUDF": "false",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
"""SQL settings for Columns of a topology; all others have Spark's defaults."""

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
    # Java begins with a 64th of the machine, and has been through all of it before it first
    # collects. 35 MiB live behind a start; with less than 64 there are full collections before.
    "-Xms64m",
    "-XX:-ShrinkHeapInSteps",
    "-XX:MetaspaceSize=128m",  # no full collection for the room of classes while Spark starts
    *(f"-XX:{name}={value}" for name, value in _COMPILED_LATER.items()),
)

_LAUNCHER_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of the JVM that only builds the command of Spark's own: 0.16 s, with them 0.11."""

_WARNED_OF = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.legacy.timeParserPolicy",
)
"""Settings that change results and are often set: who has set one reads that a topology goes by its
own."""

_SQL_MAY_DIFFER = ("spark.sql.", "spark.jars", "spark.plugins", "spark.driver.extraClassPath")
"""Beginnings of settings that may give SQL other functions, rules or defaults."""

_socket_folder = cache(socket_folder_of_process)
_lock = threading.RLock()
_own: tuple[SparkContext, SparkSession] | None = None
_heap = MOST_HEAP_BYTES
_plain: SparkContext | None = None
"""The last one that everflow has started, where nothing but everflow has a say in its SQL."""


def session(
    app_name: str | None = None,
    *,
    slots: int | None = None,
    conf: Mapping[str, object] | None = None,
) -> SparkSession:
    """Returns this process's SparkSession. If none runs, starts Spark with everflow's settings.

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
    which takes 1.5 s more.

    One that the user (or ``spark-submit``) started is adopted as it is. From any thread, any number
    of times. Raises SetupError where Java is missing, and for a Spark that cannot serve (Spark
    Connect, a cluster). If it is interrupted while Spark starts, Spark's JVM ends first; ``stop``,
    set meanwhile, ends it too, with some error of PySpark's.
    """
    with _lock:
        if (running := _running()) is not None:
            return running
        if _lender is not None:
            return _borrowed(*_lender())
        return _start(max(slots or 0, DEFAULT_SLOTS), {}, stop)


Gateway = tuple[int, str]
"""The port and the secret by which py4j comes to Spark's JVM."""
_lender: Callable[[], Gateway] | None = None


def borrow(ask: Callable[[], Gateway]) -> None:
    """From now on `get_context` takes the Spark of another process of everflow's, which lives
    longer than this one; ``ask`` says where it is."""
    global _lender
    _lender = ask


def gateway_of(context: SparkContext) -> Gateway:
    parameters = context._gateway.gateway_parameters  # type: ignore[union-attr]
    return int(parameters.port), str(parameters.auth_token)


def _borrowed(port: int, secret: str) -> SparkContext:
    prepare_environment()
    hush_py4j()
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
    launcher: Any = java_gateway_of_pyspark
    with waiting("starting Spark"), real_one_starts(), interrupt_kept():
        gateway = launcher.launch_gateway()
        running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        jsc = gateway.jvm.JavaSparkContext.fromSparkContext(running)
        conf = SparkConf(_jvm=gateway.jvm, _jconf=jsc.getConf())
        return _ready(SparkContext(conf=conf, gateway=gateway, jsc=jsc))


def plan_heap(size: int) -> None:
    """Let Spark's JVM have a heap of so many bytes at the most, where it is not launched yet and
    nobody sets another."""
    global _heap
    _heap = size


def launch_ahead() -> None:
    """Launch our Spark's JVM for `get_context` to find; errors are left to who starts Spark."""
    with _lock, suppress(SetupError):
        if running_context() is None and "SPARK_REMOTE" not in os.environ:
            jvm_launch.launch_ahead(_launch_settings(DEFAULT_SLOTS, {}))


def start_when_asked() -> None:
    """From now on PySpark's first Column finds a Spark, running or started then. SetupError."""
    with _lock:
        _running()
        found: object = SparkContext._active_spark_context
        if found is None or isinstance(found, ImportedContext):
            SparkContext._active_spark_context = LaterContext()  # type: ignore[assignment]


def get_session() -> SparkSession:
    """everflow's own SQL session in `get_context`'s SparkContext; it leaves the user's alone."""
    global _own
    with _lock:
        context = get_context()
        if _own is None or _own[0] is not context:
            with waiting("starting Spark SQL"):
                _own = context, _own_session(_users())
        return _own[1]


def plain_context() -> SparkContext | None:
    """The running Spark if it is everflow's own and nothing else has a say in its SQL, or None."""
    running = running_context()
    return running if running is not None and running is _plain else None


def sql_runs() -> bool:
    """True if Spark SQL has been started, by everflow or by the user."""
    return SparkSession._instantiatedSession is not None


def slots_of(context: SparkContext) -> int:
    """Number of tasks that run at once (``defaultParallelism`` is a setting of its own)."""
    cores = int(context._jsc.sc().schedulerBackend().totalCores())
    return cores // int(context.getConf().get("spark.task.cpus", "1") or 1)


def _running() -> SparkContext | None:
    refuse_connect()
    running = running_context()
    if running is None:
        return None
    jvm_launch.discard()  # the user's program has started a Spark
    return adopt(running)


def _start(
    slots: int, wanted: Mapping[str, str], stop: threading.Event | None = None
) -> SparkContext:
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
        return _ready(context)


def _ready(context: SparkContext) -> SparkContext:
    global _plain
    _prepared.add(context)  # what its JVM says goes to the log file, all of it
    hush_accumulators(context)
    # By one call: ``getConf().getAll()`` asks the JVM some hundred times.
    lines = context._conf.toDebugString().splitlines()
    _plain = context if is_plain(line.partition("=")[0] for line in lines) else None
    return context


def is_plain(settings: Iterable[str]) -> bool:
    """True if only everflow has a say in the SQL of a Spark with settings of these names."""
    ours = {**context_settings(""), **DEFAULT_CONFIGS}
    return all(key in ours or not key.startswith(_SQL_MAY_DIFFER) for key in settings)


def _launch_settings(slots: int, wanted: Mapping[str, str]) -> SparkConf:
    """Settings of everflow's own Spark, ``wanted`` first; prepares the environment for it."""
    prepare_environment()
    share_one_area()  # before PySpark's threads have one each
    defaults = {
        "spark.master": f"local[{slots},1]",
        "spark.app.name": "everflow",
        **context_settings(str(_socket_folder())),
    }
    return SparkConf().setAll(list({**defaults, **wanted}.items()))


def prepare_environment() -> None:
    """Set the environment of Spark's JVM, where nobody has. SetupError where Java is missing."""
    java = find_java()
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    # Workers must be the driver's interpreter, also where `python3` on the PATH is another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER_OPTIONS)


@contextmanager
def interrupt_kept() -> Iterator[None]:
    """A new SparkContext's handler of Ctrl-C would cancel every job: ours is not to have it."""
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
    """Each line was measured or broke something without it (design section 7)."""
    return {
        "spark.driver.memory": f"{_heap // MIB}m",
        # Spark refuses a heap below one and a half times what it reserves for itself: 300 MiB, by a
        # setting that is meant for tests. 35 MiB live in ours.
        "spark.testing.reservedMemory": str(min(300 * MIB, _heap // 3)),
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": shlex.join([*JAVA_OPTIONS, *start_options("spark")]),
        # These go by the number of slots; a thread takes 0.1 MiB. One task's result is a few bytes.
        "spark.rpc.netty.dispatcher.numThreads": "4",
        "spark.shuffle.mapOutput.dispatcher.numThreads": "1",
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
    """The user's session, made if there is none: the first becomes the process's default."""
    get_context()
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


_OTHER_CASES = ("az", "lt", "tr")
"""Languages in which Java's small and capital letters are others."""


_letters = ""


def letters_of() -> str:
    """The language of the JVM of Columns, where its small and capital letters are others than
    elsewhere (a user's own Spark; ours has `JAVA_OPTIONS`); else nothing."""
    return _letters


def note_letters(users: SparkSession) -> None:
    global _letters
    jvm: Any = users._jvm
    language = str(jvm.java.util.Locale.getDefault().getLanguage())
    _letters = language if language in _OTHER_CASES else ""


def _own_session(users: SparkSession) -> SparkSession:
    note_letters(users)
    own = users.newSession()
    for key in own.conf.getAll:
        if key.startswith("spark.sql.") and own.conf.isModifiable(key):
            own.conf.unset(key)
    _warn_of_settings(users, own)
    for key, value in SQL_SETTINGS.items():
        own.conf.set(key, value)
    return own


def _warn_of_settings(users: SparkSession, own: SparkSession) -> None:
    now = users.conf.getAll
    other = [
        f"{key}={now[key]}"
        for key in _WARNED_OF
        if key in now and now[key] != SQL_SETTINGS.get(key, own.conf.get(key))
    ]
    if other:
        log.warning(
            "Your Spark session has %s, and keeps it. Columns of a topology are computed in UTC, "
            "in ANSI mode and with Spark's other defaults, here as on every instance",
            ", ".join(other),
        )
