"""The queries of NEXMark, a benchmark of auctions, each as a program of a few lines.

Persons register, open auctions, and bid. All events are in one topic, as JSON; `EVENT` is their
type. Each query is a function from the events to its results; its text says what it shows. The
numbers are NEXMark's (github.com/nexmark/nexmark). `./run bench nexmark` runs them beside Flink SQL
and Kafka Streams and compares the results with those of Spark's batch SQL; so do the tests.

    everflow broker --port 9092 --topic nexmark:4 --topic nexmark-results:4
    everflow run nexmark:builder --application-id hot-items --bootstrap-servers 127.0.0.1:9092

(in this folder) runs `q5`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow import (
    JoinWindows,
    KStream,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    WallclockTimestampExtractor,
    agg,
    serdes,
)

EVENT = serdes.json("""
    event_type int,
    person struct<id: bigint, name: string, emailAddress: string, creditCard: string,
                  city: string, state: string, dateTime: bigint, extra: string>,
    auction struct<id: bigint, itemName: string, description: string, initialBid: bigint,
                   reserve: bigint, dateTime: bigint, expires: bigint, seller: bigint,
                   category: bigint, extra: string>,
    bid struct<auction: bigint, bidder: bigint, price: bigint, channel: string, url: string,
               dateTime: bigint, extra: string>
