"""The pure parts of `bench programs`: inputs, comparing outputs, matching results with records,
marks."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.latency import processor_shares
from bench.load.latency_schedule import Phase
from bench.memory import ProcessorUse
from bench.nexmark.ratios import THROUGHPUT_RATIO, together
from bench.programs.catalogue import PROGRAMS, Kind
from bench.programs.marks import marks
from bench.programs.matching import latencies
from bench.programs.outputs import compare
from bench.report import plain_table
from bench.results import Measurement, Row, summarise
from bench.systems import Job, flink_launcher, flink_script
from bench.verify import WrongOutputError

TRADES = PROGRAMS["trades"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_programs_input_is_the_same_every_time_and_in_order(name: str) -> None:
    program = PROGRAMS[name]
    assert [program.row(number) for number in range(300)] == list(map(program.row, range(300)))
    times = list(program.times_ms(300))
    assert times == sorted(times)
    assert times[0] == program.begin_ms
    if name != "words":
        assert all(json.loads(program.row(number)[1]) for number in range(300))


def test_outputs_are_equal_up_to_the_rounding_of_sums() -> None:
    one = {("", b"a"): {"x": 0.1 + 0.2, "n": 1}}
    compare(TRADES, "everflow", one, "kafka-streams", {("", b"a"): {"x": 0.3, "n": 1}})


@pytest.mark.parametrize(
    "other",
    [
        {},
        {("", b"a"): {"x": 0.31, "n": 1}},
        {("", b"a"): {"x": 0.3}},
        {("", b"a"): {"x": 0.3, "n": True}},
        {("", b"a"): {"x": 0.3, "n": 1}, ("", b"b"): {"x": 0.3, "n": 1}},
        {("-home", b"a"): {"x": 0.3, "n": 1}},
    ],
)
def test_a_difference_of_outputs_has_its_key(other: dict[tuple[str, bytes], object]) -> None:
    one = {("", b"a"): {"x": 0.3, "n": 1}}
    with pytest.raises(WrongOutputError, match=r"differ in .* b'[ab]'"):
        compare(TRADES, "everflow", one, "kafka-streams", other)


def test_no_output_is_no_output_to_compare() -> None:
    with pytest.raises(WrongOutputError, match="wrote nothing"):
        compare(TRADES, "everflow", {}, "kafka-streams", {})


PHASES = [Phase(None, 1, 1000), Phase("1000", 3, 1000)]
SENT_NS = np.array([0, 1_000_000, 2_000_000, 3_000_000], dtype=np.int64)
KEYS = [b"S001", b"S002", b"S003"]
# Number of the key, record time in ms, seen at ns. The first three are of earlier records.
RESULTS = [(0, 0, 4_000_000), (1, 0, 4_000_000), (2, 1, 4_000_000)]
RESULTS += [(0, 1, 5_000_000), (1, 2, 7_000_000), (2, 9, 8_000_000), (2, 9, 9_000_000)]


def matched(
    results: list[tuple[int, int, int]], given_up_ns: int | None = None
) -> list[tuple[str, list[float]]]:
    seen = np.array(results, dtype=np.int64).reshape(-1, 3)
    found = latencies(TRADES, PHASES, SENT_NS, 0, seen, KEYS, given_up_ns)
    return [(case, list(ms)) for case, ms in found]


def test_a_record_is_seen_with_the_first_result_of_its_time_or_a_later_one() -> None:
    assert [TRADES.result_key(number) for number in range(4)] == [None, *KEYS]
    assert matched(RESULTS) == [("1000", [4.0, 5.0, 5.0])]


def test_a_record_without_a_result_fails_the_bench() -> None:
    with pytest.raises(WrongOutputError, match=r"2.*3.*result"):
        matched([result for result in RESULTS if result[0] != 1 and result[:2] != (0, 1)])


@pytest.mark.parametrize(
    ("results", "ms"), [(RESULTS[:4], [4.0, 18.0, 17.0]), ([], [19.0, 18.0, 17.0])]
)
def test_what_a_system_behind_did_not_do_has_waited_until_the_bench_stopped(
    results: list[tuple[int, int, int]], ms: list[float]
) -> None:
    assert matched(results, given_up_ns=20_000_000) == [("1000", ms)]


def row(case: str, metric: str, system: str, value: float, guarantee: str) -> Row:
    return Row("programs", case, system, guarantee, metric, value, "", (value,))


def test_marks_hold_each_figure_to_its_bound() -> None:
    once, least = "exactly_once_v2", "at_least_once"
    rows = [
        row("trades", "start", "everflow", 7.0, once),
        row("trades", "throughput", "everflow", 400.0, once),
        row("trades", "throughput", "kafka-streams", 100.0, once),
        row("trades", "throughput", "everflow", 400.0, least),
        row("trades", "throughput", "kafka-streams", 100.0, least),
        row("trades", "throughput", "flink-sql", 150.0, least),
        row("baskets", "throughput", "everflow", 90.0, once),
        row("baskets", "throughput", "kafka-streams", 100.0, once),
        row("invoices", "throughput", "everflow", 250.0, once),
        row("invoices", "throughput", "kafka-streams", 100.0, once),
        row("trades at 1000", "latency_p50", "everflow", 50.0, once),
        row("trades at 1000", "latency_p50", "kafka-streams", 100.0, once),
        row("trades at 1000", "latency_p50", "kafka-streams-transactional", 10.0, once),
        row("trades at 1000", "latency_p99", "everflow", 81.0, once),
        row("trades at 1000", "latency_p99", "kafka-streams", 100.0, once),
        row("trades at 1000", "memory", "everflow", 600.0, once),
        row("trades at 1000", "memory", "kafka-streams", 300.0, once),
        row("trades at 1000", "start", "everflow", 3.0, once),
        row("trades at 1000", "start", "kafka-streams", 2.0, once),
        row("trades at 100", "latency_p50", "everflow", 500.0, once),
        row("trades at 100", "latency_p50", "kafka-streams", 100.0, once),
        row("trades, 16 partitions at 1000", "processor", "everflow", 0.5, once),
        row("trades, 16 partitions at 1000", "processor", "kafka-streams", 0.4, once),
        row("trades, held to 0.5 core at 1000", "latency_p50", "everflow", 90.0, once),
        row("trades, held to 0.5 core at 1000", "latency_p50", "kafka-streams", 100.0, once),
        row("trades, beside a neighbour at 1000", "latency_p50", "everflow", 90.0, once),
        row("trades, beside a neighbour at 1000", "latency_p50", "kafka-streams", 100.0, once),
        row("trades", "memory_peak", "everflow", 500.0, once),
    ]
    assert [
        (mark.case, mark.guarantee, mark.metric, round(mark.value, 2), mark.bound, mark.met)
        for mark in marks(rows, "everflow")
    ] == [
        ("trades", once, "start", 7.0, 6.0, False),
        ("trades", once, "throughput", 4.0, 5.0, False),
        ("trades", least, "throughput", 4.0, 3.0, True),
        ("trades", least, "throughput", 2.67, 2.0, True),
        ("baskets", once, "throughput", 0.9, 1.0, False),
        ("invoices", once, "throughput", 2.5, 3.0, False),
        ("trades at 1000", once, "latency_p50", 0.5, 0.6, True),
        ("trades at 1000", once, "latency_p99", 0.81, 0.8, False),
        ("trades at 1000", once, "memory", 2.0, 1.5, False),
        ("trades at 1000", once, "start", 1.5, 1.3, False),
        ("trades, 16 partitions at 1000", once, "processor", 1.25, 0.7, False),
        ("trades, held to 0.5 core at 1000", once, "latency_p50", 0.9, 1.0, True),
    ]


QUERY_RUNS = {
    ("q0", "everflow"): (100.0, 200.0, 300.0),
    ("q0", "flink-sql"): (200.0, 100.0, 100.0),
    ("q5", "everflow"): (90.0, 90.0, 80.0),
    ("q5", "flink-sql"): (10.0, 10.0, 20.0),
    ("q12", "everflow"): (700.0, 700.0, 700.0),
    ("trades", "everflow"): (900.0, 900.0, 900.0),
    ("trades", "flink-sql"): (1.0, 1.0, 1.0),
}


def test_nexmarks_queries_come_to_their_worst_one_and_their_geometric_mean() -> None:
    once = "exactly_once_v2"
    measured = summarise(
        Measurement("programs", case, system, once, "throughput", "records/s", value)
        for (case, system), runs in QUERY_RUNS.items()
        for value in runs
    )
    rows = [*measured, *together(measured)]
    ratios = {row.case: (row.value, row.runs) for row in rows if row.metric == THROUGHPUT_RATIO}
    assert ratios == {
        "worst query, q0 to flink-sql": (2.0, (0.5, 2.0, 3.0)),
        "geometric mean, 2 queries to flink-sql": (4.243, (2.121, 4.243, 3.464)),
    }
    found = {mark.case: (mark.value, mark.bound, mark.met) for mark in marks(rows, "everflow")}
    assert found["geometric mean, 2 queries"] == (4.243, 2.5, True)
    assert found["worst query, q0"] == (2.0, 1.0, True)
    assert found["q0"] == (2.0, 1.0, True)
    *_, worst, mean = plain_table(rows)
    assert worst == ("worst query, q0", once, "throughput", "", "", "2.00")
    assert mean == ("geometric mean, 2 queries", once, "throughput", "", "", "4.24")


def test_a_programs_processor_time_is_told_by_the_cores_of_its_cases() -> None:
    used = ProcessorUse(os.getpid())
    used.stop()
    used._seconds = [(0.0, 0.0), (10.0, 5.0), (20.0, 25.0)]
    sent_ns = np.array([0, 10, 12, 20, 20], dtype=np.int64) * 1_000_000_000
    phases = [Phase(None, 1, 1), Phase("1", 3, 1), Phase("one", 1, 1)]
    assert processor_shares(phases, sent_ns, used) == {"1": 2.0}


@pytest.mark.parametrize("name", PROGRAMS)
def test_flink_has_the_programs_that_sql_can_say(name: str) -> None:
    script = flink_script(name)
    # q12: windows of the clock that are open when the input ends.
    said = PROGRAMS[name].kind in (Kind.COLUMNS, Kind.NEXMARK) and name != "q12"
    assert (script is not None) == said
    if script is not None:
        text = script.read_text()
        for branch in PROGRAMS[name].branches:
            assert f"'topic' = '${{output}}{branch}'" in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_flink_has_no_live_sessions(name: str) -> None:
    """A live script reads on for ever, and its results have the time of the latest record."""
    full, script = flink_script(name), flink_script(name, live=True)
    at_paces = name != "sessions" and PROGRAMS[name].kind is not Kind.NEXMARK
    assert (script is None) == (full is None or not at_paces)
    if script is not None:
        text = script.read_text()
        assert "scan.bounded.mode" not in text
        assert text.count("METADATA FROM 'timestamp'") == 1 + len(PROGRAMS[name].branches)
        for branch in PROGRAMS[name].branches:
            assert f"'topic' = '${{output}}{branch}'" in text


def test_a_live_job_of_flink_goes_on(tmp_path: Path) -> None:
    job = Job("server:1", "app", "exactly_once_v2", 2, "in", "out", tmp_path, "trades")
    launch = flink_launcher(["java", "FlinkSql"])
    full, live = launch(job), launch(replace(job, live=True))
    assert (full.ends_when_done, live.ends_when_done) == (True, False)
    assert "execution.checkpointing.interval=1 s" in full.command
    assert "execution.checkpointing.interval=100 ms" in live.command
    assert any(part.endswith("live/trades.sql") for part in live.command)
