"""A record is the same for a step and for the command line, whatever bytes its headers have."""

import base64
import json
import os
import pty
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.odd_records import FARTHEST, OddRecord, drawn, write
from everflow.cli.app import app as command
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import LogColumns
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import OffsetRange, TopicPartition

pytestmark = pytest.mark.broker
Topic = Callable[..., str]
ANY_TIME = {"message_timestamp_after_max_ms": str(FARTHEST)}
ODD = [
    OddRecord(None, b"plain", 5),
    OddRecord(b"", b"", 0, (("été".encode("latin-1"), b"x"),)),
    OddRecord(b"k", None, 1, ((b"trace\0id", b"1"), (b"trace", None), (b"trace\0id", b""))),
    OddRecord(b"\0", b"\xff", 2, ((b"", b""), (b"\xff", b"\xff"), (b"\x1b]0;t\x07", b"\x1b"))),
]


@pytest.fixture
def writer(bootstrap: str) -> Iterator[RecordWriter]:
    with closing(RecordWriter({"bootstrap.servers": bootstrap}, None)) as made:
        yield made


def rows(found: LogColumns) -> list[Any]:
    assert found.unread == {}
    headers = [[]] * len(found) if found.headers is None else found.headers.to_pylist()
    named = [[(one["key"], one["value"]) for one in own] for own in headers]
    columns = found.keys.to_pylist(), found.values.to_pylist(), found.timestamps.tolist(), named
    return list(zip(*columns, strict=True))


def test_records_are_read_as_written(bootstrap: str, topic: Topic, writer: RecordWriter) -> None:
    name = topic(2, **ANY_TIME)
    both = [TopicPartition(name, 0), TopicPartition(name, 1)]
    for seed, tp in enumerate(both):
        write(writer, tp, written := drawn(random.Random(seed), 120))
        assert any(record.headers for record in written)
    client = {"bootstrap.servers": bootstrap}
    with closing(RangeReader(client, True, headers=True)) as reader:
        read = reader.read(dict.fromkeys(both, OffsetRange(0, 120)), 30)
    for seed, tp in enumerate(both):
        assert rows(read.columns[tp]) == [one.read for one in drawn(random.Random(seed), 120)]


def test_a_chunk_always_has_whole_names(bootstrap: str, topic: Topic, writer: RecordWriter) -> None:
    tp = TopicPartition(topic(1, **ANY_TIME), 0)
    write(writer, tp, ODD)
    client = {"bootstrap.servers": bootstrap}
    with closing(LogFetcher.over(client)) as fetcher:
        fetcher.go_to({tp: 0})
        found: list[Any] = []
        while fetcher.positions[tp] < len(ODD):
            for chunk in fetcher.take({tp: len(ODD)}, 30).values():
                assert rows(chunk.columns(True)) == rows(chunk.columns(True))
                assert rows(chunk.columns(False))[0][3] == []
                found += rows(chunk.columns(True))
    assert found == [one.read for one in ODD]


def test_the_command_line_shows_them(bootstrap: str, topic: Topic, writer: RecordWriter) -> None:
    tp = TopicPartition(topic(1, **ANY_TIME), 0)
    write(writer, tp, [*ODD, OddRecord(b"k", b"v", FARTHEST)])
    arguments = ["consume", tp.topic, "--count", "5", "--key", "bytes", "--value", "bytes"]
    environment = {"EVERFLOW_BOOTSTRAP_SERVERS": bootstrap}
    shown = CliRunner().invoke(command, [*arguments, "--output", "json"], env=environment)
    assert shown.exit_code == 0, shown.output
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [one["offset"] for one in found] == list(range(5))
    assert [
        [
            (one["name"], None if one["value"] is None else base64.b64decode(one["value"]))
            for one in record["headers"]
        ]
        for record in found
    ] == [[*record.read[3]] for record in ODD] + [[]]
    assert found[-1]["timestamp"] == FARTHEST


def test_pipes_are_exact_terminals_safe(bootstrap: str, topic: Topic, writer: RecordWriter) -> None:
    tp = TopicPartition(topic(), 0)
    value = "\x1b[31mred\x1b[0m\x1b]0;title\x07\x9b2K\u202e\ré\tend"
    write(writer, tp, [OddRecord(b"k\x1b[2K", value.encode(), 5)])
    arguments = ["consume", tp.topic, "--count", "1"]
    environment = {"EVERFLOW_BOOTSTRAP_SERVERS": bootstrap}
    piped = CliRunner().invoke(command, arguments, env=environment)
    assert piped.stdout_bytes == f"k\x1b[2K\t{value}\n".encode()
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", "from everflow.cli import main; main()", *arguments],
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment, "PYTHONIOENCODING": "utf-8"},
            timeout=60,
            check=True,
        )
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown.rstrip("\r\n").isprintable() is False, "the tab is left"
    assert shown.rstrip("\r\n").replace("\t", "").isprintable()
    assert shown.startswith("k\\u001b[2K\t\\u001b[31mred")
