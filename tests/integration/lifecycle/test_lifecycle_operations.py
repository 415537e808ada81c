"""What may be asked of a running instance: threads more and fewer, a pause, clean-up, the end of
the whole application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from everflow import ClientState, KafkaStreams, RestoreProgress, StreamsBuilder, Topology, serdes
from everflow.errors import ShutdownRequestedError
from everflow.instance.thread.stream_thread import StreamThread
from everflow.metrics import ALIVE_STREAM_THREADS, LAG
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    last_by_key,
    long,
    text,
    until_failed,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PARTITIONS = 4
WAIT_S = 60.0


def counting(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to(output)
    return builder.build()


def records(first: int, count: int) -> list[Record]:
    return [
        text(f"p{n % PARTITIONS}-{n % 12}", "v", n, n % PARTITIONS)
        for n in range(first, first + count)
    ]


class Restores:
    """How many began, and what they had to read."""

    def __init__(self) -> None:
        self.begun, self.offsets = 0, 0

    def restore_start(self, progress: RestoreProgress) -> None:
        self.begun += 1
        self.offsets += progress.end - progress.start

    def batch_restored(self, progress: RestoreProgress, records: int) -> None: ...
    def restore_end(self, progress: RestoreProgress) -> None: ...
    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None: ...


def threads_of(streams: KafkaStreams) -> list[StreamThread]:
    assert streams._life.instance is not None
    return streams._life.instance.threads


def test_threads_come_and_go_a_pause_holds_and_a_clean_start_restores(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    topology, restores, sent = counting(source, output), Restores(), 0
    streams = app.instance(topology)
    streams.set_global_state_restore_listener(restores)

    def write(count: int) -> None:
        nonlocal sent
        cluster.write(source, records(sent, count))
        sent += count

    try:
        write(100)
        streams.start()
        until_running(streams)
        app.until_processed(streams, source)
        assert (begun := restores.begun) == PARTITIONS
        # Threads: a task moves to the new one and back, and is not restored.
        assert streams.add_stream_thread() == "everflow-stream-1"
        until_running(streams)
        write(100)
        app.until_processed(streams, source)
        assert [len(thread.tasks) for thread in threads_of(streams)] == [2, 2]
        assert streams.metrics()[ALIVE_STREAM_THREADS] == 2
        assert streams.remove_stream_thread(WAIT_S) == "everflow-stream-1"
        until_running(streams)
        write(100)
        app.until_processed(streams, source)
        assert (streams.metrics()[ALIVE_STREAM_THREADS], restores.begun) == (1, begun)
        # A pause: the input waits, the instance is a member and answers.
        streams.pause()
        before = cluster.committed(app.id, source)
        write(100)
        wait_until(
            lambda: streams.metrics()[LAG] == 100,
            WAIT_S,
            "the records to wait",
            lambda: [streams.metrics()],
        )
        assert (
            streams.add_stream_thread() == "everflow-stream-1"
        )  # a rebalance, which the pause survives
        until_running(streams)
        assert (
            cluster.committed(app.id, source),
            cluster.members(app.id),
            streams.is_paused(),
        ) == (before, 1, True)
        assert streams.store("counts").get("p0-0") == len([n for n in range(300) if n % 12 == 0])
        streams.resume()
        app.until_processed(streams, source)
    finally:
        assert streams.close(WAIT_S)
    logged = sum(cluster.ends(f"{app.id}-counts-changelog").values())
    clean_up(app, streams)
    assert restored_by_the_next_start(app, topology, source, lambda: write(100)) >= logged > 0
    counts = {key: long(value) for key, value in last_by_key(cluster.read(output)).items()}
    assert counts == Counter(record.key for record in records(0, sent))


def clean_up(app: Application, streams: KafkaStreams) -> None:
    assert list(app.state.glob("*/*/counts-*"))
    streams.clean_up()
    assert list(app.state.glob("*/*/counts-*")) == []


def restored_by_the_next_start(
    app: Application, topology: Topology, source: str, write: Callable[[], None]
) -> int:
    """After a clean-up it has all to restore: how many offsets it did."""
    again, restored = app.instance(topology), Restores()
    again.set_global_state_restore_listener(restored)
    try:
        again.start()
        write()
        until_running(again)
        app.until_processed(again, source)
    finally:
        assert again.close(WAIT_S)
    return restored.offsets


def test_one_instance_ends_all_of_the_application(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    topology = counting(source, output)
    both = [app.instance(topology, state_dir=str(tmp_path / str(n))) for n in range(2)]
    try:
        for streams in both:
            streams.start()
        wait_until(lambda: cluster.members(app.id) == 2, WAIT_S, "both to be members")
        for streams in both:
            until_running(streams)
        both[1].shut_down_application()
        for streams in both:
            error = until_failed(streams)
            assert isinstance(error, ShutdownRequestedError)
            assert "asked the whole application to shut down" in str(error)
            assert streams.state is ClientState.ERROR
    finally:
        for streams in both:
            streams.close(WAIT_S)
    assert cluster.members(app.id) == 0
