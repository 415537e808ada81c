"""Event time across partitions, threads and instances (note 076): one answer, however it is run."""

import os
import random
from collections import Counter
from typing import Any

import pytest

from everflow import EmitStrategy, KafkaStreams, StreamsBuilder, TimeWindows, Topology, serdes
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
        assert one.key is not None
        assert one.value is not None
        window = (one.key[:-8], int.from_bytes(one.key[-8:], "big"))
        assert window not in found
        found[window] = int.from_bytes(one.value, "big")
    return found


SETTINGS: dict[str, Any] = {"stream_time": "lowest", "stream_time_idle_ms": IDLE_MS}


def closing(records: list[Record]) -> dict[tuple[bytes | None, int], int]:
    """The windows that close at the end of the backlog: by its highest time, as in one thread."""
    highest = max(one.timestamp for one in records)
    found = windows_of(records)
    return {one: count for one, count in found.items() if one[1] + 15 * MINUTE <= highest}


def until_closed(cluster: Cluster, topic: str, streams: KafkaStreams, count: int) -> None:
    wait_until(
        lambda: len(closed(cluster, topic)) >= count,
        60.0,
        "the windows to close",
        lambda: [len(closed(cluster, topic)), streams.metrics()],
    )


def dropped(streams: KafkaStreams) -> float:
    return float(streams.metrics()[DROPPED_RECORDS])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_backlog_behind_a_rekey_loses_nothing(
    app: Application, cluster: Cluster, threads: int
) -> None:
    source, output = cluster.topic("sales", 4), cluster.topic("counts", 4)
    records = backlog(threads, 4)
    cluster.write(source, records)
    wanted, program = closing(records), sales_of_shops(source, output)
    with app.running(program, num_stream_threads=threads, **SETTINGS) as streams:
        until_closed(cluster, output, streams, len(wanted))
        assert dropped(streams) == 0
    assert closed(cluster, output) == wanted


def test_two_instances_lose_nothing_while_one_joins_and_leaves(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("sales", 4), cluster.topic("counts", 4)
    records = backlog(3, 4)
    half = len(records) // 2
    cluster.write(source, records[:half])
    program = sales_of_shops(source, output)
    aside = str(app.folder / "aside")
    with app.running(program, **SETTINGS) as streams:
        with app.running(program, state_dir=aside, **SETTINGS) as second:
            cluster.write(source, records[half:])
            until_closed(cluster, output, streams, len(closing(records[:half])))
            assert second.all_tasks()
            assert dropped(second) == 0
        until_closed(cluster, output, streams, len(closing(records)))
        assert dropped(streams) == 0
    assert closed(cluster, output) == closing(records)


DEADLY = "k7777"


def dies(value: str) -> str:
    if value == DEADLY:
        os._exit(1)
    return value


@pytest.mark.timeout(300)
def test_a_record_that_kills_its_worker_among_held_back_ones_hurts_only_itself(
    app: Application, cluster: Cluster
) -> None:
    source, output, dead = (cluster.topic(name, 4) for name in ("sales", "counts", "dead"))
    records = backlog(5, 4)
    cluster.write(source, records)
    builder = StreamsBuilder()
    sales = builder.stream(source, key=TEXT, value=TEXT)
    shops = sales.map(lambda key, value: (value, key), returns=("string", "string"))
    alive = shops.repartition(name="by-shop").map_values(dies, returns="string")
    windows = TimeWindows.of_size("5 minutes").grace("10 minutes")
    counts = alive.group_by_key().windowed_by(windows)
    final = counts.emit_strategy(EmitStrategy.on_window_close()).count(store="sales")
    final.to_stream().to(output)
    wanted = closing([one for one in records if one.key != DEADLY.encode()])
    settings = {**SETTINGS, "errors_dead_letter_queue_topic_name": dead}
    with app.running(builder.build(), num_stream_threads=2, **settings) as streams:
        wait_until(
            lambda: len(closed(cluster, output)) >= len(wanted),
            240.0,
            "the windows to close",
            lambda: [len(closed(cluster, output)), streams.metrics()],
        )
        assert dropped(streams) == 0
    assert closed(cluster, output) == wanted
    assert [one.value for one in cluster.read(dead)] == [DEADLY.encode()]


def prices_of_items(sales: str, prices: str, output: str) -> Topology:
    """Sales with the price of their item at their time; both are re-keyed."""
    builder = StreamsBuilder()
    rows = builder.stream(prices, key=TEXT, value=TEXT)
    table = (
        rows.map(lambda key, value: (value[:1], value), returns=("string", "string"))
        .repartition(name="prices", key=TEXT, value=TEXT)
        .to_table(store="prices")
    )
    stream = builder.stream(sales, key=TEXT, value=TEXT)
    items = stream.map(lambda key, value: (value[:1], value), returns=("string", "string"))
    items = items.repartition(name="items", key=TEXT, value=TEXT)
    joined = items.left_join(table, lambda sale, price: f"{sale} {price}", returns="string")
    joined.to(output)
    return builder.build()


def test_a_rekeyed_table_is_as_it_was_at_each_record(app: Application, cluster: Cluster) -> None:
    sales, prices, output = (cluster.topic(name, 4) for name in ("sales", "prices", "out"))
    draw = random.Random(5)
    moments = draw.sample(range(BEGIN, BEGIN + HOURS), 3_000)
    written: dict[str, list[Record]] = {sales: [], prices: []}
    last: dict[str, str] = {}
    wanted = Counter[str]()
    for n, ms in enumerate(sorted(moments)):
        item = draw.choice("abcdefg")
        topic = sales if n % 3 else prices
        value = f"{item}{n}"
        written[topic].append(text(f"k{n}", value, ms, draw.randrange(4)))
        if topic == prices:
            last[item] = value
        else:
            wanted[f"{value} {last.get(item)}"] += 1
    for topic, records in written.items():
        cluster.write(topic, records)
    program = prices_of_items(sales, prices, output)
    with app.running(program, num_stream_threads=2, **SETTINGS) as streams:
        wait_until(
            lambda: len(cluster.read(output)) >= len(written[sales]),
            60.0,
            "all sales",
            lambda: [len(cluster.read(output)), streams.metrics()],
        )
    found = Counter((one.value or b"").decode() for one in cluster.read(output))
    assert found == wanted
