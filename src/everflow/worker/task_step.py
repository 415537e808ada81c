"""Runs the operators of a plan on a micro-batch, in a Spark Python worker or in the test driver.

It knows neither Kafka nor Spark: Columns are computed by `RunsColumns`, and everything that
comes of the batch is handed to a `Sink`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.columns.key_partitions import BY_HASH
from everflow.errors import EverflowError
from everflow.handlers import PROCESSING, PRODUCTION, Handlers
from everflow.operators.user_code import refused, require_users
from everflow.protocol.messages import (
    CALLS,
    Ages,
    BadRecord,
    BatchRequest,
    BatchResult,
    LetterGroup,
    Printed,
    Rows,
    timed,
)
from everflow.records import (
    LAST_SEQ,
    EdgeBatch,
    Int64,
    KeyPlaces,
    StoreChanges,
    TaskId,
    TasksResult,
    TopicPartition,
    names_a_topic,
    no_headers,
    valid,
)
from everflow.serdes import Serde
from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.registered import bare, header_of, in_headers
from everflow.serdes.windowed import python_keys
from everflow.serdes.wire_format import with_ids
from everflow.topology.arrival import Ways
from everflow.topology.batches import BatchInput, KnownResults, Made, in_order, joined
from everflow.topology.event_time import Teller
from everflow.topology.graph import CallLimits, FunctionNode, PrintNode, TakeNode, UnnestNode
from everflow.topology.partitioners import OF_WINDOWS, KeyField, partitions_of
from everflow.topology.plan import (
    DEAD_LETTER_SLOT,
    AskOp,
    AssumedOp,
    ColumnsOp,
    NodeOp,
    PhysicalPlan,
    SinkOp,
    StatefulOp,
    StepOp,
    TimeOp,
    WriteOp,
)
from everflow.topology.sources import Source
from everflow.user_program import one_line, shown
from everflow.worker.assumed_keys import require_in_place
from everflow.worker.calls import AT_LEISURE, MakesCalls, Named, Place, SideBySide
from everflow.worker.certain_times import CertainTimes, certain_times
from everflow.worker.failures import (
    CallsEnded,
    FailedRows,
    Failures,
    MoreRecords,
    RecordFailure,
    Sources,
    of_connector,
    raise_all,
)
from everflow.worker.order import (
    Order,
    Records,
    merge_by_certain_times,
    merge_inputs,
    merge_tasks,
)
from everflow.worker.stateful import (
    GroupRun,
    RanOperator,
    TimesOf,
    UncheckedCallError,
    ask,
    clock_name,
    independent,
    sees_one_record,
    times_of,
    with_old_values,
)
from everflow.worker.stores import CheckedAccess, StoreAccess, TaskStores
from everflow.worker.times import ages_read, bounded, extract_times, moved, source_times

RunsColumns = Callable[[Records, Any], None]
"""`everflow.worker.columns.PreparedColumns`: adds the slots that it makes to the records."""


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


@dataclass(frozen=True)
class GivenRows:
    """Records that a `WriteOp` is to give its sink, in merge order."""

    op: WriteOp
    batch: EdgeBatch


@dataclass(kw_only=True)
class StepResult:
    """All effects of one micro-batch, before any of them has happened. ``changes`` are in order;
    ``consumed`` is the next offset; ``stream_times`` maps task -> node -> ms; ``dropped`` node ->
    reason -> records left out; ``dead_letters`` are undecodable records (key = raw key, value =
    struct<value, error>)."""

    outputs: list[SinkOutput] = field(default_factory=list)
    given: list[GivenRows] = field(default_factory=list)
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
    rows: list[Rows] = field(default_factory=list)
    """That were read from connectors."""
    heads: dict[TopicPartition, int] = field(default_factory=dict)
    """See `BatchResult`."""
    next: Sequence[BadRecord] = ()
    """See `BatchResult`."""
    left: int = 0
    """Records of which the next batch makes more: see `TasksResult.ends`."""
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


Sink = Callable[[BatchRequest, StepResult, Sources], BatchResult]
"""Makes a micro-batch's effects real. Picklable; called once per batch."""


