"""How closely a member watches its group, and what errors of clients and brokers mean."""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import kafka.errors as client_errors
import kafka.errors as codes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.structs import MemberState

from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RetriableError,
    TaskMigratedError,
)
from everflow.kafka.admin import UNKNOWN_ID, TransactionState, transaction_states
from everflow.kafka.errors import (
    LinkLostError,
    OffsetsUnstableError,
    RefusedError,
    classify,
    classify_member,
)
from everflow.kafka.group_channel import (
    GroupChannel,
    GroupSettings,
    MemberAssignment,
    _Assignor,
    _client_config,
    _Heartbeat,
    watch_every,
)
from everflow.kafka.reading.record_batches import batches, columns
from everflow.kafka.writing import record_encoding
from everflow.kafka.writing.record_encoding import (
    CODECS,
    Producer,
    RecordColumns,
    batch_ends,
    encode,
    encoded_headers,
    framed,
)
from everflow.records import TopicPartition


@pytest.mark.parametrize(
    ("since_ms", "every_ms"),
    [(0, 50), (400, 50), (800, 100), (2_000, 250), (4_000, 500), (1e9, 500)],
)
def test_a_second_rebalance_is_noticed_sooner(since_ms: float, every_ms: float) -> None:
    assert watch_every(since_ms, 500) == every_ms


def looks(settled_ms: float, for_ms: float) -> int:
    """How often a group is looked at in so many ms after a rebalance."""
    at, count = 0.0, 0
    while (at := at + watch_every(at, settled_ms)) <= for_ms:
        count += 1
    return count


def test_what_it_costs_is_bounded_and_a_group_with_a_slower_pace_is_not_asked_faster() -> None:
    assert looks(500, 4_000) <= 30
    assert looks(500, 64_000) - looks(500, 4_000) == 120
    assert looks(2_000, 16_000) == looks(500, 4_000)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the monotonic clock that the client reads."""
    at = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


def test_only_confirmed_heartbeats_count() -> None:
    heartbeat = _Heartbeat(group_id="app", heartbeat_interval_ms=500, session_timeout_ms=6_000)
    heartbeat.sent_heartbeat()
    heartbeat.fail_heartbeat()
    assert heartbeat.confirmed == 0
    heartbeat.sent_heartbeat()
    heartbeat.received_heartbeat()
    heartbeat.reset_timeouts()
    assert heartbeat.confirmed == 1


def test_heartbeats_are_close_together_after_a_rebalance_and_then_spread(now: list[float]) -> None:
    heartbeat = _Heartbeat(group_id="app", heartbeat_interval_ms=500, session_timeout_ms=6_000)
    heartbeat.reset_timeouts()
    sent = []
    while now[0] < 110.0:
        wait_s = heartbeat.time_to_next_heartbeat()
        assert not heartbeat.should_heartbeat() or wait_s == 0
        now[0] += wait_s + 1e-6
        assert heartbeat.should_heartbeat()
        heartbeat.sent_heartbeat()
        sent.append(now[0])
    pauses = [later - earlier for earlier, later in pairwise(sent)]
    assert sent[0] == pytest.approx(100.05, abs=1e-3)
    assert pauses[0] == pytest.approx(0.05, abs=1e-3)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(0.5, abs=1e-3)
    heartbeat.reset_timeouts()
    assert heartbeat.time_to_next_heartbeat() == pytest.approx(0.05), "another rebalance has ended"


def test_a_heartbeat_that_failed_is_repeated_as_the_client_does_it(now: list[float]) -> None:
    heartbeat = _Heartbeat(
        group_id="app", heartbeat_interval_ms=500, session_timeout_ms=6_000, retry_backoff_ms=100
    )
    heartbeat.sent_heartbeat()
    heartbeat.fail_heartbeat()
    assert heartbeat.time_to_next_heartbeat() == pytest.approx(0.1)


class Coordinator:
    """kafka-python's, of which the test says how it stands with the group."""

    state = MemberState.STABLE
    _heartbeat_enabled = True

    def __init__(
        self,
        node: int | None = 1,
        *,
        connected: bool = True,
        rejoin: bool = False,
        crashed: Exception | None = None,
    ) -> None:
        self.coordinator_id, self.done = node, list[str]()
        self.need_rejoin = lambda: rejoin
        self._client = SimpleNamespace(connected=lambda node: connected)
        self._net = SimpleNamespace(_exception=crashed)

    def poll(self, timeout_ms: int) -> None:
        self.done.append("poll")

    def poll_heartbeat(self) -> None:
        self.done.append("heartbeat")


