"""The line of the user's program that called the DSL: errors and nodes carry it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_USER_SIDE = tuple(_PACKAGE + name for name in ("demo", "testing", "cli"))


def user_line() -> str | None:
    """``file:line`` of the innermost frame outside the library; None where there is none (an interactive C caller)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) or file.startswith(_USER_SIDE):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None
