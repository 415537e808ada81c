"""What a broker's error code means for the runtime: run again, give the tasks up, or stop."""

from __future__ import annotations

import kafka.errors as codes
import pytest

from everflow.errors import FatalError, GenerationChanged, RetriableError, TaskMigratedError
from everflow.kafka.errors import LinkLostError, OffsetsUnstableError, RefusedError, classify


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
