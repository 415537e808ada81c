"""An instance whose batch hangs ends all the same: the worker is killed, the group is left. So it
does where there is no worker to kill."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everflow import StreamsBuilder, serdes
from everflow.instance import life
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text, until_running

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_shutdown_does_not_wait_for_a_batch_that_hangs(
    app: Application,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(life, "HANGS_MS", 2_000.0)
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", "loop")])
    reached = tmp_path / "reached"

    def hangs(value: str) -> str:
        reached.touch()
        threading.Event().wait()  # for ever
        return value

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(hangs, returns="string").to(output)
    streams = app.instance(builder.build())
    streams.start()
    wait_until(reached.exists, 60, "the function to be called")
    began = time.monotonic()
    with caplog.at_level(logging.INFO):
        assert streams.close(timeout=60)
    assert time.monotonic() - began < 40
    assert cluster.members(app.id) == 0
    assert "its batch is cut off (it has not ended within 2 s)" in caplog.text


@contextmanager
def all_places_taken(spark: SparkSession, folder: Path, worker: int) -> Iterator[None]:
    """Somebody else's job has every place of this Spark for as long as the block runs: also that of
    the worker, which is killed."""
    context = spark.sparkContext
    places, over, ready = context.defaultParallelism, folder / "over", folder / "ready"
    ready.mkdir()

    def hold(number: int) -> None:
        (ready / str(number)).touch()
        wait_until(over.exists, 120, "the end of the block")

    job = context.parallelize(range(places), places)
    thread = threading.Thread(target=lambda: job.foreach(hold))
    thread.start()
    try:
        wait_until(lambda: len(list(ready.iterdir())) == places - 1, 60, "the other places")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: len(list(ready.iterdir())) == places, 60, "all places to be taken")
        yield
    finally:
        over.touch()
        thread.join()


@pytest.mark.slow
def test_a_shutdown_does_not_wait_for_a_job_that_spark_has_no_place_for(
    app: Application,
    cluster: Cluster,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(life, "HANGS_MS", 2_000.0)
    monkeypatch.setattr(life, "GIVEN_UP_MS", 1_000.0)
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    pid = tmp_path / "pid"

    def upper(value: str) -> str:
        pid.write_text(str(os.getpid()))
        return value.upper()

    stream.map_values(upper, returns="string").to(output)
    streams = app.instance(builder.build())
    streams.start()
    until_running(streams)
    cluster.write(source, [text("k", "first")])
    app.until_processed(streams, source)
    with all_places_taken(spark, tmp_path, int(pid.read_text())):
        cluster.write(source, [text("k", "late")])
        assert streams._life.instance is not None
        (thread,) = streams._life.instance.threads
        wait_until(lambda: thread.batch_since_ms is not None, 60, "a batch")
        first = thread.batch_since_ms
        wait_until(
            lambda: (
                "batch failed (worker)" in caplog.text
                and thread.batch_since_ms not in (None, first)
            ),
            60,
            "the batch whose worker has died to run again",
        )
        began = time.monotonic()
        assert streams.close(timeout=60)
        assert time.monotonic() - began < 40
        assert streams.state is ClientState.NOT_RUNNING
        assert "has Spark a free slot for their jobs?" in str(streams.error)
        assert cluster.members(app.id) == 0
    assert thread.join(60), "its job runs when there is a place, and its worker is sent away"
    assert [record.value for record in cluster.read(output)] == [b"FIRST"]
    app.run_through(builder.build(), source)
    assert [record.value for record in cluster.read(output)] == [b"FIRST", b"LATE"]
