"""An instance over its whole life: states, stop and restart, what a restart finds again, what it
refuses."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
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
    GUARANTEES,
    Application,
    Cluster,
    Record,
    last_by_key,
    long,
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


def counting(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to(output)
    return builder.build()


def windowed(source: str, output: str) -> Topology:
    """Count per key and 10 s, without grace."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    counts = (
        stream.group_by_key().windowed_by(TimeWindows.of_size("10 seconds")).count(store="windows")
    )
    counts.to_stream().to(output)
    return builder.build()


def counts_of(records: list[Record]) -> dict[bytes | None, int]:
    return Counter(record.key for record in records)


def found(cluster: Cluster, topic: str) -> dict[bytes | None, int | None]:
    """The table of longs in a topic."""
    return {key: long(value) for key, value in last_by_key(cluster.read(topic)).items()}


def share(streams: KafkaStreams) -> dict[str, int]:
    """Counts of the keys that the instance has; none while no task is here."""
    try:
        return dict(streams.store("counts").all())
    except InvalidStateStoreError:
        return {}


def assert_either_answers_for_both(
    first: KafkaStreams, second: KafkaStreams, mine: dict[str, int], others: dict[str, int]
) -> None:
    """The first instance reads its own keys, names the second for the others, and has them in its
    standbys too."""

    def by_number(key: bytes, partitions: int) -> int:
        return int(key[1:]) % partitions

    def owners(streams: KafkaStreams) -> dict[str, tuple[str | None, tuple[str, ...]]]:
        found = {
            key: streams.query_metadata_for_key("counts", key, by_number)
            for key in (*mine, *others)
        }
        return {key: (place.active_host, place.standby_hosts) for key, place in found.items()}

    def copies(streams: KafkaStreams) -> dict[str, int]:
        try:
            return dict(streams.store("counts", stale=True, max_lag=0).all())
        except InvalidStateStoreError:
            return {}

    expected = {
        **dict.fromkeys(mine, ("first:1", ("second:1",))),
        **dict.fromkeys(others, ("second:1", ("first:1",))),
    }
    counts = first.store("counts", partitioner=by_number)
    assert {key: counts.get(key) for key in mine} == mine
    for streams in (first, second):
        wait_until(
            partial(lambda s: owners(s) == expected, streams),
            20,
            "the host map",
            partial(lambda s: [owners(s)], streams),
        )
        wait_until(
            partial(lambda s: copies(s) == {**mine, **others}, streams),
            20,
            "standbys",
            partial(lambda s: [copies(s)], streams),
        )
        assert set(streams.all_local_store_partition_lags()["counts"]) == {0, 1, 2, 3}
    for key in others:
        with pytest.raises(StateElsewhereError, match="A copy") as raised:
            counts.get(key)
        assert raised.value.host == "second:1"


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


def test_states_are_kafka_streams_and_the_listener_sees_each(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    streams = app.instance(counting(source, output))
    seen: list[tuple[str, str]] = []
    streams.set_state_listener(lambda new, old: seen.append((old.name, new.name)))
    assert streams.state is ClientState.CREATED
    streams.start()
    until_running(streams)
    assert cluster.members(app.id) == 1
    assert streams.metrics()[metrics.REBALANCES] == 1, (
        "the changelog that this start created must not cost another rebalance"
    )
    assert streams.close(60.0)
    assert streams.state is ClientState.NOT_RUNNING
    assert cluster.members(app.id) == 0, (
        "a closed instance must leave its group at once, not time out"
    )
    names = ["CREATED", "REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING"]
    assert seen == list(itertools.pairwise(names))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_restart_goes_on_where_the_last_instance_committed(
    app: Application, cluster: Cluster, guarantee: str
) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(70))
    topology = counting(source, output)
    app.run_through(topology, source, processing_guarantee=guarantee)
    before = len(cluster.read(output))
    with app.running(topology, processing_guarantee=guarantee) as streams:
        cluster.write(source, words(7, first=70))
        app.until_processed(streams, source)
        wait_until(lambda: consumed(streams) > 0, 10, "the batch to be counted")
    assert consumed(streams) == 7, "records before the committed offset were read again"
    assert found(cluster, output) == counts_of(words(77))
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
    assert found(cluster, output) == counts_of(words(77))


def test_offsets_carry_the_batch_id_and_stream_time(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    records = words(40)
    cluster.write(source, records)
    app.run_through(windowed(source, output), source)
    for partition, (offset, text_) in cluster.committed(app.id, source).items():
        mine = [record for record in records if record.partition == partition]
        metadata = parse_metadata(text_)
        assert offset == len(mine)
        incarnation, counter, attempt = (metadata.batch_id or "").split(".")
        assert incarnation
        assert int(counter) >= 0
        assert int(attempt) >= 0
        assert set(metadata.stream_times.values()) == {max(record.timestamp for record in mine)}
        stores = {name: kept for name, kept in metadata.layouts.items() if name[0] != "*"}
        assert stores == {"windows": ["window of 10000 ms", "string", "bigint (count)"]}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_deleted_state_folder_is_restored_from_the_changelog(
    app: Application, cluster: Cluster, guarantee: str
) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(700))
    topology = counting(source, output)
    with app.running(topology, processing_guarantee=guarantee, max_batch_records=200) as streams:
        app.until_processed(streams, source)
        before = dict(streams.store("counts").all())
    outputs = cluster.read(output)
    shutil.rmtree(app.state)

    listener = Listener()
    streams = app.instance(topology, processing_guarantee=guarantee)
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


