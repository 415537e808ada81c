"""Writes the records that a micro-batch leaves out, as Kafka Streams does (KIP-1034)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from everflow.handlers.response import Response
from everflow.records import Bytes, EdgeBatch, Int64
from everflow.runtime.commit.batch import LetterGroup
from everflow.runtime.step.step_functions import UndecodableRecord
from everflow.runtime.step.task_step import StepResult
from everflow.topology.physical_plan import Source

KAFKA_STREAMS = "__streams.errors."
OWN = "__everflow.errors."
LEFT_OUT = "failed"
"""Why a node dropped records that their handler left out without a dead letter."""
MOST_TOLD = 5


class Writes(Protocol):
    """What takes records."""

    def write(
        self,
        topic: str,
        keys: Bytes,
        values: Bytes,
        timestamps: Int64,
        partition: int | Int64 | None = None,
        headers: Sequence[Any] | None = None,
    ) -> None:
        """See `RecordWriter.write`."""


def take_letters(result: StepResult, sources: Sequence[Source]) -> list[str]:
    """Leave those in ``dead_letters`` that are to be written, and count the others as dropped; what
    to tell of the first few of all. UndecodableRecord where one is to stop the application."""
    letters = result.dead_letters
    if letters is None:
        return []
    fatal = _with(letters, Response.FAIL)
    if len(fatal):
        raise UndecodableRecord(fatal, sources)
    result.letters = letter_groups(letters, sources)
    result.dead_letters = _with(letters, Response.DEAD_LETTER)
    for about in _abouts(_with(letters, Response.CONTINUE)):
        reasons = result.dropped.setdefault(about["node"], {})
        reasons[LEFT_OUT] = reasons.get(LEFT_OUT, 0) + 1
    topics = {source.index: source.topic for source in sources}
    return [
        f"{topics[int(letters.source[row])]}-{int(letters.partition[row])}"
        f"@{int(letters.offset[row])} ({letters.value[row].as_py()['error'].splitlines()[0]:.300})"
        for row in range(min(len(letters), MOST_TOLD))
    ]


def letter_groups(letters: EdgeBatch, sources: Sequence[Source]) -> list[LetterGroup]:
    """By cause, in the order of the first record of each."""
    topics = {source.index: source.topic for source in sources}
    errors = letters.value.field("error").to_pylist()
    found: dict[tuple[str, str, str], LetterGroup] = {}
    for row, about in enumerate(_abouts(letters)):
        cause = (str(about["exception"]), str(about["node"]), topics[int(letters.source[row])])
        if (group := found.get(cause)) is not None:
            found[cause] = group._replace(records=group.records + 1)
            continue
        place = f"{cause[2]}-{int(letters.partition[row])}@{int(letters.offset[row])}"
        error = (errors[row] or "").partition("\n")[0]
        found[cause] = LetterGroup(*cause, 1, f"{place} ({error:.300})")
    return list(found.values())


def write_dead_letters(
    writer: Writes, topic: str, letters: EdgeBatch, sources: Sequence[Source]
) -> int:
    """Raw key and value with Kafka Streams' headers (KIP-1034), inside the transaction if there is
    one. How many."""
    if not len(letters):
        return 0
    values = letters.value.to_pylist()
    headers = letter_headers(letters, {source.index: source.topic for source in sources})
    raw = [value["value"] for value in values]
    writer.write(topic, letters.key.to_pylist(), raw, letters.timestamp, None, headers)
    return len(values)


def letter_headers(
    letters: EdgeBatch, topics: dict[int, str]
) -> list[list[tuple[str, bytes | None]]]:
    """Of each: the record's own, then what is told of the error."""
    own = headers_in(letters) if letters.headers is not None else [[] for _ in range(len(letters))]
    made = []
    errors = letters.value.field("error").to_pylist()
    for row, about in enumerate(_abouts(letters)):
        told = {
            f"{KAFKA_STREAMS}exception": about["exception"],
            f"{KAFKA_STREAMS}message": errors[row],
            f"{KAFKA_STREAMS}stacktrace": about["stacktrace"],
            f"{KAFKA_STREAMS}topic": topics[int(letters.source[row])],
            f"{KAFKA_STREAMS}partition": str(int(letters.partition[row])),
            f"{KAFKA_STREAMS}offset": str(int(letters.offset[row])),
            **{f"{OWN}{name}": str(about[name]) for name in ("stage", "node", "task", "attempt")},
        }
        made.append([*own[row], *((name, text.encode()) for name, text in told.items())])
    return made


def headers_in(batch: EdgeBatch) -> list[list[tuple[str, bytes | None]]]:
    """Of a batch that has any."""
    assert batch.headers is not None
    return [
        [(header["key"], header["value"]) for header in row] if row else []
        for row in batch.headers.to_pylist()
    ]


def _with(letters: EdgeBatch, response: Response) -> EdgeBatch:
    said = letters.value.field("response").to_pylist()
    return letters.take(
        np.array([row for row, one in enumerate(said) if one == response.value], np.int64)
    )


def _abouts(letters: EdgeBatch) -> list[dict[str, Any]]:
    return [json.loads(text) for text in letters.value.field("about").to_pylist()]
