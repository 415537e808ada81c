"""What a micro-batch tells for the figures of `/metrics`, besides its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import StoreChanges, TaskId
from everflow.runtime.commit.batch import BatchFigures, Puts, Sent
from everflow.runtime.step.record_ages import ages_written
from everflow.runtime.step.task_step import SinkOutput, StepResult


def figures_of(result: StepResult) -> BatchFigures:
    """Of a batch that was committed."""
    written = ages_written((output.node, output.batch) for output in result.outputs)
    return BatchFigures(
        [*result.ages, *written],
        [sent for output in result.outputs for sent in _sent(output)],
        _puts(result.changes),
        result.letters,
        result.keys,
    )


def _sent(output: SinkOutput) -> list[Sent]:
    """How much went where; of an output that names a topic for each record, by topic."""
    count = len(output.batch)
    size = _length(output.keys) + _length(output.values)
    if isinstance(output.topics, str):
        return [Sent(output.node, output.topics, count, size)] if count else []
    # Each has its share of the bytes: nobody reads them twice for a figure.
    return [
        Sent(output.node, topic, records, size * records // count)
        for topic, records in Counter(output.topics).items()
    ]


def _length(column: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


def _puts(changes: Mapping[TaskId, Sequence[StoreChanges]]) -> list[Puts]:
    found: Counter[tuple[TaskId, str]] = Counter()
    for task, listed in changes.items():
        for change in listed:
            found[task, change.store] += len(change)
    return [Puts(str(task), store, count) for (task, store), count in found.items()]
