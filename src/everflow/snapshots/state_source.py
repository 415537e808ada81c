"""``spark.read.format("everflow-state")``: a store as its changelog says that it is, or was.

PySpark's Python data source. Spark asks for the schema and the partitions in a process beside the
driver, which has no Spark of its own, and reads each partition in a worker.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from everflow.config import StreamsConfig
from everflow.errors import ConfigError, TopologyError
from everflow.snapshots.connected import reading, reading_parts
from everflow.snapshots.logged_stores import LoggedStore, LoggedStores, logged_stores
from everflow.snapshots.source_options import SourceOptions
from everflow.snapshots.state_parts import LogPart, LogParts, compacted
from everflow.topology.program import Topology
from everflow.travel.parcel import Parcel

log = logging.getLogger("everflow")

LOADER = "everflow.cli.packed_stores"
"""Loads a program in a process of its own, for its Columns need a Spark; run by its name."""
LOAD_TIMEOUT_S = 300.0


class EverflowStateSource(DataSource):
    """The Spark data source ``everflow-state``: a store of an application as a DataFrame.

        spark.dataSource.register(EverflowStateSource)
        spark.read.format("everflow-state").option("topology", "shop:builder") \\
            .option("application.id", "shop").option("bootstrap.servers", "localhost:9092") \\
            .option("store", "counts").option("at", "2026-11-21T21:00:00Z").load()

    Columns, points and what compaction forgets are those of `read_state`, and with ``diff.from``
    and ``diff.to`` of `diff_state`. ``load()`` decides what is read of each partition of the
    changelog; every action on the DataFrame then reads that, a Spark task for each partition, on
    any master. Spark makes one for each ``load()``, of one thread. docs/QUERIES.md has the options;
    each of them that is wrong is named by the error.
    """

    _stores: ClassVar[Parcel | None] = None
    _settings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes: ``everflow-state``."""
        return "everflow-state"

    @classmethod
    def of(cls, topology: Topology, **settings: Any) -> type[EverflowStateSource]:
        """The source with the stores of one program, which then needs no option ``topology``.

            spark.dataSource.register(EverflowStateSource.of(builder.build(),
            application_id="shop", bootstrap_servers="localhost:9092"))

        For a program that is in no module, such as a notebook's. ``settings``: those of
        `KafkaStreams`, ``application_id`` and ``bootstrap_servers`` at least; options may add to
        them. Raises ConfigError.
        """
        config = StreamsConfig(settings)
        stores = logged_stores(topology, config.application_id, config.optimization)
        packed = Parcel.of(stores)

        class OfProgram(EverflowStateSource):
            _stores = packed
            _settings = dict(settings)

        return OfProgram

    def schema(self) -> StructType:
        """The columns, by the store's serdes and kind. Asks the brokers what there is to read."""
        return self._plan.spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what `schema` has found. ConfigError for another schema than the store's."""
        plan = self._plan
        if schema != plan.spark_schema:
            raise ConfigError(
                "The columns are the store's: leave .schema(...) out, and select behind load()."
            )
        return _StateSourceReader(plan)

    @cached_property
    def _plan(self) -> _Plan:
        """Made once for a ``load()``: the source travels with it, so that all that is done with the
        DataFrame sees one state."""
        packed = self._stores
        options = SourceOptions.of(self.options, self._settings, registered=packed is not None)
        config = StreamsConfig(options.settings)
        if options.known is not None:
            store = options.known
        else:
            packed = packed or _loaded(str(options.topology), config)
            stores: LoggedStores = packed.copy()
            store = stores.named(options.store)
        with reading(store, config, options.folder) as reader:
            if options.diff is None:
                look = reader.look(options.at)
            else:
                look = reader.look_at_two(*options.diff)
        for note in look.notes:
            log.warning("%s", note)
        difference = options.diff is not None
        columns = store.columns.difference_schema if difference else store.columns.schema
        return _Plan(
            Parcel.of(store),
            dict(options.settings),
            options.folder,
            look,
            from_arrow_schema(columns),
        )


@dataclass(frozen=True)
class _Plan:
    """What a worker needs. Picklable."""

    store: Parcel
    settings: dict[str, Any]
    folder: Path | None
    look: LogParts
    spark_schema: StructType


class _PartOfChangelog(InputPartition):
    """A partition of the changelog is one of the DataFrame."""

    def __init__(self, part: LogPart) -> None:
        super().__init__(part)


class _StateSourceReader(DataSourceReader):
    """``partitions`` runs beside the driver, ``read`` in the workers."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        """In the changelog's order."""
        return [_PartOfChangelog(part) for part in self._plan.look.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one. What compaction may have removed is said in the worker's log."""
        plan, part = self._plan, partition.value
        store: LoggedStore = plan.store.copy()
        wanted = to_arrow_schema(plan.spark_schema, timezone="UTC")
        config = StreamsConfig(plan.settings)
        with (
            reading_parts(store, config, plan.folder) as reader,
            reader.opened(part) as (found, records),
        ):
            for note in compacted(store.topic, records, part.offsets) if part.incomplete else ():
                log.warning("partition %d: %s", part.partition, note)
            for batch in found:
                yield batch.cast(wanted)


def _loaded(target: str, config: StreamsConfig) -> Parcel:
    """The stores of ``MODULE:NAME``. What is wrong with the program is raised as what it was."""
    with tempfile.TemporaryDirectory(prefix="everflow-stores-") as folder:
        packed = Path(folder) / "stores"
        said = _run([target, config.application_id, config.optimization, str(packed)])
        if said is not None or not packed.is_file():
            why = said or "exit code 0, without a word"
            raise TopologyError(
                f"The option topology: {target} was not loaded in {Path.cwd()}: {why}",
                code="EF-PROGRAM",
            )
        return Parcel(packed.read_bytes(), name="")


def _run(arguments: list[str]) -> str | None:
    """Run the loader; why it failed, None: it did not."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", LOADER, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=LOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = _text(error.stderr)
        return (
            f"after {LOAD_TIMEOUT_S:g} s its process was still busy, and was ended. A module that "
            "is loaded builds the topology and does nothing else: what runs, waits or reads "
            f"belongs behind `if __name__ == '__main__':`.{said and f' It said: {said}'}"
        )
    return (_text(done.stderr) or f"exit code {done.returncode}") if done.returncode else None


def _text(said: bytes | None) -> str:
    """What a process has written."""
    return (said or b"").decode(errors="replace").strip()
