"""The topics an application writes to by name: whether they are there, before anything runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from everflow.errors import TopologyError
from everflow.topology.graph import SinkNode, Topology


def fixed_outputs(topology: Topology, dead_letter_topic: str | None) -> dict[str, str | None]:
    """The user's topics that are known at start (one chosen per record is not), and the line of the user's code."""
    found: dict[str, str | None] = {} if dead_letter_topic is None else {dead_letter_topic: None}
    for node in topology.nodes:
        if isinstance(node, SinkNode) and node.kind == "sink" and isinstance(node.topic, str):
            found[node.topic] = node.where
    return found


def missing_outputs(missing: Mapping[str, str | None], creates_topics: bool | None, partitions: int) -> TopologyError | None:
    """The error for output topics (`fixed_outputs`) that nobody is going to create.

    ``creates_topics``: the brokers' ``auto.create.topics.enable``; None (they do not tell) and True are no reason to stop.
    ``partitions``: as many as the widest input has, a number to begin with.
    """
    if not missing or creates_topics is not False:
        return None
    commands = "\n".join(
        f"  kafka-topics --create --topic {name} --partitions {partitions} --bootstrap-server ..." for name in sorted(missing)
    )
    return TopologyError(
        f"output topic {', '.join(sorted(missing))} does not exist, and the brokers do not create topics by themselves "
        f"(auto.create.topics.enable=false); create it before the application starts, e.g.\n{commands}",
        where=next(iter(missing.values())),
        code="EF-OUTPUT-TOPIC",
    )
