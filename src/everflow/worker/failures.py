"""Says why a micro-batch failed, which record caused it, and at which line of the user's program:
by the error's class, or, for a worker's death and for Columns of Spark's code, from Spark's
text."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NoReturn, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from everflow.errors import (
    DamagedEntryError,
    EverflowError,
    FatalError,
    GenerationChanged,
    LogStartMovedError,
    RecordRefusedError,
    RecordTooLargeError,
    RetriableError,
    StoreMismatchError,
    TaskMigratedError,
    UnknownOutcomeError,
)
from everflow.handlers import DESERIALIZATION, PROCESSING, PRODUCTION, chain, is_outage
from everflow.operators.user_code import require_users
from everflow.protocol.messages import BadEntry, BadRecord, BatchFailure, CodeLine
from everflow.records import EdgeBatch, TopicPartition
from everflow.serdes import SerdeError
from everflow.topology.sources import Source
from everflow.travel.own_code import INSTALLED_FOLDERS
from everflow.user_program import (
    COLUMN_IN_FUNCTION,
    MOST_TEXT,
    UNDECODED,
    class_of,
    error_text,
    is_everflow,
    place,
    writable,
)

E = TypeVar("E", bound=EverflowError)

# --- the user's line ------------------------------------------------------------------------------


_PYTHON = tuple({path for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))})
_MADE = ("<frozen ", "<string>", "<attrs ", "<__array_function__")
"""Code that has no file: Python's own, and what dataclasses and the like write."""
_WRITTEN = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE
)
_TEXT_WIDTH = 120


def innermost_line(error: BaseException) -> CodeLine | None:
    """The line of the user's program nearest to where ``error``, or its cause, was raised."""
    for one in chain(error):
        frames = [
            CodeLine(f.f_code.co_filename, line, f.f_code.co_name)
            for f, line in traceback.walk_tb(one.__traceback__)
        ]
        found = _innermost(reversed(frames))
        if found is not None:
            return found
    return None


def innermost_line_in(text: str) -> CodeLine | None:
    """`innermost_line` of a worker's last traceback or of what Python's faulthandler wrote."""
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


def line_text(line: CodeLine) -> str:
    """``file:line in function: text of that line``."""
    text = linecache.getline(line.file, line.line).strip()
    cut = text if len(text) <= _TEXT_WIDTH else f"{text[:_TEXT_WIDTH]}..."
    return place(f"{line.file}:{line.line}") + f" in {line.function}" + (f": {cut}" if cut else "")


def _innermost(frames: Iterable[CodeLine]) -> CodeLine | None:
    """``frames``: innermost first. An installed package's function counts if nothing else does."""
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


# --- records --------------------------------------------------------------------------------------


Sources = Sequence[Source]
"""The sources of a plan, by their indexes."""


def record_at(
    batch: EdgeBatch,
    row: int,
    sources: Sources,
    node: str | None = None,
) -> BadRecord:
    """The input record of a row; ``node``: that failed on it, by default its source's."""
    source = sources[int(batch.source[row])]
    log = source.log(int(batch.partition[row]))
    return BadRecord(*log, int(batch.offset[row]), node or source.node)


