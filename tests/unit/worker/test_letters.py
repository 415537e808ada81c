"""Dead letters, and records that are too large or refused."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RecordRefusedError,
    RecordTimeError,
    RecordTooLargeError,
    RetriableError,
    TaskMigratedError,
    UnknownOutcomeError,
)
from everflow.handlers import DESERIALIZATION, ErrorHandlerContext, Handlers, Response
from everflow.instance.thread.batch_counts import BatchCounts
from everflow.kafka.reading.record_columns import LogColumns
from everflow.kafka.writing.record_encoding import RecordColumns, encoded_headers
from everflow.metrics import LEFT_OUT, Metrics
from everflow.protocol.messages import (
    ABORTED,
    COMMITTED,
    BadRecord,
    BatchFailure,
    BatchFigures,
    BatchRequest,
    BatchResult,
    GateAnswer,
    LetterGroup,
    StorePlace,
    TaskContext,
    format_metadata,
)
from everflow.records import EdgeBatch, OffsetRange, StoreChanges, TaskId, TopicPartition
from everflow.serdes import SerdeError
from everflow.state.changelog import pack_value
from everflow.state.left_out import KeptEntry
from everflow.state.lmdb_store import LmdbStore
from everflow.topology.batches import BatchInput
from everflow.topology.plan import DEAD_LETTER_SLOT, DEAD_LETTER_TYPE
from everflow.topology.sources import Source
from everflow.worker.columns import seen
from everflow.worker.decode import Fault, Judge, LogDecoder
from everflow.worker.failures import (
    CallsEnded,
    DescribedFailure,
    RecordFailure,
    failure_of,
    serde_outage,
)
from everflow.worker.isolation import HALVED_AFTER, Isolated, Trial
from everflow.worker.letters import (
    GlobalRecords,
    Letter,
    LetterTooLargeError,
    largest_entry,
    letter_headers,
    named,
    refused,
    take_letters,
    times_of_entries,
)
from everflow.worker.serve import WorkerPorts
from everflow.worker.sink import KafkaSink, left_out_entries
from everflow.worker.task_step import SinkOutput, StepResult
from unit.builders import batch_request, edge_batch, source
from unit.builders import source as made_source
from unit.manual_clock import ManualClock

IN = TopicPartition("in", 0)
SOURCE = source("in", value=serdes.json("n bigint"), node="parse")
STACK = b"Traceback: \xc3\xa9\n" + b"line of a stack\n" * 1_000
TOLD = (
    ("__streams.errors.exception", b"ValueError"),
    ("__streams.errors.message", "é".encode() * 900),
    ("__streams.errors.stacktrace", STACK),
    ("__streams.errors.offset", b"17"),
)


def on_the_wire(letter: Letter) -> int:
    columns = RecordColumns(
        pa.array([letter.key], pa.binary()),
        pa.array([letter.value], pa.binary()),
        np.zeros(1, np.int64),
        encoded_headers([list(letter.headers)]),
    )
    return int(columns.sizes[0]) + 61


@pytest.mark.parametrize("most", [10, 600, 1_000, 2_300, 2_301, 4_000, 20_000, 60_000, 100_000])
@pytest.mark.parametrize("value", [None, b"", b"v" * 500, b"v" * 50_000])
@pytest.mark.parametrize("key", [None, b"k" * 800])
def test_it_is_as_small_as_it_has_to_be(most: int, value: bytes | None, key: bytes | None) -> None:
    whole = Letter(key, value, [("own", b"h" * 700), *TOLD])
    letter = whole.fitted(most)
    assert letter.size <= max(most, 600)
    assert on_the_wire(letter) <= letter.size
    told = dict(letter.headers)
    assert (told["__streams.errors.offset"], told["__streams.errors.exception"]) == (
        b"17",
        b"ValueError",
    )
    assert (told["__streams.errors.message"] or b"").decode() in "é" * 900
    assert STACK.endswith(told["__streams.errors.stacktrace"] or b"")
    left_out = (told.get("__everflow.errors.left.out") or b"").decode()
    assert ("value" in left_out) == (letter.value != value)
    assert ("key" in left_out) == (letter.key != key)
    assert ("headers" in left_out) == ("own" not in told)
    if whole.size <= most:
        assert letter == whole


def test_the_stack_goes_before_the_value_and_the_value_before_the_rest() -> None:
    whole = Letter(b"k", b"v" * 50_000, [("own", b"h"), *TOLD])
    cut = whole.fitted(55_000)
    assert cut.value == whole.value
    assert 0 < len(cut.said("__streams.errors.stacktrace")) < len(STACK)
    small = whole.fitted(20_000)
    assert (small.key, small.value) == (b"k", None)
    assert small.said("__everflow.errors.left.out") == "value (50,000 bytes)"
    assert small.said("__streams.errors.stacktrace").encode() == STACK


class Writer:
    """Refuses what is larger than ``own`` before it is sent, and than ``topic`` afterwards; knows
    what was committed."""

    blocked_ms, renewals = 0.0, 0

    def __init__(self, own: int, topic: int) -> None:
        self.own, self.topic = own, topic
        self.written: list[Letter] = []
        self.committed: list[Letter] = []
        self.aborted = 0

    def begin(self) -> None:
        self.written = []

    def write(self, topic: str, keys: Any, values: Any, times: Any, *rest: Any) -> None:
        assert topic == "dead"
        self.written += map(Letter, keys, values, rest[1])
        if self.largest > self.own:
            raise RecordTooLargeError("too large", topics=("dead",), limit=self.own)

    @property
    def largest(self) -> int:
        return max(map(on_the_wire, self.written))

    def send(self) -> None: ...

    def send_offsets(self, *_: Any) -> None: ...

    def flush(self, timeout_s: float) -> None:
        if self.largest > self.topic:
            raise RecordTooLargeError("refused", topics=("dead",))

    def commit(self, timeout_s: float) -> None:
        self.committed = self.written

    def abort(self, timeout_s: float) -> None:
        self.aborted += 1

    def positions(self) -> dict[TopicPartition, int]:
        return {}


@dataclass(frozen=True)
class Ports(WorkerPorts):
    made: Any = None
    knows: bool = True
    asked: list[str] = field(default_factory=list)

    def writer(self, request: BatchRequest) -> Any:
        return self.made

    def ask(self, request: BatchRequest, offsets: object) -> GateAnswer:
        """As the driver: a batch is answered once."""
        assert "the gate" not in self.asked
        self.asked.append("the gate")
        return GateAnswer(True, group_metadata=b"")

    def topic_limit(self, request: BatchRequest, topic: str) -> int | None:
        self.asked.append(topic)
        return self.made.topic if self.knows else None


def left_out(values: Sequence[bytes]) -> EdgeBatch:
    about = {
        "exception": "ValueError",
        "stacktrace": STACK.decode(),
        "stage": "processing",
        "node": "parse",
        "task": "0_0",
        "attempt": 0,
    }
    rows = [
        {
            "value": value,
            "error": "ValueError: no",
            "response": Response.DEAD_LETTER.value,
            "about": json.dumps(about),
        }
        for value in values
    ]
    return edge_batch([b"k"] * len(rows), rows, pa.binary(), DEAD_LETTER_TYPE.value, offset=17)


def sunk(writer: Writer, values: Sequence[bytes], knows: bool = True) -> BatchResult:
    ranges = {IN: OffsetRange(17, 17 + len(values))}
    request = batch_request(
        ranges, batch_id="i1.1.0", transactional_id="app-p-0", gate="gate", log_ends={}
    )
    result = StepResult(consumed={IN: ranges[IN].end}, dead_letters=left_out(values))
    return KafkaSink("dead", Ports(1 << 30, writer, knows))(request, result, (SOURCE,))


@pytest.mark.parametrize("knows", [True, False], ids=["limit known", "limit not told"])
def test_what_producer_and_topic_refuse_is_written_smaller_and_the_rest_whole(knows: bool) -> None:
    writer = Writer(own=1_000_000, topic=30_000)
    done = sunk(writer, [b"v", b"V" * 990_000], knows)
    assert (done.committed, done.counts["dead_letters"], len(done.left_out)) == (True, 2, 2)
    small, large = writer.committed
    assert (small.value, small.said("__everflow.errors.left.out")) == (b"v", "")
    assert (large.key, large.value) == (b"k", None)
    assert large.said("__everflow.errors.left.out") == "value (990,000 bytes)"
    assert large.said("__streams.errors.offset") == "18"
    assert writer.aborted >= 2


def test_a_topic_that_takes_no_letter_names_the_record() -> None:
    with pytest.raises(LetterTooLargeError) as raised:
        sunk(Writer(own=1_000_000, topic=100), [b"v"])
    text = str(raised.value)
    assert re.match(".* dead is too large: ", text)
    assert re.search("letter of record in-0@17, .* node parse with ValueError", text)
    assert "Raise max.message.bytes of dead" in text


def test_a_letter_of_a_global_table_is_made_smaller_too() -> None:
    class Plain(Writer):
        def flush(self, timeout_s: float) -> None:
            super().flush(timeout_s)
            self.committed = self.written

    writer: Any = Plain(own=1_000_000, topic=500_000)
    records = GlobalRecords({"in": SOURCE}, Handlers("dead"), lambda: writer)
    held = LogColumns(
        keys=pa.array([b"k"], pa.binary()),
        values=pa.array([b"{" * 999_900], pa.binary()),
        offsets=np.array([3], np.int64),
        timestamps=np.array([7], np.int64),
    )
    taken = records.taken(IN, held, 4, 1)
    assert list(taken.keys) == []
    (letter,) = writer.committed
    assert letter.said("__everflow.errors.left.out") == "value (999,900 bytes)"


def test_what_is_left_out_of_a_topic_that_is_a_changelog_is_written_with_what_the_table_has() -> (
    None
):
    task = TaskId(0, 0)
    request = batch_request(
        {IN: OffsetRange(17, 21)},
        batch_id="i1.1.0",
        wall_clock_ms=77,
        log_ends={IN: 21},
        tasks=[TaskContext(task, "", "", {}, {"t": StorePlace("folder", IN.topic)})],
    )
    result = StepResult(
        consumed={IN: 20},
        changes={task: [StoreChanges("t", [b"k", b"o"], [b"new", b"x"], np.array([5, 6]))]},
        dead_letters=left_out([b"!"]),
        skipped={IN: [b"stored", b"nowhere"]},
    )
    stored = {b"stored": pack_value(3, b"old"), b"k": pack_value(1, b"older")}
    (found,) = left_out_entries(
        request, result, (SOURCE,), lambda context, store, key: stored.get(key)
    )
    assert (found.topic, found.partition) == ("app-t-left-out-changelog", 0)
    assert dict(zip(found.keys, found.entries, strict=True)) == {
        b"k": KeptEntry(19, b"new", 5),
        b"stored": KeptEntry(19, b"old", 3),
        b"nowhere": KeptEntry(19, None, 77),
    }
    elsewhere = replace(request, tasks=[TaskContext(task, "", "")])
    assert left_out_entries(elsewhere, result, (SOURCE,), lambda *_: None) == []


SOURCES = [source()]
STORE = StorePlace("state", "app-totals-changelog")
TASKS = [TaskContext(TaskId(0, 2), "i", "", {}, {"totals": STORE})]
REQUEST = batch_request({}, batch_id="t.0.0", tasks=TASKS)


def output(topics: str | list[str], *sizes: int) -> SinkOutput:
    nothing = pa.nulls(len(sizes), pa.binary())
    batch = edge_batch(nothing, nothing, partition=2, offset=40)
    keys = pa.array([b"k"] * len(sizes), pa.binary())
    values = pa.array([b"v" * size for size in sizes], pa.binary())
    return SinkOutput(node="sink", topics=topics, keys=keys, values=values, batch=batch)


def message(error: RecordTooLargeError, result: StepResult, limit: int | None = None) -> list[str]:
    return str(named(error, REQUEST, result, SOURCES, lambda topic: limit, None)).splitlines()


def test_the_client_refuses_more_than_it_sends() -> None:
    result = StepResult(
        outputs=[
            output("other", 9_999_999),
            output(["out", "out", "far"], 10, 1_500_000, 2_000_000),
        ]
    )
    lines = message(RecordTooLargeError("no", topics=("out",), limit=1_000_000), result)
    assert re.match(".* out is too large: 1,500,001 bytes", lines[0])
    assert lines[0].endswith(" (message.max.bytes=1,000,000)")
    assert lines[1] == "  made of record in-2@41, by node sink"
    assert "Raise producer.message.max.bytes (and max.message.bytes " in lines[2]


def test_the_broker_refuses_more_than_the_topic_takes() -> None:
    result = StepResult(outputs=[output("out", 10, 3_000)])
    lines = message(RecordTooLargeError("no", topics=("out",)), result, 2_000)
    too_large = r".* out is too large: 3,001 bytes, .*"
    assert re.fullmatch(rf"{too_large} \(max\.message\.bytes=2,000\)", lines[0])
    assert "Raise max.message.bytes of out" in lines[2]
    unknown = message(RecordTooLargeError("no", topics=("out",)), result)
    assert re.fullmatch(rf"{too_large} \(max\.message\.bytes\)", unknown[0])


def test_a_value_of_a_store_is_named_by_its_key() -> None:
    changes = StoreChanges(
        "totals", [b"a", b"b" * 100], [b"1", b"x" * 5_000], np.zeros(2, np.int64)
    )
    result = StepResult(outputs=[output("out", 10)], changes={TaskId(0, 2): [changes]})
    lines = message(
        RecordTooLargeError("no", topics=("app-totals-changelog", "out")), result, 2_000
    )
    assert re.match(".* app-totals-changelog is too large: 5,100 bytes", lines[0])
    assert lines[1].endswith(f" key b'{'b' * 60}'... in store totals, partition 2")


def refusal(*records: tuple[bytes | None, bytes | None, int]) -> RecordRefusedError:
    return RecordRefusedError("refused", topics=("out",), records=frozenset(records), untimely=True)


def test_records_that_the_broker_refuses_are_named_by_their_bytes_and_times() -> None:
    result = StepResult(outputs=[output("other", 10), output(["out", "far", "out"], 7, 7, 7)])
    error = refusal((b"k", b"v" * 7, 2), (b"k", b"v" * 7, 1), (b"k", b"v" * 7, 0))
    found = refused(error, result, SOURCES)
    assert found.place == ("in", 2, 40, "sink")
    assert [one.place for one in found.others] == [("in", 2, 42, "sink")]
    assert "made of record in-2@40, by node sink" in str(found)
    assert "Its time is 0 ms (1970-01-01T00:00:00Z)" in str(found)
    failure = failure_of(found)
    assert failure.record is not None
    assert (failure.stage, failure.record.place) == ("production", ("in", 2, 40))
    (also,) = failure.also
    assert also.record is not None
    assert (also.stage, also.record.place) == ("production", ("in", 2, 42))
    assert "made of record in-2@42" in also.error
    unknown = refusal((b"k", b"w", 0))
    assert refused(unknown, result, SOURCES) is unknown


LETTER_SOURCE = source("orders", node="in", offset_reset=None, slot=0)
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
    keys, type_ = [b"k"] * len(rows), DEAD_LETTER_TYPE.value
    return edge_batch(keys, rows, value_type=type_, partition=2, offset=7)


GROUPS = [
    LetterGroup("ValueError", "map", "orders", 2, "orders-2@7 (ValueError: bad 0)"),
    LetterGroup("KeyError", "map", "orders", 1, "orders-2@8 (KeyError: bad 1)"),
    LetterGroup("ValueError", "by", "orders", 1, "orders-2@10 (ValueError: bad 3)"),
]


@pytest.mark.parametrize("response", [Response.DEAD_LETTER, Response.CONTINUE])
def test_all_that_is_left_out_is_grouped_dead_letter_or_not(response: Response) -> None:
    result = StepResult(dead_letters=letters([response] * 4))
    take_letters(result, [LETTER_SOURCE])
    assert result.letters == GROUPS


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


# The end of a micro-batch: no store changes unless its transaction has committed (D5, D6).

YES = GateAnswer(True, group_metadata=b"meta")
CHANGELOG = "app-counts-changelog"
LAYOUTS = '{"counts":["key_value","string","bigint"]}'
TASK = TaskId(0, 0)
SINK_SOURCE = source("in", node="in")


class SinkWriter:
    """A record writer that notes its calls; ``failing`` maps a call to what it raises."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, EverflowError] = {}
        self.offsets: list[tuple[str, int, int, str]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **__: Any) -> None:
            self.calls.append(name)
            if name == "send_offsets":
                self.offsets = given[0]
            if name in self.failing:
                raise self.failing[name]

        return call

    def positions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(CHANGELOG, 0): 2}


