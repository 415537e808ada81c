"""The stores of an instance as a DataFrame: copied, then read (note 055)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from everflow.snapshots.entry_columns import EntryColumns
from everflow.snapshots.rows import Rows
from everflow.snapshots.snapshot import batches, opened, room
from everflow.state.lmdb_store import LmdbStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_Found = TypeVar("_Found")


class CopyReader(Protocol):
    """The part of `StoreReader` that is needed here."""

    def of_copy(self, partition: int, body: Callable[[LmdbStore], _Found]) -> _Found: ...
    def lag(self, partition: int) -> int | None: ...


def dataframe_of(
    columns: EntryColumns,
    reader: CopyReader,
    partitions: Sequence[int],
    spark: SparkSession | None,
    folder: Path | None,
) -> DataFrame:
    """See `ReadOnlyStore.to_dataframe`."""
    from everflow.snapshots.frames import to_dataframe

    return to_dataframe(rows_of(columns, reader, partitions, folder), spark, folder)


def rows_of(
    columns: EntryColumns, reader: CopyReader, partitions: Sequence[int], folder: Path | None
) -> Rows:
    """The rows of these partitions, each of the moment in which it is begun."""

    def parts() -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        with room(folder) as home:
            for partition in partitions:
                lag = reader.lag(partition) if columns.lag else None
                with opened(_copied(reader, partition, home)) as copy:
                    blame = partial(_place_of, columns=columns, partition=partition)
                    yield partition, batches(copy, columns, partition, blame, lag)

    return Rows(columns.schema, parts())


def _copied(reader: CopyReader, partition: int, home: Path) -> LmdbStore:
    def copied(store: LmdbStore) -> LmdbStore:
        place = home / f"{partition}-{sum(1 for _ in home.iterdir())}"
        place.mkdir()
        return store.copy_to(place)

    return reader.of_copy(partition, copied)


def _place_of(key: bytes, *, columns: EntryColumns, partition: int) -> str:
    return f"the key {key!r:.200} in partition {partition} of store {columns.spec.name!r}"
