"""``module:name`` or ``file.py:name`` -> the user's topology.

The module is imported as its owner would import it: the current folder is on the path. What can be
told of a wrong program without running it is told before (`everflow.cli.program_source`).
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from everflow.cli.program_source import (
    module_and_name,
    no_such_module,
    no_such_name,
    require_name,
)
from everflow.errors import EverflowError, TopologyError
from everflow.hidden_modules import blamed
from everflow.serdes.base import SerdeError
from everflow.spark.session import start_when_asked, started_by
from everflow.topology.program import Topology

LOAD_SILENT_S = 2.0
"""A program may take so long to load without a word."""


def load_topology(target: str, *, start_spark: Callable[[], object]) -> Topology:
    """Import the module of ``target`` (`module_and_name`) and return the topology that its name
    holds, builds or returns.

    ``name`` is a `Topology`, a `StreamsBuilder`, or a function without arguments that returns one
    of them. ``start_spark`` runs when the program makes its first Column, if it makes one.

    Raises:
        TopologyError: no such module or name, the wrong kind of object, or the module failed while
        being imported (then with file
            and line of the failing statement). Errors of everflow raised by the module pass
            unchanged.
    """
    put_current_folder_on_path()
    module_name, name = module_and_name(target)
    require_name(module_name, name)
    with started_by(start_spark):
        start_when_asked()
        module = _import(module_name)
        found = _attribute(module, name)
        if callable(found) and not isinstance(found, type) and not hasattr(found, "build"):
            found = _call(found, target)
        return _as_topology(found, target)


def place_of(target: str) -> str:
    """``flights.py (/programs/flights.py), builder``: where a program was loaded from."""
    module, name = module_and_name(target)
    file = getattr(sys.modules.get(module), "__file__", None)
    return f"{module}, {name}" if file is None else f"{Path(file).name} ({file}), {name}"


def put_current_folder_on_path() -> None:
    """As Python does for a script. Spark's Python workers get this process's path from the
    instance. Idempotent."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except EverflowError as error:
        raise _placed(error) from error
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise no_such_module(error.name, name) from error
        raise _failed(f"module {name}", error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit(), too, is no way to give a topology
        raise _failed(f"module {name}", error) from error


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            place = next(iter(getattr(module, "__path__", ())), None)
            place = getattr(module, "__file__", None) or place or ""
            raise no_such_name(module.__name__, path, _candidates(module), place) from None
    return found


def _call(function: Callable[[], Any], target: str) -> Any:
    try:
        return function()
    except EverflowError as error:
        raise _placed(error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(f"{target}()", error) from error


def _as_topology(found: Any, target: str) -> Topology:
    if isinstance(found, Topology):
        return found
    build = getattr(found, "build", None)
    built = build() if callable(build) and not isinstance(found, type) else None
    if isinstance(built, Topology):
        return built
    raise TopologyError(
        (
            f"{target} is of type {type(found).__name__}, not a StreamsBuilder, a Topology or a "
            f"function that returns one"
        ),
        code="EF-PROGRAM",
    )


def _candidates(module: ModuleType) -> list[str]:
    """Public names of the module that could have been meant."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, type)
        and (isinstance(value, Topology) or hasattr(value, "build"))
    )


def _placed(error: EverflowError) -> EverflowError:
    """Serdes and windows do not know the user's line (the DSL does): add it to what they refuse."""
    if isinstance(error, TopologyError) and error.where is not None:
        return error
    if isinstance(error, TopologyError | SerdeError):
        return TopologyError(str(error), where=_place(error), code=error.code)
    return error


def _place(error: BaseException) -> str:
    """``file:line`` of the innermost frame of the user's program."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _failed(what: str, error: BaseException) -> TopologyError:
    where = _place(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        where = f"{error.filename}:{error.lineno}"
    hiding = "".join(f". {one}: rename it" for one in blamed(error))
    return TopologyError(
        f"{what} failed: {type(error).__name__}: {error}{hiding}", where=where, code="EF-PROGRAM"
    )


def _is_users(filename: str) -> bool:
    """Whether a frame is of the user's program: not importlib's, not an installed package's, not
    ours."""
    ours = str(Path(__file__).parents[1])
    return not (
        filename.startswith(("<", ours))
        or "site-packages" in filename
        or "dist-packages" in filename
    )
