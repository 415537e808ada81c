"""What the group client's errors mean; the wire itself is tested against a real broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import kafka.errors as client_errors
import pytest

from everflow.errors import EverflowError, FatalError, RetriableError, TaskMigratedError
from everflow.kafka.errors import classify_member
from everflow.kafka.group_channel import Given, GroupSettings, _Assignor, _client_config


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
def test_client_errors_become_reactions(
    failure: Exception, expected: type[EverflowError], says: str
) -> None:
    error = classify_member(failure, "joining")
    assert type(error) is expected
    assert says in str(error)


def test_the_client_s_settings_that_guarantees_stand_on() -> None:
    """Scenario 12: only a read_committed client is made to wait for pending offsets; scenario 21:
    half a second."""
    config = _client_config(
        GroupSettings(bootstrap_servers="b:1", group_id="app", client={"enable_auto_commit": True}),
        _Assignor(Nothing()),
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
    """An assignor that is never asked."""

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
