"""Rows of a store as a Spark DataFrame.

They are written as Parquet files, which Spark reads as it needs them, and which are removed when
the process ends.
"""

from __future__ import annotations

import atexit
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everflow.config import StreamsConfig
from everflow.snapshots.logged_stores import logged_stores
from everflow.snapshots.points import At
from everflow.snapshots.snapshot import Rows, scratch_folder, write_parquet
from everflow.snapshots.state_reader import StateReader, reading
from everflow.spark.session import require_local, session
from everflow.topology.program import Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("everflow")


def read_state(
    topology: Topology,
    store: str,
    at: At = None,
    *,
    spark: SparkSession | None = None,
    folder: str | Path | None = None,
    **settings: Any,
) -> DataFrame:
    """The content of a store at a point of its changelog (a time or offsets), as a DataFrame. It is
    read from the brokers: no instance needs to run.

        read_state(builder.build(), "counts", "2026-11-21T21:00:00Z", application_id="shop",
        bootstrap_servers="localhost:9092")

    Columns: ``key``, ``value``, ``timestamp`` and ``partition``, with the types of the table's
    serdes; for windows and sessions also ``window_start`` and ``window_end``; for versioned stores
    ``valid_from`` and ``valid_to`` (null: the latest) instead of ``timestamp``, a row per version.

    Args:
        topology: the program as it is run; its serdes decode the store.
        store: the store's name in the topology.
        at: None: the end; a time (ms, ISO 8601 or a datetime, UTC without a zone): the log before
        its first record of that time or later; offsets by partition (partitions without an offset
        are left out).
        spark: by default everflow's session.
        folder: for temporary files, by default TMPDIR. It contains the largest partition while that
        is read, and the rows as Parquet until this process ends.
        settings: of `KafkaStreams`, at least ``application_id`` and ``bootstrap_servers``.

    Values that compaction has removed are missing; a warning is logged if that may be so. Reads
    committed records only. Blocks until all is read. Raises StoreNotFoundError; NoChangelogError;
    StatePointError for a point that the log does not have; SerdeError, with topic, partition and
    offset, for bytes that the serdes cannot decode; StateDiskError; TaskTimeoutError if no broker
    answers within 20 seconds, RetriableError if the brokers stop answering.
    """
    return _frame(lambda reader: reader.rows(at), topology, store, spark, folder, settings)


def diff_state(
    topology: Topology,
    store: str,
    first: At,
    second: At = None,
    *,
    spark: SparkSession | None = None,
    folder: str | Path | None = None,
    **settings: Any,
) -> DataFrame:
    """The keys of a store whose values differ between two points of its changelog, as a DataFrame.

    Columns: the key's columns as in `read_state`, ``change`` ("added", "changed", "removed", or
    "expired" for windows whose retention is over), ``old_value``, ``new_value``,
    ``old_timestamp``, ``new_timestamp``, ``partition``. Versioned stores: the latest versions are
    compared. Points, other arguments and errors as in `read_state`.
    """
    return _frame(
        lambda reader: reader.difference(first, second), topology, store, spark, folder, settings
    )


@contextmanager
def changelog_of(
    topology: Topology, store: str, config: StreamsConfig, folder: Path | None
) -> Iterator[StateReader]:
    """A reader of the store's changelog, with its own connections. StoreNotFoundError,
    NoChangelogError."""
    stores = logged_stores(topology, config.application_id, config.optimization)
    with reading(stores.named(store), config, folder) as reader:
        yield reader


def to_dataframe(rows: Rows, spark: SparkSession | None, folder: Path | None) -> DataFrame:
    """All rows, written below ``folder`` (None: TMPDIR) and kept there until this process ends."""
    active = spark or session()
    require_local(str(active.sparkContext.master))  # whose tasks see this disk
    with scratch_folder(folder, kept=True) as home:
        write_parquet(rows, home / "rows")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return active.read.parquet(str(home / "rows"))


def _frame(
    ask: Callable[[StateReader], Rows],
    topology: Topology,
    store: str,
    spark: SparkSession | None,
    folder: str | Path | None,
    settings: dict[str, Any],
) -> DataFrame:
    config = StreamsConfig(**settings)
    home = None if folder is None else Path(folder)
    with changelog_of(topology, store, config, home) as reader:
        rows = ask(reader)
        frame = to_dataframe(rows, spark, home)
    for note in rows.notes:
        log.warning("%s", note)
    return frame
