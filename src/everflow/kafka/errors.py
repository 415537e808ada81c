"""Turns codes of Kafka's clients into everflow's errors, in one place.

The runtime reacts to the class, never to a code: retry, run the batch again, give up the tasks,
stop.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RetriableError,
    TaskMigratedError,
)


class OffsetsUnstableError(RetriableError):
    """A pending transaction hides the committed offsets (KIP-447 ``require_stable``); fence it or
    wait."""

    code = "EF-OFFSETS-UNSTABLE"


_MIGRATED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
_GENERATION = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})

# Codes that stay whatever is tried, also where librdkafka only says that the transaction must be
# aborted.
_FOR_GOOD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

_NO_TOPIC = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
_TOO_LARGE = "message size too large"

# Codes that librdkafka does not call retriable although the cause passes: the same batch is run
# again under task.timeout.ms, and the message names the topic should it not pass.
_PASSING = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._GAPLESS_GUARANTEE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._WAIT_COORD,
        KafkaError._NOENT,  # librdkafka's "no leaders found" right after a topic was created
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        # A broker has come back, and the client or the broker still holds the leader's old epoch or
        # state.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.REQUEST_TIMED_OUT,
    }
)


def is_too_large(error: KafkaError) -> bool:
    """Whether a record was too large for its topic, also where the client only quotes that of a
    record before."""
    return (
        error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
        or _TOO_LARGE in error.str().lower()
    )


def kafka_error(failure: BaseException) -> KafkaError | None:
    """The ``KafkaError`` inside a ``KafkaException``; None for any other exception."""
    if (
        isinstance(failure, KafkaException)
        and failure.args
        and isinstance(failure.args[0], KafkaError)
    ):
        return failure.args[0]
    return None


def classify(error: KafkaError, doing: str) -> EverflowError:
    """The error to raise for ``error``, met while ``doing`` (a phrase such as ``committing t1``).

    Returns TaskMigratedError (ownership is gone), GenerationChanged or RetriableError (the batch is
    run again), OffsetsUnstableError, or FatalError (trying again would meet it again).
    """
    code = error.code()
    text = f"{doing}: {error.str()} ({error.name()})"
    if code == KafkaError.FENCED_INSTANCE_ID:
        return TaskMigratedError(
            f"{text}. Another process joined with this group.instance.id and has the tasks; this "
            f"one stops."
        )
    if code in _MIGRATED:
        return TaskMigratedError(
            f"{text}. Another owner has taken over; the tasks are closed and the group rejoined."
        )
    if code in _GENERATION:
        return GenerationChanged(
            f"{text}. The group was rebalanced meanwhile; the batch is run again."
        )
    if code == KafkaError.UNSTABLE_OFFSET_COMMIT:
        return OffsetsUnstableError(f"{text}. A transaction on these offsets is still open.")
    if code in _NO_TOPIC:
        return RetriableError(
            f"{text}. If it does not exist, create the topic: the batch is run again."
        )
    if code not in _FOR_GOOD and (
        code in _PASSING or error.retriable() or error.txn_requires_abort()
    ):
        return RetriableError(text)
    return FatalError(
        f"{text}. Trying again would not help: mend the cause named here and start again."
    )


def classify_exception(failure: BaseException, doing: str) -> EverflowError:
    """``classify`` for an exception; anything that is not a Kafka error becomes a FatalError naming
    it."""
    error = kafka_error(failure)
    if error is None:
        return FatalError(f"{doing}: {failure!r}")
    return classify(error, doing)
