"""What a micro-batch tells of its records' times: how old they are, and how late they came.

Records arrive partition by partition, so that all is found in runs of rows, without a sort: about
1 ms for 100,000 records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from everflow.records import EdgeBatch, Int64, TaskId, TopicPartition
from everflow.runtime.commit.batch import Ages
from everflow.topology.batches import BatchInput
from everflow.topology.plan import Source


def ages_read(
    hop: BatchInput,
    sources: Mapping[int, Source],
    consumed: Mapping[TopicPartition, int],
    stream_times: Mapping[TaskId, int],
) -> list[Ages]:
    """Of step 0's input, as far as it is ``consumed``. ``stream_times``: of the tasks before the
    batch."""
    if not len(hop.source):
        return []
    changes = (np.diff(hop.source) != 0) | (np.diff(hop.partition) != 0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(starts[1:], len(hop.source))
    found = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        source, partition = sources[int(hop.source[start])], int(hop.partition[start])
        read = consumed[TopicPartition(source.topic, partition)]
        end = start + int(np.searchsorted(hop.offset[start:end], read))
        task = TaskId(source.subtopology, partition)
        newest = stream_times.get(task, -1)
        found.append(_of(hop.timestamp[start:end], str(task), source.node, newest))
    return [ages for ages in found if ages is not None]


def ages_written(batches: Iterable[tuple[str, EdgeBatch]]) -> list[Ages]:
    """Of what each sink gets."""
    found = [_of(batch.timestamp, "", node) for node, batch in batches]
    return [ages for ages in found if ages is not None]


def _of(times: Int64, task: str, node: str, newest: int | None = None) -> Ages | None:
    """None where no record has a time: a negative one is none."""
    if not len(times):
        return None
    if (least := int(times.min())) < 0:
        return _of(times[times >= 0], task, node, newest)
    total, most = float(times.sum(dtype=np.float64)), int(times.max())
    found = Ages(task, node, len(times), total, least, most)
    if newest is None or (least >= newest and bool((np.diff(times) >= 0).all())):
        return found
    late = np.maximum(np.maximum.accumulate(times), newest) - times
    return found._replace(late_total=float(late.sum(dtype=np.float64)), late_most=int(late.max()))
