"""Turns lines of text into records of a topic, and records into lines of text."""

from __future__ import annotations

import base64
import json
import math
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from everflow import exact_texts, serdes
from everflow.cli.commands import Format, WindowKind
from everflow.clock import instant, time_of
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import ConfigError, LogStartMovedError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.record_columns import LogColumns
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition, listed_headers
from everflow.serdes import Serde, SerdeError, making
from everflow.serdes.base import REGISTRY_HEAD
from everflow.serdes.registry import Registry
from everflow.serdes.windowed import SESSION_SUFFIX_BYTES, START_BYTES, without_suffix
from everflow.serdes.wire_format import with_header

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


def decoded(data: bytes | None, form: Format) -> str:
    """The text of bytes; ``null`` for none. SerdeError where they are something else."""
    if data is None:
        return "null"
    if form is Format.bytes:
        return repr(data)[2:-1]
    value = _value(data, form)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return exact_texts.number_text(value) if isinstance(value, float) else text


def _value(data: bytes, form: Format) -> Any:
    """SerdeError where the bytes do not fit ``form``, also a text that is to be JSON."""
    try:
        serde = _SINGLE[form][0] if form in _SINGLE else serdes.string()
        value = serde.decode(data)
        if form is Format.json:
            json.loads(value)
    except (SerdeError, ValueError) as error:
        hint = _by_a_registry(data)
        kind = "not JSON: " if not isinstance(error, SerdeError) else ""
        raise SerdeError(f"{kind}{error}" + (f"; {hint}" if hint else "")) from None
    return value


def _by_a_registry(data: bytes | None) -> str | None:
    """What to ask for, of bytes that begin as those of a schema registry."""
    if data is None or len(data) < REGISTRY_HEAD or data[0] != 0:
        return None
    number = int.from_bytes(data[1:REGISTRY_HEAD], "big")
    if number == 0:  # a small number of 8 bytes; registries count from 1
        return None
    return (
        f"it begins as what a schema registry's serializer has written (schema {number}): "
        f"--schema http://HOST:8081 decodes it"
    )


def _as_json(data: bytes | None, form: Format) -> str:
    """The JSON for bytes: base64 in `Format.bytes`, else numbers, texts, and JSON as it is written:
    a number keeps its digits. SerdeError if the bytes do not fit ``form``."""
    if data is None:
        return "null"
    if form is Format.bytes:
        return json.dumps(base64.b64encode(data).decode())
    value = _value(data, form)
    if form is Format.json:
        return str(value).replace("\n", " ").replace("\r", " ")  # in its texts they are escaped
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no number for it
        value = exact_texts.number_text(value)
    return json.dumps(value)


