"""The pure parts of the benches: medians and rows, and matching a count with the record that caused
it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.latency import _latencies
from bench.load.latency_schedule import Phase, key_at, number_of, schedule
from bench.results import Measurement, summarise
from bench.systems import Job, everflow_launch, everflow_unguarded_launch, turns
from bench.topics import json_value
from bench.verify import WrongOutputError
from everflow.config import StreamsConfig


def measurement(value: float, system: str = "everflow") -> Measurement:
    return Measurement(
        "throughput", "count", system, "exactly_once_v2", "throughput", "records/s", value
    )


def test_a_row_holds_the_median_and_all_runs_of_one_figure() -> None:
    rows = summarise(
        [measurement(3.0), measurement(9.0, "kafka-streams"), measurement(1.0), measurement(2.0)]
    )
    assert [(row.system, row.value, row.runs) for row in rows] == [
        ("everflow", 2.0, (3.0, 1.0, 2.0)),
        ("kafka-streams", 9.0, (9.0,)),
    ]


@pytest.mark.parametrize("number", [0, 6, 7, 8, 700])
def test_key_and_count_name_the_record(number: int) -> None:
    keys = 7
    count = len([earlier for earlier in range(number + 1) if earlier % keys == number % keys])
    assert number_of(key_at(number, keys), count, keys) == number


@pytest.mark.parametrize("number", [0, 1_999_999])
def test_input_values_have_100_bytes(number: int) -> None:
    assert len(json_value(number)) == 100


def test_every_rate_is_warmed_up_and_idleness_comes_last() -> None:
    phases = schedule([100], warm_up_s=2.0, measured_s=3.0, idle_s=70.0)
    assert phases == [
        Phase(None, 200, 100),
        Phase("100", 300, 100),
        Phase("after 70 s idle", 10, 10.0, pause_before_s=70.0),
    ]


PHASES = [Phase(None, 1, 100), Phase("100", 2, 100)]
SENT_NS = np.array([1_000_000, 2_000_000, 3_000_000], dtype=np.int64)


def test_latencies_leave_the_warm_up_out() -> None:
    seen = np.array([[2, 9_000_000], [0, 5_000_000], [1, 6_000_000]], dtype=np.int64)
    assert [(case, list(ms)) for case, ms in _latencies(PHASES, SENT_NS, seen)] == [
        ("100", [4.0, 6.0])
    ]


@pytest.mark.parametrize(
    "seen", [[[0, 5], [1, 6]], [[0, 5], [1, 6], [2, 7], [2, 8]]], ids=["missing", "read twice"]
)
def test_a_missing_or_repeated_count_voids_the_figures(seen: list[list[int]]) -> None:
    with pytest.raises(WrongOutputError):
        list(_latencies(PHASES, SENT_NS, np.array(seen, dtype=np.int64)))


def test_without_guards_is_the_same_start_but_for_two_settings() -> None:
    job = Job("b:1", "app", "exactly_once_v2", 2, "in", "out", Path("state"))
    guarded, unguarded = everflow_launch(job), everflow_unguarded_launch(job)
    assert unguarded.command[: len(guarded.command)] == guarded.command
    more = unguarded.command[len(guarded.command) :]
    assert more[::2] == ["--set", "--set"]
    settings = dict(one.split("=") for one in more[1::2])
    assert settings.keys() == {"consumer.check.crcs", "max.memory.bytes"}
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "b:1", **settings})
    assert config.max_memory_bytes > 1 << 40
    assert config.consumer()["check.crcs"] == "false"


def test_systems_take_turns_from_either_end() -> None:
    launchers = {"kafka-streams": everflow_launch, "everflow": everflow_launch}
    taken = [(guarantee, run, system) for guarantee, run, system, _ in turns("ab", 2, launchers)]
    assert taken == [
        ("a", 0, "kafka-streams"),
        ("a", 0, "everflow"),
        ("a", 1, "everflow"),
        ("a", 1, "kafka-streams"),
        ("b", 0, "kafka-streams"),
        ("b", 0, "everflow"),
        ("b", 1, "everflow"),
        ("b", 1, "kafka-streams"),
    ]
