"""The plain figures against hand-counted flights, and the comparison against every kind of
difference."""

from __future__ import annotations

import pyarrow as pa
import pytest

from everflow_demo.batch import CarrierDay, Figures, MeanDelay, differences, figures

DAY_MS = 86_400_000
FLIGHTS = pa.table(
    {
        "carrier": ["UA", "UA", "UA", "AA"],
        "origin": ["EWR", "EWR", "EWR", "JFK"],
        "dest": ["ORD", "ORD", "SFO", "MIA"],
        "dep_delay": pa.array([10.0, -4.0, None, 1.0]),
        "time": pa.array([0, DAY_MS - 1, DAY_MS, DAY_MS], pa.int64()),
    }
)
EXPECTED = Figures(
    carriers={"UA": MeanDelay(2, 3.0), "AA": MeanDelay(1, 1.0)},
    carrier_days={
        CarrierDay("UA", 0): MeanDelay(2, 3.0),
        CarrierDay("AA", DAY_MS): MeanDelay(1, 1.0),
    },
    routes={"EWR-ORD": 2, "EWR-SFO": 1, "JFK-MIA": 1},
)


def test_figures_leave_cancelled_flights_out_of_carriers_but_not_of_routes() -> None:
    assert figures(FLIGHTS) == EXPECTED


def test_equal_figures_have_no_differences() -> None:
    assert differences(figures(FLIGHTS), EXPECTED) == []


def test_means_may_differ_by_rounding_only() -> None:
    nearly = Figures(
        {**EXPECTED.carriers, "UA": MeanDelay(2, 3.0 * (1 + 1e-10))},
        EXPECTED.carrier_days,
        EXPECTED.routes,
    )
    off = Figures(
        {**EXPECTED.carriers, "UA": MeanDelay(2, 3.0 * (1 + 1e-8))},
        EXPECTED.carrier_days,
        EXPECTED.routes,
    )
    assert differences(nearly, EXPECTED) == []
    assert len(differences(off, EXPECTED)) == 1


@pytest.mark.parametrize(
    ("streamed", "line"),
    [
        (
            Figures({"UA": MeanDelay(2, 3.0)}, EXPECTED.carrier_days, EXPECTED.routes),
            "carrier AA: streamed nothing, batch 1 flights, mean 1.0",
        ),
        (
            Figures(
                EXPECTED.carriers,
                {**EXPECTED.carrier_days, CarrierDay("UA", 0): MeanDelay(3, 3.0)},
                EXPECTED.routes,
            ),
            (
                "carrier and day UA on 1970-01-01: streamed 3 flights, mean 3.0, batch 2 flights, "
                "mean "
                "3.0"
            ),
        ),
        (
            Figures(EXPECTED.carriers, EXPECTED.carrier_days, {**EXPECTED.routes, "EWR-LAX": 1}),
            "route EWR-LAX: streamed 1, batch nothing",
        ),
    ],
)
def test_a_difference_names_result_and_key(streamed: Figures, line: str) -> None:
    assert differences(streamed, EXPECTED) == [line]
