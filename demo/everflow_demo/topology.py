"""The demo's topology: three results from one stream of flights.

Day boundary: UTC days, that is 19:00 or 20:00 in New York. Windows are aligned to the epoch, as in
Kafka Streams.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, agg, serdes
from everflow.topology.program import Topology
from everflow_demo.data import FLIGHTS_TOPIC, VALUE_SCHEMA

BY_CARRIER_TOPIC = "delay-by-carrier"
BY_CARRIER_DAY_TOPIC = "delay-by-carrier-and-day"
ROUTES_TOPIC = "flights-by-route"
RESULT_TOPICS = (BY_CARRIER_TOPIC, BY_CARRIER_DAY_TOPIC, ROUTES_TOPIC)
DAY_MS = 86_400_000
DELAY_SCHEMA = "flights bigint, mean_dep_delay double"


def build() -> Topology:
    """Build the topology; starts or adopts a Spark session, since the conditions are Spark Columns.

    Results, on topics of the same names as the constants: per carrier and per carrier and UTC day
    (windowed key) the flights that left and their mean departure delay (JSON of `DELAY_SCHEMA`);
    per route ``origin-dest`` the number of all flights (Java long). Flights arrive out of order by
    less than a day (see `everflow_demo.data`), so with a day of grace no window drops one.
    """
    builder = StreamsBuilder()
    flights = builder.stream(FLIGHTS_TOPIC, key=serdes.string(), value=serdes.json(VALUE_SCHEMA))

    by_carrier = flights.filter(F.col("value.dep_delay").isNotNull()).group_by_key()
    (
        by_carrier.aggregate(
            flights=agg.count(), mean_dep_delay=agg.avg("value.dep_delay"), store="delay-by-carrier"
        )
        .to_stream()
        .to(BY_CARRIER_TOPIC)
    )
    (
        by_carrier.windowed_by(TimeWindows.of_size("1 day").grace("1 day"))
        .aggregate(
            flights=agg.count(),
            mean_dep_delay=agg.avg("value.dep_delay"),
            store="delay-by-carrier-and-day",
        )
        .to_stream()
        .to(BY_CARRIER_DAY_TOPIC)
    )
    (
        flights.group_by(F.concat_ws("-", "value.origin", "value.dest"), name="by-route")
        .count(store="flights-by-route")
        .to_stream()
        .to(ROUTES_TOPIC)
    )
    return builder.build()
