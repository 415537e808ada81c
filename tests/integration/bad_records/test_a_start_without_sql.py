"""A start with known Columns has no Spark SQL until Arrow leaves it a batch, which is Spark's."""

import itertools
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.spark import expressions
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Cluster, in_json

pytestmark = [pytest.mark.broker, pytest.mark.spark]
PATIENCE_S = 120.0

PROGRAM = """
    import sys
    from pyspark.sql import SparkSession, functions as F
    from everflow import KafkaStreams, StreamsBuilder, serdes
    from everflow.instance.client_state import ClientState
    from everflow.testing import wait_until

    bootstrap, source, output, dead, state, over = sys.argv[1:]

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json("n bigint"))
    stream.map_values(q=F.lit(int(over)) / F.col("value.n")).to(output)
    streams = KafkaStreams(
        builder.build(),
        application_id=output,
        bootstrap_servers=bootstrap,
        state_dir=state,
        errors_dead_letter_queue_topic_name=dead,
        processing_guarantee="exactly_once_v2",
        num_stream_threads=1,
    )
    streams.start()
    wait_until(lambda: streams.error or streams.state is ClientState.RUNNING, 120, "RUNNING")
    for _ in range(3):
        print(SparkSession._instantiatedSession is not None, flush=True)
        sys.stdin.readline()
    streams.close()
"""


def until(cluster: Cluster, topic: str, records: int) -> None:
    wait_until(lambda: len(cluster.read(topic)) >= records, PATIENCE_S, f"{records} in {topic}")


def test_the_first_batch_that_arrow_leaves_starts_it(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process may have analysed as many Columns before as one may keep.
    monkeypatch.setattr(expressions, "_added", itertools.count())
    source, output, dead = topics = [cluster.topic(name, 1) for name in ("in", "out", "dead")]
    over = time.time_ns()  # no start has seen that Column
    stream = StreamsBuilder().stream(source, key=serdes.string(), value=serdes.json("n bigint"))
    stream.map_values(q=F.lit(over) / F.col("value.n"))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(program), cluster.bootstrap, *topics, str(tmp_path), str(over)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            sql = [process.stdout.readline().strip()]
            for numbers, outputs, letters in (([1], 1, 0), ([2, 0, 4], 3, 1)):
                cluster.write(source, [in_json("k", {"n": n}, 1_000) for n in numbers])
                until(cluster, output, outputs)
                until(cluster, dead, letters)
                process.stdin.write("\n")
                process.stdin.flush()
                sql.append(process.stdout.readline().strip())
            process.communicate("\n", timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, sql) == (0, ["False", "False", "True"])
    (letter,) = cluster.read(dead)
    assert b"DIVIDE_BY_ZERO" in (dict(letter.headers)["__streams.errors.message"] or b"")
