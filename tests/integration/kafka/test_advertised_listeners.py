"""A broker that answers, and says that it is where this machine finds nothing."""

from __future__ import annotations

import socket

import pytest

from everflow.errors import TaskTimeoutError
from everflow.kafka.admin import ClusterAdmin
from everflow.testing import EmbeddedBroker
from everflow.testing.broker_security import INSIDE


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_the_advertised_host_that_cannot_be_reached_is_named_not_the_one_that_answered() -> None:
    inside, unknown, silent, controller = free_ports(4)
    doors = f"{INSIDE}://127.0.0.1:{inside}"
    controllers = f"127.0.0.1:{controller}"
    config = {
        "listeners": (
            f"{doors},UNKNOWN://127.0.0.1:{unknown},SILENT://127.0.0.1:{silent},"
            f"CONTROLLER://{controllers}"
        ),
        "advertised.listeners": f"{doors},UNKNOWN://kafka.invalid:{unknown},SILENT://127.0.0.1:1",
        "controller.quorum.voters": f"1@{controllers}",
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in (INSIDE, "UNKNOWN", "SILENT", "CONTROLLER")
        ),
    }
    with EmbeddedBroker(port=inside, config=config):
        for door, advertised in ((unknown, f"kafka.invalid:{unknown}"), (silent, "127.0.0.1:1")):
            lines: list[str] = []
            admin = ClusterAdmin({"bootstrap.servers": f"127.0.0.1:{door}"})
            with pytest.raises(TaskTimeoutError) as error:
                admin.wait_until_reachable(3, lines.append)
            admin.close()
            for said in (str(error.value), lines[-1]):
                assert f"a Kafka broker answered at 127.0.0.1:{door}" in said
                assert f"where it says that they are: {advertised}" in said
                assert "advertised.listeners" in said
                assert "no Kafka broker answered" not in said
