"""Which output shows a record: the first one under its result's key with its time or a later one.

Both systems give a result the latest time of the records in it, and write several records of a key
that meet in one commit as one result; so a later time has the earlier record in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bench.load.latency_schedule import Phase
from bench.programs.catalogue import Program
from bench.verify import WrongOutputError

KEYS_FILE = "keys"

Int64Array = npt.NDArray[np.int64]


def latencies(
    program: Program,
    phases: Sequence[Phase],
    sent_ns: Int64Array,
    clock_offset_ns: int,
    seen: Int64Array,
    keys: Sequence[bytes],
) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Each case with the latencies in ms of its records that have a result. `seen` has the probe's
    triples. `WrongOutputError` where a record's result never came."""
    outputs = _by_key(seen, keys)
    first = 0
    for phase in phases:
        numbers = range(first, first + phase.records)
        first += phase.records
        if phase.case is None:
            continue
        found: list[float] = []
        missing = 0
        for number in numbers:
            key = program.result_key(number)
            if key is None:
                continue
            times_ms, seen_ns = outputs.get(key, (np.zeros(0), np.zeros(0)))
            sent = int(sent_ns[number])
            place = int(np.searchsorted(times_ms, (sent + clock_offset_ns) // 1_000_000))
            if place == len(times_ms):
                missing += 1
            else:
                found.append((seen_ns[place] - sent) / 1e6)
        if missing:
            raise WrongOutputError(
                f"{program.name}, case {phase.case}: {missing:,} of {phase.records:,} records "
                "have no result"
            )
        yield phase.case, np.array(found)


def _by_key(seen: Int64Array, keys: Sequence[bytes]) -> dict[bytes, tuple[Int64Array, Int64Array]]:
    """Key -> times that never fall, and when each was seen, in the order they were."""
    order = np.argsort(seen[:, 0], kind="stable")
    numbers, starts = np.unique(seen[order, 0], return_index=True)
    outputs: dict[bytes, tuple[Int64Array, Int64Array]] = {}
    for number, rows in zip(numbers, np.split(order, starts[1:]), strict=True):
        outputs[keys[number]] = (np.maximum.accumulate(seen[rows, 1]), seen[rows, 2])
    return outputs
