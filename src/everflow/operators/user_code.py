"""What may come out of the user's own code, and the record that was being processed when it did."""

from __future__ import annotations

import pyarrow as pa

from everflow.errors import EverflowError
from everflow.records import EdgeBatch, Int64
from everflow.serdes import Serde, SerdeError

USERS_ERRORS: tuple[type[BaseException], ...] = (Exception, SystemExit, KeyboardInterrupt)
"""``sys.exit()`` in a function ends the worker's process otherwise, and nobody would be told of which record."""


class UserFunctionError(EverflowError):
    """A function of the user failed, or gave what its serde cannot write; the cause is chained.

    Attributes: ``source`` (index of the input topic in the plan), ``partition`` and ``offset`` of the record.
    """

    code = "EF-USER-FUNCTION"

    def __init__(self, message: str, *, source: int, partition: int, offset: int) -> None:
        super().__init__(message)
        self.source, self.partition, self.offset = source, partition, offset


def function_failure(store: str, batch: EdgeBatch, row: int, error: BaseException) -> UserFunctionError:
    """The error of a user's function at the record in ``row`` of the batch."""
    what = "gave a value that cannot be stored" if isinstance(error, SerdeError) else "failed"
    return UserFunctionError(
        f"the function of the aggregate in store {store!r} {what}: {type(error).__name__}: {error}",
        source=int(batch.source[row]),
        partition=int(batch.partition[row]),
        offset=int(batch.offset[row]),
    )


def refused(serde: Serde, column: pa.Array, error: BaseException) -> tuple[int, BaseException] | None:
    """The value that ``serde`` could not write, its index and its own error, after `encode_array` raised ``error``; None where each
    value by itself can be written."""
    if isinstance(error, SerdeError) and error.index is not None:
        return error.index, error
    for index, value in enumerate(column.to_pylist()):
        try:
            serde.encode(value)
        except USERS_ERRORS as found:
            return index, found
    return None


def written_bytes(serde: Serde, column: pa.Array, store: str, batch: EdgeBatch, rows: Int64 | None = None) -> pa.Array:
    """Bytes of ``column``, whose values come from ``rows`` of the batch (None: from all, in order). UserFunctionError naming the
    record of a value that cannot be written."""
    try:
        return serde.encode_array(column)
    except USERS_ERRORS as error:
        found = refused(serde, column, error)
        if found is None:
            raise
        index, cause = found
        raise function_failure(store, batch, index if rows is None else int(rows[index]), cause) from cause
