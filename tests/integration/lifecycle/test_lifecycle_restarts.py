"""An instance over its life: states, restarts, what a restart finds again, what it refuses."""

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    EmitStrategy,
    KafkaStreams,
    LogAndSkipOnInvalidTimestamp,
    RecordContext,
    StreamsBuilder,
    TimeWindows,
    Topology,
    UsePartitionTimeOnInvalidTimestamp,
    metrics,
    serdes,
)
from everflow.errors import (
    InternalTopicError,
    OffsetsExpiredError,
    StoreLayoutError,
    TableLoadError,
)
from everflow.instance.client_state import ClientState
from everflow.instance.copies import known_copies
from everflow.instance.restore.listeners import RestoreProgress
from everflow.instance.tasks.task import TaskRole
from everflow.kafka.admin import ClusterAdmin
from everflow.metrics import DROPPED_RECORDS, ENFORCED_PROCESSING, LAG
from everflow.protocol.messages import parse_metadata
from everflow.records import TaskId, TopicPartition
from everflow.snapshots.query_errors import InvalidStateStoreError, StateElsewhereError
from everflow.spark.session import get_session
from everflow.state.lmdb_store import LmdbStore
from everflow.testing import TopologyTestDriver, wait_until
from integration.lifecycle.lifecycle_cluster import (
    CAUGHT_UP_S,
    Application,
    Cluster,
    Record,
    counting,
    in_json,
    text,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SECOND = 1_000


def words(n: int, first: int = 0) -> list[Record]:
    """Records of seven keys over two partitions, a second apart."""
    return [
        text(f"w{i % 7}", f"v{i}", 10_000 + i * SECOND, i % 7 % 2) for i in range(first, first + n)
    ]


def counts_of(records: list[Record]) -> dict[bytes | None, int]:
    return Counter(record.key for record in records)


def share(streams: KafkaStreams) -> dict[str, int]:
    """Counts of the keys that the instance has; none while no task is here."""
    try:
        return dict(streams.store("counts").all())
    except InvalidStateStoreError:
        return {}


def by_number(key: bytes, partitions: int) -> int:
    return int(key[1:]) % partitions


def hosts(streams: KafkaStreams, keys: Iterable[str]) -> dict[str, str | None]:
    """Key -> the instance that has it, as this one knows."""
    return {
        key: streams.query_metadata_for_key("counts", key, by_number).active_host for key in keys
    }


def copies(streams: KafkaStreams) -> dict[str, int]:
    """Counts of all keys, of tasks and of copies that are whole; none while one is not."""
    try:
        return dict(streams.store("counts", stale=True, max_lag=0).all())
    except InvalidStateStoreError:
        return {}


def consumed(streams: KafkaStreams) -> float:
    return float(streams.metrics().get(metrics.RECORDS_CONSUMED, 0))


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[str, RestoreProgress]] = []

    def restore_start(self, progress: RestoreProgress) -> None:
        self.calls.append(("start", progress))

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        self.calls.append(("batch", progress))

    def restore_end(self, progress: RestoreProgress) -> None:
        self.calls.append(("end", progress))

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        self.calls.append(("suspended", progress))


def test_a_restart_goes_on_where_the_last_one_committed(app: Application, cluster: Cluster) -> None:
    """At least once; exactly once `test_worker_failures` and the families have it."""
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(70))
    topology = counting(source, output)
    app.settings = {"processing_guarantee": "at_least_once"}
    with app.running(topology) as streams:
        app.until_processed(streams, source)
        assert streams.metrics()[metrics.REBALANCES] == 1, (
            "the changelog that this start created must not cost another rebalance"
        )
    before = len(cluster.read(output))
    with app.running(topology) as streams:
        cluster.write(source, words(7, first=70))
        app.until_processed(streams, source)
        wait_until(lambda: consumed(streams) > 0, 10, "the batch to be counted")
    assert consumed(streams) == 7, "records before the committed offset were read again"
    assert cluster.longs(output) == counts_of(words(77))
    assert len(cluster.read(output)) - before <= 7


