"""Moves the stream time of tasks whose sources are silent, as the driver has asked (note 025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from everflow.records import LAST_SEQ, EdgeBatch, Int64, TaskId, TasksResult, TopicPartition
from everflow.runtime.commit.batch import BatchRequest
from everflow.runtime.step.step_stores import TaskStores
from everflow.topology.batches import BatchInput, appended
from everflow.topology.graph import Inputs, ProcessorOperator
from everflow.topology.plan import Source, StatefulOp

Moved = Mapping[TaskId, Mapping[str, int]]
"""Of each task, to what the times of its silent sources are moved, by the names under which those
are kept."""


def moved(
    request: BatchRequest, sources: Sequence[Source], consumed: Mapping[TopicPartition, int]
) -> Moved:
    """What the request asks for, of tasks that have read all there was: a record that is left for
    the next batch may be older."""
    behind = {
        TaskId(source.subtopology, tp.partition)
        for source in sources
        for tp, end in request.log_ends.items()
        if tp.topic == source.topic and consumed[tp] < end
    }
    return {task: names for task, names in request.idle.items() if task not in behind}


def source_times(
    hop: BatchInput,
    sources: Sequence[Source],
    request: BatchRequest,
    consumed: Mapping[TopicPartition, int],
) -> dict[TaskId, dict[str, int]]:
    """The times of sources whose silence counts: the highest of a record that is consumed, or what
    they are moved to."""
    found: dict[TaskId, dict[str, int]] = {}
    before = {task.task: task.stream_times for task in request.tasks}
    for source in sources:
        if source.idle is None:
            continue
        rows = np.flatnonzero(hop.source == source.index)
        for partition in np.unique(hop.partition[rows]).tolist():
            mine = rows[hop.partition[rows] == partition]
            mine = mine[hop.offset[mine] < consumed[TopicPartition(source.topic, partition)]]
            task, name = TaskId(source.subtopology, partition), source.idle.kept
            if len(mine):
                time = max(before[task].get(name, -1), int(hop.timestamp[mine].max()))
                found.setdefault(task, {})[name] = time
    for task, names in moved(request, sources, consumed).items():
        found.setdefault(task, {}).update(names)
    return found


def times_of(op: StatefulOp, moved_tasks: Moved) -> dict[int, int]:
    """To what an operator's stream time is moved, by partition."""
    found = {}
    for task, names in moved_tasks.items():
        mine = [names[name] for name in op.idle if name in names]
        if task.subtopology == op.subtopology and mine:
            found[task.partition] = max(mine)
    return found


def advanced(
    op: StatefulOp,
    done: TasksResult,
    sides: Sequence[EdgeBatch],
    times: Mapping[int, int],
    stores: TaskStores,
) -> TasksResult:
    """``done``, with what an operator gives when its stream time is moved to ``times`` behind the
    batch's records. One that has had no record has no stream time, and nothing that could end."""
    if isinstance(op.operator, ProcessorOperator):
        return done
    tasks = {partition: TaskId(op.subtopology, partition) for partition in times}
    before = {
        partition: done.stream_times.get(partition, stores.stream_time(task, op.name))
        for partition, task in tasks.items()
    }
    before = {partition: time for partition, time in before.items() if 0 <= time < times[partition]}
    if not before:
        return done
    views = {
        partition: {
            **stores.views(tasks[partition], op.stores),
            **stores.before(tasks[partition], op.reads),
            **stores.whole(op.looks_up),
        }
        for partition in before
    }
    ticks = _ticks(sides[0], {partition: times[partition] for partition in before})
    more = op.operator.advance(ticks, Inputs(sides, views, before))
    done.stream_times.update({partition: times[partition] for partition in before})
    if more is None:
        return done
    for partition, listed in more.changes.items():
        done.changes.setdefault(partition, []).extend(listed)
        for changes in listed:
            stores.remember(tasks[partition], changes)
    for reason, count in more.dropped.items():
        done.dropped[reason] = done.dropped.get(reason, 0) + count
    done.output = _both(done.output, more.output)
    return done


def _ticks(like: EdgeBatch, times: Mapping[int, int]) -> EdgeBatch:
    """A row for each task, behind all records."""
    count = len(times)
    stamps: Int64 = np.array(list(times.values()), np.int64)
    return EdgeBatch(
        key=pa.nulls(count, like.key.type),
        value=pa.nulls(count, like.value.type),
        timestamp=stamps,
        seq=np.full(count, LAST_SEQ),
        source=np.zeros(count, np.int32),
        partition=np.array(list(times), np.int32),
        offset=np.full(count, -1, np.int64),
        headers=None,
    )


def _both(one: EdgeBatch, other: EdgeBatch) -> EdgeBatch:
    if not len(other):
        return one
    return appended([one, other]) if len(one) else other
