"""Runs a stateful operator on the tasks of a micro-batch: its stores, its clocks, its failures."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from everflow.errors import RetriableError
from everflow.handlers.given import Handlers
from everflow.handlers.outages import is_outage
from everflow.handlers.response import PROCESSING, ErrorHandlerContext, Response
from everflow.operators.table import with_old
from everflow.operators.user_code import UserFunctionError
from everflow.records import ClockCall, EdgeBatch, TaskId, TasksResult, TopicPartition
from everflow.runtime.commit.batch import BadRecord, BatchFailure, BatchRequest
from everflow.runtime.step.checked_stores import CheckedAccess, damage_in
from everflow.runtime.step.failing_records import MOST_FAILING, failing_records
from everflow.runtime.step.idle_times import Moved, advanced, times_of
from everflow.runtime.step.step_failure import DescribedFailure, serde_outage, stack_of
from everflow.runtime.step.step_functions import RecordFailure, raise_all
from everflow.runtime.step.step_stores import PartStores, TaskStores
from everflow.runtime.step.user_line import innermost_line
from everflow.serdes import SerdeError
from everflow.state.store import StoreView
from everflow.topology.graph import (
    Inputs,
    ProcessorOperator,
    SharingProcessor,
    Surroundings,
)
from everflow.topology.hops import empty_like, in_order
from everflow.topology.physical_plan import AskOp, Source, StatefulOp
from everflow.user_texts import class_of, error_text

PUNCTUATION = "punctuation"
"""Why a node dropped what is no record: a clock's call that failed."""
LookThrough = Callable[[tuple[str, ...], EdgeBatch], EdgeBatch]
_Tasks = Mapping[int, TaskId]
_Views = Mapping[int, Mapping[str, StoreView]]


class UncheckedCallError(Exception):
    """A clock's call failed on stores that nobody has checked: a damaged entry may be to blame.
    Never shown to users."""


@dataclass(frozen=True)
class ClockJudge:
    """Says what becomes of a clock's call that fails, in one run of a step (note 023). It has no
    record (KIP-1033): it is judged where it runs.

    ``checked``: an entry that cannot be read says so by itself; ``told``: what there is to tell of
    the calls that were left out.
    """

    handlers: Handlers
    request: BatchRequest
    sources: Mapping[int, Source]
    checked: bool
    told: list[str] = field(default_factory=list)

    def judge(self, error: UserFunctionError, group: Sequence[StatefulOp]) -> None:
        """Returns where the call is to be left out. DescribedFailure where it stops the instance,
        RetriableError for RETRY and where a serde has no answer, DamagedEntryError."""
        call, cause = error.call, error.__cause__ or error
        assert call is not None
        if not self.checked:
            raise UncheckedCallError from error
        if (damage := damage_in(cause)) is not None:
            raise damage from damage.__cause__
        op = next((one for one in group if one.name == error.node), group[0])
        if (away := serde_outage(RecordFailure(None, op.where, cause))) is not None:
            raise away from cause
        task = TaskId(op.subtopology, call.partition)
        where = "" if op.name == call.node else f", in node {op.name}"
        text = (
            f"{error_text(cause)}\n  in the clock's call of {error.function} at {call.time_ms} ms, "
            f"node {call.node}, task {task}{where}"
        )
        context = ErrorHandlerContext(
            stage=PROCESSING,
            topic=None,
            partition=-1,
            offset=-1,
            timestamp=call.time_ms,
            headers=(),
            source_raw_key=None,
            source_raw_value=None,
            processor_node_id=op.name,
            task_id=str(task),
            attempt=self.request.attempt,
        )
        response = self.handlers.answer(context, cause)
        if response is Response.FAIL:
            raise DescribedFailure(
                BatchFailure(
                    kind="fatal",
                    error=text,
                    code=error.code,
                    line=innermost_line(cause),
                    where=() if op.where is None else (op.where,),
                    details=stack_of(cause),
                    exception=class_of(cause),
                    judged=True,
                )
            ) from cause
        if response is Response.RETRY:
            raise RetriableError(f"{text} (its handler says RETRY)", self._inputs(task)) from cause
        first, _, rest = text.rpartition("\n  ")
        self.told.append(f"{first.partition(chr(10))[0]:.300} {rest}")

    def _inputs(self, task: TaskId) -> list[TopicPartition]:
        topics = {one.topic for one in self.sources.values() if one.subtopology == task.subtopology}
        return [
            tp
            for tp in self.request.ranges
            if tp.partition == task.partition and tp.topic in topics
        ]


