"""Reads from Spark's text why a job failed: a worker that died, a Column, its Kafka reader.

Only failures that no worker could tell come this way (`BatchFailure` is what workers say
themselves).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from everflow.errors import RecordTimeError
from everflow.runtime.commit.batch import BatchFailure
from everflow.runtime.step.user_line import innermost_line_in
from everflow.runtime.worker.record_times import too_late

_KINDS = (
    (
        re.compile(
            r"Python worker exited unexpectedly|Python worker process terminated|OutOfMemoryError"
        ),
        "worker",
    ),
    (re.compile(r"OffsetOutOfRange|data may have been lost|KAFKA_DATA_LOSS"), "data-loss"),
    # Spark's reader waits so long for a record that is there: a broker or this machine is slow,
    # nothing is lost.
    (re.compile(r"Cannot fetch record for offset \d+ in \d+ milliseconds"), "timeout"),
    # Java's client, inside Spark's reader: these are the retriable ones of
    # org.apache.kafka.common.errors, and sockets that broke.
    (
        re.compile(
            r"kafka\.common\.errors\.(?:Timeout|Disconnect|Network|NotLeader|LeaderNotAvailable|UnknownTopicOrPartition|NotEnoughReplicas"
            r"|\w*Coordinator|CorruptRecord|KafkaStorage|\w*LeaderEpoch|OffsetNotAvailable|Retriable)\w*Exception"
            r"|java\.net\.(?:Connect|Socket|SocketTimeout|NoRouteToHost)Exception"
        ),
        "retriable",
    ),
)
_COLUMN = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] .*?SQLSTATE: (?:22|P0)", re.DOTALL
)
"""Spark's own error classes; SQLSTATE 22 is "data exception": what ANSI rules refuse, P0 what the
user's raise_error says."""
_SILENCED = re.compile(r' If necessary set "?spark\.sql\.ansi\.enabled.*?bypass this error\.')
_TIME_OVERFLOW = re.compile(
    r"long overflow.*?(?:millisToMicros|fromJavaTimestamp|KafkaRecordToRowConverter)", re.DOTALL
)
_EXCEPTION = re.compile(r"^(?:[\w$]+\.)+[\w$]*(?:Exception|Error|Throwable): ")
_STACK = re.compile(r"^\s+at |^\s*\.\.\. \d+ more|^Driver stacktrace:")


def failure_of_text(text: str, columns: Sequence[str] = ()) -> BatchFailure:
    """The failure that a failed job's text tells of. ``columns``: the lines of the program whose
    Columns it ran."""
    if _TIME_OVERFLOW.search(text):
        return BatchFailure(
            kind="fatal", error=str(too_late(None)), code=RecordTimeError.code, details=text
        )
    for pattern, kind in _KINDS:
        if pattern.search(text):
            died = "Python worker" in text and kind == "worker"
            return BatchFailure(
                kind=kind,
                error=_death(text) if died else says(text),
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
    return BatchFailure(kind="other", error=says(text), line=innermost_line_in(text), details=text)


def says(text: str) -> str:
    """What happened, in a sentence: of a Python traceback its last line, of a Java one the deepest
    cause that says something."""
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
    """Without stage and task numbers, Java class names and what users cannot act on."""
    line = line.rpartition("executor driver): ")[2] or line
    line = _EXCEPTION.sub("", line.strip())
    return _SILENCED.sub("", line).partition(" SQLSTATE: ")[0].strip()


def _death(text: str) -> str:
    """How a worker died, as far as it could say so itself."""
    _, found, fatal = text.partition("Fatal Python error: ")
    how = (
        fatal.partition("\n")[0].strip()
        if found
        else "no trace of why: killed (out of memory?), or ended by os._exit"
    )
    return f"A Python worker process died ({how})"
