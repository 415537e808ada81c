"""Asks the coordinator what it knows of a group's members, over a connection of its own."""

from __future__ import annotations

from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as client_errors
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from everflow.kafka.group_channel import GroupSettings, classify

TIMEOUT_S = 10.0


def user_data_of_group(
    settings: GroupSettings, timeout_s: float = TIMEOUT_S
) -> list[tuple[bytes, bytes]]:
    """(subscription, assignment) user data of all members, as of the last completed rebalance;
    empty while one runs.

    Connects anew: a fraction of a second. RetriableError without an answer within about
    ``timeout_s`` seconds.
    """
    doing = f"describing group {settings.group_id} at {settings.bootstrap_servers}"
    client: _Describer | None = None
    try:
        client = _Describer(**_client_config(settings, timeout_s))
        group = client.describe_groups([settings.group_id])[settings.group_id]
        if group.error_code:
            raise client_errors.for_code(group.error_code)(getattr(group, "error_message", None))
    except client_errors.KafkaError as failure:
        raise classify(failure, doing) from failure
    finally:
        if client is not None:
            client.close()
    if group.group_state != "Stable":
        return []
    return [
        (
            bytes(ConsumerProtocolSubscription.decode(member.member_metadata).user_data or b""),
            bytes(ConsumerProtocolAssignment.decode(member.member_assignment).user_data or b""),
        )
        for member in group.members
    ]


class _Describer(KafkaAdminClient):  # type: ignore[misc]
    """The client, without its turning of answers into what can be printed: that shortens the user
    data."""

    def _describe_groups_process_response(self, response: Any) -> dict[str, Any]:
        return {group.group_id: group for group in response.groups}


def _client_config(settings: GroupSettings, timeout_s: float) -> dict[str, Any]:
    known = {
        key: value
        for key, value in settings.client.items()
        if key in KafkaAdminClient.DEFAULT_CONFIG
    }
    return {
        **known,
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "client_id": settings.client_id,
        "bootstrap_timeout_ms": int(timeout_s * 1000),
        "request_timeout_ms": int(timeout_s * 1000),
    }
