"""Rows to Parquet files of a folder, a file per task and batch, whole or not there.

A file is written under a hidden name and then linked to its own, which says where the batch
begins: the link fails if a batch that begins there has been written. The position is in the file's
metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from everflow.errors import RetriableError, SinkError
from everflow.handlers import is_outage
from everflow.records import TopicPartition
from everflow.serdes.arrow_types import type_text
from everflow.sinks.batch import SinkBatch, misfit

_KEY = b"everflow"
"""Of a file's metadata: its position in JSON."""
_TOPICS = b"everflow.topics"
"""And the ids of the topics."""


@dataclass(eq=False, kw_only=True)
class ParquetSink:
    """A `Sink`. See `KStream.write_stream`."""

    path: str
    """A folder of a local or shared file system."""
    compression: str = "zstd"
    _newest: dict[str, dict[TopicPartition, int]] = field(
        default_factory=dict, init=False, repr=False
    )
    """The positions of the inputs that this process has written for, by `_stem`."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_newest": {}}

    def write(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        with _failures(batch.sink, self.path):
            folder = Path(self.path)
            folder.mkdir(parents=True, exist_ok=True)
            if not batch.offsets:
                self._put(folder, f"{batch.sink}-clock-{os.urandom(8).hex()}", batch)
                return
            stem = _stem(batch)
            if stem not in self._newest:
                self._newest[stem] = _position(folder, stem, batch)
            if not batch.to_write(self._newest[stem]):
                return
            begin = sum(one.start for one in batch.offsets.values())
            if not self._put(folder, f"{stem}-{begin:020d}", batch):
                # Another process has been here since: its position is asked for anew.
                del self._newest[stem]
                raise RetriableError(f"{stem}-{begin:020d}.parquet has come to be in {self.path}")
            self._newest[stem] = batch.ends

    def _put(self, folder: Path, name: str, batch: SinkBatch) -> bool:
        """False if there is such a file."""
        hidden = folder / f".{name}.{os.getpid()}"
        position = json.dumps({str(tp): end for tp, end in batch.ends.items()}).encode()
        topics = json.dumps(dict(batch.topic_ids)).encode()
        metadata = {**(batch.rows.schema.metadata or {}), _KEY: position, _TOPICS: topics}
        try:
            with open(hidden, "wb") as out:
                pq.write_table(
                    batch.rows.replace_schema_metadata(metadata), out, compression=self.compression
                )
                out.flush()
                os.fsync(out.fileno())
            os.link(hidden, folder / f"{name}.parquet")
        except FileExistsError:
            return False
        finally:
            hidden.unlink(missing_ok=True)
        at = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(at)  # the name, too, outlives a crash of the machine
        finally:
            os.close(at)
        return True


def _stem(batch: SinkBatch) -> str:
    """The beginning of the names of all files of a sink and these inputs."""
    logs = "\0".join(map(str, sorted(batch.offsets)))
    digest = sha256(f"{batch.application_id}\0{batch.sink}\0{logs}".encode()).hexdigest()[:12]
    return f"{batch.sink[:100]}-{batch.task.partition}-{digest}"


def _position(folder: Path, stem: str, batch: SinkBatch) -> dict[TopicPartition, int]:
    """Of the newest file: later batches begin later. SinkError if it is of another topic, or has
    a column in another type."""
    digest = stem.rpartition("-")[2]
    names = [name for name in os.listdir(folder) if f"-{digest}-" in name and name[0] != "."]
    if not names:
        return {}
    newest = max(names, key=lambda name: name.rpartition("-")[2])
    schema = pq.read_schema(folder / newest)
    for column in batch.rows.schema:
        at = schema.get_field_index(column.name)
        if at >= 0 and schema.field(at).type != column.type:
            # A reader of the folder would refuse all of it.
            before = type_text(schema.field(at).type)
            raise misfit(batch.sink, str(folder / newest), column, before)
    stored: Mapping[bytes, bytes] = schema.metadata or {}
    found: dict[str, int] = json.loads(stored[_KEY])
    position = {TopicPartition.parse(log): end for log, end in found.items()}
    topics: dict[str, str] = json.loads(stored.get(_TOPICS, b"{}"))
    kept = {tp: topics.get(tp.topic, "") for tp in position}
    batch.require_same_topics(kept, f"move the files {stem}-*.parquet away")
    return position


@contextmanager
def _failures(sink: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_outage(error):
            raise RetriableError(f"No file can be written to {path}: {error}") from error
        raise SinkError(f"Sink {sink}: no file can be written to {path}: {error}") from error
