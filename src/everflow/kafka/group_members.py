"""Who is in a consumer group, asked of its coordinator over a connection of its own.

Not by librdkafka's DescribeConsumerGroups, nor its ListConsumerGroupOffsets: once such a request
has timed out while no broker answered, librdkafka 2.16 aborts the process when the coordinator is
back (``Assertion `eonce->refcnt > 0' failed``; its issues 3663 and 4605).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.admin import DescribeGroupsRequest

from everflow.kafka.broker_link import BrokerLink, LinkLostError, RefusedError
from everflow.kafka.connection_settings import connection_settings

_VERSION = 5
"""The next one calls a group that has no members an error."""


def client_ids_of(config: Mapping[str, Any], group: str, timeout_s: float) -> frozenset[str]:
    """Client ids of a group's members, none for a group that nobody is in; ``config`` has
    librdkafka's settings. From any thread.

    Raises:
        KafkaException: the coordinator refuses to tell, or does not answer.
        RetriableError: no broker answers within ``timeout_s`` seconds.
        FatalError: one refuses this client.
    """
    connection = connection_settings(config)
    link = BrokerLink(connection, int(timeout_s * 1000), timeout_s, "everflow-group-members")

    async def ask() -> frozenset[str]:
        request = DescribeGroupsRequest(
            groups=[group], include_authorized_operations=False, max_version=_VERSION
        )
        node = await link.coordinator("group", group)
        (told,) = (await link.send(node, request, timeout_s)).groups
        if told.error_code:
            raise RefusedError(told.error_code)
        return frozenset(str(member.client_id) for member in told.members)

    try:
        return link.run(ask)
    except RefusedError as failure:
        raise KafkaException(KafkaError(failure.code)) from failure
    except LinkLostError as failure:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, str(failure))) from failure
    finally:
        link.close()
