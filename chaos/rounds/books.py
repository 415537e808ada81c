"""Everything that a chaos run checks, together: outputs, stores, dead letters, counters, files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.report import ChaosReport
from chaos.rounds.analyses import (
    Analysis,
    Finding,
    Read,
    by_pair,
    by_row,
    kept_order,
    list_members,
    listed,
    members,
    numbers,
    pairs,
    read_again,
    stored_window_of,
    versions,
    window_of,
    written_once,
)
from chaos.rounds.fleet import Place
from chaos.rounds.follower import Follower, Reads
from chaos.rounds.orders import KEYS, Truth, Window, version_of
from chaos.rounds.program import (
    COPIES,
    DEAD,
    LISTS,
    ORDERS_STORE,
    PAIRS,
    PAYMENTS_STORE,
    REGIONS,
    SHOPS,
    SHOPS_STORE,
    WINDOWS_STORE,
    topic,
)
from everflow.state.changelog import pack_value, unpack_value
from everflow.state.lmdb_store import LmdbStore

_LETTER = re.compile(rb'^order (\d+)|"n": ?(\d+)')


@dataclass
class Report(ChaosReport):
    """And what this run is about."""

    findings: dict[str, int] = field(default_factory=dict)
    """By analysis."""
    dead_letters_wrong: int = 0
    dropped_wrong: int = 0
    coordinators_stuck: int = 0
    """How often the broker was restarted because it did not send its markers, or had forgotten
    committed offsets (`chaos.rounds.coordinator`): faults of its own."""
    orders: dict[str, int] = field(default_factory=dict)
    """By kind."""
    rate: float = 0.0
    """Orders a second."""
    purged: int = 0
    """Records deleted of the repartition topic, behind whoever had read them."""
    network: str = ""
    """What the instances' networks were made of (`chaos.rounds.surroundings`)."""
    left_out: list[str] = field(default_factory=list)
    """The kinds of faults that were asked for, and that the machine gives no leave for."""
    not_done: int = 0
    """Faults that could not be shown to have happened."""
    remarks: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing twice, nothing wrong."""
        return not self.remarks

    def note(self, findings: Iterable[Finding]) -> None:
        """Count them, and keep what they say."""
        for finding in findings:
            name = finding.analysis.value
            self.findings[name] = self.findings.get(name, 0) + 1
            self.lost += finding.analysis in (Analysis.LOST, Analysis.UNSEEN)
            self.duplicated += finding.analysis is Analysis.DUPLICATE
            self.remarks.append(str(finding))

    def told(self) -> dict[str, Any]:
        """For ``--json``."""
        shown = {key: value for key, value in vars(self).items() if key != "remarks"}
        return {**shown, "remarks": self.remarks[:50]}


def letter_number(value: bytes | None) -> int:
    """The order that a dead letter holds; -1 for none."""
    found = _LETTER.search(value or b"")
    return int(found[1] or found[2]) if found else -1


class Visible:
    """What a reader has seen so far of every result; looks at each record once."""

    def __init__(self, follower: Follower, application: str) -> None:
        self._follower, self._application = follower, application
        self._looked: Counter[tuple[str, int]] = Counter()
        self._copies: set[int] = set()
        self._pairs: set[tuple[int, int]] = set()
        self._regions: set[int] = set()
        self._dead: set[int] = set()
        self._lists: dict[Window, set[int]] = {}

    def awaited(self, truth: Truth) -> Callable[[], str]:
        """Gives a question that may be asked again and again: what of the truth, as it is now, is
        not there yet, in words; "" for nothing. It costs what is missing, not what is there."""
        seen: dict[str, AbstractSet[Any]] = {
            COPIES: self._copies,
            PAIRS: self._pairs,
            REGIONS: self._regions,
            DEAD: self._dead,
        }
        wanted: dict[str, AbstractSet[Any]] = {
            COPIES: truth.copies,
            PAIRS: truth.pairs,
            REGIONS: truth.regions.keys(),
            DEAD: truth.dead,
        }
        left = {name: set(numbers_of) - seen[name] for name, numbers_of in wanted.items()}
        lists = {window: set(inside) for window, inside in truth.lists.items()}

        def missing() -> str:
            self._look()
            for name, numbers_of in left.items():
                left[name] = {one for one in numbers_of if one not in seen[name]}
            for window, inside in list(lists.items()):
                lists[window] = inside - self._lists.get(window, set())
                if not lists[window]:
                    del lists[window]
            counts = {name: len(numbers_of) for name, numbers_of in left.items()}
            counts[LISTS] = sum(map(len, lists.values()))
            return ", ".join(f"{count} of {name}" for name, count in counts.items() if count)

        return missing

    def _look(self) -> None:
        self._copies.update(numbers(self._new(COPIES)))
        self._pairs.update(pairs(self._new(PAIRS)))
        self._regions.update(numbers(self._new(REGIONS)))
        self._dead.update(letter_number(read.value) for read in self._new(DEAD))
        for read in self._new(LISTS):
            self._lists[window_of(read.key or b"")] = set(listed(read.value or b""))

    def _new(self, name: str) -> list[Read]:
        found: list[Read] = []
        full = topic(self._application, name)
        for partition, reads in self._follower.reads()[full].items():
            found += reads[self._looked[name, partition] : (end := len(reads))]
            self._looked[name, partition] = end
        return found


# --- outputs --------------------------------------------------------------------------------------


def check_outputs(
    application: str, truth: Truth, early: Reads, late: Reads, report: Report
) -> None:
    """All seven analyses of every output; of the dead letters all but the order, which they have
    from no key."""

    def read(name: str) -> Mapping[int, Sequence[Read]]:
        return late.get(topic(application, name), {})

    def flat(name: str) -> list[Read]:
        return [one for found in read(name).values() for one in found]

    report.note(members(COPIES, truth.copies, numbers(flat(COPIES)), lambda n: n % KEYS))
    report.note(kept_order(COPIES, read(COPIES)))
    report.note(kept_order(PAIRS, read(PAIRS), by_pair))
    report.note(kept_order(REGIONS, read(REGIONS)))
    report.note(kept_order(REGIONS, read(REGIONS), by_row))
    report.note(members(PAIRS, truth.pairs, pairs(flat(PAIRS)), lambda pair: pair[0] % KEYS))
    report.note(
        members(REGIONS, truth.regions, numbers(flat(REGIONS)), lambda n: (n % KEYS, n % 12))
    )
    for one in flat(REGIONS):
        told = json.loads(one.value or b"")
        if told["region"].split()[0] != truth.regions.get(told["n"]):
            text = f"{told} at {one.partition}@{one.offset}"
            report.note([Finding(Analysis.ABORTED_READ, REGIONS, text)])
    last, findings = versions(LISTS, read(LISTS), window_of)
    report.note(findings)
    report.note(list_members(LISTS, truth.lists, last))
    letters = [letter_number(one.value) for one in flat(DEAD)]
    wrong = members(DEAD, truth.dead, letters, lambda n: n % KEYS)
    report.dead_letters_wrong += len(wrong)
    report.note(wrong)
    for name, found in early.items():
        compacted = store_of(application, name) is not None
        report.note(read_again(name, found, late.get(name, {}), compacted=compacted))


def check_changelogs(
    application: str, truth: Truth, early: Reads, late: Reads, report: Report
) -> None:
    """All seven analyses of the changelogs: what two writers at once would show first. 2 is among
    those of the outputs; what must be there is asked of the late reader, what there was in which
    order of the early one, as compaction keeps the last record of a key alone."""
    for name, found in early.items():
        store = store_of(application, name)
        left = late.get(name, {})
        if store == WINDOWS_STORE:
            report.note(versions(name, found, stored_window_of)[1])
            last = versions(name, left, stored_window_of)[0]
            report.note(list_members(name, truth.lists, last))
        elif store in (ORDERS_STORE, PAYMENTS_STORE):
            wanted = truth.joined if store == ORDERS_STORE else truth.paid
            report.note(written_once(name, found))
            report.note(kept_order(name, found))
            there = numbers(read for reads in left.values() for read in reads)
            report.note(members(name, wanted, there, lambda n: n % KEYS))
        elif store == SHOPS_STORE:
            report.note(kept_order(name, found, by_version))
            rows = {read.key: read.value for reads in left.values() for read in reads}
            report.note(same_rows(name, truth.rows, rows))


def by_version(read: Read) -> list[tuple[bytes, int]]:
    """A row is written by one writer, one version after the other."""
    return [(read.key or b"", version_of((read.value or b"").decode()))]


def same_rows(
    where: str, wanted: Mapping[str, str], found: Mapping[bytes | None, bytes | None]
) -> list[Finding]:
    """The table's last rows."""
    there = {(key or b"").decode(): (value or b"").decode() for key, value in found.items()}
    return [
        Finding(Analysis.UNSEEN, where, f"{shop} is {there.get(shop)!r}, not {text!r}")
        for shop, text in wanted.items()
        if there.get(shop) != text
    ]


