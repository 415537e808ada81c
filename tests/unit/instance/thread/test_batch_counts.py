"""Dropped records are told at once, and then once a minute."""

from __future__ import annotations

import math

import pytest

from everflow import metrics as names
from everflow.clock import ManualClock
from everflow.instance.thread.batch_counts import BatchCounts, DroppedRecords
from everflow.metrics import Metrics
from everflow.protocol.messages import COMMITTED, BatchResult
from everflow.records import LATE_UNMATCHED

LATE = (
    "too late: the window's grace was over, by the newest record time of the task "
    "(docs/guide/time.md)"
)


def test_the_first_are_told_at_once_and_the_next_together_after_a_minute() -> None:
    dropped = DroppedRecords()
    assert dropped.lines({"by-item": {"late": 1}}, 5_000) == [f"by-item dropped 1 record {LATE}"]
    assert dropped.lines({"by-item": {"late": 2}}, 6_000) == []
    assert dropped.lines({"by-item": {"late": 1_000}}, 64_999) == []
    assert dropped.lines({}, 65_000) == [f"by-item dropped 1,002 records {LATE}"]
    assert dropped.lines({}, 200_000) == []


def test_a_clocks_call_is_no_record() -> None:
    (line,) = DroppedRecords().lines({"ticks": {"punctuation": 2}}, 0.0)
    assert line.startswith("ticks dropped 2 clock's calls that failed")


def test_a_late_row_that_was_emitted_without_a_match_is_not_dropped() -> None:
    metrics = Metrics()
    counts = BatchCounts(metrics, ManualClock(), 1)
    dropped = {"by-order": {LATE_UNMATCHED: 2, "null-key": 1}}
    counts.add(BatchResult(outcome=COMMITTED, dropped=dropped))
    assert metrics.snapshot()[names.DROPPED_RECORDS] == 1
    assert metrics.series()[names.DROPPED] == {("1", "by-order", "null-key"): 1}
    assert metrics.series()[names.UNMATCHED_LATE] == {("1", "by-order"): 2}
    emitted, left_out = DroppedRecords().lines(dropped, 0)
    assert emitted.startswith("by-order emitted 2 records without a match")
    assert left_out == "by-order dropped 1 record without a key"


def test_operators_and_reasons_are_told_apart() -> None:
    dropped = DroppedRecords()
    assert dropped.lines({"a": {"late": 1, "null-key": 2}, "b": {"null-value": 3}}, 0) == [
        f"a dropped 1 record {LATE}",
        "a dropped 2 records without a key",
        "b dropped 3 records without a value",
    ]
    assert dropped.lines({"b": {"null-key": 1}}, 1) == ["b dropped 1 record without a key"]


def test_the_last_are_told_while_nothing_comes_and_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who adds the lines up has all of them."""
    clock = ManualClock()
    counts = BatchCounts(Metrics(), clock, 0)
    for _ in range(2):
        counts.add(BatchResult(outcome=COMMITTED, dropped={"a": {"null-key": 2}}))
        clock.advance(1_000)
    with caplog.at_level("WARNING", "everflow"):
        caplog.clear()
        counts.log_drops(59_999)
        assert caplog.messages == []
        counts.log_drops(60_000)
        clock.advance(59_000)
        counts.add(BatchResult(outcome=COMMITTED, dropped={"a": {"null-key": 1}}))
        counts.log_drops(math.inf)
    assert caplog.messages == [
        "a dropped 2 records without a key",
        "a dropped 1 record without a key",
    ]


def test_a_commit_has_a_time_and_an_abort_its_cause() -> None:
    metrics, clock = Metrics(), ManualClock(7_000)
    counts = BatchCounts(metrics, clock, 2)
    counts.add(BatchResult(outcome=COMMITTED))
    assert names.LAST_COMMIT not in metrics.series(), "a batch of nothing commits nothing"
    committed = BatchResult(outcome=COMMITTED, counts={"renewed": 1}, timings={"gate": 0.2})
    counts.add(committed)
    clock.advance(3_000)
    counts.add(committed)
    counts.again(reason="ownership-changed: task 0_0 is not owned")
    counts.again("worker")
    series = metrics.series()
    assert series[names.LAST_COMMIT] == {("2",): 10_000}
    assert series[names.RENEWED_PRODUCERS] == {("2",): 2}
    assert series[names.REFUSED_COMMITS] == {("2", "ownership-changed"): 1}
    assert series[names.FAILED_BATCHES] == {("2", "aborted"): 1, ("2", "worker"): 1}


def test_remarks_of_a_batch_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    counts = BatchCounts(Metrics(), ManualClock(), 0)
    with caplog.at_level("WARNING", "everflow"):
        counts.add(BatchResult(outcome=COMMITTED, remarks=["a", "b", "c", "d", "e"]))
    assert caplog.messages == ["a; b; c; and 2 more"]
