"""``everflow broker --topic name:partitions``: what was asked for, read and created."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from everflow.errors import ConfigError
from everflow.kafka.admin import ClusterAdmin
from everflow.records import names_a_topic

_MOST_PARTITIONS = 1_000
"""Enough for any program; a small node holds them all, each with files of its own."""


def parse_topics(
    given: Sequence[str], *, option: str = "--topic ", partitions: int | None = None
) -> dict[str, int]:
    """Partitions by topic name, in the order given. ``partitions`` are those of an argument that
    names none: without it each must.

    Raises ConfigError, naming the argument behind ``option``, for one that is not
    ``name:partitions``, a name or a number of partitions that the broker would refuse, and a topic
    given twice.
    """
    topics: dict[str, int] = {}
    for argument in given:
        name, separator, count = argument.rpartition(":")
        if not separator and partitions is not None:
            name, count = argument, str(partitions)
        elif not separator or not re.fullmatch(r"[0-9]+", count):
            raise ConfigError(f"{option}{argument!r}: write it as name:partitions, e.g. orders:4.")
        if not names_a_topic(name):
            raise ConfigError(
                f"{option}{argument!r}: a topic's name is 1 to 249 letters, digits, '.', '_' or "
                f"'-'; not {name!r}."
            )
        if not 1 <= int(count) <= _MOST_PARTITIONS:
            raise ConfigError(
                f"{option}{argument!r}: a topic has 1 to {_MOST_PARTITIONS:,} partitions here."
            )
        if name in topics:
            raise ConfigError(f"{option}{argument!r}: topic {name} is given twice.")
        topics[name] = int(count)
    return topics


def create_topics(
    bootstrap_servers: str, topics: Mapping[str, int], say: Callable[[str], None]
) -> None:
    """Create those that are missing, and say a line of each; they can be written to afterwards.

    One that exists (``--data-dir`` keeps them) is left as it is. Raises ConfigError if it has
    another number of partitions, before any is created; RetriableError where the broker does not
    answer.
    """
    with closing(ClusterAdmin({"bootstrap.servers": bootstrap_servers})) as admin:
        found = admin.describe_topics(topics)
        for name, topic in found.items():
            if topic.partitions != topics[name]:
                raise ConfigError(
                    f"--topic {name}:{topics[name]}: the topic exists in the data folder with "
                    f"{_partitions(topic.partitions)}. "
                    f"Write {name}:{topic.partitions}, or take another --data-dir."
                )
        admin.create_topics(
            {name: (partitions, {}) for name, partitions in topics.items() if name not in found}
        )
    for name, partitions in topics.items():
        there = " (was there already)" if name in found else ""
        say(f"topic {name}, {_partitions(partitions)}{there}")


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count != 1)}"
