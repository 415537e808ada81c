"""Stores of a real instance as DataFrames, and what their changelogs say without it: the same."""

import json
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from everflow import (
    EverflowStateSource,
    KafkaStreams,
    Materialized,
    StreamsBuilder,
    TimeWindows,
    Topology,
    Windowed,
    agg,
    diff_state,
    read_state,
    serdes,
)
from everflow.cli.app import app as command
from everflow.client import QueryClient, QueryUnavailableError
from everflow.clock import instant
from everflow.instance.client_state import ClientState
from everflow.observe.figures import FIGURES
from everflow.serdes import SerdeError
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, in_json, text

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
    assert parquet.stdout == "", "what is told beside the rows is on stderr"
    told = re.search(rf"^{KEYS} rows written", parquet.stderr, re.MULTILINE)
    assert told, "the others have expired"
    refusals: list[tuple[tuple[str, ...], int, str]] = [
        (("means", "--at", "0=999999"), 2, "EF-STATE-POINT"),
        (("means", "--at", instant(BEGIN_MS + 500)), 2, "EF-STATE-POINT"),
        (("meens",), 1, "EF-NO-STORE"),
        (("means", "--diff", "end", "end", "--at", "5"), 2, "EF-CONFIG"),
    ]
    for arguments, code, says in refusals:
        refused = say(*arguments)
        assert (refused.exit_code, says in refused.stderr) == (code, True), refused.output


# What an instance says over HTTP, against what is true.


TASK = "kafka_streams_stream_task_metrics_"


def observed_topology(source: str, sink: str) -> Topology:
    """A Column, a re-key, a window."""
    builder = StreamsBuilder()
    (
        builder.stream(source, key=serdes.string(), value=serdes.string())
        .filter(F.col("value") != "skipped", name="kept")
        .group_by(F.col("value"), name="by-value")
        .windowed_by(TimeWindows.of_size(10).grace(0))
        .count(store="counts")
        .to_stream()
        .to(sink, name="out")
    )
    return builder.build()