@pytest.mark.parametrize(
    ("coordinator", "does"),
    [
        (Coordinator(), "heartbeat"),
        (Coordinator(None), "poll"),
        (Coordinator(connected=False), "poll"),
        (Coordinator(rejoin=True), "poll"),
        (Coordinator(crashed=ValueError("the IO thread has ended")), "poll"),
    ],
)
def test_a_look_at_a_group_at_rest_wakes_no_thread(coordinator: Coordinator, does: str) -> None:
    """The client's own poll asks its IO thread for the coordinator, 20 times a second."""
    channel = object.__new__(GroupChannel)
    channel._coordinator = coordinator
    channel._settings = GroupSettings(bootstrap_servers="b:1", group_id="app")
    channel.poll(1.0)
    assert coordinator.done == [does]


@pytest.mark.parametrize(
    ("failure", "expected", "says"),
    [
        (client_errors.FencedInstanceIdError("node-1"), FatalError, "group.instance.id"),
        (client_errors.InconsistentGroupProtocolError(), FatalError, "application.id"),
        (client_errors.GroupAuthorizationFailedError("g"), FatalError, "joining"),
        (client_errors.UnknownMemberIdError(), TaskMigratedError, "evicted"),
        (client_errors.IllegalGenerationError(), TaskMigratedError, "evicted"),
        (client_errors.KafkaTimeoutError(), RetriableError, "joining"),
        (client_errors.NodeNotReadyError("1"), RetriableError, "joining"),
    ],
)
def test_errors_get_reactions(failure: Exception, expected: type[EverflowError], says: str) -> None:
    error = classify_member(failure, "joining")
    assert type(error) is expected
    assert says in str(error)


def test_the_client_s_settings_that_guarantees_stand_on() -> None:
    """Scenario 12: only read_committed clients wait for offsets; scenario 21: half a second."""
    config = _client_config(
        GroupSettings(bootstrap_servers="b:1", group_id="app", client={"enable_auto_commit": True}),
        _Assignor(Nothing(), Nothing()),
        1.0,
    )
    wanted = {
        "isolation_level": "read_committed",
        "heartbeat_interval_ms": 500,
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
        "auto_offset_reset": "none",
    }
    assert {key: config[key] for key in wanted} == wanted


class Nothing:
    """An assignor that is never asked, and a listener that hears nothing."""

    name = "everflow"

    def user_data(self) -> bytes:
        raise NotImplementedError

    def assign(
        self,
        members: Mapping[str, bytes],
        partition_counts: Mapping[str, int],
        read: Mapping[str, Collection[str]],
    ) -> Mapping[str, MemberAssignment]:
        raise NotImplementedError

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes, generation: int
    ) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        # A broker that was killed and came back answers so for a moment; stopping for it would turn
        # a restart into an outage.
        (codes.FencedLeaderEpochError, RetriableError),
        (codes.UnknownLeaderEpochError, RetriableError),
        (codes.OffsetNotAvailableError, RetriableError),
        (codes.NotControllerError, RetriableError),
        (codes.UnknownTopicOrPartitionError, RetriableError),
        (codes.IllegalGenerationError, GenerationChanged),
        (codes.UnknownMemberIdError, TaskMigratedError),
        (codes.ProducerFencedError, TaskMigratedError),
        (codes.UnstableOffsetCommitError, OffsetsUnstableError),
        (codes.TopicAuthorizationFailedError, FatalError),
        (codes.MessageSizeTooLargeError, FatalError),
        (codes.UnknownProducerIdError, RetriableError),
    ],
)
def test_classes(code: type[codes.BrokerResponseError], kind: type[Exception]) -> None:
    for failure in (RefusedError(code.errno), code()):
        error = classify(failure, "doing something")
        assert type(error) is kind
        assert "doing something" in str(error)
    assert code.message in str(classify(RefusedError(code.errno), "doing"))


def test_no_answer_passes() -> None:
    for failure in (LinkLostError("gone", sent=True), codes.KafkaTimeoutError("late")):
        assert type(classify(failure, "asking")) is RetriableError


def test_a_fenced_static_member_is_not_said_to_rejoin() -> None:
    text = str(classify(RefusedError(codes.FencedInstanceIdError.errno), "sending offsets"))
    assert "this group.instance.id " in text
    assert "rejoined" not in text


# What coordinators say of transactional ids, and batches that are made of columns.


NOT_COORDINATOR = 16


