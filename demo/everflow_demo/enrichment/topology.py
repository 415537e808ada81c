"""The enrichment's topology: three joins, each with an aggregation behind it."""

from __future__ import annotations

from pyspark.sql import functions as F

from everflow import JoinWindows, KStream, StreamsBuilder, agg, serdes
from everflow.topology.program import Topology
from everflow_demo.data import VALUE_SCHEMA
from everflow_demo.enrichment.data import (
    AIRLINE_SCHEMA,
    AIRLINES_TOPIC,
    DEPARTURES_TOPIC,
    PLANE_SCHEMA,
    PLANES_TOPIC,
    WEATHER_SCHEMA,
    WEATHER_TOPIC,
)

BY_AIRLINE_TOPIC = "delay-by-airline"
BY_VISIBILITY_TOPIC = "delay-by-visibility"
BY_MANUFACTURER_TOPIC = "delay-by-manufacturer"
RESULT_TOPICS = (BY_AIRLINE_TOPIC, BY_VISIBILITY_TOPIC, BY_MANUFACTURER_TOPIC)
UNKNOWN = "unknown"
"""The manufacturer of planes that are in no list."""


def build() -> Topology:
    """Build the topology; starts or adopts a Spark session, since the conditions are Spark Columns.

    Results, JSON of `everflow_demo.topology.DELAY_SCHEMA` on the topics of `RESULT_TOPICS`: the
    flights that left and their mean departure delay per airline's name (stream-table join), per
    airport and visibility in whole miles, ``JFK-10`` (windowed stream-stream join with the weather
    of the hour), and per plane's manufacturer (foreign-key join of a table of flights with the
    planes). Flights arrive out of order by less than a day, which the windows' grace covers.
    """
    builder = StreamsBuilder()
    departures = builder.stream(
        DEPARTURES_TOPIC, key=serdes.string(), value=serdes.json(VALUE_SCHEMA)
    ).filter(F.col("value.dep_delay").isNotNull())
    _by_airline(builder, departures)
    _by_visibility(builder, departures)
    _by_manufacturer(builder, departures)
    return builder.build()


def _by_airline(builder: StreamsBuilder, departures: KStream) -> None:
    airlines = builder.table(
        AIRLINES_TOPIC, key=serdes.string(), value=serdes.json(AIRLINE_SCHEMA), store="airlines"
    )
    named = departures.select_key(F.col("value.carrier")).join(
        airlines,
        name="by-carrier",
        airline=F.col("right.name"),
        dep_delay=F.col("left.dep_delay"),
    )
    (
        named.group_by(F.col("value.airline"), name="by-airline")
        .aggregate(
            flights=agg.count(), mean_dep_delay=agg.avg("value.dep_delay"), store=BY_AIRLINE_TOPIC
        )
        .to_stream()
        .to(BY_AIRLINE_TOPIC)
    )


def _by_visibility(builder: StreamsBuilder, departures: KStream) -> None:
    weather = builder.stream(WEATHER_TOPIC, key=serdes.string(), value=serdes.json(WEATHER_SCHEMA))
    seen = departures.join(
        weather,  # of the hour in which a flight is to leave
        windows=JoinWindows.of_time_difference("0 ms").before("59 minutes").grace("1 day"),
        store="departures-and-weather",
        dep_delay=F.col("left.dep_delay"),
        miles=F.floor("right.visib"),
    )
    (
        seen.group_by(F.concat_ws("-", "key", F.col("value.miles")), name="by-visibility")
        .aggregate(
            flights=agg.count(),
            mean_dep_delay=agg.avg("value.dep_delay"),
            store=BY_VISIBILITY_TOPIC,
        )
        .to_stream()
        .to(BY_VISIBILITY_TOPIC)
    )


def _by_manufacturer(builder: StreamsBuilder, departures: KStream) -> None:
    planes = builder.table(
        PLANES_TOPIC, key=serdes.string(), value=serdes.json(PLANE_SCHEMA), store="planes"
    )
    identity = F.concat_ws("-", "value.carrier", "value.flight", "value.origin", "timestamp")
    flights = departures.select_key(identity).to_table(store="flights")
    flown_with = flights.left_join(
        planes,
        on=F.col("value.tailnum"),
        name="planes-of-flights",
        store="flights-with-planes",
        manufacturer=F.coalesce("right.manufacturer", F.lit(UNKNOWN)),
        dep_delay=F.col("left.dep_delay"),
    )
    (
        flown_with.group_by(F.col("value.manufacturer"), name="by-manufacturer")
        .aggregate(
            flights=agg.count(),
            mean_dep_delay=agg.avg("value.dep_delay"),
            store=BY_MANUFACTURER_TOPIC,
        )
        .to_stream()
        .to(BY_MANUFACTURER_TOPIC)
    )