@dataclass(frozen=True, kw_only=True)
class TaskStep:
    """A plan's operators; picklable. ``times`` come before the merge of inputs, then ``ops``."""

    times: tuple[TimeOp | RunsColumns, ...]
    ops: tuple[StepOp | RunsColumns, ...]
    sources: tuple[Source, ...]
    stores: StoreAccess
    sink: Sink
    ways: Mapping[str, Ways] = field(default_factory=dict)
    """See `PhysicalPlan.ways`."""
    every_failure: bool = False
    """A record that fails need not stop the instance: then all that a function fails on are
    reported at once."""
    handlers: Handlers = field(default_factory=Handlers)
    """Asked here about calls of clocks that fail."""
    calls: SideBySide = field(default_factory=SideBySide)
    tellers: tuple[Teller, ...] = ()
    """See `PhysicalPlan.tellers`."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Of each input topic; of one that is not there 1."""

    @staticmethod
    def of(
        plan: PhysicalPlan,
        columns: Sequence[RunsColumns],
        stores: StoreAccess,
        sink: Sink,
        *,
        handlers: Handlers | None = None,
        calls: SideBySide | None = None,
        partitions: Mapping[str, int] = MappingProxyType({}),
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
            calls=calls or SideBySide(),
            tellers=plan.tellers,
            partitions={op.topic: partitions.get(op.topic, 1) for op in plan.assumed},
        )

    @cached_property
    def side_by_side(self) -> int:
        """How many operators make calls side by side: they share a batch's time."""
        nodes = (op.node for op in self.ops if isinstance(op, NodeOp))
        return sum(isinstance(node, FunctionNode) and node.calls is not None for node in nodes)

    @cached_property
    def stateful(self) -> tuple[StatefulOp, ...]:
        return tuple(op for op in self.ops if isinstance(op, StatefulOp))

    @cached_property
    def _marks(self) -> frozenset[str]:
        """Of operators in pieces, what is kept beside stream times."""
        pieces = [op for op in self.stateful if op.operator.in_pieces]
        return frozenset(clock_name(op.name, mark) for op in pieces for mark in op.operator.marks)

    @cached_property
    def _used_by_several(self) -> frozenset[str]:
        """Stores of several operators (D5); processors that share one run as one operator."""
        users: dict[str, set[str]] = {}
        for op in self.stateful:
            for spec in op.stores:
                users.setdefault(spec.name, set()).add((*op.together, op.name)[0])
        return frozenset(name for name, of in users.items() if len(of) > 1)

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
        """Raises RecordFailure, SparkSays; DescribedFailure for a clock's call that ends all."""
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
            records, result, certain = self._merged(request, decoded, client, timings)
            idle = moved(request, self.sources, result.consumed) if certain is None else {}
            times = partial(times_of, moved_tasks=idle) if certain is None else certain.of_operator
            shared = self._shared_stores(bool(idle), certain is not None)
            with TaskStores(
                self.stores,
                request.tasks,
                shared,
                request.global_tasks,
            ) as stores:
                running = _Running(
                    step=self,
                    request=request,
                    records=records,
                    order=Order(records, self.ways),
                    result=result,
                    stores=stores,
                    times=times,
                    known=decoded.known if self.every_failure or self.side_by_side else None,
                    ran=ran,
                    client=client,
                )
                for op in self.ops:
                    before_state = before_state and not isinstance(op, StatefulOp)
                    with timed(timings, _phase(op)):
                        running.run(op)
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
    ) -> tuple[Records, StepResult, CertainTimes | None]:
        """The records of the batch with their times, in merge order, and what has come of them."""
        batch_input = replace(decoded, batches=dict(decoded.batches), rows=dict(decoded.rows))
        for op in self.times:
            if not isinstance(op, TimeOp):
                with timed(timings, "columns"):
                    op(batch_input.batches, client)
        times = [op for op in self.times if isinstance(op, TimeOp)]
        extracted = extract_times(
            times,
            batch_input,
            self.sources,
            request,
            self.every_failure,
        )
        remarks = []
        if request.most_ms is not None:
            remarks = bounded(batch_input, self.sources, request.most_ms)
        certain = certain_times(batch_input, self.sources, request)
        if certain is not None and batch_input.decode_taken is not None:
            with timed(timings, "decode"):
                batch_input.decode_taken(batch_input, certain.kept)
        if certain is None:
            records, consumed = merge_inputs(
                batch_input, self.sources, request.ranges, request.log_ends, request.waits
            )
            kept = source_times(batch_input, self.sources, request, consumed)
        else:
            records, consumed = merge_by_certain_times(batch_input, certain)
            kept = certain.kept_times(self.tellers, request)
            remarks += certain.remarks()
        stream_times = extracted.stream_times(consumed, request)
        for task, names in kept.items():
            stream_times.setdefault(task, {}).update(names)
        marks = self._marks
        newest = {
            one.task: max((ms for n, ms in one.stream_times.items() if n not in marks), default=-1)
            for one in request.tasks
        }
        result = StepResult(
            consumed=consumed,
            stream_times=stream_times,
            dropped=extracted.dropped(consumed),
            skipped=extracted.left_out(consumed, request),
            ages=ages_read(batch_input, self.sources, consumed, newest),
            input_bytes=batch_input.bytes,
            keys=batch_input.keys,
            remarks=remarks,
            heads={} if certain is None else certain.heads,
            next=() if certain is None else certain.next(self.sources),
        )
        return records, result, certain

    def _shared_stores(self, idle: bool, certain: bool) -> frozenset[str]:
        """Stores that need the batch's own changes: of several operators, ``idle`` ones, or all
        (``certain``), whose times move behind the records."""
        moving = [op for op in self.stateful if certain or (idle and op.idle)]
        return self._used_by_several.union(spec.name for op in moving for spec in op.stores)


