"""Sends everflow's own lines to people, each once, with the time; clients' noise goes to a file.

`install` takes over the logger ``everflow`` and the clients' loggers, and nothing else. An instance
opens its file with `LogFile` when it has locked its state folder, and closes it at its end. The
owner of the screen (`everflow run`'s status line, a notebook's view) takes lines with `lines_to`.

What a program sees that only calls `KafkaStreams`:

- It has configured logging (the root logger has handlers): everflow's records reach them as any
  library's do, each of them, by the levels that the program set.
- It has not: what an operator must know comes on standard error with the time: warnings, errors,
  and INFO of ``everflow.moves``.
- Either way the clients' loggers (``kafka``, ``py4j``) write to the file only, unless the program
  has set them up itself; and the file has all that everflow's loggers say, DEBUG and tracebacks
  included.

On a screen a text that repeats comes at growing intervals (`Repeats`), and no traceback.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, cast

from everflow.user_program import printable

LOGGER = "everflow.moves"
rebalance_log = logging.getLogger(LOGGER)
"""INFO: what was assigned, or is waited for. WARNING: what an operator may have to check."""

ABOUT_ASSIGNMENT = {"about": "assignment"}
"""``extra=`` of lines on tasks that are assigned, and why: the dashboard lists them apart."""

SHOWN = 5


def some(things: Iterable[object], shown: int = SHOWN) -> str:
    """``0_0, 0_1, 0_2, 0_3, 1_0 and 3 more``, in the order given; ``none`` of nothing."""
    texts = [str(thing) for thing in things]
    text = ", ".join(texts[:shown]) or "none"
    return f"{text} and {len(texts) - shown:,} more" if len(texts) > shown else text


def counted(number: int, noun: str) -> str:
    """``1 task``, ``8 tasks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


OWN = "everflow"
CLIENTS = ("kafka", "py4j")
FILE_BYTES = 5_000_000
FILES = 4
"""Of `FILE_BYTES` at most: the present one and the three before it."""
BACKLOG_LINES = 1_000
"""Kept for the first file: Spark often starts before an instance has one."""
EVERYTHING = logging.DEBUG - 1
"""The level of the logger ``everflow`` while nobody chose one."""
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(threadName)s %(name)s: %(message)s"
_TIME = "%Y-%m-%d %H:%M:%S"


class _OwnLines(logging.Formatter):
    """A record's lines: only its first one begins like a record's."""

    def format(self, record: logging.LogRecord) -> str:
        return _of_one(super().format(record))


def _of_one(text: str) -> str:
    """The text of one record: it moves no cursor, and its further lines are indented."""
    return re.sub(r"\n(?=\S)", "\n  ", printable(text))


def _cleaned(record: logging.LogRecord) -> logging.LogRecord:
    """A copy for handlers of the program, which have formatters of their own."""
    text = record.getMessage()
    if (clean := _of_one(text)) == text:
        return record
    made = copy(record)
    made.msg, made.args = clean, None
    return made


def log_path(state_dir: str | Path, application_id: str) -> Path:
    """The log file of an instance."""
    return Path(state_dir).expanduser() / application_id / "logs" / "everflow.log"


def time_of_day() -> str:
    """``2026-11-21 21:14:06``, local."""
    return time.strftime(_TIME)


