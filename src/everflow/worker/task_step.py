"""Runs the operators of a plan on a micro-batch, in a Spark Python worker or in the test driver.

It knows neither Kafka nor Spark: Columns are computed by `RunsColumns`, and everything that
comes of the batch is handed to a `Sink`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.handlers import PROCESSING, PRODUCTION, Handlers
from everflow.operators.user_code import refused, require_users
from everflow.protocol.messages import (
    Ages,
    BatchRequest,
    BatchResult,
    LetterGroup,
    Printed,
    timed,
)
from everflow.records import (
    EdgeBatch,
    KeyPlaces,
    StoreChanges,
    TaskId,
    TasksResult,
    TopicPartition,
    names_a_topic,
)
from everflow.serdes import Serde
from everflow.serdes.windowed import python_keys
from everflow.topology.arrival import Ways
from everflow.topology.batches import BatchInput, KnownResults, in_order
from everflow.topology.plan import (
    DEAD_LETTER_SLOT,
    AskOp,
    ColumnsOp,
    FunctionOp,
    PhysicalPlan,
    PrintOp,
    SinkOp,
    Source,
    StatefulOp,
    StepOp,
    TakeOp,
    TimeOp,
    UnnestOp,
)
from everflow.user_program import shown
from everflow.worker.failures import RecordFailure, Sources, raise_all, raise_of
from everflow.worker.functions import Partitions, printed_of, run_function, take, unnest
from everflow.worker.order import DepthFirst, InOrder, Records, merge_inputs, merge_tasks
from everflow.worker.stateful import (
    GroupRun,
    RanOperator,
    UncheckedCallError,
    ask,
    clock_name,
    independent,
    sees_one_record,
    with_old_values,
)
from everflow.worker.stores import CheckedAccess, StoreAccess, TaskStores
from everflow.worker.times import Moved, ages_read, extract_times, moved, source_times


class RunsColumns(Protocol):
    """`everflow.worker.columns.PreparedColumns`, whose engines a step does not know."""

    def run(self, records: Records, client: Any) -> None:
        """Adds the slots that it makes to ``records``. ``client``: where Spark's code runs."""


@dataclass(kw_only=True)
class SinkOutput:
    """Records for one sink, in merge order. ``topics``: one, or one for each; keys and values are
    bytes."""

    node: str
    topics: str | list[str]
    keys: pa.Array
    values: pa.Array
    batch: EdgeBatch
    partitions: Partitions | None = None
    """What says where each goes; None: its key."""


@dataclass(kw_only=True)
class StepResult:
    """All effects of one micro-batch, before any of them has happened.

    ``changes`` are in order; ``consumed`` is the next offset; ``stream_times`` maps task -> node ->
    ms; ``dropped`` node -> reason -> records left
    out; ``dead_letters`` are undecodable records (key = raw key, value = struct<value, error>).
    """

    outputs: list[SinkOutput] = field(default_factory=list)
    changes: dict[TaskId, list[StoreChanges]] = field(default_factory=dict)
    consumed: dict[TopicPartition, int] = field(default_factory=dict)
    stream_times: dict[TaskId, dict[str, int]] = field(default_factory=dict)
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    dead_letters: EdgeBatch | None = None
    letters: list[LetterGroup] = field(default_factory=list)
    """All that handlers left out, by cause."""
    left_out: list[str] = field(default_factory=list)
    """What to tell of calls of clocks that were left out."""
    remarks: list[str] = field(default_factory=list)
    """What else is logged once the batch is committed."""
    skipped: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    """Keys of records without a time, of topics that are changelogs, too (note 065)."""
    timings: dict[str, float] = field(default_factory=dict)
    ages: list[Ages] = field(default_factory=list)
    printed: list[Printed] = field(default_factory=list)
    input_bytes: int = 0
    """Arrow bytes of the input: what ``max.batch.bytes`` bounds."""
    keys: Sequence[KeyPlaces] = ()
    """Of its records, where keys lie."""

    def add(self, op: StatefulOp, done: TasksResult) -> None:
        if missing := set(done.changes) - set(done.stream_times):
            raise ValueError(f"{op.name} changed its store without a stream time: {missing}")
        for partition, stream_time in done.stream_times.items():
            task = TaskId(op.subtopology, partition)
            self.stream_times.setdefault(task, {})[op.name] = stream_time
            self.stream_times[task].update(
                {
                    clock_name(op.name, name): ms
                    for name, ms in done.clocks.get(partition, {}).items()
                }
            )
            if done.changes.get(partition):
                self.changes.setdefault(task, []).extend(done.changes[partition])
        self.remarks += done.remarks
        for reason, count in done.dropped.items():
            reasons = self.dropped.setdefault(op.name, {})
            reasons[reason] = reasons.get(reason, 0) + count


