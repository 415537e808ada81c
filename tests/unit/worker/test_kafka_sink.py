"""The end of a micro-batch: no store changes unless its transaction has committed (D5, D6)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow.errors import EverflowError, GenerationChanged, TaskMigratedError, UnknownOutcomeError
from everflow.protocol.messages import (
    ABORTED,
    BatchRequest,
    GateAnswer,
    StorePlace,
    TaskContext,
    format_metadata,
)
from everflow.records import OffsetRange, StoreChanges, TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.worker.serve import WorkerPorts
from everflow.worker.sink import KafkaSink
from everflow.worker.task_step import StepResult
from unit.builders import batch_request, source

YES = GateAnswer(True, group_metadata=b"meta")
CHANGELOG = "app-counts-changelog"
LAYOUTS = '{"counts":["key_value","string","bigint"]}'
TASK, IN = TaskId(0, 0), TopicPartition("in", 0)
SOURCE = source("in", node="in")


class Writer:
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
class Ports(WorkerPorts):
    """A worker's ports with this writer, and one answer of the gate for all."""

    made: Any
    answer: GateAnswer = YES

    def writer(self, request: BatchRequest) -> Any:
        return self.made

    def ask(self, request: BatchRequest, offsets: object) -> GateAnswer:
        return self.answer


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "counts-0", kind="key_value")
    opened.claim("i1")
    yield opened
    opened.close()


def run(writer: Writer, store: LmdbStore, **answered: GateAnswer) -> Any:
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
    return KafkaSink(None, Ports(1 << 30, writer, **answered), LAYOUTS)(request, result, (SOURCE,))


def entries(store: LmdbStore) -> int:
    with store.snapshot() as view:
        return len(list(view.range(None, None)))


def test_records_gate_offsets_commit_store(writer: Writer, store: LmdbStore) -> None:
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
    call: str, error: EverflowError, writer: Writer, store: LmdbStore
) -> None:
    writer.failing[call] = error
    with pytest.raises(type(error)):
        run(writer, store)
    assert writer.calls[-1] == "abort"
    assert (entries(store), store.meta().position) == (0, None)


def test_a_no_of_the_gate_aborts(writer: Writer, store: LmdbStore) -> None:
    """Scenarios 6 to 8, and 10 where the driver is gone: the answer is no, and nothing happened."""
    done = run(writer, store, answer=GateAnswer(False, reason="ownership-changed: task 0_0"))
    assert (done.outcome, done.reason) == (ABORTED, "ownership-changed: task 0_0")
    assert writer.calls == ["begin", "write", "send", "abort"]
    assert (entries(store), store.meta().position) == (0, None)


def test_a_generation_that_moved_on_costs_an_abort(writer: Writer, store: LmdbStore) -> None:
    """Scenario 6 and I4: tasks that stay run the batch again at once."""
    writer.failing["send_offsets"] = GenerationChanged("illegal generation")
    done = run(writer, store)
    assert (done.outcome, done.reason) == (ABORTED, "generation: illegal generation")
    assert writer.calls[-1] == "abort"
    assert (entries(store), store.meta().position) == (0, None)


def test_a_store_that_another_claimed_is_not_touched(writer: Writer, store: LmdbStore) -> None:
    """Scenario 3: an orphan that wakes up after its commit finds its successor's claim."""
    store.claim("i2")
    with pytest.raises(EverflowError, match="i2"):
        run(writer, store)
    assert entries(store) == 0
