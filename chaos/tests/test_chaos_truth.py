"""The right answer of `./run chaos` is what its program gives."""

from __future__ import annotations

import json

import pytest

from chaos.rounds.analyses import (
    Read,
    by_customer,
    by_pair,
    by_row,
    kept_order,
    listed,
    numbers,
    pairs,
    window_of,
)
from chaos.rounds.books import letter_number
from chaos.rounds.orders import POISON, Orders, row, truth_of, version_of
from chaos.rounds.orders import SHOPS as ALL_SHOPS
from chaos.rounds.program import (
    COPIES,
    DEAD,
    INPUTS,
    LISTS,
    ORDERS,
    ORDERS_STORE,
    OUTPUTS,
    PAIRS,
    PAYMENTS,
    PAYMENTS_STORE,
    REGIONS,
    SHOPS,
    SHOPS_STORE,
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
        for shop in ALL_SHOPS:
            inputs[SHOPS].pipe_input(shop.encode(), row(shop, 0).encode(), 1)
        for order in orders:
            if order.written_row:
                shop, written = order.written_row
                inputs[SHOPS].pipe_input(shop.encode(), written.encode(), order.time_ms)
            inputs[ORDERS].pipe_input(order.key.encode(), order.value(), order.time_ms)
            if order.paid:
                inputs[PAYMENTS].pipe_input(order.key.encode(), order.payment(), order.payment_ms)
        joined, paid = (
            sorted(json.loads(value)["n"] for _, value in driver.get_window_store(store).all())
            for store in (ORDERS_STORE, PAYMENTS_STORE)
        )
        rows = dict(driver.get_key_value_store(SHOPS_STORE).all())
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
    for name, places in ((COPIES, by_customer), (REGIONS, by_customer), (PAIRS, by_pair)):
        assert kept_order(name, {0: found[name]}, places) == []
    assert kept_order(REGIONS, {0: found[REGIONS]}, by_row) == []
    versions = {version_of(json.loads(read.value or b"")["region"]) for read in found[REGIONS]}
    assert len(versions) > len(ALL_SHOPS), "rows of the table are written again and again"
    assert (joined, paid, rows) == (sorted(truth.joined), sorted(truth.paid), truth.rows)
    assert sorted(letter_number(read.value) for read in found[DEAD]) == sorted(truth.dead)
    last = {window_of(read.key or b""): listed(read.value or b"") for read in found[LISTS]}
    assert {window: sorted(orders) for window, orders in last.items()} == {
        window: sorted(orders) for window, orders in truth.lists.items()
    }
