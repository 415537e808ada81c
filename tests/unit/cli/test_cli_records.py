"""`everflow produce` and `everflow consume`: lines to bytes and bytes to lines."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import everflow
from everflow import serdes
from everflow.cli.commands import Format, WindowKind
from everflow.cli.records import (
    Line,
    Shown,
    Subject,
    decoded,
    encoded,
    lines,
    registry_of,
)
from everflow.clock import instant
from everflow.errors import ConfigError
from everflow.kafka.reading.record_columns import LogColumns
from everflow.records import HEADERS, TopicPartition
from everflow.serdes import SerdeError
from everflow.testing.schema_registry import SchemaRegistry


def test_a_line_is_a_value_or_a_key_and_a_value_and_empty_lines_are_nothing() -> None:
    source = ["plain\n", "k\tv\n", "\n", "  \r\n", "k\tv\tmore\r\n", "k\t\n"]
    assert list(lines(source, "\t", Format.string, Format.string)) == [
        Line(None, b"plain"),
        Line(b"k", b"v"),
        Line(b"k", b"v\tmore"),
        Line(b"k", b""),
    ]


def test_the_separator_may_be_any_text() -> None:
    assert list(lines(["a::b"], "::", Format.string, Format.string)) == [Line(b"a", b"b")]


def test_a_line_may_begin_with_the_time_of_its_record() -> None:
    source = [
        "1970-01-01T00:00:01.500Z\tk\tv",
        "1970-01-01T01:00:01+01:00\tv",
        "1970-01-02\tk\t",
        "1500\tk\tv",
    ]
    assert [
        (line.key, line.value, line.time_ms)
        for line in lines(source, "\t", Format.string, Format.string, timed=True)
    ] == [(b"k", b"v", 1_500), (None, b"v", 1_000), (b"k", b"", 86_400_000), (b"k", b"v", 1_500)]
    early = ("0\tv", "line 1: the time '0' is not after 1970-01-01T00:00:00Z")
    for text, says in (
        early,
        ("k\tv", "line 1: not a time: 'k'; write 2026-"),
        ("1500", "line 1: nothing behind the time '1500'"),
    ):
        with pytest.raises(ConfigError, match=says):
            list(lines([text], "\t", Format.string, Format.string, timed=True))


@pytest.mark.parametrize(
    ("text", "form", "data"),
    [
        ("é", Format.string, "é".encode()),
        ('{"a": 1}', Format.json, b'{"a": 1}'),
        ("true", Format.boolean, b"\1"),
        ("-2", Format.short, b"\xff\xfe"),
        ("1.5", Format.float_, b"\x3f\xc0\0\0"),
        ("7", Format.int_, b"\0\0\0\7"),
        ("-1", Format.long, b"\xff" * 8),
        ("0.5", Format.double, b"\x3f\xe0\0\0\0\0\0\0"),
    ],
)
def test_formats_are_kafka_s_own_and_come_back(text: str, form: Format, data: bytes) -> None:
    assert encoded(text, form) == data
    assert decoded(data, form) == text


@pytest.mark.parametrize(
    ("source", "form", "says"),
    [
        (["1", "x"], Format.long, "line 2: not long: 'x'; the lines before"),
        (["yes"], Format.boolean, "line 1: not boolean: 'yes'"),
        (["1e39"], Format.float_, "line 1: 1e+39 is too large"),
        (["4000000000"], Format.int_, "line 1: 4000000000 does not fit"),
        (['{"a":'], Format.json, "line 1: not JSON"),
    ],
)
def test_a_line_that_does_not_fit_is_named(source: list[str], form: Format, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        list(lines(source, "\t", Format.string, form))
    assert says in str(refused.value)


def test_what_is_not_utf_8_is_said_so() -> None:
    with pytest.raises(ConfigError, match=r"2.*UTF-8.*written"):
        list(lines(["a", "\udcff"], "\t", Format.string, Format.string))
    read = io.TextIOWrapper(io.BytesIO(b"a\nb\xff\n"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"input.*UTF-8.*0xff"):
        list(lines(read, "\t", Format.string, Format.string))


def test_an_argument_that_is_not_utf_8_is_said_so() -> None:
    command: list[str | bytes] = [
        sys.executable,
        "-c",
        "from everflow.cli import main; main()",
        "produce",
        b"a\xff",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .* a\\xff .* UTF-8\n", done.stderr)


def test_bytes_that_are_something_else_are_refused() -> None:
    for data, form in ((b"\xff", Format.string), (b"123", Format.long), (b"{", Format.json)):
        with pytest.raises(SerdeError):
            decoded(data, form)


def test_nothing_is_null_and_bytes_are_shown_as_they_are() -> None:
    assert decoded(None, Format.json) == "null"
    assert decoded(b"a\x00\xff", Format.bytes) == "a\\x00\\xff"


def test_windowed_keys_are_the_key_and_its_times() -> None:
    time = serdes.time_windowed(serdes.string(), 60_000).encode(
        everflow.Windowed("JFK", 60_000, 120_000)
    )
    session = serdes.session_windowed(serdes.long()).encode(everflow.Windowed(7, 1, 2_000))
    shown = Shown(window=WindowKind.time)
    assert _lines(shown, (time, b"v")) == ["JFK@1970-01-01T00:01:00Z\tv"]
    as_json = json.loads(_lines(replace(shown, as_json=True), (time, b"v"))[0])
    assert as_json["key"] == "JFK@1970-01-01T00:01:00Z"
    assert _lines(Shown(key=Format.long, window=WindowKind.session), (session, None)) == [
        "7@1970-01-01T00:00:00.001Z/1970-01-01T00:00:02Z\tnull"
    ]
    assert _lines(shown, (None, b"v")) == ["null\tv"]
    with pytest.raises(SerdeError, match="at least, found 2"):
        _lines(shown, (b"ab", b"v"))


def test_a_time_beyond_the_calendar_is_its_number() -> None:
    assert instant(2**63 - 1) == str(2**63 - 1)


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    """`everflow consume ... | head -3`, here with a command whose output nobody reads."""
    code = (
        "import typer\n"
        "from everflow.cli.app import app\n"
        "from everflow.cli.commands import command\n"
        "@command()\n"
        "def much() -> None:\n"
        "    while True:\n"
        "        typer.echo('line ' * 1000)\n"
        "app(['much'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(30) == 141


def test_records_are_decoded_by_the_schemas_they_were_written_with() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "d", "type": _DECIMAL}]}
    with SchemaRegistry() as registry:
        found = registry_of(registry.url, Format.string, Format.schema)
        registry.register("s", schema)
        registry.register("j", {"type": "object", "properties": {"a": {"type": "integer"}}}, "JSON")
        shown = Shown(value=Format.schema, registry=found)
        avro, of_json = b"\0\0\0\0\1\4\4\x1a", b'\0\0\0\0\2{"a": 5, "b": 1}'
        several = ((b"k", avro), (None, None), (b"k", of_json), (b"k", avro))
        texts = ['k\t{"d":10.50}', "null\tnull", 'k\t{"a":5}', 'k\t{"d":10.50}']
        assert _lines(shown, *several) == texts
        for data, word in ((b"\0\0\0\0\x09x", "9"), (b"{}", "registry"), (b"\0\0", "2 bytes")):
            printed: list[str] = []
            with pytest.raises(SerdeError, match=word) as failed:
                printed.extend(
                    shown.lines(TopicPartition("t", 0), _columns((b"k", avro), (b"", data)))
                )
            assert "t-0@8" in str(failed.value)
        sent = list(registry.asked)
        _lines(shown, *several)
        assert registry.asked == sent, "what is known is not asked again"


def test_the_lines_before_a_bad_record_are_printed() -> None:
    lines_ = Shown(value=Format.long).lines(
        TopicPartition("t", 0), _columns((b"k", b"\0" * 8), (b"k", b"x"), (b"k", b"\0" * 8))
    )
    assert next(lines_) == "k\t0"
    with pytest.raises(SerdeError, match="t-0@8"):
        next(lines_)


def test_json_keeps_the_digits_of_numbers() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "d", "type": _DECIMAL}]}
    with SchemaRegistry() as registry:
        found = registry_of(registry.url, Format.schema)
        registry.register("s", schema)
        shown = Shown(value=Format.schema, registry=found, as_json=True)
        line = _lines(shown, (b"k", b"\0\0\0\0\1\4\4\x1a"))[0]
    assert '"value": {"d":10.50}' in line
    assert json.loads(line)["key"] == "k"
    text = '{"a": 10.50,\r\n "é": "\\n\U0001f600", "b": 12345678901234567890.10}'
    line = _lines(Shown(value=Format.json, as_json=True), (None, text.encode()))[0]
    assert "10.50" in line
    assert "12345678901234567890.10" in line
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["value"] == json.loads(text)
    assert json.loads(line)["key"] is None


def test_ids_in_headers_are_read_in_either_output() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "d", "type": _DECIMAL}]}
    with SchemaRegistry() as registry:
        found = registry_of(registry.url, Format.schema)
        registry.register("s", schema)
        shown = Shown(value=Format.schema, registry=found)
        assert shown.headers
        columns = replace(
            _columns((b"k", b"\4\4\x1a")),
            headers=pa.array([[{"key": "__value_schema_id", "value": b"\0\0\0\0\1"}]], HEADERS),
        )
        tp = TopicPartition("t", 0)
        assert list(shown.lines(tp, columns)) == ['k\t{"d":10.50}']
        as_json = json.loads(next(replace(shown, as_json=True).lines(tp, columns)))
    assert as_json["value"] == {"d": 10.5}
    assert as_json["headers"] == [{"name": "__value_schema_id", "value": "AAAAAAE="}]


@pytest.mark.parametrize("form", [Format.string, Format.json])
def test_a_value_of_a_registry_names_the_option_that_reads_it(form: Format) -> None:
    with pytest.raises(SerdeError, match="--schema"):
        _lines(Shown(value=form), (b"k", b"\0\0\0\0\7\xff\xfe"))


def test_a_value_of_a_registry_that_is_a_text_by_chance_is_hinted_at() -> None:
    tp, shown = TopicPartition("t", 0), Shown()
    hint = shown.hint(tp, _columns((b"k", b"\0\0\0\0\7abc")))
    assert hint is not None
    assert "--schema" in hint
    assert "t-0@7" in hint
    for value in (None, b"abcdefg", b"\0\0\0\0\0\0\0\7"):
        assert shown.hint(tp, _columns((b"k", value))) is None
    assert Shown(value=Format.bytes).hint(tp, _columns((b"k", b"\0\0\0\0\7abc"))) is None
    assert shown.hint(tp, _columns()) is None


def _columns(*records: tuple[bytes | None, bytes | None]) -> LogColumns:
    """From offset 7 on."""
    keys, values = zip(*records, strict=True) if records else ((), ())
    count = len(records)
    return LogColumns(
        keys=pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        offsets=np.arange(7, 7 + count),
        timestamps=np.zeros(count, np.int64),
    )


def _lines(shown: Shown, *records: tuple[bytes | None, bytes | None]) -> list[str]:
    return list(shown.lines(TopicPartition("t", 0), _columns(*records)))


_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


def test_the_format_schema_takes_a_registry() -> None:
    with pytest.raises(ConfigError, match="--schema"):
        registry_of(None, Format.string, Format.schema)
    with pytest.raises(ConfigError, match="--value"):
        registry_of("http://localhost:1", Format.string, Format.json)
    assert registry_of(None, Format.string, Format.json) is None
    with pytest.raises(ValueError, match="--schema"):
        encoded("{}", Format.schema)


def test_lines_are_written_by_the_latest_schema() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "d", "type": _DECIMAL}]}
    with SchemaRegistry() as registry:
        registry.register("t-value", schema)
        found = registry_of(registry.url, Format.schema)
        assert found is not None
        subject = Subject("t-value", found)
        data = encoded('{"d": 2.56}', Format.schema, subject)
        assert data == b"\0\0\0\0\1\4\1\0"
        with pytest.raises(ConfigError, match=r"line 2: .*d \(decimal"):
            list(
                lines(
                    ['{"d": 1}', '{"d": "x"}'], "\t", Format.string, Format.schema, False, subject
                )
            )
