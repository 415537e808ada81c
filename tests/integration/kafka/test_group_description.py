"""The user data of a group's members as the broker tells them: how the host map of a large group is
read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everflow.assignment.user_data import hosts_of
from everflow.errors import RetriableError
from everflow.kafka.admin import user_data_of_group
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity
from everflow.membership.member import Roles
from everflow.testing.waiting import wait_until
from integration.kafka.group_members import Instance, assignor_of, await_settled

pytestmark = pytest.mark.broker


def test_the_described_host_map_is_the_one_that_was_sent(
    bootstrap: str, name: str, topic: Callable[..., str]
) -> None:
    settings = GroupSettings(
        bootstrap_servers=bootstrap, group_id=name, client={"fetch_min_bytes": 1}
    )
    subtopologies = {0: [topic(40)]}
    members = [
        Instance(
            settings, assignor_of(Identity(process_id=host, endpoint=f"{host}:1"), subtopologies)
        )
        for host in ("a", "b")
    ]
    try:
        await_settled(members, 40)

        def same() -> bool:
            for member in members:
                member.step()
            sent = [event.hosts for member in members for event in member.told_of(Roles)[-1:]]
            return sent == [hosts_of(user_data_of_group(settings))] * 2 and set(sent[0] or ()) == {
                "a:1",
                "b:1",
            }

        wait_until(same, 20, "the same map", lambda: [member.told_of(Roles) for member in members])
    finally:
        for member in members:
            member.member.leave()


def test_no_broker_is_a_passing_error() -> None:
    with pytest.raises(RetriableError, match="describing group g"):
        user_data_of_group(
            GroupSettings(bootstrap_servers="127.0.0.1:1", group_id="g"), timeout_s=1.0
        )
