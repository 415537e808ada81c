"""Reads from Spark's text why a job failed: a worker that died, or a Column.

Only failures that no worker could tell come this way (`BatchFailure` is what workers say
themselves).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from everflow.runtime.commit.batch import BatchFailure
from everflow.runtime.step.user_line import innermost_line_in

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
    """The failure that a failed job's text tells of. ``columns``: the lines of the program whose
    Columns it ran."""
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
    return BatchFailure(kind="other", error=says(text), line=innermost_line_in(text), details=text)


def failure_of_said(said: BatchFailure) -> BatchFailure:
    """What a failure of kind ``spark-says`` is: the text that Spark's code gave in a step, read."""
    found = failure_of_text(said.error, said.where)
    return replace(found, record=said.record if found.kind == "column" else None)


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
