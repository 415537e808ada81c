"""The line of the user's program that called everflow: errors and nodes carry it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_USER_SIDE = tuple(_PACKAGE + name for name in ("demo", "cli"))


def is_everflow(file: str) -> bool:
    """Whether a source file is the library's; its demo, test and command parts count as the user's
    side."""
    return file.startswith(_PACKAGE) and not file.startswith(_USER_SIDE)


def user_line() -> str | None:
    """``file:line`` of the innermost frame outside the library; None where there is none (an
    interactive C caller)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_ours(frame) and not file.startswith("<frozen importlib"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_ours(frame: FrameType) -> bool:
    """Code of the library; what `dataclasses` makes for it, which has no file, and calls."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    made = file == "<string>" and module.startswith("everflow.")
    return made or module == "dataclasses" or is_everflow(file)


def place(where: str) -> str:
    """``file:line`` as its reader knows it: in a notebook ``Cell In[4]:7``, where Jupyter's kernel
    has a file of its own."""
    file, _, line = where.rpartition(":")
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return where if named is None else f"{' '.join(named)}:{line}"


def short(file: str, roots: Sequence[str]) -> str:
    """A file as its import names it, or by its last name: no folder of anybody's home is shown."""
    within = [root for root in roots if root and file.startswith(f"{root.rstrip('/')}/")]
    if not within:
        return file.rpartition("/")[2]
    longest = max(within, key=len)
    return file[len(longest.rstrip("/")) + 1 :]