@dataclass(frozen=True)
class SinkPorts(WorkerPorts):
    """A worker's ports with this writer, and one answer of the gate for all."""

    made: Any
    answer: GateAnswer = YES

    def writer(self, request: BatchRequest) -> Any:
        return self.made

    def ask(self, request: BatchRequest, offsets: object) -> GateAnswer:
        return self.answer


@pytest.fixture
def writer() -> SinkWriter:
    return SinkWriter()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "counts-0", kind="key_value")
    opened.claim("i1")
    yield opened
    opened.close()


def run(writer: SinkWriter, store: LmdbStore, **answered: GateAnswer) -> Any:
    task = TaskContext(TASK, "i1", "", {}, {"counts": StorePlace(str(store.path), CHANGELOG)})
    ranges = {IN: OffsetRange(0, 2)}
    request = batch_request(
        ranges,
        batch_id="i1.1.0",
        transactional_id="app-p-0",
        gate="gate",
        log_ends={IN: 2},
        tasks=[task],
    )
    changes = StoreChanges("counts", [b"a", b"b"], [b"1", b"2"], np.array([1, 2]))
    result = StepResult(
        changes={TASK: [changes]}, consumed={IN: 2}, stream_times={TASK: {"count": 2, "later": 9}}
    )
    return KafkaSink(None, SinkPorts(1 << 30, writer, **answered), LAYOUTS)(
        request, result, (SINK_SOURCE,)
    )


