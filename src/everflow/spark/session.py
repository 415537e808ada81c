"""Spark of an instance: settings that the runtime relies on, the connector's jars, the Python workers' environment.

An instance is one Spark application whose driver and executor share one host (design section 2).
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import threading

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from everflow import jvm
from everflow.errors import SetupError
from everflow.sockets import socket_folder
from everflow.spark.jvm_launch import jvm_ends_with_failure

log = logging.getLogger("everflow.spark")

DEFAULT_SLOTS = 32
"""Task slots of a local session started before the number of stream threads is known. Slots are threads of the JVM, not cores;
too few would let a full batch of one thread delay another (design section 2)."""

_CONNECTOR_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceRDD"
_lock = threading.Lock()


def get_context(slots: int | None = None) -> SparkContext:
    """The running SparkContext, or a new local one with everflow's settings: Spark without SQL, which is all that
    ``pyspark.sql.functions`` and a resident step need. (SQL takes 1.5 s more, and 3.5 s of CPU.)

    One that the user (or ``spark-submit``) started is adopted as it is; it must have the Kafka connector on its class path.
    Safe to call from any thread, any number of times. Raises SetupError where Java or the connector is missing. If it is
    interrupted while Spark starts, Spark's JVM ends first.
    """
    with _lock:
        running = SparkContext._active_spark_context
        if running is not None:
            _require_connector(running)
            return running
        return _start(slots or DEFAULT_SLOTS)


def get_session() -> SparkSession:
    """The active Spark session, or a new one of the SparkContext that `get_context` gives."""
    get_context()
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _start(slots: int) -> SparkContext:
    java = jvm.find_java()
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    # Workers must be the interpreter that runs the driver, also where `python3` on the PATH is another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SparkConf().setMaster(f"local[{slots},1]").setAppName("everflow")
    settings.setAll(list(session_settings(_sockets()).items()))
    with jvm_ends_with_failure():
        context = SparkContext(conf=settings)
        context.setLogLevel("ERROR")
        return context


def session_settings(socket_folder: str) -> dict[str, str]:
    """Settings of a session; each line was measured or broke something without it (design section 7)."""
    jars = os.pathsep.join(str(jar) for jar in jvm.resolve_jars("spark"))
    return {
        "spark.driver.extraClassPath": jars,
        "spark.driver.memory": "1g",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MaxHeapFreeRatio=40 -XX:MinHeapFreeRatio=10",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.sources.useV1SourceList": "",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.legacy.allowUntypedScalaUDF": "false",
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.python.daemon.module": "everflow.spark.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": socket_folder,
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "100",
        "spark.ui.retainedDeadExecutors": "1",
        "spark.cleaner.periodicGC.interval": "10min",
        # What the connector fetched ahead is used by the next micro-batch or never (a commit marker moves the offset): one entry a
        # batch and partition, with its records, stayed five minutes.
        "spark.kafka.consumer.fetchedData.cache.timeout": "20s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
    }


def _sockets() -> str:
    """Where the JVM and the Python workers meet; emptied by being new."""
    folder = str(socket_folder())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _require_connector(context: SparkContext) -> None:
    jvm_view = context._jvm
    assert jvm_view is not None
    try:
        loader = jvm_view.java.lang.Thread.currentThread().getContextClassLoader()
        jvm_view.java.lang.Class.forName(_CONNECTOR_CLASS, False, loader)
    except Exception as error:  # py4j wraps whatever the JVM throws
        jars = ",".join(str(jar) for jar in jvm.resolve_jars("spark"))
        raise SetupError(
            "the active Spark session has no Kafka connector on its class path.\n"
            "Let everflow start the session (create StreamsBuilder before any SparkSession), or start yours with\n"
            f"  spark.jars={jars}"
        ) from error
