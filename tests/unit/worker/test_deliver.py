"""Rows for sinks outside Kafka (note 072): each is there once, wherever a process dies and however
batches are cut; what a call gets, and what becomes of one that fails."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import (
    ProcessorContext,
    Record,
    RefusedRows,
    SinkBatch,
    Stores,
    StreamsBuilder,
    serdes,
)
from everflow.errors import EverflowError, RetriableError, SinkError
from everflow.handlers import PRODUCTION, Handlers
from everflow.instance.thread.failure_text import ending
from everflow.kafka.reading.record_columns import LogColumns
from everflow.protocol.messages import (
    COMMITTED,
    SINKS,
    BatchRequest,
    BatchResult,
    Rows,
    TaskContext,
)
from everflow.records import LAST_SEQ, OffsetRange, TaskId, TopicPartition
from everflow.sinks.batch import RowRefused, SinkAhead
from everflow.testing.store_views import DriverStores
from everflow.topology.batches import BatchInput
from everflow.topology.graph import EdgeType, WriteNode
from everflow.topology.plan import WriteOp, plan
from everflow.topology.subtopologies import cut
from everflow.worker.crash_points import SINK_PARTLY, SINK_WRITTEN
from everflow.worker.decode import LogDecoder
from everflow.worker.deliver import deliver, rows_of
from everflow.worker.failures import RecordFailure, Sources, failure_of
from everflow.worker.isolation import Isolated, Trial, trial_of
from everflow.worker.sink import KafkaSink
from everflow.worker.task_step import GivenRows, StepResult, TaskStep
from unit.builders import batch_request, edge_batch, source
from unit.worker.test_letters import SinkPorts, SinkWriter

TEXT = serdes.string()
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
TASK = TaskId(0, 0)


class Died(BaseException):
    """The process is gone."""


@dataclass
class Table:
    """A sink with transactions: what fails in one leaves nothing."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    position: dict[TopicPartition, int] = field(default_factory=dict)
    calls: list[SinkBatch] = field(default_factory=list)

    def write(self, rows: pa.Table, batch: SinkBatch) -> None:
        self.calls.append(batch)
        if batch.to_write(self.position):
            columns = [rows.column(name).to_pylist() for name in ("key", "value", "offset")]
            self.rows += zip(*columns, strict=True)
            self.position |= batch.ends


def count(record: Record, context: ProcessorContext) -> None:
    """How many records its key has so far."""
    counts = context.store("counts")
    counts.put(record.key, (counts.get(record.key) or 0) + 1)
    context.forward(record.with_value(counts.get(record.key)))


class World:
    """A task that counts the records of two topics, merged by time, and what outlives processes:
    logs, committed offsets, the store, and the sink."""

    def __init__(self, logs: Mapping[TopicPartition, Sequence[tuple[str, int]]]) -> None:
        self.logs, self.table = logs, Table()
        builder = StreamsBuilder()
        one, other = (builder.stream(tp.topic, key=TEXT, value=TEXT) for tp in (A, B))
        builder.add_state_store(Stores.key_value("counts", key=TEXT, value=serdes.long()))
        counted = one.merge(other).process_values(count, stores=["counts"], returns=pa.int64())
        counted.for_each_batch(self.table.write, name="rows")
        topology = builder.build()
        planned = plan(topology, cut(topology).index_of, "app")
        (spec,) = planned.stores()[0]
        self.stores = DriverStores({"counts": (spec, 1, lambda key: None)})
        self.committed = {A: 0, B: 0}
        self.dies = False
        self.step = TaskStep.of(planned, [], self.stores, self._commit)
        self.decoder = LogDecoder(planned.sources, False, Handlers())

    def run(
        self, ends: Mapping[TopicPartition, int], visible: Mapping[TopicPartition, int]
    ) -> None:
        """One batch that reads up to ``ends`` of logs that have records up to ``visible``."""
        ranges = {tp: OffsetRange(at, max(at, ends[tp])) for tp, at in self.committed.items()}
        asked = batch_request(
            ranges,
            log_ends={tp: max(visible[tp], one.end) for tp, one in ranges.items()},
            tasks=[TaskContext(TASK, "i", "")],
        )
        read = {tp: self._columns(tp, one) for tp, one in ranges.items()}
        Isolated(self.decoder, {"counts": "count"}).run(asked, read, self._computed)

    def _columns(self, tp: TopicPartition, one: OffsetRange) -> LogColumns:
        records = self.logs[tp][one.start : one.end]
        return LogColumns(
            keys=pa.array([key.encode() for key, _ in records], pa.binary()),
            values=pa.array([b"v"] * len(records), pa.binary()),
            offsets=np.arange(one.start, one.start + len(records), dtype=np.int64),
            timestamps=np.array([time for _, time in records], np.int64),
        )

    def _computed(
        self, request: BatchRequest, decoded: BatchInput, trial: Trial | None
    ) -> BatchResult:
        step = self.step if trial is None else trial_of(self.step, trial)
        return step.run(request, decoded, None, {})

    def _commit(self, request: BatchRequest, result: StepResult, sources: Sources) -> BatchResult:
        deliver(request, result, sources, lambda _: None)
        if self.dies:
            raise Died
        for task, listed in result.changes.items():
            for changes in listed:
                self.stores.part(changes.store, task.partition).apply(changes)
        self.committed |= result.consumed
        return BatchResult(outcome=COMMITTED)


