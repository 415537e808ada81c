"""Says why a micro-batch failed in a worker: by the error's class, never by its text."""

from __future__ import annotations

import traceback
from dataclasses import replace

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
from everflow.handlers import PRODUCTION, chain, is_outage
from everflow.records import TopicPartition
from everflow.runtime.commit.batch import BadEntry, BadRecord, BatchFailure
from everflow.runtime.step.step_functions import RecordFailure, UndecodableRecord
from everflow.runtime.step.user_line import innermost_line
from everflow.serdes import SerdeError
from everflow.user_program import class_of, error_text, writable

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


class DescribedFailure(EverflowError):
    """Ends a micro-batch whose ``failure`` is described already, such as a clock's call that stops
    the instance. Never shown to users."""

    def __init__(self, failure: BatchFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class SparkSays(EverflowError):
    """Spark's code failed inside a step: ``text`` is the JVM's, which the driver reads; ``record``
    the culprit where known."""

    def __init__(self, text: str, record: BadRecord | None, where: tuple[str, ...]) -> None:
        super().__init__(text.partition("\n")[0])
        self.failure = BatchFailure(
            kind="spark-says", error=text[:MOST_DETAILS], record=record, where=where
        )


def serde_outage(error: Exception) -> RetriableError | None:
    """What it means that a serde of the user got no answer from whom it asks (a schema registry,
    say), wherever it was to read or write; None where that is not why. No record is at fault, and
    no entry of a store: they are waited for, whatever the handlers say."""
    record = error.failure.record if isinstance(error, RecordFailure) else None
    written = isinstance(error, RecordFailure) and error.failure.stage == PRODUCTION
    if not (is_outage(error) and (written or any(isinstance(e, SerdeError) for e in chain(error)))):
        return None
    where = [] if record is None else [TopicPartition(record.topic, record.partition)]
    return RetriableError(
        f"A serde gets no answer that would tell what is to be written or read: "
        f"{writable(str(error))}",
        where,
    )


def stack_of(error: BaseException) -> str:
    """Stack and message, as Python prints them; the end of it where it is long."""
    return writable("".join(traceback.format_exception(error)))[-MOST_DETAILS:]


def failure_of(error: Exception) -> BatchFailure:
    """The failure that ``error`` stands for, with the user's line and the stack."""
    details = stack_of(error)
    if isinstance(error, RecordFailure | UndecodableRecord | DescribedFailure | SparkSays):
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
    )
