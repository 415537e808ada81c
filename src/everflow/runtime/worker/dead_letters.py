"""Writes the records that a micro-batch leaves out, as Kafka Streams does (KIP-1034).

A letter is larger than its record, by what it tells of the error: where its topic does not take
it, what matters least goes first. The place of the record stays: it can be read where it came from.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from everflow.errors import RecordRefusedError, RecordTooLargeError
from everflow.handlers import Response
from everflow.kafka.letter_headers import EXCEPTION, KAFKA_STREAMS, OWN, Header, of_the_record
from everflow.records import Bytes, EdgeBatch, Int64, listed_headers
from everflow.runtime.commit.batch import LetterGroup
from everflow.runtime.step.step_functions import UndecodableRecord
from everflow.runtime.step.task_step import StepResult
from everflow.topology.plan import Source

PARTS_LEFT_OUT = f"{OWN}left.out"
"""Header of a letter that has not all of its record: which parts, and how large they were."""
LEFT_OUT = "failed"
"""Why a node dropped records that their handler left out without a dead letter."""
MOST_TOLD = 5
_STACK, _MESSAGE = f"{KAFKA_STREAMS}stacktrace", f"{KAFKA_STREAMS}message"
_MESSAGE_KEPT = 200
"""Bytes of the error's message that are worth more than the record's value."""
_BATCH, _RECORD, _HEADER = 61, 40, 10
"""Bytes of a batch's header, which count for a topic's limit; what lengths and numbers of a record
and of one of its headers take at most."""


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
    to tell of the first few of all, and of calls of clocks. UndecodableRecord where one is to stop
    the application."""
    letters, told = result.dead_letters, result.left_out[:MOST_TOLD]
    if letters is None:
        return told
    fatal = _with(letters, Response.FAIL)
    if len(fatal):
        raise UndecodableRecord(fatal, sources)
    result.letters = letter_groups(letters, sources)
    result.dead_letters = _with(letters, Response.DEAD_LETTER)
    for about in _abouts(_with(letters, Response.CONTINUE)):
        reasons = result.dropped.setdefault(about["node"], {})
        reasons[LEFT_OUT] = reasons.get(LEFT_OUT, 0) + 1
    topics = {source.index: source.topic for source in sources}
    return told + [
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


class Letter(NamedTuple):
    """A record of a dead letter topic. ``headers``: the record's own, then what is told."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def size(self) -> int:
        """Bytes of a batch that has nothing else; rather too many."""
        headers = sum(
            len(name.encode()) + len(data or b"") + _HEADER for name, data in self.headers
        )
        return _BATCH + _RECORD + len(self.key or b"") + len(self.value or b"") + headers

    def said(self, name: str) -> str:
        """What a header tells; empty where there is none."""
        found = next((data for header, data in reversed(self.headers) if header == name), None)
        return (found or b"").decode(errors="replace")

    def fitted(self, most: int) -> Letter:
        """In ``most`` bytes, if that is possible: stack and message are cut, then the value is left
        out, then the record's own headers, then its key."""
        letter = self
        for part in ("", "value", "headers", "key"):
            letter = letter._without(part)
            if (cut := letter._cut(most)) is not None:
                return cut
        return letter._telling(b"", b"")

    def _cut(self, most: int) -> Letter | None:
        """With the beginning of the message and the end of the stack; None where that is not
        enough."""
        message, stack = self.said(_MESSAGE).encode(), self.said(_STACK).encode()
        room = most - self._telling(b"", b"").size
        if room < min(len(message), _MESSAGE_KEPT):
            return None
        message = message[:room].decode(errors="ignore").encode()
        stack = stack[max(0, len(stack) - room + len(message)) :].decode(errors="ignore").encode()
        return self._telling(message, stack)

    def _telling(self, message: bytes, stack: bytes) -> Letter:
        told = {_MESSAGE: message, _STACK: stack}
        return self._replace(headers=[(name, told.get(name, data)) for name, data in self.headers])

    def _without(self, part: str) -> Letter:
        told = [one for one in self.headers if one[0].startswith((KAFKA_STREAMS, OWN))]
        own = [one for one in self.headers if not one[0].startswith((KAFKA_STREAMS, OWN))]
        size = {
            "value": len(self.value or b""),
            "headers": sum(len(name.encode()) + len(data or b"") for name, data in own),
            "key": len(self.key or b""),
        }.get(part, 0)
        if not size:
            return self
        before = self.said(PARTS_LEFT_OUT)
        note = f"{before}, {part} ({size:,} bytes)" if before else f"{part} ({size:,} bytes)"
        told = [one for one in told if one[0] != PARTS_LEFT_OUT]
        return Letter(
            None if part == "key" else self.key,
            None if part == "value" else self.value,
            [*([] if part == "headers" else own), *told, (PARTS_LEFT_OUT, note.encode())],
        )


class Letters(NamedTuple):
    """What goes to a dead letter topic; ``times`` in ms."""

    topic: str
    letters: Sequence[Letter]
    times: Int64

    @staticmethod
    def of(
        topic: str | None, left_out: EdgeBatch | None, sources: Sequence[Source], most: int | None
    ) -> Letters | None:
        """Of the records that a micro-batch leaves out, each in ``most`` bytes at most; None: there
        are none, or no topic."""
        if topic is None or left_out is None or not len(left_out):
            return None
        headers = letter_headers(left_out, {source.index: source.topic for source in sources})
        values = left_out.value.field("value").to_pylist()
        made = list(map(Letter, left_out.key.to_pylist(), values, headers))
        if most is not None:
            made = [letter.fitted(most) for letter in made]
        return Letters(topic, made, left_out.timestamp)

    def at(self, now_ms: int, refused: Collection[int]) -> Letters:
        """With this time where theirs is one of those that their topic has ``refused``: there it
        was nearer, or nobody had looked."""
        times = np.where(np.isin(self.times, list(refused)), now_ms, self.times)
        return self._replace(times=times.astype(np.int64))

    def write(self, writer: Writes) -> None:
        """Raw key and value with Kafka Streams' headers (KIP-1034), inside the transaction if there
        is one."""
        keys, values, headers = zip(*self.letters, strict=True)
        writer.write(self.topic, keys, values, self.times, None, headers)

    def smaller(self, error: RecordTooLargeError, most: int | None) -> int | None:
        """How large letters may be at the next attempt, after one of these was refused, where
        ``most`` was the bound so far; None: making them smaller does not help. ``error.limit`` is
        the topic's or the producer's, None: not known."""
        largest = max(letter.size for letter in self.letters)
        wanted = largest // 2 if error.limit is None else error.limit
        smallest = max(letter.fitted(0).size for letter in self.letters)
        if wanted >= largest or wanted < smallest or (most is not None and wanted >= most):
            return None
        return wanted


@dataclass(kw_only=True)
class LetterAttempts:
    """The dead letters of a micro-batch, as their topic takes them: whole, and after it has refused
    some, smaller or with the time ``now_ms``."""

    topic: str | None
    left_out: EdgeBatch | None
    sources: Sequence[Source]
    now_ms: int
    _most: int | None = None
    _untimely: frozenset[int] = frozenset()

    def letters(self) -> Letters | None:
        """To write now; None: there are none, or no topic."""
        made = Letters.of(self.topic, self.left_out, self.sources, self._most)
        return made.at(self.now_ms, self._untimely) if made is not None and self._untimely else made

    def refused(
        self, letters: Letters | None, error: RecordTooLargeError | RecordRefusedError
    ) -> None:
        """One of ``letters`` was refused. Raises ``error`` where no other attempt helps."""
        if isinstance(error, RecordTooLargeError):
            self._most = None if letters is None else letters.smaller(error, self._most)
            if self._most is None:
                raise error
        elif not error.untimely or error.times <= self._untimely | {self.now_ms}:
            raise error
        else:
            self._untimely |= error.times


def letter_headers(
    letters: EdgeBatch, topics: dict[int, str]
) -> list[list[tuple[str, bytes | None]]]:
    """Of each: the record's own (`of_the_record`), then what is told of the error."""
    own = listed_headers(letters.headers, len(letters))
    made = []
    errors = letters.value.field("error").to_pylist()
    for row, about in enumerate(_abouts(letters)):
        told = {
            EXCEPTION: about["exception"],
            f"{KAFKA_STREAMS}message": errors[row],
            f"{KAFKA_STREAMS}stacktrace": about["stacktrace"],
            f"{KAFKA_STREAMS}topic": topics[int(letters.source[row])],
            f"{KAFKA_STREAMS}partition": str(int(letters.partition[row])),
            f"{KAFKA_STREAMS}offset": str(int(letters.offset[row])),
            **{f"{OWN}{name}": str(about[name]) for name in ("stage", "node", "task", "attempt")},
        }
        made.append(
            [*of_the_record(own[row]), *((name, text.encode()) for name, text in told.items())]
        )
    return made


def _with(letters: EdgeBatch, response: Response) -> EdgeBatch:
    said = letters.value.field("response").to_pylist()
    return letters.take(
        np.array([row for row, one in enumerate(said) if one == response.value], np.int64)
    )


def _abouts(letters: EdgeBatch) -> list[dict[str, Any]]:
    return [json.loads(text) for text in letters.value.field("about").to_pylist()]
