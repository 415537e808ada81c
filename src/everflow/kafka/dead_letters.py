"""Reads a topic of dead letters, and replays them, each once (note 043)."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from everflow.clock import instant
from everflow.config import StreamsConfig
from everflow.errors import ConfigError, EverflowError
from everflow.kafka.letter_headers import EXCEPTION, KAFKA_STREAMS, Header, sorted_out
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.logs import counted
from everflow.records import TopicPartition
from everflow.user_program import one_line, printable

REPLAYED_FROM = "__everflow.replayed.from"
"""Header of a record that was replayed: the place of its dead letter."""
REPLAYED = "__everflow.replayed"
"""Header, and the begin of the key, of what the dead letter topic gets in the same transaction: the
note which letter was replayed."""
AT_ONCE = 500
"""Letters in a transaction."""
AT_ONCE_BYTES = 8 << 20
"""The size of their keys and values together."""
_TIMEOUT_S = 30.0
_SILENT_S = 60.0
"""The brokers are away where nothing comes for so long."""
_FETCH_BYTES = 2 << 20
"""The size of a fetch: the topic may be read in an instance that is at work."""
_log = logging.getLogger(__name__)
SHOWN_BYTES, SHOWN_HEADERS, SHOWN_CHARACTERS = 1_000, 20, 10_000

_LONGEST_NUMBER = 19
Cause = tuple[str, str, str]
"""The cause of a dead letter: the error's class, the node, the source topic."""


class LetterPlace(NamedTuple):
    """The place of a letter in its topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"

    @staticmethod
    def parse(text: str) -> LetterPlace:
        """Inverse of ``str``. ConfigError for anything else."""
        partition, _, offset = text.partition("@")
        if not (_is_number(partition) and _is_number(offset)):
            raise ConfigError(f"{text!r} is no dead letter: write PARTITION@OFFSET, such as 0@17.")
        return LetterPlace(int(partition), int(offset))

    @property
    def note_key(self) -> bytes:
        return f"{REPLAYED}/{self}".encode()


class LetterAge(NamedTuple):
    """The time (ms) of a letter's record, and its source, as far as that is known."""

    source: str | None
    source_partition: int | None
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A record of a dead letter topic. Times in ms; ``own``: the record's own headers."""

    place: LetterPlace
    timestamp: int
    key: bytes | None
    value: bytes | None
    own: tuple[Header, ...]
    about: dict[str, str]
    """The headers about the error, by the ends of their names."""
    replayed: bool = False

    @property
    def is_plain(self) -> bool:
        """True if no header says anything of an error: it may be any topic's record."""
        return not self.about

    @property
    def origin(self) -> str:
        about = self.about
        return f"{about.get('topic')}-{about.get('partition')}@{about.get('offset')}"

    @property
    def source(self) -> str | None:
        """The topic it came from; None where no header says so: others write letters, too."""
        return self.about.get("topic") or None

    @property
    def parts_left_out(self) -> str:
        """The parts of its record that the topic did not take with it; empty: it is whole."""
        return self.about.get("left.out", "")

    @property
    def age(self) -> LetterAge:
        return LetterAge(self.source, self.source_partition, self.timestamp)

    @property
    def source_partition(self) -> int | None:
        text = self.about.get("partition", "")
        return int(text) if _is_number(text) else None

    @property
    def source_offset(self) -> int | None:
        text = self.about.get("offset", "")
        return int(text) if _is_number(text) else None

    @property
    def source_log(self) -> TopicPartition | None:
        """The partition it came from, as far as that is known."""
        partition = self.source_partition
        return (
            None
            if self.source is None or partition is None
            else TopicPartition(self.source, partition)
        )

    @property
    def error(self) -> str:
        message = self.about.get("message", "").partition("\n")[0]
        kind = self.about.get("exception", "")
        known = message.startswith(kind.rpartition(".")[2] + ":")
        return message if known else f"{kind}: {message}"

    @property
    def group(self) -> Cause:
        return (
            self.about.get("exception", "?"),
            self.about.get("node", "?") or "?",
            self.about.get("topic", "?"),
        )


@dataclass(frozen=True)
class Filter:
    """A selection of letters; None: all. ``error``: text in the error's class or message."""

    error: str | None = None
    source: str | None = None
    node: str | None = None
    places: frozenset[LetterPlace] = frozenset()

    def takes(self, letter: DeadLetter) -> bool:
        """True if it is one of them."""
        about = letter.about
        said = f"{about.get('exception', '')} {about.get('message', '')}"
        return (
            (self.error is None or self.error in said)
            and (self.source is None or self.source == about.get("topic"))
            and (self.node is None or self.node == about.get("node"))
            and (not self.places or letter.place in self.places)
        )


