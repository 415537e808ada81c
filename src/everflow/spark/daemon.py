"""Spark's Python daemon with our imports done before it forks (`spark.python.daemon.module`).

Without this the first batch after a worker's death pays the imports again (1.6 s against 0.26 s measured).
"""

from __future__ import annotations

import importlib
import sys

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "lmdb",
    "orjson",
    "confluent_kafka",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "everflow.runtime.step.task_step",
    "everflow.runtime.worker.kafka_sink",
    "everflow.runtime.worker.worker_ports",
    "everflow.travel.parcel",
)


def main() -> None:
    """Import, then hand over to pyspark's daemon; runs as ``python -m everflow.spark.daemon``."""
    for name in PRELOADED:
        importlib.import_module(name)
    from pyspark.daemon import manager

    sys.stderr.flush()
    manager()


if __name__ == "__main__":
    main()