def test_a_quiet_store_stays_fresh_and_state_without_a_role_is_removed(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 13: no record comes, and still the stores say that they follow their changelogs."""
    monkeypatch.setattr(known_copies, "NOTE_PERIOD_MS", 500.0)
    monkeypatch.setattr(known_copies, "COLLECT_PERIOD_MS", 100.0)
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(70))
    topology = counting(source, output)
    folder, nobodys = app.state / app.id, TaskId(0, 9)
    app.run_through(topology, source)
    shutil.copytree(folder / "0_0", folder / str(nobodys))
    with app.running(topology, state_cleanup_delay_ms=1_000) as streams:
        stores = [
            LmdbStore.open(path) for task in ("0_0", "0_1") for path in (folder / task).iterdir()
        ]
        before = [store.meta() for store in stores]
        wait_until(
            lambda: all(
                store.meta().updated_ms > at.updated_ms + 1_000
                for store, at in zip(stores, before, strict=True)
            ),
            20,
            "the stores to be fresh",
            lambda: [str(store.meta()) for store in stores],
        )
        assert [store.position for store in stores] == [at.position for at in before]
        assert consumed(streams) == 0
        wait_until(
            lambda: not (folder / str(nobodys)).exists(), 20, "the state of no task to be removed"
        )
        wait_until(lambda: not list((folder / ".removed").iterdir()), 20, "its files to be deleted")
        cluster.write(source, words(7, first=70))
        app.until_processed(streams, source)
    assert cluster.longs(output) == counts_of(words(77))


def test_a_deleted_state_folder_is_restored_from_a_log(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(700))
    topology = counting(source, output)
    with app.running(topology, max_batch_records=200) as streams:
        app.until_processed(streams, source)
        before = dict(streams.store("counts").all())
    outputs = cluster.read(output)
    shutil.rmtree(app.state)

    listener = Listener()
    streams = app.instance(topology)
    streams.set_global_state_restore_listener(listener)
    try:
        streams.start()
        until_running(streams)
        assert dict(streams.store("counts").all()) == before
        assert {key.encode(): count for key, count in before.items()} == counts_of(words(700))
    finally:
        assert streams.close(60.0)
    assert cluster.read(output) == outputs, "restoring must not write results again"
    changelog = len(cluster.read(f"{app.id}-counts-changelog"))
    for task in ("0_0", "0_1"):
        calls = [
            (kind, progress) for kind, progress in listener.calls if str(progress.task) == task
        ]
        assert [kind for kind, _ in calls][:1] == ["start"]
        assert [kind for kind, _ in calls][-1:] == ["end"]
        assert {kind for kind, _ in calls[1:-1]} == {"batch"}
        assert calls[-1][1].fraction == 1.0
        assert calls[0][1].position == 0
    assert sum(progress.records for kind, progress in listener.calls if kind == "end") == changelog


def test_what_a_new_aggregate_can_do(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    """The cures that EF-STORE-LAYOUT names, and the one that it says is none."""
    source = cluster.topic("in", 1)
    cluster.write(source, [text("k", "v")] * 3)

    def program(returns: str, step: int, store: str = "seen") -> Topology:
        builder = StreamsBuilder()
        grouped = builder.stream(source, key=serdes.string(), value=serdes.string()).group_by_key()
        grouped.aggregate(
            store=store, initializer=int, aggregator=lambda _, seen: seen + step, returns=returns
        )
        return builder.build()

    with app.running(program("bigint", 1)) as streams:
        app.until_processed(streams, source)
        changed = app.instance(program("double", 1), state_dir=str(tmp_path / "beside"))
        with pytest.raises(StoreLayoutError, match=r"before: value bigint\n +now:    value double"):
            changed.start()
        assert changed.state is ClientState.ERROR
        cluster.write(source, [text("k", "v")])
        app.until_processed(streams, source)
        assert (streams.state, dict(streams.store("seen").all())) == (ClientState.RUNNING, {"k": 4})
    before = cluster.committed(app.id, source), cluster.read(f"{app.id}-seen-changelog")
    with pytest.raises(StoreLayoutError, match="seen"):
        app.instance(program("double", 1)).start()
    assert before == (cluster.committed(app.id, source), cluster.read(f"{app.id}-seen-changelog"))
    with pytest.raises(InternalTopicError, match="seen-anew-changelog"):
        app.instance(program("double", 1, "seen-anew")).start()
    cluster.write(source, [text("k", "v")])
    with app.running(program("bigint", 10)) as streams:  # another function of the same type
        app.until_processed(streams, source)
        assert dict(streams.store("seen").all()) == {"k": 14}
    own = Application(Cluster(cluster.bootstrap, f"{cluster.prefix}-own"), tmp_path / "own", {})
    with own.running(program("double", 1)) as streams:
        own.until_processed(streams, source)
        assert dict(streams.store("seen").all()) == {"k": 5.0}
    own.cluster.close()


def test_a_new_store_comes_if_asked_a_lost_one_does_not(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(20))

    def program(*added: str) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(source, key=serdes.string(), value=serdes.string())
        for name in added:
            again = stream.repartition(name=f"by-{name}")
            again.group_by_key().count(store=name)
        stream.group_by_key().count(store="seen").to_stream().to(output)
        return builder.build()

    app.run_through(program(), source)
    with pytest.raises(InternalTopicError) as error:
        app.instance(program("extra")).start()
    new = [f"{app.id}-extra-changelog", f"{app.id}-by-extra-repartition"]
    assert all(topic in str(error.value) for topic in new)
    assert not set(new) & set(cluster.topics())
    assert "--create-new-topics" in str(error.value)
    with app.running(program("extra"), create_new_topics=True) as streams:
        cluster.write(source, words(20))
        app.until_processed(streams, source)
        counted = Counter((word.key or b"").decode() for word in words(20))
        twice = {key: 2 * count for key, count in counted.items()}
        assert dict(streams.store("seen").all()) == twice
        extra = streams.store("extra")
        wait_until(lambda: sum(dict(extra.all()).values()) == 20, 30, "the new store's counts")
    for lost in new:
        cluster.delete(lost)
        with pytest.raises(InternalTopicError, match="deleted") as error:
            app.instance(program("extra"), create_new_topics=True).start()
        assert lost in str(error.value)


def test_an_input_made_again_is_told_and_read_from_0(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(20))
    topology = counting(source, output)
    app.run_through(topology, source)
    cluster.delete(source)
    assert cluster.topic("in") == source
    with pytest.raises(OffsetsExpiredError) as error:
        app.instance(topology).start()
    said = str(error.value)
    assert re.search(rf"created again .*: {source} \(", said)
    assert "expired" not in said
    # `errors.read_again`, with the state kept: the stores on disk know offsets of the old topic,
    # behind the end of the new one (note 064).
    beginnings = {TopicPartition(source, partition): 0 for partition in range(2)}
    ClusterAdmin({"bootstrap.servers": cluster.bootstrap}).commit_offsets(app.id, beginnings, "")
    cluster.write(source, words(5, first=20))
    app.run_through(topology, source)
    assert cluster.longs(output) == counts_of(words(25))


def test_internal_topics_look_like_kafka_streams(app: Application, cluster: Cluster) -> None:
    """Names, partitions and settings of reference 1.1."""
    source, output = cluster.topic("in", 3), cluster.topic("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="whole").to_stream().to(output)
    windows = TimeWindows.of_size("1 hour").grace("10 minutes")
    stream.group_by_key().windowed_by(windows).count(store="hourly")
    stream.repartition(name="five", partitions=5).group_by_key().count(store="fives")
    with app.running(builder.build(), windowstore_changelog_additional_retention_ms=86_400_000):
        pass
    own = {name: count for name, count in cluster.topics().items() if name not in (source, output)}
    assert own == {
        f"{app.id}-whole-changelog": 3,
        f"{app.id}-hourly-changelog": 3,
        f"{app.id}-five-repartition": 5,
        f"{app.id}-fives-changelog": 5,
    }
    plain = cluster.config(f"{app.id}-whole-changelog")
    assert plain["cleanup.policy"] == "compact"
    hourly = cluster.config(f"{app.id}-hourly-changelog")
    assert set(hourly["cleanup.policy"].split(",")) == {"compact", "delete"}
    assert int(hourly["retention.ms"]) == (3_600 + 600 + 86_400) * SECOND
    rekeyed = cluster.config(f"{app.id}-five-repartition")
    assert rekeyed["cleanup.policy"] == "delete"
    assert rekeyed["retention.ms"] == "-1"
    assert rekeyed["segment.bytes"] == str(50 << 20)
    assert {cluster.config(name)["message.timestamp.type"] for name in own} == {"CreateTime"}


def test_a_repartition_topic_is_purged_up_to_the_commit(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(100))
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.repartition(name="again").group_by_key().count(store="counts").to_stream().to(output)
    topic = f"{app.id}-again-repartition"
    topology = builder.build()
    with app.running(topology, repartition_purge_interval_ms=200) as streams:
        app.until_processed(streams, source, topic)

        def purged() -> bool:
            committed = {p: offset for p, (offset, _) in cluster.committed(app.id, topic).items()}
            return cluster.starts(topic) == committed

        wait_until(purged, 60, "the log of the repartition topic to begin at the committed offsets")
        cluster.write(source, words(10, first=100))
        app.until_processed(streams, source, topic)
    with app.running(topology):
        pass
    assert cluster.longs(output) == counts_of(words(110))


def test_two_instances_share_and_hand_over_partitions(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in", 4), cluster.topic("out")

    def batch(number: int) -> list[Record]:
        return [text(f"w{i % 23}", f"{number}", 10_000 + i, i % 23 % 4) for i in range(92)]

    topology = counting(source, output)

    def running(name: str) -> AbstractContextManager[KafkaStreams]:
        return app.running(
            topology,
            state_dir=str(app.folder / name),
            application_server=f"{name}:1",
            num_standby_replicas=1,
        )

    def until(condition: Callable[[KafkaStreams], object], what: str) -> None:
        for streams in both:
            wait_until(partial(condition, streams), 30, what, partial(share, streams))

    with running("first") as first:
        cluster.write(source, batch(1))
        app.until_processed(first, source)
        with running("second") as second:
            both = (first, second)
            until(lambda one: 0 < len(share(one)) < 23, "a share of the keys each")
            for streams in both:
                until_running(streams)
            cluster.write(source, batch(2))
            app.until_processed(None, source)
            counted = counts_of([*batch(1), *batch(2)])
            total = {(key or b"").decode(): n for key, n in counted.items()}
            until(lambda one: copies(one) == total, "the stores and their copies to have followed")
            mine, others = map(share, both)
            assert not set(mine) & set(others), "a key may be active on one instance only"
            assert {**mine, **others} == total
            expected = dict.fromkeys(mine, "first:1") | dict.fromkeys(others, "second:1")
            until(lambda one: hosts(one, total) == expected, "the host map")
            with pytest.raises(StateElsewhereError, match="A copy") as raised:
                first.store("counts", partitioner=by_number).get(next(iter(others)))
            assert raised.value.host == "second:1"
            until(lambda one: consumed(one) > 0, "each to have processed its share")
        cluster.write(source, batch(3))
        app.until_processed(first, source)
        assert len(dict(first.store("counts").all())) == 23
    assert cluster.longs(output) == counts_of([*batch(1), *batch(2), *batch(3)])


def test_metadata_is_kept_for_partitions_that_stay(app: Application, cluster: Cluster) -> None:
    """A task commits both inputs with one batch id and stream time, records or not."""
    left, right = cluster.topic("left", 1), cluster.topic("right", 1)
    cluster.write(left, [text("k", "x", 20_000)])
    builder = StreamsBuilder()
    one, other = (
        builder.stream(topic, key=serdes.string(), value=serdes.string()) for topic in (left, right)
    )
    one.merge(other).group_by_key().windowed_by(TimeWindows.of_size("10 seconds")).count(
        store="windows"
    )
    app.run_through(builder.build(), left)
    assert cluster.members(app.id) == 0, "it must leave its group at once, not time out"
    ((end, first),) = cluster.committed(app.id, left).values()
    ((unmoved, second),) = cluster.committed(app.id, right).values()
    assert (end, unmoved) == (1, 0)
    assert first == second
    metadata = parse_metadata(first)
    assert list(metadata.stream_times.values()) == [20_000]
    stores = {name: kept for name, kept in metadata.layouts.items() if name[0] != "*"}
    assert stores == {"windows": ["window of 10000 ms", "string", "bigint (count)"]}


# Tables that are read whole, of topics and DataFrames, and lookup joins that wait for entries.


KEY, ORDER, CITY = serdes.string(), serdes.json("who string, n bigint"), serdes.json("city string")
ORDER_CITY = serdes.json("n bigint, city string")
PEOPLE = [f"w{number}" for number in range(9)]


def global_program(orders: str, cities: str, out: str) -> Topology:
    builder = StreamsBuilder()
    table = builder.global_table(cities, key=KEY, value=CITY, store="cities")
    stream = builder.stream(orders, key=KEY, value=ORDER)
    stream.left_join(table, on=F.col("value.who"), n=F.col("left.n"), city=F.col("right.city")).to(
        out
    )
    return builder.build()


def test_a_global_table_is_whole_at_every_start(app: Application, cluster: Cluster) -> None:
    orders, out, dead = (cluster.topic(name, 2) for name in ("orders", "out", "dead"))
    cities = cluster.topic("cities", 3)
    program = global_program(orders, cities, out)
    # By nobody's partitioner; and what is no JSON leaves the entry before it.
    cluster.write(
        cities,
        [in_json(who, {"city": f"old {who}"}, 1, at % 3) for at, who in enumerate(PEOPLE)]
        + [text("w1", "{", 2, 1), text(None, "{}", 2, 1)],
    )
    cluster.write(orders, [in_json("k", {"who": who, "n": 1}, 1, 0) for who in (*PEOPLE, "gone")])
    settings: dict[str, Any] = {"errors_dead_letter_queue_topic_name": dead}
    with app.running(program, **settings) as streams:
        app.until_processed(streams, orders)
        found = dict(streams.store("cities").all())
        assert found == {who: {"city": f"old {who}"} for who in PEOPLE}
        assert streams.store("cities").get("w4") == {"city": "old w4"}
        tables = {
            task: one for task, one in streams.all_tasks().items() if one.role is TaskRole.GLOBAL
        }
        assert {task: one.copied for task, one in tables.items()} == {
            TaskId(0, 0): 3,
            TaskId(0, 1): 5,
            TaskId(0, 2): 3,
        }
        assert streams.query_metadata_for_key("cities", "w4").lag == 0
    # While it is down one changes, one goes, one comes.
    cluster.write(
        cities,
        [
            in_json("w0", {"city": "new w0"}, 3, 0),
            text("w1", None, 3, 1),
            in_json("gone", {"city": "found"}, 3, 2),
        ],
    )
    cluster.write(orders, [in_json("k", {"who": who, "n": 2}, 1, 0) for who in (*PEOPLE, "gone")])
    with app.running(program, **settings) as streams:
        app.until_processed(streams, orders)
        # A late update, of an older time.
        cluster.write(cities, [in_json("w2", {"city": "late w2"}, 0, 2)])
        wait_until(
            lambda: streams.store("cities").get("w2") == {"city": "late w2"},
            CAUGHT_UP_S,
            "the late update",
        )
        cluster.write(orders, [in_json("k", {"who": "w2", "n": 3}, 1, 0)])
        app.until_processed(streams, orders)
    now = {who: f"old {who}" for who in PEOPLE}
    wanted = [(1, now.get(who)) for who in (*PEOPLE, "gone")]
    now |= {"w0": "new w0", "gone": "found"}
    del now["w1"]
    wanted += [(2, now.get(who)) for who in (*PEOPLE, "gone")] + [(3, "late w2")]
    assert [ORDER_CITY.decode(one.value) for one in cluster.read(out)] == [
        {"n": n, "city": city} for n, city in wanted
    ]
    letters = cluster.read(dead)
    assert [(one.key, one.value) for one in letters] == [(b"w1", b"{")]
    assert dict(letters[0].headers)["__streams.errors.offset"] == b"3"


def test_another_topic_of_the_name_is_read_anew(app: Application, cluster: Cluster) -> None:
    orders, out = (cluster.topic(name, 1) for name in ("orders", "out"))
    cities = cluster.topic("cities", 1)
    cluster.write(cities, [in_json("w0", {"city": "first"}), in_json("w1", {"city": "first"})])
    cluster.write(orders, [in_json("k", {"who": "w0", "n": 1})])
    app.run_through(global_program(orders, cities, out), orders)
    cluster.delete(cities)
    assert cluster.topic("cities", 1) == cities
    cluster.write(cities, [in_json("w1", {"city": "second"})])
    cluster.write(orders, [in_json("k", {"who": who, "n": 2}) for who in ("w0", "w1")])
    with app.running(global_program(orders, cities, out)) as streams:
        app.until_processed(streams, orders)
        assert dict(streams.store("cities").all()) == {"w1": {"city": "second"}}
    assert [ORDER_CITY.decode(one.value)["city"] for one in cluster.read(out)] == [
        "first",
        None,
        "second",
    ]


TEXT = serdes.string()


def loaded_program(orders: str, out: str, late: str, lake: Path) -> Topology:
    spark, builder = get_session(), StreamsBuilder()
    people = builder.global_table_from(
        lambda: spark.read.schema("who string, city string").json(str(lake)),
        key="who",
        refresh=timedelta(seconds=1),
        store="people",
    )
    stream = builder.stream(orders, key=TEXT, value=TEXT)
    both = F.concat_ws("&", F.col("left"), F.coalesce(F.col("right.city"), F.lit("_")))
    stream.left_join(people, both, on=F.col("value")).to(out)
    stream.lookup_join(people, both, on=F.col("value"), timeout="1 hour", store="waiting").to(late)
    return builder.build()


def write(lake: Path, **cities: str) -> None:
    """The whole content of the lake, in one step."""
    lake.mkdir(exist_ok=True)
    rows = [f'{{"who": "{who}", "city": "{city}"}}' for who, city in cities.items()]
    (lake / ".next").write_text("\n".join(rows))
    (lake / ".next").rename(lake / "people.json")


@pytest.mark.slow
def test_rows_are_there_and_refreshed(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    orders, out, late = (cluster.topic(name, 1) for name in ("orders", "out", "late"))
    lake = tmp_path / "lake"
    write(lake, ann="Rome", bob="Oslo")
    topology = loaded_program(orders, out, late, lake)
    cluster.write(orders, [text("1", "ann", 1), text("2", "cid", 2)])
    with app.running(topology) as streams:
        app.until_processed(streams, orders)
        assert [one.value for one in cluster.read(out)] == [b"ann&Rome", b"cid&_"]
        store = streams.store("people")
        assert store.get("bob") == {"who": "bob", "city": "Oslo"}
        (table,) = [one for one in streams.all_tasks().values() if one.role is TaskRole.GLOBAL]
        assert table.copied == 2
        write(lake, ann="Riga", cid="Bern")
        # Who has waited is let go by the refresh alone.
        wait_until(lambda: len(cluster.read(late)) == 2, CAUGHT_UP_S, "the record that waits")
        assert [one.value for one in cluster.read(late)] == [b"ann&Rome", b"cid&Bern"]
        assert {key for key, _ in store.all()} == {"ann", "cid"}
        cluster.write(orders, [text("3", "ann", 3), text("4", "bob", 4)])
        app.until_processed(streams, orders)
        # What it cannot load leaves the last one.
        (lake / "people.json").unlink()
        lake.rmdir()
        wait_until(
            lambda: [one.lag for one in streams.all_tasks().values()].count(None) == 1,
            CAUGHT_UP_S,
            "a refresh to fail",
        )
        cluster.write(orders, [text("5", "cid", 5)])
        app.until_processed(streams, orders)
    with pytest.raises(TableLoadError, match=r"people, at .*test_lifecycle_restarts"):
        app.instance(topology).start()
    write(lake, bob="Kiel")
    with app.running(topology) as streams:
        cluster.write(orders, [text("6", "ann", 6)])
        app.until_processed(streams, orders)
        wait_until(lambda: len(cluster.read(late)) == 5, CAUGHT_UP_S, "bob, who has waited")
    assert [one.value for one in cluster.read(out)] == [
        b"ann&Rome",
        b"cid&_",
        b"ann&Riga",
        b"bob&_",
        b"cid&Bern",
        b"ann&_",
    ]
    assert sorted(one.value or b"" for one in cluster.read(late)) == [
        b"ann&Riga",
        b"ann&Rome",
        b"bob&Kiel",
        b"cid&Bern",
        b"cid&Bern",
    ]


@pytest.mark.slow
def test_records_wait_for_a_global_table_and_the_clock(app: Application, cluster: Cluster) -> None:
    orders, cities, out = (cluster.topic(name, 2) for name in ("orders", "cities", "out"))
    builder = StreamsBuilder()
    table = builder.global_table(cities, key=TEXT, value=TEXT, store="cities")
    stream = builder.stream(orders, key=TEXT, value=TEXT)
    both = F.concat_ws("&", F.col("left"), F.coalesce(F.col("right"), F.lit("_")))
    stream.lookup_join(table, both, on=F.col("value"), timeout="5 seconds", store="waiting").to(out)
    topology = builder.build()
    cluster.write(orders, [text("1", "ann", 100), text("2", "bob", 1, 1), text("3", "ann", 5, 1)])
    app.run_through(topology, orders)
    assert cluster.read(out) == []
    shutil.rmtree(app.folder)  # from the changelog alone
    with app.running(topology):
        cluster.write(cities, [text("ann", "Rome", 1)])  # no order comes any more
        wait_until(lambda: len(cluster.read(out)) == 2, CAUGHT_UP_S, "the orders of ann")
        wait_until(lambda: len(cluster.read(out)) == 3, CAUGHT_UP_S, "the end of bob's wait")
        committed = cluster.committed(app.id, orders)
        cluster.write(cities, [text("zoe", "Oslo", 1)])
    assert sorted((one.key, one.value, one.timestamp) for one in cluster.read(out)) == [
        (b"1", b"ann&Rome", 100),
        (b"2", b"bob&_", 1),
        (b"3", b"ann&Rome", 5),
    ]
    # Where nobody waits, the clock's looks commit nothing.
    assert cluster.committed(app.id, orders) == committed


# Times over restarts.


TURNS, PER_TURN = 3, 20


def said(key: str, value: str, record: RecordContext, partition_time: int) -> int:
    """One more than the partition's where the value says none."""
    return partition_time + 1 if value == "next" else int(value)


def topology(name: Callable[[str], str]) -> Topology:
    """The extractors of times; ``name``: a topic's full name."""
    builder = StreamsBuilder()
    stream = builder.stream(name("in"), key=TEXT, value=TEXT, timestamp=said)
    stream.group_by_key().windowed_by(TimeWindows.of_size(20).grace(5)).count(
        store="windows"
    ).to_stream().to(name("windows"))
    other = builder.stream(
        name("odd"), key=TEXT, value=TEXT, timestamp=UsePartitionTimeOnInvalidTimestamp
    )
    other.to(name("guessed"))
    builder.stream(
        name("skipped"), key=TEXT, value=TEXT, timestamp=LogAndSkipOnInvalidTimestamp
    ).for_each(print)
    return builder.build()


def turns(seed: int) -> list[dict[str, list[Record]]]:
    """Written before each start; the first records are far behind the last of the turn before."""
    drawn = random.Random(seed)
    time, found = 100, []
    for turn in range(TURNS):
        written: dict[str, list[Record]] = {"in": [], "odd": [], "skipped": []}
        for number in range(PER_TURN):
            late = drawn.choice([60, 30]) if turn and number < 6 else drawn.choice([0, 0, 3, 12])
            time += drawn.randrange(6)
            key = f"k{drawn.randrange(3)}"
            value = "next" if drawn.random() < 0.1 else str(time - late)
            written["in"].append(text(key, value, 1))
            own = time - late if (turn, number) == (0, 0) or drawn.random() < 0.8 else -1
            written["odd"].append(text(key, str(number), own))
            written["skipped"].append(text(key, "v", own))
        found.append(written)
    return found


def by_the_driver(given: list[dict[str, list[Record]]]) -> dict[str, list[Any]]:
    raw = serdes.bytes_()
    with TopologyTestDriver(topology(str), emit_every_update=True) as driver:
        for written in given:
            for name, records in written.items():
                driver.create_input_topic(name, raw, raw).pipe_batch(
                    [(one.key, one.value, one.timestamp) for one in records]
                )
        return {
            result: [
                (found.key, found.value, found.timestamp)
                for found in driver.create_output_topic(result, raw, raw).read_records()
            ]
            for result in ("windows", "guessed")
        }


def test_a_partitions_time_is_kept_over_a_restart(app: Application, cluster: Cluster) -> None:
    given = turns(seed=7)
    names = {topic: cluster.topic(topic, 1) for topic in (*given[0], "windows", "guessed")}
    dropped = 0.0
    for turn, written in enumerate(given):
        for name, records in written.items():
            cluster.write(names[name], records)
        if turn == 2:  # from the changelogs and what is beside the offsets alone
            shutil.rmtree(app.folder)
        with app.running(topology(names.__getitem__), emit_every_update=True) as streams:
            app.until_processed(streams, *(names[name] for name in written))
            dropped += float(streams.metrics()[DROPPED_RECORDS])
    for result, wanted in by_the_driver(given).items():
        found = [(one.key, one.value, one.timestamp) for one in cluster.read(names[result])]
        assert found == wanted, result
    skipped = [one for written in given for one in written["skipped"] if one.timestamp < 0]
    assert dropped > len(skipped) > 0


def test_a_task_waits_for_late_input_then_goes_on(app: Application, cluster: Cluster) -> None:
    early, late, out = (cluster.topic(name, 1) for name in ("early", "late", "out"))
    builder = StreamsBuilder()
    first = builder.stream(early, key=TEXT, value=TEXT)
    first.merge(builder.stream(late, key=TEXT, value=TEXT)).to(out)
    with app.running(builder.build(), max_task_idle_ms=5_000) as streams:
        cluster.write(early, [text("k", "e", time) for time in (10, 20, 30)])
        wait_until(lambda: streams.metrics()[LAG] == 3, 20.0, "the instance to know of them")
        assert cluster.read(out) == []
        cluster.write(late, [text("k", "l", time) for time in (15, 25)])
        app.until_processed(streams, early, late)
        assert float(streams.metrics()[ENFORCED_PROCESSING]) >= 1, "nothing came behind 25"
    assert [record.timestamp for record in cluster.read(out)] == [10, 15, 20, 25, 30]


def closing_in_silence(source: str, direct: str, rekeyed: str) -> Topology:
    """Counts of windows of a second, as they close; behind a repartition topic, too."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=TEXT, value=TEXT, idle_advance="1 second")
    again = stream.map(lambda key, value: (value, key), returns=("string", "string"))
    for one, store in ((stream, direct), (again, rekeyed)):
        windowed = one.group_by_key(name=store).windowed_by(TimeWindows.of_size("1 second"))
        final = windowed.emit_strategy(EmitStrategy.on_window_close()).count(store=store)
        final.to_stream().to(store)
    return builder.build()


def test_windows_close_in_silence_and_over_a_restart(app: Application, cluster: Cluster) -> None:
    source, direct, rekeyed = (cluster.topic(name, 2) for name in ("in", "direct", "rekeyed"))
    program = closing_in_silence(source, direct, rekeyed)
    cluster.write(source, [text("a", "x", 1_000), text("b", "y", 1_100), text("a", "x", 1_200)])

    def closed(topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
        found = [(one.key, one.value, one.timestamp) for one in cluster.read(topic)]
        return sorted((key and key[:1], value and value[-1:], time) for key, value, time in found)

    wanted = {
        direct: [(b"a", b"\x02", 1_200), (b"b", b"\x01", 1_100)],
        rekeyed: [(b"x", b"\x02", 1_200), (b"y", b"\x01", 1_100)],
    }
    with app.running(program):
        for topic, results in wanted.items():
            wait_until(lambda: closed(topic) == results, 90.0, f"{topic}'s windows")  # noqa: B023
    shutil.rmtree(app.folder)  # what they were moved to is beside the offsets alone
    cluster.write(source, [text("a", "x", 1_300), text("b", "y", 1_400)])
    with app.running(program) as streams:
        app.until_processed(streams, source, f"{app.id}-{rekeyed}-repartition")
        assert float(streams.metrics()[DROPPED_RECORDS]) == 4
    assert {topic: closed(topic) for topic in wanted} == wanted
