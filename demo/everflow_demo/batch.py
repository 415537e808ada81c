"""The demo's figures once more, by plain pandas over the file, compared with the streamed ones.

Nothing here may share code with the stream's path: a mistake made twice would go unseen.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from everflow import serdes
from everflow_demo.stage import Record, latest
from everflow_demo.topology import (
    BY_CARRIER_DAY_TOPIC,
    BY_CARRIER_TOPIC,
    DAY_MS,
    DELAY_SCHEMA,
    ROUTES_TOPIC,
)

MEAN_TOLERANCE = (
    1e-9  # relative; whole minutes sum up exactly in doubles, so only the division rounds
)


class MeanDelay(NamedTuple):
    """Flights that left, and the mean of their departure delays in minutes."""

    flights: int
    mean_dep_delay: float


class CarrierDay(NamedTuple):
    """A carrier and the start of a UTC day in ms since the epoch."""

    carrier: str
    start_ms: int

    def __str__(self) -> str:
        day = datetime.fromtimestamp(self.start_ms / 1000, timezone.utc).date()
        return f"{self.carrier} on {day}"


@dataclass(frozen=True)
class Figures:
    """The three results of the demo.

    ``carriers`` and ``carrier_days`` count flights with a departure delay (flown ones), ``routes``
    counts all flights; a route is ``origin-dest``.
    """

    carriers: Mapping[str, MeanDelay] = field(default_factory=dict)
    carrier_days: Mapping[CarrierDay, MeanDelay] = field(default_factory=dict)
    routes: Mapping[str, int] = field(default_factory=dict)


def figures(flights: pa.Table) -> Figures:
    """Compute all figures from the table of `everflow_demo.data.load_flights`."""
    frame: Any = flights.to_pandas()
    flown = frame[frame["dep_delay"].notna()]
    day = pd.to_datetime(flown["time"], unit="ms", utc=True).dt.normalize()
    by_day = flown.groupby([flown["carrier"], day])["dep_delay"].agg(["count", "mean"])
    by_carrier = flown.groupby("carrier")["dep_delay"].agg(["count", "mean"])
    routes = (frame["origin"] + "-" + frame["dest"]).value_counts()
    return Figures(
        carriers={
            str(code): MeanDelay(int(n), float(mean)) for code, n, mean in by_carrier.itertuples()
        },
        carrier_days={
            CarrierDay(str(code), int(start.timestamp()) * 1000): MeanDelay(int(n), float(mean))
            for (code, start), n, mean in by_day.itertuples()
        },
        routes={str(route): int(n) for route, n in routes.items()},
    )


def differences(streamed: Figures, batch: Figures) -> list[str]:
    """Every difference as a line for people, sorted by result and key; empty when all figures
    agree.

    Counts must be equal; means agree within `MEAN_TOLERANCE`.
    """
    return [
        *compare("carrier", streamed.carriers, batch.carriers),
        *compare("carrier and day", streamed.carrier_days, batch.carrier_days),
        *compare("route", streamed.routes, batch.routes),
    ]


def compare(result: str, streamed: Mapping[Any, Any], batch: Mapping[Any, Any]) -> list[str]:
    """The differences of one result, by key; ``result`` says what its keys are."""
    keys: list[Hashable] = sorted({*streamed, *batch})
    lines = []
    for key in keys:
        got, expected = streamed.get(key), batch.get(key)
        if not _same(got, expected):
            lines.append(f"{result} {key}: streamed {_show(got)}, batch {_show(expected)}")
    return lines


def _same(got: Any, expected: Any) -> bool:
    if isinstance(got, MeanDelay) and isinstance(expected, MeanDelay):
        close = math.isclose(
            got.mean_dep_delay, expected.mean_dep_delay, rel_tol=MEAN_TOLERANCE, abs_tol=1e-12
        )
        return got.flights == expected.flights and close
    return bool(got == expected)


def _show(figure: Any) -> str:
    if figure is None:
        return "nothing"
    if isinstance(figure, MeanDelay):
        return f"{figure.flights:,} flights, mean {figure.mean_dep_delay!r}"
    return f"{figure:,}"


def to_figures(records: Mapping[str, Iterable[Record]]) -> Figures:
    """Decode the records of the three result topics, each in the order of its partitions.

    The last value of a key is its result; a null value deletes it. Keys never change partition, so
    the order between partitions does not matter. Raises SerdeError for bytes that are not what
    `everflow_demo.topology.build` writes.
    """
    carrier_key = serdes.string()
    day_key = serdes.time_windowed(serdes.string(), DAY_MS)
    routes, count = serdes.string(), serdes.long()
    return Figures(
        carriers={
            carrier_key.decode(key): _delay(value)
            for key, value in latest(records.get(BY_CARRIER_TOPIC, ())).items()
        },
        carrier_days={
            CarrierDay(window.key, window.start): _delay(value)
            for window, value in (
                (day_key.decode(key), value)
                for key, value in latest(records.get(BY_CARRIER_DAY_TOPIC, ())).items()
            )
        },
        routes={
            routes.decode(key): count.decode(value)
            for key, value in latest(records.get(ROUTES_TOPIC, ())).items()
        },
    )


def _delay(value: bytes) -> MeanDelay:
    decoded = serdes.json(DELAY_SCHEMA).decode(value)
    return MeanDelay(decoded["flights"], decoded["mean_dep_delay"])
