"""Failure scenarios of several instances, each as own processes on one broker, under load. Each
ends with the checks of every chaos run: outputs and stores are those of an undisturbed run, every
copy is the fold of its changelog up to its position, no task was on two members or went to a cold
one while a hot copy lived.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.events import Event
from chaos.elastic_group import Process
from chaos.elastic_stage import Sizes, Stage
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until
from everflow.worker.crash_points import COMMITTED, FIRST_RECORD, OFFSETS_SENT
from integration.crash.crash_instance import Application, records

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 4
SIZES = Sizes(keys=4_000, rate=60, partitions=PARTITIONS)
LONG_S = 240.0
SHORT_SESSION = {"session.timeout.ms": 10_000}
RETENTION_MS = 30_000
HUNG_AFTER_MS = 5_000
OpenStage = Callable[..., Stage]


@pytest.fixture
def stage(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[OpenStage]:
    """``stage(settings)``: a new application, ended after the test."""
    opened: list[Stage] = []

    def start(**settings: Any) -> Stage:
        opened.append(
            Stage(f"e{uuid.uuid4().hex[:8]}", broker, tmp_path, SIZES, settings).__enter__()
        )
        return opened[-1]

    yield start
    for each in opened:
        each.__exit__(None, None, None)


def events(process: Process, *kinds: str) -> list[Event]:
    return [event for event in process.events.read() if event.kind in kinds]


def generation(process: Process) -> int:
    return max((event.fields["generation"] for event in events(process, "roles")), default=-1)


def finish_right(stage: Stage) -> None:
    report = stage.finish()
    assert report.right, report


def test_a_batch_of_tasks_that_stay_commits_although_the_generation_changed_in_it(
    stage: OpenStage,
) -> None:
    """Scenario 6: its transaction is open when a second instance joins; the commit carries the
    generation of that moment."""
    app = stage(**{"transaction.timeout.ms": 120_000})
    first = app.group.start(1)
    app.group.wait_balanced(0)
    app.fill()
    first.arm(FIRST_RECORD)
    app.group.wait("a batch in its transaction", lambda: first.reached(FIRST_RECORD), LONG_S)
    before, reached_s = generation(first), time.time()
    app.group.start(2)
    app.group.wait("the next generation", lambda: generation(first) > before, LONG_S)
    joined_s = time.time()
    first.go(FIRST_RECORD)
    app.group.wait_balanced(0)
    (held,) = [
        event
        for event in events(first, "batch")
        if event.fields["began_ms"] / 1000 < reached_s and event.at_s > joined_s
    ]
    assert held.fields["committed"], (held, first.history())
    assert "batch failed" not in first.log.read_text()
    finish_right(app)


def test_an_instance_that_stood_still_finds_its_tasks_gone_and_gets_them_back(
    stage: OpenStage,
) -> None:
    """Scenarios 1 and 8, and a pause beyond the session: its open transaction never commits, the
    other processes the same records; what comes back is replayed from the store's own position."""
    app = stage(**SHORT_SESSION, **{"num.standby.replicas": 1})
    first = app.group.start(1)
    app.group.wait_balanced(0)
    app.fill()
    second = app.group.start(2)
    app.group.wait_balanced(1)
    first.arm(OFFSETS_SENT)
    app.group.wait("a transaction with its offsets", lambda: first.reached(OFFSETS_SENT), LONG_S)
    frozen, frozen_s = first.family(), time.time()
    _each(frozen, psutil.Process.suspend)
    try:
        app.group.wait(
            "the other to take over", lambda: len(second.view().active) == PARTITIONS, LONG_S
        )
        app.wait_committed()
    finally:
        _each(frozen, psutil.Process.resume)
    first.go(OFFSETS_SENT)
    app.group.wait("its loss to be noticed", lambda: bool(events(first, "lost")), LONG_S)
    app.group.wait_balanced(1)
    late = [
        e
        for e in events(first, "batch")
        if e.fields["began_ms"] / 1000 < frozen_s < e.at_s and e.fields["committed"]
    ]
    assert late == [], "what stood still committed all the same"
    finish_right(app)


def test_a_worker_that_sleeps_before_its_apply_changes_nothing_of_its_successor(
    stage: OpenStage,
) -> None:
    """Scenario 3: its batch is committed, the instance is killed, the same disk runs the task on;
    then the worker wakes up."""
    app = stage(**SHORT_SESSION)
    first = app.group.start(1)
    app.group.wait_balanced(0)
    app.fill()
    first.arm(COMMITTED)
    app.group.wait(
        "a batch that is committed and not applied", lambda: first.reached(COMMITTED), LONG_S
    )
    family = first.family()
    sleepers = family[1:]
    _each(sleepers, psutil.Process.suspend)  # the JVM too, or it would end them with the driver
    first.gone_s = time.time()
    family[0].kill()
    first.process.wait(30)
    app.group.start(1)
    app.group.wait_balanced(0)
    first.go(COMMITTED)
    _each(sleepers, psutil.Process.resume)
    psutil.wait_procs(sleepers, timeout=60)
    finish_right(app)


