"""The programs that the crash tests kill, and the process that runs one of them: ``python -m
crash_topologies NAME SETTINGS``.

Topics are named after the application, so that every test has its own.
"""

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from everflow import KafkaStreams, ProcessorContext, Record, Stores, StreamsBuilder, serdes
from everflow.spark.session import get_context

COUNTS = "counts"
"""The store of every program here."""


def input_topic(application: str) -> str:
    return f"{application}-in"


def copies_topic(application: str) -> str:
    return f"{application}-copies"


def counts_topic(application: str) -> str:
    return f"{application}-out"


def counts_and_copies(application: str) -> StreamsBuilder:
    """Each record goes out unchanged once, and is counted under its key."""
    builder = StreamsBuilder()
    records = builder.stream(input_topic(application), key=serdes.string(), value=serdes.string())
    records.to(copies_topic(application))
    records.group_by_key().count(store=COUNTS).to_stream().to(counts_topic(application))
    return builder


def shared_store(application: str) -> StreamsBuilder:
    """The same by two processors that share the store (note 040): one counts, the other tells what
    the first has made of the very record."""
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value(COUNTS, key=serdes.string(), value=serdes.long()))
    records = builder.stream(input_topic(application), key=serdes.string(), value=serdes.string())
    records.to(copies_topic(application))
    records.process(count_record, stores=[COUNTS])
    told = records.process(tell_count, stores=[COUNTS], returns=("string", "bigint"))
    told.to(counts_topic(application))
    return builder


def count_record(record: Record, context: ProcessorContext) -> None:
    counts = context.store(COUNTS)
    counts.put(record.key, counts.get(record.key, 0) + 1)


def tell_count(record: Record, context: ProcessorContext) -> None:
    context.forward(record.with_value(context.store(COUNTS).get(record.key)))


def _cancel_jobs() -> None:
    """On SIGUSR2: fail the running Spark jobs without touching their Python workers (scenario
    34). A session would first start Spark SQL."""
    get_context().cancelAllJobs()


ROWS = "EVERFLOW_TEST_ROWS"
"""The folder in which `rows_outside` writes."""


def rows_outside(application: str) -> StreamsBuilder:
    """`counts_and_copies` whose copies and counts are rows of files, too (note 072)."""
    builder = StreamsBuilder()
    records = builder.stream(input_topic(application), key=serdes.string(), value=serdes.string())
    records.to(copies_topic(application))
    counts = records.group_by_key().count(store=COUNTS).to_stream()
    counts.to(counts_topic(application))
    for name, rows in (("copies", records), ("counts", counts)):
        path = os.path.join(os.environ[ROWS], name)
        rows.write_stream("parquet", name=name, key="key", path=path)
    return builder


EVERY_S = 2


def rows_at_intervals(application: str) -> StreamsBuilder:
    """The records, as rows of a lake, each `EVERY_S`."""
    builder = StreamsBuilder()
    records = builder.stream(input_topic(application), key=serdes.string(), value=serdes.string())
    path = os.path.join(os.environ[ROWS], "lake")
    records.write_stream("delta", name="lake", key="key", every=f"{EVERY_S} seconds", path=path)
    return builder


SPLIT_BATCHES, BATCH_ROWS = 12, 5
"""What a split of `SlowSplits` has: about three pieces (note 073)."""


class SlowSplits(DataSource):
    """As many splits as the file of `ROWS` says."""

    def schema(self) -> str:
        return "split string, n string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return SlowReader(self.options["path"])


class SlowReader(DataSourceStreamReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": int(Path(self.path).read_text())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(at) for at in range(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in range(SPLIT_BATCHES):
            threading.Event().wait(0.25)  # a source that is slow
            first = batch * BATCH_ROWS
            ns = [str(n) for n in range(first, first + BATCH_ROWS)]
            columns = {"split": [str(partition.value)] * BATCH_ROWS, "n": ns}
            yield pa.RecordBatch.from_pydict(columns)


def slow_splits(application: str) -> StreamsBuilder:
    """Rows of splits go out as they are."""
    builder = StreamsBuilder()
    rows = builder.read_stream(SlowSplits, name="slow", key="split", tasks=2, path=os.environ[ROWS])
    rows.map_values(F.col("value.n")).to(copies_topic(application))
    return builder


DOWN = "down"
"""While a file of this name is in the folder, the sink ``moody`` is down."""


def sinks_apart(application: str) -> StreamsBuilder:
    """Two sinks of functions (note 074): ``steady`` in the tasks that read the input, and ``moody``
    in tasks of its own."""
    builder = StreamsBuilder()
    records = builder.stream(input_topic(application), key=serdes.string(), value=serdes.string())
    records.to(copies_topic(application))
    folder = os.environ[ROWS]

    def steady(rows: pa.Table) -> None:
        append(rows, os.path.join(folder, "steady"))

    def moody(rows: pa.Table) -> None:
        if os.path.exists(os.path.join(folder, DOWN)):
            raise ConnectionError("the moody one is down")
        append(rows, os.path.join(folder, "moody"))

    records.for_each_batch(steady, name="steady")
    records.repartition(name="apart").for_each_batch(moody, name="moody")
    return builder


def append(rows: pa.Table, path: str) -> None:
    """Lines of key, value, and the process that wrote them: one call of `write`."""
    pairs = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    with open(path, "a") as file:
        file.write("".join(f"{key} {value} {os.getpid()}\n" for key, value in pairs))


PROGRAMS = {
    "slow-splits": slow_splits,
    "sinks-apart": sinks_apart,
    "counts-and-copies": counts_and_copies,
    "shared-store": shared_store,
    "rows-outside": rows_outside,
    "rows-at-intervals": rows_at_intervals,
}


def main(name: str, settings: dict[str, Any]) -> None:
    """Run the program until SIGTERM; its states alone go to standard output."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger("kafka").setLevel(logging.WARNING)
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=_cancel_jobs).start())
    topology = PROGRAMS[name](settings["application.id"]).build()
    streams = KafkaStreams(topology, **settings)
    streams.set_state_listener(lambda new, old: print(new.name, flush=True))
    streams.run()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