RECORDS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 20)), max_size=12)
ATTEMPTS = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=10
)


@given(RECORDS, RECORDS, ATTEMPTS)
def test_each_row_is_there_once_wherever_a_process_dies_and_however_batches_are_cut(
    a: list[tuple[str, int]],
    b: list[tuple[str, int]],
    attempts: list[tuple[float, float, float, bool]],
) -> None:
    world = World({A: a, B: b})
    sizes = {A: len(a), B: len(b)}
    seen = {A: 0, B: 0}
    for of_a, of_b, of_log, dies in attempts:
        seen = {tp: max(at, round(sizes[tp] * of_log)) for tp, at in seen.items()}
        ends = {A: round(seen[A] * of_a), B: round(seen[B] * of_b)}
        world.dies = dies
        with suppress(Died):
            world.run(ends, seen)
    world.dies = False
    for _ in range(2 * (len(a) + len(b)) + 4):
        world.run(sizes, sizes)
    assert world.committed == sizes

    totals = Counter(key for key, _ in (*a, *b))
    counts: dict[str, list[int]] = {}
    for key, count, _ in world.table.rows:
        counts.setdefault(key, []).append(count)
    assert {key: len(listed) for key, listed in counts.items()} == totals
    for listed in counts.values():
        assert listed == list(range(1, len(listed) + 1))


def test_a_batch_that_is_tried_again_has_the_same_id_and_ends_at_the_position() -> None:
    world = World({A: [("x", n) for n in range(6)], B: []})
    everything = {A: 6, B: 0}
    world.dies = True
    with suppress(Died):
        world.run({A: 4, B: 0}, everything)
    world.dies = False
    world.run(everything, everything)
    world.run(everything, everything)
    ids = [batch.id for batch in world.table.calls]
    assert ids == ["app/rows/a-0@0,b-0@0"] * 3 + ["app/rows/a-0@4,b-0@0"]
    assert [dict(batch.ends)[A] for batch in world.table.calls] == [4, 6, 4, 6]
    assert [row[1] for row in world.table.rows] == [1, 2, 3, 4, 5, 6]


# --- the decision ---------------------------------------------------------------------------------


def made(*, a: tuple[int, int] = (0, 10), b: tuple[int, int] = (0, 10)) -> SinkBatch:
    return SinkBatch(
        rows=pa.table({"value": [1]}),
        application_id="app",
        sink="s",
        task=TASK,
        offsets={A: OffsetRange(*a), B: OffsetRange(*b)},
    )


@pytest.mark.parametrize(
    ("position", "written"),
    [
        ({}, True),
        ({A: 0}, True),
        ({A: 10, B: 10}, False),
        ({A: 12, B: 10}, False),
    ],
)
def test_a_position_says_whether_the_rows_are_there(
    position: dict[TopicPartition, int], written: bool
) -> None:
    assert made().to_write(position) is written


@pytest.mark.parametrize("position", [{A: 4}, {A: 10}, {A: 10, B: 9}, {B: 1}])
def test_a_batch_that_goes_beyond_the_position_is_to_end_there(
    position: dict[TopicPartition, int],
) -> None:
    with pytest.raises(SinkAhead) as ahead:
        made().to_write(position)
    assert ahead.value.ends == {A: 0, B: 0, **position}


def test_rows_of_a_clock_have_no_position() -> None:
    batch = replace(made(), offsets={})
    assert batch.to_write({A: 100}) is True
    assert (batch.id, batch.ends) == ("", {})


# --- what a call gets -----------------------------------------------------------------------------

EDGE = EdgeType(pa.string(), pa.struct([("n", pa.int64()), ("t", pa.string())]))