class Sink(Protocol):
    """Makes a micro-batch's effects real. Picklable; called once per batch."""

    def __call__(
        self, request: BatchRequest, result: StepResult, sources: Sources
    ) -> BatchResult: ...


@dataclass(frozen=True, kw_only=True)
class TaskStep:
    """The operators of a plan; picklable. ``times`` give records their times, before the inputs of
    tasks are merged; ``ops``: all that comes behind."""

    times: tuple[TimeOp | RunsColumns, ...]
    ops: tuple[StepOp | RunsColumns, ...]
    sources: tuple[Source, ...]
    stores: StoreAccess
    sink: Sink
    ways: Mapping[str, Ways] = field(default_factory=dict)
    """See `PhysicalPlan.ways`."""
    every_failure: bool = False
    """A record that fails need not stop the instance: then all that a function fails on are told
    at once."""
    handlers: Handlers = field(default_factory=Handlers)
    """Asked here about calls of clocks that fail."""

    @staticmethod
    def of(
        plan: PhysicalPlan,
        columns: Sequence[RunsColumns],
        stores: StoreAccess,
        sink: Sink,
        *,
        handlers: Handlers | None = None,
    ) -> TaskStep:
        waiting = iter(columns)

        def prepared(op: Any) -> Any:
            if isinstance(op, StatefulOp) and op.through:
                through = [replace(one, ops=tuple(map(prepared, one.ops))) for one in op.through]
                return replace(op, through=tuple(through))
            return next(waiting) if isinstance(op, ColumnsOp) else op

        return TaskStep(
            times=tuple(map(prepared, plan.times)),
            ops=tuple(map(prepared, plan.ops)),
            sources=plan.sources,
            stores=stores,
            sink=sink,
            ways=plan.ways,
            every_failure=handlers is not None and handlers.may_continue(PROCESSING),
            handlers=handlers or Handlers(),
        )

    @property
    def stateful(self) -> tuple[StatefulOp, ...]:
        return tuple(op for op in self.ops if isinstance(op, StatefulOp))

    @property
    def ordered_by_users(self) -> bool:
        """True if times that users' functions give decide the order of several inputs."""
        return any(source.merged for source in self.sources) and any(
            isinstance(op, TimeOp) and op.extractor for op in self.times
        )

    def run(
        self,
        request: BatchRequest,
        decoded: BatchInput,
        client: Any,
        timings: dict[str, float],
    ) -> BatchResult:
        """Run the operators on decoded records. Raises DescribedFailure for a clock's call that
        stops the instance, RecordFailure and SparkSays for a record."""
        try:
            return self._run(request, decoded, client, timings)
        except UncheckedCallError:  # nothing was written: the operators come before the sink
            checked = replace(self, stores=CheckedAccess.of(self.stores, self.stateful))
            return checked._run(request, decoded, client, timings)

    def _run(
        self,
        request: BatchRequest,
        decoded: BatchInput,
        client: Any,
        timings: dict[str, float],
    ) -> BatchResult:
        ran: dict[str, RanOperator] = {}
        before_state = True
        try:
            records, result = self._merged(request, decoded, client, timings)
            idle = moved(request, self.sources, result.consumed)
            shared = self._shared_stores(bool(idle))
            with TaskStores(self.stores, request.tasks, shared, request.global_tasks) as stores:
                running = _Running(
                    step=self,
                    request=request,
                    records=records,
                    order=DepthFirst(records, self.ways) if self.ways else InOrder(records),
                    result=result,
                    stores=stores,
                    idle=idle,
                    known=decoded.known if self.every_failure else None,
                    ran=ran,
                    client=client,
                )
                for op in self.ops:
                    before_state = before_state and not isinstance(op, StatefulOp)
                    with timed(timings, "operators" if isinstance(op, StepOp) else "columns"):
                        if isinstance(op, StepOp):
                            running.run(op)
                        else:
                            op.run(records, client)
        except RecordFailure as error:
            error.before_state = before_state
            if error.others and not before_state:
                error.others = self._independent(error, list(ran.values()))
            raise
        result.timings = timings
        letters = records.get(DEAD_LETTER_SLOT)
        result.dead_letters = letters if letters is not None and len(letters) else None
        return self.sink(request, result, self.sources)

    def _independent(
        self, error: RecordFailure, ran: Sequence[RanOperator]
    ) -> tuple[RecordFailure, ...]:
        """The other records that fail without the first, too; none where the order of all may be
        another one without them."""
        if self.ordered_by_users:
            return ()
        record = error.failure.record
        together = {op.name for op in self.stateful if not sees_one_record(op)}
        alone = record is not None and record.node not in together
        return independent((error, *error.others), ran, self.sources, alone)[1:]

    def _merged(
        self,
        request: BatchRequest,
        decoded: BatchInput,
        client: Any,
        timings: dict[str, float],
    ) -> tuple[Records, StepResult]:
        """The records of the batch with their times, in merge order, and what has come of them."""
        hop = replace(decoded, batches=dict(decoded.batches), rows=dict(decoded.rows))
        for op in self.times:
            if not isinstance(op, TimeOp):
                with timed(timings, "columns"):
                    op.run(hop.batches, client)
        times = [op for op in self.times if isinstance(op, TimeOp)]
        extracted = extract_times(times, hop, self.sources, request, self.every_failure)
        records, consumed = merge_inputs(
            hop, self.sources, request.ranges, request.log_ends, request.waits
        )
        stream_times = extracted.stream_times(consumed, request)
        for task, names in source_times(hop, self.sources, request, consumed).items():
            stream_times.setdefault(task, {}).update(names)
        result = StepResult(
            consumed=consumed,
            stream_times=stream_times,
            dropped=extracted.dropped(consumed),
            skipped=extracted.left_out(consumed, request, self.sources),
            ages=ages_read(hop, self.sources, consumed, _newest(request)),
            input_bytes=hop.bytes,
            keys=hop.keys,
        )
        return records, result

    def _shared_stores(self, idle: bool) -> frozenset[str]:
        """Stores that more than one operator reads: those need the batch's own changes
        on top (D5). So do those of operators whose stream time moves behind the batch's
        records (``idle``)."""
        users: dict[str, set[str]] = {}
        twice = set[str]()
        for op in self.stateful:
            for spec in op.stores:  # processors that share one run as one operator
                users.setdefault(spec.name, set()).add((*op.together, op.name)[0])
                twice |= {spec.name} if idle and op.idle else set()
        return frozenset(twice.union(name for name, of in users.items() if len(of) > 1))


