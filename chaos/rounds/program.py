"""What a chaos run runs: two sub-topologies with a re-keying between them, Columns and Python
functions, a join of two streams, a join with a table, windows.

    orders ─► filter ─► Columns ─► Python ─┬─► copies
    payments ─────────────────────► join ──┼─► pairs
                                           └─► by shop ═╦═► join with shops ─► regions
                                                        ╚═► windows ─► lists

A window's aggregate is the list of the orders in it, in the order in which they came: what was
lost, doubled or overwritten shows in it, where a sum could be right by accident.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from everflow import JoinWindows, StreamsBuilder, TimeWindows, Topology, serdes

WINDOW_MS = 30_000
PAIR_MS = 2_000
GRACE = "2 days"
"""Longer than a run in the time of its records: whatever an instance holds back is late nowhere."""
LARGEST_COPY_BYTES = 50_000
"""``max.message.bytes`` of the copies."""
PARTITIONS = 3
TASKS = 2 * PARTITIONS
UNLUCKY = 13
"""The amount at which `priced` raises."""
UNLUCKY_LATER = 14
"""The amount at which `listed` raises, in the second sub-topology."""
ORDERS, PAYMENTS, SHOPS = "orders", "payments", "shops"
COPIES, PAIRS, REGIONS, LISTS, DEAD = "copies", "pairs", "regions", "lists", "dead"
INPUTS = (ORDERS, PAYMENTS, SHOPS)
OUTPUTS = (COPIES, PAIRS, REGIONS, LISTS, DEAD)
WINDOWS_STORE, SHOPS_STORE, PAIRS_STORE = "windows", "shops", "pairs"
ORDERS_STORE, PAYMENTS_STORE = f"{PAIRS_STORE}-this-join-store", f"{PAIRS_STORE}-other-join-store"
"""The two stores of `PAIRS_STORE`, by Kafka Streams' names."""

ORDER_TYPE = "n bigint, shop string, amount bigint, split bigint, note string"


def topic(application: str, name: str) -> str:
    """The full name of one of `INPUTS` or `OUTPUTS`."""
    return f"{application}-{name}"


def priced(value: dict[str, Any]) -> dict[str, Any]:
    """A user's function that fails for some."""
    if value["amount"] == UNLUCKY:
        raise ValueError(f"order {value['n']} brings bad luck")
    return {name: value[name] for name in ("n", "shop", "amount", "note")}


def listed(value: dict[str, Any], orders: str) -> str:
    """The numbers of a window's orders, behind each other."""
    if value["amount"] == UNLUCKY_LATER:
        raise ValueError(f"order {value['n']} brings bad luck in its window")
    return f"{orders},{value['n']}" if orders else str(value["n"])


def program(application: str) -> Topology:
    """The topology; its topics begin with the application's id."""
    builder = StreamsBuilder()
    text = serdes.string()
    orders = builder.stream(topic(application, ORDERS), key=text, value=serdes.json(ORDER_TYPE))
    payments = builder.stream(
        topic(application, PAYMENTS), key=text, value=serdes.json("n bigint, paid bigint")
    )
    shops = builder.table(topic(application, SHOPS), key=text, value=text, store=SHOPS_STORE)
    shared = orders.filter(F.col("value.amount") > 0).map_values(
        n=F.col("value.n"),
        shop=F.col("value.shop"),
        amount=F.col("value.amount"),
        share=F.col("value.amount") / F.col("value.split"),
        note=F.col("value.note"),
    )
    kept = shared.map_values(priced, returns="n bigint, shop string, amount bigint, note string")
    kept.to(topic(application, COPIES))
    near = JoinWindows.of_time_difference(PAIR_MS).grace(GRACE)
    kept.join(
        payments,
        windows=near,
        store=PAIRS_STORE,
        order=F.col("left.n"),
        payment=F.col("right.n"),
    ).to(topic(application, PAIRS))
    by_shop = kept.select_key(F.col("value.shop")).repartition(name="by-shop")
    by_shop.join(shops, n=F.col("left.n"), region=F.col("right")).to(topic(application, REGIONS))
    lists = by_shop.group_by_key().windowed_by(TimeWindows.of_size(WINDOW_MS).grace(GRACE))
    lists.aggregate(
        initializer=str, aggregator=listed, returns="string", store=WINDOWS_STORE
    ).to_stream().to(topic(application, LISTS))
    return builder.build()
