"""``spark.read.format("everflow-state")``: a store as its changelog says that it is, or was.

PySpark's Python data source. Spark asks for the schema and the partitions in a process beside the
driver, which has no Spark of its own, and reads each partition in a worker.
"""

from __future__ import annotations

import difflib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from everflow.config import StreamsConfig
from everflow.errors import ConfigError, StatePointError, TopologyError
from everflow.kafka.reading.log_reader import LogReader
from everflow.snapshots.logged_stores import LoggedStore, LoggedStores, logged_stores
from everflow.snapshots.points import Point
from everflow.snapshots.snapshot import scratch_folder
from everflow.snapshots.state_reader import LogPart, LogParts, PartReader, compacted, reading
from everflow.topology.program import Topology
from everflow.travel.pickled_objects import PickledObjects

OWN = ("store", "topology", "at", "diff.from", "diff.to", "folder")
_REMOVED = ("key.serde", "value.serde", "kind", "changelog.topic", "retention.ms", "window.size.ms")
_CURE = "Give `topology`, or register `EverflowStateSource.of(builder.build(), ...)`"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Parsed options. ``topology``: MODULE:NAME. Picklable."""

    store: str
    settings: Mapping[str, Any]
    topology: str | None = None
    at: str = "end"
    diff: tuple[str, str] | None = None
    folder: Path | None = None

    @staticmethod
    def of(
        options: Mapping[str, str], settings: Mapping[str, Any], *, registered: bool
    ) -> SourceOptions:
        """``settings``: of the registered source; ``registered``: with a program. ConfigError."""
        own = {name: options[name] for name in OWN if name in options}
        all_settings = {
            **settings,
            **{name: one for name, one in options.items() if name not in own},
        }
        _refuse_unknown(all_settings)
        store = _needed(own, "store", "as in the topology, e.g. .option('store', 'counts')")
        for name, what in (
            ("application.id", "it names the changelog"),
            ("bootstrap.servers", "host:port of a broker"),
        ):
            if name.replace(".", "_") not in all_settings:
                _needed(all_settings, name, what)
        _require_one_program(own, registered)
        diff = None
        if "diff.from" in own or "diff.to" in own:
            first = _needed(own, "diff.from", "the first of the two points of a difference")
            diff = first, own.get("diff.to", "end")
            if "at" in own:
                raise ConfigError(
                    "The options diff.from and diff.to have their two points: leave the option at "
                    "out."
                )
        for option in ("at", "diff.from", "diff.to"):
            try:
                Point.of(own.get(option))
            except StatePointError as error:
                raise StatePointError(f"The option {option}: {error}") from None
        return SourceOptions(
            store=store,
            settings=all_settings,
            topology=own.get("topology"),
            at=own.get("at", "end"),
            diff=diff,
            folder=Path(own["folder"]) if "folder" in own else None,
        )


def _require_one_program(own: Mapping[str, str], registered: bool) -> None:
    """Exactly one program says what the bytes are."""
    if registered and "topology" in own:
        raise ConfigError(
            "The source was registered with a program: leave the option topology out, or register "
            "EverflowStateSource itself."
        )
    if not registered and "topology" not in own:
        raise ConfigError(f"Nothing says what the store's bytes are. {_CURE}.")


def _needed(options: Mapping[str, Any], option: str, what: str) -> str:
    found = str(options.get(option) or "")
    if not found:
        raise ConfigError(f"The option {option} is missing: {what}.")
    return found


def _refuse_unknown(settings: Mapping[str, Any]) -> None:
    """ConfigError for an option that was removed, or is nearly one of the source's own."""
    for name in settings:
        if name in _REMOVED:
            raise ConfigError(f"The option {name} was removed. {_CURE}.")
        near = difflib.get_close_matches(name, OWN, n=1, cutoff=0.8)
        if near:
            raise ConfigError(f"There is no option {name}; did you mean {near[0]}?")
    if "path" in settings:
        raise ConfigError("load() takes no path: name the store, .option('store', 'counts').load()")


log = logging.getLogger("everflow")

LOADER = "everflow.cli.program"
"""Loads a program in a process of its own, for its Columns need a Spark; run by its name."""
LOAD_TIMEOUT_S = 300.0