class RawLetter(NamedTuple):
    """A record of the topic."""

    place: LetterPlace
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def letter_of(record: RawLetter) -> DeadLetter:
    about, own = sorted_out(record.headers)
    return DeadLetter(
        place=record.place,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        own=tuple(own),
        about=about,
    )


def _with_notes(records: Iterable[RawLetter]) -> Iterator[RawLetter | LetterPlace]:
    """The records of a topic, and in place of each note which letter was replayed. One that has the
    mark of a note and is none is passed over: what a record says of itself moves no other letter.
    """
    unread: list[LetterPlace] = []
    for record in records:
        names = {name for name, _ in record.headers}
        if EXCEPTION in names or REPLAYED not in names:
            yield record
        elif (place := _noted(record)) is not None:
            yield place
        else:
            unread.append(record.place)
    if unread:
        _log.warning(
            "%s with the header %s that %s no note of a replay: passed over, %s first",
            counted(len(unread), "record"),
            REPLAYED,
            "is" if len(unread) == 1 else "are",
            unread[0],
        )


def _noted(note: RawLetter) -> LetterPlace | None:
    """The letter that a note is about: its key names the letter, too, and it stands behind it."""
    said = next(data or b"" for name, data in reversed(note.headers) if name == REPLAYED)
    try:
        place = LetterPlace.parse(said.decode("ascii", "replace"))
    except ConfigError:
        return None
    behind = place.partition == note.place.partition and place.offset < note.place.offset
    return place if behind and note.key == place.note_key else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER


def letters(records: Iterable[RawLetter]) -> list[DeadLetter]:
    found: dict[LetterPlace, DeadLetter] = {}
    done: set[LetterPlace] = set()
    for record in _with_notes(records):
        if isinstance(record, LetterPlace):
            done.add(record)
        else:
            found[record.place] = letter_of(record)
    return [
        replace(letter, replayed=True) if place in done else letter
        for place, letter in found.items()
    ]


