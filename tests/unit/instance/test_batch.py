"""What driver and workers tell each other comes back as it was, whatever the topic is called."""

import json

import pytest

from everflow.protocol.messages import (
    COMMITTED,
    Ages,
    BatchFigures,
    BatchResult,
    CommitMetadata,
    LetterGroup,
    Puts,
    Sent,
    StorePlace,
    TaskContext,
    as_line,
    format_metadata,
    from_line,
    of_kafka_streams,
    parse_metadata,
)
from everflow.records import OffsetRange, TaskId, TopicPartition
from unit.builders import batch_request

ODD, PLAIN = TopicPartition("a-1-b", 3), TopicPartition("in", 0)
TASK = TaskId(1, 3)


def test_a_request_comes_back_from_its_line() -> None:
    stores = {"counts": StorePlace("here", "app-counts-changelog"), "s": StorePlace("there", None)}
    task = TaskContext(TASK, "i", "i.0.0", {"AGG": 5}, stores)
    request = batch_request(
        {ODD: OffsetRange(1, 5), PLAIN: OffsetRange(0, 0)},
        batch_id="i.1.0",
        transactional_id="app-p-0",
        wall_clock_ms=7,
        gate="gate",
        log_ends={ODD: 9, PLAIN: 0},
        tasks=[task],
        transaction_timeout_ms=10_000,
    )
    again = from_line(as_line(request))
    assert again == request
    assert isinstance(again.ranges[ODD], OffsetRange)
    assert again.ending({ODD: 4, PLAIN: 0}).ranges == {
        ODD: OffsetRange(1, 4),
        PLAIN: OffsetRange(0, 0),
    }


def test_a_result_comes_back_from_its_line() -> None:
    result = BatchResult(
        outcome=COMMITTED,
        consumed={ODD: 5},
        stream_times={TASK: {"AGG": 9}},
        positions={TASK: {"counts": 12}},
        counts={"in": 4},
        figures=BatchFigures(
            [Ages(str(TASK), "in", 2, 7.0, 3, 4, 1.0, 1)],
            [Sent("out", "t", 2, 9)],
            [Puts(str(TASK), "counts", 1)],
            [LetterGroup("ValueError", "map", "in", 2, "in-0@5 (ValueError: bad)")],
        ),
    )
    assert from_line(as_line(result)) == result


@pytest.mark.parametrize(
    "text",
    ["ef1|x|[1]", "ef1|x|7", 'ef1|x|{"n": "late"}', 'ef1|x|{"n": null}', "ef1|x|" + "[" * 99],
)
def test_metadata_that_another_client_wrote_is_no_batch(text: str) -> None:
    assert parse_metadata(text) == CommitMetadata(None, {})


LAYOUTS = {"counts": ["key_value", "string", "`a|b` bigint"]}


def test_metadata_of_an_offset_comes_back_whatever_a_client_puts_behind_it() -> None:
    text = format_metadata("i.1.0", {"AGG": 5}, json.dumps(LAYOUTS))
    for stray in ("", "\0", "\ufffd", "|{"):
        assert parse_metadata(text + stray) == CommitMetadata("i.1.0", {"AGG": 5}, LAYOUTS)


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("AgAAAZr8ZkAAAAAAAA==", True),
        ("AgAAAZr8ZkAAAAAAAA==\0", True),
        ("AQAAAZr8ZkAA", True),
        ("AQAAAZr8ZkAA\0\u2028x", True),
        ("AwAAAZr8ZkAA", False),
        ("", False),
        (None, False),
        ("start", False),
        (format_metadata("b.0.1", {"n": 5}, '{"s":"#1"}'), False),
    ],
)
def test_metadata_of_kafka_streams_is_told_from_others(text: str | None, theirs: bool) -> None:
    assert of_kafka_streams(text) is theirs


def test_metadata_of_before_has_no_layouts() -> None:
    text = format_metadata("i.1.0", {"AGG": 5})
    assert text == 'ef1|i.1.0|{"AGG":5}'
    for stray in ("", "\0", "\ufffd", "|", "|{", "|7"):
        assert parse_metadata(text + stray) == CommitMetadata("i.1.0", {"AGG": 5}, {})
