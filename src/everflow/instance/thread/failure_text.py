"""Words failures of micro-batches: what happened, where, what to do."""

from __future__ import annotations

from everflow.errors import (
    BatchTimeoutError,
    ColumnError,
    DamagedEntryError,
    FatalError,
    PunctuatorError,
    RecordError,
    RecordRefusedError,
    RecordTimeError,
    RecordTooLargeError,
    RepeatedFailureError,
    StateDiskError,
    WorkerDiedError,
)
from everflow.handlers import PRODUCTION
from everflow.protocol.messages import BatchFailure
from everflow.user_program import place
from everflow.worker.failures import line_text

_NOTHING_WRITTEN = "Nothing of its micro-batch was written"
_GOES_ON = "start again: processing goes on where it stopped"
_CURES = {
    "record": (
        f"{_NOTHING_WRITTEN}. Correct the function, or let it handle such records, and {_GOES_ON}."
    ),
    "undecodable": f"{_NOTHING_WRITTEN}. Correct the source's serde, or name a topic for such "
    f"records in "
    f"errors.dead.letter.queue.topic.name, and {_GOES_ON}.",
    "column": f"{_NOTHING_WRITTEN}. Use the try_ variant of the function (F.try_divide, "
    f".try_cast), or filter such records out "
    f"before, and {_GOES_ON}.",
    "worker": "A function that crashes the interpreter (native code, os._exit) or needs too "
    "much memory ends it. "
    f"{_NOTHING_WRITTEN}. Correct the function, or lower max.memory.bytes, and {_GOES_ON}.",
    "hang": "Where the function loops without end or waits for another service, correct it, or "
    "give the call a time-out; where "
    f"such records just take long, raise max.poll.interval.ms. {_NOTHING_WRITTEN}; {_GOES_ON}.",
    "damaged": "No record of the input is to blame: none was left out, and nothing of the "
    "micro-batch was written. The store was rebuilt from its changelog, if it has one, and the "
    "entry is the same there: another program wrote it, or the store's serdes are no longer those "
    "that did. If the serdes were changed, take that back. Else stop all instances, write the "
    "right value of that key into that partition of the changelog (null removes the entry), and "
    f"{_GOES_ON}. A store without a changelog begins empty once its folder is deleted.",
    "other": f"{_NOTHING_WRITTEN}; the whole stack is in the log at level DEBUG.",
}
_SKIPPED = (
    f"To go on without such records, name a topic for them in errors.dead.letter.queue.topic.name, "
    f"or answer CONTINUE in a production.exception.handler; {_GOES_ON}."
)
_REFUSED = (
    f"{_NOTHING_WRITTEN}. Correct the value in front of the sink, or alter the sink's table. "
    f"{_SKIPPED}"
)
_UNWRITTEN = f"{_NOTHING_WRITTEN}. Correct the value or its serde. {_SKIPPED}"

_OF_CODES = (RecordTimeError, RecordTooLargeError, RecordRefusedError, StateDiskError)
_FATAL: dict[str, type[FatalError]] = {one.code: one for one in _OF_CODES}
_ENDINGS: dict[str, type[FatalError]] = {
    "column": ColumnError,
    "damaged": DamagedEntryError,
    "worker": WorkerDiedError,
    "hang": BatchTimeoutError,
}


def places(failure: BatchFailure) -> tuple[str, ...]:
    """A line each: the user's line that was running, and the operator's where it is another one."""
    line = failure.line
    found = [] if line is None else [f"at {line_text(line)}"]
    running = None if line is None else f"{line.file}:{line.line}"
    if others := [place(where) for where in failure.where if where != running]:
        what = "operator" if len(others) == 1 else "one of the operators"
        found.append(f"{what} added at {', '.join(others)}")
    return tuple(found)


def short(failure: BatchFailure) -> str:
    """One line for logs and the progress line: error, record, line of the program."""
    first = (failure.error.splitlines() or ["unknown"])[0]
    named = "" if failure.record is None else f" (record {failure.record})"
    line, where = failure.line, failure.where[0] if len(failure.where) == 1 else ""
    where = where if line is None else f"{line.file}:{line.line}"
    at = f" at {place(where)}" if where else ""
    return f"{first}{named}{at}"


def in_full(failure: BatchFailure) -> str:
    named = "" if failure.record is None else f" (record {failure.record})"
    return "\n  ".join([f"{failure.error}{named}", *_about(failure)])


def ending(failure: BatchFailure, times: int, records: str) -> FatalError:
    """The error that ends the instance. ``records``: the few of the batch, ``in-0@7``, or empty."""
    about = _about(failure)
    record = failure.record
    if record is not None and failure.kind not in ("column", "fatal"):
        return RecordError(
            failure.error,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            node=record.node,
            details=about,
        )
    if failure.kind == "fatal":
        text = "\n  ".join([failure.error, *places(failure)])
        if failure.code == PunctuatorError.code:
            return PunctuatorError(text, partitions=failure.partitions)
        return _FATAL.get(failure.code or "", FatalError)(text, code=failure.code)
    if failure.kind == "spark-gone":
        return FatalError(
            "Spark has ended (its JVM was killed or had no memory, or spark.stop() was called in "
            "this process), so this instance cannot go on; see its log file. "
            f"Nothing is lost: start the instance again. The error: {failure.error}"
        )
    if record is not None:
        records = str(record)
    often = [f"{times} times in a row"] if times > 1 else []
    often += [f"on {records}"] if records else []
    text = "\n  ".join(
        [f"{failure.error} ({', '.join(often)})" if often else failure.error, *about]
    )
    if failure.entry is not None:
        return failure.entry.error(text)
    return _ENDINGS.get(failure.kind, RepeatedFailureError)(text)


def _about(failure: BatchFailure) -> tuple[str, ...]:
    cure = _CURES.get(failure.kind)
    if failure.kind == "record" and failure.stage == PRODUCTION:
        cure = _REFUSED if failure.connector else _UNWRITTEN
    return (*places(failure), *filter(None, [cure]))