class Located(Protocol):
    """An operator of a step: its node and the line of the user's program that made it."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str | None: ...


class RecordFailure(EverflowError):
    """A record that the user's code or serde cannot take; the error is chained. ``failure``: which
    (None: it fails with none alone), where and why. ``others``: more that fail there."""

    code = "EF-RECORD"
    others: tuple[RecordFailure, ...] = ()
    before_state = False
    """Whether no operator had read a store before in the batch."""
    ends: Mapping[TopicPartition, int] | None = None
    """See `CallsEnded`."""
    searchable = False
    """Whether it may fail on others, too, or on another record: checked stores are to tell."""

    def __init__(
        self,
        record: BadRecord | None,
        where: str | None,
        error: BaseException,
        hint: str = "",
        stage: str = PROCESSING,
    ) -> None:
        self.failure = BatchFailure(
            kind="other" if record is None else "record",
            error=error_text(error) + hint,
            code=None if record is None else self.code,
            record=record,
            line=innermost_line(error),
            where=() if where is None else (where,),
            stage=stage,
            exception=class_of(error),
        )
        super().__init__(self.failure.error)
        self.__cause__ = error


class FailedRows(Exception):
    """``rows``: those that fail, and how. Never shown to users."""

    def __init__(self, rows: Mapping[int, BaseException]) -> None:
        super().__init__(len(rows))
        self.rows = rows


class CallsEnded(Exception):
    """The batch is to end at these offsets: before the first record of each partition that was not
    called, since the time for calls is over (note 070). Never shown to users."""

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        super().__init__(dict(ends))
        self.ends = ends


class MoreRecords(Exception):
    """No call of the batch can be committed yet, and records have come whose calls may begin: it is
    run again with them (note 070). Never shown to users."""


class DescribedFailure(EverflowError):
    """Ends a micro-batch whose ``failure`` is described already. Never shown to users."""

    def __init__(self, failure: BatchFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class SparkSays(DescribedFailure):
    """Spark's code failed: ``text`` is the JVM's. ``record``: for which a Column fails, if
    known."""

    def __init__(self, text: str, record: BadRecord | None, where: tuple[str, ...]) -> None:
        found = failure_of_text(text[:MOST_DETAILS], where)
        super().__init__(replace(found, record=record if found.kind == "column" else None))


class UndecodableRecord(DescribedFailure):
    """A record whose bytes its source's serde does not read is to stop the application."""

    code = "EF-RECORD"

    def __init__(self, letters: EdgeBatch, sources: Sources) -> None:
        """Names the first record in merge order."""
        row = int(np.argmin(letters.seq))
        text = f"DeserializationError: {letters.value[row].as_py()['error']}"[:MOST_TEXT]
        super().__init__(
            BatchFailure(
                kind="undecodable",
                error=text,
                code=self.code,
                record=record_at(letters, row, sources),
                stage=DESERIALIZATION,
            )
        )


def raise_all(failures: Sequence[RecordFailure]) -> NoReturn:
    failures[0].others = tuple(failures[1:])
    raise failures[0] from failures[0].__cause__


@dataclass(frozen=True)
class Failures:
    """The records of ``batch`` on which ``op`` fails, by row. Unless ``every`` one is wanted, the
    first is raised as it is added."""

    op: Located
    sources: Sources
    batch: EdgeBatch
    every: bool = False
    found: dict[int, RecordFailure] = field(default_factory=dict)

    def add(self, row: int, error: BaseException) -> None:
        """``error``: of the user's code. RecordFailure, and what is not the user's."""
        require_users(error)
        self.found[row] = self._failure(row, error)
        if not self.every:
            self.raise_added()

    def raise_added(self) -> None:
        if self.found:
            raise_all(list(self.found.values()))

    def raise_of(
        self,
        causes: Mapping[int, BaseException],
        stage: str = PROCESSING,
    ) -> NoReturn:
        raise_all([self._failure(*one, stage) for one in causes.items()])

    def _failure(
        self,
        row: int,
        error: BaseException,
        stage: str = PROCESSING,
    ) -> RecordFailure:
        hint = ""
        undecoded = pa.types.is_binary(self.batch.value.type)
        if undecoded and isinstance(error, TypeError | AttributeError):
            hint = f"\n  {UNDECODED}"
        elif type(error).__module__.startswith("pyspark.errors"):
            hint = f"\n  {COLUMN_IN_FUNCTION}"
        record = record_at(self.batch, row, self.sources, self.op.name)
        return RecordFailure(record, self.op.where, error, hint, stage)


# --- what a worker reports ------------------------------------------------------------------------


MOST_DETAILS = 20_000

# The first class that fits decides.
_KINDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (GenerationChanged, "generation"),
    (TaskMigratedError, "migrated"),
    (LogStartMovedError, "data-loss"),
    (DamagedEntryError, "damaged"),
    ((RetriableError, UnknownOutcomeError, StoreMismatchError), "retriable"),
    (FatalError, "fatal"),
    ((MemoryError, pa.ArrowMemoryError), "worker"),
    (Exception, "other"),
)


def serde_outage(error: Exception) -> RetriableError | None:
    """The error to raise where a serde of the user got no answer from a service (a schema
    registry), else None, also where it is that error already. The batch then waits, whatever the
    handlers say: no record is at fault."""
    record = error.failure.record if isinstance(error, RecordFailure) else None
    written = isinstance(error, RecordFailure) and error.failure.stage == PRODUCTION
    if isinstance(error, RetriableError) or not is_outage(error):
        return None
    if not (written or any(isinstance(one, SerdeError) for one in chain(error))):
        return None
    where = [] if record is None else [TopicPartition(record.topic, record.partition)]
    away = RetriableError(
        f"A serde gets no answer that would tell what is to be written or read: "
        f"{writable(str(error))}",
        where,
    )
    return of_connector(away, getattr(error, "connector", ""))


