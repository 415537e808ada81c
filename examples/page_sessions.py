"""Visits to a site: page views with less than half an hour between them are one session.

    everflow broker --port 9092 --topic page-views:4 --topic visits:4
    everflow run page_sessions:builder --application-id visits --bootstrap-servers 127.0.0.1:9092

A session grows with each view and may swallow another one: a late view that lies between two
sessions makes them one. The session that it replaces gets a null then, and the new one its result;
here nulls are passed on as what they are, deletions, so that whoever reads `visits` as a table by
visitor and begin has every visit once.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from everflow import SessionWindows, StreamsBuilder, agg, serdes

VIEW = serdes.json("page string, ms double")
VISIT = serdes.json("visitor string, seconds double, pages bigint, entered string, left string")

builder = StreamsBuilder()
session, value = F.col("key"), F.col("value")
visit = F.struct(
    session["key"].alias("visitor"),
    ((session["end"] - session["start"]) / 1000).alias("seconds"),
    value["pages"].alias("pages"),
    value["entered"].alias("entered"),
    value["left"].alias("left"),
)
(
    builder.stream("page-views", key=serdes.string(), value=VIEW)
    .group_by_key()
    .windowed_by(SessionWindows.of_inactivity_gap("30 minutes").grace("5 minutes"))
    .aggregate(
        pages=agg.count(),
        entered=agg.first("value.page"),
        left=agg.last("value.page"),
        store="visits-by-visitor",
    )
    .to_stream()
    .map(
        key=F.concat_ws("@", session["key"], session["start"]),
        value=F.when(value.isNotNull(), visit),
    )
    .to("visits", value=VISIT)
)
