"""The exactly-once writer on a broker: positions, fencing, what the broker refuses and accepts."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from everflow.config import StreamsConfig
from everflow.errors import EverflowError, GenerationChanged, TaskMigratedError
from everflow.instance.start_up import ClusterTopics
from everflow.kafka.admin import ClusterAdmin, TransactionState
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.errors import OffsetsUnstableError
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import GroupMetadata, fence_all
from everflow.membership.assignor import Identity
from everflow.membership.member import GroupMember
from everflow.records import CommittedOffset, TopicPartition
from everflow.testing.waiting import wait_until
from integration.kafka.group_members import assignor_of

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


def stamps(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) + 1_700_000_000_000


def rows(count: int, value: bytes = b"v") -> tuple[list[bytes], list[bytes], np.ndarray]:
    return [b"k%d" % i for i in range(count)], [value] * count, stamps(count)


@pytest.fixture(params=[2, 1], ids=["second part", "first"], autouse=True)
def transaction_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Both transaction protocols: the newest (KIP-890), and the one before."""
    version: int = request.param

    async def said(_: BrokerLink) -> int:
        return version

    monkeypatch.setattr(BrokerLink, "transaction_version", said)
    return version


def read_all(
    bootstrap: str, tp: TopicPartition, end: int
) -> list[tuple[bytes | None, bytes | None, int]]:
    with LogReader({"bootstrap.servers": bootstrap}) as reader:
        return [
            (key, value, int(at))
            for chunk in reader.read(tp, 0, end)
            for key, value, at in zip(chunk.keys, chunk.values, chunk.timestamps, strict=True)
        ]


def test_an_open_transaction_is_told_by_its_coordinator_and_by_the_stable_offset(
    bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str
) -> None:
    tp = TopicPartition(topic(1), 0)
    config = {"bootstrap.servers": bootstrap}
    writer = RecordWriter(config, name)
    never = f"{name}-never"

    def told() -> dict[str, TransactionState]:
        return admin.transactions([name, never])

    def held() -> int:
        written = admin.list_offsets([tp], "latest", "read_uncommitted", whole=False)
        return written[tp] - admin.list_offsets([tp], "latest", "read_committed", whole=False)[tp]

    try:
        assert told() == {name: TransactionState("Empty"), never: TransactionState("")}
        began_ms = time.time() * 1000
        writer.begin()
        writer.write(tp.topic, *rows(5), 0)
        writer.flush(10)
        state, since_ms = told()[name]
        assert state == "Ongoing"
        assert since_ms is not None
        assert abs(since_ms - began_ms) < 60_000
        assert held() == 5
        writer.commit(10)
        wait_until(lambda: held() == 0, 60, "the records to be seen")
        wait_until(lambda: told()[name].since_ms is None, 60, "the transaction to be over")
    finally:
        writer.close()


@pytest.mark.parametrize("exactly_once", [True, False])
def test_tracked_positions_are_the_log_s(
    bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str, exactly_once: bool
) -> None:
    target = topic(3)
    config = {
        "bootstrap.servers": bootstrap,
        "queue.buffering.max.kbytes": 10,  # smaller than the batch
        "batch.size": 2_000,
    }
    writer = RecordWriter.get(config, name if exactly_once else None)
    keys, values, at = rows(4_000)
    partitions = np.arange(4_000, dtype=np.int64) % 3
    for batch in (1, 2):
        writer.begin()
        writer.write(target, keys, values, at, partitions)
        writer.flush(30)
        ends = admin.end_offsets([TopicPartition(target, p) for p in range(3)], "read_uncommitted")
        assert writer.positions() == ends, f"batch {batch}"
        if exactly_once:
            writer.commit(10)
    assert RecordWriter.get(config, name if exactly_once else None) is writer
    writer.close()
    got = read_all(bootstrap, TopicPartition(target, 1), ends[TopicPartition(target, 1)])
    expected = list(zip(keys[1::3], values[1::3], at[1::3].tolist(), strict=True))
    assert got == expected * 2


def refusal(writer: RecordWriter) -> str:
    try:
        writer.flush(10)
        writer.commit(10)
    except EverflowError as error:
        return str(error)
    raise AssertionError("the batch was committed")


def test_a_refused_record_names_its_partition(bootstrap: str, topic: Topic, name: str) -> None:
    target, config = topic(2, max_message_bytes="2000"), {"bootstrap.servers": bootstrap}
    said = []
    for values in ([b"1", b"2", b"x" * 5000], [b"x" * 5000, b"2", b"3"]):
        writer = RecordWriter.get(config, name)
        writer.begin()
        writer.write(target, [b"k"] * 3, values, stamps(3), [0, 1, 1])
        said.append(refusal(writer))
        writer.close()
    assert f"delivering to {target}-1: " in said[0]
    assert "size too large" in said[0]
    assert f"delivering to {target}-0: " in said[1]


