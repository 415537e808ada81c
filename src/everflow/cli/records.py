"""Turns lines of text into records of a topic, and records into lines of text."""

from __future__ import annotations

import base64
import json
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from everflow import exact_texts, serdes
from everflow.cli.commands import Format, WindowKind
from everflow.clock import instant, time_of
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import ConfigError, LogStartMovedError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition
from everflow.serdes import Serde, SerdeError, making
from everflow.serdes.registry import Registry
from everflow.serdes.windowed import SESSION_SUFFIX_BYTES, START_BYTES
from everflow.serdes.wire_format import identified

DELIVERY_S = 20.0
_POLL_S = 0.2
_IDLE_S = 1.0
_AT_ONCE = 1_000


_TRUTH = {"true": True, "false": False}
_SINGLE: dict[Format, tuple[Serde, Callable[[str], Any]]] = {
    Format.boolean: (serdes.boolean(), lambda text: _TRUTH[text]),
    Format.short: (serdes.short(), exact_texts.whole),
    Format.int_: (serdes.int_(), exact_texts.whole),
    Format.long: (serdes.long(), exact_texts.whole),
    Format.float_: (serdes.float_(), exact_texts.number),
    Format.double: (serdes.double(), exact_texts.number),
}


NOW = 0
"""The time of a record that is to get the present one."""


@dataclass(frozen=True)
class Line:
    key: bytes | None
    value: bytes | None
    time_ms: int = NOW


class Subject(NamedTuple):
    """Whose latest schema lines are written by."""

    name: str
    registry: Registry