@dataclass(eq=False)
class Calls:
    """A sink that keeps its batches, and fails with ``error``."""

    error: BaseException | None = None
    batches: list[SinkBatch] = field(default_factory=list)

    def write(self, batch: SinkBatch) -> None:
        self.batches.append(batch)
        if self.error is not None:
            raise self.error


def op(sink: Any, key: tuple[str, ...] | None = ("id",)) -> WriteOp:
    node = WriteNode(name="out", inputs=("in",), out=EDGE, sink=sink, key=key)
    return WriteOp(name="out", where="p.py:1", node=node, subtopology=0, inputs=(1,))


def given_rows(sink: Any, **columns: Any) -> GivenRows:
    values = [{"n": 1, "t": "one"}, None, {"n": 3, "t": None}]
    return GivenRows(op(sink), edge_batch(["x", "y", "z"], values, EDGE.key, EDGE.value, **columns))


def run_deliver(given: GivenRows, reached: Callable[[str], None] = lambda _: None) -> list[Rows]:
    logs = [TopicPartition("in", 0), TopicPartition("in", 1)]
    request = batch_request({tp: OffsetRange(5, 9) for tp in logs})
    result = StepResult(given=[given], consumed=dict.fromkeys(logs, 8))
    return deliver(request, result, [source("in")], reached)


def test_each_task_is_a_call_with_its_own_offsets() -> None:
    sink, points = Calls(), list[str]()
    told = run_deliver(given_rows(sink, partition=np.array([0, 1, 0])), points.append)
    first, second = sink.batches
    assert [first.task, second.task] == [TaskId(0, 0), TaskId(0, 1)]
    assert first.offsets == {TopicPartition("in", 0): OffsetRange(5, 8)}
    assert first.rows.to_pydict() == {"id": ["x", "z"], "n": [1, 3], "t": ["one", None]}
    assert (first.deletes, second.deletes) == (None, pa.array([True]))
    assert points == [SINK_PARTLY, SINK_PARTLY, SINK_WRITTEN]
    assert [(one.connector, one.rows) for one in told] == [("out", 2), ("out", 1)]


def test_rows_that_a_clock_has_made_are_a_call_without_offsets() -> None:
    sink = Calls()
    run_deliver(given_rows(sink, seq=np.array([0, LAST_SEQ, LAST_SEQ])))
    of_records, of_clock = sink.batches
    assert of_records.offsets
    assert not of_clock.offsets
    assert of_clock.rows.column("id").to_pylist() == ["y", "z"]


def test_a_function_sees_the_columns_of_expressions() -> None:
    node = replace(op(Calls()).node, key=None)
    rows = rows_of(node, given_rows(None, offset=7).batch, [source("in", first=4)])
    assert rows.column_names == [
        *("key", "value.n", "value.t", "timestamp", "topic", "partition", "offset")
    ]
    assert rows.slice(2).to_pylist() == [
        {
            "key": "z",
            "value.n": 3,
            "value.t": None,
            "timestamp": 2,
            "topic": "in",
            "partition": 4,
            "offset": 9,
        }
    ]


