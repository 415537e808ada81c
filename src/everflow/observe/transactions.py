"""What an instance's transactions do, for people and programs: `/status` and the page. Pure."""

from __future__ import annotations

from typing import Any

from everflow import metrics as names
from everflow.observe.observation import Observation

ABORTED, FENCED = "aborted", "migrated"
"""Kinds of failed batches: the first is told by its causes, the second by itself."""


def transactions(seen: Observation) -> dict[str, Any]:
    """By stream thread; and what open transactions of anybody hold back, the worst first. A number
    that is not known is None."""
    return {
        "threads": [_thread(seen, thread.number) for thread in seen.threads],
        "ended_of_others": seen.counters.get(names.WRITERS_FENCED, 0.0),
        "held_back": held_back(seen),
        "told_s": seen.told_s,
    }


def held_back(seen: Observation) -> list[dict[str, Any]]:
    """Partitions of which readers of committed records do not see the end: what is held back for
    the longest time first."""
    rows = [
        {"topic": topic, "partition": partition, **one._asdict()}
        for (topic, partition), one in seen.held_back.items()
        if one.records
    ]
    return sorted(
        rows, key=lambda row: (-row["held_s"], -row["records"], row["topic"], row["partition"])
    )


def _thread(seen: Observation, number: int) -> dict[str, Any]:
    thread = str(number)
    writer = next((one for one in seen.writers if one.thread == number), None)
    failed = {
        kind: count
        for (of, kind), count in seen.series.get(names.FAILED_BATCHES, {}).items()
        if of == thread
    }
    refused = {
        cause: count
        for (of, cause), count in seen.series.get(names.REFUSED_COMMITS, {}).items()
        if of == thread
    }
    others = {kind: count for kind, count in failed.items() if kind not in (ABORTED, FENCED)}
    return {
        "thread": number,
        "transactional_id": "" if writer is None else writer.transactional_id,
        "state": None if writer is None else writer.state,
        "open_s": None if writer is None else writer.open_s,
        "committed_ms": seen.series.get(names.LAST_COMMIT, {}).get((thread,)),
        "aborted": {**refused, **others},
        "fenced": failed.get(FENCED, 0.0),
        "renewed": seen.series.get(names.RENEWED_PRODUCERS, {}).get((thread,), 0.0),
    }
