"""One step of a micro-batch: operators on Arrow, in a Spark Python worker or in the test driver.

It knows neither Kafka nor Spark: the last step
hands everything to a `Sink`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.handlers.given import Handlers
from everflow.handlers.outages import is_outage
from everflow.handlers.response import PROCESSING, PRODUCTION
from everflow.operators.user_code import failing_rows, refused, require_users
from everflow.records import (
    EdgeBatch,
    KeyPlaces,
    StoreChanges,
    TaskId,
    TasksResult,
    TopicPartition,
    names_a_topic,
)
from everflow.runtime.commit.batch import (
    Ages,
    BatchRequest,
    BatchResult,
    LetterGroup,
    Printed,
    as_json,
    by_name,
    by_partition,
    by_task,
)
from everflow.runtime.step.changelog_rows import changes_from_rows, changes_to_rows
from everflow.runtime.step.checked_stores import CheckedAccess
from everflow.runtime.step.extracted_times import extract_times
from everflow.runtime.step.idle_times import moved, source_times
from everflow.runtime.step.independent_failures import (
    RanOperator,
    independent,
    remembers,
    sees_one_record,
)
from everflow.runtime.step.merge_order import merge_inputs, merge_tasks
from everflow.runtime.step.partitioning import Partitions
from everflow.runtime.step.printing import printed_of
from everflow.runtime.step.record_ages import ages_read
from everflow.runtime.step.record_order import DepthFirst, InOrder, RecordOrder
from everflow.runtime.step.stateful_ops import (
    ClockJudge,
    UncheckedCallError,
    clock_name,
    run_stateful,
)
from everflow.runtime.step.step_functions import (
    RecordFailure,
    raise_all,
    run_function,
    take,
    unnest,
)
from everflow.runtime.step.step_stores import StoreAccess, TaskStores
from everflow.runtime.step.timings import timed
from everflow.serdes import Serde
from everflow.serdes.windowed import python_keys
from everflow.topology.arrival import Ways
from everflow.topology.hops import (
    HopInput,
    HopSchema,
    empty_like,
    in_order,
    write_hop,
)
from everflow.topology.known_results import KnownResults
from everflow.topology.physical_plan import (
    DEAD_LETTER_SLOT,
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
from everflow.user_texts import shown

RESULT_SCHEMA = pa.schema([pa.field("result", pa.string())])


@dataclass(kw_only=True)
class SinkOutput:
    """Records for one sink, in merge order. ``topics`` is one name or one per record; keys and
    values are final bytes, in columns."""

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
    """Arrow bytes of step 0's input: what ``max.batch.bytes`` bounds."""
    keys: Sequence[KeyPlaces] = ()
    """Of its records, where keys lie."""

    def add(self, op: StatefulOp, done: TasksResult) -> None:
        """Take over what an operator has done."""
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
    """Makes a micro-batch's effects real. Picklable; called once per batch by the last step."""

    def __call__(
        self, request: BatchRequest, result: StepResult, sources: tuple[Source, ...]
    ) -> BatchResult: ...


