"""Calls to services by an instance (note 070): a slow service makes batches smaller and nothing is
called twice; at the end calls are cut short, and the next instance goes on there."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everflow import StreamsBuilder, Topology, serdes
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]
TEXT = serdes.string()
WAIT_S = 60.0
SOON_S = 25.0
"""Less than what a batch that hangs is given at an end."""


async def pause(ms: float) -> None:
    """Of a service that takes its time."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(ms / 1000, passed.set)
    await passed.wait()


def asking(source: str, output: str, asked: Callable[[str], Any], **calls: Any) -> Topology:
    builder = StreamsBuilder()
    values = builder.stream(source, key=TEXT, value=TEXT)
    values.map_values(asked, returns="string", **calls).to(output)
    return builder.build()


def values(cluster: Cluster, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in cluster.read(topic)]


def test_a_slow_service_makes_batches_smaller_and_is_asked_once_for_each_record(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, output, asks = cluster.topic("in"), cluster.topic("out", 1), tmp_path / "asks"

    async def asked(value: str) -> str:
        with asks.open("a") as file:
            file.write(f"{value}\n")
        await pause(50)
        return value

    sent = {partition: [f"{partition}-{n}" for n in range(40)] for partition in (0, 1)}
    for partition, numbered in sent.items():
        cluster.write(source, [text(one, one, partition=partition) for one in numbered])
    topology = asking(source, output, asked, concurrency=4)
    with app.running(topology, max_batch_ms=200) as streams:
        app.until_processed(streams, source)
    found = values(cluster, output)
    for numbered in sent.values():
        assert [value for value in found if value in set(numbered)] == numbered
    assert Counter(asks.read_text().split()) == Counter(found)


def test_a_call_outlives_batches_while_others_begin_and_are_committed(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, output, asks = cluster.topic("in"), cluster.topic("out", 1), tmp_path / "asks"
    release = tmp_path / "release"

    async def asked(value: str) -> str:
        with asks.open("a") as file:
            file.write(f"{value}\n")
        while value == "slow" and not release.exists():
            await pause(5)
        return value

    def has(*wanted: str) -> Callable[[], bool]:
        return lambda: sorted(values(cluster, output)) == sorted(wanted)

    def was_asked(value: str) -> Callable[[], bool]:
        return lambda: asks.exists() and value in asks.read_text().split()

    topology = asking(source, output, asked, concurrency=8, timeout="2 minutes")
    with app.running(topology):
        cluster.write(source, [text("k", "slow"), text("k", "a", partition=1)])
        wait_until(has("a"), WAIT_S, "the other partition's record")
        cluster.write(source, [text("k", "behind")])
        wait_until(was_asked("behind"), WAIT_S, "the call of a record that came meanwhile")
        cluster.write(source, [text("k", "b", partition=1)])
        wait_until(has("a", "b"), WAIT_S, "the other partition's next record")
        release.touch()
        wait_until(has("a", "b", "slow", "behind"), WAIT_S, "all records")
    found = values(cluster, output)
    assert found.index("slow") < found.index("behind")
    assert sorted(asks.read_text().split()) == ["a", "b", "behind", "slow"]


@pytest.mark.parametrize("awaited", [True, False])
def test_at_the_end_calls_are_cut_short_and_the_next_instance_makes_them(
    app: Application, cluster: Cluster, tmp_path: Path, awaited: bool
) -> None:
    source, output, begun = cluster.topic("in"), cluster.topic("out", 1), tmp_path / "begun"

    async def hangs(value: str) -> str:
        if value == "hangs":
            begun.touch()
            await asyncio.Event().wait()
        return value

    def hangs_on_a_thread(value: str) -> str:
        if value == "hangs":
            begun.touch()
            threading.Event().wait(600)
        return value

    async def answers(value: str) -> str:
        return value.upper()

    cluster.write(source, [text("k", value) for value in ("a", "b", "hangs", "c")])
    cluster.write(source, [text("k", "d", partition=1)])
    slow = hangs if awaited else hangs_on_a_thread
    with app.running(asking(source, output, slow, concurrency=8, timeout="2 minutes")) as streams:
        wait_until(begun.exists, WAIT_S, "the call that hangs")
        # Else the rebalance of the end may meet their commit, and they are the next instance's.
        wait_until(lambda: len(values(cluster, output)) == 3, WAIT_S, "what was answered")
        began = time.monotonic()
        assert streams.close(WAIT_S)
        assert time.monotonic() - began < SOON_S
    committed = {at: offset for at, (offset, _) in cluster.committed(app.id, source).items()}
    assert committed == {0: 2, 1: 1}
    assert sorted(values(cluster, output)) == ["a", "b", "d"]
    app.run_through(asking(source, output, answers, concurrency=8), source)
    assert sorted(values(cluster, output)) == ["C", "HANGS", "a", "b", "d"]


def test_a_call_that_hangs_does_not_keep_another_thread_from_its_task(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, output, begun = cluster.topic("in"), cluster.topic("out", 1), tmp_path / "begun"

    async def hangs(value: str) -> str:
        if value == "hangs":
            with begun.open("a") as file:
                file.write("begun\n")
            await asyncio.Event().wait()
        return value

    cluster.write(source, [text("k", value) for value in ("a", "hangs", "c")])
    with app.running(asking(source, output, hangs, concurrency=8, timeout="2 minutes")) as streams:
        wait_until(begun.exists, WAIT_S, "the call that hangs")
        began = time.monotonic()
        assert streams.add_stream_thread() == "everflow-stream-1"
        cluster.write(source, [text("k", "d", partition=1)])
        wait_until(lambda: sorted(values(cluster, output)) == ["a", "d"], WAIT_S, "both tasks")
        assert time.monotonic() - began < WAIT_S
        # It goes on with its thread, or was cut short by the rebalance and is made again.
        assert begun.read_text().count("begun") in (1, 2)
