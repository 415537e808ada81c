"""What the outputs of `bench migrate` have to be, by one who knows what was sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bench.migrate.orders import PAID_S, amount_of, order_of, user_of
from bench.topics import key_of

SHOWN = 5


class Update(NamedTuple):
    """One output record. ``key``: with the beginning of its window behind, if it has one."""

    at_s: float
    key: bytes
    value: dict[str, Any]


class Sent(NamedTuple):
    records: int
    keys: int
    rate: int


def wrong_sums(updates: Iterable[Update], sent: Sent, window_bytes: int = 0) -> list[str]:
    """Where updates, those of each key in their order, are not the sums of what was sent: each
    record is in one update, the next one of its key; and after the first update of a new version
    comes none of an old one."""
    before: dict[bytes, dict[str, Any]] = {}
    seen = bytearray(sent.records)
    wrong = []
    for _, key, value in updates:
        was = before.get(key, {"orders": 0, "total": 0, "by": "old", "most": None})
        last = value["last"]
        user = key[: len(key) - window_bytes] if window_bytes else key
        if not 0 <= last < sent.records or key_of(user_of(last, sent.keys, sent.rate)) != (
            user.decode()
        ):
            wrong.append(f"{key!r}: {last} is none of its records")
            continue
        wanted = {
            **value,
            "orders": was["orders"] + 1,
            "total": was["total"] + amount_of(last),
        }
        if "most" in value:
            known = was.get("most")
            wanted["most"] = amount_of(last) if known is None else max(known, amount_of(last))
        if wanted != value:
            wrong.append(f"{key!r}: {value} after {was}")
        if was["by"] == "new" and value["by"] == "old":
            wrong.append(f"{key!r}: the old version goes on with {value}")
        if seen[last]:
            wrong.append(f"{key!r}: record {last} is in it twice")
        seen[last] = 1
        before[key] = value
    if missing := sent.records - sum(seen):
        wrong.append(f"{missing:,} records are in no update, the first is {seen.index(0)}")
    return wrong


def wrong_ends(updates: Iterable[Update], sent: Sent, window_bytes: int = 0) -> list[str]:
    """Where the last updates do not sum up to what was sent: all that an output has to be that
    began anew."""
    ends = {key: value for _, key, value in updates}
    wanted: dict[bytes, tuple[int, int]] = {}
    for number in range(sent.records):
        user = key_of(user_of(number, sent.keys, sent.rate)).encode()
        orders, total = wanted.get(user, (0, 0))
        wanted[user] = orders + 1, total + amount_of(number)
    found: dict[bytes, tuple[int, int]] = {}
    for key, value in ends.items():
        user = key[: len(key) - window_bytes] if window_bytes else key
        orders, total = found.get(user, (0, 0))
        found[user] = orders + value["orders"], total + value["total"]
    return [
        f"{user!r}: {found.get(user)} instead of {wanted.get(user)}"
        for user in sorted(wanted.keys() | found.keys())
        if found.get(user) != wanted.get(user)
    ]


def wrong_pairs(pairs: Iterable[Update], sent: Sent, *, once: bool = True) -> list[str]:
    """Where the joined records are not each payment with its order, once (or at least so)."""
    wrong = []
    found: set[int] = set()
    for _, key, value in pairs:
        payment = value["payment"]
        order = order_of(payment, sent.rate)
        user = key_of(user_of(payment, sent.keys, sent.rate)).encode()
        if (key, value["order"], value["of"]) != (user, order, order):
            wrong.append(f"{key!r}: {value}")
        if once and payment in found:
            wrong.append(f"{key!r}: payment {payment} is joined twice")
        found.add(payment)
    first = PAID_S * sent.rate + 1
    wanted = set(range(first, sent.records, 2))
    if found != wanted:
        missing, more = sorted(wanted - found), sorted(found - wanted)
        wrong.append(f"{len(missing):,} payments are not joined {missing[:3]}, or {more[:3]} are")
    return wrong


def shown(wrong: Sequence[str]) -> str:
    """For people."""
    return f"{len(wrong):,} outputs are wrong: {'; '.join(wrong[:SHOWN])}"


def number_of(value: dict[str, Any]) -> int:
    """The record that caused an update."""
    return int(value["last"])
