"""What `/status` says, and how another instance reads what came over the network."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from everflow import metrics as names
from everflow.observe.status import observation_in, status_of
from unit.observe.observations import FULL, changed


def told(**values: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps({**status_of(FULL), **values})))


def test_another_instance_reads_what_a_page_shows_of_others() -> None:
    read = observation_in(told())
    assert (read.application_id, read.state, read.members) == ("orders", "RUNNING", 2)
    assert read.lags == FULL.lags
    assert [(task.task, task.role, task.lag, task.trouble) for task in read.tasks] == [
        (task.task, task.role, task.lag, task.trouble) for task in FULL.tasks
    ]
    assert [(thread.number, thread.busy) for thread in read.threads] == [(0, 0.25)]
    assert read.counters[names.LAG] == 3.0


def test_what_is_not_known_stays_unknown() -> None:
    read = observation_in(json.loads(json.dumps(status_of(changed(counters={}, members=None)))))
    assert math.isnan(read.counters[names.LAG])
    assert read.members is None


def test_an_older_version_tells_less() -> None:
    old = told()
    for name in ("lags", "consumed", "silent_s", "transactions"):
        del old[name]
    assert observation_in(old).lags == {}


@pytest.mark.parametrize(
    "status",
    [
        [],
        None,
        "RUNNING",
        {},
        told(tasks=[{"task": "0_0"}]),
        told(tasks=[{**told()["tasks"][0], "lag": "many"}]),
        told(tasks=[{**told()["tasks"][0], "task": {"a": 1}}]),
        told(tasks=7),
        told(threads=[{**told()["threads"][0], "busy": None}]),
        told(lag="1x"),
        told(lag=math.nan),
        told(consumed=math.inf),
        told(consumed=10**400),
        told(tasks=[{**told()["tasks"][0], "rate": math.inf}]),
        told(lags=[["in", 0, 3]]),
    ],
)
def test_what_is_no_status_is_refused(status: Any) -> None:
    with pytest.raises(ValueError, match=r"no status|could not convert"):
        observation_in(status)