def test_missing_changelogs_are_an_error_and_are_not_made_again(
    app: Application, cluster: Cluster
) -> None:
    """Invariant I10."""
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(50))
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    for name in ("one", "two", "three", "four"):
        stream.group_by_key().count(store=name).to_stream().to(output)
    topology = builder.build()
    app.run_through(topology, source)
    lost = [f"{app.id}-{name}-changelog" for name in ("four", "two")]
    cluster.delete(*lost)

    streams = app.instance(topology)
    with pytest.raises(InternalTopicError) as error:
        streams.start()
    assert streams.state is ClientState.ERROR
    message = str(error.value)
    assert all(topic in message for topic in lost)
    assert f"{app.id}-one-changelog" not in message
    assert "so they were deleted" in message
    assert f"everflow reset MODULE:NAME --application-id {app.id}" in message
    assert not set(lost) & set(cluster.topics())


def test_what_a_changed_aggregate_can_do_and_who_goes_on_meanwhile(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
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


def test_lost_offsets_are_an_error_and_nothing_is_counted_again(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, words(20))
    topology = counting(source, output)
    app.run_through(topology, source)
    cluster.delete_group(app.id)
    with pytest.raises(OffsetsExpiredError, match=f"everflow reset MODULE:NAME .* {app.id}"):
        app.instance(topology).start()
    assert found(cluster, output) == counts_of(words(20))


def test_a_new_store_comes_in_when_asked_and_one_that_was_lost_does_not(
    app: Application, cluster: Cluster
) -> None:
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


def test_an_input_made_again_while_stopped_is_told_and_read_from_its_beginning(
    app: Application, cluster: Cluster
) -> None:
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
    assert found(cluster, output) == counts_of(words(25))


def test_offsets_of_another_client_are_where_a_first_start_begins(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out")
    cluster.write(source, [text("k", str(n)) for n in range(5)])
    ClusterAdmin({"bootstrap.servers": cluster.bootstrap}).commit_offsets(
        app.id, {TopicPartition(source, 0): 3}, ""
    )
    with app.running(counting(source, output)) as streams:
        app.until_processed(streams, source)
    assert found(cluster, output) == {b"k": 2}


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


def test_a_repartition_topic_is_purged_up_to_the_committed_offset(
    app: Application, cluster: Cluster
) -> None:
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
    assert found(cluster, output) == counts_of(words(110))


def test_two_instances_share_the_partitions_and_hand_them_over(
    app: Application, cluster: Cluster
) -> None:
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

    with running("first") as first:
        cluster.write(source, batch(1))
        app.until_processed(first, source)
        with running("second") as second:
            wait_until(lambda: cluster.members(app.id) == 2, 20, "two members")
            for streams in (first, second):
                wait_until(
                    partial(lambda s: 0 < len(share(s)) < 23, streams),
                    30,
                    "a share of the keys each",
                )
            until_running(first)
            until_running(second)
            cluster.write(source, batch(2))
            app.until_processed(None, source)
            total = {
                str(key, "utf-8"): n
                for key, n in counts_of([*batch(1), *batch(2)]).items()
                if key is not None
            }
            wait_until(
                lambda: {**share(first), **share(second)} == total,
                20,
                "the stores to have followed",
            )
            seen = [share(streams) for streams in (first, second)]
            assert not set(seen[0]) & set(seen[1]), "a key may be active on one instance only"
            assert set(seen[0]) | set(seen[1]) == {f"w{i}" for i in range(23)}
            assert_either_answers_for_both(first, second, *seen)
            for streams in (first, second):
                wait_until(
                    partial(lambda s: consumed(s) > 0, streams),
                    10,
                    "each instance to have processed its share",
                )
        cluster.write(source, batch(3))
        app.until_processed(first, source)
        assert len(dict(first.store("counts").all())) == 23
    assert found(cluster, output) == counts_of([*batch(1), *batch(2), *batch(3)])


def test_metadata_is_kept_for_partitions_that_did_not_move(
    app: Application, cluster: Cluster
) -> None:
    """A task of two inputs commits both with the same batch id and stream time, also where only one
    has records."""
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
    ((end, first),) = cluster.committed(app.id, left).values()
    ((unmoved, second),) = cluster.committed(app.id, right).values()
    assert (end, unmoved) == (1, 0)
    assert first == second
    assert list(parse_metadata(first).stream_times.values()) == [20_000]
