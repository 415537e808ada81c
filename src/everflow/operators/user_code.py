"""Failures of the user's own code, and the record that was being processed."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import EverflowError, FatalError, RetriableError
from everflow.handlers import is_outage
from everflow.records import ClockCall, EdgeBatch, Int64
from everflow.serdes import Serde, SerdeError
from everflow.user_program import error_text

_RAISES = dis.opmap["RAISE_VARARGS"]


class UserFunctionError(EverflowError):
    """A function of the user failed, or gave what its serde cannot write; the cause is chained.

    Attributes: ``source`` (index of the input topic in the plan), ``partition`` and ``offset`` of
    the record; ``node``: which of several processors that run together, None for one alone.
    ``call``: of a clock, in which it failed, and ``function``, the method with its line: then no
    record is at fault. ``together``: the function got several records at once, of which the
    last is named. ``others``: those of further records that cannot be written, in order.
    """

    code = "EF-USER-FUNCTION"

    def __init__(
        self, message: str, *, source: int, partition: int, offset: int, node: str | None = None
    ) -> None:
        super().__init__(message)
        self.source, self.partition, self.offset = source, partition, offset
        self.node = node
        self.call: ClockCall | None = None
        self.function = ""
        self.together = False
        self.others: tuple[UserFunctionError, ...] = ()


def require_users(error: BaseException) -> None:
    """Whatever a function of the user raises is its failure at that record, ``sys.exit()``
    included. Raises ``error`` again if it is an interrupt that a signal made (Ctrl-C in a test
    driver): such a KeyboardInterrupt comes at a line that raises nothing."""
    if not isinstance(error, KeyboardInterrupt):
        return
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or at.tb_frame.f_code.co_code[at.tb_lasti] != _RAISES:
        raise error


def function_failure(
    store: str, batch: EdgeBatch, row: int, error: BaseException
) -> UserFunctionError:
    what = "gave a value that cannot be stored" if isinstance(error, SerdeError) else "failed"
    text = f"the function of the aggregate in store {store!r} {what}: {error_text(error)}"
    return failure_at(text, batch, row)


NO_ROW = -1
"""In place of a row of the batch: a method that a clock has called, without a record."""


def failure_at(
    text: str,
    batch: EdgeBatch,
    row: int,
    partition: int | None = None,
    node: str | None = None,
) -> UserFunctionError:
    """The failure at a row; ``partition``: of the task, None: the record's."""
    of_record = row != NO_ROW
    if partition is None:
        partition = int(batch.partition[row]) if of_record else 0
    return UserFunctionError(
        text,
        source=int(batch.source[row]) if of_record else NO_ROW,
        partition=partition,
        offset=int(batch.offset[row]) if of_record else -1,
        node=node,
    )


MOST_FOUND = 64
"""Rows that are searched for at once: of a batch that fails as a whole each is a search."""


def failing_rows(
    count: int, failure: Callable[[int, int], BaseException | None], most: int = MOST_FOUND
) -> dict[int, BaseException]:
    """The first ``most`` of ``count`` rows that fail alone, and how; empty where none does. Found
    by halves: k of them in at most 2 k log2 n calls of ``failure(start, end)``, which says how
    those rows fail."""
    found: dict[int, BaseException] = {}
    todo = [(0, count)]
    while todo and len(found) < most:
        start, end = todo.pop()
        whole = (start, end) == (0, count) and count > 1  # it fails, as everybody knows
        error = None if whole else failure(start, end)
        if end - start > 1 and (whole or error is not None):
            middle = (start + end) // 2
            todo += [(middle, end), (start, middle)]
        elif error is not None:
            found[start] = error
    return found


def refused(
    serde: Serde,
    column: pa.Array,
    error: BaseException,
) -> dict[int, BaseException]:
    """The values that ``serde`` cannot write, by index, each with its own error, after
    `encode_array` raised ``error``; empty where each value by itself can be written. The first
    outage is the last one, since every other value would wait for the same service. Raises
    ``error`` if it says of itself that no value is at fault, as a schema registry's."""
    if isinstance(error, FatalError | RetriableError):
        raise error
    known = error.index if isinstance(error, SerdeError) else None
    if known is not None and is_outage(error):
        return {known: error}
    found: dict[int, BaseException] = {}
    for index in range(len(column)):
        own = error if index == known else _refusal(serde, column[index : index + 1])
        if own is not None:
            found[index] = own
            if is_outage(own):
                break
    return found


def _refusal(serde: Serde, one: pa.Array) -> BaseException | None:
    try:
        try:
            value = one[0].as_py()
        except (OverflowError, ValueError):  # as a date beyond the year 9999: no value of Python's
            serde.encode_array(one)
        else:
            serde.encode(value)
    except BaseException as error:
        require_users(error)
        return error
    return None


def written_bytes(
    serde: Serde, column: pa.Array, store: str, batch: EdgeBatch, rows: Int64 | None = None
) -> pa.Array:
    """Bytes of ``column``, whose values come from ``rows`` of the batch (None: from all, in order).
    UserFunctionError naming the records of all values that cannot be written."""
    try:
        return serde.encode_array(column)
    except BaseException as error:
        require_users(error)
        failures = []
        for index, cause in refused(serde, column, error).items():
            row = index if rows is None else int(rows[index])
            failures.append(function_failure(store, batch, row, cause))
            failures[-1].__cause__ = cause
        if not failures:
            raise
        failures[0].others = tuple(failures[1:])
        raise failures[0] from failures[0].__cause__


def written_alike(
    serde: Serde, one: pa.Array, other: pa.Array
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where both columns, row by row, have a key that is written as the same bytes (Arrow compares
    no structs, arrays and maps). A key that cannot be written is like no other."""
    equal = pc.equal(_written(serde, one), _written(serde, other)).fill_null(False)
    found: np.ndarray[Any, np.dtype[np.bool_]] = equal.to_numpy(zero_copy_only=False)
    return found


def _written(serde: Serde, column: pa.Array) -> pa.Array:
    try:
        return serde.encode_array(column).cast(pa.binary())
    except BaseException as error:
        require_users(error)
    return pa.array([_bytes_or_none(serde, value) for value in column.to_pylist()], pa.binary())


def _bytes_or_none(serde: Serde, value: Any) -> bytes | None:
    try:
        return serde.encode(value)
    except BaseException as error:
        require_users(error)
        return None