def entries(store: LmdbStore) -> int:
    with store.snapshot() as view:
        return len(list(view.range(None, None)))


def test_records_gate_offsets_commit_store(writer: SinkWriter, store: LmdbStore) -> None:
    done = run(writer, store)
    assert writer.calls == ["begin", "write", "send", "send_offsets", "flush", "commit"]
    assert done.committed
    assert (entries(store), store.meta().position, store.meta().last_batch) == (2, 2, "i1.1.0")
    assert writer.offsets == [
        ("in", 0, 2, format_metadata("i1.1.0", {"count": 2, "later": 9}, LAYOUTS))
    ]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            "commit",
            UnknownOutcomeError("no answer to the commit"),
        ),  # scenario 32: neither a failure nor a success
        ("commit", TaskMigratedError("fenced")),
        ("send_offsets", TaskMigratedError("unknown member")),
        ("flush", EverflowError("not delivered")),
    ],
)
def test_whatever_fails_up_to_the_commit_leaves_the_store_alone(
    call: str, error: EverflowError, writer: SinkWriter, store: LmdbStore
) -> None:
    writer.failing[call] = error
    with pytest.raises(type(error)):
        run(writer, store)
    assert writer.calls[-1] == "abort"
    assert (entries(store), store.meta().position) == (0, None)