@dataclass(frozen=True, kw_only=True)
class TaskStep:
    """The function of one Python hop; picklable, free of Columns."""

    level: int
    ops: tuple[StepOp, ...]
    hop_in: HopSchema
    hop_out: HopSchema | None
    sources: tuple[Source, ...]
    changelog_slots: Mapping[str, int]
    stores: StoreAccess
    sink: Sink | None
    ways: Mapping[str, Ways] = field(default_factory=dict)
    """See `PhysicalPlan.ways`."""
    every_failure: bool = False
    """A record that fails need not stop the instance: then all that a function fails on are told
    at once."""
    handlers: Handlers = field(default_factory=Handlers)
    """Asked here about calls of clocks that fail."""
    remembered: bool = False
    """Whether an operator of an earlier step keeps something of its records."""
    ordered_by_users: bool = False
    """Whether times that users' functions give decide the order of several inputs."""

    @staticmethod
    def of(
        plan: PhysicalPlan,
        level: int,
        stores: StoreAccess,
        sink: Sink,
        *,
        handlers: Handlers | None = None,
    ) -> TaskStep:
        """The step of ``level`` of a plan; the last one gets the sink."""
        last = level == plan.levels - 1
        return TaskStep(
            level=level,
            ops=plan.steps[level].ops,
            hop_in=HopSchema(plan.into_step(level), plan.headers),
            hop_out=hop_out_of(plan, level),
            sources=plan.sources,
            changelog_slots=plan.changelog_slots,
            stores=stores,
            sink=sink if last else None,
            ways=plan.ways,
            every_failure=handlers is not None and handlers.may_continue(PROCESSING),
            handlers=handlers or Handlers(),
            remembered=any(
                isinstance(op, StatefulOp) and remembers(op)
                for step in plan.steps[:level]
                for op in step.ops
            ),
            ordered_by_users=any(source.merged for source in plan.sources)
            and any(isinstance(op, TimeOp) and op.extractor for op in plan.steps[0].ops),
        )

    def run(
        self, request: BatchRequest, hop: HopInput, timings: dict[str, float]
    ) -> Iterator[pa.RecordBatch]:
        """Run the operators on one hop's rows. Raises EarlierStepFailed for a
        clock's call that stops the instance."""
        try:
            yield from self._run(request, hop, timings)
        except UncheckedCallError:  # nothing was written: the operators come before the sink
            checked = replace(self, stores=CheckedAccess.of(self.stores, self.ops))
            yield from checked._run(request, hop, timings)

    def _run(
        self, request: BatchRequest, hop: HopInput, timings: dict[str, float]
    ) -> Iterator[pa.RecordBatch]:
        by_index = {source.index: source for source in self.sources}
        by_name = {op.name: op for op in self.ops if isinstance(op, StatefulOp)}
        hop.ran = ran = {} if hop.ran is None and not self.remembered else hop.ran
        with _of_records_alone(not self.level):
            records, result, told = self._begun(request, hop, by_index)
        result.timings = timings
        idle = moved(request, self.sources, result.consumed)
        judge = ClockJudge(
            self.handlers,
            request,
            by_index,
            isinstance(self.stores, CheckedAccess),
            result.left_out,
        )
        order: RecordOrder = InOrder(records)
        if self.ways:
            order = DepthFirst(records, self.ways, told)
        with (
            timed(timings, "operators"),
            self.independent(hop),
            TaskStores(
                self.stores, request.tasks, self._shared_stores(bool(idle)), request.global_tasks
            ) as stores,
        ):
            reads_stores = self.level > 0
            for op in self.ops:
                if isinstance(op, StatefulOp):
                    reads_stores = True
                    if op.output not in records:  # else it ran with those it shares stores with
                        group = [by_name[name] for name in op.together] or [op]
                        sides = order.sides(group)
                        every = self.every_failure
                        run = run_stateful(
                            group, sides, stores, by_index, request, idle, judge, every
                        )
                        for one, given_to, done in zip(group, sides, run, strict=True):
                            if ran is not None:
                                ran[one.name] = RanOperator.of(one, given_to, done)
                            result.add(one, done)
                            order.keep(one, done.output)
                elif isinstance(op, TimeOp):
                    pass  # before the merge
                elif isinstance(op, PrintOp):
                    shown_rows = printed_of(op, merge_tasks(in_order(order.read(op))))
                    result.printed += [shown_rows] if shown_rows.rows else []
                elif isinstance(op, SinkOp):
                    with _of_records_alone(not reads_stores):
                        every = self.every_failure
                        result.outputs += _to_outputs(op, order.read(op), by_index, every)
                else:
                    given = order.read(op)
                    every, known = self.every_failure, hop.known
                    with _of_records_alone(not reads_stores):
                        order.keep(op, _run_stateless(op, given, by_index, every, known))
        if self.sink is None:
            assert self.hop_out is not None
            yield from write_hop(
                self._outgoing(records, result.changes),
                self.hop_out,
                _to_control(result, order.told()),
            )
            return
        for task, changes in self._arrived_changes(records):
            result.changes.setdefault(task, []).append(changes)
        letters = records.get(DEAD_LETTER_SLOT)
        result.dead_letters = letters if letters is not None and len(letters) else None
        yield _result_row(self.sink(request, result, self.sources))

    @contextmanager
    def independent(self, hop: HopInput, *, function: bool = False) -> Iterator[None]:
        """Of records that fail within the block those stay that fail without the others, too: the
        first one where that is not known here, as an earlier step in another process has kept
        something of them, or as the order of all may be another one without them. ``function``:
        they fail in what sees one record alone."""
        try:
            yield
        except RecordFailure as error:
            if not error.others or error.before_state:
                pass
            elif self.ordered_by_users or (self.remembered and hop.ran is None):
                error.others = ()
            else:
                together = {
                    op.name
                    for op in self.ops
                    if isinstance(op, StatefulOp) and not sees_one_record(op)
                }
                record = error.failure.record
                alone = function or (record is not None and record.node not in together)
                failures = (error, *error.others)
                ran = list((hop.ran or {}).values())
                error.others = independent(failures, ran, self.sources, alone)[1:]
            raise

    def _begun(
        self, request: BatchRequest, hop: HopInput, sources: dict[int, Source]
    ) -> tuple[dict[int, EdgeBatch], StepResult, str | None]:
        """The records to begin with, what has come of the batch so far, and what earlier steps tell
        of the order of records."""
        if self.level:
            return dict(hop.batches), *_from_control(hop.control)
        times = [op for op in self.ops if isinstance(op, TimeOp)]
        extracted = extract_times(times, hop, sources, request, self.every_failure)
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
            skipped=extracted.left_out(consumed, request, sources),
            ages=ages_read(hop, sources, consumed, _newest(request)),
            input_bytes=hop.bytes,
            keys=hop.keys,
        )
        return records, result, None

    def _shared_stores(self, idle: bool) -> frozenset[str]:
        """Stores that more than one operator of this step reads: those need the batch's own changes
        on top (D5). So do those of operators whose stream time moves behind the batch's
        records (``idle``)."""
        users: dict[str, set[str]] = {}
        twice = set[str]()
        for op in self.ops:
            if isinstance(op, StatefulOp):
                for spec in op.stores:  # processors that share one run as one operator
                    users.setdefault(spec.name, set()).add((*op.together, op.name)[0])
                    twice |= {spec.name} if idle and op.idle else set()
        return frozenset(twice.union(name for name, of in users.items() if len(of) > 1))

    def _arrived_changes(
        self, records: Mapping[int, EdgeBatch]
    ) -> Iterator[tuple[TaskId, StoreChanges]]:
        """Changes that earlier steps made arrive as rows of the changelog slots, which steps
        between pass on unread."""
        arrived = {slot.id for slot in self.hop_in.slots}
        for store, slot in self.changelog_slots.items():
            if slot in arrived:
                yield from changes_from_rows(store, records[slot])

    def _outgoing(
        self, records: Mapping[int, EdgeBatch], changes: Mapping[TaskId, list[StoreChanges]]
    ) -> dict[int, EdgeBatch]:
        assert self.hop_out is not None
        made = {change.store for listed in changes.values() for change in listed}
        rows = {
            slot: changes_to_rows(store, changes)
            for store, slot in self.changelog_slots.items()
            if store in made
        }
        written = {**records, **rows}
        return {
            slot.id: written.get(slot.id) or empty_like(slot.type.key, slot.type.value)
            for slot in self.hop_out.slots
        }


