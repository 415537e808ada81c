"""What the results of NEXMark's queries are to be: Spark's batch SQL over the same events.

A query gives rows of the columns of a result, and `key`: text, or numbers, which stand in the
record's key one after the other, 8 bytes each, as a windowed key has them (a session: its end
before its start). The texts are NEXMark's; where they differ, the comment says why.

`python -m bench.nexmark.truth ...` is a process of its own: its JVM is gone when a system is
measured.
"""

from __future__ import annotations

import argparse
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.nexmark.generator import event
from bench.programs.catalogue import Finals
from bench.systems import SystemFailedError

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

# NEXMark's parts of `q4` and `q9`, and windows as `start` in ms.
_IN_TIME = "a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires"
_TEN = "unix_millis(window(timestamp_millis(dateTime), '10 seconds').start)"
_DAY = "date_format(timestamp_millis(dateTime), 'yyyy-MM-dd')"
_RANKS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}


def _of_ranks(counted: str, of: str) -> str:
    return ", ".join(
        f"count({counted}) FILTER (WHERE {condition}) AS {rank}_{of}"
        for rank, condition in _RANKS.items()
    )


SQL = {
    "q0": "SELECT event AS key, auction, bidder, price, dateTime, extra FROM bid",
    # Doubles for NEXMark's decimals, which JSON has no type for.
    "q1": "SELECT event AS key, auction, bidder, 0.908D * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT event AS key, auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT array(a.id) AS key, p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""
        SELECT array(category) AS key, category AS id, CAST(floor(avg(final)) AS bigint) AS final
        FROM (
            SELECT max(b.price) AS final, a.category
            FROM auction a JOIN bid b ON {_IN_TIME} GROUP BY a.id, a.category)
        GROUP BY category""",
    # A row for each window: NEXMark has a row for each of its auctions.
    "q5": """
        WITH counted AS (
            SELECT auction, count(*) AS num, unix_millis(w.start) AS start
            FROM (
                SELECT auction, window(timestamp_millis(dateTime), '10 seconds', '2 seconds') AS w
                FROM bid)
            GROUP BY auction, w)
        SELECT array(start) AS key, num, array_sort(collect_list(auction)) AS auctions
        FROM counted JOIN (
            SELECT start, max(num) AS num FROM counted GROUP BY start) USING (start, num)
        GROUP BY start, num""",
    # A bid at the end of a window belongs to the next one; NEXMark's BETWEEN has it in both.
    "q7": f"""
        SELECT array(0L, start) AS key, auction, bidder, price, dateTime, extra
        FROM (SELECT *, {_TEN} AS start FROM bid)
        JOIN (
            SELECT max(price) AS price, start
            FROM (SELECT price, {_TEN} AS start FROM bid) GROUP BY start) USING (start, price)""",
    "q8": f"""
        SELECT array(id, stime) AS key, id, name, stime
        FROM (SELECT DISTINCT id, name, {_TEN} AS stime FROM person)
        JOIN (SELECT DISTINCT seller AS id, {_TEN} AS stime FROM auction) USING (id, stime)""",
    "q9": f"""
        SELECT array(id) AS key, id, itemName, description, initialBid, reserve, dateTime, expires,
            seller, category, extra, auction, bidder, price, bid_dateTime, bid_extra
        FROM (
            SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime,
                b.extra AS bid_extra,
                row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime) AS number
            FROM auction a JOIN bid b ON {_IN_TIME})
        WHERE number = 1""",
    # Bids ten seconds apart are of one session, as in Kafka Streams and Flink.
    "q11": """
        SELECT array(bidder, max(dateTime), min(dateTime)) AS key, bidder, count(*) AS bid_count,
            min(dateTime) AS starttime, max(dateTime) + 10000 AS endtime
        FROM (
            SELECT bidder, dateTime,
                sum(new) OVER (PARTITION BY bidder ORDER BY dateTime) AS session
            FROM (
                SELECT bidder, dateTime, CASE WHEN dateTime - lag(dateTime) OVER (
                    PARTITION BY bidder ORDER BY dateTime) <= 10000 THEN 0 ELSE 1 END AS new
                FROM bid))
        GROUP BY bidder, session""",
    # Windows of the clock are others in each run: the sum of a bidder's (in the catalogue).
    "q12": "SELECT array(bidder) AS key, bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q16": f"""
        SELECT concat_ws('|', channel, {_DAY}) AS key, channel, {_DAY} AS day,
            max(date_format(timestamp_millis(dateTime), 'HH:mm')) AS minute,
            {_of_ranks("*", "bids")}, {_of_ranks("DISTINCT bidder", "bidders")},
            {_of_ranks("DISTINCT auction", "auctions")}
        FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""
        SELECT concat_ws('|', auction, {_DAY}) AS key, auction, {_DAY} AS day,
            {_of_ranks("*", "bids")}, min(price) AS min_price, max(price) AS max_price,
            sum(price) div count(*) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, {_DAY}""",
    "q18": """
        SELECT concat_ws('|', bidder, auction) AS key, auction, bidder, price, channel, url,
            dateTime, extra
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY bidder, auction ORDER BY dateTime DESC) AS number FROM bid)
        WHERE number = 1""",
    # NEXMark leaves open which of two bids of one price comes first: the earlier one.
    "q19": """
        SELECT concat_ws('|', auction, rank_number) AS key, auction, bidder, price, channel, url,
            dateTime, extra, CAST(rank_number AS bigint) AS rank_number
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY auction ORDER BY price DESC, dateTime) AS rank_number FROM bid)
        WHERE rank_number <= 10""",
    "q20": """
        SELECT array(b.dateTime) AS key, b.auction, b.bidder, b.price, b.channel, b.url,
            b.dateTime AS bid_dateTime, b.extra AS bid_extra, a.itemName, a.description,
            a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller,
            a.category, a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
}


