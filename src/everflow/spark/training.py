"""Trains Spark's JVM: does once what an instance makes it do, and ends it in order.

Run as a program by `everflow.jvm`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from everflow.spark.columns import computed, empty_frame
from everflow.spark.session import get_context, get_session

END_S = 300.0
RECORDS = ['{"user": "ada", "price": 1.5, "at": "2026-01-01T00:00:00Z"}', "none"]


def main() -> None:
    """Start Spark, compute some Columns, hand rows to a Python worker and back, and wait until the
    JVM has ended."""
    context: Any = get_context()
    frame = get_session().createDataFrame([(value,) for value in RECORDS], "value string")
    computed(empty_frame(get_session(), frame.schema).select(F.upper("value").alias("value")))
    parsed = frame.select(
        F.from_json(
            "value", "user string, price double, at timestamp", {"mode": "PERMISSIVE"}
        ).alias("value")
    )
    kept = parsed.where((F.col("value.price") > 1) & F.col("value.user").isNotNull())
    made = F.struct(
        F.upper("value.user").alias("user"), F.round("value.price", 1).alias("price"), "value.at"
    )
    shaped = kept.select(F.to_json(made).alias("value"))
    shaped.mapInArrow(lambda batches: batches, shaped.schema).collect()
    jvm = context._gateway.proc
    context.stop()
    jvm.stdin.close()  # which ends it; it writes the archive then
    jvm.wait(END_S)


if __name__ == "__main__":
    main()
