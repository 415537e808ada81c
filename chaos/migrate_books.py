"""The books of `chaos.migrate`: outputs, changelogs and stores against all that was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chaos.elastic_accounts import read_topic
from chaos.migrate_stage import PARTITIONS, WINDOW_MS, Chain, Instance, Version, key_of
from chaos.report import ChaosReport
from everflow.protocol.messages import GONE
from everflow.state.changelog import pack_value
from everflow.state.lmdb_store import LmdbStore
from integration.lifecycle.lifecycle_cluster import last_by_key


@dataclass
class Report(ChaosReport):
    """``half``: looks at which one version had switched and the other had not. ``both``: records of
    the old version behind those of the new one. ``codes``: of commands that gave up. ``pauses_s``:
    of each round, the longest time without a committed output."""

    strikes: dict[str, int] = field(default_factory=dict)
    then: dict[str, int] = field(default_factory=dict)
    switched: int = 0
    went_back: int = 0
    left: int = 0
    half: int = 0
    both: int = 0
    allowed_doubles: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    pauses_s: list[float] = field(default_factory=list)
    records: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return super().clean and not (self.half or self.both or self.remarks)


def account(chain: Chain, began_ms: int, report: Report) -> None:
    """Compare everything that was written with everything that was sent; then the next version's
    turn comes if the round has switched."""
    servers = chain.broker.bootstrap_servers
    report.half += len(chain.half)
    report.remarks += chain.half
    chain.half.clear()
    gone = GONE in chain.marks(chain.old)
    copied: Counter[int] = Counter()
    by_old: set[int] = set()
    appended: list[int] = []
    for partition in range(PARTITIONS):
        last = 0
        for _, _, value, at in read_topic(servers, chain.copies, partition):
            number, version = map(int, value.split(b"@"))
            copied[number] += 1
            appended.append(at)
            if version < last and not chain.may_double:
                report.both += 1
                report.remarks.append(f"record {number}: version {version} behind {last}")
            last = max(last, version)
            if version <= chain.old.number:
                by_old.add(number)
    every = range(len(chain.times))
    lost = [number for number in every if not copied[number]]
    doubled = copied.total() - len(copied)
    report.lost += len(lost)
    report.remarks += [f"lost: {lost[:10]}"] if lost else []
    if chain.may_double:
        report.allowed_doubles = doubled
    elif doubled:
        twice = [number for number in every if copied[number] > 1]
        report.duplicated += doubled
        report.remarks.append(f"copied twice: {twice[:10]}")
    _check_updates(chain, report)
    current = chain.new if gone else chain.old
    _check_state(chain, current, range(len(chain.times)), report)
    if gone:
        _check_state(chain, chain.old, by_old, report)
    _check_disks(chain, current, chain.news if gone else chain.olds, report)
    times = sorted(at for at in appended if at >= began_ms)
    gaps = [two - one for one, two in pairwise(times)]
    report.pauses_s.append(round(max(gaps, default=0) / 1000, 1))
    if gone:
        chain.old, chain.olds, chain.news = chain.new, chain.news, []
        chain.new = chain.next_version(chain.old.number + 1, chain.old.partitions)


def _check_updates(chain: Chain, report: Report) -> None:
    """The counts of a key rise, and end with the truth."""
    last: dict[Any, int] = {}
    for _, key, value, _ in read_topic(chain.broker.bootstrap_servers, chain.updates):
        count = int.from_bytes(value, "big")
        if count <= last.get(key, 0) and not chain.may_double:
            report.duplicated += 1
            report.remarks.append(f"the count of {key!r} went from {last[key]} to {count}")
        last[key] = count
    truth: Counter[Any] = Counter(key_of(number) for number in range(len(chain.times)))
    _compare("updates", chain, last, truth, report)


def _compare(
    what: str, chain: Chain, found: dict[Any, int], truth: Counter[Any], report: Report
) -> None:
    """Equal; under at-least-once, where an instance was killed, at least as much."""
    wrong = {
        key
        for key in {*found, *truth}
        if (have := found.get(key, 0)) != truth[key]
        and not (chain.may_double and have > truth[key])
    }
    if wrong:
        report.stores_wrong += 1
        some = sorted(wrong)[:5]
        shown = ", ".join(f"{key}: {found.get(key)} for {truth[key]}" for key in some)
        report.remarks.append(f"{what}: {len(wrong)} of {len(truth)} are wrong: {shown}")


def _check_state(chain: Chain, version: Version, numbers: Iterable[int], report: Report) -> None:
    """The folds of a version's changelogs are the truth of the records that it and those before it
    have processed."""
    counts: Counter[Any] = Counter()
    windows: Counter[Any] = Counter()
    for number in numbers:
        key = key_of(number)
        counts[key] += 1
        windows[key, chain.times[number] // WINDOW_MS * WINDOW_MS] += 1
    for store, truth in ((version.counts, counts), ("windows", windows)):
        found: dict[Any, int] = {}
        for stored, value in last_by_key(chain.cluster.read(version.changelog(store))).items():
            place: Any = stored or b""
            if store == "windows":
                place = (place[:-12], int.from_bytes(place[-12:-4], "big"))
            found[place] = int.from_bytes(value or b"", "big")
        _compare(f"{version.id}, {store}", chain, found, truth, report)


def _check_disks(
    chain: Chain, version: Version, instances: Sequence[Instance], report: Report
) -> None:
    """Every store on disk is the fold of its changelog up to its own position."""
    for store in (version.counts, "windows"):
        logs: dict[int, list[Any]] = {}
        for record in chain.cluster.read(version.changelog(store)):
            logs.setdefault(record.partition, []).append(record)
        for one in instances:
            for folder in sorted((one.state / version.id).glob(f"*/{store}-*")):
                partition = int(folder.parent.name.rsplit("_", 1)[1])
                opened = LmdbStore.open(folder)
                position = opened.meta().position or 0
                with opened.snapshot() as view:
                    content = dict(view.range(None, None))
                if position != (opened.meta().position or 0):
                    continue  # a replica that is following just now
                opened.close()
                folded: dict[Any, bytes] = {}
                for record in logs.get(partition, ()):
                    if record.offset < position:
                        folded[record.key] = pack_value(record.timestamp, record.value)
                if content != folded:
                    report.stores_wrong += 1
                    wrong = [k for k in {*content, *folded} if content.get(k) != folded.get(k)]
                    shown = [(k, content.get(k), folded.get(k)) for k in wrong[:3]]
                    report.remarks.append(f"{folder}: {len(wrong)} keys differ: {shown}")
