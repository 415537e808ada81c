"""What driver and workers tell each other comes back as it was, whatever the topic is called."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager

from everflow import metrics as names
from everflow.instance.describe import (
    TaskStatus,
    duration,
    input_lag,
    statuses,
    summary,
    task_lines,
)
from everflow.instance.tasks.task import ActiveTask, TaskRole, TaskState
from everflow.instance.thread.batch_counts import BatchCounts
from everflow.instance.thread.retry_policy import Trouble
from everflow.metrics import Metrics
from everflow.protocol.messages import (
    COMMITTED,
    Ages,
    BatchFigures,
    BatchResult,
    CommitMetadata,
    LetterGroup,
    Puts,
    Rows,
    Sent,
    StorePlace,
    TaskContext,
    as_line,
    format_metadata,
    from_line,
    of_kafka_streams,
    parse_metadata,
)
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.testing import wait_until
from unit.builders import batch_request
from unit.manual_clock import ManualClock

ODD, PLAIN = TopicPartition("a-1-b", 3), TopicPartition("in", 0)
TASK = TaskId(1, 3)


def test_a_request_comes_back_from_its_line() -> None:
    stores = {"counts": StorePlace("here", "app-counts-changelog"), "s": StorePlace("there", None)}
    task = TaskContext(TASK, "i", "i.0.0", {"AGG": 5}, stores)
    request = batch_request(
        {ODD: OffsetRange(1, 5), PLAIN: OffsetRange(0, 0)},
        batch_id="i.1.0",
        transactional_id="app-p-0",
        wall_clock_ms=7,
        gate="gate",
        log_ends={ODD: 9, PLAIN: 0},
        tasks=[task],
        transaction_timeout_ms=10_000,
    )
    again = from_line(as_line(request))
    assert again == request
    assert isinstance(again.ranges[ODD], OffsetRange)
    assert again.ending({ODD: 4, PLAIN: 0}).ranges == {
        ODD: OffsetRange(1, 4),
        PLAIN: OffsetRange(0, 0),
    }


def test_a_result_comes_back_from_its_line() -> None:
    result = BatchResult(
        outcome=COMMITTED,
        consumed={ODD: 5},
        stream_times={TASK: {"AGG": 9}},
        positions={TASK: {"counts": 12}},
        counts={"in": 4},
        figures=BatchFigures(
            [Ages(str(TASK), "in", 2, 7.0, 3, 4, 1.0, 1)],
            [Sent("out", "t", 2, 9)],
            [Puts(str(TASK), "counts", 1)],
            [LetterGroup("ValueError", "map", "in", 2, "in-0@5 (ValueError: bad)")],
            rows=[Rows("lake", 2, 90, 1.5)],
        ),
    )
    assert from_line(as_line(result)) == result


def test_rows_and_errors_are_counted_by_connector() -> None:
    metrics, clock = Metrics(), ManualClock(7_000)
    counts = BatchCounts(metrics, clock, 0)
    calls = [Rows("lake", 2, 20, 500.0), Rows("table", 3, 30, 0.0), Rows("lake", 5, 50, 250.0)]
    counts.add(BatchResult(outcome=COMMITTED, figures=BatchFigures(rows=calls)))
    counts.failed("lake", "no answer at app.py:3")
    series, labels = metrics.series(), ("lake",)
    assert series[names.CONNECTOR_ROWS] == {labels: 7, ("table",): 3}
    assert series[names.CONNECTOR_BYTES] == {labels: 70, ("table",): 30}
    assert series[names.CONNECTOR_SECONDS] == {labels: 0.75, ("table",): 0}
    assert series[names.CONNECTOR_ERRORS] == {labels: 1}
    assert series[names.CONNECTOR_FAILED] == {labels: clock.now_ms()}
    assert metrics.notes(names.CONNECTOR_ERRORS) == {labels: "no answer at app.py:3"}


@pytest.mark.parametrize(
    "text",
    ["ef1|x|[1]", "ef1|x|7", 'ef1|x|{"n": "late"}', 'ef1|x|{"n": null}', "ef1|x|" + "[" * 99],
)
def test_metadata_that_another_client_wrote_is_no_batch(text: str) -> None:
    assert parse_metadata(text) == CommitMetadata(None, {})


LAYOUTS = {"counts": ["key_value", "string", "`a|b` bigint"]}


def test_metadata_of_an_offset_comes_back_whatever_a_client_puts_behind_it() -> None:
    text = format_metadata("i.1.0", {"AGG": 5}, json.dumps(LAYOUTS))
    for stray in ("", "\0", "\ufffd", "|{"):
        assert parse_metadata(text + stray) == CommitMetadata("i.1.0", {"AGG": 5}, LAYOUTS)


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("AgAAAZr8ZkAAAAAAAA==", True),
        ("AgAAAZr8ZkAAAAAAAA==\0", True),
        ("AQAAAZr8ZkAA", True),
        ("AQAAAZr8ZkAA\0\u2028x", True),
        ("AwAAAZr8ZkAA", False),
        ("", False),
        (None, False),
        ("start", False),
        (format_metadata("b.0.1", {"n": 5}, '{"s":"#1"}'), False),
    ],
)
def test_metadata_of_kafka_streams_is_told_from_others(text: str | None, theirs: bool) -> None:
    assert of_kafka_streams(text) is theirs


def test_metadata_of_before_has_no_layouts() -> None:
    text = format_metadata("i.1.0", {"AGG": 5})
    assert text == 'ef1|i.1.0|{"AGG":5}'
    for stray in ("", "\0", "\ufffd", "|", "|{", "|7"):
        assert parse_metadata(text + stray) == CommitMetadata("i.1.0", {"AGG": 5}, {})


# Tasks in words.

RUNNING = TaskStatus(
    role=TaskRole.ACTIVE, state=TaskState.RUNNING, lag=1_200, rate=0.0, remaining_s=0.0
)
STANDBY = TaskStatus(
    role=TaskRole.STANDBY, state=TaskState.RUNNING, lag=0, rate=50.0, remaining_s=0.0, copied=900
)
WARM_UP = TaskStatus(
    role=TaskRole.WARMUP,
    state=TaskState.RUNNING,
    lag=6_000,
    rate=2_000.0,
    remaining_s=3.0,
    copied=2_000,
)
RESTORING = TaskStatus(
    role=TaskRole.ACTIVE,
    state=TaskState.RESTORING,
    lag=570,
    rate=1_000.0,
    remaining_s=0.57,
    copied=430,
)
BEGINNING = TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=None)


def tasks(*found: TaskStatus) -> dict[TaskId, TaskStatus]:
    return {TaskId(0, partition): status for partition, status in enumerate(found)}


def test_roles_are_counted_and_what_somebody_waits_for_has_its_progress() -> None:
    assert summary(tasks(RUNNING, RUNNING, STANDBY)) == "2 active, 1 standby"
    assert (
        summary(tasks(RUNNING, WARM_UP, WARM_UP))
        == "1 active, 2 warm-up · warm-up 25 %, 4,000 records/s, 3.0 s left"
    )
    assert summary(tasks(RESTORING)) == "1 restoring · restoring 43 %, 1,000 records/s, 0.6 s left"
    assert summary({}) == ""


def test_a_task_that_is_handed_over_is_leaving_not_starting() -> None:
    one, two = TaskId(0, 0), TaskId(0, 1)
    found = statuses([one, two], (), {}, {}, (), {}, handing_over=[two])
    assert summary(found) == "1 starting, 1 leaving"
    assert [line.split() for line in task_lines(found)] == [["0_0", "starting"], ["0_1", "leaving"]]


def test_what_is_not_known_is_not_said() -> None:
    assert summary(tasks(BEGINNING)) == "1 restoring · restoring begins"
    assert summary(tasks(BEGINNING, RESTORING)) == "2 restoring · restoring 43 %, 1,000 records/s"


def test_tasks_whose_batches_fail_say_so_with_how_often_since_when_and_why() -> None:
    trouble = Trouble(1_000, 3, "no leader for out-0")
    failing = replace(RUNNING, trouble=trouble)
    begun = TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=None, trouble=trouble)
    found = tasks(RUNNING, failing, begun)
    assert summary(found, 13_000) == "1 active, 2 failing · no leader for out-0 (3 times in 12 s)"
    assert [line[:16] for line in task_lines(found)] == [
        "   0_1  failing ",
        "   0_2  failing ",
        "   0_0  active  ",
    ]
    assert "no leader for out-0 (3 times in" in task_lines(found)[0]
    long = tasks(replace(RUNNING, trouble=Trouble(1_000, 1, "x" * 500)))
    assert summary(long, 1_000) == f"1 failing · {'x' * 120}... (once in 0.0 s)"


def test_a_hundred_percent_is_said_of_complete_copies_only() -> None:
    nearly = TaskStatus(
        role=TaskRole.WARMUP,
        state=TaskState.RUNNING,
        lag=1,
        rate=0.0,
        remaining_s=None,
        copied=999_999,
    )
    done = TaskStatus(
        role=TaskRole.WARMUP, state=TaskState.RUNNING, lag=0, rate=0.0, remaining_s=0.0, copied=5
    )
    assert summary(tasks(nearly)) == "1 warm-up · warm-up 99 %"
    assert summary(tasks(done)) == "1 warm-up · warm-up 100 %"


def test_lines_begin_with_what_is_waited_for_and_end_after_a_dozen() -> None:
    lines = task_lines(tasks(STANDBY, RUNNING, WARM_UP, RESTORING))
    assert lines == [
        "   0_3  restoring  43 %, 1,000 records/s, 0.6 s left",
        "   0_2  warm-up    25 %, 2,000 records/s, 3.0 s left",
        "   0_1  active     lag 1,200",
        "   0_0  standby    100 %, 50 records/s",
    ]
    assert task_lines(tasks(*[RUNNING] * 15))[-1] == "and 3 more tasks"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (9.96, "10 s"), (100, "2 min"), (7_800, "2 h 10 min"), (0.0, "0.0 s")],
)
def test_durations_are_as_exact_as_people_read_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# A program that ends without close().

PROGRAM = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from everflow.logs import install
from everflow.instance.client_state import ClientState
from everflow.instance.kafka_streams import close_at_exit

class Instance:
    state = ClientState.RUNNING
    pool = ThreadPoolExecutor(1)

    def close(self):
        thread = threading.Thread(target=lambda: self.pool.submit(print, "closed", flush=True).result())
        thread.start()
        thread.join()
        {close}

    def _hurry_up(self, timeout_s):
        print("hurried", flush=True)

install()
instance = Instance()
close_at_exit(instance)
{then}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("then", "close", "printed", "warned"),
    [
        ("raise ValueError('of the program')", "", ["closed"], True),
        ("", "", ["closed"], True),
        ("", "raise KeyboardInterrupt", ["closed", "hurried"], True),
        ("instance.state = ClientState.NOT_RUNNING", "", [], False),
        (
            "pid = os.fork()\nif pid == 0: threading._shutdown(); os._exit(0)\nos.waitpid(pid, 0)",
            "",
            ["closed"],
            True,
        ),
    ],
)
def test_what_runs_at_the_end_of_a_program_is_closed_while_executors_work(
    then: str, close: str, printed: list[str], warned: bool
) -> None:
    command = [sys.executable, "-c", PROGRAM.format(then=then, close=close)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == printed, done.stderr
    lines = done.stderr.splitlines()
    told = [line for line in lines if line.endswith("write `with KafkaStreams(...) as streams:`)")]
    assert len(told) == warned
    assert "closed now" in "".join(told) or not warned
    assert [line for line in lines if line not in told][-1:] == (
        ["ValueError: of the program"] if "raise" in then else []
    )


CELL = """
import subprocess, sys
from everflow.instance.client_state import ClientState
from everflow.instance.kafka_streams import close_at_exit

