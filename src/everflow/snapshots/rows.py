"""Rows of a store on their way: batches by partition, for whoever writes, prints or counts them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from everflow.errors import ConfigError


@dataclass(frozen=True)
class Rows:
    """``parts``: each partition with its batches, read as they are consumed: the batches of one
    before the next one is asked for. ``notes``: what has to be known of them, for people, complete
    when all was read."""

    schema: pa.Schema
    parts: Iterator[tuple[int, Iterator[pa.RecordBatch]]]
    notes: list[str] = field(default_factory=list)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Of all partitions, one after the other."""
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
