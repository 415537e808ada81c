"""The right answer of `./run chaos` is what its program gives."""

from __future__ import annotations

import pytest

from chaos.rounds.analyses import Read, listed, numbers, pairs, window_of
from chaos.rounds.books import letter_number
from chaos.rounds.orders import POISON, REGION_OF, Orders, truth_of
from chaos.rounds.program import (
    COPIES,
    DEAD,
    INPUTS,
    LISTS,
    ORDERS,
    OUTPUTS,
    PAIRS,
    PAYMENTS,
    REGIONS,
    SHOPS,
    program,
    topic,
)
from everflow import serdes
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
RAW = serdes.bytes_()


def test_the_program_gives_what_the_checker_expects() -> None:
    drawn = Orders(3)
    orders = [drawn.next() for _ in range(600)]
    for kind in POISON:
        orders += [drawn.next(kind), *(drawn.next() for _ in range(5))]
    built = program("a")
    with TopologyTestDriver(
        built, emit_every_update=True, dead_letter_topic=topic("a", DEAD)
    ) as driver:
        inputs = {name: driver.create_input_topic(topic("a", name), RAW, RAW) for name in INPUTS}
        for shop, region in REGION_OF.items():
            inputs[SHOPS].pipe_input(shop.encode(), region.encode(), 1)
        for order in orders:
            inputs[ORDERS].pipe_input(order.key.encode(), order.value(), order.time_ms)
            if order.paid:
                inputs[PAYMENTS].pipe_input(order.key.encode(), order.payment(), order.payment_ms)
        found = {
            name: [
                Read(0, at, record.key, record.value, record.timestamp)
                for at, record in enumerate(
                    driver.create_output_topic(topic("a", name), RAW, RAW).read_records()
                )
            ]
            for name in OUTPUTS
        }
    truth = truth_of(orders)
    assert truth.late, "it is about something"
    assert len(truth.pairs) > len(truth.copies), "a payment meets several orders"
    assert sorted(numbers(found[COPIES])) == sorted(truth.copies)
    assert sorted(pairs(found[PAIRS])) == sorted(truth.pairs)
    assert sorted(numbers(found[REGIONS])) == sorted(truth.regions)
    assert sorted(letter_number(read.value) for read in found[DEAD]) == sorted(truth.dead)
    last = {window_of(read.key or b""): listed(read.value or b"") for read in found[LISTS]}
    assert {window: sorted(orders) for window, orders in last.items()} == {
        window: sorted(orders) for window, orders in truth.lists.items()
    }
