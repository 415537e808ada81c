"""NEXMark's events, and that its queries, which are examples for users, give what Spark's batch SQL
does."""

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bench.nexmark.generator import AUCTIONS, BIDS, EPOCH, PERSONS, event, time_ms
from bench.nexmark.truth import SQL, truth, views
from bench.programs.catalogue import NEXMARK, PROGRAMS, Finals
from bench.programs.outputs import equal
from everflow import serdes
from everflow.testing import TopologyTestDriver
from nexmark import QUERIES, program

RECORDS = 10_000
PARTITIONS = 4
BATCHES = 3


def test_an_event_is_the_same_every_time_and_of_fifty_three_are_auctions() -> None:
    events = [json.loads(event(number)[1]) for number in range(20 * EPOCH)]
    assert events == [json.loads(event(number)[1]) for number in range(20 * EPOCH)]
    kinds = Counter(found["event_type"] for found in events)
    assert kinds == {0: 20 * PERSONS, 1: 20 * AUCTIONS, 2: 20 * BIDS}
    for kind, name in enumerate(("person", "auction", "bid")):
        times = [
            (found[name]["dateTime"], time_ms(number))
            for number, found in enumerate(events)
            if found["event_type"] == kind
        ]
        assert all(one == other for one, other in times)


def test_half_of_the_bids_are_for_hot_auctions_and_some_for_one_that_comes_later() -> None:
    bids = [
        (number, json.loads(event(number)[1])["bid"])
        for number in range(200 * EPOCH)
        if number % EPOCH >= PERSONS + AUCTIONS
    ]
    hot = sum(bid["auction"] % 100 == 0 for _, bid in bids) / len(bids)
    assert 0.49 < hot < 0.53
    assert 0.74 < sum(bid["bidder"] % 100 == 1 for _, bid in bids) / len(bids) < 0.78
    early = sum(bid["auction"] - 1000 > number // EPOCH * AUCTIONS + 2 for number, bid in bids)
    assert 0 < early < len(bids) / 10


QUICK = ("q0", "q5")


def slow(query: str) -> object:
    return pytest.param(query, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[SparkSession]:
    views(spark, RECORDS)
    yield spark
    for kind in ("person", "auction", "bid"):
        spark.catalog.dropTempView(kind)


def results(query: str) -> Finals:
    """Of the test driver, for events in several micro-batches, each out of order."""
    with TopologyTestDriver(
        program(query, "nexmark", "results").build(), partitions=PARTITIONS
    ) as driver:
        topic = driver.create_input_topic("nexmark", serdes.string(), serdes.bytes_())
        out = driver.create_output_topic("results", serdes.bytes_(), serdes.bytes_())
        numbers = range(RECORDS)
        for batch in range(BATCHES):
            some = list(numbers[batch * RECORDS // BATCHES : (batch + 1) * RECORDS // BATCHES])
            random.Random(batch).shuffle(some)
            topic.pipe_batch([(str(number), event(number)[1], time_ms(number)) for number in some])
            driver.advance_wall_clock_time(7_000)
        found = dict(out.read_key_values())
    return {("", key): json.loads(value) for key, value in found.items() if value is not None}


@pytest.mark.spark
@pytest.mark.parametrize("query", [one if one in QUICK else slow(one) for one in QUERIES])
def test_a_query_gives_what_batch_sql_does(events: SparkSession, query: str) -> None:
    expected = truth(events, query)
    found = results(query)
    if query == "q12":
        assert len(found) > len(expected), "the clock went on between the batches"
    found = PROGRAMS[query].compared(found)
    assert expected
    assert found.keys() == expected.keys()
    wrong = [place for place in expected if not equal(found[place], expected[place])]
    assert not wrong, (wrong[0], found[wrong[0]], expected[wrong[0]])


def test_each_query_has_a_truth_and_a_text() -> None:
    assert QUERIES.keys() == SQL.keys() == set(NEXMARK)
    assert all(query.__doc__ for query in QUERIES.values())
