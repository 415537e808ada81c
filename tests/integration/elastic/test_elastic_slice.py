"""Slices of `./run chaos elastic`: instances join, leave, are bounced and killed under load;
nothing is lost, doubled or cold.

`chaos/elastic.py` says what is done and checked; the whole run takes half an hour, these take a
minute or two.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.elastic import ElasticRun, Plan
from chaos.elastic_stage import Report
from everflow.testing.broker import EmbeddedBroker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def check(report: Report) -> None:
    assert report.clean, report


def test_an_instance_joins_is_bounced_and_killed(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Static members: nobody notices the bounce, and a kill -9 is one too."""
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


def test_out_and_back_with_kills_that_others_take_over(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Scenarios 1, 2 and 23: dynamic members drain; whose tasks come back has them replayed from
    its position."""
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
