"""The input of each program of `./run chaos times`, and its final results by a plain batch in
Python, in order of time. Pure, and without everflow: the truth must not share its errors.

A result is ``results[output, key]``; its value is a dict as in JSON.
"""

from __future__ import annotations

import random
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

PARTITIONS = 4
MINUTE = 60_000
SPAN_MS = 120 * MINUTE
"""Event time of a backlog."""
UNORDERED, BEHIND_MS = 0.1, 8 * MINUTE
"""The share of records that come out of order, and by how much at most."""

WINDOW_MS, GRACE_MS = 5 * MINUTE, 10 * MINUTE
GAP_MS = 5 * MINUTE
SLIDING_MS, SLIDING_GRACE_MS = 10 * MINUTE, MINUTE
HISTORY_MS = 8 * 60 * MINUTE

CLOSING = "closing"
"""Keys of the records that close what is open at the end. No result of theirs is looked at."""
CLOSERS, CLOSING_EVERY_MS, CLOSING_TIMES = 16, 30 * MINUTE, 3
"""So many keys, because with ``highest`` each task needs one. Sessions need one time more than the
sliding windows behind them."""

CASH, NOWHERE, ALL = "cash", "nowhere", "all"
BANK = "bank"
CURRENCIES = ("eur", "usd", "gbp")

Value = Mapping[str, Any]
Results = dict[tuple[str, str], Value]


class Record(NamedTuple):
    """``partition``: None, if the key says it (murmur2). ``time``: ms since the epoch."""

    topic: str
    partition: int | None
    key: str
    value: Value
    time: int


@dataclass(frozen=True)
class Truth:
    """``records(count, base_ms, chance)``: the input in order of arrival; no two have the same
    time. ``results(records)``: what is final once all are processed. ``once``: outputs that have
    one record of each key; of the others the last one counts."""

    topics: tuple[str, ...]
    records: Callable[[int, int, random.Random], list[Record]]
    results: Callable[[Sequence[Record]], Results]
    once: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()


# --- input ---------------------------------------------------------------------------------------


def _times(count: int, base_ms: int, chance: random.Random) -> list[int]:
    step = SPAN_MS / count
    return [base_ms + int((at + chance.random() * 0.9) * step) for at in range(count)]


def _arrived(
    records: Iterable[Record], unordered: frozenset[str], chance: random.Random
) -> list[Record]:
    """In order of arrival: a tenth of the records of ``unordered`` topics comes later."""

    def arrival(record: Record) -> float:
        late = record.topic in unordered and chance.random() < UNORDERED
        return record.time + (chance.random() * BEHIND_MS if late else 0)

    return sorted(records, key=arrival)


def _closers(
    base_ms: int, of: Callable[[str], Iterable[tuple[str, int | None, str, Value]]]
) -> list[Record]:
    closers: list[Record] = []
    for time in range(CLOSING_TIMES):
        for at in range(CLOSERS):
            for topic, partition, key, value in of(f"{CLOSING}{at}"):
                place = at % PARTITIONS if partition is not None else None
                after = (time + 1) * CLOSING_EVERY_MS + len(closers)
                closers.append(Record(topic, place, key, value, base_ms + SPAN_MS + after))
    return closers


def _sales(count: int, base_ms: int, chance: random.Random) -> list[Record]:
    def sale(at: int, time: int) -> Record:
        value = {"shop": f"shop{chance.randrange(40)}", "amount": chance.randrange(1, 100)}
        return Record("sales", at % PARTITIONS, f"till{at % 97}", value, time)

    sales = [sale(at, time) for at, time in enumerate(_times(count, base_ms, chance))]
    return _arrived(sales, frozenset({"sales"}), chance) + _closers(
        base_ms, lambda name: [("sales", 0, name, {"shop": name, "amount": 1})]
    )


