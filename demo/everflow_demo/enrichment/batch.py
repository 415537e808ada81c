"""The enrichment's figures once more, by plain pandas merges.

Nothing here may share code with the stream's path: a mistake made twice would go unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from everflow import serdes
from everflow_demo.batch import MeanDelay, compare
from everflow_demo.enrichment.topology import (
    BY_AIRLINE_TOPIC,
    BY_MANUFACTURER_TOPIC,
    BY_VISIBILITY_TOPIC,
)
from everflow_demo.stage import Record, latest
from everflow_demo.topology import DELAY_SCHEMA

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Enriched:
    """The three results, of flights that left: by the airline's name, by airport and visibility in
    whole miles (``JFK-10``), by the plane's manufacturer."""

    airlines: Mapping[str, MeanDelay] = field(default_factory=dict)
    visibilities: Mapping[str, MeanDelay] = field(default_factory=dict)
    manufacturers: Mapping[str, MeanDelay] = field(default_factory=dict)


def figures(flights: pa.Table, weather: pa.Table, airlines: pa.Table, planes: pa.Table) -> Enriched:
    """Compute all figures from the tables of `everflow_demo.enrichment.data`."""
    frame: Any = flights.to_pandas()
    flown = frame[frame["dep_delay"].notna()]
    named = flown.merge(airlines.to_pandas()[["carrier", "name"]], on="carrier")
    hourly = weather.to_pandas().rename(columns={"time": "hour"})
    seen = flown.assign(hour=flown["time"] // HOUR_MS * HOUR_MS).merge(
        hourly, on=["origin", "hour"]
    )
    miles = np.floor(seen["visib"]).astype(int).astype(str)
    made = planes.to_pandas()[["tailnum", "manufacturer"]]
    # pandas would match a missing number with a missing number.
    built = flown.merge(made[made["tailnum"].notna()], on="tailnum", how="left")
    return Enriched(
        airlines=_means(named, named["name"]),
        visibilities=_means(seen, seen["origin"] + "-" + miles),
        manufacturers=_means(built, built["manufacturer"].fillna("unknown")),
    )


def differences(streamed: Enriched, batch: Enriched) -> list[str]:
    """As `everflow_demo.batch.differences`."""
    return [
        *compare("airline", streamed.airlines, batch.airlines),
        *compare("airport and visibility", streamed.visibilities, batch.visibilities),
        *compare("manufacturer", streamed.manufacturers, batch.manufacturers),
    ]


def _means(frame: Any, by: Any) -> dict[str, MeanDelay]:
    grouped = frame["dep_delay"].groupby(by.to_numpy()).agg(["count", "mean"])
    return {str(key): MeanDelay(int(n), float(mean)) for key, n, mean in grouped.itertuples()}


def to_figures(records: Mapping[str, Iterable[Record]]) -> Enriched:
    """Decode the records of the three result topics, each in the order of its partitions. A group
    that has lost all its entries is no result. Raises SerdeError for bytes that are not what
    `everflow_demo.enrichment.topology.build` writes."""
    return Enriched(
        airlines=_delays(records.get(BY_AIRLINE_TOPIC, ())),
        visibilities=_delays(records.get(BY_VISIBILITY_TOPIC, ())),
        manufacturers=_delays(records.get(BY_MANUFACTURER_TOPIC, ())),
    )


def _delays(records: Iterable[Record]) -> dict[str, MeanDelay]:
    key, value = serdes.string(), serdes.json(DELAY_SCHEMA)
    found = {key.decode(k): value.decode(v) for k, v in latest(records).items()}
    return {
        group: MeanDelay(delay["flights"], delay["mean_dep_delay"])
        for group, delay in found.items()
        if delay["flights"]
    }