def run_stateful(
    group: Sequence[StatefulOp],
    sides: Sequence[Sequence[EdgeBatch]],
    stores: TaskStores,
    sources: Mapping[int, Source],
    request: BatchRequest,
    idle: Moved,
    judge: ClockJudge,
    every_failure: bool = False,
    through: LookThrough | None = None,
) -> list[TasksResult]:
    """Run an operator, or processors that share stores, on the tasks that have records, or that a
    clock may call, and move the stream times of those that are ``idle``; ``sides``: the records of
    each side of each. `stores` shows their changes to those behind them. ``judge`` says whether
    they run without a clock's call that fails. RecordFailure, and what the judge raises;
    ``every_failure``: with the others on which the operator fails, on stores that are checked:
    those run when a record is about to be blamed (note 041)."""
    moved = [times_of(op, idle) for op in group]
    tasks = _tasks(group, sides, moved, request)
    run = _GroupRun(group, sources, request, judge, through)
    try:
        if not tasks:
            done = [TasksResult(empty_like(op.type.key, op.type.value), {}, {}, {}) for op in group]
        else:
            done = run(sides, tasks, moved, stores)
        for result in done:
            _remember(tasks, result, stores)
        return [
            advanced(op, result, mine, times, stores)
            for op, result, mine, times in zip(group, done, sides, moved, strict=True)
        ]
    except UserFunctionError as error:
        op = run.failed_in(error)
        if error.source not in sources:  # `close`, behind all records
            cause = error.__cause__ or error
            raise RecordFailure(None, op.where, cause) from cause
        searchable = (every_failure or error.together) and run.may_be_cut(sides)
        if searchable and damage_in(error) is None and isinstance(stores.access, CheckedAccess):
            most = MOST_FAILING if every_failure else 1
            found = run.all_failures(sides, tasks, stores, error, most)
            raise_all([_of_record(run.failed_in(one), sources, one) for one in found])
        failure = _of_record(op, sources, error)
        failure.searchable = searchable
        raise failure from failure.__cause__


@dataclass(frozen=True)
class _GroupRun:
    """How an operator, or processors that share stores, run in one run of a step."""

    group: Sequence[StatefulOp]
    sources: Mapping[int, Source]
    request: BatchRequest
    judge: ClockJudge
    through: LookThrough | None = None
    """See `Inputs`."""

    def __call__(
        self,
        sides: Sequence[Sequence[EdgeBatch]],
        tasks: _Tasks,
        moved: Sequence[Mapping[int, int]],
        stores: TaskStores,
    ) -> list[TasksResult]:
        """What each makes of these records. UserFunctionError."""
        if not isinstance(self.group[0].operator, ProcessorOperator):
            now_ms = self.request.wall_clock_ms
            return [_run(self.group[0], sides[0], tasks, stores, now_ms, self.through)]
        return _judged(
            lambda skipped: _run_processors(
                self.group, sides, tasks, moved, stores, self.sources, self.request, skipped
            ),
            self.group,
            self.judge,
        )

    def failed_in(self, error: UserFunctionError) -> StatefulOp:
        """The operator that ``error`` is of."""
        return next((one for one in self.group if one.name == error.node), self.group[0])

    def may_be_cut(self, sides: Sequence[Sequence[EdgeBatch]]) -> bool:
        """Whether these records can be given to it in parts, each on the stores of the part
        before: not where those are versioned, where it reads tables that have updates among these
        records, nor where records wait for the clock."""
        for op, mine in zip(self.group, sides, strict=True):
            operator = op.operator
            processes = isinstance(operator, ProcessorOperator)
            waits = operator.looks_up or operator.look_every_ms is not None
            if operator.through or operator.old_sides or (waits and not processes):
                return False
            updated = not processes or any(map(len, mine[1:]))
            if any(spec.versioned for spec in op.stores) or (op.reads and updated):
                return False
        return True

    def all_failures(
        self,
        sides: Sequence[Sequence[EdgeBatch]],
        tasks: _Tasks,
        stores: TaskStores,
        error: UserFunctionError,
        most: int,
    ) -> list[UserFunctionError]:
        """All records on which it fails, of each task ``most``: at least the one of ``error``, with
        which it fails for all records."""
        counts = [len(mine) for mine in sides]
        found: list[tuple[int, UserFunctionError]] = []
        for partition, task in tasks.items():
            flat = [_of_task(one, partition) for mine in sides for one in mine]
            if not any(map(len, flat)):
                continue
            parts = PartStores(stores)

            def run(part: Sequence[EdgeBatch], task: TaskId = task, of: PartStores = parts) -> None:
                some = iter(part)
                given = [[next(some) for _ in range(count)] for count in counts]
                try:
                    done = self(given, {task.partition: task}, [{} for _ in counts], of)
                except UserFunctionError as failure:
                    if (damage := damage_in(failure)) is not None:
                        raise damage from damage.__cause__
                    raise
                for op, result in zip(self.group, done, strict=True):
                    of.remember_part(task, op.name, result)

            first = error if error.partition == partition else None
            for one in failing_records(flat, run, first, most):
                found.append((_seq_of(flat, one), one))
        found.sort(key=lambda one: one[0])
        return [one for _, one in found] or [error]


