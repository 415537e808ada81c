"""Turns brokers' error codes into everflow's errors, in one place.

The runtime reacts to the class, never to a code: retry, run the batch again, give up the tasks,
stop.
"""

from __future__ import annotations

import kafka.errors as codes

from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RetriableError,
    TaskMigratedError,
)


class LinkLostError(Exception):
    """No answer: the connection could not be made, or ended. Whether the broker did what it was
    asked is unknown, if ``sent``."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class RefusedError(Exception):
    """A broker's error code. ``text``: what the broker says beside it."""

    def __init__(self, code: int, text: str = "") -> None:
        self.code = code
        self.name = str(codes.for_code(code).message or f"ERROR_CODE_{code}")
        """Kafka's name of the code."""
        super().__init__(text or self.name.replace("_", " ").lower())


class OffsetsUnstableError(RetriableError):
    """A pending transaction hides the committed offsets (KIP-447 ``require_stable``); fence it or
    wait."""

    code = "EF-OFFSETS-UNSTABLE"


def _of(*classes: type[codes.BrokerResponseError]) -> frozenset[int]:
    return frozenset(int(one.errno) for one in classes)


UNKNOWN_TOPIC = int(codes.UnknownTopicOrPartitionError.errno)
UNKNOWN_MEMBER = int(codes.UnknownMemberIdError.errno)
FENCED_INSTANCE = int(codes.FencedInstanceIdError.errno)
UNSTABLE = int(codes.UnstableOffsetCommitError.errno)
PRODUCER_FENCED = _of(codes.ProducerFencedError, codes.InvalidProducerEpochError)
TOPIC_FORBIDDEN = int(codes.TopicAuthorizationFailedError.errno)
_MIGRATED = PRODUCER_FENCED | _of(
    codes.InvalidProducerIdMappingError,
    codes.TransactionCoordinatorFencedError,
    codes.UnknownMemberIdError,
)
GENERATION = _of(codes.IllegalGenerationError, codes.RebalanceInProgressError)
_TOO_LARGE = _of(codes.MessageSizeTooLargeError, codes.RecordListTooLargeError)
_ENDS_TRANSACTION = _of(
    codes.OutOfOrderSequenceNumberError,
    codes.DuplicateSequenceNumberError,
    codes.UnknownProducerIdError,
    codes.InvalidTxnStateError,
    codes.TransactionAbortableError,
)
"""A new epoch or a new producer mends these: the batch is run again."""
_MEMBER_FOR_GOOD = _of(
    codes.GroupAuthorizationFailedError,
    codes.TopicAuthorizationFailedError,
    codes.GroupMaxSizeReachedError,
    codes.InconsistentGroupProtocolError,
    codes.InvalidGroupIdError,
    codes.InvalidSessionTimeoutError,
    codes.UnsupportedVersionError,
)
_BROKER_AWAY = int(codes.BrokerNotAvailableError.errno)


def passes(code: int) -> bool:
    """True if the cause of a broker's error passes: Kafka calls it retriable."""
    return bool(codes.for_code(code).retriable) or code == _BROKER_AWAY


def is_too_large(code: int, text: str) -> bool:
    """True if a record was too large for its topic, also where the broker only quotes that of a
    record before."""
    return code in _TOO_LARGE or "message size too large" in text.lower()


def code_of(failure: BaseException) -> int | None:
    if isinstance(failure, RefusedError):
        return failure.code
    code = getattr(failure, "errno", None) if isinstance(failure, codes.KafkaError) else None
    return code if isinstance(code, int) and code > 0 else None


def classify(failure: BaseException, doing: str) -> EverflowError:
    """The error for a failure while ``doing`` something: TaskMigratedError (ownership is gone),
    GenerationChanged or RetriableError (run it again), OffsetsUnstableError, FatalError."""
    code = code_of(failure)
    name = f" ({failure.name})" if isinstance(failure, RefusedError) else ""
    text = f"{doing}: {failure}{name}"
    if code is None:
        return RetriableError(text)
    if code == FENCED_INSTANCE:
        return TaskMigratedError(
            f"{text}. Another process joined with this group.instance.id and has the tasks; this "
            f"one stops."
        )
    if code in _MIGRATED:
        return TaskMigratedError(
            f"{text}. Another owner has taken over; the tasks are closed and the group rejoined."
        )
    if code in GENERATION:
        return GenerationChanged(
            f"{text}. The group was rebalanced meanwhile; the batch is run again."
        )
    if code == UNSTABLE:
        return OffsetsUnstableError(f"{text}. A transaction on these offsets is still open.")
    if code == UNKNOWN_TOPIC:
        return RetriableError(
            f"{text}. If it does not exist, create the topic: the batch is run again."
        )
    if passes(code) or code in _ENDS_TRANSACTION:
        return RetriableError(text)
    return FatalError(
        f"{text}. Trying again would not help: mend the cause named here and start again."
    )


def classify_member(failure: BaseException, doing: str) -> EverflowError:
    """The same for a member of a group, and for a reader: what is not known passes."""
    code = code_of(failure)
    text = f"{doing}: {failure}"
    if code == FENCED_INSTANCE:
        return FatalError(
            f"{text}. Another instance runs with the same group.instance.id: give each its own."
        )
    if isinstance(failure, codes.InconsistentGroupProtocolError):
        return FatalError(
            f"{text}. Another program is in the group: application.id must be this application's "
            f"own."
        )
    if code in _MEMBER_FOR_GOOD:
        return FatalError(text)
    if isinstance(failure, (codes.UnknownMemberIdError, codes.IllegalGenerationError)):
        return TaskMigratedError(f"{text}. This member was evicted; its tasks are lost.")
    return RetriableError(text)