""")
LATE = "1 hour"
"""How late an event may be. A program that reads a backlog reads some partitions faster than
others, so its events are later than they were when they were written."""
AUCTION_LIFE = "10 seconds"
"""No auction is open for longer, and no bid comes longer before its auction or after its end."""
TEN_SECONDS = TimeWindows.of_size("10 seconds").grace(LATE)


PERSON = "id name emailAddress creditCard city state dateTime extra"
AUCTION = "id itemName description initialBid reserve dateTime expires seller category extra"
BID = "auction bidder price channel url dateTime extra"


# A query takes only the fields that it needs: what has a new key is written to a repartition topic
# and read again, and the records of a join are kept, too.


def _persons(events: KStream, fields: str = PERSON) -> KStream:
    persons = events.filter(F.col("value.event_type") == 0)
    return persons.map_values(**_fields("value.person", fields))


def _auctions(events: KStream, fields: str = AUCTION) -> KStream:
    auctions = events.filter(F.col("value.event_type") == 1)
    return auctions.map_values(**_fields("value.auction", fields))


def _bids(events: KStream, fields: str = BID) -> KStream:
    bids = events.filter(F.col("value.event_type") == 2)
    return bids.map_values(**_fields("value.bid", fields))


def _fields(of: str, names: str, **renamed: str) -> dict[str, Column]:
    same = {name: F.col(f"{of}.{name}") for name in names.split()}
    return same | {new: F.col(f"{of}.{name}") for new, name in renamed.items()}


def _day() -> Column:
    return F.date_format(F.timestamp_millis("value.dateTime"), "yyyy-MM-dd")


def _best_first() -> Column:
    """Orders bids by their price; of two with the same price the earlier one is the better."""
    return F.col("value.price") * 10_000_000_000 - F.col("value.dateTime") % 10_000_000_000


def q0(events: KStream) -> KStream:
    """**Pass through**: each bid as it is. What reading, decoding, encoding and writing cost."""
    return _bids(events, "auction bidder price dateTime extra")


def q1(events: KStream) -> KStream:
    """**Currency**: prices in euros. One Column computes a field, the others stay."""
    kept = _fields("value", "auction bidder dateTime extra")
    bids = _bids(events, "auction bidder price dateTime extra")
    return bids.map_values(price=F.col("value.price") * 0.908, **kept)


def q2(events: KStream) -> KStream:
    """**Selection**: the bids on some auctions. A filter by a Column."""
    return _bids(events, "auction price").filter(F.col("value.auction") % 123 == 0)


def q3(events: KStream) -> KStream:
    """**Local items**: who in three states sells something of category 10. Auctions and persons
    become tables; the seller is a foreign key. An auction that comes before its seller is joined
    when the seller comes."""
    persons = (
        _persons(events, "id name city state")
        .filter(F.col("value.state").isin("OR", "ID", "CA"))
        .select_key(F.col("value.id"))
        .to_table(store="persons")
    )
    auctions = (
        _auctions(events, "id seller category")
        .filter(F.col("value.category") == 10)
        .select_key(F.col("value.id"))
        .to_table(store="auctions")
    )
    row = F.struct("right.name", "right.city", "right.state", "left.id")
    return auctions.join(persons, row, on=F.col("value.seller"), name="sellers").to_stream()


def _bids_in_time(auctions: KStream, bids: KStream, **fields: Column) -> KStream:
    """Each bid that came while its auction was open, under the auction's id. A bid waits for its
    auction, and an auction for its bids, so it does not matter which is read first."""
    return (
        auctions.select_key(F.col("value.id"))
        .join_interval(
            bids.select_key(F.col("value.auction")),
            after=AUCTION_LIFE,
            grace=LATE,
            store="bids-in-time",
            name="by-auction",
        )
        .filter(F.col("value.right.dateTime") <= F.col("value.left.expires"))
        .map_values(**fields)
    )


def q4(events: KStream) -> KStream:
    """**Average price per category**: the highest bid of each auction, then the mean of those. Two
    streams are joined in time, the first aggregate is a table, and the second one groups its rows:
    when an auction has a higher bid, the mean loses the old price and takes the new one."""
    final_prices = (
        _bids_in_time(
            _auctions(events, "id expires category"),
            _bids(events, "auction price dateTime"),
            category=F.col("value.left.category"),
            price=F.col("value.right.price"),
        )
        .group_by_key()
        .aggregate(
            final=agg.max("value.price"), category=agg.last("value.category"), store="final-prices"
        )
    )
    return (
        final_prices.group_by(F.col("value.category"), name="by-category")
        .aggregate(final=agg.avg("value.final"), store="categories")
        .to_stream()
        .map_values(id=F.col("key"), final=F.col("value.final").cast("bigint"))
    )


def _hotter(counted: Mapping[str, Any], hottest: Mapping[str, Any]) -> dict[str, Any]:
    """The auctions with the most bids so far. The count of an auction only rises."""
    auction, num = counted["auction"], counted["num"]
    if num > hottest["num"]:
        return {"num": num, "auctions": [auction]}
    if num == hottest["num"] and auction not in hottest["auctions"]:
        return {"num": num, "auctions": sorted([*hottest["auctions"], auction])}
    return dict(hottest)


def q5(events: KStream) -> KStream:
    """**Hot items**: the auctions with the most bids in ten seconds, every two seconds. Bids are
    counted by auction in hopping windows; a Python function keeps the highest counts of each
    window, and all auctions that have it. A result has a window's start as its key."""
    counts = (
        _bids(events, "auction")
        .group_by(F.col("value.auction"), name="by-auction")
        .windowed_by(TimeWindows.of_size("10 seconds").advance_by("2 seconds").grace(LATE))
        .count(store="bids-of-auctions")
    )
    return (
        counts.to_stream()
        .map(
            key=F.col("key.start"),
            value=F.struct(F.col("key.key").alias("auction"), F.col("value").alias("num")),
        )
        .group_by_key(name="by-window")
        .aggregate(
            initializer=lambda: {"num": 0, "auctions": []},
            aggregator=_hotter,
            returns="num bigint, auctions array<bigint>",
            store="hottest",
        )
        .to_stream()
    )


def q7(events: KStream) -> KStream:
    """**Highest bid** of every ten seconds, with all its fields. All bids are of one group, so they
    meet in one task. Of several bids with the highest price the first one is kept."""
    fields = "auction bidder price dateTime extra"
    bid = F.struct(*_fields("value", fields).values())
    return (
        _bids(events, fields)
        .map_values(bid=bid, best=_best_first())
        .group_by(F.lit(0).cast("bigint"), name="all")
        .windowed_by(TEN_SECONDS)
        .aggregate(bid=agg.max_by("value.bid", "value.best"), store="highest")
        .to_stream()
        .map_values(F.col("value.bid"))
    )