def test_a_no_of_the_gate_aborts(writer: SinkWriter, store: LmdbStore) -> None:
    """Scenarios 6 to 8, and 10 where the driver is gone: the answer is no, and nothing happened."""
    done = run(writer, store, answer=GateAnswer(False, reason="ownership-changed: task 0_0"))
    assert (done.outcome, done.reason) == (ABORTED, "ownership-changed: task 0_0")
    assert writer.calls == ["begin", "write", "send", "abort"]
    assert (entries(store), store.meta().position) == (0, None)


def test_a_generation_that_moved_on_costs_an_abort(writer: SinkWriter, store: LmdbStore) -> None:
    """Scenario 6 and I4: tasks that stay run the batch again at once."""
    writer.failing["send_offsets"] = GenerationChanged("illegal generation")
    done = run(writer, store)
    assert (done.outcome, done.reason) == (ABORTED, "generation: illegal generation")
    assert writer.calls[-1] == "abort"
    assert (entries(store), store.meta().position) == (0, None)


def test_a_store_that_another_claimed_is_not_touched(writer: SinkWriter, store: LmdbStore) -> None:
    """Scenario 3: an orphan that wakes up after its commit finds its successor's claim."""
    store.claim("i2")
    with pytest.raises(EverflowError, match="i2"):
        run(writer, store)
    assert entries(store) == 0


