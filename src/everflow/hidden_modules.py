"""Finds files of the program that hide modules of Python's standard library.

Python looks for a module beside the script first: a ``queue.py`` there is what every library gets
that imports ``queue``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from everflow.errors import EverflowError, SetupError


def raise_told(what: str, error: Exception) -> NoReturn:
    """Raise ``error``, with which the import of ``what`` of everflow failed: as a SetupError where
    the program hides a module of Python's; never as an AttributeError, of which Python makes
    "cannot import name" without a reason."""
    if not isinstance(error, EverflowError):
        if files := hidden(sys.modules):
            listed = ", ".join(f"{file} hides Python's own module {file.stem}" for file in files)
            text = (
                f"{listed}, which a library imports. Rename the file.\n  "
                f"{type(error).__name__}: {error}"
            )
            raise SetupError(text) from None
        if isinstance(error, AttributeError):
            raise ImportError(f"everflow.{what} cannot be imported: {error}") from error
    raise error


def hidden(modules: dict[str, ModuleType]) -> list[Path]:
    """Files of those of ``modules`` that lie beside the script, or in the current folder, and have
    a standard module's name."""
    beside = {Path(sys.path[0] if sys.path else "").resolve(), Path.cwd()}
    files = [
        getattr(modules[name], "__file__", None)
        for name in sorted(sys.stdlib_module_names & modules.keys())
    ]
    return [
        Path(file) for file in files if file is not None and Path(file).resolve().parent in beside
    ]
