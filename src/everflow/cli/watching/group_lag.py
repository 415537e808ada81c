"""How far a group is behind its topics, by partition, as the brokers know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everflow.config import StreamsConfig
from everflow.console.observed import table
from everflow.errors import FatalError
from everflow.kafka.admin import ClusterAdmin

ASK_S = 20.0


def lag_rows(
    config: StreamsConfig, admin: ClusterAdmin, application_id: str
) -> list[dict[str, Any]]:
    """Topic, partition, committed, end and lag, worst first. FatalError where the group has
    committed nothing; RetriableError without an answer."""
    committed = admin.all_committed(application_id, ASK_S)
    if not committed:
        raise FatalError(
            f"group {application_id} has committed nothing at {config.bootstrap_servers}. Is this "
            f"its application.id, and has it processed a record?"
        )
    ends = admin.list_offsets(list(committed), "latest", "read_committed")
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "committed": offset,
            "end": ends[tp],
            "lag": max(0, ends[tp] - offset),
        }
        for tp, offset in committed.items()
    ]
    return sorted(rows, key=lambda row: (-row["lag"], row["topic"], row["partition"]))


def lag_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """See `lag_rows`; the last line is the sum."""
    cells = [
        (row["topic"], str(row["partition"]), *(f"{row[name]:,}" for name in _NUMBERS))
        for row in rows
    ]
    total = sum(row["lag"] for row in rows)
    head = ("topic", "partition", *_NUMBERS)
    return [*table([head, *cells]), f"together {total:,} records behind"]


_NUMBERS = ("committed", "end", "lag")
