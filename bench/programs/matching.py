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
_NONE = np.zeros(0, dtype=np.int64)


def latencies(
    program: Program,
    phases: Sequence[Phase],
    sent_ns: Int64Array,
    clock_offset_ns: int,
    seen: Int64Array,
    keys: Sequence[bytes],
    given_up_ns: int | None = None,
) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Each case with the latencies in ms of its records that have a result. `seen` has the probe's
    triples. A record whose result never came raises `WrongOutputError`; with `given_up_ns`, when
    the bench stopped waiting for a system that had fallen behind, it waited until then at least."""
    outputs = _by_key(seen, keys)
    first = 0
    for phase in phases:
        of_key: dict[bytes, list[int]] = {}
        for number in range(first, first + phase.records) if phase.case is not None else ():
            key = program.result_key(number)
            if key is not None:
                of_key.setdefault(key, []).append(number)
        first += phase.records
        if phase.case is None:
            continue
        found: list[npt.NDArray[np.float64]] = [np.zeros(0)]
        missing = 0
        for key, numbers in of_key.items():
            times_ms, seen_ns = outputs.get(key, (_NONE, _NONE))
            sent = sent_ns[numbers]
            places = np.searchsorted(times_ms, (sent + clock_offset_ns) // 1_000_000)
            missing += int(np.count_nonzero(places == len(times_ms)))
            ends = np.append(seen_ns, given_up_ns or 0)
            found.append((ends[places] - sent) / 1e6)
        if missing and given_up_ns is None:
            raise WrongOutputError(
                f"{program.name}, case {phase.case}: {missing:,} of {phase.records:,} records "
                "have no result"
            )
        yield phase.case, np.concatenate(found)


def _by_key(seen: Int64Array, keys: Sequence[bytes]) -> dict[bytes, tuple[Int64Array, Int64Array]]:
    """Key -> times that never fall, and when each was seen, in the order they were."""
    if not len(seen):
        return {}
    order = np.argsort(seen[:, 0], kind="stable")
    numbers, starts = np.unique(seen[order, 0], return_index=True)
    outputs: dict[bytes, tuple[Int64Array, Int64Array]] = {}
    for number, rows in zip(numbers, np.split(order, starts[1:]), strict=True):
        outputs[keys[number]] = (np.maximum.accumulate(seen[rows, 1]), seen[rows, 2])
    return outputs
