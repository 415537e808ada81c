"""Serves under a Spark that everflow did not start: what it must be, and what is set while it runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql.utils import is_remote

from everflow.errors import SetupError
from everflow.spark.later import running_context

_LOCAL = re.compile(r"local(\[\s*([0-9]+|\*)\s*(,\s*[0-9]+\s*)?\])?")
_BEFORE_THE_JVM = ("spark.driver.memory", "spark.driver.extra", "spark.driver.defaultJavaOptions", "spark.jars")


def refuse_connect() -> None:
    """SetupError under Spark Connect, whose JVM is elsewhere."""
    if is_remote() or ("SPARK_REMOTE" in os.environ and running_context() is None):
        raise SetupError(
            "This is a Spark Connect session: it has no Spark in this process, and everflow needs one on the host where it runs. "
            "Start a classic session instead: without SPARK_REMOTE and builder.remote(...), for example with everflow.session()."
        )


def require_local(master: str) -> None:
    """SetupError for a master that spreads tasks over other processes or hosts."""
    if _LOCAL.fullmatch(master) is None:
        raise SetupError(
            f"spark.master is {master!r}, but everflow runs its tasks on the driver's host, where their stores are: it takes "
            "local[N]. Call everflow.session(slots=8), or build your session with .master('local[8]'). To use more hosts start an "
            "instance on each: Kafka shares the work among them."
        )


def adopt(running: SparkContext) -> SparkContext | None:
    """The context that runs, ready for everflow; None if it was stopped. SetupError if it cannot serve."""
    try:
        if running._jsc is None or running._jsc.sc().isStopped():
            running.stop()  # stopped from the JVM's side: PySpark still takes it for the active one
            return None
    except (Py4JError, OSError):
        raise SetupError(
            "Spark's JVM, which this process started, has ended (killed, or out of memory). PySpark cannot start another one in "
            "the same process: restart it (in a notebook: restart the kernel)."
        ) from None
    require_local(str(running.master))
    if "PYSPARK_PYTHON" not in os.environ and "PYSPARK_DRIVER_PYTHON" not in os.environ:
        # PySpark's default is the `python3` on the PATH, which need not be this one; then no function would find its packages.
        running.pythonExec = sys.executable
    return running


def wanted_settings(app_name: str | None, slots: int | None, conf: Mapping[str, object] | None) -> dict[str, str]:
    """The arguments of `everflow.session` as settings of Spark. SetupError where they contradict each other."""
    found = {key: _text(value) for key, value in (conf or {}).items()}
    given = {"spark.app.name": app_name, "spark.master": None if slots is None else f"local[{slots},1]"}
    if slots is not None and slots < 1:
        raise SetupError(f"slots is {slots}: at least one task has to run, and each stream thread keeps one.")
    for key, value in given.items():
        if value is not None and found.setdefault(key, value) != value:
            raise SetupError(f"conf has {key}={found[key]}, the arguments of session() say {value}: leave one of them out.")
    if "spark.master" in found:
        require_local(found["spark.master"])
    if "spark.remote" in found or found.get("spark.api.mode", "classic") != "classic":
        raise SetupError("everflow needs a classic session: leave spark.remote and spark.api.mode out of conf.")
    late = [key for key in found if key.startswith(_BEFORE_THE_JVM)]
    if late and SparkContext._gateway is not None and running_context() is None:
        raise SetupError(
            f"{', '.join(late)}: read when Spark's JVM starts, and this process has one already, also after spark.stop(). Restart "
            "the process (in a notebook: the kernel) and call session() first."
        )
    return found


def differing(running: SparkContext, wanted: Mapping[str, str]) -> None:
    """SetupError if the running context has other settings than those wanted."""
    conf = running.getConf()
    other = [f"{key}={conf.get(key)} instead of {value}" for key, value in wanted.items() if conf.get(key) != value]
    if other:
        raise SetupError(
            f"Spark runs already in this process, with {', '.join(other)}. Leave the setting out to use it as it is, or stop it "
            "first: spark.stop()."
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