@dataclass(frozen=True, kw_only=True)
class _Running:
    step: TaskStep
    request: BatchRequest
    records: Records
    order: InOrder
    result: StepResult
    stores: TaskStores
    idle: Moved
    known: KnownResults | None
    ran: dict[str, RanOperator]
    client: Any

    def run(self, op: StepOp) -> None:
        order, every, sources = self.order, self.step.every_failure, self.step.sources
        match op:
            case StatefulOp():
                if op.output not in self.records:  # else it ran with those it shares stores with
                    self._run_stateful(op)
            case PrintOp():
                shown_rows = printed_of(op, merge_tasks(in_order(order.read(op))))
                self.result.printed += [shown_rows] if shown_rows.rows else []
            case SinkOp():
                self.result.outputs += _to_outputs(op, order.read(op), sources, every)
            case FunctionOp():
                order.keep(op, run_function(op, order.read(op), sources, every, self.known))
            case AskOp():
                order.keep(op, ask(op, order.read(op), sources, self.request))
            case TakeOp():
                order.keep(op, take(op, order.read(op)))
            case UnnestOp():
                order.keep(op, unnest(op, order.read(op)))

    def _run_stateful(self, op: StatefulOp) -> None:
        by_name = {one.name: one for one in self.step.stateful}
        group = [by_name[name] for name in op.together] or [op]
        sides = self.order.sides(group)
        for one, given in zip(group, sides, strict=True):
            if one.through:  # what fails while it looks rows up is linked to these records
                none = TasksResult(given[0].take(np.empty(0, np.int64)), {}, {}, {})
                self.ran[one.name] = RanOperator.of(one, given, none)
        run = GroupRun(
            group,
            self.step.sources,
            self.request,
            self.stores,
            self.step.handlers,
            self.result.left_out,
            partial(self._looked_through, op),
        ).run(sides, self.idle, self.step.every_failure)
        for one, given, done in zip(group, sides, run, strict=True):
            self.ran[one.name] = RanOperator.of(one, given, done)
            self.result.add(one, done)
            output = done.output
            if one.old is not None:
                output = with_old_values(one, output, self.stores)
            self.order.keep(one, output)

    def _looked_through(self, op: StatefulOp, nodes: tuple[str, ...], rows: EdgeBatch) -> EdgeBatch:
        """What stateless nodes make of rows that ``op`` has found in a store, row by row."""
        through, sources = next(one for one in op.through if one.nodes == nodes), self.step.sources
        found: Records = {through.input: rows}
        for stage in through.ops:
            if isinstance(stage, FunctionOp):
                given, every = found[stage.inputs[0]], self.step.every_failure
                found[stage.output] = run_function(stage, given, sources, every)
            elif isinstance(stage, AskOp):
                found[stage.output] = ask(stage, found[stage.inputs[0]], sources, self.request)
            else:
                stage.run(found, self.client)
        return found[through.output]


