"""Serves under a Spark that is not everflow's: what it must be, what is set while it runs."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from py4j import java_gateway
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql.utils import is_remote

from everflow.errors import SetupError
from everflow.spark.later import running_context

log = logging.getLogger("everflow.spark")

_OURS = "mdc.everflow"
_looked_at: WeakSet[SparkContext] = WeakSet()
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


def refuse_connect() -> None:
    """SetupError under Spark Connect, whose JVM is elsewhere."""
    if is_remote() or ("SPARK_REMOTE" in os.environ and running_context() is None):
        raise SetupError(
            "This is a Spark Connect session: it has no Spark in this process, and everflow needs "
            "one on the host where it runs. "
            "Start a classic session instead: without SPARK_REMOTE and builder.remote(...), for "
            "example with everflow.session()."
        )


def require_local(master: str) -> None:
    """SetupError for a master that spreads tasks over other processes or hosts."""
    if _LOCAL.fullmatch(master) is None:
        raise SetupError(
            f"spark.master is {master!r}, but everflow runs its tasks on the driver's host, where "
            f"their stores are: it takes "
            "local[N]. Call everflow.session(slots=8), or build your session with "
            ".master('local[8]'). To use more hosts start an "
            "instance on each: Kafka shares the work among them."
        )


def adopt(running: SparkContext) -> SparkContext | None:
    """The context that runs, ready for everflow; None if it was stopped. SetupError if it cannot
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
    if running not in _looked_at:
        _looked_at.add(running)
        hush_py4j()
        _hush(running)
        hush_accumulators(running)
        _reap(running)
    if "PYSPARK_PYTHON" not in os.environ and "PYSPARK_DRIVER_PYTHON" not in os.environ:
        # PySpark's default is the `python3` on the PATH, which need not be this one; then no
        # function would find its packages.
        running.pythonExec = sys.executable
    return running


def mark_as_ours(context: SparkContext) -> None:
    """Jobs of the calling thread are everflow's: who runs them tells what fails."""
    context.setLocalProperty(_OURS, "true")


def is_own(context: SparkContext) -> None:
    """everflow has started it: what its JVM says goes to the log file, all of it."""
    _looked_at.add(context)


def _hush(running: SparkContext) -> None:
    """Its JVM writes to the user's terminal: a hundred lines of Java for every attempt at a batch
    that fails. What our tasks log is dropped there (Spark hands a job's ``mdc.`` properties to
    log4j). The scheduler, which does not know whose a task is, only repeats what the executor and
    the caller's exception say; that a worker was ended is no news; and a progress bar would stay on
    the screen for as long as a resident step runs."""
    gateway: Any = running._gateway
    try:
        log4j = gateway.jvm.org.apache.logging.log4j
        spark_logging = log4j.LogManager.getContext(False)
        pairs = gateway.new_array(log4j.core.util.KeyValuePair, 1)
        pairs[0] = log4j.core.util.KeyValuePair(_OURS, "true")
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
    """Its gateway reports a call that an interrupt or the JVM's end cut off to the root logger,
    which that configures: a traceback on the terminal for a Ctrl-C that is answered. It gets py4j's
    own logger. Idempotent."""
    gateway: Any = java_gateway
    gateway.logging = gateway.logger


def hush_accumulators(context: SparkContext) -> None:
    """Its server prints a traceback when the JVM ends before this process."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: log.debug("PySpark's accumulator server", exc_info=True)


def _reap(running: SparkContext) -> None:
    """A notebook's kernel that is shut down ends its child processes, and waits half a minute for
    one that has ended until somebody asks for its exit code: PySpark does not."""
    process = getattr(running._gateway, "proc", None)
    if process is not None:
        threading.Thread(target=process.wait, name="everflow-spark-jvm", daemon=True).start()


def wanted_settings(
    app_name: str | None, slots: int | None, conf: Mapping[str, object] | None
) -> dict[str, str]:
    """The arguments of `everflow.session` as settings of Spark. SetupError where they contradict
    each other."""
    found = {key: _text(value) for key, value in (conf or {}).items()}
    given = {
        "spark.app.name": app_name,
        "spark.master": None if slots is None else f"local[{slots},1]",
    }
    if slots is not None and slots < 1:
        raise SetupError(
            f"slots is {slots}: at least one task has to run, and each stream thread keeps one."
        )
    for key, value in given.items():
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
            f"to use it as it is, or stop it "
            "first: spark.stop()."
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
