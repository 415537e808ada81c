"""What failed and was left out is told by cause, with the place of the first of each."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from everflow.clock import ManualClock
from everflow.handlers import Response
from everflow.metrics import LEFT_OUT, Metrics
from everflow.records import EdgeBatch
from everflow.runtime.commit.batch import COMMITTED, BatchFigures, BatchResult, LetterGroup
from everflow.runtime.step.task_step import StepResult
from everflow.runtime.thread.batch_counts import BatchCounts
from everflow.runtime.worker.dead_letters import take_letters
from everflow.topology.plan import DEAD_LETTER_TYPE
from unit.builders import edge_batch, source

SOURCE = source("orders", node="in", offset_reset=None, slot=0)
CAUSES = [("ValueError", "map"), ("KeyError", "map"), ("ValueError", "map"), ("ValueError", "by")]


def letters(responses: list[Response]) -> EdgeBatch:
    """Of these causes, at the offsets from 7 on of partition 2."""
    rows = [
        {
            "value": b"{}",
            "error": f"{exception}: bad {n}\nmore",
            "response": response.value,
            "about": json.dumps({"exception": exception, "node": node}),
        }
        for n, ((exception, node), response) in enumerate(zip(CAUSES, responses, strict=True))
    ]
    keys, values = [b"k"] * len(rows), pa.array(rows, DEAD_LETTER_TYPE.value)
    return edge_batch(keys, values, partition=2, offset=7)


GROUPS = [
    LetterGroup("ValueError", "map", "orders", 2, "orders-2@7 (ValueError: bad 0)"),
    LetterGroup("KeyError", "map", "orders", 1, "orders-2@8 (KeyError: bad 1)"),
    LetterGroup("ValueError", "by", "orders", 1, "orders-2@10 (ValueError: bad 3)"),
]


@pytest.mark.parametrize("response", [Response.DEAD_LETTER, Response.CONTINUE])
def test_all_that_is_left_out_is_grouped_dead_letter_or_not(response: Response) -> None:
    result = StepResult(dead_letters=letters([response] * 4))
    take_letters(result, [SOURCE])
    assert result.letters == GROUPS


def test_a_batch_without_letters_has_no_groups() -> None:
    result = StepResult()
    take_letters(result, [SOURCE])
    assert result.letters == []


def test_they_are_counted_when_the_batch_is_committed_and_the_last_sample_stays() -> None:
    metrics = Metrics()
    counts = BatchCounts(metrics, ManualClock(), 0)
    later = GROUPS[1]._replace(sample="orders-0@99 (KeyError: again)")
    for groups in (GROUPS, [later]):
        counts.add(BatchResult(outcome=COMMITTED, figures=BatchFigures(letters=groups)))
    assert metrics.series()[LEFT_OUT] == {
        ("ValueError", "map", "orders"): 2,
        ("KeyError", "map", "orders"): 2,
        ("ValueError", "by", "orders"): 1,
    }
    assert metrics.notes(LEFT_OUT)["KeyError", "map", "orders"] == later.sample
