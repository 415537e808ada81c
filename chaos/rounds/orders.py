"""The input of a chaos run, and what must come of it. Pure: all of it follows from a seed and from
how many of which kind were asked for."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from chaos.rounds.program import (
    LARGEST_COPY_BYTES,
    PAIR_MS,
    UNLUCKY,
    UNLUCKY_LATER,
    WINDOW_MS,
)

ROW_EVERY = 25
"""So many orders after the last one a shop's row of the table is written again."""
BEGAN_MS = 1_700_000_000_000 - 1_700_000_000_000 % WINDOW_MS
"""The time of the first order, where none is given."""
STEP_MS = 20
"""Between two orders, whatever the rate they are sent at."""
LATE_MS = 10 * 86_400_000
"""So much before its place lies the time of an order that comes late: too late for every window."""
KEYS = 97
SHOPS = tuple(f"shop-{number}" for number in range(12))
REGION_OF: Mapping[str, str] = {
    shop: ("north", "south", "west")[number % 3] for number, shop in enumerate(SHOPS)
}


def row(shop: str, version: int) -> str:
    """A shop's row in the table: its region, which stays, and its version, which never goes
    back."""
    return f"{REGION_OF[shop]} {version}"


def version_of(written: str) -> int:
    """Of such a row, or of what was joined with it."""
    return int(written.split()[1])


class Kind(Enum):
    """What is special about an order."""

    GOOD = "good"
    FILTERED = "filtered"
    LATE = "late"
    NOT_JSON = "not-json"
    DIVIDES_BY_ZERO = "divides-by-zero"
    UNLUCKY = "unlucky"
    UNLUCKY_LATER = "unlucky-later"
    OVERSIZED = "oversized"


POISON = (Kind.NOT_JSON, Kind.DIVIDES_BY_ZERO, Kind.UNLUCKY, Kind.UNLUCKY_LATER)
NOWHERE = frozenset({Kind.FILTERED, Kind.NOT_JSON, Kind.DIVIDES_BY_ZERO, Kind.UNLUCKY})
"""Of these nothing is in any output."""
DEAD_KINDS = frozenset({*POISON, Kind.OVERSIZED})
DROPS_OF_A_LATE_ORDER = 2
"""The join of the streams drops it, and the windows do."""


class Order(NamedTuple):
    """Number ``n`` of the orders, the first of which has the time ``began_ms``."""

    n: int
    kind: Kind
    began_ms: int = BEGAN_MS

    @property
    def key(self) -> str:
        return f"customer-{self.n % KEYS}"

    @property
    def shop(self) -> str:
        return SHOPS[self.n % len(SHOPS)]

    @property
    def time_ms(self) -> int:
        return self.began_ms + self.n * STEP_MS - (LATE_MS if self.kind is Kind.LATE else 0)

    @property
    def window_ms(self) -> int:
        """The start of its window."""
        return self.time_ms - self.time_ms % WINDOW_MS

    @property
    def paid(self) -> bool:
        """Whether a payment follows, of the same number and key."""
        return self.n % 2 == 0 and self.kind in (Kind.GOOD, Kind.FILTERED)

    @property
    def payment_ms(self) -> int:
        return self.time_ms + 7

    @property
    def written_row(self) -> tuple[str, str] | None:
        """The shop whose row is written again before it, and the row."""
        version, rest = divmod(self.n, ROW_EVERY)
        if rest or not version or self.kind is Kind.LATE:
            return None
        shop = SHOPS[version % len(SHOPS)]
        return shop, row(shop, version)

    def value(self) -> bytes:
        """As it is sent."""
        if self.kind is Kind.NOT_JSON:
            return f"order {self.n}, not JSON".encode()
        amounts = {Kind.FILTERED: 0, Kind.UNLUCKY: UNLUCKY, Kind.UNLUCKY_LATER: UNLUCKY_LATER}
        note = "-"
        if self.kind is Kind.OVERSIZED:  # drawn: one letter again and again would be compressed
            note = random.Random(self.n).randbytes(LARGEST_COPY_BYTES).hex()
        return json.dumps(
            {
                "n": self.n,
                "shop": self.shop,
                "amount": amounts.get(self.kind, 100 + self.n),
                "split": 0 if self.kind is Kind.DIVIDES_BY_ZERO else 4,
                "note": note,
            }
        ).encode()

    def payment(self) -> bytes:
        """The value of its payment."""
        return json.dumps({"n": self.n, "paid": 1}).encode()


