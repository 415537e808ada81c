"""The programs in everflow's DSL, as a user writes them; their twins are in
`bench/java/Programs.java`.

`everflow run bench.programs.topologies:NAME`; the topics come from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from everflow import (
    JoinWindows,
    KGroupedStream,
    KStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    agg,
    serdes,
)

ORDER = serdes.json("item string, country string, price double, quantity bigint")


def _input(builder: StreamsBuilder, value: serdes.Serde) -> KStream:
    return builder.stream(os.environ[INPUT_TOPIC_VARIABLE], key=serdes.string(), value=value)


def _output(branch: str = "") -> str:
    return os.environ[OUTPUT_TOPIC_VARIABLE] + branch


def trades() -> StreamsBuilder:
    """The average price of each stock by volume, minute by minute."""
    return _trades(lambda stream: stream)


def trades_in_place() -> StreamsBuilder:
    """Of trades that are written by their symbol."""
    return _trades(KStream.assume_partitioned)


def _trades(keyed: Callable[[KStream], KStream]) -> StreamsBuilder:
    builder = StreamsBuilder()
    value = serdes.json("symbol string, price double, size bigint, at bigint")
    price, size = F.col("value.price"), F.col("value.size")
    by_symbol = (
        _input(builder, value)
        .filter((price > 0) & F.col("value.symbol").isNotNull())
        .select_key(F.col("value.symbol"))
    )
    (
        keyed(by_symbol)
        .map_values(amount=price * size, shares=size)
        .group_by_key(name="by-symbol")
        .windowed_by(TimeWindows.of_size("1 minute").grace("1 minute"))
        .aggregate(amount=agg.sum("value.amount"), shares=agg.sum("value.shares"), store="turnover")
        .to_stream()
        .map_values(
            price=F.col("value.amount") / F.col("value.shares"), shares=F.col("value.shares")
        )
        .to(_output())
    )
    return builder


def flights() -> StreamsBuilder:
    """The ten lines of the README."""
    return _flights(lambda stream: stream.group_by(F.col("value.carrier"), name="by-carrier"))


def flights_in_place() -> StreamsBuilder:
    """Of flights that are written by their carrier."""
    carrier = F.col("value.carrier")
    return _flights(lambda stream: stream.select_key(carrier).assume_partitioned().group_by_key())


def _flights(grouped: Callable[[KStream], KGroupedStream]) -> StreamsBuilder:
    builder = StreamsBuilder()
    flown = F.col("value.dep_delay").isNotNull()
    (
        grouped(_input(builder, serdes.json("carrier string, dep_delay double")).filter(flown))
        .windowed_by(TimeWindows.of_size("1 day").grace("1 hour"))
        .aggregate(
            flights=agg.count(), mean_delay=agg.avg("value.dep_delay"), store="delay-by-carrier"
        )
        .to_stream()
        .to(_output())
    )
    return builder


def words() -> StreamsBuilder:
    """Word count."""
    builder = StreamsBuilder()
    (
        _input(builder, serdes.string())
        .flat_map_values(F.split(F.lower("value"), " "))
        .group_by(F.col("value"), name="by-word")
        .count(store="counts")
        .to_stream()
        .to(_output())
    )
    return builder


def sessions() -> StreamsBuilder:
    """Visits of each user: pages and time, with less than half an hour between two views."""
    builder = StreamsBuilder()
    (
        _input(builder, serdes.json("page string, ms bigint"))
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap("30 minutes").grace("5 minutes"))
        .aggregate(pages=agg.count(), ms=agg.sum("value.ms"), store="visits")
        .to_stream()
        .to(_output())
    )
    return builder


def _add(order: Mapping[str, Any], basket: Mapping[str, Any]) -> dict[str, Any]:
    amount = order["price"] * order["quantity"]
    return {
        "orders": basket["orders"] + 1,
        "total": basket["total"] + amount,
        "best": max(basket["best"], amount),
    }


def baskets() -> StreamsBuilder:
    """What each customer ordered, added up by a Python function, record by record."""
    builder = StreamsBuilder()
    (
        _input(builder, ORDER)
        .group_by_key()
        .aggregate(
            initializer=lambda: {"orders": 0, "total": 0.0, "best": 0.0},
            aggregator=_add,
            returns="orders bigint, total double, best double",
            store="baskets",
        )
        .to_stream()
        .to(_output())
    )
    return builder


# A type's name, instead of the type, would need a session when this module is imported.
@F.pandas_udf(DoubleType())  # type: ignore[attr-defined, untyped-decorator]
def _charged(price: pd.Series, quantity: pd.Series) -> pd.Series:
    """A tenth less from five on."""
    amount = price * quantity
    return amount.where(quantity < 5, amount * 0.9)


def invoices() -> StreamsBuilder:
    """What each customer has to pay, computed by a Python function over whole Series."""
    builder = StreamsBuilder()
    (
        _input(builder, ORDER)
        .map_values(amount=_charged(F.col("value.price"), F.col("value.quantity")))
        .group_by_key()
        .aggregate(orders=agg.count(), total=agg.sum("value.amount"), store="invoices")
        .to_stream()
        .to(_output())
    )
    return builder


def split() -> StreamsBuilder:
    """Three branches of orders, each with a mapping and a topic of its own."""
    builder = StreamsBuilder()
    amount = F.col("value.price") * F.col("value.quantity")
    branches = (
        _input(builder, ORDER)
        .filter(F.col("value.quantity") > 0)
        .split()
        .branch(amount >= 2000, name="large")
        .branch(F.col("value.country") == "NZ", name="home")
        .default_branch(name="abroad")
    )
    parcel: dict[str, Column] = {
        "item": F.upper("value.item"),
        "quantity": F.col("value.quantity"),
    }
    invoice = {"item": F.col("value.item"), "amount": amount, "fee": amount * 0.01}
    branches["large"].map_values(**invoice).to(_output("-large"))
    branches["home"].map_values(**parcel).to(_output("-home"))
    branches["abroad"].map_values(**parcel).to(_output("-abroad"))
    return builder


def enrich() -> StreamsBuilder:
    """Purchases joined with the table of cards."""
    builder = StreamsBuilder()
    value = serdes.json("kind string, city string, rate double, item string, amount double")
    events = _input(builder, value)
    cards = (
        events.filter(F.col("value.kind") == "card")
        .map_values(city=F.col("value.city"), rate=F.col("value.rate"))
        .to_table(store="cards")
    )
    (
        events.filter(F.col("value.kind") == "purchase")
        .join(
            cards,
            item=F.col("left.item"),
            city=F.col("right.city"),
            fee=F.col("left.amount") * F.col("right.rate"),
        )
        .to(_output())
    )
    return builder


def pairs() -> StreamsBuilder:
    """Advertisements that were shown, joined with the clicks on them within a minute."""
    builder = StreamsBuilder()
    events = _input(builder, serdes.json("kind string, campaign string, ms bigint"))
    (
        events.filter(F.col("value.kind") == "view")
        .join(
            events.filter(F.col("value.kind") == "click"),
            windows=JoinWindows.of_time_difference("1 minute").grace("1 minute"),
            store="clicked",
            campaign=F.col("left.campaign"),
            ms=F.col("right.ms") - F.col("left.ms"),
        )
        .to(_output())
    )
    return builder


def final() -> StreamsBuilder:
    """Readings of sensors in windows of five seconds, one result for each."""
    builder = StreamsBuilder()
    (
        _input(builder, serdes.json("celsius double, percent bigint"))
        .group_by_key()
        .windowed_by(TimeWindows.of_size("5 seconds").grace("5 seconds"))
        .aggregate(readings=agg.count(), celsius=agg.sum("value.celsius"), store="readings")
        .suppress(Suppressed.until_window_closes(), store="held-back")
        .to_stream()
        .to(_output())
    )
    return builder


def cities() -> StreamsBuilder:
    """Who lives where: people counted, and their ages added up, by the city they moved to."""
    builder = StreamsBuilder()
    (
        _input(builder, serdes.json("city string, age bigint"))
        .to_table(store="people")
        .group_by(F.col("value.city"), name="by-city")
        .aggregate(people=agg.count(), years=agg.sum("value.age"), store="cities")
        .to_stream()
        .to(_output())
    )
    return builder


def fleets() -> StreamsBuilder:
    """Vehicles, each with the name of the fleet that it belongs to now."""
    builder = StreamsBuilder()
    events = _input(builder, serdes.json("kind string, name string, fleet string, km double"))
    names = (
        events.filter(F.col("value.kind") == "fleet")
        .map_values(name=F.col("value.name"))
        .to_table(store="fleets")
    )
    (
        events.filter(F.col("value.kind") == "vehicle")
        .map_values(fleet=F.col("value.fleet"), km=F.col("value.km"))
        .to_table(store="vehicles")
        .join(
            names,
            on=F.col("value.fleet"),
            name="fleets-of-vehicles",
            fleet=F.col("right.name"),
            km=F.col("left.km"),
        )
        .to_stream()
        .to(_output())
    )
    return builder


def once() -> StreamsBuilder:
    """Payments, which are sent again where their sender is not sure, each once."""
    builder = StreamsBuilder()
    (
        _input(builder, serdes.json("id string, amount double, country string"))
        .filter(F.col("value.amount") > 0)
        .deduplicate("10 seconds", store="seen")
        .map_values(amount=F.col("value.amount"), country=F.col("value.country"))
        .to(_output())
    )
    return builder


def bursts() -> StreamsBuilder:
    """Readings of sensors that come within half a second of each other."""
    builder = StreamsBuilder()
    (
        _input(builder, serdes.json("celsius double, percent bigint"))
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference("500 ms").grace("5 seconds"))
        .aggregate(readings=agg.count(), celsius=agg.sum("value.celsius"), store="bursts")
        .to_stream()
        .to(_output())
    )
    return builder


def _owe(booking: Mapping[str, Any], account: Mapping[str, Any]) -> dict[str, Any]:
    return {"orders": account["orders"] + 1, "due": account["due"] + booking["amount"]}


def _pay(booking: Mapping[str, Any], account: Mapping[str, Any]) -> dict[str, Any]:
    return {"orders": account["orders"], "due": account["due"] - booking["amount"]}


def accounts() -> StreamsBuilder:
    """What each customer owes: orders and payments, cogrouped, a Python function for either."""
    builder = StreamsBuilder()
    bookings = _input(builder, serdes.json("kind string, amount double"))
    orders, payments = (
        bookings.filter(F.col("value.kind") == kind).group_by_key() for kind in ("order", "payment")
    )
    (
        orders.cogroup(_owe)
        .cogroup(payments, _pay)
        .aggregate(
            lambda: {"orders": 0, "due": 0.0}, store="accounts", returns="orders bigint, due double"
        )
        .to_stream()
        .to(_output())
    )
    return builder


def chain() -> StreamsBuilder:
    """Three sub-topologies: clicks, users, and the best user of each team."""
    builder = StreamsBuilder()
    (
        _input(builder, serdes.json("user string, team string, ms bigint"))
        .filter(F.col("value.ms") >= 0)
        .group_by(F.col("value.user"), name="by-user")
        .aggregate(
            clicks=agg.count(),
            ms=agg.sum("value.ms"),
            team=agg.last("value.team"),
            store="per-user",
        )
        .to_stream()
        .group_by(F.col("value.team"), name="by-team")
        .aggregate(most=agg.max("value.clicks"), longest=agg.max("value.ms"), store="per-team")
        .to_stream()
        .to(_output())
    )
    return builder


def latest() -> StreamsBuilder:
    """A table of each key's last value, and its changes (`bench growth`)."""
    builder = StreamsBuilder()
    table = builder.table(
        os.environ[INPUT_TOPIC_VARIABLE],
        key=serdes.string(),
        value=serdes.string(),
        store="latest-values",
    )
    table.to_stream().to(_output())
    return builder
