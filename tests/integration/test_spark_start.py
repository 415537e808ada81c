"""What an instance starts of Spark: without Columns nothing, SQL with the first that is new."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAM = r"""
    import re
    from pathlib import Path
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, functions as F

    import everflow
    from everflow import StreamsBuilder, serdes
    from everflow.spark.session import running_context
    from everflow.spark.session import get_session

    def running():
        return running_context() is not None, SparkSession._instantiatedSession is not None

    def areas():
        '''Of memory, beside the first.'''
        maps = Path("/proc/self/maps")
        text = maps.read_text() if maps.exists() else ""
        return len(re.findall(r"^\w+[048c]000000-(\w+) rw-p .*\n\1-\w+ ---p", text, re.M))

    before = areas()
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.json("amount bigint"))
    counts = stream.map_values(lambda value: value, returns=serdes.json("amount bigint")).group_by_key().count(store="s")
    builder.build()
    print(*running())
    column = F.col("value.amount") > {least}
    print(*running())
    stream.filter(column).to("large")
    print(*running())
    spark = SparkSession.builder.getOrCreate()
    same = spark.sparkContext is SparkContext._active_spark_context
    print(spark.range(3).count(), same, spark.conf.get("spark.sql.adaptive.enabled"))
    own = get_session()
    print(own.conf.get("spark.sql.adaptive.enabled"), own.conf.get("spark.sql.session.timeZone"), own is not spark)
    print(SparkSession.getActiveSession() is spark, everflow.session() is spark)
    print(areas() - before)
"""  # noqa: E501


FIRST_ASKED = """
    from everflow import StreamsBuilder
    from everflow.spark.session import running_context
    from pyspark.sql import SparkSession, functions as F

    StreamsBuilder()
    {asks}
    print(running_context() is not None)
    print(SparkSession.builder.getOrCreate().sparkContext.parallelize([1, 2]).count())
"""


ABOVE_THE_BUILDER = """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, functions as F
    from everflow import StreamsBuilder, serdes
    from everflow.spark.session import running_context

    print(running_context(), SparkSession.getActiveSession())
    LARGE = F.col("value.amount") > F.lit(3)
    print(running_context() is not None)
    builder = StreamsBuilder()
    builder.stream("in", value=serdes.json("amount bigint")).filter(LARGE).to("out")
    builder.build()
    print(SparkSession.builder.getOrCreate().sparkContext is running_context())
"""
OWN_SESSION = """
    from pyspark.sql import SparkSession, functions as F
    from everflow import StreamsBuilder, serdes
    from everflow.spark.session import running_context

    spark = SparkSession.builder.master("local[3]").appName("mine").getOrCreate()
    LARGE = F.col("value.amount") > F.lit(3)
    builder = StreamsBuilder()
    builder.stream("in", value=serdes.json("amount bigint")).filter(LARGE).to("out")
    builder.build()
    print(spark.sparkContext.appName, spark.sparkContext is running_context())
    print(spark.sparkContext.defaultParallelism, SparkSession.getActiveSession() is spark)
"""


COUNTS = """
from everflow import StreamsBuilder
builder = StreamsBuilder()
builder.stream("in").group_by_key().count(store="s")
"""
COLUMNS = (
    COUNTS
    + """
from pyspark.sql import functions as F
builder.stream("other").filter(F.col("key").isNotNull()).to("out")
"""
)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_the_first_unseen_column_starts_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds, and a program of functions and plain fields never needs it, nor one that
    was started before. The user's session has Spark's settings, the one that computes Columns
    everflow's. PySpark's threads take no areas of memory of their own (note 063)."""
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)  # it would hold
    program = PROGRAM.replace("{least}", str(time.time_ns()))
    users = ["3 True true", "false UTC True", "True True", "0"]
    for sql in ("True", "False"):
        done = run(program)
        said = ["False False", "True False", f"True {sql}", *users]
        assert done.stdout.splitlines() == said, done.stderr


def test_columns_above_the_first_builder_start_spark() -> None:
    done = run(ABOVE_THE_BUILDER)
    assert done.stdout.splitlines() == ["None None", "True", "True"], done.stderr


def test_a_session_of_the_users_after_the_import_is_theirs() -> None:
    done = run(OWN_SESSION)
    assert done.stdout.splitlines() == ["mine True", "3 True"], done.stderr


@pytest.mark.parametrize("program", [COUNTS, pytest.param(COLUMNS, marks=pytest.mark.slow)])
def test_a_broker_that_is_away_is_told_before_spark_starts(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    options = [
        "--application-id",
        "a",
        "--bootstrap-servers",
        "localhost:1",
        "--state-dir",
        "state",
    ]
    command = [
        sys.executable,
        "-c",
        "from everflow.cli import main; main()",
        "run",
        "program:builder",
        *options,
    ]
    command += ["--set", "task.timeout.ms=1000"]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        timeout=180,
    )
    assert done.returncode == 1, done.stdout
    said = done.stdout.lower()
    asked, spark = said.index("no answer from kafka at localhost:1"), said.find("starting spark")
    assert (spark >= 0) == (program is COLUMNS), done.stdout
    assert spark < 0 or asked < spark, done.stdout
    assert said.count("broker answered at localhost:1") == 1


ASKS = [
    "F.lit(1)",
    "F.struct('a', 'b')",
    "F.expr('1')",
    "F.when(F.col('a') > 1, 2)",
    "SparkSession.builder.getOrCreate()",
]


@pytest.mark.slow
@pytest.mark.parametrize("asks", ASKS)
def test_whatever_asks_pyspark_for_its_spark_starts_it(asks: str) -> None:
    done = run(FIRST_ASKED.format(asks=asks))
    assert done.stdout.splitlines() == ["True", "2"], done.stderr


AHEAD = """
    import os
    from everflow.spark.launch import jvm_launch
    from everflow.spark.session import get_context, launch_ahead

    launch_ahead()
    ahead = jvm_launch._ahead[0].process
    import everflow.cli.run, everflow.instance.kafka_streams  # changes nothing that a JVM is launched with
    {program}
    taken = get_context()._gateway.proc
    print(taken is ahead, ahead.poll() is None, get_context().parallelize([1, 2]).count())
"""  # noqa: E501
OWN_SPARK = """
    from pyspark.sql import SparkSession
    SparkSession.builder.master("local[4]").config("spark.driver.memory", "600m").getOrCreate()
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("", ["True", "True", "2"]),
        pytest.param(OWN_SPARK, ["False", "False", "2"], marks=pytest.mark.slow),
    ],
)
def test_spark_is_launched_unless_a_program_has_its_own(program: str, expected: list[str]) -> None:
    done = run(AHEAD.format(program=program.strip()))
    assert done.stdout.split() == expected, done.stderr


DAEMON = """
    import os, pickle
    from everflow.spark import job
    from everflow.spark.job import _in_own_workers, launch_daemon_ahead
    from everflow.spark.session import get_context

    launch_daemon_ahead()
    context = get_context()
    (result,) = _in_own_workers(context, lambda _: [os.getppid()]).collect()
    daemon = pickle.loads(result)
    ahead = job._daemon[0].process
    print(daemon == [ahead.pid], ahead.poll() is None)
    context.stop()
    ahead.wait(20)
"""


@pytest.mark.slow  # `test_jvm_launch` has it without an instance's session
def test_the_workers_daemon_has_imported_while_spark_started() -> None:
    """Spark's own environment and path make no other daemon of it."""
    done = run(DAEMON)
    assert done.stdout.split() == ["True", "True"], done.stderr
