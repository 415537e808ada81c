"""Changes a consumer group from outside: who is in it (KIP-443), what it has committed (KIP-171).

Over a connection of its own, for the reason that `coordinator_questions` gives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kafka.protocol.consumer import LeaveGroupRequest, OffsetCommitRequest

from everflow.kafka.broker_link import RefusedError
from everflow.kafka.client_log import UNPOLLED
from everflow.kafka.coordinator_questions import Ask, MemberDescription, of_coordinator
from everflow.records import TopicPartition

_LEAVE_VERSIONS = (3, 5)
"""From the first one that takes static members out (KIP-345)."""
_COMMIT_VERSION = 8
"""The tenth has ids in the place of names."""
_REASON = "the application is reset"
_Topic = OffsetCommitRequest.OffsetCommitRequestTopic


def remove_members(
    config: Mapping[str, Any], group: str, members: Collection[MemberDescription], timeout_s: float
) -> None:
    """Take members out of the group, static ones too; one that has left meanwhile is no error. One
    that lives joins again. Raises as `of_coordinator`."""

    async def leave(ask: Ask) -> None:
        leaving = [
            LeaveGroupRequest.MemberIdentity(
                member_id="" if one.instance_id else one.member_id,
                group_instance_id=one.instance_id,
                reason=_REASON,
            )
            for one in members
        ]
        first, last = _LEAVE_VERSIONS
        request = LeaveGroupRequest(
            group_id=group, member_id="", members=leaving, min_version=first, max_version=last
        )
        answer = await ask(request)
        codes = {answer.error_code, *(one.error_code for one in answer.members or ())}
        if refused := codes - {0, KafkaError.UNKNOWN_MEMBER_ID}:
            raise RefusedError(min(refused))

    of_coordinator(config, group, timeout_s, leave)


def commit_offsets(
    config: Mapping[str, Any],
    group: str,
    offsets: Mapping[TopicPartition, int],
    metadata: str,
    timeout_s: float,
) -> None:
    """Commit for a group without members, all in one request; ``metadata`` stands beside each.

    Raises KafkaException as `of_coordinator`: UNKNOWN_MEMBER_ID where somebody is in the group.
    """
    topics: dict[str, list[Any]] = {}
    for tp, offset in sorted(offsets.items()):
        one = _Topic.OffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=metadata + "\0",  # for clients that read it as a C string
        )
        topics.setdefault(tp.topic, []).append(one)

    async def commit(ask: Ask) -> None:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[_Topic(name=name, partitions=listed) for name, listed in topics.items()],
            max_version=_COMMIT_VERSION,
        )
        answer = await ask(request)
        codes = {one.error_code for topic in answer.topics for one in topic.partitions} - {0}
        if codes:
            raise RefusedError(min(codes))

    of_coordinator(config, group, timeout_s, commit)


def groups_of(config: Mapping[str, Any], timeout_s: float) -> frozenset[str]:
    """The consumer groups of the cluster that may be seen. Raises KafkaException."""
    client = AdminClient({**UNPOLLED, **config})
    found = client.list_consumer_groups(request_timeout=timeout_s).result(timeout_s + 1)
    return frozenset(str(one.group_id) for one in found.valid)
