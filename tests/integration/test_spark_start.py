"""What an instance starts of Spark: SQL only for a program that has Columns."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, functions as F

    import everflow
    from everflow import StreamsBuilder, serdes
    from everflow.spark.session import get_session

    def running():
        return SparkContext._active_spark_context is not None, SparkSession._instantiatedSession is not None

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.json("amount bigint"))
    counts = stream.map_values(lambda value: value, returns=serdes.json("amount bigint")).group_by_key().count(store="s")
    builder.build()
    column = F.col("value.amount") > 1
    print(*running())
    stream.filter(column).to("large")
    print(*running())
    spark = SparkSession.builder.getOrCreate()
    same = spark.sparkContext is SparkContext._active_spark_context
    print(spark.range(3).count(), same, spark.conf.get("spark.sql.adaptive.enabled"))
    own = get_session()
    print(own.conf.get("spark.sql.adaptive.enabled"), own.conf.get("spark.sql.session.timeZone"), own is not spark)
    print(SparkSession.getActiveSession() is spark, everflow.session() is spark)
"""


def test_sql_is_started_by_the_first_column() -> None:
    """It takes seconds, and a program of functions and plain fields never needs it. The user's session has Spark's settings, the
    one that computes Columns everflow's."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=180)
    assert done.stdout.splitlines() == ["True False", "True True", "3 True true", "false UTC True", "True True"], done.stderr
