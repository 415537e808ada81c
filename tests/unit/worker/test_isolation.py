"""A batch without the records that it fails on: which they are, and what it costs."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from everflow.errors import (
    FatalError,
    RecordRefusedError,
    RecordTimeError,
    RecordTooLargeError,
    RetriableError,
)
from everflow.handlers import ErrorHandlerContext, Handlers, Response
from everflow.kafka.reading.record_columns import LogColumns
from everflow.protocol.messages import BadRecord, BatchRequest, StorePlace, TaskContext
from everflow.records import OffsetRange, StoreChanges, TaskId, TopicPartition
from everflow.serdes import SerdeError
from everflow.topology.batches import BatchInput
from everflow.topology.plan import DEAD_LETTER_SLOT, Source
from everflow.worker.decode import Judge, LogDecoder
from everflow.worker.failures import DescribedFailure, RecordFailure
from everflow.worker.isolation import HALVED_AFTER, Isolated, Trial
from everflow.worker.letters import largest_entry, letter_headers, times_of_entries
from everflow.worker.task_step import StepResult
from unit.builders import batch_request
from unit.builders import source as made_source

A = TopicPartition("a", 0)


def source(index: int, topic: str) -> Source:
    return made_source(topic, index=index, node=f"source-{topic}", merged=True)


SOURCES = (source(0, "a"), source(1, "b"))


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
            for source in SOURCES
            if source.slot in hop.batches
            for value in hop.batches[source.slot].value.to_pylist()
        ]
        if self.always or any(value.startswith("bad") for value in values):
            raise self.error("some value")
        return values, len(hop.batches[DEAD_LETTER_SLOT])

    def run(self, **logs: LogColumns) -> tuple[list[str], int]:
        nothing = log([])
        both = {"a": nothing, "b": nothing, **logs}
        read = {TopicPartition(topic, 0): columns for topic, columns in both.items()}
        decoder = LogDecoder(SOURCES, False, self.handlers)
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
    decoder = LogDecoder(SOURCES[:1], False, batch.handlers)
    assert Isolated(decoder).run(request(a=read[A]), read, compute) == 1
    (headers,) = letter_headers(letters[-1], SOURCES)
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
    """The entry grows by 50 bytes with each record; the writer refuses it, and names no record."""
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
    decoder = LogDecoder(SOURCES[:1], False, Handlers("dead"))
    with pytest.raises(RecordTooLargeError) as raised:
        Isolated(decoder, {"lists": "aggregate"}).run(asked, read, compute)
    assert raised.value.place == ("a", 0, 100 + at, "aggregate")
    assert f"Record a-0@{100 + at} has made it so large." in str(raised.value)
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
    decoder = LogDecoder(SOURCES[:1], False, Handlers("dead"))
    with pytest.raises(RecordRefusedError) as raised:
        Isolated(decoder, {"counts": "count"}).run(asked, read, compute)
    found = [raised.value, *raised.value.others]
    assert [one.place for one in found] == [
        ("a", 0, 100 + at, "count") for at in late[:HALVED_AFTER]
    ]
    assert f"Record a-0@{100 + late[0]} gives an entry of store counts that time." in str(found[0])


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
    decoder = LogDecoder(SOURCES[:1], False, Handlers("dead"))
    with pytest.raises(RetriableError, match="answer") as raised:
        Isolated(decoder, {"s": "count"}).run(request(a=read[A]), read, compute)
    assert raised.value.partitions == (frozenset({A}) if named else frozenset())
    assert trials == 0


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
    decoder = LogDecoder(SOURCES[:1], False, batch.handlers)
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
    decoder = LogDecoder(SOURCES[:1], False, handlers)
    columns = log([f"v{n}" for n in range(len(times))], times)
    hop = decoder.run({A: columns}, Judge(handlers, wall_clock_ms=99))
    assert hop.timestamp.tolist() == kept
    bad = [row for row, at in enumerate(times) if at > 10**16]
    letters = hop.batches[DEAD_LETTER_SLOT]
    assert letters.timestamp.tolist() == [kept[row] for row in bad]
    assert [one.timestamp for one in asked] == [times[row] for row in bad]
    assert hop.batches[1].timestamp.tolist() == [at for at in times if at < 10**16]
    with pytest.raises(DescribedFailure) as failed:
        LogDecoder(SOURCES[:1], False, Handlers()).run({A: columns}, Judge())
    assert failed.value.failure.code == "EF-RECORD-TIME"
    assert failed.value.failure.judged