def test_a_static_member_with_an_empty_disk_takes_nothing_while_a_hot_copy_lives(
    stage: OpenStage,
) -> None:
    """Scenario 22."""
    app = stage(**{"num.standby.replicas": 1, "session.timeout.ms": 300_000})
    app.group.start(1, **{"group.instance.id": "one"})
    app.group.wait_balanced(0)
    app.fill()
    second = app.group.start(2, **{"group.instance.id": "two"})
    app.group.wait_balanced(1)
    app.group.stop(1)
    app.forget_files(1)
    shutil.rmtree(app.group.state(1))
    empty = app.group.start(1, **{"group.instance.id": "one"})
    app.group.wait(
        "the other to take the tasks of the empty disk",
        lambda: len(second.view().active) == PARTITIONS,
        LONG_S,
    )
    app.group.wait_balanced(1)
    first_assigned = events(empty, "assigned")[0]
    have = {
        task: first_assigned.fields["sums"].get(task, 0) for task in first_assigned.fields["tasks"]
    }
    assert all(total > SIZES.keys // PARTITIONS // 2 for total in have.values()), (
        f"taken cold: {have}"
    )
    finish_right(app)


def test_at_least_once_loses_nothing_while_the_group_is_rebalanced(stage: OpenStage) -> None:
    """Scenario 26: offsets that a rebalance refuses go with the next batch; a clean scale-in loses
    no record."""
    app = stage(**{"processing.guarantee": "at_least_once"})
    first = app.group.start(1)
    app.group.wait_balanced(0)
    app.fill()
    app.group.start(2)
    app.group.wait_balanced(0)
    app.group.leave(2)
    app.group.wait_balanced(0)
    said = first.log.read_text()
    assert "go with the next commit" in said, "no commit fell into a rebalance: nothing was tested"
    assert "batch failed" not in said
    report = app.finish()
    report.duplicated = 0  # allowed
    assert report.right, report


def test_a_broker_that_stands_still_for_seconds_empties_no_store(
    broker: EmbeddedBroker, stage: OpenStage
) -> None:
    """While instances join and one is killed: recoveries, restores, copies and the leader ask for
    ends of logs all the time."""
    app = stage(**SHORT_SESSION, **{"num.standby.replicas": 1})
    first = app.group.start(1)
    app.group.wait_balanced(0)
    app.fill()
    second = app.group.start(2)
    _freeze_until(broker, lambda: bool(second.view().active))
    app.group.wait_balanced(1)
    app.group.kill(2, whole=True)
    _freeze_until(broker, lambda: len(first.view().active) == PARTITIONS)
    third = app.group.start(2)
    _freeze_until(broker, lambda: bool(third.view().active))
    app.group.wait_balanced(1)
    said = "".join(process.log.read_text() for process in (first, second, third))
    assert "Rebuilding" not in said
    finish_right(app)


def _freeze_until(broker: EmbeddedBroker, reached: Callable[[], bool]) -> None:
    """Stop the broker for longer than a request waits for its answer and for less than a session,
    again and again."""
    between = threading.Event()
    deadline = time.monotonic() + LONG_S
    while not reached():
        assert time.monotonic() < deadline, (
            "nothing moves while the broker stands still now and then"
        )
        broker.pause()
        between.wait(1.6)
        broker.resume()
        between.wait(1.5)


def test_a_store_that_was_away_longer_than_deletes_are_kept_is_rebuilt(stage: OpenStage) -> None:
    """Scenario 13: meanwhile the changelog grew on, and it may have missed deletes that the
    changelog no longer holds."""
    app = stage(**{"topic.delete.retention.ms": RETENTION_MS})
    app.group.start(1)
    app.group.wait_balanced(0)
    app.fill()
    app.group.start(2)
    app.group.wait_balanced(0)
    app.group.leave(1)
    away_s = time.monotonic()
    app.note_files()
    app.forget_files(1)
    wait_until(lambda: time.monotonic() - away_s > RETENTION_MS / 1000, 60, "deletes to be dropped")
    back = app.group.start(1)
    app.group.wait_balanced(0)
    said = back.log.read_text()
    assert "is not used: it has not followed its changelog" in said, (
        "the old copies were offered to the group"
    )
    assert f"delete.retention.ms = {RETENTION_MS} ms" in said
    restored = [
        event.fields["records"] for event in events(back, "restore_end") if event.fields["records"]
    ]
    assert restored, "nothing was rebuilt"
    assert min(restored) > SIZES.keys // PARTITIONS // 2, restored
    finish_right(app)


def test_a_batch_that_hangs_is_ended_by_the_watchdog_and_run_again(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Scenario 25: heartbeats go on, so the group would leave the task with this instance for
    ever."""
    name = f"hung{uuid.uuid4().hex[:8]}"
    app = Application(
        name, broker, tmp_path / name, settings={"max.poll.interval.ms": HUNG_AFTER_MS}
    )
    try:
        app.start()
        app.produce(records(5, 50, "before"))
        app.drain()
        app.arm(FIRST_RECORD)
        app.produce(records(5, 50, "hung"))
        worker = app.wait_reached(FIRST_RECORD)
        app.produce(records(5, 50, "behind"))
        app.drain()
        app.check()
        assert app.running
        assert not psutil.pid_exists(worker)
        assert "a batch hangs" in app.said()
    finally:
        app.close()


def _each(processes: list[psutil.Process], action: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            action(process)