def _phase(op: StepOp | RunsColumns) -> str:
    """Under which its time is counted."""
    if isinstance(op, NodeOp) and isinstance(op.node, FunctionNode) and op.node.calls is not None:
        return CALLS
    return "operators" if isinstance(op, StepOp) else "columns"


@dataclass(frozen=True, kw_only=True)
class _Running:
    step: TaskStep
    request: BatchRequest
    records: Records
    order: Order
    result: StepResult
    stores: TaskStores
    times: TimesOf
    known: KnownResults | None
    ran: dict[str, RanOperator]
    client: Any

    def run(self, op: StepOp | RunsColumns) -> None:
        if not isinstance(op, StepOp):
            op(self.records, self.client)
            return
        order = self.order
        match op:
            case StatefulOp():
                if op.output not in self.records:  # else it ran with those it shares stores with
                    self._run_stateful(op)
            case SinkOp():
                self.result.outputs += _to_outputs(op, self._failures(op))
            case WriteOp():
                rows = in_order(order.read(op))
                self.result.given += [GivenRows(op, rows)] if len(rows) else []
            case AssumedOp():
                order.keep(op, _in_place(op, self._failures(op), self.step.partitions))
            case AskOp():
                order.keep(op, ask(op, order.read(op), self.step.sources, self.request))
            case NodeOp(node=FunctionNode() as node):
                failures = self._failures(op)
                order.keep(
                    op, run_function(node, failures, op.output, self.known, self._calls(node))
                )
            case NodeOp(node=TakeNode() as node):
                order.keep(op, _taken(node, order.read(op)))
            case NodeOp(node=UnnestNode() as node):
                order.keep(op, _unnested(node, order.read(op)))
            case NodeOp(node=PrintNode() as node):
                printed = printed_of(node, merge_tasks(in_order(order.read(op))))
                self.result.printed += [printed] if printed.rows else []

    def _calls(self, node: FunctionNode) -> MakesCalls:
        if node.calls is None:
            return AT_LEISURE
        time_ms = self.request.calls_ms
        share_ms = None if time_ms is None else time_ms / self.step.side_by_side
        return self.step.calls.of(self.request, share_ms)

    def _failures(self, op: NodeOp | AssumedOp | SinkOp) -> Failures:
        """Of the records that it gets."""
        return Failures(op, self.step.sources, self.order.read(op), self.step.every_failure)

    def _run_stateful(self, op: StatefulOp) -> None:
        group = [op]
        if op.together:
            by_name = {one.name: one for one in self.step.stateful}
            group = [by_name[name] for name in op.together]
        sides = self.order.sides(group)
        for one, inputs in zip(group, sides, strict=True):
            if one.through:  # what fails while it looks rows up is linked to these records
                none = TasksResult(inputs[0].take(np.empty(0, np.int64)), {}, {}, {})
                self.ran[one.name] = RanOperator.of(one, inputs, none)
        took: dict[str, float] = {}
        try:
            with timed(took, op.name):
                run = GroupRun(
                    group,
                    self.step.sources,
                    self.request,
                    self.stores,
                    self.step.handlers,
                    self.result.left_out,
                    partial(self._mapped_rows, op),
                ).run(sides, self.times, self.step.every_failure)
        except EverflowError as error:
            if op.connector:
                of_connector(error, op.connector)
            raise
        for one, inputs, done in zip(group, sides, run, strict=True):
            self.ran[one.name] = RanOperator.of(one, inputs, done)
            self.result.add(one, done)
            if done.ends:
                source = self.step.sources[int(inputs[0].source[0])]
                ends = {source.log(partition): end for partition, end in done.ends.items()}
                self.result.left += sum(
                    self.result.consumed[log] - end for log, end in ends.items()
                )
                self.result.consumed.update(ends)
            output = done.output
            if one.operator.in_pieces:
                size = sum(column.nbytes for column in (output.key, output.value))
                self.result.rows.append(Rows(op.connector, len(output), size, took[op.name]))
            if one.old is not None:
                output = with_old_values(one, output, self.stores)
            self.order.keep(one, output)

    def _mapped_rows(
        self,
        op: StatefulOp,
        nodes: tuple[str, ...],
        rows: EdgeBatch,
    ) -> EdgeBatch:
        """What stateless nodes make of rows that ``op`` has found in a store, row by row."""
        through = next(one for one in op.through if one.nodes == nodes)
        found: Records = {through.input: rows}
        on_rows = replace(self, records=found, order=Order(found, {}), known=None)
        for stage in through.ops:
            on_rows.run(stage)
        return found[through.output]


