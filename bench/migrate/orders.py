"""The records of `bench migrate`: orders and their payments, each known by its number. Pure."""

from __future__ import annotations

from bench.load.steady_sender import key_index
from bench.topics import key_of

PAID_S = 2
"""A payment comes so long after its order."""
PAIRED_S = 3
"""Orders and payments of a user are joined within so long."""
WINDOW_S = 30


def order_of(number: int, rate: int) -> int:
    """Even numbers are orders, each other one pays that of `PAID_S` before; the first ones pay what
    was never ordered."""
    return number if number % 2 == 0 else number - 1 - PAID_S * rate


def user_of(number: int, keys: int, rate: int) -> int:
    """Which of the keys a record has."""
    return key_index(order_of(number, rate) // 2, keys)


def amount_of(number: int) -> int:
    """What is summed up."""
    return number % 1000


def row_of(number: int, keys: int, rate: int) -> tuple[bytes, bytes]:
    """Key and JSON value of a record."""
    user = key_of(user_of(number, keys, rate))
    kind = "payment" if number % 2 else "order"
    value = (
        f'{{"id":{number},"order":{order_of(number, rate)},"user":"{user}","kind":"{kind}",'
        f'"amount":{amount_of(number)}}}'
    )
    return user.encode(), value.encode()


def time_ms(number: int, rate: int, began_ms: int) -> int:
    """When a record is due, which is its time."""
    return began_ms + number * 1000 // rate


def least_keys(rate: int) -> int:
    """With fewer a user's next order would meet the payment of the one before."""
    return (PAID_S + PAIRED_S) * rate // 2 + 1
