"""`ByRecord` does the columns of a serde that takes one value at a time; `no_serde` judges it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.base import Serde, SerdeError
from everflow.serdes.schema import arrow_type

NEEDED = ("type", "encode", "decode")
_JAVA = ("serialize", "deserialize", "serializer", "deserializer")
_EXAMPLE = "write for example serdes.string(), serdes.json('a string, b double')"


@dataclass(frozen=True)
class ByRecord:
    """``own`` with ``encode`` and ``decode`` called for each row that is not null. What they raise
    is a SerdeError of that row."""

    own: Any
    type: pa.DataType

    @property
    def kind(self) -> str:
        """No built-in one: nothing but ``own`` knows its bytes."""
        return "by_record"

    def __repr__(self) -> str:
        return repr(self.own)

    def encode(self, value: Any) -> bytes | None:
        data: bytes | None = self._column([value])[0].as_py()
        return data

    def decode(self, data: bytes | None) -> Any:
        return None if data is None else _each(self.own.decode, [data])[0]

    def encode_array(self, values: pa.Array) -> pa.Array:
        return self._column(values.to_pylist())

    def decode_array(self, data: pa.Array) -> pa.Array:
        decoded = _each(self.own.decode, data.to_pylist())
        try:
            return column_of(decoded, self.type)
        except UnfitError as error:
            raise SerdeError(
                f"decode gave {decoded[error.index]!r:.200}, which does not fit: {error}",
                index=error.index,
            ) from error

    def _column(self, values: Collection[Any]) -> pa.Array:
        encoded = _each(self.own.encode, values)
        try:
            return pa.array(encoded, pa.binary())
        except (pa.ArrowException, TypeError):
            index = next(row for row, data in enumerate(encoded) if not _is_binary(data))
        wrong = encoded[index]
        raise SerdeError(
            f"encode of {self.own!r:.100} gave {type(wrong).__name__} {wrong!r:.200}, not bytes",
            index=index,
        )


def _is_binary(data: Any) -> bool:
    try:
        pa.array([data], pa.binary())
    except (pa.ArrowException, TypeError):
        return False
    return True


def _each(one: Callable[[Any], Any], values: Collection[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        done.extend(None if value is None else one(value) for value in values)
    except SerdeError as error:
        raise SerdeError(str(error), index=len(done)) from error
    except Exception as error:
        raise SerdeError(f"{type(error).__name__}: {error}", index=len(done)) from error
    return done


def is_serde(candidate: object) -> bool:
    """True if ``candidate`` has what a serde needs at least."""
    return not isinstance(candidate, type) and all(hasattr(candidate, name) for name in NEEDED)


def adopted(candidate: Any) -> Serde:
    """``candidate``, for which `is_serde` is true, as a whole serde. SerdeError for a ``type`` that
    is none."""
    if hasattr(candidate, "encode_array") and hasattr(candidate, "decode_array"):
        return candidate  # type: ignore[no-any-return]
    return ByRecord(candidate, arrow_type(candidate.type))


def no_serde(candidate: object, names: Collection[str]) -> str | None:
    """Why ``candidate`` is no serde, and the cure; None for a serde. ``names``: everflow's own
    makers of serdes."""
    if is_serde(candidate):
        return None
    if isinstance(candidate, str):
        text = f"serdes.{candidate}()" if candidate in names else f"serdes.json({candidate!r})"
        return f"is not a serde; write for example {text}"
    if inspect.isfunction(candidate) and candidate.__module__ == "everflow.serdes":
        return f"is not a serde; write for example serdes.{candidate.__name__}()"
    if not any(hasattr(candidate, name) for name in ("encode", "decode", *_JAVA)):
        return f"is not a serde; {_EXAMPLE}"
    if isinstance(candidate, type):
        return f"is a class; give an object of it: {candidate.__name__}()"
    lacks = [name for name in NEEDED if not hasattr(candidate, name)]
    return (
        f"is not a whole serde: it lacks {', '.join(lacks)}. It needs encode(value) -> bytes, "
        "decode(bytes) -> value and type, the type of what decode gives: pyarrow's, or text such "
        "as 'string' or 'x bigint, y bigint' (then decode gives a dict)"
    )