KINDS = ("person", "auction", "bid")


def views(spark: SparkSession, records: int) -> None:
    """The first `records` events as the views `person`, `auction` and `bid`, each with its key as
    `event`."""
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for key, value in map(event, range(records)):
        found = json.loads(value)
        kind = KINDS[found["event_type"]]
        rows[kind].append({"event": key.decode(), **found[kind]})
    for kind in KINDS:
        table = spark.createDataFrame(pa.Table.from_pylist(rows[kind]))
        table.createOrReplaceTempView(kind)


def truth(spark: SparkSession, query: str) -> Finals:
    """The results of a query over the views, as `bench.programs.outputs.finals` reads them.

    Raises `ValueError` where two rows have one key: the query's results are then no table.
    """
    before = spark.conf.get(_SHUFFLE_PARTITIONS) or "200"
    # Two hundred small tasks take longer than what they do.
    spark.conf.set(_SHUFFLE_PARTITIONS, "2")
    try:
        return _of_rows(spark.sql(SQL[query]))
    finally:
        spark.conf.set(_SHUFFLE_PARTITIONS, before)


def _of_rows(rows: DataFrame) -> Finals:
    found: dict[tuple[str, bytes], Any] = {}
    for value in rows.toArrow().to_pylist():
        place = "", _key_bytes(value.pop("key"))
        if place in found:
            raise ValueError(f"two results under {place[1]!r}: {found[place]} and {value}")
        found[place] = value
    return found


def _key_bytes(key: str | Iterable[int]) -> bytes:
    if isinstance(key, str):
        return key.encode()
    return b"".join(struct.pack(">q", part) for part in key)


def truths(queries: Sequence[str], records: int, folder: Path) -> dict[str, Finals]:
    """`truth` of several queries over the first `records` events, by a process that has ended.

    Raises `SystemFailedError` with what it said where it failed.
    """
    file = folder / f"truth-{records}.pickle"
    command = [sys.executable, "-m", "bench.nexmark.truth", str(records), str(file), *queries]
    done = subprocess.run(
        command,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemFailedError(f"Spark's batch SQL failed:\n{done.stdout}{done.stderr}")
    found: dict[str, Finals] = pickle.loads(file.read_bytes())
    return found


def main() -> None:
    """Write the truths of the queries to the file."""
    from everflow.spark.session import get_session

    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("queries", nargs="+", choices=SQL)
    options = parser.parse_args()
    spark = get_session()
    views(spark, options.records)
    options.file.write_bytes(
        pickle.dumps({query: truth(spark, query) for query in options.queries})
    )
    spark.stop()


if __name__ == "__main__":
    main()
