"""What the latency bench sends, and how an output is matched with the record that caused it.

The keys go round, in an order that is scattered but the same each time, so the count of record
number `i` is `i // keys + 1`: key and count of an output name the record, and with many keys no two
records of one commit share a key (both systems emit the last count per key and commit). Scattered,
as the keys of one commit are not neighbours in a store where they are not made up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.topics import key_of


@dataclass(frozen=True)
class Phase:
    """A stretch at a constant rate. Phases without a case warm up; a pause is a phase of no
    records."""

    case: str | None
    records: int
    records_per_s: float
    pause_before_s: float = 0.0


FILL_RATE = 50_000.0
STRIDE = 2_654_435_761
"""A prime: its multiples go through all keys before one comes twice."""


def schedule(
    rates: Sequence[int], warm_up_s: float, measured_s: float, idle_s: float, fill: int = 0
) -> list[Phase]:
    """Every rate warmed up, then measured; at last the first ten records after an idle stretch.
    `fill` records come before all, fast."""
    phases: list[Phase] = [Phase(None, fill, FILL_RATE)] if fill else []
    for rate in rates:
        phases.append(Phase(None, round(rate * warm_up_s), rate))
        phases.append(Phase(str(rate), max(1, round(rate * measured_s)), rate))
    if idle_s > 0:
        phases.append(Phase(f"after {idle_s:.0f} s idle", 10, 10.0, pause_before_s=idle_s))
    return phases


def scattered(number: int, keys: int) -> int:
    """The index of record `number`'s key; each `keys` records in a row have all of them."""
    return number * STRIDE % keys


def key_at(number: int, keys: int) -> str:
    """The key of record `number`."""
    return key_of(scattered(number, keys))


def number_of(key: str, count: int, keys: int) -> int:
    """The record number behind an output; the inverse of `key_at`."""
    index = int(key.rpartition("-")[2])
    return (count - 1) * keys + index * pow(STRIDE, -1, keys) % keys


def write_schedule(phases: Sequence[Phase], path: Path) -> None:
    """For the sender, which is a process of its own."""
    path.write_text(json.dumps([asdict(phase) for phase in phases]))


def read_schedule(path: Path) -> list[Phase]:
    """The inverse of `write_schedule`."""
    return [Phase(**phase) for phase in json.loads(path.read_text())]