def stored(
    config: StreamsConfig, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[RawLetter]:
    """The committed records of a topic up to ``ends``, one partition after the other. Raises what
    `LogReader.read` raises."""
    with LogReader(config.consumer(), fetch_bytes=_FETCH_BYTES) as reader:
        for tp, end in ends.items():
            for chunk in reader.read(tp, starts[tp], end, stall_timeout_s=_SILENT_S):
                for offset, *rest in chunk.rows(headers=True):
                    yield RawLetter(LetterPlace(tp.partition, offset), *rest)


@dataclass
class LetterTally:
    """Letters of one cause, counted while they are read: only the ``last`` is kept whole."""

    last: DeadLetter
    letters: int = 0
    open: dict[LetterPlace, LetterAge] = field(default_factory=dict)
    """Those that can be replayed and were not."""

    def sample(self) -> DeadLetter:
        return replace(self.last, replayed=self.last.place not in self.open)


def tallied(records: Iterable[RawLetter]) -> dict[Cause, LetterTally]:
    """The same as `letters`, by cause, of a topic of any size: a note stands behind its letter."""
    found: dict[Cause, LetterTally] = {}
    causes: dict[LetterPlace, Cause] = {}
    for record in _with_notes(records):
        if isinstance(record, LetterPlace):
            if (cause := causes.pop(record, None)) is not None:
                found[cause].open.pop(record, None)
            continue
        letter = letter_of(record)
        tally = found.setdefault(letter.group, LetterTally(letter))
        tally.last = letter
        tally.letters += 1
        if letter.source is not None and not letter.parts_left_out:
            tally.open[letter.place] = letter.age
            causes[letter.place] = letter.group
    return found


def portions(
    records: Iterable[RawLetter], chosen: Set[LetterPlace]
) -> Iterator[Sequence[DeadLetter]]:
    """The letters of ``chosen``, as many at a time as a transaction takes and memory holds."""
    portion: list[DeadLetter] = []
    size = 0
    for record in records:
        if record.place not in chosen:
            continue
        portion.append(letter_of(record))
        size += len(record.key or b"") + len(record.value or b"")
        if len(portion) == AT_ONCE or size >= AT_ONCE_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def groups(found: Iterable[DeadLetter]) -> list[tuple[Cause, list[DeadLetter]]]:
    by_group: dict[Cause, list[DeadLetter]] = {}
    for letter in found:
        by_group.setdefault(letter.group, []).append(letter)
    return sorted(by_group.items(), key=lambda one: (-len(one[1]), one[0]))


def line_of(letter: DeadLetter) -> str:
    node = letter.about.get("node") or "-"
    done = "  (replayed)" if letter.replayed else ""
    parts = (str(letter.place), instant(letter.timestamp), letter.origin, node, letter.error)
    return "\t".join(map(one_line, parts)) + done


def text_of(letter: DeadLetter) -> str:
    about = letter.about
    lines = [
        f"dead letter  {letter.place}{'  (replayed)' if letter.replayed else ''}",
        f"record       {one_line(letter.origin)}",
        f"time         {instant(letter.timestamp)}",
        *(
            f"{name:<12} {_indented(about[name])}"
            for name in ("stage", "node", "task", "attempt", "exception", "message", "left.out")
            if about.get(name)
        ),
        f"key          {letter.key!r}",
        f"value        {letter.value!r}",
        *(f"header       {one_line(name)}={data!r}" for name, data in letter.own),
    ]
    stack = printable(about.get("stacktrace", "").rstrip())
    return "\n".join([*lines, *([stack] if stack else [])])


def _indented(text: str) -> str:
    """A text of several lines: none of them is like one of ours."""
    return printable(text).replace("\n", f"\n{'':13}")


def plain_of(letter: DeadLetter) -> dict[str, Any]:
    """All there is of a letter, for JSON: bytes in base64."""
    about = letter.about
    fields = ("stage", "node", "task", "attempt", "exception", "message", "stacktrace")
    return {
        "letter": str(letter.place),
        "timestamp": letter.timestamp,
        "record": letter.origin,
        "topic": letter.source,
        **{name: about.get(name, "") for name in fields},
        "left_out": letter.parts_left_out,
        "key": _base64(letter.key),
        "value": _base64(letter.value),
        "headers": [{"name": name, "value": _base64(data)} for name, data in letter.own],
        "replayed": letter.replayed,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def sample_of(letter: DeadLetter) -> str:
    short = replace(
        letter,
        key=_begin(letter.key),
        value=_begin(letter.value),
        own=tuple((name, _begin(data)) for name, data in letter.own[:SHOWN_HEADERS]),
    )
    sizes = "".join(
        f"\n{name} has {len(data):,} bytes: the first {SHOWN_BYTES:,} are shown"
        for name, data in (("key", letter.key), ("value", letter.value))
        if data is not None and len(data) > SHOWN_BYTES
    )
    return text_of(short)[:SHOWN_CHARACTERS] + sizes


def _begin(data: bytes | None) -> bytes | None:
    return None if data is None else data[:SHOWN_BYTES]


def refusal(topic: str, letter: DeadLetter, target: str | None) -> ConfigError | None:
    """Why a letter cannot be replayed into ``target`` (None: where it came from); None: it can."""
    if letter.parts_left_out:
        return ConfigError(
            f"dead letter {topic}-{letter.place} has not all of its record, which the topic did "
            f"not take (left out: {letter.parts_left_out}). It is {letter.origin}: read it there, "
            f"and write it again. For the next ones, raise max.message.bytes of {topic} and the "
            f"application's producer.message.max.bytes by 25 kB: so much a letter tells of an "
            f"error."
        )
    if target is None and letter.source is None:
        return ConfigError(
            f"dead letter {topic}-{letter.place} has no header {KAFKA_STREAMS}topic, so nobody "
            f"knows which topic it came from. `everflow dlq replay {topic} --letter "
            f"{letter.place} --to TOPIC` writes it into the one you name."
        )
    return None


@dataclass(frozen=True)
class OldLetters:
    """Letters whose records are older than what their topics have: where a window, a join or a row
    is over by then, it drops them as late. Times in ms; ``newest`` is that of ``topic``, into which
    the oldest one goes."""

    count: int
    oldest: int
    newest: int
    topic: str

    @staticmethod
    def among(
        chosen: Iterable[LetterAge], target: str | None, newest: Mapping[TopicPartition, int]
    ) -> OldLetters | None:
        """``newest``: of each partition that they go to, as far as known; a letter that goes by its
        key is compared with all of its topic. None: none is older."""
        of_topic: dict[str, int] = {}
        for tp, time_ms in newest.items():
            of_topic[tp.topic] = max(time_ms, of_topic.get(tp.topic, time_ms))
        old: list[tuple[int, int, str]] = []
        for letter in chosen:
            into = target or letter.source or ""
            its_log = TopicPartition(into, letter.source_partition or 0)
            known = letter.source_partition is not None and into == letter.source
            last = newest.get(its_log) if known else of_topic.get(into)
            if last is not None and letter.timestamp < last:
                old.append((letter.timestamp, last, into))
        return OldLetters(len(old), *min(old)) if old else None


def superseded(
    config: StreamsConfig,
    chosen: Iterable[DeadLetter],
    known: Iterable[DeadLetter],
    spans: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, tuple[int, int]]],
) -> list[DeadLetter]:
    """Those of ``chosen`` behind whose record its partition has another one of the same key: an
    upsert or a table would go back to the older row. Records that are dead letters themselves
    (``known``) do not count: they took no effect. ``spans``: begin and end of logs that are there.
    Reads the logs from the first of these records on; raises what `LogReader.read` raises."""
    wanted: dict[TopicPartition, dict[bytes, list[DeadLetter]]] = {}
    for letter in chosen:
        log, key = letter.source_log, letter.key
        if log is not None and key is not None and letter.source_offset is not None:
            wanted.setdefault(log, {}).setdefault(key, []).append(letter)
    bad = {(letter.source_log, letter.source_offset) for letter in known}
    found: dict[LetterPlace, DeadLetter] = {}
    if not wanted:
        return []
    with LogReader(config.consumer(), fetch_bytes=_FETCH_BYTES) as reader:
        for tp, (begin, end) in spans(list(wanted)).items():
            keys = wanted[tp]
            first = min(one.source_offset or 0 for mine in keys.values() for one in mine)
            start = max(begin, first + 1)
            chunks = reader.read(tp, start, end, stall_timeout_s=_SILENT_S) if start < end else ()
            for chunk in chunks:
                for offset, key in zip(chunk.offsets.tolist(), chunk.keys, strict=True):
                    for letter in keys.get(key or b"", ()) if key is not None else ():
                        if offset > (letter.source_offset or 0) and (tp, offset) not in bad:
                            found[letter.place] = letter
    return [found[place] for place in sorted(found)]