def member_of(bootstrap: str, group: str, source: str) -> GroupMember:
    member = GroupMember(
        GroupSettings(bootstrap_servers=bootstrap, group_id=group),
        assignor_of(Identity(process_id="p1"), {0: [source]}),
    )
    member.start()
    wait_until(lambda: member.stable and member.owned(), 20, "the member owns its task")
    return member


def test_the_broker_fences_commits_by_generation_and_member(
    bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str
) -> None:
    """Scenarios 6, 7: a stale generation or unknown member is refused, no identity is taken."""
    source, target = topic(1), topic(1)
    member = member_of(bootstrap, name, source)
    now = member.metadata()
    writer = RecordWriter.get({"bootstrap.servers": bootstrap}, name)

    def attempt(generation: int, member_id: str, offset: int) -> None:
        writer.begin()
        writer.write(target, *rows(1), 0)
        writer.flush(10)
        try:
            writer.send_offsets(
                [(source, 0, offset, "text")],
                GroupMetadata(generation, name, member_id, None).encode(),
                10,
            )
        except Exception:
            writer.abort()
            raise
        writer.commit(10)

    with pytest.raises(GenerationChanged):
        attempt(now.generation - 1, now.member_id, 1)
    with pytest.raises(TaskMigratedError):
        attempt(now.generation, "nobody-1234", 2)
    writer = RecordWriter.get({"bootstrap.servers": bootstrap}, name)
    tp = TopicPartition(source, 0)
    assert admin.committed(name, [tp]) == {}
    attempt(now.generation, now.member_id, 3)
    assert admin.committed(name, [tp]) == {tp: CommittedOffset(3, "text")}
    # The reason for the commit gate: nobody is accepted although a member lives and the group is
    # stable.
    attempt(-1, "", 4)
    assert admin.committed(name, [tp])[tp].offset == 4
    writer.close()
    member.leave()


def test_pending_offsets_are_waited_for_and_fencing_frees_them(
    bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str
) -> None:
    """Scenarios 11, 12: an abandoned transaction hides the offsets until its id is fenced."""
    source, target = topic(1), topic(1)
    config = {"bootstrap.servers": bootstrap, "transaction.timeout.ms": 60_000}
    tp, out = TopicPartition(source, 0), TopicPartition(target, 0)
    writer = RecordWriter.get(config, name)
    for offset, end in ((20, True), (30, False)):
        writer.begin()
        writer.write(target, *rows(5), 0)
        writer.flush(10)
        writer.send_offsets(
            [(source, 0, offset, f"batch-{offset}")], GroupMetadata(-1, name, "", None).encode(), 10
        )
        if end:
            writer.commit(10)
    with pytest.raises(OffsetsUnstableError):
        admin.committed(name, [tp], timeout_s=0.5)
    assert admin.committed(name, [tp], 5, stable=False) == {tp: CommittedOffset(20, "batch-20")}
    # Another instance that starts now is not held up.
    settings = StreamsConfig(application_id=name, bootstrap_servers=bootstrap)
    assert ClusterTopics(admin, settings).ran([tp]).foreign == {tp.topic}
    assert admin.end_offsets([out], "read_committed")[out] == 6
    began = time.monotonic()
    fence_all(config, [name], 10)
    assert admin.committed(name, [tp]) == {tp: CommittedOffset(20, "batch-20")}
    wait_until(
        lambda: (
            admin.end_offsets([out], "read_committed")
            == admin.end_offsets([out], "read_uncommitted")
        ),
        5,
        "the marker",
    )
    assert time.monotonic() - began < 2
    with pytest.raises(TaskMigratedError):
        writer.commit(10)
    assert RecordWriter.get(config, name) is not writer


def test_a_batch_that_is_too_large_for_its_topic_is_cut(bootstrap: str, topic: Topic) -> None:
    tp = TopicPartition(topic(1, max_message_bytes="20000"), 0)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    writer.begin()
    keys, values, at = rows(5_000, b"x" * 100)
    writer.write(tp.topic, keys, values, at, 0)
    writer.flush(20)
    assert writer.positions() == {tp: 5_000}
    writer.close()
    assert [key for key, _, _ in read_all(bootstrap, tp, 5_000)] == keys


def test_several_ids_are_fenced_at_once(bootstrap: str, topic: Topic, name: str) -> None:
    """An instance that is gone leaves a transaction open for each of its stream threads."""
    target, config = topic(1), {"bootstrap.servers": bootstrap, "transaction.timeout.ms": 60_000}
    ids = [f"{name}-{thread}" for thread in range(3)]
    writers = [RecordWriter.get(config, transactional_id) for transactional_id in ids]
    for writer in writers:
        writer.begin()
        writer.write(target, *rows(1), 0)
        writer.flush(10)
    fence_all(config, ids, 10)
    for writer in writers:
        with pytest.raises(TaskMigratedError):
            writer.commit(10)
    fence_all(config, [], 10)
