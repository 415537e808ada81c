"""Spark's Kafka connector, put on the class path of a JVM that runs.

Only a job that reads through Spark needs it: a resident step reads by itself. So no session is
asked for jars when it starts.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark import __version__ as spark_version

from everflow.errors import SetupError
from everflow.jvm.jars import resolve_jars

_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceRDD"


def add_connector(context: SparkContext) -> None:
    """Make the connector known to this JVM unless it is. The driver's class loader is the parent of
    the tasks' as well, as all run in one process. Idempotent; any thread. SetupError where the jars
    cannot be had or the class loader takes none."""
    java: Any = context._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    if _known(java, loader):
        return
    try:
        for jar in resolve_jars("spark"):
            loader.addURL(java.java.io.File(str(jar)).toURI().toURL())
    except Py4JError:
        pass  # another kind of class loader
    if not _known(java, loader):
        raise SetupError(
            "This Spark lets no jar be added while it runs, and this topology needs Spark's Kafka "
            "connector, because of its "
            "Columns. Start Spark with it:\n"
            f"  spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{spark_version}"
        )


def _known(java: Any, loader: Any) -> bool:
    try:
        java.java.lang.Class.forName(_CLASS, False, loader)
    except Py4JError:
        return False
    return True