def test_a_record_of_a_tasks_second_partition_has_its_place_in_the_topic() -> None:
    """Task 1 of 4 reads the partitions 1 and 5 (note 067)."""
    sources = (
        made_source("a", index=0, merged=True, until=4),
        made_source("a", index=1, merged=True, first=4),
    )
    asked: list[ErrorHandlerContext] = []

    def handler(context: ErrorHandlerContext, error: BaseException) -> Response:
        asked.append(context)
        return Response.DEAD_LETTER

    handlers = Handlers("dead", {"deserialization": handler})
    decoder = LogDecoder(sources, False, handlers)
    first, second = TopicPartition("a", 1), TopicPartition("a", 5)
    judge, place = Judge(handlers), BadRecord("a", 5, 101)
    failure = BatchFailure(kind="record", error="x", record=place, stage=DESERIALIZATION)
    judge.skip(Fault(failure, None))
    read = {first: log(["v"]), second: log(["w", "bad", "x"], [1, 3, 2])}
    hop = decoder.run(read, judge)
    assert hop.partition.tolist() == [1] * 4
    assert hop.source.tolist() == [0, 1, 1, 1]
    assert [hop.batches[slot].offset.tolist() for slot in (1, 2)] == [[100], [100, 102]]
    (headers,) = letter_headers(hop.batches[DEAD_LETTER_SLOT], sources)
    assert dict(headers)["__streams.errors.partition"] == b"5"
    assert [(one.partition, one.offset, one.task_id) for one in asked] == [(5, 101, "0_1")]
    names = pa.schema([("partition", pa.int32()), ("topic", pa.string())])
    partition, topic = seen(hop.batches[2], names, sources)
    assert (partition.to_pylist(), topic.to_pylist()) == ([5, 5], ["a", "a"])