def _of_task(batch: EdgeBatch, partition: int) -> EdgeBatch:
    mine = batch.partition == partition
    return batch if mine.all() else batch.take(np.flatnonzero(mine))


def _seq_of(sides: Sequence[EdgeBatch], error: UserFunctionError) -> int:
    """The first place at which the record of ``error`` comes."""
    return min(
        int(one.seq[row])
        for one in sides
        for row in np.flatnonzero((one.source == error.source) & (one.offset == error.offset))[:1]
    )


def _of_record(
    op: StatefulOp | AskOp, sources: Mapping[int, Source], error: UserFunctionError
) -> RecordFailure:
    cause = error.__cause__ or error
    record = BadRecord(sources[error.source].topic, error.partition, error.offset, op.name)
    failure = RecordFailure(record, op.where, cause)
    failure.__cause__ = cause
    return failure


def _judged(
    run: Callable[[frozenset[ClockCall]], list[TasksResult]],
    group: Sequence[StatefulOp],
    judge: ClockJudge,
) -> list[TasksResult]:
    """What ``run`` makes without the calls that fail and are to be left out: it writes nothing, so
    it is run again without the call, of which nothing stays."""
    skipped: list[ClockCall] = []
    while True:
        try:
            done = run(frozenset(skipped))
        except UserFunctionError as error:
            if error.call is None or error.call in skipped:
                raise
            judge.judge(error, group)
            skipped.append(error.call)
            continue
        for call in skipped:
            number = next(n for n, op in enumerate(group) if op.name == call.node)
            dropped = done[number].dropped
            dropped[PUNCTUATION] = dropped.get(PUNCTUATION, 0) + 1
        return done


def clock_name(node: str, method: str) -> str:
    """Under which a method's last call by the wall clock is kept beside the nodes' stream times."""
    return f"{node}/{method}"


def _remember(tasks: _Tasks, done: TasksResult, stores: TaskStores) -> None:
    for partition, listed in done.changes.items():
        for changes in listed:
            stores.remember(tasks[partition], changes)


def _tasks(
    group: Sequence[StatefulOp],
    sides: Sequence[Sequence[EdgeBatch]],
    moved: Sequence[Mapping[int, int]],
    request: BatchRequest,
) -> _Tasks:
    subtopology = group[0].subtopology
    found = np.unique(np.concatenate([one.partition for mine in sides for one in mine]))
    partitions = set(found.tolist())
    if isinstance(group[0].operator, ProcessorOperator):
        partitions = partitions.union(*moved)
    tasks = {partition: TaskId(subtopology, partition) for partition in sorted(partitions)}
    if any(op.look_every_ms is not None for op in group):
        mine = (one.task for one in request.tasks if one.task.subtopology == subtopology)
        tasks |= {task.partition: task for task in mine}
    return tasks


def _views(op: StatefulOp, tasks: _Tasks, stores: TaskStores) -> _Views:
    whole = stores.whole(op.looks_up)
    return {
        partition: {**stores.views(task, op.stores), **stores.before(task, op.reads), **whole}
        for partition, task in tasks.items()
    }


