"""The seven analyses of a log under faults, after Jepsen's Redpanda workload; pure functions over
what was read.

1. aborted read: something is there that only a failed writer can have written;
2. two values: an offset that was read twice, and differed;
3. lost: absent, though what came after it is there;
4. duplicate;
5. cycle: two versions of one list, of which neither continues the other: two writers did not know
   of each other;
6. inversion: an order of one writer is not kept, or a version goes back;
7. unseen: absent at the end, and nothing after it is there.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from chaos.rounds.orders import KEYS, SHOPS, Window, version_of
from everflow.serdes.windowed import split_window_store_key

T = TypeVar("T", bound=Hashable)


class Analysis(Enum):
    """Which of the seven."""

    ABORTED_READ = "aborted-read"
    TWO_VALUES = "two-values"
    LOST = "lost"
    DUPLICATE = "duplicate"
    CYCLE = "cycle"
    INVERSION = "inversion"
    UNSEEN = "unseen"


class Read(NamedTuple):
    """A committed record as a reader met it; ``timestamp`` in ms."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class Finding(NamedTuple):
    """One breach, in words for people."""

    analysis: Analysis
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.analysis.value} in {self.where}: {self.text}"


def numbers(reads: Iterable[Read]) -> list[int]:
    """The order that each record is of."""
    return [json.loads(read.value or b"")["n"] for read in reads]


def pairs(reads: Iterable[Read]) -> list[tuple[int, int]]:
    """(order, payment) of each record of the pairs."""
    told = (json.loads(read.value or b"") for read in reads)
    return [(one["order"], one["payment"]) for one in told]


def members(
    where: str,
    wanted: Iterable[T],
    found: Sequence[T],
    line_of: Callable[[T], Hashable],
) -> list[Finding]:
    """Analyses 1, 3, 4 and 7. ``line_of``: what keeps its order with what, so that a gap in it is
    told from an end that has not come."""
    wanted, counted = set(wanted), Counter(found)
    ends: dict[Hashable, T] = {}
    for one in counted:
        line = line_of(one)
        if line not in ends or one > ends[line]:  # type: ignore[operator]
            ends[line] = one
    findings = []
    for one in sorted(counted.keys() - wanted):  # type: ignore[type-var]
        findings.append(Finding(Analysis.ABORTED_READ, where, f"{one} is no result of the input"))
    for one, times in sorted(counted.items()):
        if times > 1:
            findings.append(Finding(Analysis.DUPLICATE, where, f"{one} is there {times} times"))
    for one in sorted(wanted - counted.keys()):  # type: ignore[type-var]
        last = ends.get(line_of(one))
        if last is not None and last > one:  # type: ignore[operator]
            findings.append(Finding(Analysis.LOST, where, f"{one} is missing, {last} is there"))
        else:
            findings.append(Finding(Analysis.UNSEEN, where, f"{one} is missing"))
    return findings


Place = tuple[Hashable, int]
"""What keeps its order with what, and the place in it."""


def by_customer(read: Read) -> list[Place]:
    """Orders (and payments) of one customer come from one partition of the input."""
    (n,) = numbers([read])
    return [(n % KEYS, n)]


def by_pair(read: Read) -> list[Place]:
    """A payment meets its customer's orders in their order, an order its payments."""
    ((order, payment),) = pairs([read])
    return [(("payment", payment), order), (("order", order), payment)]


def by_row(read: Read) -> list[Place]:
    """What is joined with a row of the table has its version, or a later one."""
    told = json.loads(read.value or b"")
    return [(SHOPS[told["n"] % len(SHOPS)], version_of(told["region"]))]


def kept_order(
    where: str,
    reads: Mapping[int, Sequence[Read]],
    places: Callable[[Read], Iterable[Place]] = by_customer,
) -> list[Finding]:
    """Analysis 6 on records that leave in the order in which they came, by partition."""
    findings = []
    for partition, found in reads.items():
        last: dict[Hashable, int] = {}
        for read in found:
            for line, place in places(read):
                before = last.get(line, -1)
                if place < before:
                    text = f"{place} of {line} at {partition}@{read.offset} follows {before}"
                    findings.append(Finding(Analysis.INVERSION, where, text))
                last[line] = max(before, place)
    return findings


