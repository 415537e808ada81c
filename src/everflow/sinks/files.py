"""Rows to Parquet files of a folder, a file per task and batch, whole or not there.

A file is written under a hidden name and then linked to its own, which says where the batch
begins. The position is in the file's metadata. Both happen under a lock of the sink's inputs: a
process that was taken for dead, and the new owner, see each other's files.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

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
    _me: bytes = field(default=b"", init=False, repr=False)
    """This process, in the files of the locks."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_newest": {}, "_me": b""}

    def write(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        with _failures(batch.sink, self.path):
            folder = Path(self.path)
            folder.mkdir(parents=True, exist_ok=True)
            if not batch.offsets:
                self._put(folder, f"{batch.sink}-clock-{os.urandom(8).hex()}", batch)
                return
            stem = _stem(batch)
            with _alone(folder, stem) as lock:
                self._write(folder, stem, batch, lock)

    def _write(self, folder: Path, stem: str, batch: SinkBatch, lock: int) -> None:
        self._me = self._me or uuid4().hex.encode()
        if stem not in self._newest or os.pread(lock, len(self._me), 0) != self._me:
            # Another process has been here since, or may have. To list a large folder takes long.
            self._newest[stem] = _position(folder, stem, batch)
        if batch.to_write(self._newest[stem]):
            os.pwrite(lock, self._me, 0)
            begin = sum(one.start for one in batch.offsets.values())
            self._put(folder, f"{stem}-{begin:020d}", batch)
            self._newest[stem] = batch.ends

    def _put(self, folder: Path, name: str, batch: SinkBatch) -> None:
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
        finally:
            hidden.unlink(missing_ok=True)
        at = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(at)  # the name, too, outlives a crash of the machine
        finally:
            os.close(at)


@contextmanager
def _alone(folder: Path, stem: str) -> Iterator[int]:
    """The open file of the lock, which says who wrote last. RetriableError while another process
    has it, which was taken for dead."""
    lock = os.open(folder / f".{stem}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)


def _stem(batch: SinkBatch) -> str:
    """The beginning of the names of all files of a sink and these inputs."""
    logs = "\0".join(map(str, sorted(batch.offsets)))
    digest = sha256(f"{batch.application_id}\0{batch.sink}\0{logs}".encode()).hexdigest()[:12]
    return f"{batch.sink[:100]}-{batch.task.partition}-{digest}"


def _position(folder: Path, stem: str, batch: SinkBatch) -> dict[TopicPartition, int]:
    """Of the newest file: later batches begin later. SinkError if it is of another topic, or has
    a column in another type."""
    digest = stem.rpartition("-")[2]
    names = [name for name in os.listdir(folder) if f"-{digest}-" in name]
    for name in [name for name in names if name.startswith(".")]:
        names.remove(name)
        (folder / name).unlink(missing_ok=True)  # of a process that died
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