def _times(op: StatefulOp, tasks: _Tasks, stores: TaskStores) -> Mapping[int, int]:
    return {partition: stores.stream_time(task, op.name) for partition, task in tasks.items()}


def _clocks(op: StatefulOp, tasks: _Tasks, stores: TaskStores) -> Mapping[int, Mapping[str, int]]:
    if isinstance(stores, PartStores):
        return {}  # the wall clock calls behind all records
    return {
        partition: {name: stores.stream_time(task, clock_name(op.name, name)) for name in op.clocks}
        for partition, task in tasks.items()
    }


def _run(
    op: StatefulOp,
    sides: Sequence[EdgeBatch],
    tasks: _Tasks,
    stores: TaskStores,
    now_ms: int,
    through: LookThrough | None,
) -> TasksResult:
    inputs = Inputs(
        sides,
        _views(op, tasks, stores),
        _times(op, tasks, stores),
        _clocks(op, tasks, stores),
        now_ms,
        through,
    )
    try:
        return op.operator.run(inputs)
    except (SerdeError, struct.error) as error:
        # Records are decoded by now, and what cannot be written fails as its record's: these bytes
        # are a store's, of a layout that only the operator knows.
        read = (*op.stores, *op.reads)
        if read and isinstance(stores.access, CheckedAccess) and not is_outage(error):
            owners = [stores.tasks[task] for task in tasks.values()]
            raise stores.access.unread(owners, read, error) from error
        raise


def _run_processors(
    group: Sequence[StatefulOp],
    sides: Sequence[Sequence[EdgeBatch]],
    tasks: _Tasks,
    moved: Sequence[Mapping[int, int]],
    stores: TaskStores,
    sources: Mapping[int, Source],
    request: BatchRequest,
    skipped: frozenset[ClockCall],
) -> list[TasksResult]:
    """Processors, told of their stores and clocks and of where they are."""
    sharing = []
    for op, mine, idle in zip(group, sides, moved, strict=True):
        assert isinstance(op.operator, ProcessorOperator)
        sharing.append(
            SharingProcessor(
                name=op.name,
                operator=op.operator,
                batch=mine[0],
                updates=tuple(mine[1:]),
                stores=_views(op, tasks, stores),
                stream_times=_times(op, tasks, stores),
                clocks=_clocks(op, tasks, stores),
                links=op.links,
                idle=idle,
            )
        )
    topics = {index: source.topic for index, source in sources.items()}
    around = Surroundings(
        request.application_id, group[0].subtopology, topics, request.wall_clock_ms, skipped
    )
    return sharing[0].operator.run_together(sharing, around)


def ask(
    op: AskOp, rows: EdgeBatch, sources: Mapping[int, Source], request: BatchRequest
) -> EdgeBatch:
    """What a table's transformer makes of rows that are looked up. RecordFailure."""
    none: Mapping[int, Any] = {int(partition): {} for partition in np.unique(rows.partition)}
    one = SharingProcessor(
        name=op.name,
        operator=op.operator,
        batch=replace(rows, seq=np.arange(len(rows), dtype=np.int64)),
        updates=(),
        stores=none,
        stream_times=dict.fromkeys(none, -1),
        clocks=none,
    )
    topics = {index: source.topic for index, source in sources.items()}
    around = Surroundings(
        request.application_id, op.subtopology, topics, request.wall_clock_ms, frozenset()
    )
    try:
        (done,) = op.operator.run_together([one], around)
    except UserFunctionError as error:
        if error.source not in sources:  # `close`, behind all records
            raise RecordFailure(None, op.where, error.__cause__ or error) from error.__cause__
        failure = _of_record(op, sources, error)
        raise failure from failure.__cause__
    return replace(in_order(done.output), seq=rows.seq)


def with_old_values(op: StatefulOp, done: EdgeBatch, stores: TaskStores) -> EdgeBatch:
    """The results in order, with what the entries of each were before (`with_old`)."""
    tasks = {int(one): TaskId(op.subtopology, int(one)) for one in np.unique(done.partition)}
    views = {
        partition: stores.before(task, (*op.stores, *op.reads)) for partition, task in tasks.items()
    }
    return in_order(with_old(op, done, views))