def store_of(application: str, changelog: str) -> str | None:
    """The store whose changelog a topic is."""
    if changelog == topic(application, SHOPS):
        return SHOPS_STORE
    head, tail = f"{application}-", "-changelog"
    if changelog.startswith(head) and changelog.endswith(tail):
        return changelog[len(head) : -len(tail)]
    return None


# --- stores ---------------------------------------------------------------------------------------


def fold(reads: Iterable[Read], position: int) -> dict[bytes, bytes]:
    """What a changelog's records before ``position`` leave behind, as it is stored."""
    folded: dict[bytes, bytes] = {}
    for read in reads:
        if read.offset >= position or read.key is None:
            continue
        if read.value is None:
            folded.pop(read.key, None)
        else:
            folded[read.key] = pack_value(read.timestamp, read.value)
    return folded


def check_stores(
    application: str,
    truth: Truth,
    copies: Mapping[Place, Path],
    owners: Mapping[str, int],
    changelogs: Reads,
    report: Report,
) -> None:
    """Every copy is the fold of its changelog up to its own position (I2); those of the owners
    (task -> instance) are at its end, and all of them together hold the truth."""
    logs = {store_of(application, name): found for name, found in changelogs.items()}
    owned: dict[str, dict[bytes, bytes]] = {}
    for (instance, task, name), folder in copies.items():
        reads = logs.get(name, {}).get(int(task.split("_")[1]), ())
        store = LmdbStore.open(folder)
        position = store.meta().position or 0
        with store.snapshot() as view:
            content = dict(view.range(None, None))
        store.close()
        where = f"instance {instance}, task {task}, store {name}, position {position}"
        folded = fold(reads, position)
        if content != folded:
            differs = sum(content.get(key) != folded.get(key) for key in {*content, *folded})
            _wrong(report, f"{where}: {differs} of {len(folded)} keys differ from the changelog")
        if owners.get(task) == instance:
            owned.setdefault(name, {}).update(content)
            behind = [read for read in reads if read.offset >= position]
            if behind:
                _wrong(report, f"{where}: owned, and {len(behind)} records follow")
    _check_owned(truth, owned, report)


