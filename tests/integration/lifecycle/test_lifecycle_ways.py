"""How an instance runs in Spark: long-running tasks (design notes 004 and 014); and a run that ends
by itself."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import StreamsBuilder, serdes
from everflow.instance.client_state import ClientState
from integration.lifecycle.lifecycle_cluster import Application, Cluster, long, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_one_worker_serves_all_batches(app: Application, cluster: Cluster) -> None:
    """Two would be two producers with one transactional id, and two views of a store."""
    source, workers, counts = (
        cluster.topic("in", 1),
        cluster.topic("workers", 1),
        cluster.topic("counts", 1),
    )
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(lambda value: str(os.getpid()), returns=serdes.string()).to(workers)
    stream.group_by_key().count(store="counts").to_stream().to(counts)
    for start in range(2):
        with app.running(builder.build(), num_stream_threads=1) as streams:
            before = len(cluster.read(workers))
            for records in (5, 200):
                cluster.write(source, [text("k", "v")] * records)
                app.until_processed(streams, source)
            assert len({record.value for record in cluster.read(workers)[before:]}) == 1, start
    assert long(cluster.read(counts)[-1].value) == 410


def test_columns_that_arrow_leaves_to_spark_are_computed_by_spark(
    app: Application, cluster: Cluster
) -> None:
    """Letters beyond ASCII are Spark's to make large. Counts and results are there once."""
    source, loud, counts = (
        cluster.topic("in", 1),
        cluster.topic("loud", 1),
        cluster.topic("counts", 1),
    )
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream = stream.map_values(F.upper("value"))
    stream.to(loud)
    stream.group_by_key().count(store="counts").to_stream().to(counts)
    texts = ["ada", "straße", "bob", "élan", "eve"]
    with app.running(builder.build(), num_stream_threads=1) as streams:
        for value in texts:
            cluster.write(source, [text("k", value)])
            app.until_processed(streams, source)
    said = [(record.value or b"").decode() for record in cluster.read(loud)]
    assert said == ["ADA", "STRASSE", "BOB", "ÉLAN", "EVE"]
    assert long(cluster.read(counts)[-1].value) == len(texts)


def test_spark_s_ui_names_instance_thread_and_sub_topologies(
    app: Application, cluster: Cluster, spark: SparkSession
) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    again = stream.group_by(lambda key, value: value, returns="string", name="again")
    again.count(store="counts").to_stream().to(output)
    with app.running(builder.build(), num_stream_threads=2) as streams:
        app.until_processed(streams, source)
        jobs: Any = spark.sparkContext._jsc
        listed = jobs.sc().statusStore().jobsList(None)
        running = [listed.apply(at) for at in range(listed.size())]
        names = {job.description().get() for job in running if job.status().toString() == "RUNNING"}
        for number in range(2):
            (name,) = [one for one in names if app.id in one and f"thread {number}:" in one]
            assert name.endswith("sub-topologies 0, 1")


NOTED: list[str] = []


def noted(value: str) -> str:
    NOTED.append(value)
    return value


def test_functions_in_columns_are_called_in_the_resident_step(
    app: Application, cluster: Cluster
) -> None:
    """They travel with the program's other functions, whose variables they share."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    said = F.udf(lambda value: f"{os.getpid()} {len(NOTED)}", StringType(), useArrow=True)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    kept = stream.map_values(noted, returns=serdes.string()).filter(F.col("value") != "x")
    kept.map_values(said(F.upper("value"))).to(output)
    cluster.write(source, [text("k", value) for value in "axbxc"])
    with app.running(builder.build(), num_stream_threads=1) as streams:
        app.until_processed(streams, source)
    lines = [(record.value or b"").decode().split() for record in cluster.read(output)]
    assert len(lines) == 3
    assert len({line[0] for line in lines} - {str(os.getpid())}) == 1
    assert lines[-1][1] == "5"


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


def test_rows_of_committed_batches_come_to_the_drivers_terminal(
    app: Application, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cluster.topic("in", 1)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    lengths = stream.map_values(lambda value: len(value), returns="bigint")
    lengths.map_values(F.col("value") + 1).print_table("lengths", rows=5)
    stream.group_by_key().count(store="n").print_table("counts")
    cluster.write(source, [text("k", "v", at) for at in range(1, 101)])
    with app.running(builder.build()) as streams:
        app.until_processed(streams, source)
    lines = capsys.readouterr().out.splitlines()
    assert "--- lengths" in lines
    assert "--- counts" in lines
    rows = [line for line in lines if line.startswith("1970") and line.endswith("  2")]
    more = sum(int(line.split()[2]) for line in lines if line.startswith("... and"))
    assert len(rows) >= 1
    assert len(rows) + more == 100
    assert any(line.endswith("100") for line in lines)
