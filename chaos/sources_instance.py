"""One instance that reads a folder of files and a table of PostgreSQL into two topics.

``python -m chaos.sources_instance SETTINGS``. Its states go to standard output.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from everflow import KafkaStreams, StreamsBuilder  # noqa: E402

FILE_ROWS = 10
"""Of each file."""
RANGE_ROWS = 50_000
"""Of each range of the table: one piece."""
TASKS = 4
FILES_TOPIC, TABLE_TOPIC = "from-files", "from-table"
COLUMNS = "id bigint, words string"


def program(folder: str | None, dsn: str, rows: int) -> StreamsBuilder:
    """``folder``: None without files; ``rows``: of the table, 0 without one."""
    builder = StreamsBuilder()
    if folder is not None:
        files = builder.read(
            "parquet", name="files", schema=COLUMNS, key="id", tasks=TASKS, path=folder
        )
        files.to(FILES_TOPIC)
    if rows:
        table = builder.read(
            "postgresql",
            name="table",
            schema=COLUMNS,
            key="id",
            tasks=TASKS,
            dsn=dsn,
            table="items",
            partition_column="id",
            lower_bound=0,
            upper_bound=rows,
            num_partitions=max(1, rows // RANGE_ROWS),
        )
        table.to(TABLE_TOPIC)
    return builder


def main(given: dict[str, Any]) -> None:
    """Runs until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger("kafka").setLevel(logging.WARNING)
    topology = program(given["folder"], given["dsn"], given["rows"]).build()
    streams = KafkaStreams(topology, **given["settings"])
    streams.set_state_listener(lambda new, old: print(new.name, flush=True))
    streams.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
