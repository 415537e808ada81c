"""The enrichment's batch, its records and its verdict."""

import io

import pyarrow as pa
from rich.console import Console

from everflow_demo.batch import MeanDelay
from everflow_demo.data import load_flights
from everflow_demo.enrichment import batch, data
from everflow_demo.enrichment.batch import Enriched, to_figures
from everflow_demo.enrichment.report import EnrichmentOutcome, show
from everflow_demo.enrichment.topology import BY_MANUFACTURER_TOPIC, RESULT_TOPICS

HOUR = batch.HOUR_MS


def flights() -> pa.Table:
    return pa.table(
        {
            "carrier": ["UA", "UA", "AA", "AA"],
            "origin": ["JFK", "JFK", "EWR", "EWR"],
            "tailnum": ["N1", "N2", None, "N1"],
            "dep_delay": [10.0, 20.0, 3.0, None],
            "time": [HOUR, 2 * HOUR - 60_000, 2 * HOUR, 2 * HOUR],
        }
    )


def weather() -> pa.Table:
    return pa.table(
        {
            "origin": ["JFK", "JFK", "EWR"],
            "visib": [9.5, 10.0, 0.25],
            "time": [HOUR, 2 * HOUR, 2 * HOUR],
        }
    )


AIRLINES = pa.table({"carrier": ["UA", "AA"], "name": ["United", "American"]})
PLANES = pa.table({"tailnum": ["N1", None], "manufacturer": ["BOEING", "NOBODY"]})


def test_the_batch_joins_flights_that_left() -> None:
    """The hour of the scheduled departure, its last minute too; a flight without a number has no
    plane, nor has one whose plane nobody knows."""
    assert batch.figures(flights(), weather(), AIRLINES, PLANES) == Enriched(
        airlines={"United": MeanDelay(2, 15.0), "American": MeanDelay(1, 3.0)},
        visibilities={"JFK-9": MeanDelay(2, 15.0), "EWR-0": MeanDelay(1, 3.0)},
        manufacturers={"BOEING": MeanDelay(1, 10.0), "unknown": MeanDelay(2, 11.5)},
    )


def test_differences_name_the_result_and_the_key() -> None:
    found = batch.figures(flights(), weather(), AIRLINES, PLANES)
    wrong = Enriched(found.airlines, found.visibilities, {"BOEING": MeanDelay(2, 10.0)})
    assert batch.differences(wrong, found) == [
        "manufacturer BOEING: streamed 2 flights, mean 10.0, batch 1 flights, mean 10.0",
        "manufacturer unknown: streamed nothing, batch 2 flights, mean 11.5",
    ]


def test_what_is_known_is_older_than_the_flights_and_the_weather_is_in_order() -> None:
    found = data.load_weather()
    times = found["time"].to_pylist()
    assert (found.num_rows, times) == (26_115, sorted(times))
    assert data.load_planes().num_rows == 3_322
    records = data.to_records(load_flights(0), found, data.load_airlines(), data.load_planes())
    assert [given.topic for given in records] == ["airlines", "planes", "weather", "departures"]
    assert max(records[0].timestamps) < times[0]
    assert (records[0].keys[0], records[0].values[0]) == (b"9E", b'{"name":"Endeavor Air Inc."}')


def test_a_group_that_has_lost_all_is_no_result() -> None:
    written = [
        (b"BOEING", b'{"flights":1,"mean_dep_delay":2.5}'),
        (b"unknown", b'{"flights":1,"mean_dep_delay":2.5}'),
        (b"unknown", b'{"flights":0,"mean_dep_delay":null}'),
    ]
    found = to_figures({BY_MANUFACTURER_TOPIC: written})
    assert found == Enriched(manufacturers={"BOEING": MeanDelay(1, 2.5)})
    assert len(RESULT_TOPICS) == 3


def test_the_report_shows_three_tables_and_the_verdict() -> None:
    outcome = EnrichmentOutcome(
        records_in={"airlines": 2, "departures": 1_000},
        guarantee="exactly_once_v2",
        elapsed_s=2.0,
        streamed=Enriched(airlines={"United": MeanDelay(1, 4.0)}),
        differences=["airline United: streamed nothing, batch nothing"],
    )
    written = io.StringIO()
    show(outcome, Console(file=written, width=100))
    text = written.getvalue()
    assert text.count("longest delays, by") == 3
    assert "2 airlines, 1,000 departures in 2.0 s" in text
    assert "compared 1 airlines, 0 airports by visibility, 0 manufacturers" in text
    assert "matches batch: no\n  airline United" in text
    assert outcome.to_json()["airlines"] == {"United": {"flights": 1, "mean_dep_delay": 4.0}}