# A batch without the records that it fails on.

A = TopicPartition("a", 0)


def isolated_source(index: int, topic: str) -> Source:
    return made_source(topic, index=index, node=f"source-{topic}", merged=True)


ISOLATED_SOURCES = (isolated_source(0, "a"), isolated_source(1, "b"))


def log(values: list[str], times: list[int] | None = None) -> LogColumns:
    return LogColumns(
        keys=pa.array([b"k"] * len(values), pa.binary()),
        values=pa.array([value.encode() for value in values], pa.binary()),
        offsets=np.arange(len(values), dtype=np.int64) + 100,
        timestamps=np.array(times or range(len(values)), np.int64),
    )


def request(**logs: LogColumns) -> BatchRequest:
    ranges = {
        TopicPartition(topic, 0): OffsetRange(100, 100 + len(columns))
        for topic, columns in logs.items()
    }
    return batch_request(ranges)


class Batch:
    """Fails like Arrow, without a name, on records whose text begins with "bad"."""

    def __init__(
        self, error: type[Exception] = ArithmeticError, topic: str | None = "dead"
    ) -> None:
        self.error, self.handlers = error, Handlers(topic)
        self.runs = self.trials = 0
        self.always = False

    def compute(
        self, request: BatchRequest, hop: BatchInput, trial: Trial | None
    ) -> tuple[list[str], int]:
        self.trials += trial is not None
        self.runs += trial is None
        values = [
            value
            for isolated_source in ISOLATED_SOURCES
            if isolated_source.slot in hop.batches
            for value in hop.batches[isolated_source.slot].value.to_pylist()
        ]
        if self.always or any(value.startswith("bad") for value in values):
            raise self.error("some value")
        return values, len(hop.batches[DEAD_LETTER_SLOT])

    def run(self, **logs: LogColumns) -> tuple[list[str], int]:
        nothing = log([])
        both = {"a": nothing, "b": nothing, **logs}
        read = {TopicPartition(topic, 0): columns for topic, columns in both.items()}
        decoder = LogDecoder(ISOLATED_SOURCES, False, self.handlers)
        return Isolated(decoder).run(request(**both), read, self.compute)


@pytest.mark.parametrize("at", [0, 1, 500, 998, 999])
def test_a_record_that_no_error_names_is_found_in_log_n_trials(at: int) -> None:
    values = [f"v{n}" for n in range(1_000)]
    values[at] = "bad"
    batch = Batch()
    assert batch.run(a=log(values)) == ([v for v in values if v != "bad"], 1)
    assert batch.runs == 2
    assert batch.trials <= 13


def test_several_of_two_inputs() -> None:
    batch = Batch()
    found = batch.run(a=log(["x", "bad1", "y"], [1, 5, 6]), b=log(["bad2", "z"], [3, 9]))
    assert found == (["x", "y", "z"], 2)
    assert batch.runs == 3


def test_a_batch_full_of_bad_ones_gets_smaller() -> None:
    batch = Batch()
    good, dead = batch.run(a=log(["bad"] * 1_000))
    assert (good, 0 < dead < 1_000) == ([], True)
    assert batch.runs < 12 * HALVED_AFTER


def test_a_batch_ends_before_the_first_record_that_was_not_called() -> None:
    """Note 070; what failed before that end is left out."""
    decoder = LogDecoder(ISOLATED_SOURCES, False, Handlers("dead"))
    ranges: list[tuple[int, int]] = []
    place = BadRecord("a", 0, 101, "asks")

    def compute(request: BatchRequest, hop: BatchInput, trial: Trial | None) -> list[str]:
        ranges.append((request.ranges[A].end, request.ranges[TopicPartition("b", 0)].end))
        if len(ranges) == 1:
            raise CallsEnded({A: 104})
        if len(ranges) == 2:
            failure = RecordFailure(place, None, TimeoutError("no answer"))
            failure.before_state, failure.ends = True, {A: 103}
            raise failure
        assert request.log_ends[A] == 106  # the merge waits for the rest of its log
        return [str(value) for value in hop.batches[1].value.to_pylist()]

    read = {A: log(list("uvwxyz")), TopicPartition("b", 0): log(["b"])}
    found = Isolated(decoder).run(request(a=read[A], b=log(["b"])), read, compute)
    assert ranges == [(106, 101), (104, 101), (103, 101)]
    assert found == ["u", "w"]


