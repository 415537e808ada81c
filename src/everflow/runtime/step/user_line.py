"""Finds the user's line that an error comes from: the innermost that is nobody else's.

Frames of the library, of Python and of packages are others'."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from everflow.runtime.commit.batch import CodeLine
from everflow.travel.own_code import INSTALLED_FOLDERS
from everflow.user_program import is_everflow, place

_PYTHON = tuple({path for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))})
_MADE = ("<frozen ", "<string>", "<attrs ", "<__array_function__")
"""Code that has no file: Python's own, and what dataclasses and the like write."""
_WRITTEN = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE
)
_TEXT_WIDTH = 120


def innermost_line(error: BaseException) -> CodeLine | None:
    """The line of the user's program nearest to where ``error`` was raised; where it has none
    itself, of the error it came from. None for an error that no code of the user had a part in."""
    for one in _chain(error):
        frames = [
            CodeLine(f.f_code.co_filename, line, f.f_code.co_name)
            for f, line in traceback.walk_tb(one.__traceback__)
        ]
        found = _innermost(reversed(frames))
        if found is not None:
            return found
    return None


def innermost_line_in(text: str) -> CodeLine | None:
    """As `innermost_line`, of a worker's last traceback or, where it crashed, of what Python's
    faulthandler wrote; None where ``text`` has neither."""
    _, crashed, dump = text.partition("Current thread 0x")
    written = (
        dump.partition("\n\n")[0]
        if crashed
        else text.rpartition("Traceback (most recent call last)")[2]
    )
    frames = [
        CodeLine(found["file"], int(found["line"]), found["function"])
        for found in _WRITTEN.finditer(written)
    ]
    return _innermost(frames if crashed else reversed(frames))


def shown(line: CodeLine) -> str:
    """``file:line in function: text of that line``."""
    text = linecache.getline(line.file, line.line).strip()
    cut = text if len(text) <= _TEXT_WIDTH else f"{text[:_TEXT_WIDTH]}..."
    return place(f"{line.file}:{line.line}") + f" in {line.function}" + (f": {cut}" if cut else "")


def _innermost(frames: Iterable[CodeLine]) -> CodeLine | None:
    """``frames``: innermost first. A function that lives in an installed package is the user's only
    if nothing else is."""
    installed: CodeLine | None = None
    for frame in frames:
        if is_everflow(frame.file) or frame.file.startswith(_MADE):
            continue
        if not INSTALLED_FOLDERS.isdisjoint(PurePath(frame.file).parts):
            if installed is None and "pyspark" not in frame.file:
                installed = frame
        elif not frame.file.startswith(_PYTHON):
            return frame
    return installed


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