def q8(events: KStream) -> KStream:
    """**New users**: who opened an auction in the ten seconds in which he registered. Two windowed
    tables are joined: their keys are equal if person and window are."""
    persons = (
        _persons(events, "id name")
        .group_by(F.col("value.id"), name="persons")
        .windowed_by(TEN_SECONDS)
        .aggregate(name=agg.last("value.name"), store="registered")
    )
    sellers = (
        _auctions(events, "seller")
        .group_by(F.col("value.seller"), name="sellers")
        .windowed_by(TEN_SECONDS)
        .count(store="opened")
    )
    return (
        persons.join(sellers, F.col("left.name"))
        .to_stream()
        .map_values(id=F.col("key.key"), name=F.col("value"), stime=F.col("key.start"))
    )


def q9(events: KStream) -> KStream:
    """**Winning bids**: each auction with its highest bid. As in `q4` the streams are joined in
    time; `max_by` keeps a whole row, by price and then by time."""
    auction = _fields("value.left", AUCTION)
    bid = _fields("value.right", "auction bidder price", bid_dateTime="dateTime", bid_extra="extra")
    row = F.struct(*(column.alias(name) for name, column in (auction | bid).items()))
    return (
        _bids_in_time(
            _auctions(events),
            _bids(events, "auction bidder price dateTime extra"),
            row=row,
            price=F.col("value.right.price"),
            dateTime=F.col("value.right.dateTime"),
        )
        .map_values(row=F.col("value.row"), best=_best_first())
        .group_by_key()
        .aggregate(row=agg.max_by("value.row", "value.best"), store="winning")
        .to_stream()
        .map_values(F.col("value.row"))
    )


def _counted(windows: SessionWindows | TimeWindows, gap_ms: int, events: KStream) -> KStream:
    """How many bids each bidder has in each window."""
    grouped = _bids(events, "bidder").group_by(F.col("value.bidder"), name="by-bidder")
    counts = grouped.windowed_by(windows).count(store="bids-of-bidders")
    return counts.map_values(
        bidder=F.col("key.key"),
        bid_count=F.col("value"),
        starttime=F.col("key.start"),
        endtime=F.col("key.end") + gap_ms,
    ).to_stream()


def q11(events: KStream) -> KStream:
    """**Sessions of bidders**: how many bids, with at most ten seconds between two of them. When a
    session grows, the result under its old bounds is deleted. NEXMark lets a session end ten
    seconds after its last bid."""
    return _counted(SessionWindows.of_inactivity_gap("10 seconds").grace(LATE), 10_000, events)


def q12(events: KStream) -> KStream:
    """**Bids of ten seconds by the clock**: windows of the time at which the program reads a bid,
    not of the bid's own. `program` reads the topic with `WallclockTimestampExtractor`. The windows
    are others in each run; only how many bids each bidder has in all of them is the same."""
    return _counted(TEN_SECONDS, 0, events)


def _ranks() -> dict[str, Column]:
    """NEXMark's ranges of prices."""
    price = F.col("value.price")
    return {
        "rank1": price < 10_000,
        "rank2": (price >= 10_000) & (price < 1_000_000),
        "rank3": price >= 1_000_000,
    }


def _number_of_bids() -> dict[str, agg.Aggregator]:
    ranked = {f"{rank}_bids": agg.count(F.when(is_in, 1)) for rank, is_in in _ranks().items()}
    return {"total_bids": agg.count(), **ranked}


def _distinct(of: str, name: str) -> dict[str, agg.Aggregator]:
    ids = F.col(f"value.{name}")
    ranked = {f"{rank}_{of}": F.when(is_in, ids) for rank, is_in in _ranks().items()}
    columns = {f"total_{of}": ids, **ranked}
    return {field: agg.collect_set(column, limit=1_000_000) for field, column in columns.items()}


def q16(events: KStream) -> KStream:
    """**Channels by day**: how many bids, bidders and auctions, in all and in three ranges of
    prices. The exact number of distinct values needs the values: `collect_set` keeps them in the
    store, and `F.size` counts them. `agg.approx_count_distinct` needs next to no room."""
    day = _day()
    sets = {**_distinct("bidders", "bidder"), **_distinct("auctions", "auction")}
    counts = _number_of_bids()
    return (
        _bids(events, "auction bidder price channel dateTime")
        .group_by(F.concat_ws("|", F.col("value.channel"), day), name="by-channel-and-day")
        .aggregate(
            channel=agg.last("value.channel"),
            day=agg.last(day),
            minute=agg.max(F.date_format(F.timestamp_millis("value.dateTime"), "HH:mm")),
            **counts,
            **sets,
            store="channels",
        )
        .map_values(
            **_fields("value", " ".join(["channel", "day", "minute", *counts])),
            **{field: F.size(F.col(f"value.{field}")).cast("bigint") for field in sets},
        )
        .to_stream()
    )


