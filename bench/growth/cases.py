"""The cases of `bench growth`: one dimension grows at a time, all else stays at a base. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.growth.inputs import LATEST, Input
from bench.systems import COUNT
from bench.topics import PARTITIONS

KEYS, PARTITION, SIZE, PAGES, MEMORY = "keys", "partitions", "sizes", "pages", "memory"
STATE = "state"
DIMENSIONS = (STATE, KEYS, PARTITION, SIZE, PAGES, MEMORY)
WITHOUT_SYSTEMS = (STATE, PAGES)
BASE_KEYS = 100_000
BASE_BYTES = 100
# Of one record in the state that is larger than memory.
STATE_BYTES = 1_000
SIZES_BYTES_MAX = 512 << 20
# Records of a growing size: a fifth of them are the keys.
RECORDS_A_KEY = 5
LATENCY_RATE = 1_000


@dataclass(frozen=True)
class GrowthPlan:
    """What to measure. `records` are those behind the fill; `limits_mib` (0: none) and `state_mib`
    are of the state that is larger than memory; `measures`: throughput, latency."""

    guarantee: str
    dimensions: Sequence[str] = DIMENSIONS
    keys: Sequence[int] = (10_000, 100_000, 1_000_000, 10_000_000)
    partitions: Sequence[int] = (1, 4, 16, 64, 200)
    sizes: Sequence[int] = (100, 1_000, 10_000, 100_000)
    changed: Sequence[int] = (100, 1_000, 10_000, 100_000)
    states: Sequence[int] = (1_000, 10_000, 100_000)
    measures: Sequence[str] = ("throughput", "latency")
    records: int = 1_000_000
    limits_mib: Sequence[int] = (0, 2_048)
    state_mib: int = 4_096
    threads: int = 2
    runs: int = 1
    timeout_s: float = 600.0
    warm_up_s: float = 8.0
    measured_s: float = 10.0


@dataclass(frozen=True)
class Case:
    """One throughput run's input; `limit_bytes` None: as much memory as there is."""

    name: str
    made: Input
    partitions: int = PARTITIONS
    limit_bytes: int | None = None


def throughput_cases(plan: GrowthPlan) -> Iterator[Case]:
    """Of the dimensions that are asked for, from small to large."""
    if KEYS in plan.dimensions:
        for keys in plan.keys:
            yield Case(f"{keys:,} keys", Input(COUNT, keys, plan.records, BASE_BYTES))
    if PARTITION in plan.dimensions:
        for partitions in plan.partitions:
            made = Input(COUNT, BASE_KEYS, plan.records, BASE_BYTES)
            yield Case(f"{partitions} partitions", made, partitions)
    if SIZE in plan.dimensions:
        for size in plan.sizes:
            records = min(plan.records, SIZES_BYTES_MAX // size)
            made = Input(LATEST, max(1, records // RECORDS_A_KEY), records, size)
            yield Case(f"records of {size:,} bytes", made)
    if MEMORY in plan.dimensions:
        made = Input(LATEST, plan.state_mib * 2**20 // STATE_BYTES, plan.records, STATE_BYTES)
        for limit in plan.limits_mib:
            where = f"in {limit:,} MiB" if limit else "no limit"
            name = f"state of {plan.state_mib:,} MiB, {where}"
            yield Case(name, made, limit_bytes=limit * 2**20 or None)


def latency_cases(plan: GrowthPlan) -> Iterator[tuple[str, int, int]]:
    """Name, keys and partitions, where latency says something."""
    if KEYS in plan.dimensions:
        for keys in plan.keys:
            yield f"{keys:,} keys", keys, PARTITIONS
    if PARTITION in plan.dimensions:
        for partitions in plan.partitions:
            yield f"{partitions} partitions", BASE_KEYS, partitions
