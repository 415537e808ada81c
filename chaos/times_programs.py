"""The programs of `./run chaos times`; `chaos.times_truth` has their input and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from chaos.times_truth import (
    ALL,
    CASH,
    GAP_MS,
    GRACE_MS,
    HISTORY_MS,
    NOWHERE,
    SLIDING_GRACE_MS,
    SLIDING_MS,
    WINDOW_MS,
)
from everflow import (
    KStream,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    agg,
    serdes,
)

Topic = Callable[[str], str]
"""The name that an application has for a topic."""
TEXT = serdes.string()


def program(name: str, topic: Topic) -> StreamsBuilder:
    """One of `PROGRAMS`."""
    builder = StreamsBuilder()
    PROGRAMS[name](builder, topic)
    return builder


def _read(builder: StreamsBuilder, topic: str, fields: str) -> KStream:
    return builder.stream(topic, key=TEXT, value=serdes.json(fields))


def _at_start(key: Column) -> Column:
    """``key@start`` of a windowed key."""
    return F.concat_ws("@", key, F.col("key.start").cast("string"))


def _windows(builder: StreamsBuilder, topic: Topic) -> None:
    """Sales re-keyed by shop, in windows, when they are final."""
    sales = _read(builder, topic("sales"), "shop string, amount bigint")
    windows = TimeWindows.of_size(WINDOW_MS).grace(GRACE_MS)
    totals = (
        sales.group_by(F.col("value.shop"), name="by-shop")
        .windowed_by(windows)
        .aggregate(n=agg.count(), total=agg.sum("value.amount"), store="totals")
        .suppress(Suppressed.until_window_closes(), store="final-totals")
    )
    changes = totals.to_stream()
    changes.map(key=_at_start(F.col("key.key")), value=F.col("value")).to(topic("totals"))


def _chain(builder: StreamsBuilder, topic: Topic) -> None:
    """Visits in sessions, sessions in sliding windows, each joined with a versioned table by key
    and with a table by a foreign key; all but the last table re-keyed."""
    visits = _read(builder, topic("visits"), "visitor string")
    rates = _read(builder, topic("rates"), "shop string, rate bigint, region string")
    regions = builder.table(
        topic("regions"), key=TEXT, value=serdes.json("name string"), store="regions"
    )
    ended = (
        visits.group_by(F.col("value.visitor"), name="by-visitor")
        .windowed_by(SessionWindows.of_inactivity_gap(GAP_MS).grace(GRACE_MS))
        .aggregate(visits=agg.count(), store="sessions")
        .suppress(Suppressed.until_window_closes(), store="final-sessions")
        .to_stream()
    )
    sliding = (
        ended.group_by(F.substring_index(F.col("key.key"), "-", 1), name="by-shop")
        .windowed_by(SlidingWindows.of_time_difference(SLIDING_MS).grace(SLIDING_GRACE_MS))
        .aggregate(sessions=agg.count(), visits=agg.sum("value.visits"), store="sliding")
        .suppress(Suppressed.until_window_closes(), store="final-sliding")
        .to_stream()
    )
    by_shop = rates.select_key(F.col("value.shop")).to_table(
        store=Materialized("rates", history=HISTORY_MS), name="rates-by-shop"
    )
    rated = sliding.map(
        key=F.col("key.key"),
        value=F.struct(
            _at_start(F.col("key.key")).alias("id"),
            F.col("value.sessions").alias("sessions"),
            F.col("value.visits").alias("visits"),
        ),
    ).join(
        by_shop,
        name="with-rate",
        id=F.col("left.id"),
        sessions=F.col("left.sessions"),
        visits=F.col("left.visits"),
        rate=F.col("right.rate"),
        region=F.col("right.region"),
    )
    rated.select_key(F.col("value.id")).to_table(store="rated", name="rated-by-id").join(
        regions,
        on=F.col("value.region"),
        name="with-region",
        sessions=F.col("left.sessions"),
        visits=F.col("left.visits"),
        rate=F.col("left.rate"),
        name_=F.col("right.name"),
    ).to_stream().map_values(
        F.struct("value.sessions", "value.visits", "value.rate", F.col("value.name_").alias("name"))
    ).to(topic("priced"))


def _changes(builder: StreamsBuilder, topic: Topic) -> None:
    """A table re-keyed, and joined with a re-keyed stream."""
    customers = _read(builder, topic("customers"), "account string, tier bigint")
    orders = _read(builder, topic("orders"), "account string")
    accounts = customers.select_key(F.col("value.account")).to_table(
        store="accounts", name="by-account"
    )
    named = orders.map(
        key=F.col("value.account"),
        value=F.struct(F.col("key").alias("order"), F.col("value.account").alias("account")),
    )
    enriched = named.left_join(
        accounts,
        name="orders-by-account",
        order=F.col("left.order"),
        account=F.col("left.account"),
        tier=F.col("right.tier"),
    )
    enriched.map(key=F.col("value.order"), value=F.struct("value.account", "value.tier")).to(
        topic("enriched")
    )


def _bank(builder: StreamsBuilder, topic: Topic) -> None:
    """Movements summed by payee and by payer, both joined, joined with the account's branch, and
    summed by branch, and all. And their entries in each account, which sum up to 0 in each window
    of a currency: a movement is one record, and is split into two."""
    in_cash = "account string, amount bigint, currency string"
    whole = "payer string, payee string, amount bigint, currency string"
    deposits = _read(builder, topic("deposits"), in_cash)
    withdrawals = _read(builder, topic("withdrawals"), in_cash)
    transfers = _read(builder, topic("transfers"), whole)
    owners = builder.table(
        topic("accounts"), key=TEXT, value=serdes.json("branch string"), store="owners"
    )

    def movement(stream: KStream, payer: Column, payee: Column) -> KStream:
        names = ("payer", "payee"), (payer, payee)
        sides = (column.alias(name) for name, column in zip(*names, strict=True))
        return stream.map_values(F.struct(*sides, "value.amount", "value.currency"))

    account, cash = F.col("value.account"), F.lit(CASH)
    movements = movement(transfers, F.col("value.payer"), F.col("value.payee")).merge(
        movement(deposits, cash, account), movement(withdrawals, account, cash)
    )
    received, paid = (
        movements.group_by(F.col(f"value.{side}"), name=f"by-{side}").aggregate(
            total=agg.sum("value.amount"), store=f"of-{side}"
        )
        for side in ("payee", "payer")
    )
    zero = F.lit(0).cast("bigint")
    balance = F.coalesce(F.col("left.total"), zero) - F.coalesce(F.col("right.total"), zero)
    balances = received.outer_join(paid, balance=balance, store="balances").left_join(
        owners,
        balance=F.col("left.balance"),
        branch=F.coalesce(F.col("right.branch"), F.lit(NOWHERE)),
        store="placed",
    )
    balances.to_stream().to(topic("balances"))
    branches = balances.group_by(F.col("value.branch"), name="by-branch").aggregate(
        n=agg.count(), total=agg.sum("value.balance"), store="branches"
    )
    branches.to_stream().to(topic("branches"))
    branches.group_by(F.lit(ALL), name="by-all").aggregate(
        total=agg.sum("value.total"), store="bank"
    ).to_stream().to(topic("bank"))

    def entry(side: str, amount: Column) -> Column:
        key = F.concat_ws("/", F.col("value.currency"), F.col(f"value.{side}"))
        return F.struct(key.alias("key"), F.struct(amount.alias("amount")).alias("value"))

    amount, windows = F.col("value.amount"), TimeWindows.of_size(WINDOW_MS).grace(GRACE_MS)
    nets = (
        movements.flat_map(F.array(entry("payer", -amount), entry("payee", amount)), name="entries")
        .group_by_key(name="by-account")
        .windowed_by(windows)
        .aggregate(n=agg.count(), net=agg.sum("value.amount"), store="nets")
        .suppress(Suppressed.until_window_closes(), store="final-nets")
        .to_stream()
    )
    nets.map(key=_at_start(F.col("key.key")), value=F.col("value")).to(topic("nets"))
    totals = (
        nets.group_by(F.substring_index(F.col("key.key"), "/", 1), name="by-currency")
        .windowed_by(windows)
        .aggregate(
            accounts=agg.count(),
            n=agg.sum("value.n"),
            total=agg.sum("value.net"),
            store="currencies",
        )
        .suppress(Suppressed.until_window_closes(), store="final-currencies")
        .to_stream()
    )
    totals.map(key=_at_start(F.col("key.key")), value=F.col("value")).to(topic("currencies"))


PROGRAMS: Mapping[str, Callable[[StreamsBuilder, Topic], None]] = {
    "windows": _windows,
    "chain": _chain,
    "changes": _changes,
    "bank": _bank,
}
