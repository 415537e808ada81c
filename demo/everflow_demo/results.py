"""Result topics -> figures: the last value of every key, decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everflow import serdes
from everflow_demo.batch import CarrierDay, Figures, MeanDelay
from everflow_demo.stage import Record, latest
from everflow_demo.topology import (
    BY_CARRIER_DAY_TOPIC,
    BY_CARRIER_TOPIC,
    DAY_MS,
    DELAY_SCHEMA,
    ROUTES_TOPIC,
)


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
