"""The records that everflow's instances write of their rebalances, joined over all instances.

An instance knows when it committed last what it gave away, and first what it got. Which of both
belong together, only all records say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everflow.logs import counted

FILE = "rebalances.jsonl"
Record = Mapping[str, Any]


class Migration(NamedTuple):
    """An active task that went to another instance: seconds between the last commit there and the
    first here, and when that was (s since the epoch). None: it was committed at one end only."""

    task: str
    origin: str
    to: str
    began_s: float
    gap_s: float | None


def records_in(folders: Iterable[Path]) -> list[Record]:
    """All records below the state folders, in the order of their beginnings; whole lines only."""
    found: list[Record] = []
    for folder in folders:
        for path in folder.glob(f"*/logs/{FILE}"):
            lines = path.read_bytes().splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith(b"\n")]
    return sorted(found, key=lambda record: record["began_ms"])


def migrations(records: Sequence[Record]) -> list[Migration]:
    """In the order in which the tasks came; of the records of one application."""
    lost: dict[str, tuple[str, int | None]] = {}
    found = []
    for at, record in enumerate(records):
        later = [one for one in records[at:] if one["instance"] == record["instance"]]
        for task in record["gained"]:
            if task not in lost:
                continue
            origin, last_ms = lost.pop(task)
            # Of one that was overtaken, a later record has it.
            first = (one["first_commits"].get(task) for one in later)
            first_ms = next((ms for ms in first if ms is not None), None)
            gap_s = None
            if first_ms is not None and last_ms is not None:
                gap_s = (first_ms - last_ms) / 1000
            found.append(
                Migration(task, origin, record["instance"], record["began_ms"] / 1000, gap_s)
            )
        for task in record["lost"]:
            lost[task] = record["instance"], record["last_commits"].get(task)
    return found


def rebalance_lines(records: Sequence[Record], since_s: float) -> list[str]:
    """For people: how many rebalances since then, how long they took, and each move with its gap;
    none without records, as of another system."""
    later = [record for record in records if record["began_ms"] >= since_s * 1000]
    if not later:
        return []
    took = [one["duration_ms"] for one in later if one["duration_ms"] is not None]
    gaps = [gap for one in later for gap in one["gaps_ms"].values() if gap is not None]
    lines = [
        f"  by the instances' own records: {counted(len(later), 'rebalance')}, the longest "
        f"{max(took, default=0.0) / 1000:.2f} s, the longest time without a commit of a task "
        f"{max(gaps, default=0.0) / 1000:.2f} s"
    ]
    for one in migrations(records):
        if one.began_s >= since_s:
            gap = "not known" if one.gap_s is None else f"{one.gap_s:.2f} s"
            lines.append(f"  task {one.task}: {one.origin} to {one.to}, gap {gap}")
    return lines