class PrivateFile(RotatingFileHandler):
    """A file of one instance, open from its creation until `close`: readable for this user only,
    bounded in size."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(
            path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8", errors="replace"
        )
        self.path = path

    def _open(self) -> Any:
        how: dict[str, Any] = {"encoding": self.encoding, "errors": self.errors}
        return open(self.baseFilename, self.mode, **how, opener=_private)

    def emit(self, record: logging.LogRecord) -> None:
        """As the standard one, but each record is formatted once: that does it again to see whether
        the file would be too large, and looks whether it still is one."""
        if self.stream is None:
            super().emit(record)
            return
        try:
            line = self.format(record) + self.terminator
            if self.stream.tell() + len(line) >= self.maxBytes:
                self.doRollover()
            self.stream.write(line)
            self.flush()
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """The stores report a full disk."""

    def close(self) -> None:
        """Idempotent. What a full disk did not take is lost, and no reason to fail."""
        with suppress(OSError):
            super().close()


class JsonLines(PrivateFile):
    """A file with a JSON object in each line."""

    def add(self, row: Mapping[str, Any]) -> None:
        self.handle(logging.makeLogRecord({"msg": json.dumps(row)}))


class LogFile(PrivateFile):
    """The log file of one instance. It gets what every everflow instance of this process says; a
    fault of the disk ends it silently."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        super().__init__(path)
        self.setFormatter(_OwnLines(_FORMAT, _TIME))
        install()
        _files.add(self)
        _people.begin()

    def write(self, line: str) -> None:
        if self.stream is not None:
            self.stream.write(line + "\n")

    def handleError(self, record: logging.LogRecord) -> None:
        """Close the log silently: the stores report a full disk."""
        _files.remove(self)

    def close(self) -> None:
        _files.remove(self)
        super().close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Files(logging.Handler):
    """Every record to every open file; without one, the last lines are kept for the next."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[LogFile] = []
        self._backlog: deque[str] = deque(maxlen=BACKLOG_LINES)
        self.setFormatter(_OwnLines(_FORMAT, _TIME))

    def add(self, file: LogFile) -> None:
        with cast(Any, self.lock):
            self._open.append(file)
            for line in self._backlog:
                file.write(line)
            self._backlog.clear()

    def remove(self, file: LogFile) -> None:
        with cast(Any, self.lock):
            if file in self._open:
                self._open.remove(file)

    def emit(self, record: logging.LogRecord) -> None:
        if self._open:
            for file in list(self._open):
                file.handle(record)
        else:
            self._backlog.append(self.format(record))


@dataclass
class _Said:
    first_s: float
    seen_s: float
    due_s: float


class Repeats:
    """Decides which texts to repeat. Pure: times (s) are passed in; one caller at a time."""

    SOON_S, SELDOM_S, FORGOTTEN_S, KEPT = 10.0, 300.0, 120.0, 100
    _DURATION = re.compile(r"[\d.,]+(?= m?s\b)")

    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}

    def again(self, text: str, now_s: float) -> str | None:
        """``text`` as it is to be said now, else None. Its durations make it no other text."""
        key = self._DURATION.sub("#", text)
        before = self._said.get(key)
        if before is None or now_s - before.seen_s > self.FORGOTTEN_S:
            self._forget(now_s)
            self._said[key] = _Said(now_s, now_s, now_s + self.SOON_S)
            return text
        before.seen_s = now_s
        if now_s < before.due_s:
            return None
        since_s = now_s - before.first_s
        before.due_s = now_s + min(self.SELDOM_S, 2 * max(since_s, self.SOON_S))
        return f"{text} (for {since_s:.0f} s now)"

    def _forget(self, now_s: float) -> None:
        if len(self._said) >= self.KEPT:
            self._said = {
                key: said
                for key, said in self._said.items()
                if now_s - said.seen_s <= self.FORGOTTEN_S
            }


class _People(logging.Handler):
    """Shows lines to people: by a caller of `lines_to`, the program's handlers, or on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.write: Callable[[str], None] | None = None
        self.verbose = False
        self._repeats = Repeats()

    def begin(self) -> None:
        """Another instance begins: what an earlier one said, and since when, is not its."""
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        own = logging.getLogger(OWN).handlers  # a test runner may listen at both
        handlers = [found for found in logging.getLogger().handlers if found not in own]
        if self.write is not None:
            handlers = [found for found in handlers if not _on_screen(found)]
        if handlers and record.levelno >= _level_asked(record.name):
            clean = _cleaned(record)
            for handler in handlers:
                if clean.levelno >= handler.level:
                    handler.handle(clean)
        if (self.write is not None or not logging.getLogger().handlers) and self._shown(record):
            self._say(record)

    def _shown(self, record: logging.LogRecord) -> bool:
        if self.verbose:
            return record.levelno >= logging.INFO or record.name == SPARK_OUTPUT
        return record.levelno >= (logging.INFO if record.name == LOGGER else logging.WARNING)

    def _say(self, record: logging.LogRecord) -> None:
        text: str | None = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = self._repeats.again(str(text), time.monotonic())
        if text is None:
            return
        if self.verbose and record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        line = f"{record.levelname} {text}" if record.levelno >= logging.WARNING else text
        line = _of_one(line)
        try:
            if self.write is not None:
                self.write(line)
            elif sys.stderr is not None:
                sys.stderr.write(f"{time_of_day()} {line}\n")
                sys.stderr.flush()
        except (OSError, ValueError):
            pass  # the reader has ended


def _on_screen(handler: logging.Handler) -> bool:
    stream: IO[str] | None = getattr(handler, "stream", None)
    return stream is not None and stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def _level_asked(name: str) -> int:
    """The level that a program gave this logger, or one above it."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if logger.level not in (logging.NOTSET, EVERYTHING):
            return logger.level
        logger = logger.parent
    return logging.NOTSET


SPARK_OUTPUT = "everflow.spark.output"
"""The logger of what Spark's JVM and the Python workers write to standard error."""
_files = _Files()
_people = _People()
_installing = threading.Lock()


def install() -> None:
    """Take the loggers over; see the module. Idempotent, any thread."""
    with _installing:
        own = logging.getLogger(OWN)
        if _files not in own.handlers:
            own.addHandler(_files)
            own.addHandler(_people)
            own.propagate = False
        if own.level == logging.NOTSET:
            own.setLevel(EVERYTHING)
        for name in CLIENTS:
            client = logging.getLogger(name)
            # Libraries add that one.
            handled = any(not isinstance(found, logging.NullHandler) for found in client.handlers)
            if client.level == logging.NOTSET and not handled and client.propagate:
                client.addHandler(_files)
                client.propagate = False


@contextmanager
def lines_to(write: Callable[[str], None], *, verbose: bool = False) -> Iterator[None]:
    """People's lines, without the time, go to ``write`` in the block (any thread calls it, one at a
    time), to no other handler of that screen. ``verbose``: also INFO, Spark's output, stacks."""
    install()
    before = _people.write, _people.verbose
    _people.write, _people.verbose = write, verbose
    try:
        yield
    finally:
        _people.write, _people.verbose = before
