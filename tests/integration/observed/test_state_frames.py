"""Stores of a real instance as DataFrames, and what their changelogs say without it: the same."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from everflow import (
    EverflowStateSource,
    Materialized,
    StreamsBuilder,
    TimeWindows,
    Topology,
    agg,
    diff_state,
    read_state,
    serdes,
)
from everflow.cli.app import app as command
from everflow.clock import instant
from everflow.serdes import SerdeError
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, in_json

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEYS = 7
BEGIN_MS = 1_000 * (int(time.time()) - 60)
"""Of now: records of 1970 the broker would compact at once, whatever min.compaction.lag.ms says."""


def topology(source: str) -> Topology:
    builder = StreamsBuilder()
    records = builder.stream(source, key=serdes.string(), value=serdes.json("n long"))
    grouped = records.group_by_key()
    grouped.aggregate(mean=agg.avg(F.col("value.n")), many=agg.count(), store="means")
    grouped.windowed_by(TimeWindows.of_size(1_000).grace(0)).count(store="windows")
    records.to_table(store=Materialized("past", history=100_000))
    return builder.build()


def written(round_: int) -> list[Record]:
    """Ten records of each key for a round, a second long."""
    return [
        in_json(f"k{n % KEYS}", {"n": n}, BEGIN_MS + 1_000 * round_ + n // KEYS, n % KEYS % 3)
        for n in range(10 * KEYS)
    ]


def rows(frame: DataFrame, *names: str) -> list[Any]:
    return sorted(tuple(row[name] for name in names) for row in frame.collect())


def test_a_store_is_the_same_in_spark_here_and_of_its_changelog(
    app: Application, cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    source = cluster.topic("in", 3)
    program = topology(source)
    place: dict[str, Any] = {"folder": tmp_path, **where(app, cluster)}
    expected = [(f"k{k}", (k + 9 * KEYS / 2, 10)) for k in range(KEYS)]
    with app.running(program) as streams:
        cluster.write(source, written(1))
        app.until_processed(streams, source)
        ends = {tp.partition: end for tp, end in cluster.ends(changelog(app, "means")).items()}
        means = streams.store("means").to_dataframe(spark, folder=tmp_path)
        assert means.schema["timestamp"].dataType.simpleString() == "timestamp"
        cluster.write(source, written(2))
        app.until_processed(streams, source)
    assert rows(means, "key", "value") == expected, "a DataFrame is of the moment of its call"
    past = read_state(program, "means", ends, spark=spark, **place)
    assert sorted(past.collect()) == sorted(means.collect())
    spark.dataSource.register(EverflowStateSource.of(program, **where(app, cluster)))
    point = ",".join(f"{partition}={end}" for partition, end in ends.items())
    source_of = spark.read.format("everflow-state").option("folder", str(tmp_path))
    loaded = source_of.option("store", "means").option("at", point).load()
    assert (loaded.schema, loaded.rdd.getNumPartitions()) == (past.schema, 3)
    assert sorted(loaded.collect()) == sorted(means.collect())
    changed = diff_state(program, "means", ends, spark=spark, **place)
    found = changed.select("key", "change", "old_value.many", F.col("new_value.many").alias("now"))
    assert rows(found, "key", "change", "many", "now") == [
        (f"k{k}", "changed", 10, 20) for k in range(KEYS)
    ]
    cluster.write(changelog(app, "means"), [Record(b"k1", b"abc", 9_000, 1)])
    with pytest.raises(SerdeError, match=rf"{changelog(app, 'means')}-1@\d+ is not what"):
        read_state(program, "means", spark=spark, **place)


@pytest.mark.slow
def test_windows_and_versions_and_the_command(
    app: Application,
    cluster: Cluster,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = cluster.topic("in", 3)
    program = topology(source)
    place: dict[str, Any] = {"folder": tmp_path, **where(app, cluster)}
    with app.running(program) as streams:
        for round_ in (1, 2):
            cluster.write(source, written(round_))
            app.until_processed(streams, source)
        cluster.ends(changelog(app, "windows"))
        windows = streams.store("windows", stale=True).to_dataframe(spark, folder=tmp_path)
        versions = streams.store("past").to_dataframe(spark, folder=tmp_path)
    names = ("key", "window_start", "window_end", "value", "partition")
    found = read_state(program, "windows", spark=spark, **place)
    assert rows(windows, *names) == rows(found, *names)
    assert {row.lag for row in windows.select("lag").collect()} == {0}
    assert versions.where("valid_to is null").count() == KEYS
    found = read_state(program, "past", spark=spark, **place)
    assert versions.count() == 20 * KEYS == found.count()
    told(tmp_path, monkeypatch, source, app, cluster)


def where(app: Application, cluster: Cluster) -> dict[str, str]:
    return {"application_id": app.id, "bootstrap_servers": cluster.bootstrap}


def changelog(app: Application, store: str) -> str:
    return f"{app.id}-{store}-changelog"


def told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, app: Application, cluster: Cluster
) -> None:
    """`everflow state`, of a program in a file."""
    module = f"state_{app.id.replace('-', '_')}"
    (folder / f"{module}.py").write_text(
        "from integration.observed.test_state_frames import topology\n"
        f"program = topology({source!r})\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    def say(*arguments: str) -> Any:
        at = ["--application-id", app.id, "--bootstrap-servers", cluster.bootstrap]
        return CliRunner().invoke(command, ["state", f"{module}:program", *arguments, *at])

    done = say("means", "--output", "json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert sorted(row["key"] for row in shown["rows"]) == [f"k{k}" for k in range(KEYS)]
    assert {row["value"]["many"] for row in shown["rows"]} == {20}
    table = say("windows", "--at", instant(BEGIN_MS + 1_500), "--limit", "3")
    assert table.stdout.splitlines()[0].split()[:3] == ["key", "window_start", "window_end"]
    assert table.stdout.splitlines()[-1].startswith("... and more")
    parquet = say("windows", "--format", "parquet", "--path", str(folder / "windows"))
    assert parquet.stderr.startswith(f"{KEYS} rows written"), "the others have expired"
    refusals: list[tuple[tuple[str, ...], int, str]] = [
        (("means", "--at", "0=999999"), 2, "EF-STATE-POINT"),
        (("means", "--at", instant(BEGIN_MS + 500)), 2, "EF-STATE-POINT"),
        (("meens",), 1, "EF-NO-STORE"),
        (("means", "--diff", "end", "end", "--at", "5"), 2, "EF-CONFIG"),
    ]
    for arguments, code, says in refusals:
        refused = say(*arguments)
        assert (refused.exit_code, says in refused.stderr) == (code, True), refused.output
