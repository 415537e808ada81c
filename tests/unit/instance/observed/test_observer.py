"""What the page gets of an instance: rates between looks, and the lines since it is watched."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from everflow import metrics as names
from everflow.config import StreamsConfig
from everflow.errors import EverflowError
from everflow.instance.client_state import ClientState
from everflow.instance.describe import TaskStatus
from everflow.instance.observer import Observer
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.logs import moves
from everflow.metrics import LEFT_OUT, Metrics
from everflow.observe.desired_instances import ScalingRules
from everflow.observe.observation import Observation
from everflow.observe.page.view import page_view
from everflow.records import TaskId
from unit.manual_clock import ManualClock

RESTORING = TaskStatus(
    role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=25, rate=5.0, remaining_s=5.0, copied=75
)


class Looked:
    """An instance that has begun; the test says what it has consumed."""

    config = StreamsConfig(application_id="a", bootstrap_servers="b:1")
    state = ClientState.REBALANCING
    error: EverflowError | None = None
    consumed = 0.0
    task = RESTORING

    def all_tasks(self) -> dict[TaskId, TaskStatus]:
        return {TaskId(0, 1): self.task}

    def metrics(self) -> dict[str, float | str]:
        return {names.RECORDS_CONSUMED: self.consumed, names.CLIENT_STATE: "REBALANCING"}


@pytest.fixture
def looked() -> Looked:
    return Looked()


@pytest.fixture
def observer(looked: Looked) -> Observer:
    return Observer(
        streams=looked,
        instance=lambda: None,
        raw=Metrics(),
        clock=ManualClock(1_000_000),
        subject=Observation(
            application_id="a",
            client_id="a-1",
            version="1",
            state="",
            state_number=0,
            threads=(),
            tasks=(),
        ),
        rules=ScalingRules(drain_s=33.0),
    )


def advance(observer: Observer, milliseconds: float) -> None:
    assert isinstance(observer.clock, ManualClock)
    observer.clock.advance(milliseconds)


def test_a_page_that_is_opened_in_the_first_second_has_facts(observer: Observer) -> None:
    facts = observer.facts()
    assert facts.before == facts.now
    assert facts.total_growth(names.RECORDS_CONSUMED) == 0.0
    assert facts.drain_goal_s == 33.0
    (task,) = facts.seen.tasks
    assert (task.task, task.state, task.copied, task.lag) == ("0_1", "RESTORING", 75, 25)


def test_rates_and_spans_are_between_its_thread_s_looks(observer: Observer, looked: Looked) -> None:
    observer.sample()
    advance(observer, 5_000)
    looked.consumed = 500.0
    observer.sample()
    advance(observer, 5_000)
    looked.consumed = 1_000.0
    facts = observer.facts()
    assert facts.total_growth(names.RECORDS_CONSUMED) == 100.0
    assert [(span.since_ms, span.kind) for span in facts.spans["0_1"]] == [(1_000_000, "restoring")]
    assert facts.now_ms == 1_010_000


def test_an_active_task_has_the_rate_of_its_processing(observer: Observer, looked: Looked) -> None:
    """For `/status`, `everflow tasks` and the pages of other instances, which know no counters."""
    looked.task = replace(RESTORING, state=TaskState.RUNNING, lag=3_000, rate=0.0, remaining_s=0.0)
    observer.sample()
    advance(observer, 5_000)
    observer.raw.add_series(names.PROCESSED, {("0", "0_1", "in"): 500.0})
    looked.task = replace(looked.task, lag=2_000)
    (task,) = observer.status()["tasks"]
    assert (task["rate"], task["remaining_s"]) == (100.0, 10.0)
    (row,) = page_view(observer.facts())["tasks"]["rows"]
    assert (row["rate"], row["remaining_s"]) == (100.0, 10.0)


def test_samples_of_what_failed_are_looked_at(observer: Observer) -> None:
    observer.raw.note(LEFT_OUT, {("E", "n", "t"): "t-0@1 (E: bad)"})
    assert observer.observe().samples == {("E", "n", "t"): "t-0@1 (E: bad)"}


def test_it_says_what_is_left_of_the_disk(observer: Observer, tmp_path: Path) -> None:
    assert observer.status()["disk"] is None
    advance(observer, 1_000)
    observer.folder = tmp_path / "not-made-yet"
    assert observer.status()["disk"] is None
    advance(observer, 1_000)
    observer.folder = tmp_path
    told = observer.status()["disk"]
    assert 0 < told["free"] < told["bytes"]


def test_lines_are_kept_while_it_runs(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "level", logging.INFO)
    moves.manager._clear_cache()  # type: ignore[attr-defined]
    moves.info("before")
    observer.start()
    moves.info("meanwhile")
    observer.stop()
    moves.info("after")
    moves.manager._clear_cache()  # type: ignore[attr-defined]
    assert [event.text for event in observer.facts().events] == ["meanwhile"]