class Instance:
    state = ClientState.RUNNING
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # as PySpark starts a JVM

    def close(self):
        self.state = ClientState.NOT_RUNNING
        with open("closed", "a") as file:
            print(self.child.pid, self.child.poll(), file=file)

instance = Instance()
close_at_exit(instance)
"""  # noqa: E501


def test_a_kernel_that_is_shut_down_closes_what_runs_first(tmp_path: Path) -> None:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive(CELL, timeout=60)
        assert reply["content"]["status"] == "ok", reply["content"]
        client.shutdown()
        told = tmp_path / "closed"
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"), 60, "the close")
        child, ended = told.read_text().split()
        assert ended == "None", "it had ended before the instance was closed"
        # Its parent, which does not wait for it, takes half a minute more to end.
        wait_until(lambda: _has_ended(int(child)), 60, "the child's end")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert len(told.read_text().splitlines()) == 1, "closed twice"


def _has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_records_that_wait_for_a_paused_task_are_no_lag_of_the_instance() -> None:
    """An autoscaler goes by it: more instances would not read them either (note 074)."""
    tasks = [
        ActiveTask(
            id=TaskId(part, 0),
            inputs=(TopicPartition("in", part),),
            state=TaskState.RUNNING,
            positions={TopicPartition("in", part): 10},
        )
        for part in range(2)
    ]
    ends = {TopicPartition("in", 0): 15, TopicPartition("in", 1): 90}
    both = statuses([], tasks, ends, {}, (), {})
    assert input_lag(both.values()) == 85
    found = statuses([], tasks, ends, {}, (), {}, paused=[TaskId(1, 0)])
    assert input_lag(found.values()) == 5
    assert found[TaskId(1, 0)].lag == 80
    assert summary(found) == "1 active, 1 paused"
