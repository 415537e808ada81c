"""Runs a stateful operator on the tasks of a micro-batch: its stores, its clocks, its failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from everflow.operators.user_code import UserFunctionError
from everflow.records import EdgeBatch, TaskId, TasksResult
from everflow.runtime.commit.batch import BadRecord, BatchRequest
from everflow.runtime.step.step_functions import RecordFailure
from everflow.runtime.step.step_stores import TaskStores
from everflow.state.store import StoreView
from everflow.topology.graph import (
    JoinOperator,
    LookupOperator,
    ProcessorOperator,
    Surroundings,
    WaitingOperator,
)
from everflow.topology.hops import empty_like, in_order
from everflow.topology.physical_plan import Source, StatefulOp

_Views = Mapping[int, Mapping[str, StoreView]]


def run_stateful(
    op: StatefulOp,
    sides: Sequence[EdgeBatch],
    stores: TaskStores,
    sources: Mapping[int, Source],
    request: BatchRequest,
) -> TasksResult:
    """Run the operator on the tasks that have records, or that a clock may call; `stores` shows its
    changes to those behind it."""
    tasks = {
        partition: TaskId(op.subtopology, partition)
        for partition in np.unique(np.concatenate([side.partition for side in sides])).tolist()
    }
    if op.look_every_ms is not None:
        found = (one.task for one in request.tasks if one.task.subtopology == op.subtopology)
        tasks |= {task.partition: task for task in found}
    if not tasks:
        return TasksResult(empty_like(op.type.key, op.type.value), {}, {}, {})
    run = _running(op, tasks, stores, sources, request)
    whole = stores.whole(op.looks_up)
    views: _Views = {
        partition: {**stores.views(task, op.stores), **stores.before(task, op.reads), **whole}
        for partition, task in tasks.items()
    }
    times = {partition: stores.stream_time(task, op.name) for partition, task in tasks.items()}
    try:
        done = run([in_order(side) for side in sides], views, times)
    except UserFunctionError as error:
        cause = error.__cause__ or error
        if error.source not in sources:  # a clock's call, without a record
            raise RecordFailure(None, op.where, cause) from cause
        record = BadRecord(sources[error.source].topic, error.partition, error.offset, op.name)
        raise RecordFailure(record, op.where, cause) from cause
    for partition, listed in done.changes.items():
        for changes in listed:
            stores.remember(tasks[partition], changes)
    return done


def clock_name(node: str, method: str) -> str:
    """Under which a method's last call by the wall clock is kept beside the nodes' stream times."""
    return f"{node}/{method}"


def _running(
    op: StatefulOp,
    tasks: Mapping[int, TaskId],
    stores: TaskStores,
    sources: Mapping[int, Source],
    request: BatchRequest,
) -> Callable[[Sequence[EdgeBatch], _Views, Mapping[int, int]], TasksResult]:
    """What runs the operator on its sides, told of its clocks and of where it is."""
    operator, now_ms = op.operator, request.wall_clock_ms
    clocks = {
        partition: {name: stores.stream_time(task, clock_name(op.name, name)) for name in op.clocks}
        for partition, task in tasks.items()
    }
    if isinstance(operator, ProcessorOperator):
        topics = {index: source.topic for index, source in sources.items()}
        around = Surroundings(request.application_id, op.subtopology, topics, now_ms)
        return lambda one, views, times: operator.run_tasks(one[0], views, times, clocks, around)
    if isinstance(operator, WaitingOperator):
        return lambda sides, views, times: operator.wait_tasks(sides, views, times, clocks, now_ms)
    if isinstance(operator, LookupOperator):
        whole = stores.whole(op.looks_up)
        return lambda one, *_: operator.look_up(one[0], whole)
    if isinstance(operator, JoinOperator):
        return lambda both, views, times: operator.join_tasks(both[0], both[1], views, times)
    return lambda one, views, times: operator.process_tasks(one[0], views, times)
