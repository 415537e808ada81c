"""What an admin client answers, or why it does not: in offsets and in everflow's errors.

A leader that does not answer hides no other's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeAlias

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import OffsetSpec

from everflow.errors import EverflowError, RetriableError
from everflow.kafka.errors import classify_exception, kafka_error
from everflow.records import TopicPartition

Futures: TypeAlias = Mapping[ClientTopicPartition, "Future[Any]"]
Specs: TypeAlias = Mapping[TopicPartition, OffsetSpec]

ASKING = "asking for offsets"
_STALE_METADATA = frozenset(
    {KafkaError._NOENT, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
)
"""Answers after which an admin client may go on asking with what it remembers of topics: a new one
does not."""
_MOST_ALONE = 100
"""Up to so many logs each is asked about by itself, beyond it each topic."""


def offset_answers(
    ask: Callable[[dict[ClientTopicPartition, OffsetSpec]], Futures],
    specs: Specs,
    answer: Callable[[Future[Any]], Any],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Exception]]:
    """The offsets that were told, and for the other logs why theirs were not.

    ``answer`` waits for a future, and raises KafkaException or TimeoutError. librdkafka refuses a
    question as a whole where one log has no leader: then the parts of it are asked at the same
    time.
    """
    told, refused = _settled(ask(_named(specs)), answer)
    if told or len(specs) < 2:
        return told, refused
    for futures in [ask(_named(part)) for part in _parts(specs)]:
        found, why = _settled(futures, answer)
        told |= found
        refused |= why
    return told, {tp: why for tp, why in refused.items() if tp not in told}


def _parts(specs: Specs) -> list[Specs]:
    if len(specs) <= _MOST_ALONE:
        return [{tp: spec} for tp, spec in specs.items()]
    topics = {tp.topic for tp in specs}
    return [{tp: spec for tp, spec in specs.items() if tp.topic == topic} for topic in topics]


def _named(specs: Specs) -> dict[ClientTopicPartition, OffsetSpec]:
    return {ClientTopicPartition(tp.topic, tp.partition): spec for tp, spec in specs.items()}


def _settled(
    futures: Futures, answer: Callable[[Future[Any]], Any]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Exception]]:
    told: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, Exception] = {}
    for named, future in futures.items():
        tp = TopicPartition(named.topic, named.partition)
        try:
            offset = int(answer(future).offset)
        except (KafkaException, TimeoutError, FutureTimeoutError) as failure:
            # Its traceback holds this frame, and with it the client, in a circle.
            refused[tp] = failure.with_traceback(None)
            continue
        # A leader that does not answer in time is no error to librdkafka 2.16: its offsets are
        # "invalid", -1001. Taken for the end of a log, that would empty stores.
        if offset == OFFSET_INVALID:
            refused[tp] = TimeoutError()
        else:
            told[tp] = offset
    return told, refused


def stale(failures: Iterable[Exception]) -> bool:
    """Whether the client that met them had better be replaced: it may go on asking a leader that is
    gone for minutes, as nothing but such a question makes it look for the new one."""
    return any(
        code_of(why) in _STALE_METADATA
        if isinstance(why, KafkaException)
        else isinstance(why, TimeoutError | FutureTimeoutError)
        for why in failures
    )


def unanswered(refused: Mapping[TopicPartition, Exception]) -> EverflowError:
    """Why some offsets were not told: what will not pass, or which logs the brokers say nothing
    of."""
    errors = [classified(why, f"{ASKING} of {tp}") for tp, why in sorted(refused.items())]
    for error in errors:
        if not isinstance(error, RetriableError):
            return error
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return RetriableError(f"{errors[0]}{more}", refused)


def classified(failure: BaseException, doing: str) -> EverflowError:
    """The error for what a client raises while ``doing``; a time-out passes."""
    if isinstance(failure, KafkaException):
        return classify_exception(failure, doing)
    return RetriableError(f"{doing}: no answer in time")


def refusal(reader: Consumer) -> KafkaException | None:
    """What a consumer that is not polled otherwise, and never subscribes, was told about its group:
    that it is forbidden. A consumer says so once."""
    while (told := reader.poll(0)) is not None:
        error = told.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return KafkaException(error)
    return None


def of_partition(answer: ClientTopicPartition) -> KafkaException:
    """The error of an answer, with its partition: a topic may be forbidden, not the group."""
    error = answer.error
    assert error is not None
    text = f"{answer.topic}-{answer.partition}: {error.str()}"
    return KafkaException(KafkaError(error.code(), text, retriable=error.retriable()))


def metadata_of(answer: ClientTopicPartition) -> str:
    """The metadata text of an answer. The client reads it as a C string though librdkafka does not
    always end it with a NUL, so stray bytes may follow, not even UTF-8 (seen: one read in some
    thousands); writers end their texts in a way that shows."""
    try:
        text: str | None = answer.metadata
    except UnicodeDecodeError as garbage:
        text = garbage.object.decode("utf-8", "replace")
    return (text or "").split("\x00", 1)[0]


def code_of(failure: KafkaException) -> int | None:
    """Kafka's or librdkafka's error code."""
    error = kafka_error(failure)
    return None if error is None else error.code()
