"""How closely a member watches its group, and what errors of clients and brokers mean."""

import time
from collections.abc import Collection, Mapping
from itertools import pairwise
from types import SimpleNamespace

import kafka.errors as client_errors
import kafka.errors as codes
import pytest
from kafka.structs import MemberState

from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RetriableError,
    TaskMigratedError,
)
from everflow.kafka.errors import (
    LinkLostError,
    OffsetsUnstableError,
    RefusedError,
    classify,
    classify_member,
)
from everflow.kafka.group_channel import (
    Given,
    GroupChannel,
    GroupSettings,
    _Assignor,
    _client_config,
    _Heartbeat,
    watch_every,
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
    ) -> Mapping[str, Given]:
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
    assert "joined with this group.instance.id and has the tasks; this one stops" in text
    assert "rejoined" not in text