# --- functions ------------------------------------------------------------------------------------


def run_function(
    node: FunctionNode,
    failures: Failures,
    slot: int = -1,
    known: KnownResults | None = None,
    calls: MakesCalls = AT_LEISURE,
) -> EdgeBatch:
    """Call the function for every record in order, but those whose results for ``slot`` are
    ``known``, which gets the new ones. RecordFailure (all, if every failure is wanted). ``calls``
    makes those of a node with `CallLimits`: CallsEnded where it has not made all of them,
    MoreRecords where it is to have more."""
    batch = failures.batch
    rows, before = (None, None) if known is None else known.of(slot, batch)
    if rows is None or before is None or not len(rows):
        made, uncalled, more = _called(node, failures, calls, slot)
    elif len(rows) == len(batch):
        return _with_results(node, batch, before)
    else:
        fresh = np.delete(_all(batch), rows)
        others = Failures(node, failures.sources, batch.take(fresh), failures.every)
        ready = _has_first(batch, rows)
        made, uncalled, more = _called(node, others, calls, slot, ready)
        made, uncalled = joined([before, made._replace(rows=fresh[made.rows])]), fresh[uncalled]
        failures.found.update({int(fresh[row]): failed for row, failed in others.found.items()})
    failed = failures.found
    if known is not None and not failed and not len(uncalled):
        known.keep(slot, batch, made)
    elif known is not None:
        good = np.delete(_all(batch), [*failed, *uncalled.tolist()])
        known.keep(slot, batch.take(good), made._replace(rows=np.searchsorted(good, made.rows)))
    if more:
        raise MoreRecords
    ends = _ends(failures, uncalled) if len(uncalled) else None
    if ends is not None:  # those behind the end are called again
        rows_before = [row for row in failed if _before(failures, row, ends)]
        failed = {row: failed[row] for row in rows_before}
    if failed:
        found = [failed[row] for row in sorted(failed)]
        found[0].ends = ends
        raise_all(found)
    if ends is not None:
        raise CallsEnded(ends)
    return _with_results(node, batch, made)


def _ends(failures: Failures, rows: Int64) -> dict[TopicPartition, int]:
    """The first offset of each partition among these rows."""
    ends: dict[TopicPartition, int] = {}
    for row in rows.tolist():
        log, offset = _place(failures, row)
        ends[log] = min(offset, ends.get(log, offset))
    return ends


def _before(failures: Failures, row: int, ends: Mapping[TopicPartition, int]) -> bool:
    log, offset = _place(failures, row)
    return log not in ends or offset < ends[log]


def _place(failures: Failures, row: int) -> tuple[TopicPartition, int]:
    batch = failures.batch
    source = failures.sources[int(batch.source[row])]
    return source.log(int(batch.partition[row])), int(batch.offset[row])


