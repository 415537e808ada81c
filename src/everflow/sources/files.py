"""Files of a folder, each a split: Parquet, CSV, JSON lines.

A file is read once. Its size and time of change stand in its split: one that was changed since is
refused.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, fs
from pyarrow import json as json_lines

from everflow.sources.splits import MOST_PLANNED, Kept, Split, SplitError, fitted

ROWS = 16_384
"""Of a Parquet file that are decoded at once."""
BLOCK = 1 << 20
"""Bytes of a text file that are parsed at once."""
_PLANNED = "planned"


class Stamp(NamedTuple):
    """A file as it was planned: bytes, and when it was changed, in ns since 1970 (0: not known)."""

    size: int
    changed_ns: int

    @staticmethod
    def of(info: fs.FileInfo) -> Stamp:
        return Stamp(info.size, info.mtime_ns or 0)


@dataclass(eq=False, kw_only=True)
class FileSource:
    """A `Source`. ``path``: a folder, with those in it, or one file; of this machine, or the URI of
    a file system that Arrow knows (``s3://``, ``gs://``, ``hdfs://``). ``once``: the files that are
    there at the start; else those that come, too."""

    OWN: ClassVar[tuple[str, ...]] = ("columns", "once")

    path: str | os.PathLike[str]
    columns: pa.Schema
    once: bool

    def plan(self, kept: Kept) -> Iterable[Split]:
        """See `Source`. Names that begin with ``_`` or ``.`` are left out, as in Spark."""
        if self.once and kept.get(_PLANNED) is not None:
            return
        planned = 0
        for path, stamp in self._listed():
            text = " ".join(map(str, stamp))
            before = kept.get(path)
            if before == text:
                continue
            if planned == MOST_PLANNED:
                return
            yield _split(path, stamp, before)
            kept.put(path, text)
            planned += 1
        if self.once:
            kept.put(_PLANNED, "yes")

    def read(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """See `Source`. SplitError for a file that is not as it was planned, or of another
        format."""
        path, size, changed_ns, before = json.loads(data)
        stamp = Stamp(size, changed_ns)
        if before is not None:
            was = Stamp(*map(int, before.split()))
            raise SplitError(f"the file was read before and {_changed(was, stamp)}; {_IMMUTABLE}")
        files, _ = self._opened()
        self._require_same(files, path, stamp)
        if size:
            try:
                for batch in self._batches(files, path):
                    yield fitted(batch, self.columns)
            except FileNotFoundError:
                raise SplitError(_VANISHED) from None
            except pa.ArrowInvalid as error:
                self._require_same(files, path, stamp)  # the cause, if it is not
                raise SplitError(f"the file is no {self.FORM}: {error}") from error
            self._require_same(files, path, stamp)

    FORM: ClassVar[str] = ""

    def _batches(self, files: fs.FileSystem, path: str) -> Iterable[pa.RecordBatch]:
        raise NotImplementedError

    def _opened(self) -> tuple[fs.FileSystem, str]:
        text = os.fspath(self.path)
        if "://" in text:
            found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(text)
            return found
        return fs.LocalFileSystem(), str(Path(text).absolute())

    def _listed(self) -> list[tuple[str, Stamp]]:
        """The oldest first. SplitError if there is no such folder."""
        files, root = self._opened()
        info = files.get_file_info(root)
        if info.type == fs.FileType.NotFound:
            raise SplitError(f"there is no folder {self.path}")
        found = [info]
        if info.type == fs.FileType.Directory:
            found = files.get_file_info(fs.FileSelector(root, recursive=True))
        listed = [
            (one.path, Stamp.of(one))
            for one in found
            if one.is_file and not _hidden(posixpath.relpath(one.path, root))
        ]
        return sorted(listed, key=lambda one: (one[1].changed_ns, one[0]))

    def _require_same(self, files: fs.FileSystem, path: str, stamp: Stamp) -> None:
        info = files.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise SplitError(_VANISHED)
        if (now := Stamp.of(info)) != stamp:
            raise SplitError(
                f"the file was planned with {stamp.size} bytes and {_changed(stamp, now)}; "
                f"{_IMMUTABLE}"
            )


_VANISHED = "the file was there when it was planned, and is gone"
_IMMUTABLE = (
    "a file is read once and must not change: write under a name that begins with '_' or '.', then "
    "rename it; write more rows into a new file"
)


def _changed(was: Stamp, now: Stamp) -> str:
    if now.size != was.size:
        how = "has grown" if now.size > was.size else "was cut"
        return f"{how}: it had {was.size} bytes, and has {now.size}"
    return f"was changed since, its {now.size} bytes are not the same"


def _split(path: str, stamp: Stamp, before: str | None) -> Split:
    return Split(path, json.dumps([path, *stamp, before]).encode())


def _hidden(path: str) -> bool:
    return any(one.startswith(("_", ".")) for one in path.split("/") if one != ".")


@dataclass(eq=False, kw_only=True)
class ParquetFiles(FileSource):
    """Columns that a file does not have are null."""

    FORM: ClassVar[str] = "Parquet"

    def _batches(self, files: fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
        with files.open_input_file(path) as opened:
            parquet = pq.ParquetFile(opened)
            known = [name for name in self.columns.names if name in parquet.schema_arrow.names]
            yield from parquet.iter_batches(ROWS, columns=known, use_threads=False)


@dataclass(eq=False, kw_only=True)
class CsvFiles(FileSource):
    """``header``: the first line has the names; else the columns are those of the schema, in its
    order. ``.gz``, ``.bz2``, ``.zst`` and ``.lz4`` are unpacked."""

    FORM: ClassVar[str] = "CSV of these columns"

    header: bool = True
    delimiter: str = ","

    def _batches(self, files: fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
        names = None if self.header else self.columns.names
        types: dict[str, Any] = {one.name: one.type for one in self.columns}
        with files.open_input_stream(path) as opened:
            yield from csv.open_csv(
                opened,
                csv.ReadOptions(use_threads=False, block_size=BLOCK, column_names=names),
                csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                csv.ConvertOptions(
                    column_types=types,
                    include_columns=self.columns.names,
                    include_missing_columns=True,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )


@dataclass(eq=False, kw_only=True)
class JsonFiles(FileSource):
    """A JSON object in each line. Fields that the schema does not have are left out."""

    FORM: ClassVar[str] = "JSON lines of these columns"

    def _batches(self, files: fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
        with files.open_input_stream(path) as opened:
            yield from json_lines.open_json(
                opened,
                json_lines.ReadOptions(use_threads=False, block_size=BLOCK),
                json_lines.ParseOptions(
                    explicit_schema=self.columns, unexpected_field_behavior="ignore"
                ),
            )