class Orders:
    """Draws the kinds of the orders that come by themselves; those that are asked for come between
    them. ``began_ms`` of a run on a broker lies not far back: the changelogs of windows forget what
    is old by its time, and a store that has not read it yet begins anew."""

    def __init__(self, seed: int, began_ms: int = BEGAN_MS) -> None:
        self._began_ms = began_ms - began_ms % WINDOW_MS
        self._chance = random.Random(f"orders-{seed}")
        self._next = 0

    def next(self, kind: Kind | None = None) -> Order:
        """The next order; of the kind, where one is asked for."""
        drawn = self._chance.random()
        if kind is None:
            # No late ones before every partition's time has passed what they are compared with.
            late = drawn < 0.02 and self._next > 20 * len(SHOPS)
            kind = Kind.LATE if late else Kind.FILTERED if drawn < 0.1 else Kind.GOOD
        order = Order(self._next, kind, self._began_ms)
        self._next += 1
        return order


Window = tuple[str, int]
"""A shop, and the start of a window in ms."""


_REACH = PAIR_MS // (STEP_MS * KEYS) + 1
"""So many orders of its customer before it may be near enough to a payment, or their payments to
an order."""


@dataclass
class Truth:
    """What must have come of the orders that were added, whatever happened; ``pairs`` are of
    (order, payment), ``regions`` without the version. ``joined`` orders and ``paid`` ones are in
    the two stores of the join, ``rows`` in the table."""

    copies: set[int] = field(default_factory=set)
    pairs: set[tuple[int, int]] = field(default_factory=set)
    regions: dict[int, str] = field(default_factory=dict)
    lists: dict[Window, set[int]] = field(default_factory=lambda: defaultdict(set))
    dead: set[int] = field(default_factory=set)
    late: int = 0
    joined: dict[int, Order] = field(default_factory=dict)
    paid: dict[int, Order] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=lambda: {shop: row(shop, 0) for shop in SHOPS})

    @property
    def dropped(self) -> int:
        """What the counters of dropped records must say."""
        return self.late * DROPS_OF_A_LATE_ORDER

    def add(self, order: Order) -> None:
        """The next order; what came of those before it stays so."""
        late = order.kind is Kind.LATE
        if order.kind in DEAD_KINDS:
            self.dead.add(order.n)
        if order.paid:
            self.paid[order.n] = order
        if order.written_row:
            self.rows.update([order.written_row])
        if order.kind not in NOWHERE and order.kind is not Kind.OVERSIZED:
            self.copies.add(order.n)
            self.late += late
            if not late:
                self.joined[order.n] = order
            if order.kind is not Kind.UNLUCKY_LATER:
                self.regions[order.n] = REGION_OF[order.shop]
                if not late:
                    self.lists[order.shop, order.window_ms].add(order.n)
        self._pair(order.n)

    def _pair(self, n: int) -> None:
        # Orders of one customer are KEYS numbers apart.
        for other in (n - turn * KEYS for turn in range(_REACH + 1)):
            for order, payment in ((n, other), (other, n)):
                if order in self.joined and payment in self.paid:
                    between_ms = self.joined[order].time_ms - self.paid[payment].payment_ms
                    if abs(between_ms) <= PAIR_MS:
                        self.pairs.add((order, payment))


def truth_of(orders: Iterable[Order]) -> Truth:
    """An undisturbed run's results."""
    truth = Truth()
    for order in orders:
        truth.add(order)
    return truth


def kinds_of(orders: Iterable[Order]) -> Counter[str]:
    """How many of each kind."""
    return Counter(order.kind.value for order in orders)