def _visits(count: int, base_ms: int, chance: random.Random) -> list[Record]:
    shops, visitors = 8, max(8, count // 30)

    def rate(at: int, shop: str, time: int) -> Record:
        value = {
            "shop": shop,
            "rate": chance.randrange(1, 50),
            "region": f"region{chance.randrange(5)}",
        }
        return Record("rates", at % PARTITIONS, f"feed{at}", value, time)

    def one(at: int, time: int) -> Record:
        kind = chance.random()
        if kind < 0.7:
            number = chance.randrange(visitors)
            value = {"visitor": f"shop{number % shops}-v{number}"}
            return Record("visits", at % PARTITIONS, f"page{at % 53}", value, time)
        if kind < 0.95:
            return rate(at, f"shop{chance.randrange(shops)}", time)
        region = {"name": f"name{at}"}
        return Record("regions", None, f"region{chance.randrange(5)}", region, time)

    first = [rate(at, f"shop{at}", base_ms - 50 + at) for at in range(shops)]
    first += [
        Record("regions", None, f"region{at}", {"name": f"first{at}"}, base_ms - 20 + at)
        for at in range(5)
    ]
    records = first + [one(at, time) for at, time in enumerate(_times(count, base_ms, chance))]
    return _arrived(records, frozenset({"visits"}), chance) + _closers(
        base_ms,
        lambda name: [
            ("visits", 0, name, {"visitor": f"{name}-v"}),
            ("rates", 0, name, {"shop": name, "rate": 0, "region": name}),
            ("regions", None, name, {"name": name}),
        ],
    )


def _changes(count: int, base_ms: int, chance: random.Random) -> list[Record]:
    accounts = max(4, count // 40)

    def change(number: int, account: int, time: int) -> Record:
        key = f"customer{account}-{chance.randrange(2)}"  # of an account two may write
        value = {"account": f"account{account}", "tier": number}
        return Record("customers", zlib.crc32(key.encode()) % PARTITIONS, key, value, time)

    def one(at: int, time: int) -> Record:
        account = chance.randrange(accounts)
        if chance.random() < 0.3:
            return change(at, account, time)
        return Record(
            "orders", at % PARTITIONS, f"order{at}", {"account": f"account{account}"}, time
        )

    first = [change(-1 - at, at, base_ms - accounts + at) for at in range(accounts)]
    return first + [one(at, time) for at, time in enumerate(_times(count, base_ms, chance))]


def _movements(count: int, base_ms: int, chance: random.Random) -> list[Record]:
    accounts = max(4, count // 50)

    def account() -> str:
        return f"account{chance.randrange(accounts)}"

    def one(at: int, time: int) -> Record:
        kind, place = chance.random(), at % PARTITIONS
        money = {"amount": chance.randrange(1, 1000), "currency": chance.choice(CURRENCIES)}
        if kind < 0.05:
            return Record(
                "accounts", None, account(), {"branch": f"branch{chance.randrange(4)}"}, time
            )
        if kind < 0.35:
            return Record("deposits", place, f"d{at}", {"account": account(), **money}, time)
        if kind < 0.5:
            return Record("withdrawals", place, f"w{at}", {"account": account(), **money}, time)
        value = {"payer": account(), "payee": account(), **money}
        return Record("transfers", place, f"t{at}", value, time)

    first = [
        Record(
            "accounts", None, f"account{at}", {"branch": f"branch{at % 4}"}, base_ms - accounts + at
        )
        for at in range(accounts - 1)  # the last one may have none
    ]
    return _arrived(
        first + [one(at, time) for at, time in enumerate(_times(count, base_ms, chance))],
        frozenset({"deposits", "withdrawals", "transfers"}),
        chance,
    ) + _closers(
        base_ms,
        lambda name: [
            (
                "transfers",
                0,
                name,
                {"payer": name, "payee": name, "amount": 1, "currency": name},
            )
        ],
    )


# --- results -------------------------------------------------------------------------------------


def in_time(records: Iterable[Record], topic: str) -> list[Record]:
    """The records of a topic in order of time, without those that close."""
    mine = (one for one in records if one.topic == topic and not one.key.startswith(CLOSING))
    return sorted(mine, key=lambda one: one.time)


def window_totals(records: Sequence[Record]) -> Results:
    """Number and sum of each shop's sales in each five minutes."""
    totals: dict[str, list[int]] = defaultdict(list)
    for sale in in_time(records, "sales"):
        start = sale.time // WINDOW_MS * WINDOW_MS
        totals[f"{sale.value['shop']}@{start}"].append(sale.value["amount"])
    return {("totals", key): {"n": len(all_), "total": sum(all_)} for key, all_ in totals.items()}


def sessions(times: Sequence[int], gap_ms: int) -> list[tuple[int, int]]:
    """(end, number) of the sessions of one key, of sorted times: a gap of just ``gap_ms`` does not
    end one."""
    found: list[tuple[int, int]] = []
    for time in times:
        if found and time - found[-1][0] <= gap_ms:
            found[-1] = (time, found[-1][1] + 1)
        else:
            found.append((time, 1))
    return found


def sliding(events: Sequence[tuple[int, int]], size_ms: int) -> dict[int, tuple[int, int, int]]:
    """Start -> (number, sum, latest time) of the windows of one key, of (time, n) in order of time:
    one ends at each event, and one begins right behind each that has another within it."""
    times = [time for time, _ in events]
    starts = {time - size_ms for time in times} | {time + 1 for time in times}
    found = {}
    for start in starts:
        inside = events[bisect_left(times, start) : bisect_right(times, start + size_ms)]
        if inside:
            found[start] = (len(inside), sum(n for _, n in inside), inside[-1][0])
    return found


def priced(records: Sequence[Record]) -> Results:
    """Visits in sessions, these per shop in sliding windows, each with the rate of its time, each
    with the name that its region has at the end."""
    visits: dict[str, list[int]] = defaultdict(list)
    for visit in in_time(records, "visits"):
        visits[visit.value["visitor"]].append(visit.time)
    ended: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for visitor, times in visits.items():
        ended[visitor.split("-")[0]] += sessions(times, GAP_MS)
    rates: dict[str, list[Record]] = defaultdict(list)
    for rate in in_time(records, "rates"):
        rates[rate.value["shop"]].append(rate)
    names = {region.key: region.value["name"] for region in in_time(records, "regions")}
    results: Results = {}
    for shop, events in ended.items():
        for start, (number, total, latest) in sliding(sorted(events), SLIDING_MS).items():
            at = bisect_right([rate.time for rate in rates[shop]], latest)
            found = rates[shop][at - 1].value
            results["priced", f"{shop}@{start}"] = {
                "sessions": number,
                "visits": total,
                "rate": found["rate"],
                "name": names[found["region"]],
            }
    return results


def enriched(records: Sequence[Record]) -> Results:
    """Each order with the tier that its account has at the order's time."""
    tiers: dict[str, int] = {}
    results: Results = {}
    both = in_time(records, "customers") + in_time(records, "orders")
    for record in sorted(both, key=lambda one: one.time):
        account = record.value["account"]
        if record.topic == "customers":
            tiers[account] = record.value["tier"]
        else:
            results["enriched", record.key] = {"account": account, "tier": tiers.get(account)}
    return results


def entries(movement: Record) -> list[tuple[str, int]]:
    """(account, amount): a movement takes from one account what it gives to another."""
    value = {"payer": CASH, "payee": CASH, **movement.value}
    if movement.topic != "transfers":
        value["payee" if movement.topic == "deposits" else "payer"] = value["account"]
    return [(value["payer"], -value["amount"]), (value["payee"], value["amount"])]


def books(records: Sequence[Record]) -> Results:
    """What each account has, what each branch has by its accounts' latest branch, and the total; in
    each five minutes what each account has gained in each currency, and their total."""
    balances: dict[str, int] = defaultdict(int)
    nets: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for movement in (one for one in records if one.topic != "accounts"):
        currency, start = movement.value["currency"], movement.time // WINDOW_MS * WINDOW_MS
        for account, amount in entries(movement):
            balances[account] += amount
            nets[f"{currency}@{start}"][f"{currency}/{account}@{start}"].append(amount)
    where = {one.key: one.value["branch"] for one in in_time(records, "accounts")}
    branches: dict[str, list[int]] = defaultdict(list)
    for account, balance in balances.items():
        branches[where.get(account, NOWHERE)].append(balance)
    results: Results = {
        ("balances", account): {"balance": balance, "branch": where.get(account, NOWHERE)}
        for account, balance in balances.items()
    }
    for branch, all_ in branches.items():
        results["branches", branch] = {"n": len(all_), "total": sum(all_)}
    results["bank", ALL] = {"total": sum(balances.values())}
    for window, accounts in nets.items():
        of_all = [amount for amounts in accounts.values() for amount in amounts]
        results["currencies", window] = {
            "accounts": len(accounts),
            "n": len(of_all),
            "total": sum(of_all),
        }
        for key, amounts in accounts.items():
            results["nets", key] = {"n": len(amounts), "net": sum(amounts)}
    return {place: value for place, value in results.items() if not place[1].startswith(CLOSING)}


class Books:
    """The totals of a bank as they are read, and whether they are 0 at each moment at which they
    must be: a final total of all accounts; the sum of the accounts' final results of the same
    window, as soon as all that was written before that total was read; and the total without
    windows when all of the input so far was processed.

    ``due``: windows that have a final total, of whose accounts nothing is known yet. ``looks_at``:
    those of them whose accounts are being read."""

    def __init__(self) -> None:
        self.wrong: list[Difference] = []
        self.zeros = self.on_the_way = 0
        self.due: set[str] = set()
        self.looks_at: set[str] = set()
        self._nets: dict[str, dict[str, int]] = defaultdict(dict)
        self._totals: Results = {}

    def add(self, output: str, key: str, value: Value | None) -> None:
        """A result that was read."""
        if value is None or key.startswith(CLOSING):
            return
        if output == "nets":
            account, start = key.split("@")
            self._nets[f"{account.split('/')[0]}@{start}"][account] = value["net"]
        elif output == "currencies":
            self._totals[output, key] = value
            self.due.add(key)
            self._must_be_zero(output, key, value["total"])
        elif (output, key) == ("bank", ALL):
            self._totals[output, key] = value
            self.on_the_way += 1

    def begin(self) -> bool:
        """All that is due is looked at from now on; False if that is nothing."""
        self.looks_at, self.due = self.due, set()
        return bool(self.looks_at)

    def look(self) -> None:
        """All that was written when `begin` was called was read."""
        for key in sorted(self.looks_at):
            nets, total = self._nets[key], self._totals["currencies", key]
            self._must_be_zero("nets", key, sum(nets.values()))
            if len(nets) != total["accounts"]:
                self.wrong.append(Difference("unseen", "nets", key, total, {"accounts": len(nets)}))
        self.looks_at = set()

    def rest(self) -> None:
        """All of the input so far was processed, and all that was written was read."""
        if found := self._totals.get(("bank", ALL)):
            self._must_be_zero("bank", ALL, found["total"])

    def _must_be_zero(self, output: str, key: str, total: int) -> None:
        if total == 0:
            self.zeros += 1
        else:
            self.wrong.append(Difference("not zero", output, key, {"total": 0}, {"total": total}))


TRUTHS: Mapping[str, Truth] = {
    "windows": Truth(("sales",), _sales, window_totals, frozenset({"totals"}), ("totals",)),
    "chain": Truth(("visits", "rates", "regions"), _visits, priced, outputs=("priced",)),
    "changes": Truth(
        ("customers", "orders"), _changes, enriched, frozenset({"enriched"}), ("enriched",)
    ),
    BANK: Truth(
        ("accounts", "deposits", "withdrawals", "transfers"),
        _movements,
        books,
        frozenset({"nets", "currencies"}),
        ("balances", "branches", "bank", "nets", "currencies"),
    ),
}


# --- comparison ----------------------------------------------------------------------------------


class Difference(NamedTuple):
    """``kind``: missing, extra, changed, or again (a key that has one record has another); of a
    total that must be 0 and is not: not zero, and unseen (it counts other accounts)."""

    kind: str
    output: str
    key: str
    expected: Value | None
    seen: Value | None


class Seen:
    """The results that were read so far, of each output in order of each key."""

    def __init__(self, truth: Truth) -> None:
        self._once = truth.once
        self.rows: Results = {}
        self.again: list[Difference] = []
        self.read = 0

    def add(self, output: str, key: str, value: Value | None) -> None:
        """One more record; None deletes. A branch without accounts is none."""
        self.read += 1
        if key.startswith(CLOSING):
            return
        place = (output, key)
        if output in self._once and place in self.rows:
            self.again.append(Difference("again", output, key, self.rows[place], value))
        if value is None or value.get("n") == 0:
            self.rows.pop(place, None)
        else:
            self.rows[place] = value


def differences(expected: Results, seen: Seen) -> list[Difference]:
    """Where the results are not those expected, in the order of outputs and keys."""
    found = list(seen.again)
    for place in sorted(expected.keys() | seen.rows.keys()):
        want, have = expected.get(place), seen.rows.get(place)
        if want != have:
            kind = "missing" if have is None else "extra" if want is None else "changed"
            found.append(Difference(kind, *place, want, have))
    return found
