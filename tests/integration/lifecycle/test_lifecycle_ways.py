"""The two roads of an instance (design notes 004 and 014): the resident step, and a Spark job per
batch; and a run that ends by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import KafkaStreams, StreamsBuilder, serdes
from everflow.runtime.client_state import ClientState
from everflow.runtime.thread.thread_job import CHANNEL_PROPERTY
from integration.lifecycle.lifecycle_cluster import Application, Cluster, long, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RESIDENT, SPARK_JOB = "resident", "spark-job"


def way(_: str) -> str:
    """How, and in which process, this record is processed."""
    context = TaskContext.get()
    assert context is not None
    return f"{RESIDENT if context.getLocalProperty(CHANNEL_PROPERTY) else SPARK_JOB} {os.getpid()}"


def test_the_road_may_change_between_two_starts(app: Application, cluster: Cluster) -> None:
    """Offsets, stores and batches are the same on both; on each one worker runs the steps: two
    would be two producers with one transactional id, and two views of a store."""
    source, ways, counts = (
        cluster.topic("in", 1),
        cluster.topic("ways", 1),
        cluster.topic("counts", 1),
    )
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(way, returns=serdes.string()).to(ways)
    stream.group_by_key().count(store="counts").to_stream().to(counts)

    def burst(streams: KafkaStreams, records: int) -> Sequence[str]:
        """What the burst's records say."""
        before = len(cluster.read(ways))
        cluster.write(source, [text("k", "v")] * records)
        app.until_processed(streams, source)
        return [(record.value or b"").decode() for record in cluster.read(ways)[before:]]

    taken = []
    for jobs in (False, True, False):
        with app.running(
            builder.build(), spark_job_per_batch=jobs, num_stream_threads=1
        ) as streams:
            said = [*burst(streams, 5), *burst(streams, 200)]
            taken.append({line.split()[0] for line in said})
            assert len({line.split()[1] for line in said}) == 1, said
    assert taken == [{RESIDENT}, {SPARK_JOB}, {RESIDENT}]
    assert long(cluster.read(counts)[-1].value) == 615


def test_a_job_whose_columns_arrow_leaves_to_spark_is_run_again_by_spark(
    app: Application, cluster: Cluster
) -> None:
    """Letters beyond ASCII are Spark's to make large. Counts and results are there once; the
    worker that has the producer is the same."""
    source, loud, counts = (
        cluster.topic("in", 1),
        cluster.topic("loud", 1),
        cluster.topic("counts", 1),
    )
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream = stream.map_values(F.upper("value"))
    stream.map_values(lambda value: f"{value} {way('')}", returns="string").to(loud)
    stream.group_by_key().count(store="counts").to_stream().to(counts)
    texts = ["ada", "straße", "bob", "élan", "eve"]
    with app.running(builder.build(), spark_job_per_batch=True, num_stream_threads=1) as streams:
        for value in texts:
            cluster.write(source, [text("k", value)])
            app.until_processed(streams, source)
    said = [(record.value or b"").decode().split() for record in cluster.read(loud)]
    assert [line[0] for line in said] == ["ADA", "STRASSE", "BOB", "ÉLAN", "EVE"]
    assert {line[1] for line in said} == {SPARK_JOB}
    assert len({line[2] for line in said}) == 1
    assert long(cluster.read(counts)[-1].value) == len(texts)


NOTED: list[str] = []


def noted(value: str) -> str:
    NOTED.append(value)
    return value


def test_functions_in_columns_are_called_in_the_resident_step(
    app: Application, cluster: Cluster
) -> None:
    """They travel with the program's other functions, whose variables they share."""
    source, ways = cluster.topic("in", 1), cluster.topic("ways", 1)
    said = F.udf(lambda value: f"{way(value)} {len(NOTED)}", StringType(), useArrow=True)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    kept = stream.map_values(noted, returns=serdes.string()).filter(F.col("value") != "x")
    kept.map_values(said(F.upper("value"))).to(ways)
    cluster.write(source, [text("k", value) for value in "axbxc"])
    with app.running(builder.build(), num_stream_threads=1) as streams:
        app.until_processed(streams, source)
    lines = [(record.value or b"").decode().split() for record in cluster.read(ways)]
    assert len(lines) == 3
    assert {line[0] for line in lines} == {RESIDENT}
    assert lines[-1][2] == "5"


def test_a_run_ends_after_its_records_and_returns_them(cluster: Cluster, app: Application) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(output, [text("old", "before the run")])
    cluster.write(source, [text(f"k{n}", str(n), 10 + n, n % 2) for n in range(6)])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(F.col("value").cast("int")).to(output, value=serdes.int_())
    streams = app.instance(builder.build())
    records = streams.run(count=6, timeout="1 minute", collect=output)
    assert streams.state is ClientState.NOT_RUNNING
    assert sorted(records) == [(f"k{n}", n, 10 + n) for n in range(6)]


@pytest.mark.parametrize("jobs", [False, True], ids=[RESIDENT, SPARK_JOB])
def test_rows_of_committed_batches_come_to_the_drivers_terminal(
    app: Application, cluster: Cluster, capsys: pytest.CaptureFixture[str], jobs: bool
) -> None:
    source = cluster.topic("in", 1)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    lengths = stream.map_values(lambda value: len(value), returns="bigint")
    lengths.map_values(F.col("value") + 1).print_table("lengths", rows=5)
    stream.group_by_key().count(store="n").print_table("counts")
    cluster.write(source, [text("k", "v", at) for at in range(1, 101)])
    with app.running(builder.build(), spark_job_per_batch=jobs) as streams:
        app.until_processed(streams, source)
    lines = capsys.readouterr().out.splitlines()
    assert "--- lengths" in lines
    assert "--- counts" in lines
    rows = [line for line in lines if line.startswith("1970") and line.endswith("  2")]
    more = sum(int(line.split()[2]) for line in lines if line.startswith("... and"))
    assert len(rows) >= 1
    assert len(rows) + more == 100
    assert any(line.endswith("100") for line in lines)