def hop_out_of(plan: PhysicalPlan, level: int) -> HopSchema | None:
    """What the step of ``level`` writes; None for the last."""
    return None if level == plan.levels - 1 else HopSchema(plan.out_of_step(level), plan.headers)


# --- operators ------------------------------------------------------------------------------------


@contextmanager
def _of_records_alone(said: bool) -> Iterator[None]:
    """A record that fails within the block failed before an operator had read a store, if so
    ``said``."""
    try:
        yield
    except RecordFailure as error:
        error.before_state = said
        raise


def _run_stateless(
    op: FunctionOp | TakeOp | UnnestOp,
    batch: EdgeBatch,
    sources: dict[int, Source],
    every_failure: bool,
    known: KnownResults | None,
) -> EdgeBatch:
    match op:
        case FunctionOp():
            return run_function(op, batch, sources, every_failure, known if every_failure else None)
        case TakeOp():
            return take(op, batch)
        case UnnestOp():
            return unnest(op, batch)


def _result_row(result: BatchResult) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([result.to_json()])], schema=RESULT_SCHEMA)


def _to_outputs(
    op: SinkOp, batch: EdgeBatch, sources: Mapping[int, Source], every_failure: bool = False
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
    keys = _encoded(op, op.key_serde, batch.key, batch, sources, every_failure)
    values = _encoded(op, op.value_serde, value, batch, sources, every_failure)
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
    op: SinkOp, batch: EdgeBatch, sources: Mapping[int, Source], every_failure: bool
) -> tuple[str | list[str], pa.Array]:
    """Topic of all records or one for each, and the value. RecordFailure for a record whose topic
    cannot be told; ``every_failure``: for all of them."""
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
    sources: Mapping[int, Source],
    every_failure: bool,
) -> pa.Array:
    """Final bytes. RecordFailure for a value that its serde cannot write; ``every_failure``: for
    several of them."""
    try:
        return serde.encode_array(column)
    except BaseException as error:
        require_users(error)
        found = refused(serde, column, error)
        if found is None:
            raise
        causes = dict([found])
        if every_failure and not is_outage(error):
            causes = failing_rows(len(column), partial(_unwritten, serde, column)) or causes
        of = [RecordFailure.of(op, sources, batch, *one, PRODUCTION) for one in causes.items()]
        raise_all(of)


