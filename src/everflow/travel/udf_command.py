"""Reads a function that PySpark has pickled for a UDF, as a function of this process again.

A copy would have variables of its own. Here a function of a module that is loaded gets that
module's variables, as the other functions of the program have them. Only what a closure holds is
as it was when the UDF was first called on a Column.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from pyspark.cloudpickle import cloudpickle as untyped

cloudpickle: Any = untyped


def function_of(command: bytes) -> tuple[Callable[..., Any], Any]:
    """The function and the Spark type of its result. In the driver, where it was pickled."""
    function, kind = _Unpickler(io.BytesIO(command)).load()
    return function, kind


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        here = module == cloudpickle.__name__ and _HERE.get(name)
        return here or super().find_class(module, name)


def _make_function(
    code: CodeType, facts: dict[str, Any], name: Any, defaults: Any, cells: Any
) -> FunctionType:
    module = sys.modules.get(facts.get("__name__", ""))
    space = facts if module is None else vars(module)
    space.setdefault("__builtins__", __builtins__)
    return FunctionType(code, space, name, defaults, cells)


def _function_setstate(fn: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, slots = state
    space = fn.__globals__
    pickled = slots["__globals__"].items()
    missing = {name: value for name, value in pickled if name not in space}
    builtins = space["__builtins__"]
    cloudpickle._function_setstate(fn, (attributes, {**slots, "__globals__": missing}))
    space["__builtins__"] = builtins


_HERE: dict[str, Any] = {
    "_make_function": _make_function,
    "_function_setstate": _function_setstate,
}