# --- operators ------------------------------------------------------------------------------------


def _to_outputs(
    op: SinkOp, batch: EdgeBatch, sources: Sources, every_failure: bool = False
) -> list[SinkOutput]:
    batch = merge_tasks(in_order(batch))
    if op.drop_null_keys and batch.key.null_count:
        batch = batch.take(np.flatnonzero(batch.key.is_valid().to_numpy(zero_copy_only=False)))
    if not len(batch):
        return []
    said = None
    if op.partitioner == "column":
        said = pc.struct_field(batch.value, [0])
        batch = batch.with_columns(value=pc.struct_field(batch.value, [1]))
    topics, value = _topics(op, batch, sources, every_failure)
    keys = _encoded(op, op.key_serde, batch.key, batch, sources)
    values = _encoded(op, op.value_serde, value, batch, sources)
    partitions = None
    if op.partitioner is not None:
        seen_by_it = batch.with_columns(value=value)
        partitions = Partitions(
            op=op,
            sources=sources,
            batch=seen_by_it,
            said=said,
            keys=keys,
            every_failure=every_failure,
        )
    return [
        SinkOutput(
            node=op.name,
            topics=topics,
            keys=keys,
            values=values,
            batch=batch,
            partitions=partitions,
        )
    ]


_NOWHERE = "nowhere"
"""Stands for the topic of a record that has none."""


def _topics(
    op: SinkOp, batch: EdgeBatch, sources: Sources, every_failure: bool
) -> tuple[str | list[str], pa.Array]:
    """Topic of all records or one for each, and the value. RecordFailure where it cannot be
    told."""
    if isinstance(op.topic, str):
        return op.topic, batch.value
    topics: list[str] = []
    failures: list[RecordFailure] = []
    if op.topic is None:
        topics, value = (
            pc.struct_field(batch.value, [0]).to_pylist(),
            pc.struct_field(batch.value, [1]),
        )
    else:
        value = batch.value
        for row, (k, v) in enumerate(zip(python_keys(batch.key), value.to_pylist(), strict=True)):
            try:
                topics.append(op.topic(k, v))
            except BaseException as error:
                require_users(error)
                failures.append(RecordFailure.of(op, sources, batch, row, error))
                if not every_failure:
                    break
                topics.append(_NOWHERE)
    if failures and not every_failure:
        raise_all(failures)
    legal = {_NOWHERE} if failures else set[str]()
    for row, topic in enumerate(topics):
        if isinstance(topic, str) and topic in legal:
            continue
        if not names_a_topic(topic):
            found = ValueError(
                f"the topic to write to is {shown(topic)}, not a name: 1 to 249 letters, digits, "
                f"'.', '_' or '-' are one"
            )
            failures.append(RecordFailure.of(op, sources, batch, row, found))
            if not every_failure:
                break
        else:
            legal.add(topic)
    if failures:
        raise_all(failures)
    return topics, value


def _encoded(
    op: SinkOp,
    serde: Serde,
    column: pa.Array,
    batch: EdgeBatch,
    sources: Sources,
) -> pa.Array:
    """Final bytes. RecordFailure for all values that their serde cannot write."""
    try:
        return serde.encode_array(column)
    except BaseException as error:
        require_users(error)
        causes = refused(serde, column, error)
        if not causes:
            raise
        raise_of(op, sources, batch, causes, PRODUCTION)


def _newest(request: BatchRequest) -> dict[TaskId, int]:
    return {task.task: max(task.stream_times.values(), default=-1) for task in request.tasks}
