"""What a worker of Spark's says on standard error when its job has failed elsewhere: nothing; the
driver tells why."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from everflow.runtime.thread.thread_job import PackedStep
from everflow.topology.hops import MARKER
from everflow.travel.parcel import Parcel

ROW = pa.record_batch({"_src": pa.array([0], pa.int32())})
LAST = pa.record_batch({"_src": pa.array([MARKER], pa.int32())})
Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def reads_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def finds_the_batch_given_up(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As a step does that announces itself when Spark has failed already: it reads nothing."""
    yield ROW


@pytest.mark.parametrize(
    ("step", "batches", "quiet"),
    [
        (reads_all, [ROW, LAST], False),
        (reads_all, [ROW], True),
        (reads_all, [], True),
        (finds_the_batch_given_up, [ROW, LAST], True),
    ],
)
def test_a_worker_whose_connection_is_closed_early_prints_no_traceback(
    step: Step, batches: list[pa.RecordBatch], quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sys.stderr
    monkeypatch.setattr(sys, "stderr", before)
    parcel: Any = SimpleNamespace(open=lambda: SimpleNamespace(stage=lambda first, last: step))
    assert list(PackedStep(cast(Parcel, parcel), 0, 0, None)(iter(batches)))[:1] == (
        [*batches, ROW][:1] if batches else []
    )
    assert (sys.stderr is not before) == quiet
