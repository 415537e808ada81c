"""The books of `bench migrate`: what they accept, and each fault that they have to find."""

from collections.abc import Callable
from typing import Any

import pytest

from bench.migrate.books import Sent, Update, wrong_ends, wrong_pairs, wrong_sums
from bench.migrate.measure import MigratePlan
from bench.migrate.orders import PAID_S, amount_of, order_of, user_of
from bench.migrate.probe import Seen, batch_s, gaps_of_tasks
from bench.topics import key_of

SENT = Sent(records=400, keys=60, rate=20)
SWITCHED = 250
"""The first record of the new version."""


def user(number: int) -> bytes:
    return key_of(user_of(number, SENT.keys, SENT.rate)).encode()


def updates() -> list[Update]:
    """As a migration that added a field leaves them."""
    books: dict[bytes, tuple[int, int, int | None]] = {}
    found = []
    for number in range(SENT.records):
        orders, total, most = books.get(user(number), (0, 0, None))
        amount, new = amount_of(number), number >= SWITCHED
        most = max(amount, most or 0) if new else None
        books[user(number)] = orders + 1, total + amount, most
        value: dict[str, Any] = {"orders": orders + 1, "total": total + amount, "last": number}
        value |= {"most": most, "by": "new"} if new else {"by": "old"}
        found.append(Update(float(number), user(number), value))
    return found


def pairs() -> list[Update]:
    numbers = range(PAID_S * SENT.rate + 1, SENT.records, 2)
    return [
        Update(0.0, user(n), {"order": order_of(n, SENT.rate), "payment": n, "of": n - 41})
        for n in numbers
    ]


def changed(at: int, **fields: Any) -> Callable[[list[Update]], None]:
    def change(found: list[Update]) -> None:
        found[at] = found[at]._replace(value={**found[at].value, **fields})

    return change


def test_right_outputs_are_right() -> None:
    assert wrong_sums(updates(), SENT) == []
    assert wrong_ends(updates(), SENT) == []
    assert wrong_ends([*updates(), *updates()], SENT) == []
    assert wrong_pairs(pairs(), SENT) == []
    assert wrong_pairs([*pairs(), *pairs()], SENT, once=False) == []


@pytest.mark.parametrize(
    "fault",
    [
        lambda found: found.pop(100),
        lambda found: found.pop(),
        lambda found: found.insert(101, found[100]),
        lambda found: found.append(found[399]),
        changed(300, orders=1),
        changed(300, total=0),
        changed(300, most=-1),
        changed(399, by="old"),
        changed(399, last=398),
        changed(399, last=9_999),
    ],
)
def test_each_fault_of_an_update_is_found(fault: Callable[[list[Update]], None]) -> None:
    found = updates()
    fault(found)
    assert wrong_sums(found, SENT)


def test_a_last_update_that_is_not_the_sum_is_found() -> None:
    assert wrong_ends(updates()[:-1], SENT)


@pytest.mark.parametrize(
    "fault",
    [
        lambda found: found.pop(7),
        lambda found: found.append(found[7]),
        lambda found: found.append(found[7]._replace(value={**found[7].value, "payment": 39})),
        changed(7, order=0),
    ],
)
def test_each_fault_of_a_pair_is_found(fault: Callable[[list[Update]], None]) -> None:
    found = pairs()
    fault(found)
    assert wrong_pairs(found, SENT)


def test_a_task_is_its_keys_in_whatever_number_of_partitions() -> None:
    seen = [Seen(float(n), 0, n, user(n), b"") for n in range(SENT.records)]
    for tasks in (4, 6, 8):
        gaps = gaps_of_tasks(seen, 0.0, 399.0, tasks)
        assert set(gaps) == set(range(tasks))
        assert all(1.0 <= gap.seconds < 60.0 for gap in gaps.values())
    assert gaps_of_tasks([], 1.0, 3.0, 2)[1].seconds == 2.0


def test_batches_are_told_by_the_offsets_that_markers_take() -> None:
    offsets = [(0.0, 0), (0.1, 1), (1.0, 3), (1.1, 4), (3.0, 6), (4.0, 8), (4.1, 9)]
    seen = [Seen(at_s, 0, offset, b"", b"") for at_s, offset in offsets]
    assert batch_s(seen, 0.0, 9.0) == 1.5


def test_too_few_keys_for_a_rate_are_refused() -> None:
    MigratePlan(rate=5_000, keys=20_000)
    with pytest.raises(ValueError, match="12501"):
        MigratePlan(rate=5_000, keys=10_000)
