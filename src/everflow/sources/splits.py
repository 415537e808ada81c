"""What a source outside Kafka is: it plans splits, and reads one (note 073)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from everflow.errors import EverflowError, RetriableError
from everflow.handlers import is_outage
from everflow.user_program import error_text

MOST_PLANNED = 10_000
"""Splits of one call of `Source.plan`, where the source can go on later: they are one
transaction."""


class Split(NamedTuple):
    """A part of a source that one task reads. ``words``: as messages call it."""

    words: str
    data: bytes


class SplitError(EverflowError):
    """A split cannot be read, whoever tries, or a source cannot be planned."""

    code = "EF-SPLIT"


class Kept(Protocol):
    """What is kept between two plans, committed together with their splits."""

    def get(self, key: str) -> str | None:
        """None: nothing was put under ``key``."""

    def put(self, key: str, value: str) -> None:
        """Keep ``value`` in place of what was there."""


class Source(Protocol):
    """Picklable; used by one thread of a worker process. It raises anything; `outage` tells what
    may pass."""

    @property
    def columns(self) -> pa.Schema:
        """Of the rows."""

    def plan(self, kept: Kept) -> Iterable[Split]:
        """The splits that are new since the last call."""

    def read(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """The rows of a split, in an order that is the same each time. They have the names and
        types of `columns`."""


def outage(what: str, error: BaseException) -> RetriableError | None:
    """What is to be raised where ``error`` may pass; None: it will not."""
    if isinstance(error, RetriableError) or is_outage(error):
        return RetriableError(f"{what}: {error_text(error)}")
    return None


def failed(what: str, error: BaseException) -> SplitError:
    """The error that names the split, or the source, and the cause in one line."""
    text = str(error) if isinstance(error, SplitError) else error_text(error)
    return SplitError(f"{what}: {text}")


def fitted(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """``batch`` in these names, order and types. SplitError for a column that does not fit; one
    that is missing is null."""
    arrays = []
    for field in columns:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.nulls(len(batch), field.type))
            continue
        array = batch.column(at)
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except pa.ArrowException as error:
            raise SplitError(
                f"column {field.name!r} is {array.type}, and is declared {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
