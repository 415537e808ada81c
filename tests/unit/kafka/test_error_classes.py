"""What a client's error code means for the runtime: run again, give the tasks up, or stop."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from everflow.errors import FatalError, GenerationChanged, RetriableError, TaskMigratedError
from everflow.kafka.errors import classify


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        # A broker that was killed and came back answers so for a moment; stopping for it would turn
        # a restart into an outage.
        (KafkaError.FENCED_LEADER_EPOCH, RetriableError),
        (KafkaError.UNKNOWN_LEADER_EPOCH, RetriableError),
        (KafkaError.OFFSET_NOT_AVAILABLE, RetriableError),
        (KafkaError.NOT_CONTROLLER, RetriableError),
        (KafkaError._TRANSPORT, RetriableError),
        (KafkaError.ILLEGAL_GENERATION, GenerationChanged),
        (KafkaError.UNKNOWN_MEMBER_ID, TaskMigratedError),
        (KafkaError._FENCED, TaskMigratedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, FatalError),
        (KafkaError.MSG_SIZE_TOO_LARGE, FatalError),
    ],
)
def test_classes(code: int, kind: type[Exception]) -> None:
    error = classify(KafkaError(code), "doing something")
    assert type(error) is kind
    assert "doing something" in str(error)


def test_what_stays_is_fatal_also_where_the_transaction_must_be_aborted() -> None:
    too_large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large", txn_requires_abort=True)
    assert type(classify(too_large, "committing")) is FatalError
    aborted = KafkaError(KafkaError.UNKNOWN_PRODUCER_ID, "gone", txn_requires_abort=True)
    assert type(classify(aborted, "committing")) is RetriableError


def test_a_fenced_static_member_is_not_said_to_rejoin() -> None:
    text = str(classify(KafkaError(KafkaError.FENCED_INSTANCE_ID), "sending offsets"))
    assert "joined with this group.instance.id and has the tasks; this one stops" in text
    assert "rejoined" not in text