def _check_owned(truth: Truth, owned: Mapping[str, Mapping[bytes, bytes]], report: Report) -> None:
    """What the owners' stores hold together is the truth."""

    def values(name: str) -> dict[bytes | None, bytes | None]:
        return {key: unpack_value(value)[1] for key, value in owned.get(name, {}).items()}

    wrong = same_rows("the stores of the table", truth.rows, values(SHOPS_STORE))
    for name, wanted in ((ORDERS_STORE, truth.joined), (PAYMENTS_STORE, truth.paid)):
        reads = (Read(0, 0, key, value, 0) for key, value in values(name).items())
        wrong += members(f"the stores {name}", wanted, numbers(reads), lambda n: n % KEYS)
    lists = {
        stored_window_of(key or b""): listed(value or b"")
        for key, value in values(WINDOWS_STORE).items()
    }
    wrong += list_members("the stores of windows", truth.lists, lists)
    report.stores_wrong += bool(wrong)
    report.note(wrong)


def _wrong(report: Report, text: str) -> None:
    report.stores_wrong += 1
    report.remarks.append(text)


def check_files(
    before: Mapping[Place, tuple[str, int]],
    after: Mapping[Place, tuple[str, int]],
    report: Report,
) -> None:
    """A store whose folder or file is another one than before was wiped, or built anew."""
    for place, file in before.items():
        if after.get(place) != file:
            report.stores_wiped += 1
            report.remarks.append(f"the store of {place} was {file}, and is {after.get(place)}")


# --- counters -------------------------------------------------------------------------------------


def check_dropped(truth: Truth, probed: int, expected: int, total: int, report: Report) -> None:
    """``probed`` records of late orders were counted while nothing else happened, ``expected`` of
    them should be; ``total`` over all: a killed instance takes what it has not told with it, and
    nothing is ever counted twice."""
    if probed != expected:
        report.dropped_wrong += abs(probed - expected)
        report.remarks.append(f"{expected} late records were dropped in quiet, {probed} counted")
    if total > truth.dropped:
        report.dropped_wrong += total - truth.dropped
        report.remarks.append(f"{truth.dropped} records were dropped, {total} counted")
