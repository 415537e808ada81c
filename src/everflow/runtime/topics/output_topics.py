"""The topics an application writes to by name: are they there, before anything runs? Pure."""

from __future__ import annotations

from collections.abc import Mapping

from everflow.errors import TopologyError
from everflow.topology.graph import SinkNode
from everflow.topology.program import Topology


def fixed_outputs(topology: Topology, dead_letter_topic: str | None) -> dict[str, str | None]:
    """The user's topics that are known at start (one chosen per record is not), and the line of the
    user's code."""
    found: dict[str, str | None] = {} if dead_letter_topic is None else {dead_letter_topic: None}
    for node in topology.nodes:
        if isinstance(node, SinkNode) and node.kind == "sink" and isinstance(node.topic, str):
            found[node.topic] = node.where
    return found


def missing_outputs(
    missing: Mapping[str, str | None],
    creates_topics: bool | None,
    partitions: int,
    dead_letter_topic: str | None = None,
) -> TopologyError | None:
    """The error for output topics (`fixed_outputs`) that nobody is going to create; each is called
    what it is.

    ``creates_topics``: the brokers' ``auto.create.topics.enable``; None (they do not tell) and True
    are no reason to stop.
    ``partitions``: as many as the widest input has, a number to begin with.
    """
    if not missing or creates_topics is not False:
        return None
    commands = "\n".join(
        f"  everflow topic create {name}:{partitions} --bootstrap-servers ..."
        for name in sorted(missing)
    )
    outputs = sorted(missing.keys() - {dead_letter_topic})
    named = [f"output topic {', '.join(outputs)}"] if outputs else []
    if dead_letter_topic in missing:
        named.append(f"dead-letter topic {dead_letter_topic} (errors.dead.letter.queue.topic.name)")
    verb = "do" if len(missing) > 1 else "does"
    return TopologyError(
        f"{' and '.join(named)} {verb} not exist, and the brokers do not create topics by "
        f"themselves "
        f"(auto.create.topics.enable=false); create it before the application starts, "
        f"e.g.\n{commands}",
        where=next((where for where in missing.values() if where is not None), None),
        code="EF-OUTPUT-TOPIC",
    )