def lines(
    source: Iterable[str],
    separator: str,
    key: Format,
    value: Format,
    timed: bool = False,
    subject: Subject | None = None,
) -> Iterator[Line]:
    """The records of lines; ``timed``: each begins with the time. ConfigError names the line."""
    for number, line in enumerate(_readable(source), 1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        try:
            time_ms = NOW
            if timed:
                at, found, text = text.partition(separator)
                time_ms = time_of(at)
                if not found:
                    raise ValueError(f"nothing behind the time {at!r}")
            before, found, behind = text.partition(separator)
            left, right = (encoded(before, key), behind) if found else (None, text)
            yield Line(left, encoded(right, value, subject), time_ms)
        except UnicodeError:
            raise ConfigError(
                f"line {number}: not UTF-8; the lines before it were written."
            ) from None
        except (ValueError, SerdeError) as error:
            raise ConfigError(
                f"line {number}: {error}; the lines before it were written."
            ) from None


def _readable(source: Iterable[str]) -> Iterator[str]:
    try:
        yield from source
    except UnicodeDecodeError as error:  # it is read ahead: the line is not known
        byte = error.object[error.start]
        raise ConfigError(
            f"standard input is not UTF-8: it has the byte 0x{byte:02x}. Lines before it may have "
            f"been written."
        ) from None


def encoded(text: str, form: Format, subject: Subject | None = None) -> bytes | None:
    """Bytes of a text. ValueError or SerdeError where it does not fit."""
    if form is Format.schema:
        if subject is None:
            raise ValueError("values alone are written by a schema, with --schema")
        return making.from_json(text, *subject)
    if form is Format.json:
        try:
            json.loads(text, parse_constant=_no_constant)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
    if form in _SINGLE:
        serde, parse = _SINGLE[form]
        try:
            return serde.encode(parse(text))
        except (ValueError, KeyError):
            raise ValueError(f"not {form.value}: {text!r}") from None
    return text.encode()


def _no_constant(word: str) -> None:
    """JSON has no NaN and no infinities, which Python's reader takes."""
    raise ValueError(f"{word} is none")


def registry_of(url: str | None, *forms: Format) -> Registry | None:
    """ConfigError if a format needs a registry and none is named, or one is named for nothing."""
    asked = Format.schema in forms
    if url is None and asked:
        raise ConfigError("the format schema needs a registry: --schema http://HOST:8081.")
    if url is not None and not asked:
        raise ConfigError("--schema decodes the half whose format is schema: --value schema.")
    return None if url is None else Registry.of(url)


def decoded(data: bytes | None, form: Format, registry: Registry | None = None) -> str:
    """The text of bytes; ``null`` for none. SerdeError where they are something else."""
    if data is None:
        return "null"
    if form is Format.schema and registry is not None:
        return making.json_text(data, registry)
    if form is Format.bytes:
        return repr(data)[2:-1]
    serde = _SINGLE[form][0] if form in _SINGLE else serdes.string()
    value = serde.decode(data)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = exact_texts.number_text(value) if isinstance(value, float) else text
    if form is Format.json:
        try:
            json.loads(text)
        except ValueError as error:
            raise SerdeError(f"not JSON: {error}") from None
    return text


def windowed(
    data: bytes | None, form: Format, window: WindowKind, registry: Registry | None = None
) -> str:
    """``JFK@2013-01-01T00:00:00Z``: key and start of a window; of a session ``JFK@start/end``."""
    if data is None:
        return "null"
    suffix = START_BYTES if window is WindowKind.time else SESSION_SUFFIX_BYTES
    if len(data) < suffix:
        raise SerdeError(
            f"a key of a {window.value} window takes {suffix} bytes at least, found {len(data)}"
        )
    times = [
        int.from_bytes(data[at : at + 8], "big", signed=True)
        for at in range(len(data) - suffix, len(data), 8)
    ]
    key = decoded(data[:-suffix], form, registry)
    return f"{key}@{'/'.join(instant(time) for time in reversed(times))}"


class ReadRecord(NamedTuple):
    """A record of a topic; ``headers`` only where they were asked for."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def text_of(
    record: ReadRecord,
    key: Format,
    value: Format,
    window: WindowKind | None,
    registry: Registry | None = None,
) -> str:
    """A record's line. SerdeError names the record and what to ask for."""
    return "\t".join(_halves(record, key, value, window, registry, decoded))


def json_of(
    record: ReadRecord,
    key: Format,
    value: Format,
    window: WindowKind | None,
    registry: Registry | None = None,
) -> str:
    """A record as a line of JSON: bytes in base64, numbers and JSON as they are. See `text_of`."""
    left, right = _halves(record, key, value, window, registry, plain)
    headers = [{"name": name, "value": plain(data, Format.bytes)} for name, data in record.headers]
    return json.dumps({**record._asdict(), "key": left, "value": right, "headers": headers})


def _halves(
    record: ReadRecord,
    key: Format,
    value: Format,
    window: WindowKind | None,
    registry: Registry | None,
    shown: Callable[[bytes | None, Format, Registry | None], Any],
) -> tuple[Any, Any]:
    def half(form: Format, data: bytes | None, part: str) -> bytes | None:
        return identified(data, record.headers, part) if form is Format.schema else data

    with _named(record, "key"):
        data = half(key, record.key, "key")
        left = (
            shown(data, key, registry) if window is None else windowed(data, key, window, registry)
        )
    with _named(record, "value"):
        return left, shown(half(value, record.value, "value"), value, registry)


def plain(data: bytes | None, form: Format, registry: Registry | None = None) -> Any:
    """The JSON value for bytes; None for none. SerdeError if the bytes do not fit ``form``."""
    if data is None:
        return None
    if form is Format.bytes:
        return base64.b64encode(data).decode()
    if form in _SINGLE:
        found = _SINGLE[form][0].decode(data)
        if isinstance(found, float) and not math.isfinite(found):  # JSON has no number for it
            return exact_texts.number_text(found)
        return found
    text = decoded(data, form, registry)
    return json.loads(text) if form in (Format.json, Format.schema) else text


@contextmanager
def _named(record: ReadRecord, half: str) -> Iterator[None]:
    try:
        yield
    except SerdeError as error:
        place = f"{record.topic}-{record.partition}@{record.offset}"
        raise SerdeError(
            f"the {half} of {place} cannot be read: {error}\n--{half} bytes shows it as it is."
        ) from None


def send(
    config: StreamsConfig,
    topic: str,
    lines_: Iterable[Line],
    status: StatusLine,
) -> int:
    """Write them all and wait for the broker, whose refusal is raised; the number written."""
    sent = 0
    with closing(RecordWriter(config.producer(), None)) as writer:
        for group in _in_groups(lines_):
            now_ms = int(time.time() * 1000)
            times = [line.time_ms or now_ms for line in group]
            writer.begin()
            writer.write(
                topic,
                [line.key for line in group],
                [line.value for line in group],
                times,
            )
            with status.waiting(
                f"waiting for Kafka to take the records (for {DELIVERY_S:g} s at most)",
                after_s=_IDLE_S,
            ):
                writer.flush(DELIVERY_S)
            sent += len(group)
    return sent


def _in_groups(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines that are there at a time: one that was typed does not wait for the next. An error
    comes behind the lines before it."""
    coming: queue.Queue[Line | Exception | None] = queue.Queue(_AT_ONCE)

    def read() -> None:
        try:
            for line in lines:
                coming.put(line)
            coming.put(None)
        except Exception as failure:
            coming.put(failure)

    threading.Thread(target=read, name="everflow-lines", daemon=True).start()
    end: Line | Exception | None = None
    while True:
        group: list[Line] = []
        end = coming.get()
        while isinstance(end, Line):
            group.append(end)
            if len(group) == _AT_ONCE or coming.empty():
                break
            end = coming.get()
        if group:
            yield group
        if isinstance(end, Exception):
            raise end
        if end is None:
            return


def records(
    config: StreamsConfig,
    starts: dict[TopicPartition, int],
    count: int | None,
    timeout_s: float | None,
    status: StatusLine,
    headers: bool,
    to: Mapping[TopicPartition, int] | None = None,
) -> Iterator[ReadRecord]:
    """Committed records from ``starts`` on, until ``count`` of them, none for ``timeout_s``, or
    each partition was read as far as ``to`` says."""
    ends = dict.fromkeys(starts, sys.maxsize) if to is None else dict(to)
    with closing(LogFetcher.over(config.consumer())) as fetcher:
        fetcher.go_to(starts)
        last = time.monotonic()
        shown = 0
        while any(fetcher.positions[tp] < end for tp, end in ends.items()):
            if count is not None and shown >= count:
                return
            most = _AT_ONCE if count is None else min(_AT_ONCE, count)
            try:
                found = fetcher.take(ends, _POLL_S, most_records=most)
            except LogStartMovedError as moved:  # deleted meanwhile: on from what is still there
                if moved.partition is None:
                    raise
                with closing(ClusterAdmin(config.admin())) as admin:
                    begin = admin.list_offsets([moved.partition], "earliest", "read_uncommitted")
                fetcher.go_to({**fetcher.positions, **begin})
                continue
            if not any(chunk.records for chunk in found.values()):
                idle = time.monotonic() - last
                if timeout_s is not None and idle >= timeout_s:
                    return
                if idle >= _IDLE_S:
                    away = f"no answer from Kafka at {config.bootstrap_servers}"
                    status.show(
                        f"{away if fetcher.trouble else 'waiting for records'}, {idle:.0f} s"
                    )
                continue
            last = time.monotonic()
            status.clear()
            for tp, chunk in found.items():
                for row in chunk.rows(headers):
                    yield ReadRecord(tp.topic, tp.partition, *row)
                    shown += 1
                    if shown == count:
                        return


def partitions_of(admin: ClusterAdmin, topic: str) -> list[TopicPartition]:
    """The partitions of a topic. ConfigError if it does not exist."""
    found = admin.describe_topics([topic])
    if topic not in found:
        hint = (
            f"`everflow topic create {topic}` creates it, `everflow topic list` shows what there is"
        )
        raise ConfigError(f"no such topic: {topic}. {hint}.")
    return [TopicPartition(topic, n) for n in range(found[topic].partitions)]
