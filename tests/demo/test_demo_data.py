"""The records of the demo: all flights, in the order and with the times that the grace relies
on."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from everflow_demo.data import FLIGHTS_TOTAL, TopicRecords, load_flights, to_records

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return load_flights()


def test_all_flights_are_there_with_their_cancelled_ones(flights: pa.Table) -> None:
    assert flights.num_rows == FLIGHTS_TOTAL
    assert flights["dep_delay"].null_count == 8_255


def test_record_time_is_the_scheduled_departure_in_utc(flights: pa.Table) -> None:
    first = flights.slice(0, 1).to_pylist()[0]
    # UA 1545 was scheduled for 05:15 in New York, 10:15 UTC, on 2013-01-01.
    assert (first["carrier"], first["flight"], first["time"]) == ("UA", 1545, 1_357_035_300_000)


def test_records_are_out_of_order_by_less_than_a_day(flights: pa.Table) -> None:
    time = np.asarray(flights["time"])
    lateness = np.maximum.accumulate(time) - time
    assert 0 < lateness.max() < DAY_MS


def test_a_limit_takes_the_first_flights(flights: pa.Table) -> None:
    assert load_flights(10).equals(flights.slice(0, 10))


def test_records_are_keyed_by_carrier_with_json_values() -> None:
    records: TopicRecords = to_records(load_flights(1))
    assert records.keys == [b"UA"]
    assert json.loads(records.values[0]) == {
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "dep_delay": 2.0,
        "arr_delay": 11.0,
        "distance": 1400,
    }
    assert records.timestamps.tolist() == [1_357_035_300_000]
