"""`PickledObjects`: the user's objects, pickled once in the driver, opened once in each worker.

Spark unpickles a job's function for every micro-batch; these objects stay. So a variable
of the program, such as a client made at first use, lives as long as its worker.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
import uuid
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from everflow.errors import FatalError
from everflow.travel.by_value import loading_into
from everflow.travel.own_code import MAIN, is_own
from everflow.travel.refusals import PortablePickler

_KEPT = 4
_opened: dict[str, tuple[Any, dict[str, ModuleType]]] = {}
_current: list[str] = []
_made: set[str] = set()
"""Names of the program's modules that were made here, by whatever name a library has too."""
_libraries: frozenset[str] = frozenset()
_last_library = ""
_workers_main = sys.modules["__main__"]


def no_program_yet() -> None:
    """What is imported by now is not the program's. In a process that is about to be forked: to
    look at an object counts a reference to it, so a fork that looks at all modules and what is in
    them copies 35 MiB."""
    global _libraries, _last_library
    _libraries = frozenset(sys.modules) - MAIN
    _last_library = next(reversed(sys.modules))


def _perhaps_own() -> dict[str, ModuleType]:
    """The modules that may be the program's, by name."""
    later: list[str] = []
    for name in reversed(sys.modules):
        if name == _last_library:
            break
        later.append(name)
    names = [name for name in later if name not in _libraries]
    return {
        name: module
        for name in [*names, *_made, *MAIN]
        if isinstance(module := sys.modules.get(name), ModuleType)
    }


@dataclass(frozen=True)
class PickledObjects:
    """Picklable. One object has all that must share variables and classes."""

    data: bytes
    name: str

    @staticmethod
    def of(content: Any) -> PickledObjects:
        """Raises whatever an object raises that cannot be pickled."""
        file = io.BytesIO()
        PortablePickler(file).dump(content)
        # A name of its own even for equal content: a new start begins with the variables of then.
        return PickledObjects(file.getvalue(), uuid.uuid4().hex)

    def copy(self) -> Any:
        """The content as a worker would have it, new each time; modules here stay as they are."""
        with loading_into({}):
            return pickle.loads(self.data)

    def open(self) -> Any:
        """The content, the same objects each time; in a worker process only, whose modules of the
        program become this object's. FatalError where it needs what a worker has not."""
        if _current == [self.name]:
            return _opened[self.name][0]
        worker_imports_harmlessly()
        _forget_programs()
        if self.name not in _opened:
            while len(_opened) >= _KEPT:
                _opened.pop(next(iter(_opened)))
            _opened[self.name] = self._loaded()
        content, modules = _opened[self.name]
        sys.modules.update(modules)
        _current[:] = [self.name]
        return content

    def _loaded(self) -> tuple[Any, dict[str, ModuleType]]:
        before = _perhaps_own()
        try:
            with loading_into(sys.modules, _made):
                content = pickle.loads(self.data)
        except Exception as error:
            _forget_programs()
            raise FatalError(_failed(error), code="EF-PROGRAM-IN-WORKER") from error
        return content, {
            name: module
            for name, module in _perhaps_own().items()
            if before.get(name) is not module and is_own(module)
        }


def _forget_programs() -> None:
    """Modules of other programs, or of this one before, go: each object brings its own."""
    _current.clear()
    # All are known before the first goes: a package without __init__ asks its parent for its place.
    for name in [name for name, module in _perhaps_own().items() if is_own(module)]:
        del sys.modules[name]
    sys.modules["__main__"] = _workers_main


def _failed(error: Exception) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
    ]
    at = f"\n  at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return (
        f"a Spark Python worker cannot build the program: {type(error).__name__}: {error}; what a "
        f"function uses must be there for the Python of the workers too ({sys.executable}){at}"
    )


_in_worker: list[bool] = []


def in_worker() -> bool:
    return bool(_in_worker)


def worker_imports_harmlessly() -> None:
    """Mark this process as a worker: PySpark's Columns and sessions find a Spark that takes every
    call. Idempotent. A worker rarely imports a program's modules; where it does, a builder, Columns
    and a Spark session at module level must neither start a second Spark nor fail.
    """
    if in_worker():
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = Inert()  # type: ignore[assignment]
    SparkSession.Builder.getOrCreate = lambda _: Inert()  # type: ignore[method-assign,assignment,return-value]
    _in_worker.append(True)


class Inert:
    """Takes every call, attribute and item, and gives itself; empty when iterated."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getitem__(self, _: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __lt__(self, _: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__


class InertInstance(Inert):
    """A `KafkaStreams` of a program that a worker imported: it may be there, it must not start."""

    def start(self, *_: Any, **__: Any) -> None:
        raise FatalError(
            "a Spark Python worker imported a module that starts a KafkaStreams at once; put that "
            "line under `if __name__ == '__main__':` or into a function, so that the module can be "
            "imported without running it",
            code="EF-PROGRAM-IN-WORKER",
        )

    run = start
