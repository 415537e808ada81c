"""The program of the test, and the process that runs it: ``python shop_program.py SETTINGS``."""

import json
import logging
import sys
from typing import Any

from everflow import KafkaStreams, StreamsBuilder, Topology, serdes

COLUMNS = (
    "id bigint, part int, amount decimal(12,2), exact decimal(20,4), paid timestamp_ntz, "
    "rough timestamp_ntz, at timestamp, day date, note string, data string, raw binary, "
    "tags array<string>, flag boolean"
)
"""Of the table, but for those that the test adds while all runs."""
KEY = serdes.debezium("id bigint, part int", form="row")
ROWS = serdes.json(COLUMNS)
CHANGES = serdes.debezium(COLUMNS, times="us", decimals="string")
SCHEMALESS: dict[str, Any] = {
    "times": {"paid": "us", "rough": "ms"},
    "decimals": {"exact": "variable"},
}


def topology(prefix: str, schemas: bool, copy: str) -> Topology:
    """``copy``: where the second database is, as libpq reads it."""
    words = {} if schemas else SCHEMALESS
    builder = StreamsBuilder()
    orders = builder.table(
        f"{prefix}.public.orders",
        key=KEY,
        value=serdes.debezium(COLUMNS, **words),
        store="orders",
    )
    orders.to(f"{prefix}-copy", value=ROWS)
    orders.to(f"{prefix}-changes", as_="changes", value=CHANGES)
    written = orders.to_stream()
    for name, mode, table in (("copy", "upsert", "orders"), ("history", "scd2", "orders_history")):
        written.write_stream(
            "postgresql", name=name, key=("id", "part"), mode=mode, dsn=copy, table=table
        )
    return builder.build()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    given = json.loads(sys.argv[1])
    program = topology(given["prefix"], given["schemas"], given["copy"])
    KafkaStreams(program, **given["settings"]).run()