def _unwritten(serde: Serde, column: pa.Array, start: int, end: int) -> BaseException | None:
    """Why these values cannot be written; None where they can."""
    try:
        serde.encode_array(column.slice(start, end - start))
    except BaseException as error:
        require_users(error)
        return error
    return None


def _newest(request: BatchRequest) -> dict[TaskId, int]:
    """Stream times of the tasks that keep one."""
    return {task.task: max(task.stream_times.values(), default=-1) for task in request.tasks}


# --- what travels beside the rows -----------------------------------------------------------------


def _to_control(result: StepResult, ways: str | None) -> str:
    return as_json(
        {
            "consumed": by_name(result.consumed),
            "stream_times": by_name(result.stream_times),
            "dropped": result.dropped,
            "left_out": result.left_out,
            "remarks": result.remarks,
            "skipped": {
                str(tp): [key.hex() for key in keys] for tp, keys in result.skipped.items()
            },
            "ages": result.ages,
            "printed": result.printed,
            "bytes": result.input_bytes,
            "keys": result.keys,
            **({} if ways is None else {"ways": ways}),
        }
    )


def _from_control(control: str) -> tuple[StepResult, str | None]:
    """What earlier steps have done, and what they tell of the order of records."""
    data: dict[str, Any] = json.loads(control)
    result = StepResult(
        consumed=by_partition(data.get("consumed", {})),
        stream_times=by_task(data.get("stream_times", {})),
        dropped=data.get("dropped", {}),
        left_out=data.get("left_out", []),
        remarks=data.get("remarks", []),
        skipped={
            tp: [bytes.fromhex(key) for key in keys]
            for tp, keys in by_partition(data.get("skipped", {})).items()
        },
        ages=[Ages(*ages) for ages in data.get("ages", ())],
        printed=[Printed(*one) for one in data.get("printed", ())],
        input_bytes=data.get("bytes", 0),
        keys=_keys(data),
    )
    return result, data.get("ways")


def _keys(data: Mapping[str, Any]) -> list[KeyPlaces]:
    return [KeyPlaces(*one) for one in data.get("keys", ())]