def get(streams: KafkaStreams, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{streams.http_address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def figures(streams: KafkaStreams) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(get(streams, "/metrics")[1]):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def total(found: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    return sum(value for said, value in found.get(name, []) if labels.items() <= said.items())


def test_figures_are_the_true_counts(app: Application, cluster: Cluster) -> None:
    source, sink = cluster.topic("in", 2), cluster.topic("out", 1)
    repartition = f"{app.id}-by-value-repartition"
    settings: dict[str, Any] = {"http_listen": "127.0.0.1:0", "group_instance_id": "pod-0"}
    with app.running(observed_topology(source, sink), **settings) as streams:
        # 40 records, 10 of them left out by the filter, and 4 that are late behind the re-key.
        records = [
            text(f"k{n % 3}", "skipped" if n % 4 == 0 else f"v{n % 2}", 1_000 + n, n % 2)
            for n in range(40)
        ]
        cluster.write(source, records)
        app.until_processed(streams, source, repartition)
        cluster.write(source, [text("k", "v1", 1_000, 0) for _ in range(4)])
        app.until_processed(streams, source, repartition)
        wait_until(
            lambda: total(figures(streams), f"{TASK}dropped_records_total") == 4,
            60,
            "the late records to be counted",
        )
        found = figures(streams)
        assert set(found) <= {figure.name for figure in FIGURES}
        process = "kafka_streams_stream_thread_metrics_process_total"
        assert total(found, process, task_id="0_0") + total(found, process, task_id="0_1") == 44
        assert total(found, process) == 44 + 34, "each once before and once behind the re-key"
        topic = "kafka_streams_stream_topic_metrics_records_produced_total"
        assert total(found, topic, topic_name=repartition) == 34
        assert total(found, topic, topic_name=sink) == len(cluster.read(sink))
        assert total(found, f"{TASK}dropped_records_total", reason="late") == 4
        assert total(found, "everflow_records_lag") == 0
        assert total(found, "everflow_task_state", state="RUNNING", role="active") == 4
        assert total(found, "everflow_members") in (0, 1), "asked now and then"
        busy = total(found, "everflow_busy_seconds_total")
        spent = total(found, "everflow_batch_seconds_total")
        assert 0 < spent <= busy * 1.001
        phases = {labels["phase"] for labels, _ in found["everflow_batch_seconds_total"]}
        assert phases == {
            *("plan", "read", "decode", "columns", "operators"),
            *("write", "gate", "offsets", "delivery", "commit", "apply"),
        }
        lateness = [v for _, v in found[f"{TASK}record_lateness_max"]]
        assert max(lateness) >= 30
        status = json.loads(get(streams, "/status")[1])
        assert status["state"] == "RUNNING"
        assert {task["task"] for task in status["tasks"]} == {"0_0", "0_1", "1_0", "1_1"}
        assert all(store["bytes"] > 0 for task in status["tasks"] for store in task["stores"])
        assert get(streams, "/live")[0] == get(streams, "/ready")[0] == 200
        assert get(streams, "/topology")[1].startswith("Topologies:")
        view = json.loads(get(streams, "/page/view")[1])
        assert view["verdict"]["tone"] == "good"
        assert {row["task"] for row in view["tasks"]["rows"]} == {"0_0", "0_1", "1_0", "1_1"}
        assert "Assigned 4 tasks" in " ".join(event["text"] for event in view["assignment"])
        assert "by-value-repartition-sink" in get(streams, "/page/drawing")[1]
        # A static member leaves, too, when it is told so: what a pod's hook does at a scale-in.
        asked = urllib.request.Request(f"http://{streams.http_address}/drain", method="POST")
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert answer.status == 202
        wait_until(lambda: streams.state is ClientState.NOT_RUNNING, 60, "its end")
        assert cluster.members(app.id) == 0
    with pytest.raises(urllib.error.URLError):
        get(streams, "/live")


# The stores of a real instance, read by a client over TLS with a token while it runs.


TOKEN = "0123456789abcdef0123456789abcdef"


def served_topology(source: str) -> Topology:
    builder = StreamsBuilder()
    records = builder.stream(source, key=serdes.string(), value=serdes.string()).group_by_key()
    records.count(store="counts")
    records.windowed_by(TimeWindows.of_size(1_000).grace(0)).count(store="windows")
    return builder.build()


def test_a_client_reads_the_committed(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    source = cluster.topic("in", 3)
    authority, certificate, key = (tmp_path / name for name in ("ca", "certificate", "key"))
    made = trustme.CA()
    made.cert_pem.write_to_path(str(authority))
    issued = made.issue_cert("127.0.0.1", "localhost")
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    token = tmp_path / "token"
    token.write_text(TOKEN)
    settings: dict[str, Any] = {
        "query_listen": "127.0.0.1:0",
        "query_token_file": str(token),
        "query_ssl_certificate_location": str(certificate),
        "query_ssl_key_location": str(key),
    }
    records = [text(f"k{n % 7}", "v", 1_000 * (1 + n // 70), n % 3) for n in range(210)]
    with app.running(served_topology(source), **settings) as streams:
        cluster.write(source, records)
        app.until_processed(streams, source)
        assert streams.query_address is not None
        with QueryClient(
            streams.query_address, token=TOKEN, ca=str(authority), timeout=30, patience=30
        ) as client:
            rows = list(client.range("counts"))
            assert sum(count for _, count in rows) == 210
            assert {key for key, _ in rows} == {f"k{n}" for n in range(7)}
            windows = list(client.fetch_all("windows", 3_000, 3_000))
            assert {window for window, _ in windows} == {
                Windowed(f"k{n}", 3_000, 4_000) for n in range(7)
            }
            assert sum(count for _, count in windows) == 70
            assert [store.name for store in client.stores()] == ["counts", "windows"]
            address = streams.query_address
    with (
        QueryClient(address, token=TOKEN, ca=str(authority), patience=0) as late,
        pytest.raises(QueryUnavailableError),
    ):
        late.stores()
