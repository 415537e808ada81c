"""Result topics -> figures: the last value of every key, decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everflow import serdes
from everflow_demo.batch import MeanDelay
from everflow_demo.enrichment.batch import Enriched
from everflow_demo.enrichment.topology import (
    BY_AIRLINE_TOPIC,
    BY_MANUFACTURER_TOPIC,
    BY_VISIBILITY_TOPIC,
)
from everflow_demo.stage import Record, latest
from everflow_demo.topology import DELAY_SCHEMA


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
