"""A record that no topic takes is named: its topic, its size, the limit, and the record it was made
of."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from everflow.errors import RecordRefusedError, RecordTooLargeError
from everflow.records import EdgeBatch, StoreChanges, TaskId
from everflow.runtime.commit.batch import BatchFailure, StorePlace, TaskContext
from everflow.runtime.step.step_failure import failure_of
from everflow.runtime.step.task_step import SinkOutput, StepResult
from everflow.runtime.worker.large_records import named, refused
from unit.builders import batch_request, source

SOURCES = [source("in", index=4, slot=1)]
STORE = StorePlace("state", "app-totals-changelog")
TASKS = [TaskContext(TaskId(0, 2), "i", "", {}, {"totals": STORE})]
REQUEST = batch_request({}, batch_id="t.0.0", log_ends={}, tasks=TASKS)


def output(topics: str | list[str], *sizes: int) -> SinkOutput:
    rows = np.arange(len(sizes), dtype=np.int64)
    places = np.full(len(sizes), 2, np.int32)
    nothing = pa.nulls(len(sizes), pa.binary())
    batch = EdgeBatch(
        key=nothing,
        value=nothing,
        timestamp=rows,
        seq=rows,
        source=places + 2,
        partition=places,
        offset=rows + 40,
    )
    keys = pa.array([b"k"] * len(sizes), pa.binary())
    values = pa.array([b"v" * size for size in sizes], pa.binary())
    return SinkOutput(node="sink", topics=topics, keys=keys, values=values, batch=batch)


def message(error: RecordTooLargeError, result: StepResult, limit: int | None = None) -> list[str]:
    return str(named(error, REQUEST, result, SOURCES, lambda topic: limit, None)).splitlines()


def test_the_client_refuses_more_than_it_sends() -> None:
    result = StepResult(
        outputs=[
            output("other", 9_999_999),
            output(["out", "out", "far"], 10, 1_500_000, 2_000_000),
        ]
    )
    lines = message(RecordTooLargeError("no", topics=("out",), limit=1_000_000), result)
    assert lines[0].startswith("A record for topic out is too large: 1,500,001 bytes")
    assert lines[0].endswith(", more than the producer sends (message.max.bytes=1,000,000)")
    assert lines[1] == "  made of record in-2@41, by node sink"
    assert (
        "Raise producer.message.max.bytes (and max.message.bytes of the topic, if that is smaller)"
        in lines[2]
    )


def test_the_broker_refuses_more_than_the_topic_takes() -> None:
    result = StepResult(outputs=[output("out", 10, 3_000)])
    lines = message(RecordTooLargeError("no", topics=("out",)), result, 2_000)
    assert lines[0] == (
        "A record for topic out is too large: 3,001 bytes, more than the topic takes "
        "(max.message.bytes=2,000)"
    )
    assert "Raise max.message.bytes of out" in lines[2]
    unknown = message(RecordTooLargeError("no", topics=("out",)), result)
    assert unknown[0].endswith("more than the topic takes (max.message.bytes)")


def test_a_value_of_a_store_is_named_by_its_key() -> None:
    changes = StoreChanges(
        "totals", [b"a", b"b" * 100], [b"1", b"x" * 5_000], np.zeros(2, np.int64)
    )
    result = StepResult(outputs=[output("out", 10)], changes={TaskId(0, 2): [changes]})
    lines = message(
        RecordTooLargeError("no", topics=("app-totals-changelog", "out")), result, 2_000
    )
    assert lines[0].startswith("A record for topic app-totals-changelog is too large: 5,100 bytes")
    assert lines[1] == f"  the value of key b'{'b' * 60}'... in store totals, partition 2"


def refusal(*records: tuple[bytes | None, bytes | None, int]) -> RecordRefusedError:
    return RecordRefusedError("refused", topics=("out",), records=frozenset(records), untimely=True)


def test_records_that_the_broker_refuses_are_named_by_their_bytes_and_times() -> None:
    result = StepResult(outputs=[output("other", 10), output(["out", "far", "out"], 7, 7, 7)])
    error = refusal((b"k", b"v" * 7, 2), (b"k", b"v" * 7, 1), (b"k", b"v" * 7, 0))
    found = refused(error, result, SOURCES)
    assert found.place == ("in", 2, 40, "sink")
    assert [one.place for one in found.others] == [("in", 2, 42, "sink")]
    assert "made of record in-2@40, by node sink" in str(found)
    assert "Its time is 0 ms (1970-01-01T00:00:00Z)" in str(found)
    failure = failure_of(found)
    assert failure.record is not None
    assert (failure.stage, failure.record.place) == ("production", ("in", 2, 40))
    (also,) = BatchFailure.from_dict(json.loads(json.dumps(failure.to_dict()))).also
    assert also.record is not None
    assert (also.stage, also.record.place) == ("production", ("in", 2, 42))
    assert "made of record in-2@42" in also.error
    unknown = refusal((b"k", b"w", 0))
    assert refused(unknown, result, SOURCES) is unknown