def _with_results(node: FunctionNode, batch: EdgeBatch, made: Made) -> EdgeBatch:
    if len(made.rows) == len(batch) and node.op not in ("flat_map", "flat_map_values"):
        return batch.with_columns(made.key, made.value)
    nothing = pa.nulls(len(batch))
    return batch.with_columns(nothing, nothing).take(made.rows).with_columns(made.key, made.value)


def _has_first(batch: EdgeBatch, rows: Int64) -> bool:
    """Whether the first record of a log is among the ``rows``."""
    _, firsts = np.unique(
        (batch.source.astype(np.int64) << 32) + batch.partition, return_index=True
    )
    return bool(np.isin(firsts, rows).any())


def _called(
    node: FunctionNode, failures: Failures, calls: MakesCalls, slot: int, ready: bool = False
) -> tuple[Made, Int64, bool]:
    """The function's results in columns, without the records on which it fails; the rows that were
    not called; and `Called.more`."""
    batch, uncalled, more = failures.batch, np.empty(0, np.int64), False
    if node.calls is None:
        results = _one_by_one(node, failures)
    else:
        named = _named(failures, slot, ready)
        results, uncalled, more = _side_by_side(node, node.calls, failures, calls, named)
    while True:
        good = _all(batch)
        fitting, fit = batch, results
        if failures.found or len(uncalled):
            good = np.delete(good, [*failures.found, *uncalled.tolist()])
            fitting, fit = batch.take(good), [results[row] for row in good.tolist()]
        try:
            made = _made_of(node, fitting, fit)
            return made._replace(rows=good[made.rows]), uncalled, more
        except FailedRows as mismatches:
            for row, cause in sorted(mismatches.rows.items()):
                failures.add(int(good[row]), cause)


def _one_by_one(node: FunctionNode, failures: Failures) -> list[Any]:
    batch, fn, taken = failures.batch, node.fn, _TAKEN.get(node.op)
    keys, values = python_keys(batch.key), batch.value.to_pylist()
    results: list[Any] = []
    pairs = zip(keys, values, strict=True)
    while len(results) < len(values):
        try:
            if taken is None:
                for key, value in pairs:
                    results.append(fn(key, value))
            else:
                for key, value in pairs:
                    results.append(taken(fn(key, value)))
        except BaseException as error:
            failures.add(len(results), error)
            results.append(None)
    return results


def _side_by_side(
    node: FunctionNode,
    limits: CallLimits,
    failures: Failures,
    calls: MakesCalls,
    named: Named,
) -> tuple[list[Any], Int64, bool]:
    batch, fn, taken, seen = failures.batch, node.fn, _TAKEN.get(node.op), named.seen
    rows = _in_turns(batch)
    # Rows of clocks have no record of their own: the batch cannot end before one of them.
    own = None if len(batch) and int(batch.seq.max()) == LAST_SEQ else named
    found = calls(lambda row: fn(*seen[row]), taken, rows, limits, failures.every, own)
    for row in sorted(found.failed):
        failures.add(row, found.failed[row])
    results = [found.results.get(row) for row in range(len(batch))]
    uncalled = [row for row in rows if row not in found.results and row not in found.failed]
    return results, np.array(sorted(uncalled), np.int64), found.more


def _named(failures: Failures, slot: int, ready: bool) -> Named:
    batch = failures.batch
    seen = list(zip(python_keys(batch.key), batch.value.to_pylist(), strict=True))
    places: list[Place] = []
    firsts: dict[TopicPartition, int] = {}
    again: dict[tuple[TopicPartition, int], int] = {}
    for row in range(len(batch)):
        log, offset = _place(failures, row)
        nth = again[log, offset] = again.get((log, offset), -1) + 1
        places.append((log, offset, nth))
        firsts.setdefault(log, row)
    return Named(slot, places, seen, frozenset(firsts.values()), ready)


def _in_turns(batch: EdgeBatch) -> list[int]:
    """Rows in the order in which their calls begin: the first of each partition, the second ones,
    and so on; where the time for calls ends, each partition has got on."""
    log = (batch.source.astype(np.int64) << 32) + batch.partition
    turns = np.empty(len(batch), np.int64)
    _, counts = np.unique(log, return_counts=True)
    behind = [np.arange(count) for count in counts.tolist()]
    turns[np.argsort(log, kind="stable")] = np.concatenate(behind) if behind else 0
    rows: list[int] = np.argsort(turns, kind="stable").tolist()
    return rows


