"""What a batch prints and counts, and which processes an instance may end."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, TopologyError, serdes
from everflow import metrics as names
from everflow.clock import SystemClock
from everflow.instance.thread.batch_counts import (
    HEAD_EVERY,
    BatchCounts,
    DroppedRecords,
    TablePrinter,
    TableText,
)
from everflow.instance.thread.worker_processes import alive, is_worker, trace_and_kill
from everflow.metrics import Metrics
from everflow.protocol.messages import COMMITTED, BatchResult, Printed
from everflow.records import LATE_UNMATCHED
from everflow.testing import TopologyTestDriver, wait_until
from everflow.worker.failures import innermost_line_in
from everflow.worker.task_step import cell
from unit.manual_clock import ManualClock

LATE = (
    "too late: the window's grace was over, by the newest record time of the task "
    "(docs/guide/time.md)"
)


def test_the_first_are_told_at_once_and_the_next_together_after_a_minute() -> None:
    dropped = DroppedRecords()
    assert dropped.lines({"by-item": {"late": 1}}, 5_000) == [f"by-item dropped 1 record {LATE}"]
    assert dropped.lines({"by-item": {"late": 2}}, 6_000) == []
    assert dropped.lines({"by-item": {"late": 1_000}}, 64_999) == []
    assert dropped.lines({}, 65_000) == [f"by-item dropped 1,002 records {LATE}"]
    assert dropped.lines({}, 200_000) == []


def test_a_clocks_call_is_no_record() -> None:
    (line,) = DroppedRecords().lines({"ticks": {"punctuation": 2}}, 0.0)
    assert line.startswith("ticks dropped 2 clock's calls that failed")


def test_a_late_row_that_was_emitted_without_a_match_is_not_dropped() -> None:
    metrics = Metrics()
    counts = BatchCounts(metrics, ManualClock(), 1)
    dropped = {"by-order": {LATE_UNMATCHED: 2, "null-key": 1}}
    counts.add(BatchResult(outcome=COMMITTED, dropped=dropped))
    assert metrics.snapshot()[names.DROPPED_RECORDS] == 1
    assert metrics.series()[names.DROPPED] == {("1", "by-order", "null-key"): 1}
    assert metrics.series()[names.UNMATCHED_LATE] == {("1", "by-order"): 2}
    emitted, left_out = DroppedRecords().lines(dropped, 0)
    assert emitted.startswith("by-order emitted 2 records without a match")
    assert left_out == "by-order dropped 1 record without a key"


def test_operators_and_reasons_are_told_apart() -> None:
    dropped = DroppedRecords()
    assert dropped.lines({"a": {"late": 1, "null-key": 2}, "b": {"null-value": 3}}, 0) == [
        f"a dropped 1 record {LATE}",
        "a dropped 2 records without a key",
        "b dropped 3 records without a value",
    ]
    assert dropped.lines({"b": {"null-key": 1}}, 1) == ["b dropped 1 record without a key"]


def test_the_last_are_told_in_silence_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Who adds the lines up has all of them."""
    clock = ManualClock()
    counts = BatchCounts(Metrics(), clock, 0)
    for _ in range(2):
        counts.add(BatchResult(outcome=COMMITTED, dropped={"a": {"null-key": 2}}))
        clock.advance(1_000)
    with caplog.at_level("WARNING", "everflow"):
        caplog.clear()
        counts.log_drops(59_999)
        assert caplog.messages == []
        counts.log_drops(60_000)
        clock.advance(59_000)
        counts.add(BatchResult(outcome=COMMITTED, dropped={"a": {"null-key": 1}}))
        counts.log_drops(math.inf)
    assert caplog.messages == [
        "a dropped 2 records without a key",
        "a dropped 1 record without a key",
    ]


def test_a_commit_has_a_time_and_an_abort_its_cause() -> None:
    metrics, clock = Metrics(), ManualClock(7_000)
    counts = BatchCounts(metrics, clock, 2)
    counts.add(BatchResult(outcome=COMMITTED))
    assert names.LAST_COMMIT not in metrics.series(), "a batch of nothing commits nothing"
    committed = BatchResult(outcome=COMMITTED, counts={"renewed": 1}, timings={"gate": 0.2})
    counts.add(committed)
    clock.advance(3_000)
    counts.add(committed)
    counts.again(reason="ownership-changed: task 0_0 is not owned")
    counts.again("worker")
    series = metrics.series()
    assert series[names.LAST_COMMIT] == {("2",): 10_000}
    assert series[names.RENEWED_PRODUCERS] == {("2",): 2}
    assert series[names.REFUSED_COMMITS] == {("2", "ownership-changed"): 1}
    assert series[names.FAILED_BATCHES] == {("2", "aborted"): 1, ("2", "worker"): 1}


def test_remarks_of_a_batch_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    counts = BatchCounts(Metrics(), ManualClock(), 0)
    with caplog.at_level("WARNING", "everflow"):
        counts.add(BatchResult(outcome=COMMITTED, remarks=["a", "b", "c", "d", "e"]))
    assert caplog.messages == ["a; b; c; and 2 more"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="tells it by /proc")
