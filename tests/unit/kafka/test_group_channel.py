"""What the group client's errors mean; the wire itself is tested against a real broker."""

from __future__ import annotations

import kafka.errors as client_errors
import pytest

from everflow.errors import EverflowError, FatalError, RetriableError, TaskMigratedError
from everflow.kafka.group_channel import classify


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
def test_client_errors_become_reactions(failure: Exception, expected: type[EverflowError], says: str) -> None:
    error = classify(failure, "joining")
    assert type(error) is expected
    assert says in str(error)