def _values(result: Any) -> list[Any]:
    return list(_several(result, "values"))


def _pairs(result: Any) -> list[tuple[Any, Any]]:
    return [_pair(item) for item in _several(result, "pairs of key and value")]


def _several(result: Any, of_what: str) -> Iterable[Any]:
    """The values of a result; TypeError for one value that can be iterated, such as a text or a
    dict."""
    if isinstance(result, str | bytes | bytearray | Mapping):
        raise TypeError(
            f"expected a list of {of_what}, found {type(result).__name__} {shown(result)}"
        )
    return () if result is None else result


def _pair(result: Any) -> tuple[Any, Any]:
    """TypeError for what is no key and value, also for texts and dicts that have two elements."""
    cause = None
    if not isinstance(result, str | bytes | bytearray | Mapping | Set):
        try:
            key, value = result
        except (TypeError, ValueError) as error:
            cause = error
        else:
            return key, value
    raise TypeError(
        f"expected a pair of key and value, found {type(result).__name__} {shown(result)}"
    ) from cause


_TAKEN: dict[str, Callable[[Any], Any]] = {
    "flat_map_values": _values,
    "flat_map": _pairs,
    "map": _pair,
    "filter": bool,
    "filter_not": bool,
    "branch": bool,
}
"""What is made of a result at once, so that an error of it belongs to its record: generators are
drained here."""


def _all(batch: EdgeBatch) -> Int64:
    return np.arange(len(batch), dtype=np.int64)


def _made_of(node: FunctionNode, batch: EdgeBatch, results: list[Any]) -> Made:
    """The results in columns. FailedRows."""
    rows = _all(batch)
    match node.op:
        case "filter" | "filter_not":
            keep = np.array(results, bool)
            kept = np.flatnonzero(~keep if node.op == "filter_not" else keep)
            if len(kept) == len(batch):
                return Made(rows, batch.key, batch.value)
            taken = pa.array(kept, pa.int64())
            return Made(kept, batch.key.take(taken), batch.value.take(taken))
        case "branch" | "deduplicate":
            answer, value = node.out.value
            columns = [_column(results, answer.type, rows), batch.value]
            beside = pa.StructArray.from_arrays(columns, fields=[answer, value])
            return Made(rows, batch.key, beside)
        case "map":
            key = _column([key for key, _ in results], node.out.key, rows)
            return Made(rows, key, _column([value for _, value in results], node.out.value, rows))
        case "map_values":
            return Made(rows, batch.key, _column(results, node.out.value, rows))
        case "select_key":
            return Made(rows, _column(results, node.out.key, rows), batch.value)
        case "flat_map" | "flat_map_values":
            rows = np.repeat(rows, [len(result) for result in results])
            flat = [item for result in results for item in result]
            if node.op == "flat_map_values":
                keys = batch.key.take(pa.array(rows, pa.int64()))
                return Made(rows, keys, _column(flat, node.out.value, rows))
            key = _column([key for key, _ in flat], node.out.key, rows)
            return Made(rows, key, _column([value for _, value in flat], node.out.value, rows))
        case "peek" | "for_each":
            return Made(rows, batch.key, batch.value)
        case op:
            raise NotImplementedError(f"{node.name}: no code makes the results of {op}")


def _column(items: list[Any], kind: pa.DataType, rows: Int64) -> pa.Array:
    """Python results as the declared Arrow type. FailedRows: the fault of records in ``rows``."""
    try:
        return column_of(items, kind)
    except UnfitError:
        causes: dict[int, BaseException] = {}
        for row, item in zip(rows.tolist(), items, strict=True):
            try:
                column_of([item], kind)
            except UnfitError as error:
                text = f"result {shown(item)} is not of the declared type: {error}"
                cause = TypeError(text)
                cause.__cause__ = error
                causes.setdefault(row, cause)  # the first of a record's
        raise FailedRows(causes) from None


def _taken(node: TakeNode, batch: EdgeBatch) -> EdgeBatch:
    """The records whose answer is the operator's, in order, with the value that stood beside it."""
    answer = pc.fill_null(pc.struct_field(batch.value, [0]), False)
    keep = answer.to_numpy(zero_copy_only=False) == node.taken
    taken = batch if keep.all() else batch.take(np.flatnonzero(keep))
    return taken.with_columns(value=pc.struct_field(taken.value, [1]))