class Tells(ArithmeticError):
    """Its text is no UTF-8, as that of half an emoji in a record's JSON."""

    def __str__(self) -> str:
        return f"no such name: \ud83d ({self.args[0]})"


def test_an_error_whose_text_is_no_utf8_is_a_dead_letter_that_can_be_written() -> None:
    batch = Batch(Tells)
    letters = []

    def compute(request: BatchRequest, hop: BatchInput, trial: Trial | None) -> int:
        made = batch.compute(request, hop, trial)
        letters.append(hop.batches[DEAD_LETTER_SLOT])
        return made[1]

    read = {A: log(["x", "bad", "y"])}
    decoder = LogDecoder(ISOLATED_SOURCES[:1], False, batch.handlers)
    assert Isolated(decoder).run(request(a=read[A]), read, compute) == 1
    (headers,) = letter_headers(letters[-1], ISOLATED_SOURCES)
    said = dict(headers)
    assert said["__streams.errors.message"] == rb"Tells: no such name: \ud83d (some value)"
    stack = said["__streams.errors.stacktrace"] or b""
    assert rb"no such name: \ud83d (some value)" in stack
    assert __file__.encode() in stack


def test_without_a_handler_that_goes_on_the_record_is_named() -> None:
    with pytest.raises(RecordFailure) as failure:
        Batch(topic=None).run(a=log(["x", "bad", "y"]))
    record = failure.value.failure.record
    assert record is not None
    assert (record.place, record.node) == (("a", 0, 101), "source-a")


@pytest.mark.parametrize("error", [RetriableError, FatalError, OSError, MemoryError])
def test_what_no_record_causes_is_not_searched(error: type[Exception]) -> None:
    batch = Batch(error)
    with pytest.raises(error):
        batch.run(a=log(["x", "bad", "y"]))
    assert (batch.runs, batch.trials) == (1, 0)


def test_what_fails_without_any_record_is_no_records_fault() -> None:
    batch = Batch()
    batch.always = True
    with pytest.raises(ArithmeticError):
        batch.run(a=log(["x", "y"]))
    assert (batch.runs, batch.trials) == (1, 1)


@pytest.mark.parametrize(("limit", "at"), [(99, 0), (300, 5), (349, 5), (699, 12)])
def test_the_record_that_makes_an_entry_of_a_store_too_large_is_found(limit: int, at: int) -> None:
    changelog = "app-lists-changelog"
    task = TaskContext(TaskId(0, 0), "", "", {}, {"lists": StorePlace("", changelog)})
    trials = 0

    def compute(request: BatchRequest, hop: BatchInput, trial: Trial | None) -> None:
        nonlocal trials
        count = len(hop.batches[1])
        changes = StoreChanges("lists", [b"k"], [b"v" * (50 * count + 13)], np.zeros(1, np.int64))
        result = StepResult(changes={task.task: [changes] if count else []})
        size = largest_entry(request, result, changelog)
        assert size == (50 * (count + 1) if count else 0)
        if trial is None:
            raise RecordTooLargeError("too large", topics=(changelog,), limit=limit)
        trials += 1
        trial(request, result)

    read = {A: log([f"v{n}" for n in range(20)])}
    asked = replace(request(a=read[A]), tasks=[task])
    decoder = LogDecoder(ISOLATED_SOURCES[:1], False, Handlers("dead"))
    with pytest.raises(RecordTooLargeError) as raised:
        Isolated(decoder, {"lists": "aggregate"}).run(asked, read, compute)
    assert raised.value.place == ("a", 0, 100 + at, "aggregate")
    assert f"Record a-0@{100 + at} has made" in str(raised.value)
    assert trials < 9


@pytest.mark.parametrize("late", [[0], [4, 5, 11], list(range(20))])
def test_records_whose_times_the_changelog_refuses_are_found(late: list[int]) -> None:
    changelog, refused_ms = "app-counts-changelog", 10**14
    task = TaskContext(TaskId(0, 0), "", "", {}, {"counts": StorePlace("", changelog)})

    def compute(request: BatchRequest, hop: BatchInput, trial: Trial | None) -> None:
        offsets = hop.batches[1].offset.tolist()
        times = [refused_ms if offset - 100 in late else 1 for offset in offsets]
        changes = StoreChanges("counts", [b"k"] * len(times), [b"v"] * len(times), np.array(times))
        result = StepResult(changes={task.task: [changes]})
        met = set(times_of_entries(request, result, changelog).tolist()) & {refused_ms}
        if trial is not None:
            trial(request, result)
        elif met:
            refusal = frozenset((b"k", b"v", at) for at in met)
            raise RecordRefusedError("late", topics=(changelog,), records=refusal, untimely=True)

    read = {A: log([f"v{n}" for n in range(20)])}
    asked = replace(request(a=read[A]), tasks=[task])
    decoder = LogDecoder(ISOLATED_SOURCES[:1], False, Handlers("dead"))
    with pytest.raises(RecordRefusedError) as raised:
        Isolated(decoder, {"counts": "count"}).run(asked, read, compute)
    found = [raised.value, *raised.value.others]
    assert [one.place for one in found] == [
        ("a", 0, 100 + at, "count") for at in late[:HALVED_AFTER]
    ]
    assert re.search(f"Record a-0@{100 + late[0]} .* store counts that time", str(found[0]))