def window_of(key: bytes) -> Window:
    """Of a record's key: the shop, and the window's start in ms (a store's key is longer by a
    number)."""
    return key[:-8].decode(), int.from_bytes(key[-8:], "big")


def stored_window_of(key: bytes) -> Window:
    """`window_of` for the keys of the store and its changelog."""
    shop, start = split_window_store_key(key)
    return shop.decode(), start


def listed(value: bytes) -> list[int]:
    """The orders of a window's list."""
    return [int(text) for text in value.decode().split(",")]


def versions(
    where: str,
    reads: Mapping[int, Sequence[Read]],
    of: Callable[[bytes], Window],
) -> tuple[dict[Window, list[int]], list[Finding]]:
    """Analyses 4, 5 and 6 on lists that only grow; and the last version of each."""
    last: dict[Window, list[int]] = {}
    findings = []
    for partition, found in reads.items():
        for read in found:
            window, place = of(read.key or b""), f"{partition}@{read.offset}"
            now, before = listed(read.value or b""), last.get(of(read.key or b""), [])
            if now[: len(before)] != before:
                back = before[: len(now)] == now
                kind = Analysis.INVERSION if back else Analysis.CYCLE
                text = f"{window} at {place} has {_short(now)} after {_short(before)}"
                findings.append(Finding(kind, where, text))
            elif now == before:
                findings.append(Finding(Analysis.DUPLICATE, where, f"{window} again at {place}"))
            last[window] = now
    for window, now in last.items():
        findings += _inner_order(where, window, now)
    return last, findings


def _inner_order(where: str, window: Window, orders: Sequence[int]) -> list[Finding]:
    """Orders of one customer come from one partition of the input, so they keep their order."""
    last: dict[int, int] = {}
    findings = []
    for n in orders:
        if last.get(n % KEYS, -1) > n:
            text = f"{n} stands behind {last[n % KEYS]} in {window}"
            findings.append(Finding(Analysis.INVERSION, where, text))
        last[n % KEYS] = n
    return findings


def _short(orders: Sequence[int]) -> str:
    if len(orders) <= 6:
        return str(list(orders))
    return f"{len(orders)} orders, the last {list(orders[-4:])}"


def list_members(
    where: str, wanted: Mapping[Window, set[int]], found: Mapping[Window, Sequence[int]]
) -> list[Finding]:
    """`members` of every window's last list."""
    findings = []
    for window in sorted({*wanted, *found}):
        place = f"{where} {window[0]} from {window[1]}"
        inside = wanted.get(window, set())
        findings += members(place, inside, found.get(window, ()), lambda n: n % KEYS)
    return findings


def read_again(
    where: str,
    early: Mapping[int, Sequence[Read]],
    late: Mapping[int, Sequence[Read]],
    *,
    compacted: bool = False,
) -> list[Finding]:
    """Analyses 1 and 2 (and 6, of the early reader's offsets): what was read at once is what is
    read at the end. What is not there any more was never committed, unless compaction removed
    it."""
    findings = []
    for partition, before in early.items():
        after = {read.offset: read for read in late.get(partition, ())}
        previous = -1
        for read in before:
            place = f"{partition}@{read.offset}"
            if read.offset <= previous:
                text = f"{place} was read after {previous}"
                findings.append(Finding(Analysis.INVERSION, where, text))
            previous = read.offset
            if read.offset not in after and not compacted:
                text = f"{place} was {read.value!r:.60}, and is not there at the end"
                findings.append(Finding(Analysis.ABORTED_READ, where, text))
            if after.get(read.offset, read) != read:
                text = f"{place} was {read.value!r:.60}, and is {after[read.offset].value!r:.60}"
                findings.append(Finding(Analysis.TWO_VALUES, where, text))
    return findings


def written_once(where: str, reads: Mapping[int, Sequence[Read]]) -> list[Finding]:
    """Analysis 4 on a changelog whose keys are used once."""
    findings = []
    for partition, found in reads.items():
        counted: dict[bytes | None, list[int]] = defaultdict(list)
        for read in found:
            counted[read.key].append(read.offset)
        findings += [
            Finding(Analysis.DUPLICATE, where, f"{key!r} in partition {partition} at {offsets}")
            for key, offsets in counted.items()
            if len(offsets) > 1
        ]
    return findings
