"""Who is in a consumer group and what it has committed, asked of its coordinator.

Over a connection of its own, not by librdkafka's DescribeConsumerGroups, nor its
ListConsumerGroupOffsets: once such a request has timed out while no broker answered, librdkafka
2.16 aborts the process when the coordinator is back (``Assertion `eonce->refcnt > 0' failed``; its
issues 3663 and 4605).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from everflow.kafka.broker_link import BrokerLink, LinkLostError, RefusedError
from everflow.kafka.connection_settings import connection_settings
from everflow.records import TopicPartition

T = TypeVar("T")
Ask = Callable[[Any], Awaitable[Any]]
"""Sends a request to the coordinator; its answer. Raises LinkLostError."""

_DESCRIBE_VERSION = 5
"""The next one calls a group that has no members an error."""
_OFFSETS_VERSION = 7
"""The next one asks for several groups at a time."""


@dataclass(frozen=True)
class MemberDescription:
    """Of a group. ``instance_id``: its group.instance.id, if it is a static one."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None


def members_of(
    config: Mapping[str, Any], group: str, timeout_s: float
) -> tuple[MemberDescription, ...]:
    """A group's members, none for a group that nobody is in. See `of_coordinator`."""

    async def members(ask: Ask) -> tuple[MemberDescription, ...]:
        request = DescribeGroupsRequest(
            groups=[group], include_authorized_operations=False, max_version=_DESCRIBE_VERSION
        )
        (told,) = (await ask(request)).groups
        if told.error_code:
            raise RefusedError(told.error_code)
        return tuple(
            MemberDescription(
                str(one.member_id), str(one.client_id), str(one.client_host), one.group_instance_id
            )
            for one in told.members
        )

    return of_coordinator(config, group, timeout_s, members)


def client_ids_of(config: Mapping[str, Any], group: str, timeout_s: float) -> frozenset[str]:
    """Client ids of a group's members. See `members_of`."""
    return frozenset(member.client_id for member in members_of(config, group, timeout_s))


def committed_of(
    config: Mapping[str, Any], group: str, timeout_s: float
) -> dict[TopicPartition, int]:
    """Every offset that a group has committed; what a transaction has open does not count yet. See
    `of_coordinator`."""

    async def offsets(ask: Ask) -> dict[TopicPartition, int]:
        request = OffsetFetchRequest(
            group_id=group, topics=None, require_stable=False, max_version=_OFFSETS_VERSION
        )
        told = await ask(request)
        if told.error_code:
            raise RefusedError(told.error_code)
        return {
            TopicPartition(str(topic.name), int(one.partition_index)): int(one.committed_offset)
            for topic in told.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }

    return of_coordinator(config, group, timeout_s, offsets)


def of_coordinator(
    config: Mapping[str, Any],
    group: str,
    timeout_s: float,
    question: Callable[[Ask], Awaitable[T]],
) -> T:
    """What ``question`` makes of the coordinator's answer; ``config`` has librdkafka's settings.
    From any thread.

    Raises:
        KafkaException: the coordinator refuses to tell, or does not answer.
        RetriableError: no broker answers within ``timeout_s`` seconds.
        FatalError: one refuses this client.
    """
    connection = connection_settings(config)
    link = BrokerLink(connection, int(timeout_s * 1000), timeout_s, "everflow-group-questions")

    async def ask(request: Any) -> Any:
        return await link.send(await link.coordinator("group", group), request, timeout_s)

    try:
        return link.run(lambda: question(ask))
    except RefusedError as failure:
        raise KafkaException(KafkaError(failure.code)) from failure
    except LinkLostError as failure:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, str(failure))) from failure
    finally:
        link.close()
