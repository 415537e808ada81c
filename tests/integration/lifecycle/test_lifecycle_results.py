"""Every operator, end to end on a real broker: what comes out equals a plain loop over what went
in."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict

import pytest
from pyspark.sql import functions as F

from everflow import SessionWindows, StreamsBuilder, TimeWindows, Windowed, agg, serdes
from everflow.metrics import DROPPED_RECORDS
from integration.lifecycle.lifecycle_cluster import (
    GUARANTEES,
    Application,
    Cluster,
    Record,
    in_json,
    last_by_key,
    long,
    text,
)

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.parametrize("guarantee", GUARANTEES),
]

KEYS = ("a", "b", "c", "d", "e")
SALE = "shop string, amount bigint"


def sales(n: int = 200) -> list[Record]:
    """Sales of five customers over two partitions; a customer's records share a partition. Some
    times are out of order."""
    return [
        in_json(
            KEYS[i % 5],
            {"shop": f"shop-{i % 3}", "amount": i},
            timestamp=10_000 + 1_000 * i - (2_500 if i % 7 == 0 else 0),
            partition=i % 5 % 2,
        )
        for i in range(n)
    ]


def sale(record: Record) -> tuple[str, str, int]:
    """Customer, shop, amount of a record."""
    assert record.key is not None
    value = serdes.json(SALE).decode(record.value)
    return record.key.decode(), value["shop"], value["amount"]


def test_count(app: Application, cluster: Cluster, guarantee: str) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    records = [*sales(), Record(None, b"{}"), Record(b"a", None)]
    cluster.write(source, records)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(SALE))
    stream.group_by_key().count(store="counts").to_stream().to(output)
    app.run_through(builder.build(), source, processing_guarantee=guarantee)
    expected = Counter(r.key for r in records if r.key is not None and r.value is not None)
    assert {k: long(v) for k, v in last_by_key(cluster.read(output)).items()} == expected
    changelog = last_by_key(cluster.read(f"{app.id}-counts-changelog"))
    assert {k: long(v) for k, v in changelog.items()} == expected


def test_a_backlog_behind_a_rekey_is_not_late(
    app: Application, cluster: Cluster, guarantee: str
) -> None:
    """Both partitions are in order and as old as each other: nothing of one may come before all of
    the other."""
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(
        source,
        [
            in_json("x", {"shop": f"shop-{i % 3}", "amount": i}, 5_000 * i, i % 2)
            for i in range(1, 1_441)
        ],
    )
    builder = StreamsBuilder()
    rekeyed = builder.stream(source, value=serdes.json(SALE)).group_by(
        F.col("value.shop"), name="by-shop"
    )
    windows = TimeWindows.of_size("10 minutes").grace("1 minute")
    rekeyed.windowed_by(windows).count(store="counts").to_stream().to(output)
    with app.running(builder.build(), processing_guarantee=guarantee) as streams:
        app.until_processed(streams, source, f"{app.id}-by-shop-repartition")
        assert streams.metrics()[DROPPED_RECORDS] == 0
    found = last_by_key(cluster.read(output))
    assert sum(long(value) or 0 for value in found.values()) == 1_440


def test_windowed_aggregate(app: Application, cluster: Cluster, guarantee: str) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, sales())
    windows = TimeWindows.of_size("10 seconds").grace("1 minute")
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(SALE))
    table = (
        stream.group_by_key()
        .windowed_by(windows)
        .aggregate(
            store="totals",
            n=agg.count(),
            total=agg.sum("value.amount"),
            high=agg.max("value.amount"),
        )
    )
    table.to_stream().to(output)
    with app.running(builder.build(), processing_guarantee=guarantee) as streams:
        app.until_processed(streams, source)
        totals = streams.store("totals")
        kept = {
            (at.key, at.start): tuple(result.values())
            for at, result in totals.fetch_all(0, 1 << 62)
        }
        of_one = [
            (at.start, tuple(result.values()))
            for at, result in totals.backward_fetch("a", 0, 1 << 62)
        ]
    expected: dict[tuple[str, int], tuple[int, int, int]] = {}
    for record in sales():
        customer, _, amount = sale(record)
        place = customer, record.timestamp // 10_000 * 10_000
        n, total, high = expected.get(place, (0, 0, 0))
        expected[place] = n + 1, total + amount, max(high, amount)
    key, value = (
        serdes.time_windowed(serdes.string(), 10_000),
        serdes.json("n bigint, total bigint, high bigint"),
    )
    found = {}
    for raw, data in last_by_key(cluster.read(output)).items():
        window, result = key.decode(raw), value.decode(data)
        found[window.key, window.start] = result["n"], result["total"], result["high"]
    assert found == expected
    # Stores keep windows for size + grace behind the stream time of their task.
    assert set(KEYS) == {key for key, _ in kept}
    assert kept.items() <= expected.items()
    assert of_one == sorted(
        ((start, result) for (key, start), result in kept.items() if key == "a"), reverse=True
    )


def at_minute(number: int) -> int:
    """A record time in ms; never 0, which a producer takes for now."""
    return (1_000 + number) * 60_000


def in_minutes(session: Windowed) -> tuple[str, int, int]:
    """Key, start and end of a session whose times are of `at_minute`."""
    return session.key, session.start // 60_000 - 1_000, session.end // 60_000 - 1_000


def test_sessions_over_a_restart_without_state(
    app: Application, cluster: Cluster, guarantee: str
) -> None:
    """The second half of the records meets, extends and merges sessions that were restored from the
    changelog."""
    source, output = cluster.topic("in"), cluster.topic("out")
    halves = (0, 3, 20, 23, 60), (12, 55, 66, 100, 38)
    first = [
        text(key, "", at_minute(at), i) for i, key in enumerate(("a", "b")) for at in halves[0]
    ]
    second = [
        text(key, "", at_minute(at), i) for i, key in enumerate(("a", "b")) for at in halves[1][i:]
    ]
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    sessions = stream.group_by_key().windowed_by(
        SessionWindows.of_inactivity_gap("10 minutes").grace("1 hour")
    )
    sessions.count(store="visits").to_stream().to(output)
    cluster.write(source, first)
    app.run_through(builder.build(), source, processing_guarantee=guarantee)
    shutil.rmtree(app.state)
    cluster.write(source, second)
    with app.running(builder.build(), processing_guarantee=guarantee) as streams:
        app.until_processed(streams, source)
        visits = streams.store("visits")
        kept = {in_minutes(at): n for at, n in visits.all()}
        of_b = [(in_minutes(at)[1], n) for at, n in visits.backward_fetch("b")]
        touching = [
            (in_minutes(at)[1], n)
            for at, n in visits.find_sessions("a", at_minute(24), at_minute(56))
        ]
        alone = visits.fetch_session("b", at_minute(38), at_minute(38))
    # 12 joins 0-3 and 20-23 of a; b has no such record. 38 is late for neither: its session closes
    # at 38 + 10 + 60.
    expected = {("a", 0, 23): 5, ("a", 55, 66): 3, ("a", 100, 100): 1, ("a", 38, 38): 1}
    expected |= {
        ("b", 0, 3): 2,
        ("b", 20, 23): 2,
        ("b", 55, 66): 3,
        ("b", 100, 100): 1,
        ("b", 38, 38): 1,
    }
    serde = serdes.session_windowed(serdes.string())
    found = {
        in_minutes(serde.decode(raw)): long(data)
        for raw, data in last_by_key(cluster.read(output)).items()
    }
    assert found == expected
    # A store shows sessions that end less than gap + grace before stream time.
    assert kept == {place: count for place, count in expected.items() if place[2] > 100 - 70}
    assert of_b == [(100, 1), (55, 3), (38, 1)]
    assert touching == [(38, 1), (55, 3)]
    assert alone == 1


def test_rekeyed_aggregate(app: Application, cluster: Cluster, guarantee: str) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, sales())
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(SALE))
    stream.group_by(F.col("value.shop"), name="by-shop").count(store="by-shop").to_stream().to(
        output
    )
    app.run_through(
        builder.build(), source, f"{app.id}-by-shop-repartition", processing_guarantee=guarantee
    )
    expected = Counter(sale(record)[1].encode() for record in sales())
    assert {k: long(v) for k, v in last_by_key(cluster.read(output)).items()} == expected


def test_table(app: Application, cluster: Cluster, guarantee: str) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    records = [
        text(f"k{i % 7}", None if i % 11 == 0 else f"v{i}", 1 + i, i % 7 % 2) for i in range(120)
    ]
    cluster.write(source, records)
    builder = StreamsBuilder()
    table = builder.table(source, store="latest", key=serdes.string(), value=serdes.string())
    table.map_values(F.upper(F.col("value"))).to_stream().to(output)
    with app.running(builder.build(), processing_guarantee=guarantee) as streams:
        app.until_processed(streams, source)
        seen = dict(streams.store("latest").all())
        latest = streams.store("latest")
        assert latest.get("k3") == seen["k3"]
        assert list(latest.range("k2", "k4")) == [(key, seen[key]) for key in ("k2", "k4", "k3")], (
            "by partition"
        )
        assert dict(latest.prefix_scan("k")) == dict(latest.reverse_all()) == seen
        assert latest.approximate_num_entries() == len(seen)
        lags = streams.all_local_store_partition_lags()["latest"]
        assert {partition: info.lag for partition, info in lags.items()} == {0: 0, 1: 0}
    expected = last_by_key(records)
    assert {k.encode(): v.encode() for k, v in seen.items()} == expected
    assert last_by_key(cluster.read(output)) == {
        k: v.upper() for k, v in expected.items() if v is not None
    }


def test_merge_follows_record_time(app: Application, cluster: Cluster, guarantee: str) -> None:
    """Both topics are full before the start, so the task must take the smaller head each time,
    whatever the batches are."""
    left, right, output = (
        cluster.topic("left", 1),
        cluster.topic("right", 1),
        cluster.topic("out", 1),
    )
    times = {left: range(30, 3_000, 30), right: range(10, 3_000, 70)}
    for topic, at in times.items():
        cluster.write(topic, [text("k", f"{topic}@{t}", t) for t in at])
    builder = StreamsBuilder()
    one = builder.stream(left, key=serdes.string(), value=serdes.string())
    other = builder.stream(right, key=serdes.string(), value=serdes.string())
    one.merge(other).to(output)
    app.run_through(
        builder.build(), left, right, processing_guarantee=guarantee, max_batch_records=40
    )
    expected = sorted((t, f"{topic}@{t}".encode()) for topic, at in times.items() for t in at)
    assert [r.value for r in cluster.read(output)] == [value for _, value in expected]


def test_branch(app: Application, cluster: Cluster, guarantee: str) -> None:
    source = cluster.topic("in")
    big, even, rest = (cluster.topic(name) for name in ("big", "even", "rest"))
    cluster.write(source, sales())
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(SALE))
    branches = stream.branch(
        big=F.col("value.amount") > 150, even=F.col("value.amount") % 2 == 0, default="rest"
    )
    for name, topic in (("big", big), ("even", even), ("rest", rest)):
        branches[name].map_values(F.col("value.amount")).to(topic)
    app.run_through(builder.build(), source, processing_guarantee=guarantee)
    expected: dict[str, list[int]] = defaultdict(list)
    for record in sales():
        amount = sale(record)[2]
        expected[big if amount > 150 else even if amount % 2 == 0 else rest].append(amount)
    for topic in (big, even, rest):
        assert sorted(long(r.value) or 0 for r in cluster.read(topic)) == sorted(expected[topic])


def test_dynamic_topic(app: Application, cluster: Cluster, guarantee: str) -> None:
    source = cluster.topic("in")
    targets = [cluster.topic(f"shop-{i}") for i in range(3)]
    cluster.write(source, sales())
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(SALE))
    stream.to(F.concat(F.lit(f"{cluster.prefix}-"), F.col("value.shop")))
    app.run_through(builder.build(), source, processing_guarantee=guarantee)
    for number, topic in enumerate(targets):
        expected = sorted(sale(r) for r in sales() if sale(r)[1] == f"shop-{number}")
        assert sorted(sale(r) for r in cluster.read(topic)) == expected


def test_python_functions(app: Application, cluster: Cluster, guarantee: str) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, sales())
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(SALE))
    words = stream.filter(lambda value: value["amount"] % 3 != 0).flat_map(
        lambda key, value: [(value["shop"], value["amount"]), (key, 1)],
        returns=("string", "bigint"),
    )
    words.group_by_key(name="words").aggregate(
        initializer=lambda: [0, 0],
        aggregator=lambda key, value, total: [total[0] + 1, total[1] + value],
        returns="array<bigint>",
        store="words",
    ).to_stream().to(output)
    app.run_through(
        builder.build(), source, f"{app.id}-words-repartition", processing_guarantee=guarantee
    )
    expected: dict[bytes, list[int]] = defaultdict(lambda: [0, 0])
    for record in sales():
        customer, shop, amount = sale(record)
        if amount % 3 != 0:
            for key, value in ((shop, amount), (customer, 1)):
                expected[key.encode()][0] += 1
                expected[key.encode()][1] += value
    value_serde = serdes.from_type(serdes.json("x array<bigint>").type.field(0).type)
    found = {
        key: value_serde.decode(value) for key, value in last_by_key(cluster.read(output)).items()
    }
    assert found == expected
