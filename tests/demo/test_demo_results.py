"""Result records -> figures."""

from __future__ import annotations

import pytest

from everflow import Windowed, serdes
from everflow.serdes import SerdeError
from everflow_demo.batch import CarrierDay, Figures, MeanDelay, to_figures
from everflow_demo.topology import BY_CARRIER_DAY_TOPIC, BY_CARRIER_TOPIC, DAY_MS, ROUTES_TOPIC


def day_key(carrier: str, day: int) -> bytes:
    return carrier.encode() + (day * DAY_MS).to_bytes(8, "big")


def test_the_last_value_of_a_key_wins_and_null_deletes() -> None:
    figures = to_figures(
        {
            BY_CARRIER_TOPIC: [
                (b"UA", b'{"flights":1,"mean_dep_delay":9.0}'),
                (b"AA", b'{"flights":1,"mean_dep_delay":0.5}'),
                (b"UA", b'{"flights":2,"mean_dep_delay":3.0}'),
            ],
            BY_CARRIER_DAY_TOPIC: [(day_key("UA", 3), b'{"flights":2,"mean_dep_delay":3.0}')],
            ROUTES_TOPIC: [
                (b"EWR-ORD", (1).to_bytes(8, "big")),
                (b"EWR-SFO", (7).to_bytes(8, "big")),
                (b"EWR-SFO", None),
            ],
        }
    )
    assert figures == Figures(
        carriers={"UA": MeanDelay(2, 3.0), "AA": MeanDelay(1, 0.5)},
        carrier_days={CarrierDay("UA", 3 * DAY_MS): MeanDelay(2, 3.0)},
        routes={"EWR-ORD": 1},
    )


def test_the_day_key_is_what_the_serde_writes() -> None:
    key = serdes.time_windowed(serdes.string(), DAY_MS).encode(
        Windowed("UA", 3 * DAY_MS, 4 * DAY_MS)
    )
    assert key == day_key("UA", 3)


def test_foreign_bytes_are_an_error_not_a_figure() -> None:
    with pytest.raises(SerdeError):
        to_figures({ROUTES_TOPIC: [(b"EWR-ORD", b"12")]})