class Away(ConnectionError):
    """Of a schema registry."""


@pytest.mark.parametrize("stage", ["processing", "production"])
@pytest.mark.parametrize("named", [True, False])
def test_a_serde_without_an_answer_blames_no_record(stage: str, named: bool) -> None:
    """With a topic for dead letters, too: good records would go there."""
    trials = 0

    def compute(request: BatchRequest, hop: BatchInput, trial: Trial | None) -> None:
        nonlocal trials
        trials += trial is not None
        cause = SerdeError("ConnectionError: refused")
        cause.__cause__ = Away("refused")
        if not named:
            raise cause
        failure = RecordFailure(BadRecord("a", 0, 101, "sink"), None, cause, stage=stage)
        failure.__cause__ = cause
        raise failure

    read = {A: log(["x", "y"])}
    decoder = LogDecoder(ISOLATED_SOURCES[:1], False, Handlers("dead"))
    with pytest.raises(RetriableError, match="answer") as raised:
        Isolated(decoder, {"s": "count"}).run(request(a=read[A]), read, compute)
    assert raised.value.partitions == (frozenset({A}) if named else frozenset())
    assert trials == 0


def test_an_outage_that_is_said_keeps_its_partitions() -> None:
    """Else every task of the batch waits for the service."""
    said, cause = RetriableError("no answer", [A]), SerdeError("ConnectionError: refused")
    said.__cause__, cause.__cause__ = cause, Away("refused")
    assert serde_outage(said) is None
    assert serde_outage(cause) is not None


def test_a_function_s_outage_is_its_record_s_matter() -> None:
    """Unless its handler is retry-outages."""
    batch = Batch()

    def compute(request: BatchRequest, hop: BatchInput, trial: Trial | None) -> int:
        if 101 in hop.batches[1].offset.tolist():
            cause = Away("refused")
            failure = RecordFailure(BadRecord("a", 0, 101, "map"), None, cause)
            failure.__cause__ = cause
            raise failure
        return len(hop.batches[DEAD_LETTER_SLOT])

    read = {A: log(["x", "y"])}
    decoder = LogDecoder(ISOLATED_SOURCES[:1], False, batch.handlers)
    assert Isolated(decoder).run(request(a=read[A]), read, compute) == 1


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([5, 10**18, 7, 10**17], [5, 5, 7, 7]),
        ([10**18, 10**18, 7], [7, 7, 7]),
        ([10**18, 10**17], [99, 99]),
    ],
)
def test_a_time_that_nothing_holds_leaves_it_out(times: list[int], kept: list[int]) -> None:
    asked: list[ErrorHandlerContext] = []

    def handler(context: ErrorHandlerContext, error: BaseException) -> Response:
        asked.append(context)
        assert isinstance(error, RecordTimeError)
        return Response.DEAD_LETTER

    handlers = Handlers("dead", {"deserialization": handler})
    decoder = LogDecoder(ISOLATED_SOURCES[:1], False, handlers)
    columns = log([f"v{n}" for n in range(len(times))], times)
    hop = decoder.run({A: columns}, Judge(handlers, wall_clock_ms=99))
    assert hop.timestamp.tolist() == kept
    bad = [row for row, at in enumerate(times) if at > 10**16]
    letters = hop.batches[DEAD_LETTER_SLOT]
    assert letters.timestamp.tolist() == [kept[row] for row in bad]
    assert [one.timestamp for one in asked] == [times[row] for row in bad]
    assert hop.batches[1].timestamp.tolist() == [at for at in times if at < 10**16]
    with pytest.raises(DescribedFailure) as failed:
        LogDecoder(ISOLATED_SOURCES[:1], False, Handlers()).run({A: columns}, Judge())
    assert failed.value.failure.code == "EF-RECORD-TIME"
    assert failed.value.failure.judged