def q17(events: KStream) -> KStream:
    """**Auctions by day**: how many bids, in all and in three ranges of prices, and the lowest, the
    highest, the mean price and the sum. Built-in aggregates of one group."""
    day = _day()
    counts = _number_of_bids()
    return (
        _bids(events, "auction price dateTime")
        .group_by(F.concat_ws("|", F.col("value.auction"), day), name="by-auction-and-day")
        .aggregate(
            auction=agg.last("value.auction"),
            day=agg.last(day),
            **counts,
            min_price=agg.min("value.price"),
            max_price=agg.max("value.price"),
            sum_price=agg.sum("value.price"),
            store="days",
        )
        .map_values(
            **_fields("value", " ".join(["auction", "day", *counts])),
            **_fields("value", "min_price max_price sum_price"),
            avg_price=F.floor(F.col("value.sum_price") / F.col("value.total_bids")),
        )
        .to_stream()
    )


def _bid() -> Column:
    return F.struct(*_fields("value", BID).values())


def q18(events: KStream) -> KStream:
    """**Last bid** of each bidder on each auction: `max_by` of the time keeps the latest row, also
    when an earlier one is read after it."""
    return (
        _bids(events)
        .group_by(F.concat_ws("|", "value.bidder", "value.auction"), name="by-bidder-and-auction")
        .aggregate(bid=agg.max_by(_bid(), "value.dateTime"), store="last-bids")
        .map_values(F.col("value.bid"))
        .to_stream()
    )


def q19(events: KStream) -> KStream:
    """**Top 10 bids** of each auction, each with its rank. `top_n` keeps the rows; then each row
    becomes a result under auction and rank, which replaces the one before."""
    ranked = F.transform(
        "value.bids",
        lambda bid, place: F.struct(
            *(bid[name].alias(name) for name in BID.split()),
            (place + 1).cast("bigint").alias("rank_number"),
        ),
    )
    return (
        _bids(events)
        .group_by(F.col("value.auction"), name="by-auction")
        .aggregate(bids=agg.top_n(_bid(), 10, by=_best_first()), store="top-bids")
        .to_stream()
        .flat_map_values(ranked)
        .select_key(F.concat_ws("|", "value.auction", "value.rank_number"))
    )


def q20(events: KStream) -> KStream:
    """**Bids with their auctions**, of category 10, under the time of the bid. NEXMark keeps all
    bids and auctions for ever; here both wait for each other for as long as an auction lives."""
    auctions = _auctions(events).filter(F.col("value.category") == 10)
    bid = _fields("left", "auction bidder price channel url")
    bid |= _fields("left", "", bid_dateTime="dateTime", bid_extra="extra")
    auction = _fields("right", "itemName description initialBid reserve expires seller category")
    auction |= _fields("right", "", auction_dateTime="dateTime", auction_extra="extra")
    return (
        _bids(events)
        .select_key(F.col("value.auction"))
        .join(
            auctions.select_key(F.col("value.id")),
            windows=JoinWindows.of_time_difference(AUCTION_LIFE).grace(LATE),
            store="bids-and-auctions",
            name="by-auction",
            **bid,
            **auction,
        )
        .select_key(F.col("value.bid_dateTime"))
    )


QUERIES: dict[str, Callable[[KStream], KStream]] = {
    query.__name__: query
    for query in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q12, q16, q17, q18, q19, q20)
}


def program(query: str, events_topic: str, results_topic: str) -> StreamsBuilder:
    """A query, from topic to topic."""
    builder = StreamsBuilder()
    time = WallclockTimestampExtractor() if query == "q12" else None
    events = builder.stream(events_topic, key=serdes.string(), value=EVENT, timestamp=time)
    QUERIES[query](events).to(results_topic)
    return builder


def builder() -> StreamsBuilder:
    """`q5` as a program of its own."""
    return program("q5", "nexmark", "nexmark-results")