class EverflowStateSource(DataSource):
    """The Spark data source ``everflow-state``: reads a store of an application as a DataFrame.

        spark.dataSource.register(EverflowStateSource)
        spark.read.format("everflow-state").option("topology", "shop:builder") \\
            .option("application.id", "shop").option("bootstrap.servers", "localhost:9092") \\
            .option("store", "counts").option("at", "2026-11-21T21:00:00Z").load()

    Columns, points and the limits of compaction are those of `read_state`; with ``diff.from`` and
    ``diff.to`` those of `diff_state`. ``load()`` fixes the offsets to read in each partition of the
    changelog; every action on the DataFrame reads these offsets, with a Spark task per partition,
    on any master. Spark makes one source per ``load()``, for one thread. docs/QUERIES.md has the
    options; an error names each wrong option.
    """

    _stores: ClassVar[PickledObjects | None] = None
    _settings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def name(cls) -> str:
        """The name to pass to ``format``: ``everflow-state``."""
        return "everflow-state"

    @classmethod
    def of(cls, topology: Topology, **settings: Any) -> type[EverflowStateSource]:
        """A source class for the stores of ``topology``; its reads need no option ``topology``.

            spark.dataSource.register(EverflowStateSource.of(builder.build(),
            application_id="shop", bootstrap_servers="localhost:9092"))

        For a program that is in no module, such as in a notebook. ``settings``: the settings of
        `KafkaStreams`, at least ``application_id`` and ``bootstrap_servers``; options may add more.
        Raises ConfigError.
        """
        config = StreamsConfig(settings)
        stores = logged_stores(topology, config.application_id, config.optimization)
        packed = PickledObjects.of(stores)

        class OfProgram(EverflowStateSource):
            _stores = packed
            _settings = dict(settings)

        return OfProgram

    def schema(self) -> StructType:
        """The DataFrame's columns, from the store's serdes and kind. The first call also asks the
        brokers which offsets to read."""
        return self._reader.spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of the offsets that the method `schema()` found. Raises ConfigError if
        the argument differs from what `schema()` returns."""
        if schema != self._reader.spark_schema:
            raise ConfigError(
                "The columns are the store's: leave .schema(...) out, and select behind load()."
            )
        return self._reader

    @cached_property
    def _reader(self) -> _StateSourceReader:
        """Made once for a ``load()``: the source travels with it, so that all that is done with the
        DataFrame sees one state."""
        packed = self._stores
        options = SourceOptions.of(self.options, self._settings, registered=packed is not None)
        config = StreamsConfig(options.settings)
        stores: LoggedStores = (packed or _loaded(str(options.topology), config)).copy()
        store = stores.named(options.store)
        with reading(store, config, options.folder) as reader:
            if options.diff is None:
                chosen = reader.parts(options.at)
            else:
                chosen = reader.parts_of_two(*options.diff)
        for note in chosen.notes:
            log.warning("%s", note)
        difference = options.diff is not None
        columns = store.columns.difference_schema if difference else store.columns.schema
        return _StateSourceReader(
            PickledObjects.of(store),
            dict(options.settings),
            options.folder,
            chosen,
            from_arrow_schema(columns),
        )


@dataclass(frozen=True)
class _StateSourceReader(DataSourceReader):
    """``partitions`` runs beside the driver, ``read`` in the workers. Picklable."""

    store: PickledObjects
    settings: dict[str, Any]
    folder: Path | None
    chosen: LogParts
    spark_schema: StructType

    def partitions(self) -> list[InputPartition]:
        """A partition of the changelog is one of the DataFrame, in the changelog's order."""
        return [InputPartition(part) for part in self.chosen.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one. What compaction may have removed is said in the worker's log."""
        part: LogPart = partition.value
        store: LoggedStore = self.store.copy()
        wanted = to_arrow_schema(self.spark_schema, timezone="UTC")
        consumer = StreamsConfig(self.settings).consumer()
        with (
            scratch_folder(self.folder) as home,
            LogReader(consumer, latest=True) as reader,
            PartReader(store, reader, home).opened(part) as (found, records),
        ):
            for note in compacted(store.topic, records, part.offsets) if part.incomplete else ():
                log.warning("partition %d: %s", part.partition, note)
            for batch in found:
                yield batch.cast(wanted)


def _loaded(target: str, config: StreamsConfig) -> PickledObjects:
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
        return PickledObjects(packed.read_bytes(), name="")


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
    return (said or b"").decode(errors="replace").strip()