@dataclass(frozen=True)
class Shown:
    """How records are printed: formats of key and value, kind of the window in the keys; by which
    registry `Format.schema` is read."""

    key: Format = Format.string
    value: Format = Format.string
    window: WindowKind | None = None
    registry: Registry | None = None
    as_json: bool = False

    @property
    def headers(self) -> bool:
        """Whether headers are needed: they are printed, or may hold a schema's id."""
        return self.as_json or Format.schema in (self.key, self.value)

    def lines(self, tp: TopicPartition, found: LogColumns) -> Iterator[str]:
        """A line for each record. Behind the lines before it, the SerdeError of the first record
        that cannot be read, which names the record and what to ask for. RetriableError where the
        registry does not answer."""
        keys, bad_keys = self._half(found, "key")
        values, bad_values = self._half(found, "value")
        headers = listed_headers(found.headers, len(found)) if self.as_json else []
        for row in range(len(found)):
            for half, faults in (("key", bad_keys), ("value", bad_values)):
                if row in faults:
                    raise SerdeError(
                        f"the {half} of {tp}@{found.offsets[row]} cannot be read: {faults[row]}\n"
                        f"--{half} bytes shows it as it is."
                    )
            if not self.as_json:
                yield f"{keys[row]}\t{values[row]}"
                continue
            named = [
                {"name": name, "value": None if data is None else base64.b64encode(data).decode()}
                for name, data in headers[row]
            ]
            about = json.dumps(
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offset": int(found.offsets[row]),
                    "timestamp": int(found.timestamps[row]),
                }
            )
            halves = f'"key": {_ascii(keys[row])}, "value": {_ascii(values[row])}'
            yield f'{about[:-1]}, {halves}, "headers": {json.dumps(named)}}}'

    def hint(self, tp: TopicPartition, found: LogColumns) -> str | None:
        """Of values that are printed as texts, and begin as those of a schema registry."""
        if self.value is not Format.string or not len(found):
            return None
        why = _by_a_registry(found.values[0].as_py())
        return None if why is None else f"The value of {tp}@{found.offsets[0]} is no text: {why}."

    def _half(self, found: LogColumns, part: str) -> tuple[list[str], dict[int, SerdeError]]:
        """Texts of keys or values (binary columns), in JSON `as_json`; and why a row has none."""
        form = self.key if part == "key" else self.value
        data = found.keys if part == "key" else found.values
        if part == "key" and self.window is not None:
            return self._windowed(data, self.window)
        return self._column(data, found.headers, form, part)

    def _column(
        self, data: Any, headers: Any, form: Format, part: str
    ) -> tuple[list[str], dict[int, SerdeError]]:
        if form is Format.schema and self.registry is not None:
            whole = with_header(data, headers, part)
            texts, faults = making.json_texts(whole, self.registry)
            return ["null" if text is None else text for text in texts], faults
        return _each(data, partial(_as_json if self.as_json else decoded, form=form))

    def _windowed(self, data: Any, window: WindowKind) -> tuple[list[str], dict[int, SerdeError]]:
        """``JFK@2013-01-01T00:00:00Z``: key and start of a window; of a session
        ``JFK@start/end``."""
        suffix = START_BYTES if window is WindowKind.time else SESSION_SUFFIX_BYTES
        times, short = _each(data, partial(_times, window=window, suffix=suffix))
        inner = without_suffix(data, suffix)
        keys, faults = replace(self, as_json=False)._column(inner, None, self.key, "key")
        texts = [
            f"{key}@{at}" if at != "null" else "null" for key, at in zip(keys, times, strict=True)
        ]
        return (list(map(json.dumps, texts)) if self.as_json else texts), {**faults, **short}


def _each(
    data: Any, text: Callable[[bytes | None], str]
) -> tuple[list[str], dict[int, SerdeError]]:
    texts, faults = [], {}
    for row, one in enumerate(data.to_pylist()):
        try:
            texts.append(text(one))
        except SerdeError as error:
            faults[row] = error
            texts.append("null")
    return texts, faults


def _times(data: bytes | None, window: WindowKind, suffix: int) -> str:
    if data is None:
        return "null"
    if len(data) < suffix:
        raise SerdeError(
            f"a key of a {window.value} window takes {suffix} bytes at least, found {len(data)}"
        )
    times = [
        int.from_bytes(data[at : at + 8], "big", signed=True)
        for at in range(len(data) - suffix, len(data), 8)
    ]
    return "/".join(instant(time) for time in reversed(times))


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


def _ascii(text: str) -> str:
    """The same JSON, as `json.dumps` writes texts."""
    if text.isascii():
        return text
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


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
) -> Iterator[tuple[TopicPartition, LogColumns]]:
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
                columns = chunk.columns(headers)
                if count is not None and shown + len(columns) > count:
                    columns = columns.before(int(columns.offsets[count - shown]))
                shown += len(columns)
                if len(columns):
                    yield tp, columns


def partitions_of(admin: ClusterAdmin, topic: str) -> list[TopicPartition]:
    """The partitions of a topic. ConfigError if it does not exist."""
    found = admin.describe_topics([topic])
    if topic not in found:
        hint = (
            f"`everflow topic create {topic}` creates it, `everflow topic list` shows what there is"
        )
        raise ConfigError(f"no such topic: {topic}. {hint}.")
    return [TopicPartition(topic, n) for n in range(found[topic].partitions)]