class Replayer:
    """Writes letters as the records that they were, and in the same transaction notes each in the
    dead letter topic. Owned by one thread; another one for the same topic ends this one, wherever
    it runs. To be closed.

    ``partitions(topic)``: how many it has.
    """

    def __init__(
        self,
        config: StreamsConfig,
        topic: str,
        partitions: Callable[[str], int],
    ) -> None:
        self._topic, self._partitions = topic, partitions
        settings = {**config.producer(), "transaction.timeout.ms": 60_000}
        # Not librdkafka's: a late end of one of its transactions ends the next one (note 019).
        self._writer = RecordWriter(settings, f"everflow-dlq-{topic}")

    def close(self) -> None:
        self._writer.close()

    def replay(
        self, chosen: Sequence[DeadLetter], target: str | None, time_ms: int | None = None
    ) -> int:
        """Into ``target``, or each into its own topic, with its record's time or ``time_ms``; how
        many. ConfigError, nothing written: `refusal`, or no such topic. Else as `RecordWriter`."""
        for start in range(0, len(chosen), AT_ONCE):
            part = chosen[start : start + AT_ONCE]
            self._writer.begin()
            try:
                by_topic: dict[str, list[DeadLetter]] = {}
                for letter in part:
                    if (refused := refusal(self._topic, letter, target)) is not None:
                        raise refused
                    by_topic.setdefault(target or letter.source or "", []).append(letter)
                for into, listed in by_topic.items():
                    self._write(listed, into, time_ms)
                self._note(part)
                self._writer.flush(_TIMEOUT_S)
            except EverflowError:  # the topic's readers shall not wait for us
                self._writer.abort(_TIMEOUT_S)
                raise
            self._writer.commit(_TIMEOUT_S)
        return len(chosen)

    def _write(self, letters: Sequence[DeadLetter], into: str, time_ms: int | None) -> None:
        count = self._partitions(into)
        self._writer.write(
            into,
            [letter.key for letter in letters],
            [letter.value for letter in letters],
            np.array([letter.timestamp for letter in letters], np.int64)
            if time_ms is None
            else np.full(len(letters), time_ms, np.int64),
            [_partition(letter, into, count) for letter in letters],
            [
                [*letter.own, (REPLAYED_FROM, f"{self._topic}-{letter.place}".encode())]
                for letter in letters
            ],
        )

    def _note(self, letters: Sequence[DeadLetter]) -> None:
        self._writer.write(
            self._topic,
            [letter.place.note_key for letter in letters],
            [b""] * len(letters),
            np.full(len(letters), int(time.time() * 1000), np.int64),
            [letter.place.partition for letter in letters],
            [[(REPLAYED, str(letter.place).encode())] for letter in letters],
        )


def _partition(letter: DeadLetter, into: str, count: int) -> int:
    """The source partition, if it is there; -1: by its key."""
    partition = letter.source_partition
    return (
        partition if into == letter.source and partition is not None and partition < count else -1
    )