def stack_of(error: BaseException) -> str:
    """Stack and message, as Python prints them; the end of it where it is long."""
    return writable("".join(traceback.format_exception(error)))[-MOST_DETAILS:]


def failure_of(error: Exception) -> BatchFailure:
    details = stack_of(error)
    if isinstance(error, RecordFailure | DescribedFailure):
        return replace(error.failure, details=error.failure.details or details)
    kind = next(kind for classes, kind in _KINDS if isinstance(error, classes))
    own = isinstance(error, EverflowError)
    if isinstance(error, RecordTooLargeError | RecordRefusedError) and error.place is not None:
        return BatchFailure(
            kind=kind,
            error=str(error),
            code=error.code,
            record=BadRecord(*error.place),
            details=details,
            stage=PRODUCTION,
            exception=class_of(error),
            also=tuple(map(failure_of, getattr(error, "others", ()))),
        )
    return BatchFailure(
        kind=kind,
        error=writable(str(error)) if own else error_text(error),
        code=getattr(error, "code", None) if own else None,
        line=innermost_line(error),
        details=details,
        partitions=tuple(sorted(error.partitions)) if isinstance(error, RetriableError) else (),
        entry=BadEntry.of(error) if isinstance(error, DamagedEntryError) else None,
        connector=error.connector if isinstance(error, EverflowError) else "",
    )


def of_connector(error: E, connector: str) -> E:
    """The same error, which says which connector has raised it."""
    if isinstance(error, RecordFailure | DescribedFailure):
        error.failure = replace(error.failure, connector=connector)
    error.connector = connector
    return error


# --- Spark's text ---------------------------------------------------------------------------------


_WORKER = re.compile(
    r"Python worker exited unexpectedly|Python worker process terminated|OutOfMemoryError"
)
_COLUMN = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] .*?SQLSTATE: (?:22|P0)", re.DOTALL
)
"""Spark's own error classes; SQLSTATE 22 is "data exception": what ANSI rules refuse, P0 what the
user's raise_error says."""
_SILENCED = re.compile(r' If necessary set "?spark\.sql\.ansi\.enabled.*?bypass this error\.')
_EXCEPTION = re.compile(r"^(?:[\w$]+\.)+[\w$]*(?:Exception|Error|Throwable): ")
_STACK = re.compile(r"^\s+at |^\s*\.\.\. \d+ more|^Driver stacktrace:")


def failure_of_text(text: str, columns: Sequence[str] = ()) -> BatchFailure:
    """The failure of a failed job's text. ``columns``: the lines of the program whose Columns it
    ran."""
    if _WORKER.search(text):
        return BatchFailure(
            kind="worker",
            error=_death(text) if "Python worker" in text else says(text),
            line=innermost_line_in(text),
            details=text,
        )
    if _COLUMN.search(text):
        return BatchFailure(
            kind="column",
            error=f"A Column cannot be computed: {says(text)}",
            where=tuple(columns),
            details=text,
        )
    return BatchFailure(
        kind="other",
        error=says(text),
        line=innermost_line_in(text),
        details=text,
    )


def says(text: str) -> str:
    """The last line of a Python traceback, or the deepest cause of a Java one."""
    _, found, traceback = text.rpartition("Traceback (most recent call last)")
    if found:
        after = [line for line in traceback.splitlines()[1:] if line[:1].strip()]
        if after:
            return _tidy(after[0].removeprefix("everflow.errors."))
    causes = []
    for block in re.split(r"^Caused by: ", text, flags=re.MULTILINE):
        lines = [
            line.strip().removeprefix(": ")
            for line in block.splitlines()
            if line.strip() and not _STACK.match(line)
        ]
        causes.append(
            [
                line
                for line in lines
                if not line.startswith(("An error occurred while calling", "py4j."))
            ]
        )
    said = [lines[0] for lines in causes if lines and "EOFException" not in lines[0]]
    return _tidy(said[-1]) if said else "Spark's job failed and does not say why"


def _tidy(line: str) -> str:
    line = line.rpartition("executor driver): ")[2] or line
    line = _EXCEPTION.sub("", line.strip())
    return _SILENCED.sub("", line).partition(" SQLSTATE: ")[0].strip()


def _death(text: str) -> str:
    _, found, fatal = text.partition("Fatal Python error: ")
    how = (
        fatal.partition("\n")[0].strip()
        if found
        else "no trace of why: killed (out of memory?), or ended by os._exit"
    )
    return f"A Python worker process died ({how})"
