"""Event time across partitions, threads and instances (note 076): one answer, however it is run."""

import random
from collections import Counter

import pytest

from everflow import EmitStrategy, StreamsBuilder, TimeWindows, Topology, serdes
from everflow.metrics import DROPPED_RECORDS
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TEXT = serdes.string()
MINUTE = 60_000
HOURS = 2 * 60 * MINUTE
BEGIN = 1_700_000_400_000
"""A whole number of windows behind the epoch."""
RECORDS = 12_000
LATE_MS = 8 * MINUTE
IDLE_MS = 3_000


def sales_of_shops(source: str, output: str) -> Topology:
    """Final counts of windows of five minutes, grace ten, behind a re-key."""
    builder = StreamsBuilder()
    sales = builder.stream(source, key=TEXT, value=TEXT)
    shops = sales.map(lambda key, value: (value, key), returns=("string", "string"))
    windows = TimeWindows.of_size("5 minutes").grace("10 minutes")
    counts = shops.group_by_key(name="by-shop").windowed_by(windows)
    final = counts.emit_strategy(EmitStrategy.on_window_close()).count(store="sales")
    final.to_stream().to(output)
    return builder.build()


def backlog(seed: int, partitions: int) -> list[Record]:
    """Two hours of event time, evenly over the partitions, a tenth of it late by up to eight
    minutes."""
    draw = random.Random(seed)
    found = []
    for n in range(RECORDS):
        ms = BEGIN + n * HOURS // RECORDS
        late = draw.randrange(LATE_MS) if draw.random() < 0.1 else 0
        found.append(
            text(f"k{n}", f"shop{draw.randrange(7)}", max(BEGIN, ms - late), n % partitions)
        )
    return found


def windows_of(records: list[Record]) -> Counter[tuple[bytes | None, int]]:
    size = 5 * MINUTE
    return Counter((one.value, one.timestamp // size * size) for one in records)


def closed(cluster: Cluster, topic: str) -> dict[tuple[bytes | None, int], int]:
    """Shop and start of a window -> how many; each closes once."""
    found: dict[tuple[bytes | None, int], int] = {}
    for one in cluster.read(topic):
        assert one.key is not None and one.value is not None
        window = (one.key[:-8], int.from_bytes(one.key[-8:], "big"))
        assert window not in found
        found[window] = int.from_bytes(one.value, "big")
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_a_backlog_behind_a_rekey_loses_nothing(
    app: Application, cluster: Cluster, threads: int
) -> None:
    source, output = cluster.topic("sales", 4), cluster.topic("counts", 4)
    records = backlog(threads, 4)
    cluster.write(source, records)
    # The end of the backlog closes what it closes in one thread: windows up to the highest time.
    highest = max(one.timestamp for one in records)
    wanted = {
        window: count
        for window, count in windows_of(records).items()
        if window[1] + 15 * MINUTE <= highest
    }
    settings = {"stream_time": "lowest", "stream_time_idle_ms": IDLE_MS}
    program = sales_of_shops(source, output)
    with app.running(program, num_stream_threads=threads, **settings) as streams:
        wait_until(
            lambda: len(closed(cluster, output)) >= len(wanted),
            60.0,
            "the windows to close",
            lambda: [len(closed(cluster, output)), streams.metrics()],
        )
        dropped = float(streams.metrics()[DROPPED_RECORDS])
    assert (dropped, closed(cluster, output)) == (0, wanted)
