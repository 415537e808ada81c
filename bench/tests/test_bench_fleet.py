"""The pure parts of what a lost worker of a Spark cluster costs a fleet."""

from __future__ import annotations

from typing import Any

import pytest

from bench import run
from bench.fleet.worker_lost import address_of, note_of, ready, resumed_after, view_of
from bench.gaps import Gap


def status(
    active: str, standby: str, *, lag: int | None = 0, restoring: str = ""
) -> dict[str, Any]:
    roles = (("active", "RUNNING", active), ("active", "RESTORING", restoring))
    tasks = [
        {"task": task, "role": role, "state": state, "lag": 10**6}
        for role, state, names in roles
        for task in names.split()
    ]
    copies = [
        {"task": task, "role": "standby", "state": "RUNNING", "lag": lag}
        for task in standby.split()
    ]
    return {"state": "RUNNING", "tasks": tasks + copies}


FIRST, SECOND, THIRD = (
    status("0_0 0_1", "0_2 0_4"),
    status("0_2 0_3", "0_0 0_5"),
    status("0_4 0_5", "0_1 0_3"),
)


def test_ready_once_each_task_has_a_hot_standby() -> None:
    assert ready([FIRST, SECOND, THIRD], 6)
    assert not ready([FIRST, SECOND], 6), "one does not answer yet"
    for wrong in (
        status("0_4 0_5", "0_1"),
        status("0_4 0_5", "0_1 0_3", lag=10_001),
        status("0_4 0_5", "0_1 0_3", lag=None),
        status("0_4", "0_1 0_3", restoring="0_5"),
        {**THIRD, "state": "REBALANCING"},
        {"state": "STARTING"},
    ):
        assert not ready([FIRST, SECOND, wrong], 6)


def test_warm_ups_are_no_standbys() -> None:
    seen = view_of(
        {"state": "RUNNING", "tasks": [{"task": "0_1", "role": "warm-up", "state": "RUNNING"}]}
    )
    assert (seen.running, seen.warmup, seen.standby) == (True, {"0_1"}, frozenset())


def test_the_address_of_a_slot_is_on_its_command_line() -> None:
    line = ["python", "-c", "main", "run", "app:b", "--state-dir", "/h/fleet/app/slot-2/state"]
    assert address_of([*line, "--set", "http.listen=127.0.0.1:7"]) == "127.0.0.1:7"
    assert address_of(["java", "-Dhttp.listen=127.0.0.1:7"]) is None
    assert address_of(line) is None


def test_a_task_is_away_until_the_end_of_its_partitions_gap() -> None:
    """The gap begins with the last output before the loss, or the last that was on its way."""
    gaps = {0: Gap(7.5, 99.75), 1: Gap(6.0, 100.25), 2: Gap(0.25, 104.0)}
    assert resumed_after(gaps, 100.0, ["0_0", "0_1"]) == {"0_0": 7.25, "0_1": 6.25}


def test_a_busy_machine_is_told() -> None:
    assert note_of(0.3) == ""
    assert "1.9 s without an output before" in note_of(1.87)


@pytest.mark.parametrize(
    ("given", "cases", "systems"),
    [
        ([], ("kill -9", "clean stop"), ("kafka-streams", "everflow")),
        (["--cases", "fleet-worker"], ("fleet-worker",), ("everflow",)),
        (
            ["--cases", "kill -9,fleet-worker"],
            ("kill -9", "fleet-worker"),
            ("kafka-streams", "everflow"),
        ),
    ],
)
def test_the_case_of_the_fleet_is_everflows_alone(
    given: list[str], cases: tuple[str, ...], systems: tuple[str, ...]
) -> None:
    options = run._options(["failover", *given])
    assert (options.cases, options.systems) == (cases, systems)
