"""A store of its own in a temporary folder, for long reads.

A read of LMDB pins pages, and a store that has to grow waits for its process's readers. So a live
store is copied, and the copy is read. A past state is folded into such a store, too: memory is
bounded, retention the store's own.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from everflow.errors import ConfigError, StateDiskError
from everflow.snapshots.entry_columns import Blame, EntryColumns, pages
from everflow.state.lmdb_store import LmdbStore
from everflow.state.versioned_snapshot import VersionedSnapshot

PREFIX = "everflow-state-"


@contextmanager
def scratch_folder(parent: Path | None, *, kept: bool = False) -> Iterator[Path]:
    """An empty folder below ``parent`` (None: below TMPDIR), removed behind the block; with
    ``kept`` only where that fails. StateDiskError, with a word of where, for a disk that
    refuses."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise _refused(parent or Path(tempfile.gettempdir()), error) from error
    done = False
    try:
        yield folder
        done = True
    except (StateDiskError, OSError) as error:
        raise _refused(folder, error) from error
    finally:
        if not (kept and done):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def opened(store: LmdbStore) -> Iterator[LmdbStore]:
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(store.path, ignore_errors=True)


def batches(
    store: LmdbStore, columns: EntryColumns, partition: int, blame: Blame, lag: int | None = None
) -> Iterator[pa.RecordBatch]:
    """All that the store shows, in batches of a bounded size; every version of a versioned store.
    One read for all of them: of a `scratch_folder`'s store. EntryError."""
    with store.snapshot() as view:
        if columns.spec.versioned:
            versions = cast(VersionedSnapshot, view).every_version()
            for found in pages(versions, lambda one: len(one[0]) + len(one[1].value or b"")):
                yield columns.versions(found, partition, blame, lag)
            return
        for page in pages(view.range(None, None), lambda one: len(one[0]) + len(one[1])):
            yield columns.entries(page, partition, blame, lag)


def _refused(folder: Path, error: Exception) -> StateDiskError:
    return StateDiskError(
        f"A store is copied into a temporary folder before it is read, and the disk refuses that "
        f"in {folder}: {error}. Nothing of the application was touched. Free space there, or name "
        f"another folder: folder=, --folder, or TMPDIR."
    )


@dataclass(frozen=True)
class Rows:
    """``parts``: partitions with batches, read in turn; ``notes``: complete when all was read."""

    schema: pa.Schema
    parts: Iterator[tuple[int, Iterator[pa.RecordBatch]]]
    notes: list[str] = field(default_factory=list)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for _, found in self.parts:
            yield from found


def write_parquet(rows: Rows, folder: Path) -> int:
    """Write a file for each partition into ``folder``, which is there when all of it is; the number
    of rows. ConfigError where there is something already."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already: nothing was written. Name another folder.")
    making = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    written = 0
    try:
        for partition, found in rows.parts:
            with _writer(making, partition, rows.schema) as writer:
                for batch in found:
                    writer.write_batch(batch)
                    written += batch.num_rows
        if not any(making.iterdir()):
            _writer(making, 0, rows.schema).close()
        making.rename(folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return written


def _writer(folder: Path, partition: int, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(folder / f"partition-{partition:05d}.parquet", schema)