KEYS_OF_TWO = pa.struct([("id", pa.int64()), ("part", pa.string())])
COPIES = pa.struct([("id", pa.int64()), ("part", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize(
    ("key_type", "keys", "values", "named"),
    [
        (pa.int64(), [1, 2, 3], [{"id": 1, "n": 7}, None, {"id": None, "n": 8}], ("id",)),
        (
            KEYS_OF_TWO,
            [{"id": one, "part": "a"} for one in (1, 2, 3)],
            [{"id": 1, "part": "a", "n": 7}, None, {"id": 3, "n": 8}],
            ("id", "part"),
        ),
    ],
)
def test_a_field_of_key_and_value_is_one_column(
    key_type: pa.DataType, keys: list[Any], values: list[Any], named: tuple[str, ...]
) -> None:
    """The key's, which a deletion has, too."""
    sink, kind = Calls(), COPIES if len(named) > 1 else pa.struct([COPIES[0], COPIES[2]])
    run_deliver(GivenRows(op(sink, named), edge_batch(keys, values, key_type, kind)))
    (batch,) = sink.batches
    assert batch.rows.column_names == [*named, "n"]
    assert batch.rows["id"].to_pylist() == [1, 2, 3]
    assert batch.rows["n"].to_pylist() == [7, None, 8]


@pytest.mark.parametrize("nested", [False, True])
def test_a_row_whose_key_and_field_differ_is_a_bad_record_and_its_values_are_not_said(
    nested: bool,
) -> None:
    def wrapped(number: int) -> Any:
        return {"of": number} if nested else number

    kind = pa.struct([("of", pa.int64())]) if nested else pa.int64()
    sink = Calls()
    batch = edge_batch(
        [{"id": wrapped(4_711)}, {"id": wrapped(4_712)}],
        [{"id": wrapped(4_711)}, {"id": wrapped(4_713)}],
        pa.struct([("id", kind)]),
        pa.struct([("id", kind)]),
    )
    with pytest.raises(RecordFailure) as found:
        run_deliver(GivenRows(op(sink), batch))
    failure = found.value.failure
    assert failure.stage == PRODUCTION
    assert failure.record is not None
    assert (failure.record.offset, found.value.others) == (1, ())
    assert "'id'" in str(found.value)
    assert "471" not in str(found.value)
    assert not sink.batches


# --- what becomes of one that fails ---------------------------------------------------------------


def failing(error: BaseException) -> BaseException:
    with pytest.raises(BaseException) as found:  # noqa: PT011
        run_deliver(given_rows(Calls(error), offset=5))
    return found.value


@pytest.mark.parametrize("error", [RetriableError("away"), ConnectionRefusedError("away")])
def test_a_sink_that_is_away_is_retried_for_the_tasks_that_have_it(error: Exception) -> None:
    found = failing(error)
    assert isinstance(found, RetriableError)
    assert found.partitions == {TopicPartition("in", 0)}
    assert "out" in str(found)
    assert failure_of(found).connector == "out", "counted by connector"


def test_a_row_that_a_sink_refuses_is_a_bad_record_of_production() -> None:
    found = failing(RefusedRows({2: ValueError("too large"), 0: ValueError("too small")}))
    assert isinstance(found, RecordFailure)
    places = [one.failure.record for one in (found, *found.others)]
    assert [one.offset for one in places if one is not None] == [7, 5]
    assert found.failure.stage == PRODUCTION


def test_a_refused_row_names_its_record_and_the_cures() -> None:
    refused = RowRefused("out", "table t", "value too long", "name")
    found = failing(RefusedRows({2: refused}))
    assert isinstance(found, RecordFailure)
    said = str(ending(failure_of(found), 1, ""))
    first, *_, cure = said.splitlines()
    for part in ("Sink out", "table t", "'name'", "value too long", "in-0@7"):
        assert part in first
    assert "production.exception.handler" in cure
    assert "errors.dead.letter.queue.topic.name" in cure


@pytest.mark.parametrize(
    "error",
    [
        RetriableError("away"),
        ConnectionRefusedError("away"),
        RefusedRows({0: ValueError("too small")}),
        SinkError("column n"),
        ZeroDivisionError("x"),
    ],
)
def test_a_failure_names_its_connector(error: Exception) -> None:
    found = failing(error)
    assert isinstance(found, EverflowError)
    assert failure_of(found).connector == "out"


def test_a_sink_of_another_schema_stops_the_instance() -> None:
    found = failing(SinkError("column n"))
    assert isinstance(found, SinkError)
    assert (failure_of(found).kind, failure_of(found).connector) == ("fatal", "out")


def test_an_unknown_error_of_a_function_names_its_line() -> None:
    found = failing(ZeroDivisionError("x"))
    assert isinstance(found, RecordFailure)
    assert found.failure.record is None
    assert (found.failure.where, found.failure.connector) == (("p.py:1",), "out")


# --- its place in a commit ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, RetriableError("away")])
def test_a_sink_is_called_before_a_transaction_is_open(error: RetriableError | None) -> None:
    writer = SinkWriter()
    before: list[list[str]] = []

    class Looks(Calls):
        def write(self, batch: SinkBatch) -> None:
            before.append([*writer.calls])
            super().write(batch)

    tp = TopicPartition("in", 0)
    request = batch_request({tp: OffsetRange(5, 8)})
    result = StepResult(given=[given_rows(Looks(error), offset=5)], consumed={tp: 8})
    sink = KafkaSink(None, SinkPorts(1 << 30, writer))
    if error is None:
        done = sink(request, result, (source("in"),))
        assert done.committed
        assert [(one.connector, one.rows) for one in done.figures.rows] == [("out", 3)]
        assert "commit" in writer.calls
    else:
        with pytest.raises(RetriableError):
            sink(request, result, (source("in"),))
        assert not writer.calls
    assert before == [[]]
    assert SINKS in result.timings