@pytest.mark.parametrize("ours", [True, False])
def test_a_worker_is_told_by_its_slot(ours: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "EVERFLOW_SLOT"}
    if ours:
        environment["EVERFLOW_SLOT"] = "t0-0"
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_worker(process.pid) == ours
        process.communicate(b"\n")


LOOPS = """
import faulthandler, signal, sys
faulthandler.enable(open(sys.argv[1], "w"))
def forever():
    print("up", flush=True)
    while True:
        pass
forever()
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_a_worker_that_hangs_says_where_before_it_is_killed(tmp_path: Path, deaf: bool) -> None:
    """One that takes no notice of the signal is killed all the same."""
    program, trace = tmp_path / "program.py", tmp_path / "trace"
    ignoring = 'signal.signal(signal.SIGABRT, signal.SIG_IGN); open(sys.argv[1], "w")'
    program.write_text(
        LOOPS.replace('faulthandler.enable(open(sys.argv[1], "w"))', ignoring) if deaf else LOOPS
    )
    with subprocess.Popen(
        [sys.executable, str(program), str(trace)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        trace_and_kill([process.pid], SystemClock())
        assert not alive(process.pid)
    line = innermost_line_in(trace.read_text())
    assert (line is None) == deaf
    if line is not None:
        assert (line.file, line.function) == (str(program), "forever")


TEXT, LONG = serdes.string(), serdes.long()
ORDER = serdes.json("item string, amount double")


def printed(*rows: str, most: int = 3, left_out: int = 0) -> Printed:
    return Printed("t", ["key", "value"], [[row, "1"] for row in rows], most, left_out)


def test_rows_stand_under_each_other_and_the_head_comes_again() -> None:
    text = TableText()
    assert text.lines(printed("a", "bcdef", left_out=1_200)) == [
        "--- t",
        "key    value",
        "a      1",
        "bcdef  1",
        "... and 1,200 more",
    ]
    assert text.lines(printed("x")) == ["x      1"]
    assert text.lines(printed("longer-one"))[:2] == ["--- t", "key         value"]
    for _ in range(HEAD_EVERY - 1):
        assert text.lines(printed("x")) == ["x           1"]
    assert text.lines(printed("x"))[0] == "--- t"
    assert text.lines(printed("x")._replace(title="u"))[0] == "--- u"


def test_what_comes_between_two_looks_is_bounded() -> None:
    written: list[str] = []
    printer = TablePrinter(written.append)
    printer.add([printed("a", "b"), printed("c", "d", left_out=5)])
    printer.flush()
    wait_until(lambda: written, 10, "the rows")
    assert "".join(written).splitlines()[2:] == ["a    1", "b    1", "c    1", "... and 6 more"]


def test_whoever_adds_never_waits_for_who_prints() -> None:
    import threading

    may_write, written = threading.Event(), list[str]()

    def slowly(text: str) -> None:
        may_write.wait(30)
        written.append(text)

    printer = TablePrinter(slowly)
    for at in range(1_000):
        printer.add([printed(f"{at}", most=5)])
    may_write.set()

    def told() -> int:
        lines = [line for text in written for line in text.splitlines()]
        more = sum(int(line.split()[2].replace(",", "")) for line in lines if "more" in line)
        return more + sum(line.endswith("  1") for line in lines)

    wait_until(lambda: told() == 1_000, 20, "all rows to be printed or counted", history=written)
    assert sum(text.count("\n") for text in written) < 60


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), ("a\nb", "a\\nb"), ("x" * 80, "x" * 57 + "...")]
)
def test_cells_are_one_line(value: Any, text: str) -> None:
    assert cell(value) == text


@pytest.mark.spark
def test_a_program_prints_its_streams_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=TEXT, value=ORDER)
    orders.filter(F.col("value.amount") > 1).print_table("orders", rows=2)
    hours = orders.group_by_key().windowed_by(TimeWindows.of_size("1 hour"))
    hours.count(store="n").map_values(F.col("value") * 2).print_table()
    assert "KSTREAM-PRINTER-" in builder.build().describe()
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("orders", TEXT, ORDER)
        topic.pipe_batch([("ann", {"item": "tea", "amount": float(at)}, at) for at in range(5)])
    assert capsys.readouterr().out.splitlines() == [
        "--- orders",
        "time                     key  item  amount",
        "1970-01-01 00:00:00.002  ann  tea   2.0",
        "1970-01-01 00:00:00.003  ann  tea   3.0",
        "... and 1 more",
        "--- KTABLE-TOSTREAM-0000000005",
        "time                     key.key  key.start  key.end  value",
        "1970-01-01 00:00:00.004  ann      0          3600000  10",
    ]


@pytest.mark.spark
@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": "5"}, {"rows": 1_001}, {"title": 3}])
def test_what_cannot_be_printed_is_refused(options: dict[str, Any]) -> None:
    stream = StreamsBuilder().stream("s", key=TEXT, value=LONG)
    with pytest.raises(TopologyError, match=r"print_table: (rows|title) is"):
        stream.print_table(**options)
