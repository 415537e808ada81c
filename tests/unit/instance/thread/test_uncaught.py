"""A stream thread that cannot go on (KIP-671): what the handler's answers do, how often."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everflow.config import BatchLimits
from everflow.errors import (
    DamagedEntryError,
    EverflowError,
    FatalError,
    InternalTopicError,
    RecordError,
    TaskTimeoutError,
)
from everflow.instance.tasks.task import ActiveTask, TaskState, TaskTimeouts
from everflow.instance.thread.retry_policy import (
    ReplacementLimits,
    RetryPolicy,
    StalledTasks,
    first_size,
)
from everflow.instance.thread.stream_thread import StreamThreadExceptionResponse, Uncaught
from everflow.memory import WorkerMemory
from everflow.protocol.messages import (
    COMMITTED,
    BadRecord,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
)
from everflow.records import UNBOUNDED_BYTES, CommittedOffset, TopicPartition
from unit.instance.thread.stream_thread_world import IN, OTHER, OTHER_TASK, TASK, World

REPLACE = StreamThreadExceptionResponse.REPLACE_THREAD
DEFAULTS = ReplacementLimits()
BAD = RecordError("no such city", topic="in", partition=0, offset=7)


def asked(handler: Callable[[EverflowError], Any] | None) -> ReplacementLimits | None:
    return Uncaught(lambda _: None, handler).limits_for(BAD)


def policy() -> RetryPolicy:
    return RetryPolicy(
        limits=BatchLimits(100, 1 << 30, 1_000),
        size=first_size(functions=False),
        worker=lambda: WorkerMemory(UNBOUNDED_BYTES),
        may_continue=lambda stage, node: False,
        stalled=StalledTasks(TaskTimeouts(10_000)),
    )


def rest_ms(
    retries: RetryPolicy,
    now_ms: float,
    error: EverflowError = BAD,
    limits: ReplacementLimits | None = DEFAULTS,
) -> int | None:
    """For how long the task of a thread that is replaced rests; None: the thread ends."""
    task = ActiveTask(id=TASK, inputs=(IN,), stores=(), state=TaskState.RUNNING, epoch=1)
    replaced, _ = retries.uncaught(error, limits, None, {TASK: task}, now_ms)
    if not replaced:
        return None
    steps = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000)
    found = next(ms for ms in steps if not retries.resting(now_ms + ms))
    assert retries.resting(now_ms + found - 1) == {TASK}
    return found


def test_without_a_handler_the_instance_ends() -> None:
    assert asked(None) is None
    assert rest_ms(policy(), 0, limits=None) is None


def test_each_replacement_waits_longer_and_the_window_moves_on() -> None:
    limits, retries = ReplacementLimits(most=3, within_ms=100_000), policy()
    rests = [rest_ms(retries, at, limits=limits) for at in (0, 10, 20)]
    assert rests == [1_000, 2_000, 4_000]
    assert rest_ms(retries, 30, limits=limits) is None, "the fourth within the window"
    assert rest_ms(policy(), 30, limits=limits) == 1_000, "another thread has its own count"
    assert rest_ms(retries, 100_015, limits=limits) == 2_000, "two of them are long ago"


def test_a_rest_is_a_minute_at_most() -> None:
    limits, retries = ReplacementLimits(most=20), policy()
    assert max(rest_ms(retries, 0, limits=limits) or 0 for _ in range(20)) == 60_000


@pytest.mark.parametrize("error", [FatalError("x"), InternalTopicError("x")])
def test_what_only_a_restart_mends_replaces_nothing(error: EverflowError) -> None:
    assert rest_ms(policy(), 0, error) is None


@pytest.mark.parametrize(
    "error", [TaskTimeoutError("x"), DamagedEntryError("x"), EverflowError("a defect")]
)
def test_what_may_pass_replaces(error: EverflowError) -> None:
    assert rest_ms(policy(), 0, error) == 1_000


def test_a_handler_that_fails_ends_the_instance(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: EverflowError) -> Any:
        raise ZeroDivisionError

    assert asked(broken) is None
    assert asked(lambda _: "REPLACE_THREAD") is None
    assert asked(lambda _: REPLACE) == ReplacementLimits()
    assert "handler failed" in caplog.text
    assert "returned 'REPLACE_THREAD'" in caplog.text


def test_the_whole_application_is_asked_to_end() -> None:
    shut: list[EverflowError] = []
    answer = StreamThreadExceptionResponse.SHUTDOWN_APPLICATION
    assert Uncaught(shut.append, lambda _: answer).limits_for(BAD) is None
    assert shut == [BAD]


class TwoTasks(World):
    """`TASK` fails at offset 7 of its partition until it is mended; `OTHER_TASK` never does."""

    def __init__(self, handler: Callable[[EverflowError], Any]) -> None:
        super().__init__()
        self.at = {IN: 0, OTHER: 0}
        self.mended = False
        self.behave = self.process
        policy = Uncaught(lambda _: None, handler)
        self.thread.services = replace(self.thread.services, uncaught=policy.limits_for)
        self.book.own([TASK, OTHER_TASK])
        self.both = [self.give_task(), self.give_task(OTHER_TASK, OTHER)]

    def process(self, request: BatchRequest) -> BatchResult:
        wanted = request.ranges.get(IN)
        if not self.mended and wanted is not None and wanted.start <= 7 < wanted.end:
            bad = BadRecord("in", 0, 7)
            raise BatchFailedError(BatchFailure(kind="record", error="no such city", record=bad))
        self.at.update({tp: wanted.end for tp, wanted in request.ranges.items()})
        consumed = {tp: wanted.end for tp, wanted in request.ranges.items()}
        return BatchResult(outcome=COMMITTED, consumed=consumed, counts={"in": 1})

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        self.done.append("committed")
        return {tp: CommittedOffset(self.at[tp], "") for tp in partitions}

    def go(self, turns: int = 4) -> None:
        for _ in range(turns):
            self.ends.poll_once()
            self.thread._turn()


def test_the_task_that_failed_rests_and_the_others_go_on() -> None:
    world = TwoTasks(lambda _: REPLACE)
    world.end = 10
    world.go()
    assert world.at == {IN: 0, OTHER: 10}, "the other task does not wait"
    assert "failed" not in " ".join(world.done)
    assert len(world.opened) == 2, "another job"
    assert all(task.state is TaskState.RUNNING for task in world.both)
    assert world.done.index("kill [99]") < world.done.index("fence app-p-0")
    found = world.thread.troubles()
    assert list(found) == [TASK]
    assert "no such city" in found[TASK].text
    world.end = 20
    world.go()
    assert world.at == {IN: 0, OTHER: 20}
    world.mended = True
    world.clock.advance(60_000)
    world.go()
    assert world.at == {IN: 20, OTHER: 20}
    assert world.thread.troubles() == {}


def test_a_task_that_never_gets_well_ends_the_instance_after_so_many_replacements() -> None:
    met: list[EverflowError] = []

    def handler(error: EverflowError) -> StreamThreadExceptionResponse:
        met.append(error)
        return REPLACE

    world = TwoTasks(handler)
    world.end = 10

    def go_on() -> None:
        for _ in range(100):
            world.go()
            world.clock.advance(20_000)

    with pytest.raises(RecordError, match="no such city"):
        go_on()
    assert len(met) == 6
    assert world.at == {IN: 0, OTHER: 10}


def test_without_a_culprit_all_tasks_of_the_thread_rest() -> None:
    world = TwoTasks(lambda _: REPLACE)
    world.mended = True
    world.end = 10
    process = world.process

    def break_down(_: BatchRequest) -> BatchResult:
        world.behave = process
        raise ZeroDivisionError("a defect")

    world.behave = break_down
    world.go(2)
    assert world.at == {IN: 0, OTHER: 0}
    assert set(world.thread.troubles()) == {TASK, OTHER_TASK}
    world.clock.advance(2_000)
    world.go()
    assert world.at == {IN: 10, OTHER: 10}


def test_a_task_that_goes_takes_its_trouble_along() -> None:
    world = TwoTasks(lambda _: REPLACE)
    world.end = 10
    world.go()
    given: list[ActiveTask] = []
    world.thread.drop([TASK], given.extend)
    world.go(1)
    assert [task.id for task in given] == [TASK]
    assert world.thread.troubles() == {}
