"""Says what of a program cannot be pickled: the variable, the function that uses it, the cure."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any

from everflow.errors import TopologyError
from everflow.travel.by_value import ByValuePickler, attributes_used, globals_used
from everflow.travel.own_code import TOPOLOGY_TYPES, called, is_own

_SPARK_TYPES = frozenset(
    {
        "pyspark.core.context.SparkContext",
        "pyspark.core.rdd.RDD",
        "pyspark.sql.session.SparkSession",
        "pyspark.sql.column.Column",
        "pyspark.sql.dataframe.DataFrame",
        "pyspark.sql.udf.UserDefinedFunction",
        "py4j.java_gateway.JavaObject",
        "py4j.java_gateway.JavaGateway",
    }
)
DRIVER_TYPES = _SPARK_TYPES | TOPOLOGY_TYPES | {"everflow.dsl.streams.KGroupedStream"}
"""Types of what exists in the driver only. Some of them could be pickled by accident."""

_DEPTH = 12
_AT_FIRST_USE = (
    "make it inside the function, or once per worker at first use, in a function with "
    "@functools.cache that returns it"
)
_CURES = (
    (
        TOPOLOGY_TYPES,
        "the topology exists in the driver only; what a function remembers belongs into an "
        "aggregate or a table",
    ),
    (
        _SPARK_TYPES,
        "Spark exists in the driver only: use a Column in place of the function, or collect what "
        "it needs before",
    ),
)


class NotPortable(Exception):
    """Raised by `PortablePickler` for what must stay in the driver."""


class PortablePickler(ByValuePickler):
    """Refuses what exists in the driver only."""

    def reducer_override(self, obj: Any) -> Any:
        if _stays(type(obj)):  # type: ignore[arg-type]
            raise NotPortable(type(obj).__name__)
        return super().reducer_override(obj)


@functools.lru_cache(maxsize=4096)
def _stays(cls: type) -> bool:
    return called(cls, DRIVER_TYPES)


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


class TravelCheck:
    """Checks what a topology takes in, each object once. Owned by one builder or one start."""

    def __init__(self) -> None:
        self._pickler = _pickler()

    def require(self, taken: Mapping[str, object], operator: str, where: str | None) -> None:
        """TopologyError unless what a node takes can be pickled: what is taken by its name, the
        operator or node, the user's line."""
        try:
            self._pickler.dump(taken)
        except Exception as error:
            self._pickler = _pickler()  # it remembers objects that it did not finish
            raise TopologyError(
                f"{operator}: {_in_words(taken, error)}", where=where, code="EF-NOT-PORTABLE"
            ) from None


def _pickler() -> PortablePickler:
    return PortablePickler(_Nowhere(), buffer_callback=lambda _: None)


def _problem(obj: object) -> Exception | None:
    try:
        _pickler().dump(obj)
    except Exception as error:
        return error
    return None


def _in_words(taken: Mapping[str, object], error: Exception) -> str:
    """The innermost thing that cannot be pickled, with the way to it."""
    path: list[str] = []
    function: FunctionType | None = None
    culprit: object = taken
    seen = {id(taken)}
    parts = ((f"its {'function' if name == 'fn' else name}", one) for name, one in taken.items())
    while len(path) < _DEPTH and not (isinstance(error, NotPortable) and _stays(type(culprit))):  # type: ignore[arg-type]
        if isinstance(culprit, FunctionType):
            function, path = culprit, []
        for name, child in parts if culprit is taken else _children(culprit):
            found = None if id(child) in seen else _problem(child)
            if found is not None:
                path, culprit, error = [*path, name], child, found
                seen.add(id(child))
                break
        else:
            break
    user = f"the function {_function_name(function)} uses " if function else ""
    name = f"{_path(path)}, " if _path(path) else ""
    explained = isinstance(error, NotPortable | TypeError) or isinstance(culprit, io.IOBase)
    what = f"of type {type(culprit).__qualname__}{'' if explained else f' ({error})'}"
    return f"{user}{name}{what}, which cannot be sent to the Python workers; {_cure(culprit)}"


def _cure(culprit: object) -> str:
    if isinstance(culprit, io.IOBase):
        return (
            "open it inside the function, or read it before and let the function use what was read"
        )
    for types, cure in _CURES:
        if called(type(culprit), types):
            return cure
    return _AT_FIRST_USE


def _function_name(function: FunctionType) -> str:
    code = function.__code__
    name = "" if function.__name__ == "<lambda>" else f"`{function.__name__}` "
    return f"{name or 'lambda '}({PurePath(code.co_filename).name}:{code.co_firstlineno})"


def _path(path: list[str]) -> str:
    """``variable lock``, ``variable CLIENT.session.lock``."""
    if not path:
        return ""
    kind, _, name = path[0].rpartition(" ")
    return f"{kind} `{name + ''.join(path[1:])}`".strip()


def _children(obj: object) -> Iterator[tuple[str, object]]:
    """What pickling ``obj`` would pickle, with the name under which a user knows it."""
    if isinstance(obj, FunctionType):
        yield from _used_by(obj)
    elif isinstance(obj, MethodType):
        yield from ((".__self__", obj.__self__), (".__func__", obj.__func__))
    elif isinstance(obj, functools.partial):
        yield from ((".func", obj.func), (".args", obj.args), (".keywords", obj.keywords))
    elif isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(obj))
    elif isinstance(obj, type):
        yield from [
            (f".{name}", value)
            for name, value in vars(obj).items()
            if not name.startswith("__weakref")
        ]
    elif is_dataclass(obj):
        yield from (
            (_shown(obj, field.name), getattr(obj, field.name))
            for field in fields(obj)
            if hasattr(obj, field.name)
        )
    else:
        yield from ((f".{name}", value) for name, value in _attributes_of(obj))


def _shown(obj: object, name: str) -> str:
    """Fields of everflow's own wrappers are no names that a user knows."""
    return "" if type(obj).__module__.startswith("everflow.") else f".{name}"


def _attributes_of(obj: object) -> Iterator[tuple[str, object]]:
    with suppress(TypeError):
        yield from vars(obj).items()
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(obj, name):
                yield name, getattr(obj, name)
    yield "__class__", type(obj)


def _used_by(fn: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with suppress(ValueError):
            yield f"the variable {name}", cell.cell_contents
    for name, value in globals_used(fn).items():
        if isinstance(value, ModuleType) and is_own(value):
            used = (part for part in attributes_used(fn) if part in vars(value))
            yield from ((f"the variable {name}.{part}", vars(value)[part]) for part in used)
        else:
            yield f"the variable {name}", value
    with_default = fn.__code__.co_varnames[: fn.__code__.co_argcount][-len(fn.__defaults__ or ()) :]
    defaults = {
        **dict(zip(with_default, fn.__defaults__ or (), strict=False)),
        **(fn.__kwdefaults__ or {}),
    }
    yield from ((f"the default of {name}", one) for name, one in defaults.items())
    yield from ((f"its attribute {name}", one) for name, one in vars(fn).items())
