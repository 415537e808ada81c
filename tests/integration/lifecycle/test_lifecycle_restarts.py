"""An instance over its life: states, restarts, what a restart finds again, what it refuses."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from everflow import KafkaStreams, StreamsBuilder, TimeWindows, Topology, metrics, serdes
from everflow.errors import InternalTopicError, OffsetsExpiredError, StoreLayoutError
from everflow.instance.client_state import ClientState
from everflow.instance.copies import known_copies
from everflow.instance.restore.listeners import RestoreProgress
from everflow.kafka.admin import ClusterAdmin
from everflow.protocol.messages import parse_metadata
from everflow.records import TaskId, TopicPartition
from everflow.snapshots.query_errors import InvalidStateStoreError, StateElsewhereError
from everflow.state.lmdb_store import LmdbStore
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    counting,
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
    """Records that the instance has read and committed."""
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
    """At least once; exactly once `test_crash_points_killed` and the families have it."""
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
        with pytest.raises(StoreLayoutError, match=r"value stored: bigint\n +value now:    double"):
            changed.start()
        assert changed.state is ClientState.ERROR
        cluster.write(source, [text("k", "v")])
        app.until_processed(streams, source)
        assert (streams.state, dict(streams.store("seen").all())) == (ClientState.RUNNING, {"k": 4})
    before = cluster.committed(app.id, source), cluster.read(f"{app.id}-seen-changelog")
    with pytest.raises(StoreLayoutError, match="seen"):
        app.instance(program("double", 1)).start()
    assert before == (
        cluster.committed(app.id, source),
        cluster.read(f"{app.id}-seen-changelog"),
    )
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
    assert f"created again while the application was stopped: {source} (" in said
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
