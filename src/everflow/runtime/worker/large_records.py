"""Which of a micro-batch's records was too large or refused: no client or broker says it all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.clock import instant
from everflow.errors import RecordRefusedError, RecordTooLargeError
from everflow.kafka.letter_headers import KAFKA_STREAMS, OWN
from everflow.records import EdgeBatch, Int64
from everflow.runtime.commit.batch import BatchRequest
from everflow.runtime.step.task_step import SinkOutput, StepResult
from everflow.runtime.worker.dead_letters import Letters
from everflow.topology.plan import Source

_KEY_SHOWN = 60
MOST_NAMED = 500
"""Records that are left to their handlers at once."""
ENTRY_OVERHEAD = 36
"""Lengths, times and numbers of a record without headers, as the writer counts them."""


class Written(NamedTuple):
    """A record as it was to be written: ``size`` of key, value and headers in bytes; ``origin`` in
    words."""

    topic: str
    size: int
    origin: str
    place: tuple[str, int, int, str] | None = None
    """Topic, partition, offset of the record that it was made of, and the node that made it; None
    for an entry of a store, and for a dead letter."""


class LetterTooLargeError(RecordTooLargeError):
    """It is a dead letter, which can be made smaller. Shown to users where it cannot."""


class LetterRefusedError(RecordRefusedError):
    """It is a dead letter, which can have another time. Shown to users where that does not
    help."""


def named(
    error: RecordTooLargeError,
    request: BatchRequest,
    result: StepResult,
    sources: Collection[Source],
    topic_limit: Callable[[str], int | None],
    letters: Letters | None,
) -> RecordTooLargeError:
    """``error`` with the record that it is about: the largest of those written to its topics.
    ``topic_limit`` asks the broker for a topic's ``max.message.bytes``."""
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
    sources: Collection[Source],
    letters: Letters | None = None,
) -> RecordRefusedError:
    """``error`` with the records that it is about: the outputs with those keys, values and times;
    else it may be a letter."""
    found = []
    for output in result.outputs:
        rows = np.flatnonzero(np.isin(output.batch.timestamp, list(error.times)))
        for row in rows.tolist():
            name = output.topics if isinstance(output.topics, str) else output.topics[row]
            known = (output.keys[row].as_py(), output.values[row].as_py())
            if name not in error.topics or (*known, _time(output, row)) not in error.records:
                continue
            place = (*_place(output.batch, row, sources), output.node)
            found.append(_made_of(error, name, place, _time(output, row)))
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
    error: RecordRefusedError, topic: str, place: tuple[str, int, int, str], time_ms: int
) -> RecordRefusedError:
    origin = f"made of record {place[0]}-{place[1]}@{place[2]}, by node {place[3]}"
    return RecordRefusedError(
        f"{error}\n  {origin}\n  {refused_cure(error, topic, time_ms)}",
        topics=error.topics,
        records=error.records,
        untimely=error.untimely,
        place=place,
    )


def refused_cure(error: RecordRefusedError, topic: str, time_ms: int) -> str:
    """What to do about a record for ``topic`` with this time."""
    again = "and start again: processing goes on where it stopped."
    if not error.untimely:
        return (
            f"Nothing of its micro-batch was written. A compacted topic takes no record without a "
            f"key: give it one, or leave such records out, {again}"
        )
    return (
        f"Nothing of its micro-batch was written. Its time is {time_ms} ms ({instant(time_ms)}), "
        f"and {topic} takes none so far from the broker's clock. Correct what says the time "
        f"(timestamp= of the source, or the clock of who wrote the record), or that setting of the "
        f"topic, {again}"
    )


def _time(output: SinkOutput, row: int) -> int:
    return int(output.batch.timestamp[row])


def _written(
    request: BatchRequest, result: StepResult, sources: Collection[Source], topics: Collection[str]
) -> Iterator[Written]:
    for output in result.outputs:
        yield from _outputs(output, sources, topics)
    places = {task.task: task.stores for task in request.tasks}
    for task, listed in result.changes.items():
        for changes in listed:
            topic = places[task][changes.store].changelog
            if topic not in topics or topic is None:
                continue
            row = max(
                range(len(changes)),
                key=lambda at: _size(changes.keys[at], changes.values[at]),
                default=None,
            )
            if row is not None:
                origin = (
                    f"the value of key {_short(changes.keys[row])} in store {changes.store}, "
                    f"partition {task.partition}"
                )
                yield Written(topic, _size(changes.keys[row], changes.values[row]), origin)


def times_of_entries(request: BatchRequest, result: StepResult, changelog: str) -> Int64:
    """Of all changes for a changelog topic, in ms."""
    places = {task.task: task.stores for task in request.tasks}
    found = [
        changes.timestamps
        for task, listed in result.changes.items()
        for changes in listed
        if places[task][changes.store].changelog == changelog
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def largest_entry(request: BatchRequest, result: StepResult, changelog: str) -> int:
    """Bytes of the largest change for a changelog topic, as the record that it is written as."""
    places = {task.task: task.stores for task in request.tasks}
    return max(
        (
            _size(key, value) + ENTRY_OVERHEAD
            for task, listed in result.changes.items()
            for changes in listed
            if places[task][changes.store].changelog == changelog
            for key, value in zip(changes.keys, changes.values, strict=True)
        ),
        default=0,
    )


def _letter(letters: Letters) -> Written:
    """The largest one."""
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
    output: SinkOutput, sources: Collection[Source], topics: Collection[str]
) -> Iterator[Written]:
    """The largest one."""
    count = len(output.batch)
    names = [output.topics] * count if isinstance(output.topics, str) else output.topics
    asked = np.array([name in topics for name in names], bool)
    if asked.any():
        sizes = _sizes(output.keys) + _sizes(output.values)
        row = int(np.where(asked, sizes, -1).argmax())
        topic, partition, offset = _place(output.batch, row, sources)
        origin = f"made of record {topic}-{partition}@{offset}, by node {output.node}"
        place = (topic, partition, offset, output.node)
        yield Written(names[row], int(sizes[row]), origin, place)


def _sizes(column: pa.Array) -> Int64:
    lengths = pc.fill_null(pc.binary_length(column.cast(pa.binary())), 0)
    found: Int64 = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _place(batch: EdgeBatch, row: int, sources: Collection[Source]) -> tuple[str, int, int]:
    topic = next(source.topic for source in sources if source.index == int(batch.source[row]))
    return topic, int(batch.partition[row]), int(batch.offset[row])


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")


def _short(key: bytes) -> str:
    return repr(key) if len(key) <= _KEY_SHOWN else f"{key[:_KEY_SHOWN]!r}..."
