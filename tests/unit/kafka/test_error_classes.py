"""What a client's error code means for the runtime: run again, give the tasks up, or stop."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from everflow.errors import (
    FatalError,
    GenerationChanged,
    RecordTooLargeError,
    RetriableError,
    TaskMigratedError,
)
from everflow.kafka.errors import classify
from everflow.kafka.producer import RecordWriter


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


def test_a_delivery_callback_that_meets_a_pending_error_gives_that_error() -> None:
    """After a fatal error the client runs the next callback while its own exception is pending:
    Python makes it a SystemError."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer producer"))

    def flush() -> None:
        raise SystemError(
            "<method 'partition'> returned a result with an exception set"
        ) from fenced

    with pytest.raises(TaskMigratedError, match="flushing: fenced by a newer producer"):
        _writer()._call("flushing", flush)


def test_a_pending_error_that_quotes_a_too_large_record_is_told_as_one() -> None:
    """Whether the record's own callback or the writer's end comes first is a matter of luck."""
    quoted = (
        "ProduceRequest for a [0] failed: Broker: Message size too large: unable to satisfy "
        "gap-less guarantee"
    )
    ended = KafkaException(KafkaError(KafkaError._GAPLESS_GUARANTEE, quoted, fatal=True))

    def flush() -> None:
        raise SystemError("<method 'partition'> returned a result with an exception set") from ended

    with pytest.raises(RecordTooLargeError, match=r"flushing: .*size too large"):
        _writer()._call("flushing", flush)


def test_another_pending_error_is_named() -> None:
    def flush() -> None:
        raise SystemError(
            "<method 'partition'> returned a result with an exception set"
        ) from ValueError("the real cause")

    with pytest.raises(RetriableError, match="flushing: ValueError: the real cause"):
        _writer()._call("flushing", flush)


def _writer() -> RecordWriter:
    return RecordWriter({"bootstrap.servers": "127.0.0.1:1"}, None)
