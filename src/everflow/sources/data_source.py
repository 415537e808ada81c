"""Readers of PySpark's Python Data Source API: what Spark does with them, in splits
(`pyspark.sql.worker.plan_data_source_read` and ``python_streaming_source_runner``)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, InputPartition
from pyspark.sql.datasource_internal import _streamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from everflow.sources.splits import Kept, Split, SplitError, fitted

BATCH_ROWS = 10_000
"""Rows of a reader that become one Arrow batch: Spark's own default."""
_WORDS = 200
_PLANNED, _OFFSET = "planned", "offset"


@dataclass(eq=False, kw_only=True)
class PythonDataSource:
    """A `Source`. ``options``: texts, as Spark gives them. ``streams``: read for ever, by the
    stream reader; else once."""

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    columns: pa.Schema
    streams: bool
    _reader: Any = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reader": None}

    def plan(self, kept: Kept) -> Iterable[Split]:
        """See `Source`."""
        return self._planned_stream(kept) if self.streams else self._planned_once(kept)

    def read(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """See `Source`."""
        rows = self._made().read(cloudpickle.loads(data))
        if not isinstance(rows, Iterator):
            raise SplitError(
                f"{self.source.__name__}: read gives an iterator, found {type(rows).__name__}"
            )
        types: Any = from_arrow_schema(self.columns)
        batches = records_to_arrow_batches(rows, BATCH_ROWS, types, self._data_source())
        return (fitted(one, self.columns) for one in batches)

    def _planned_once(self, kept: Kept) -> Iterator[Split]:
        if kept.get(_PLANNED) is not None:
            return
        try:
            partitions = list(self._made().partitions())
        except NotImplementedError:  # as Spark reads such a reader
            partitions = []
        yield from map(_split, partitions or [InputPartition(None)])
        kept.put(_PLANNED, "yes")

    def _planned_stream(self, kept: Kept) -> Iterator[Split]:
        reader, stored = self._made(), kept.get(_OFFSET)
        start = reader.initialOffset() if stored is None else json.loads(stored)
        end = self._latest(reader, start)
        if json.dumps(end) != json.dumps(start):
            yield from map(_split, reader.partitions(start, end))
        elif stored is not None:
            return
        kept.put(_OFFSET, json.dumps(end))

    def _latest(self, reader: Any, start: dict[str, Any]) -> dict[str, Any]:
        end: dict[str, Any]
        if inspect.signature(reader.latestOffset).parameters:  # of Spark 4.3
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
        else:
            end = reader.latestOffset()
        return end

    def _data_source(self) -> DataSource:
        return made(self.source, self.options)

    def _made(self) -> Any:
        """One for each process, as Spark has one for each query."""
        if self._reader is None:
            types: Any = from_arrow_schema(self.columns)
            found = self._data_source()
            self._reader = _streamReader(found, types) if self.streams else found.reader(types)
        return self._reader


def made(source: type[DataSource], options: Mapping[str, str]) -> DataSource:
    """As Spark makes it. Raises what its constructor raises."""
    found: Any = CaseInsensitiveDict(options)
    return source(found)


def _split(partition: InputPartition) -> Split:
    if not isinstance(partition, InputPartition):
        raise SplitError(f"partitions gives InputPartitions, found {partition!r:.{_WORDS}}")
    words = repr(partition)
    if type(partition).__repr__ is InputPartition.__repr__:
        words = f"{type(partition).__name__}({_fields(partition)})"
    dumps: Any = cloudpickle.dumps
    return Split(words[:_WORDS], dumps(partition))


def _fields(partition: InputPartition) -> str:
    return ", ".join(f"{name}={value!r:.60}" for name, value in vars(partition).items())
