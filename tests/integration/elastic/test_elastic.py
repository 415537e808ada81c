"""Several instances, each a process of its own, join, leave, are bounced and killed under load.

Slices of `./run chaos elastic`, and scenarios. Each ends with the checks of every chaos run.
"""

import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.events import Event
from chaos.elastic import ElasticRun, Plan
from chaos.elastic_group import Process
from chaos.elastic_stage import Report, Sizes, Stage
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def check(report: Report) -> None:
    assert report.clean, report


def test_an_instance_joins_is_bounced_and_killed(broker: EmbeddedBroker, tmp_path: Path) -> None:
    plan = Plan(
        keys=3_000,
        rate=60,
        scale=(1, 2),
        bounces=1,
        kills=1,
        members=2,
        partitions=4,
        seed=3,
        static=True,
    )
    run = ElasticRun(plan, broker, tmp_path, "slice")
    check(run.run())
    assert run.report.faults.keys() == {"scale-out", "bounce", "kill-driver"}


def test_out_and_back_with_kills_others_take_over(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Scenarios 1, 2, 23: dynamic members drain; a task that comes back is replayed on."""
    plan = Plan(
        keys=6_000, rate=60, scale=(1, 2, 1), bounces=2, kills=2, members=2, partitions=4, seed=3
    )
    run = ElasticRun(plan, broker, tmp_path, "out-and-back")
    check(run.run())
    restored = [
        (life.name, event.fields["records"])
        for life in run.group.lives()
        for event in life.of("restore_end")
        if life.number > 1
    ]
    assert restored, "no task came back to a disk that had it before"
    whole = plan.keys // plan.partitions
    assert all(records < whole for _, records in restored), (
        f"a store was restored from the start: {restored}"
    )


PARTITIONS = 4
SIZES = Sizes(keys=4_000, rate=60, partitions=PARTITIONS)
LONG_S = 240.0
SHORT_SESSION = {"session.timeout.ms": 10_000}
RETENTION_MS = 30_000
OpenStage = Callable[..., Stage]


@pytest.fixture
def stage(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[OpenStage]:
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


def finish_right(stage: Stage) -> None:
    report = stage.finish()
    assert report.right, report


def test_a_static_member_with_an_empty_disk_waits_while_a_hot_copy_lives(stage: OpenStage) -> None:
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
    """Scenario 26: refused offsets go with the next batch; a clean scale-in loses nothing."""
    app = stage(**{"processing.guarantee": "at_least_once"})
    first = app.group.start(1)
    app.group.wait_balanced(0)
    app.fill()
    app.group.start(2)
    app.group.wait_balanced(0)
    app.group.leave(2)
    app.group.wait_balanced(0)
    said = first.log.read_text()
    assert "next commit" in said, "no commit fell into a rebalance: nothing was tested"
    assert "batch failed" not in said
    report = app.finish()
    report.duplicated = 0  # allowed
    assert report.right, report


def test_a_broker_standing_still_empties_no_store(broker: EmbeddedBroker, stage: OpenStage) -> None:
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
    """Stop the broker, again and again: longer than a request waits, less than a session."""
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
    """Scenario 13: it may have missed deletes that the changelog no longer holds."""
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
    assert re.search("is not used: .* changelog", said), "the old copies were offered to the group"
    assert f"delete.retention.ms = {RETENTION_MS} ms" in said
    restored = [
        event.fields["records"] for event in events(back, "restore_end") if event.fields["records"]
    ]
    assert restored, "nothing was rebuilt"
    assert min(restored) > SIZES.keys // PARTITIONS // 2, restored
    finish_right(app)
