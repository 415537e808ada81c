"""Writes the records that a micro-batch leaves out, as Kafka Streams does (KIP-1034), and finds the
record that was too large or refused: no client or broker says it all.

A letter is larger than its record: where its topic does not take it, what matters least goes first,
and the place of the record stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.clock import instant
from everflow.errors import RecordRefusedError, RecordTooLargeError
from everflow.handlers import Handlers, Response
from everflow.kafka.letter_headers import EXCEPTION, KAFKA_STREAMS, OWN, Header, of_the_record
from everflow.kafka.reading.record_columns import LogColumns
from everflow.protocol.messages import BadRecord, BatchRequest, LetterGroup
from everflow.records import (
    Bytes,
    EdgeBatch,
    Int64,
    StoreChanges,
    TaskId,
    TopicPartition,
    listed_headers,
)
from everflow.state.left_out import as_written
from everflow.topology.sources import Source
from everflow.worker.decode import Judge, decoded_records, raw_records
from everflow.worker.failures import Sources, UndecodableRecord, record_at
from everflow.worker.task_step import SinkOutput, StepResult

# --- dead letters ---------------------------------------------------------------------------------


PARTS_LEFT_OUT = f"{OWN}left.out"
"""Header of a letter that has not all of its record: which parts, and how large they were."""
LEFT_OUT = "failed"
"""Why a node dropped records that their handler left out without a dead letter."""
MOST_SHOWN = 5
_STACK, _MESSAGE = f"{KAFKA_STREAMS}stacktrace", f"{KAFKA_STREAMS}message"
_MESSAGE_KEPT = 200
"""Bytes of the error's message that are worth more than the record's value."""
_BATCH, _RECORD, _HEADER = 61, 40, 10
"""Bytes of the head of a batch (it counts for a topic's limit), a record and a header, at most."""


Columns = tuple[str, Bytes, Bytes, Int64, int | Int64 | None, Sequence[Any] | None]
"""What `RecordWriter.write` takes: a topic; keys, values and times; partitions; headers."""


def take_letters(result: StepResult, sources: Sources) -> list[str]:
    """Leaves those in ``dead_letters`` that are to be written, counts the others as dropped, and
    returns lines about the first few of all, and about calls of clocks. UndecodableRecord for one
    that is to stop the application."""
    letters, lines = result.dead_letters, result.left_out[:MOST_SHOWN]
    if letters is None:
        return lines
    fatal = _with(letters, Response.FAIL)
    if len(fatal):
        raise UndecodableRecord(fatal, sources)
    result.letters = letter_groups(letters, sources)
    result.dead_letters = _with(letters, Response.DEAD_LETTER)
    for about in _abouts(_with(letters, Response.CONTINUE)):
        reasons = result.dropped.setdefault(about["node"], {})
        reasons[LEFT_OUT] = reasons.get(LEFT_OUT, 0) + 1
    return lines + [
        f"{record_at(letters, row, sources)} "
        f"({letters.value[row].as_py()['error'].splitlines()[0]:.300})"
        for row in range(min(len(letters), MOST_SHOWN))
    ]


def letter_groups(letters: EdgeBatch, sources: Sources) -> list[LetterGroup]:
    errors = letters.value.field("error").to_pylist()
    found: dict[tuple[str, str, str], LetterGroup] = {}
    for row, about in enumerate(_abouts(letters)):
        record = record_at(letters, row, sources)
        cause = (str(about["exception"]), str(about["node"]), record.topic)
        if (group := found.get(cause)) is not None:
            found[cause] = group._replace(records=group.records + 1)
            continue
        error = (errors[row] or "").partition("\n")[0]
        found[cause] = LetterGroup(*cause, 1, f"{record} ({error:.300})")
    return list(found.values())


class Letter(NamedTuple):
    """A record of a dead letter topic. ``headers``: the record's own, then those about the
    error."""

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
        found = next((data for header, data in reversed(self.headers) if header == name), None)
        return (found or b"").decode(errors="replace")

    def fitted(self, most: int) -> Letter:
        """In ``most`` bytes if possible: stack and message cut, then no value, headers, key."""
        letter = self
        for part in ("", "value", "headers", "key"):
            letter = letter._without(part)
            if (cut := letter._cut(most)) is not None:
                return cut
        return letter._with_texts(b"", b"")

    def _cut(self, most: int) -> Letter | None:
        """With the beginning of the message and the end of the stack; None where that is not
        enough."""
        message, stack = self.said(_MESSAGE).encode(), self.said(_STACK).encode()
        free = most - self._with_texts(b"", b"").size
        if free < min(len(message), _MESSAGE_KEPT):
            return None
        message = message[:free].decode(errors="ignore").encode()
        stack = stack[max(0, len(stack) - free + len(message)) :].decode(errors="ignore").encode()
        return self._with_texts(message, stack)

    def _with_texts(self, message: bytes, stack: bytes) -> Letter:
        texts = {_MESSAGE: message, _STACK: stack}
        return self._replace(headers=[(name, texts.get(name, data)) for name, data in self.headers])

    def _without(self, part: str) -> Letter:
        about = [one for one in self.headers if one[0].startswith((KAFKA_STREAMS, OWN))]
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
        about = [one for one in about if one[0] != PARTS_LEFT_OUT]
        return Letter(
            None if part == "key" else self.key,
            None if part == "value" else self.value,
            [*([] if part == "headers" else own), *about, (PARTS_LEFT_OUT, note.encode())],
        )


@dataclass
class Letters:
    """The dead letters of a micro-batch; after their topic has refused some, smaller or with the
    time ``now_ms``. ``times`` in ms."""

    topic: str
    letters: Sequence[Letter]
    times: Int64
    now_ms: int
    _refused_times: frozenset[int] = frozenset()

    @staticmethod
    def of(
        topic: str | None, left_out: EdgeBatch | None, sources: Sources, now_ms: int
    ) -> Letters | None:
        """The letters of the records that a batch leaves out; None: there are none, or no topic."""
        if topic is None or left_out is None or not len(left_out):
            return None
        headers = letter_headers(left_out, sources)
        values = left_out.value.field("value").to_pylist()
        made = list(map(Letter, left_out.key.to_pylist(), values, headers))
        return Letters(topic, made, left_out.timestamp, now_ms)

    def columns(self) -> Columns:
        """Raw key and value with Kafka Streams' headers (KIP-1034)."""
        keys, values, headers = zip(*self.letters, strict=True)
        return self.topic, keys, values, self.times, None, headers

    def refused(self, error: RecordTooLargeError | RecordRefusedError) -> None:
        """Changes the letters after one was refused. Raises ``error`` where no other attempt
        helps."""
        if isinstance(error, RecordTooLargeError):
            largest = max(letter.size for letter in self.letters)
            wanted = largest // 2 if error.limit is None else error.limit
            smallest = max(letter.fitted(0).size for letter in self.letters)
            if wanted >= largest or wanted < smallest:
                raise error
            self.letters = [letter.fitted(wanted) for letter in self.letters]
        elif not error.untimely or error.times <= self._refused_times | {self.now_ms}:
            raise error
        else:
            self._refused_times |= error.times
            early = np.isin(self.times, list(error.times))
            self.times = np.where(early, self.now_ms, self.times).astype(np.int64)


def letter_headers(letters: EdgeBatch, sources: Sources) -> list[list[Header]]:
    """The headers of each letter: the record's own (`of_the_record`), then those about the
    error."""
    own = listed_headers(letters.headers, len(letters))
    made = []
    errors = letters.value.field("error").to_pylist()
    for row, about in enumerate(_abouts(letters)):
        record = record_at(letters, row, sources)
        texts = {
            EXCEPTION: about["exception"],
            f"{KAFKA_STREAMS}message": errors[row],
            f"{KAFKA_STREAMS}stacktrace": about["stacktrace"],
            f"{KAFKA_STREAMS}topic": record.topic,
            f"{KAFKA_STREAMS}partition": str(record.partition),
            f"{KAFKA_STREAMS}offset": str(record.offset),
            **{f"{OWN}{name}": str(about[name]) for name in ("stage", "node", "task", "attempt")},
        }
        made.append(
            [*of_the_record(own[row]), *((name, text.encode()) for name, text in texts.items())]
        )
    return made


def _with(letters: EdgeBatch, response: Response) -> EdgeBatch:
    said = letters.value.field("response").to_pylist()
    return letters.take(
        np.array([row for row, one in enumerate(said) if one == response.value], np.int64)
    )


def _abouts(letters: EdgeBatch) -> list[dict[str, Any]]:
    return [json.loads(text) for text in letters.value.field("about").to_pylist()]


# --- records of global tables ---------------------------------------------------------------------


FLUSH_TIMEOUT_S = 60.0
KEYLESS = "null-key"
"""Why a record enters no table."""


@dataclass(frozen=True)
class TakenRecords:
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Int64
    next_position: int
    records: int


Left = Callable[[int, Mapping[str, Mapping[str, int]], Sequence[LetterGroup], Sequence[str]], None]
"""Takes the records that did not enter the store: the number of dead letters; others by node and
reason; those that their handler left out, by cause, and the first few in a line each."""


class LetterWriter(Protocol):
    """The part of a `RecordWriter` that dead letters need."""

    def begin(self) -> None: ...
    def write(
        self,
        topic: str,
        keys: Bytes,
        values: Bytes,
        timestamps: Int64,
        partition: int | Int64 | None = None,
        headers: Sequence[Any] | None = None,
    ) -> None: ...
    def send(self) -> None: ...
    def flush(self, timeout_s: float) -> None: ...


@dataclass(frozen=True)
class GlobalRecords:
    """Decides which records enter global tables: those that can be read. Others are dead letters,
    which each instance sends, as each reads the topic. ``tell``: counts what is left out."""

    sources: Mapping[str, Source]
    handlers: Handlers
    writer: Callable[[], LetterWriter]
    tell: Left = lambda *_: None

    def taken(
        self, tp: TopicPartition, found: LogColumns, next_position: int, records: int
    ) -> TakenRecords:
        """The records that enter the store. UndecodableRecord stops the application,
        RetriableError."""
        source = self.sources[tp.topic]
        partitions = np.full(len(found), tp.partition, np.int32)
        batch = raw_records(found, source, partitions, np.arange(len(found), dtype=np.int64))
        good, bad = decoded_records(source, batch, Judge(self.handlers), unread=found.unread)
        if len(bad) or good.key.null_count:
            self._leave_out(bad, good.key.null_count, source)
        raw = found.values
        values = [raw[int(row)].as_py() for row in good.seq] if len(bad) else raw.to_pylist()
        return TakenRecords(
            source.key_serde.encode_array(good.key).to_pylist(),
            as_written(values, source.value_serde),
            good.timestamp,
            next_position,
            records,
        )

    def _leave_out(self, bad: EdgeBatch, keyless: int, source: Source) -> None:
        result = StepResult(dead_letters=bad if len(bad) else None)
        lines = take_letters(result, (source,))
        sent = self._sent(result, source)
        if keyless:
            result.dropped.setdefault(source.node, {})[KEYLESS] = keyless
        self.tell(sent, result.dropped, result.letters, lines)

    def _sent(self, result: StepResult, source: Source) -> int:
        now_ms = int(time.time() * 1000)
        letters = Letters.of(self.handlers.topic, result.dead_letters, (source,), now_ms)
        if letters is None:
            return 0
        while True:
            writer = self.writer()
            writer.begin()
            try:
                writer.write(*letters.columns())
                writer.send()
                writer.flush(FLUSH_TIMEOUT_S)
                return len(letters.letters)
            except (RecordTooLargeError, RecordRefusedError) as error:
                letters.refused(error)


# --- records that were too large or refused -------------------------------------------------------


_KEY_SHOWN = 60
MOST_NAMED = 500
"""Records that are left to their handlers at once."""
ENTRY_OVERHEAD = 36
"""Lengths, times and numbers of a record without headers, as the writer counts them."""


class Written(NamedTuple):
    """A record as it was to be written: ``size`` of key and value in bytes; ``origin`` in words."""

    topic: str
    size: int
    origin: str
    place: tuple[str, int, int, str] | None = None
    """Topic, partition, offset of its record, and the node; None for an entry or a dead letter."""


class LetterTooLargeError(RecordTooLargeError):
    """It is a dead letter, which can be made smaller. Shown to users where it cannot."""


class LetterRefusedError(RecordRefusedError):
    """It is a dead letter, which can have another time. Shown to users where that does not help."""


def named(
    error: RecordTooLargeError,
    request: BatchRequest,
    result: StepResult,
    sources: Sources,
    topic_limit: Callable[[str], int | None],
    letters: Letters | None,
) -> RecordTooLargeError:
    """``error`` with the record that it is about: the largest of those written to its topics."""
    candidates = [*_written(request, result, sources, error.topics)]
    letter = None
    if letters is not None and letters.topic in error.topics:
        letter = _letter(letters)
        candidates.append(letter)
    found = max(candidates, key=lambda one: one.size, default=None)
    if found is None:
        return error
    if error.limit is not None:
        limit, setting = (
            error.limit,
            "producer.message.max.bytes (and max.message.bytes of the topic, if that is smaller)",
        )
        taker = f"the producer sends (message.max.bytes={error.limit:,})"
    else:
        limit, setting = topic_limit(found.topic) or 0, f"max.message.bytes of {found.topic}"
        taker = f"the topic takes (max.message.bytes{f'={limit:,}' if limit else ''})"
    kind = LetterTooLargeError if found is letter else RecordTooLargeError
    return kind(
        f"A record for topic {found.topic} is too large: {found.size:,} bytes, more than {taker}\n "
        f" {found.origin}\n"
        f"  Nothing of its micro-batch was written. Raise {setting}, or make the record smaller, "
        f"and start again: processing goes "
        "on where it stopped.",
        topics=(found.topic,),
        limit=limit or None,
        place=found.place,
    )


def refused(
    error: RecordRefusedError,
    result: StepResult,
    sources: Sources,
    letters: Letters | None = None,
) -> RecordRefusedError:
    """``error`` with the records that it is about: the outputs with those keys, values and times;
    else it may be a letter."""
    found = []
    for output in result.outputs:
        rows = np.flatnonzero(np.isin(output.batch.timestamp, list(error.times)))
        for row in rows.tolist():
            name = output.topics if isinstance(output.topics, str) else output.topics[row]
            time_ms = int(output.batch.timestamp[row])
            known = (output.keys[row].as_py(), output.values[row].as_py(), time_ms)
            if name not in error.topics or known not in error.records:
                continue
            record = record_at(output.batch, row, sources, output.node)
            found.append(_made_of(error, name, record, time_ms))
            if len(found) == MOST_NAMED:
                break
    if found:
        found[0].others = tuple(found[1:MOST_NAMED])
        return found[0]
    if letters is not None and letters.topic in error.topics:
        return LetterRefusedError(
            str(error), topics=error.topics, records=error.records, untimely=error.untimely
        )
    return error


def _made_of(
    error: RecordRefusedError, topic: str, record: BadRecord, time_ms: int
) -> RecordRefusedError:
    origin = f"made of record {record}, by node {record.node}"
    return RecordRefusedError(
        f"{error}\n  {origin}\n  {refused_cure(error, topic, time_ms)}",
        topics=error.topics,
        records=error.records,
        untimely=error.untimely,
        place=(*record.place, record.node or ""),
    )


def refused_cure(error: RecordRefusedError, topic: str, time_ms: int) -> str:
    cure = (
        f"Its time is {time_ms} ms ({instant(time_ms)}), and {topic} takes none so far from the "
        f"broker's clock. Correct what says the time (timestamp= of the source, or the clock of "
        f"who wrote the record), or that setting of the topic"
        if error.untimely
        else "A compacted topic takes no record without a key: give it one, or leave such records "
        "out"
    )
    return (
        f"Nothing of its micro-batch was written. {cure}, and start again: processing goes on "
        f"where it stopped."
    )


def _written(
    request: BatchRequest, result: StepResult, sources: Sources, topics: Collection[str]
) -> Iterator[Written]:
    """The largest record of each output, and of the changes of each store."""
    for output in result.outputs:
        yield from _outputs(output, sources, topics)
    for topic, task, changes in changes_of(request, result, topics):
        sizes = list(map(_size, changes.keys, changes.values))
        if sizes:
            row = sizes.index(max(sizes))
            origin = (
                f"the value of key {_short(changes.keys[row])} in store {changes.store}, "
                f"partition {task.partition}"
            )
            yield Written(topic, sizes[row], origin)


def changes_of(
    request: BatchRequest, result: StepResult, topics: Collection[str] | None = None
) -> Iterator[tuple[str, TaskId, StoreChanges]]:
    """What is written to changelogs (``topics``: to these)."""
    places = {task.task: task.stores for task in request.tasks}
    for task, listed in result.changes.items():
        for changes in listed:
            topic = places[task][changes.store].changelog
            if topic is not None and (topics is None or topic in topics):
                yield topic, task, changes


def times_of_entries(request: BatchRequest, result: StepResult, changelog: str) -> Int64:
    found = [changes.timestamps for _, _, changes in changes_of(request, result, [changelog])]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def largest_entry(request: BatchRequest, result: StepResult, changelog: str) -> int:
    """Bytes of the largest change for a changelog topic, as the record that it is written as."""
    return max(
        (
            size + ENTRY_OVERHEAD
            for _, _, changes in changes_of(request, result, [changelog])
            for size in map(_size, changes.keys, changes.values)
        ),
        default=0,
    )


def _letter(letters: Letters) -> Written:
    one = max(letters.letters, key=lambda letter: letter.size)
    topic, partition, offset, error = (
        one.said(f"{KAFKA_STREAMS}{name}") for name in ("topic", "partition", "offset", "exception")
    )
    origin = (
        f"the dead letter of record {topic}-{partition}@{offset}, which failed at node "
        f"{one.said(f'{OWN}node')} with {error}"
    )
    return Written(letters.topic, one.size, origin)


def _outputs(
    output: SinkOutput,
    sources: Sources,
    topics: Collection[str],
) -> Iterator[Written]:
    count = len(output.batch)
    names = [output.topics] * count if isinstance(output.topics, str) else output.topics
    asked = np.array([name in topics for name in names], bool)
    if asked.any():
        sizes = _sizes(output.keys) + _sizes(output.values)
        row = int(np.where(asked, sizes, -1).argmax())
        record = record_at(output.batch, row, sources)
        origin = f"made of record {record}, by node {output.node}"
        yield Written(names[row], int(sizes[row]), origin, (*record.place, output.node))


def _sizes(column: pa.Array) -> Int64:
    lengths = pc.fill_null(pc.binary_length(column.cast(pa.binary())), 0)
    found: Int64 = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")


def _short(key: bytes) -> str:
    return repr(key) if len(key) <= _KEY_SHOWN else f"{key[:_KEY_SHOWN]!r}..."