class Link:
    """Two brokers: the odd ids are the second one's."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        self.lost: set[int] = set()
        self.asked: list[tuple[int, list[str]]] = []

    async def coordinator(self, kind: str, key: str) -> int:
        assert kind == "transaction"
        return int(key[-1]) % 2

    def forget_coordinator(self, kind: str, key: str) -> None:
        self.forgotten.append(key)

    async def send(self, node: int, request: Any, timeout_s: float) -> Any:
        if node in self.lost:
            raise LinkLostError("away", sent=True)
        self.asked.append((node, list(request.transactional_ids)))
        return SimpleNamespace(transaction_states=[told(one) for one in request.transactional_ids])


def asked(link: Any, ids: Iterable[str]) -> dict[str, TransactionState]:
    return asyncio.run(transaction_states(link, ids, 1.0))


STATES = {
    "app-0": (0, "Ongoing", 500),
    "app-1": (0, "CompleteCommit", 400),
    "app-2": (UNKNOWN_ID, "", -1),
    "app-3": (NOT_COORDINATOR, "", -1),
    "app-4": (0, "PrepareAbort", 300),
}


def told(name: str) -> Any:
    code, state, start = STATES[name]
    return SimpleNamespace(
        error_code=code,
        transactional_id=name,
        transaction_state=state,
        transaction_start_time_ms=start,
    )


def test_each_broker_is_asked_once_and_an_open_one_has_its_begin() -> None:
    link = Link()
    assert asked(link, STATES) == {
        "app-0": TransactionState("Ongoing", 500),
        "app-1": TransactionState("CompleteCommit"),
        "app-2": TransactionState(""),
        "app-4": TransactionState("PrepareAbort", 300),
    }
    assert link.asked == [(0, ["app-0", "app-2", "app-4"]), (1, ["app-1", "app-3"])]
    assert link.forgotten == ["app-3"], "the next time another broker is asked"


def test_a_broker_that_is_away_leaves_out_its_ids() -> None:
    link = Link()
    link.lost = {0}
    assert asked(link, ["app-0", "app-1"]) == {"app-1": TransactionState("CompleteCommit")}
    link.lost = {0, 1}
    with pytest.raises(LinkLostError):
        asked(link, ["app-0"])


ME = Producer(7, 3, True)
SIZES = st.sampled_from([0, 1, 2, 3, 4, 7, 63, 64, 65, 127, 128, 200, 9000])
BYTES = st.none() | SIZES.flatmap(lambda size: st.binary(min_size=size, max_size=size))
TIMES = st.sampled_from([0, 1, -1, 1_700_000_000_000, 1 << 45, -(1 << 45)]) | st.integers(
    0, 1 << 42
)
NAMES = st.sampled_from(["", "a", "ü" * 40])
HEADERS = st.none() | st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=80)), max_size=3)
RECORDS = st.lists(st.tuples(BYTES, BYTES, TIMES, HEADERS), min_size=1, max_size=50)


def columns_of(records: list[Any]) -> RecordColumns:
    """Slices of larger columns: a buffer's beginning is not the column's."""
    keys = pa.array([b"before", *(record[0] for record in records)], pa.binary())[1:]
    values = pa.array([None, *(record[1] for record in records)], pa.binary())[1:]
    times = np.array([record[2] for record in records], np.int64)
    return RecordColumns(keys, values, times, encoded_headers([record[3] for record in records]))


def read_by_a_client(data: bytes) -> list[Any]:
    found, records = [], MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.is_transactional) == (7, 3, True)
        own = list(batch)
        assert batch.max_timestamp == max(record.timestamp for record in own)
        found += [(one.key, one.value, one.timestamp, list(one.headers) or None) for one in own]
    return found


@given(RECORDS, st.sampled_from([1, 500, 20_000, 1 << 20]), st.sampled_from([1, 1000, 64 << 20]))
def test_a_client_reads_what_was_written(records: list[Any], limit: int, joined: int) -> None:
    written = columns_of(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_encoding, "_JOINED_BYTES", joined)
        made = encode(written, batch_ends(written.sizes, limit), written.sizes)
    data = [framed(one, ME, sequence, "none", None) for sequence, one in enumerate(made)]
    assert read_by_a_client(b"".join(data)) == [
        (key, value, time, headers or None) for key, value, time, headers in records
    ]
    for one, whole in zip(made, data, strict=True):
        assert len(one) == 1 or len(whole) <= limit + 61  # the header of a batch


@given(RECORDS, st.sampled_from(sorted(CODECS)))
def test_our_own_reader_reads_it_with_any_codec(records: list[Any], codec: str) -> None:
    written = columns_of(records)
    data = b"".join(
        framed(one, ME, 0, codec, None) for one in encode(written, [len(records)], written.sizes)
    )
    read = columns(data, batches(data))
    assert read.keys() == [record[0] for record in records]
    assert read.values() == [record[1] for record in records]
    assert read.timestamps.tolist() == [record[2] for record in records]
