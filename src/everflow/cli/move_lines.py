"""Which tasks came and went, and why: lines of `everflow run`, with the time, above the progress line."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from everflow.cli.status import StatusLine
from everflow.moves import moves


def time_of_day() -> str:
    """``2026-11-21 21:14:06``, local."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


@contextmanager
def moves_shown(status: StatusLine, all_logged: bool) -> Iterator[None]:
    """Print what is reported to `everflow.moves` while the block runs; nothing with ``all_logged``: then the log has it."""
    if all_logged:
        yield
        return
    handler, level, propagate = _MoveLines(status), moves.level, moves.propagate
    moves.addHandler(handler)
    moves.setLevel(logging.INFO)
    moves.propagate = False  # a warning would come twice
    try:
        yield
    finally:
        moves.removeHandler(handler)
        moves.setLevel(level)
        moves.propagate = propagate


class _MoveLines(logging.Handler):
    def __init__(self, status: StatusLine) -> None:
        super().__init__(logging.INFO)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        try:
            mark = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
            self._status.event(f"{mark}{record.getMessage()}")
        except Exception:
            self.handleError(record)