def _unnested(node: UnnestNode, batch: EdgeBatch) -> EdgeBatch:
    """One record per element of the list in the value; null and empty lists emit nothing."""
    lengths = (
        pc.fill_null(pc.list_value_length(batch.value), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    out = batch.take(np.repeat(_all(batch), lengths))
    items = pc.list_flatten(batch.value)
    if not node.keyed:
        return out.with_columns(value=items.cast(node.out.value))
    key, value = pc.struct_field(items, [0]), pc.struct_field(items, [1])
    return out.with_columns(key.cast(node.out.key), value.cast(node.out.value))


def _in_place(op: AssumedOp, failures: Failures, partitions: Mapping[str, int]) -> EdgeBatch:
    """The same records. RecordFailure for a key that belongs to another task."""
    batch, count = failures.batch, partitions[op.topic]
    if len(batch) and count > 1:
        serde, column = op.key_serde, batch.key
        if isinstance(op.by, KeyField):
            serde, column = op.by.serde, pc.struct_field(batch.key, op.by.field)
        require_in_place(op, failures, _encoded(serde, column, failures, PROCESSING), count)
    return batch


# --- sinks ----------------------------------------------------------------------------------------


def _to_outputs(op: SinkOp, failures: Failures) -> list[SinkOutput]:
    batch = merge_tasks(in_order(failures.batch))
    if op.drop_null_keys and batch.key.null_count:
        batch = batch.take(np.flatnonzero(valid(batch.key)))
    if not len(batch):
        return []
    said = None
    if op.partitioner == "column":
        said = pc.struct_field(batch.value, [0])
        batch = batch.with_columns(value=pc.struct_field(batch.value, [1]))
    if batch is not failures.batch:
        failures = replace(failures, batch=batch)
    topics, value = _topics(op, failures)
    keys = _encoded(op.key_serde, batch.key, failures, PRODUCTION)
    values = _encoded(op.value_serde, value, failures, PRODUCTION)
    for serde, data, part in ((op.key_serde, keys, "key"), (op.value_serde, values, "value")):
        if in_headers(serde) and data.null_count < len(data):
            headers = no_headers(len(batch)) if batch.headers is None else batch.headers
            named = with_ids(headers, part, header_of(serde), valid(data))
            batch = replace(batch, headers=named)
    output = SinkOutput(node=op.name, topics=topics, keys=keys, values=values, batch=batch)
    if op.partitioner is not None:
        if failures.batch is not batch or value is not batch.value:
            failures = replace(failures, batch=batch.with_columns(value=value))
        output.partitions = Partitions(op=op, failures=failures, said=said, keys=keys)
    return [output]


def _topics(op: SinkOp, failures: Failures) -> tuple[str | list[str], pa.Array]:
    """Topic of all records or one for each, and the value. RecordFailure where it cannot be
    computed."""
    batch = failures.batch
    if isinstance(op.topic, str):
        return op.topic, batch.value
    topics: list[Any] = []
    if op.topic is None:
        topics = pc.struct_field(batch.value, [0]).to_pylist()
        value = pc.struct_field(batch.value, [1])
    else:
        value = batch.value
        for row, (k, v) in enumerate(zip(python_keys(batch.key), value.to_pylist(), strict=True)):
            try:
                topics.append(op.topic(k, v))
            except BaseException as error:
                failures.add(row, error)
                topics.append(None)
    legal = set[str]()
    for row, topic in enumerate(topics):
        if (isinstance(topic, str) and topic in legal) or row in failures.found:
            continue
        if names_a_topic(topic):
            legal.add(topic)
        else:
            found = ValueError(
                f"the topic to write to is {shown(topic)}, not a name: 1 to 249 letters, digits, "
                f"'.', '_' or '-' are one"
            )
            failures.add(row, found)
    failures.raise_added()
    return topics, value


def _encoded(serde: Serde, column: pa.Array, failures: Failures, stage: str) -> pa.Array:
    """Final bytes. RecordFailure for all values that their serde cannot write."""
    serde = bare(serde)
    try:
        return serde.encode_array(column)
    except BaseException as error:
        require_users(error)
        causes = refused(serde, column, error)
        if not causes:
            raise
        failures.raise_of(causes, stage)


BY_KEY = -1
"""In place of a partition: the key says it."""


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """Chooses a sink's partitions (KIP-837): as a Column ``said``, or a function or ``keys``."""

    op: SinkOp
    failures: Failures
    said: pa.Array | None
    keys: pa.Array

    def of(self, topic: str, rows: Int64 | None, count: int) -> tuple[Int64 | None, Int64]:
        """Rows (None: all), and the partition of each, for the records in ``rows`` that go to a
        topic of ``count`` partitions; a row is there once for each of its partitions. RecordFailure
        for a record without one."""
        failures, said, by = self.failures, self.said, self.op.partitioner
        if isinstance(by, KeyField) or (isinstance(by, str) and by in (*BY_HASH, OF_WINDOWS)):
            keys = self.keys if rows is None else self.keys.take(pa.array(rows))
            found_by_hash = partitions_of(by, topic, keys, self.op.key_serde, count)
            if keys.null_count:
                found_by_hash[~valid(keys)] = BY_KEY
            return rows, found_by_hash
        wanted = _all(failures.batch) if rows is None else rows
        if said is not None and pa.types.is_integer(said.type):
            numbers = said.fill_null(BY_KEY).to_numpy(zero_copy_only=False)[wanted]
            wrong = valid(said)[wanted] & ((numbers < 0) | (numbers >= count))
            for row, number in zip(wanted[wrong].tolist(), numbers[wrong].tolist(), strict=True):
                failures.add(row, _wrong(number, topic, count))
            failures.raise_added()
            return wanted, numbers.astype(np.int64, copy=False)
        found_rows: list[int] = []
        found: list[int] = []
        asked = self._asked(topic, wanted, count)
        for row in wanted.tolist():
            try:
                numbers_of = _numbers(asked(row), topic, count)
            except BaseException as error:
                failures.add(row, error)
            else:
                found_rows += [row] * len(numbers_of)
                found += numbers_of
        failures.raise_added()
        return np.array(found_rows, np.int64), np.array(found, np.int64)

    def _asked(self, topic: str, rows: Int64, count: int) -> Callable[[int], Any]:
        """Gives a row's partition, or several of them."""
        if self.said is not None:
            listed = self.said.take(pa.array(rows)).to_pylist()
            return dict(zip(rows.tolist(), listed, strict=True)).__getitem__
        fn, batch = self.op.partitioner, self.failures.batch
        assert callable(fn)
        keys, values = python_keys(batch.key), batch.value.to_pylist()
        return lambda row: fn(topic, keys[row], values[row], count)


def _numbers(answer: Any, topic: str, count: int) -> list[int]:
    if answer is None:
        return [BY_KEY]
    numbers = answer if isinstance(answer, list | tuple | set | frozenset) else [answer]
    for number in numbers:
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not whole or not 0 <= number < count:
            raise _wrong(number, topic, count)
    return sorted({int(number) for number in numbers})


def _wrong(number: Any, topic: str, count: int) -> ValueError:
    return ValueError(
        f"partitioner= gave {shown(number)}; {topic} has the partitions 0 to {count - 1} "
        f"(none: an empty list; as the key says: None)"
    )


# --- print_table ----------------------------------------------------------------------------------


CELL_MOST = 60


def printed_of(node: PrintNode, batch: EdgeBatch) -> Printed:
    """The first rows of a batch, which is in order, and how many more it has."""
    first = batch.take(np.arange(min(node.rows, len(batch)), dtype=np.int64))
    named = [
        ("time", [_time(ms) for ms in first.timestamp.tolist()]),
        *_columns("key", first.key, spread="key."),
        *_columns("value", first.value, spread=""),
    ]
    rows = [list(row) for row in zip(*(column for _, column in named), strict=True)]
    names = [name for name, _ in named]
    return Printed(node.title, names, rows, node.rows, len(batch) - len(first))


def _columns(name: str, column: pa.Array, spread: str) -> Iterator[tuple[str, list[str]]]:
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        yield name, [cell(value) for value in column.to_pylist()]
        return
    values = [value or {} for value in column.to_pylist()]
    for one in column.type:
        yield f"{spread}{one.name}", [cell(value.get(one.name)) for value in values]


def _time(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def cell(value: object) -> str:
    """A value as a text of one line, cut off where it is long."""
    text = "null" if value is None else str(value)
    text = one_line(text)
    return text if len(text) <= CELL_MOST else text[: CELL_MOST - 3] + "..."
