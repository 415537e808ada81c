"""Finds files of the program that hide a library: a module of Python's or an installed package.

Python looks for a module beside the script first: a ``queue.py`` or an ``orjson.py`` there is what
every library gets that imports ``queue`` or ``orjson``.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple, NoReturn

from everflow.errors import EverflowError, SetupError

NEEDED = (
    "crc32c",
    "kafka",
    "lmdb",
    "numpy",
    "orjson",
    "pandas",
    "prometheus_client",
    "py4j",
    "pyarrow",
    "pyspark",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
)
"""Packages that everflow imports: a file of such a name that is loaded in its place is refused."""


_SITES = ("site-packages", "dist-packages")
"""What Python calls folders of installed packages."""


class Hiding(NamedTuple):
    """``file`` of the program, or a folder, stands in front of the library ``name``, which is
    ``what`` for people; or the library is ``loaded`` in its place."""

    file: Path
    name: str
    what: str
    loaded: bool = False

    def __str__(self) -> str:
        if self.loaded:
            return f"{self.file} has the name of {self.what}, which is imported in its place"
        return f"{self.file} hides {self.what}"


def require_unhidden() -> None:
    """SetupError where a file of the program was loaded in the place of what everflow needs."""
    loaded = [name for name in NEEDED if name in sys.modules]
    if files := _loaded_beside(loaded):
        raise _refusal(files, "everflow")


def raise_explained(what: str, error: Exception) -> NoReturn:
    """Raise ``error``, with which the import of ``what`` of everflow failed: as a SetupError where
    the program hides a library; never as an AttributeError, of which Python makes "cannot import
    name" without a reason."""
    if not isinstance(error, EverflowError):
        if files := [one for one in blamed(error) if not one.loaded]:
            refusal = _refusal(files, "a library")
            raise SetupError(f"{refusal}\n  {type(error).__name__}: {error}") from None
        if isinstance(error, AttributeError):
            raise ImportError(f"everflow.{what} cannot be imported: {error}") from error
    raise error


def blamed(error: BaseException) -> list[Hiding]:
    """What hides a library, or a library hides, and may be the reason of the ``error`` of an
    import: what hides a module of Python's, and what ``error`` or its stack names."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    said = set(re.findall(r"\w+", f"{error} {getattr(error, 'name', '')}"))
    return [
        one
        for one in _loaded_beside(sys.modules)
        if one.name in sys.stdlib_module_names or one.name in said or str(one.file) in files
    ] + (_not_loaded(said) if isinstance(error, ImportError) else [])


def library(name: str, here: Iterable[Path]) -> str | None:
    """The library ``name`` in words, Python's or installed outside of ``here``; None: none."""
    if name in sys.stdlib_module_names or name in sys.builtin_module_names:
        return f"Python's own module {name}"
    others = set(here)
    path = [entry for entry in sys.path if Path(entry or ".").resolve() not in others]
    spec = PathFinder.find_spec(name, path)
    if spec is None or spec.origin is None:
        return None
    place = str(next(iter(spec.submodule_search_locations or ()), spec.origin))
    folder = Path(place).parent
    if folder.name not in _SITES and not any(folder.glob("*.dist-info")):
        return None  # just another folder of the program (PYTHONPATH)
    return f"the installed package {name} ({place})"


def _loaded_beside(names: Iterable[str]) -> list[Hiding]:
    """Loaded modules beside the script, or in the current folder, that have a library's name."""
    first = sys.path[0] if sys.path else ""
    folders = {first, os.path.realpath(first), os.getcwd()}
    found = []
    for name in names:
        file = getattr(sys.modules[name], "__file__", None)
        if "." in name or not isinstance(file, str):
            continue
        path = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
        if os.path.dirname(path) in folders:  # each name of everflow asks: Path takes 20 us
            what = library(name, {Path(folder).resolve() for folder in folders})
            if what is not None:
                found.append(Hiding(Path(path), name, what))
    return sorted(found)


def _not_loaded(names: Iterable[str]) -> list[Hiding]:
    """Files and packages there in whose place a library of one of these names is loaded."""
    found = []
    folders = [Path(one).resolve() for one in dict.fromkeys((sys.path[0], os.getcwd()))]
    for name in sorted(set(names) & sys.modules.keys()):
        loaded = getattr(sys.modules[name], "__file__", None)
        for own in (one for folder in folders for one in (folder / f"{name}.py", folder / name)):
            is_own = own.is_file() or (own / "__init__.py").is_file()
            theirs = loaded is None or Path(loaded).resolve() not in (own, own / "__init__.py")
            if is_own and theirs and (what := library(name, folders)) is not None:
                found.append(Hiding(own, name, what, loaded=True))
    return list(dict.fromkeys(found))


def _refusal(files: list[Hiding], who: str) -> SetupError:
    listed = ", ".join(map(str, files))
    one = len(files) == 1
    kind = "folder" if one and files[0].file.is_dir() else "file" if one else "files"
    return SetupError(f"{listed}, which {who} imports. Rename the {kind}.")
