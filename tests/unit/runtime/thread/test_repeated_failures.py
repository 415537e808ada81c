"""Which failures may pass, when two are the same, and when trying again is given up: pure
decisions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from everflow.errors import DamagedEntryError
from everflow.records import TaskId
from everflow.runtime.commit.batch import BadEntry, BadRecord, BatchFailure, CodeLine
from everflow.runtime.thread.failure_text import ending
from everflow.runtime.thread.repeated_failures import (
    ENDS_AFTER_MS,
    RepeatedFailures,
    may_pass,
    sameness,
)

DIVISION = BatchFailure(
    kind="other", error="ArithmeticException: division by zero", where=("app.py:3",)
)
COLUMN = BatchFailure(
    kind="column",
    error="A Column cannot be computed: [DIVIDE_BY_ZERO] Division by zero.",
    where=("app.py:3",),
)


@pytest.mark.parametrize("kind", BatchFailure.KINDS)
def test_only_causes_outside_the_program_may_pass(kind: str) -> None:
    passing = {"migrated", "generation", "data-loss", "retriable"}
    assert may_pass(BatchFailure(kind=kind, error="text")) == (kind in passing)


def test_ports_ids_offsets_and_times_do_not_make_a_failure_another_one() -> None:
    one = BatchFailure(
        kind="other",
        error="no answer from 127.0.0.1:4711 at offset 7 in 5000 ms (pid 12, <object at 0x7f1e2a>)",
    )
    two = BatchFailure(
        kind="other",
        error=(
            "no answer from 127.0.0.1:39923 at offset 1234 in 61 ms (pid 9, <object at 0xdeadbeef>)"
        ),
    )
    assert sameness(one) == sameness(two)
    member = "member app-{}-x is unknown"
    first, second = (member.format(f"{digit * 8}-aaaa-bbbb-cccc-{digit * 12}") for digit in "af")
    assert sameness(BatchFailure(kind="other", error=first)) == sameness(
        BatchFailure(kind="other", error=second)
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(DIVISION, kind="worker"),
        replace(DIVISION, error="A Column cannot be computed: [CAST_OVERFLOW] too large."),
        replace(DIVISION, where=("app.py:4",)),
        replace(DIVISION, record=BadRecord("in", 0, 7)),
        replace(DIVISION, line=CodeLine("app.py", 9, "f")),
    ],
    ids=["kind", "text", "operator", "record", "line"],
)
def test_another_kind_text_or_place_is_another_failure(other: BatchFailure) -> None:
    assert sameness(DIVISION) != sameness(other)


def test_it_is_told_the_second_time_and_ends_the_third_time_after_seconds() -> None:
    failures = RepeatedFailures()
    for attempt, now_ms in enumerate((0.0, 700.0, 1_500.0, ENDS_AFTER_MS), 1):
        failures = failures.with_one(DIVISION, now_ms)
        assert failures.to_be_told(DIVISION) == (attempt == 2)
        assert failures.in_vain(DIVISION, now_ms, smallest=False) == (attempt == 4), (
            "the third came too soon"
        )


def test_two_failures_that_take_turns_end_too() -> None:
    failures, other = RepeatedFailures(), BatchFailure(kind="retriable", error="slow")
    for now_ms in (0.0, 1_000.0, 2_000.0):
        failures = failures.with_one(other, now_ms).with_one(DIVISION, now_ms)
    assert failures.in_vain(DIVISION, 2_000.0, smallest=False)
    assert not failures.in_vain(other, 2_000.0, smallest=False), (
        "what may pass is for task.timeout.ms"
    )


@pytest.mark.parametrize("kind", ["record", "undecodable", "fatal", "spark-gone"])
def test_what_is_known_to_come_again_ends_at_once(kind: str) -> None:
    failure = BatchFailure(kind=kind, error="text")
    assert RepeatedFailures().with_one(failure, 0.0).in_vain(failure, 0.0, smallest=False)


def test_a_store_is_rebuilt_once_whatever_entry_of_it_cannot_be_read() -> None:
    entry = BadEntry("counts", TaskId(0, 3), "6b", "app-counts-changelog")
    first = BatchFailure(kind="damaged", error="Store counts: key k, folder a", entry=entry)
    second = replace(first, error="folder b", entry=entry._replace(key="6c"))
    failures = RepeatedFailures().with_one(first, 0.0)
    assert not failures.in_vain(first, 0.0, True)
    assert failures.with_one(second, 1.0).in_vain(second, 1.0, False)
    of_another = replace(first, entry=entry._replace(task=TaskId(0, 4)))
    assert not failures.with_one(of_another, 1.0).in_vain(of_another, 1.0, True)
    error = ending(second, 2, "")
    assert isinstance(error, DamagedEntryError)
    assert (error.store, error.task, error.key) == ("counts", TaskId(0, 3), b"l")
    assert error.changelog == "app-counts-changelog"
    assert "was rebuilt from its changelog" in str(error)
    assert BatchFailure.from_dict(json.loads(json.dumps(second.to_dict()))) == second


def test_a_column_that_fails_gets_smaller_batches_and_ends_when_twice_there_are_none() -> None:
    failures = RepeatedFailures().with_one(COLUMN, 0.0)
    assert not failures.in_vain(COLUMN, 0.0, smallest=True), (
        "once may be the look of a batch that was small from the start"
    )
    failures = failures.with_one(COLUMN, 1.0)
    assert not failures.in_vain(COLUMN, 1.0, smallest=False)
    assert failures.in_vain(COLUMN, 1.0, smallest=True)


def test_a_dying_worker_gets_smaller_batches_before_it_is_given_up() -> None:
    died = BatchFailure(kind="worker", error="A Python worker process died (Segmentation fault)")
    failures = RepeatedFailures()
    for now_ms in range(0, 9_000, 1_000):
        failures = failures.with_one(died, now_ms)
        assert not failures.in_vain(died, now_ms, smallest=False)
    assert failures.in_vain(died, 9_000, smallest=True)
