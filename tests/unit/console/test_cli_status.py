"""The progress line, with a terminal and without one, and what stands above it."""

import io
import math
import re
from importlib.metadata import version

import pyarrow as pa
import pytest
from rich.console import Console

from everflow import metrics as names
from everflow import serdes
from everflow.cli.commands import error_text
from everflow.cli.run import RATE_S, Progress, StateWait
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.instance.client_state import ClientState
from everflow.instance.describe import banner, topology_lines
from everflow.instance.thread.batch_counts import TablePrinter
from everflow.operators.table import TableSpec
from everflow.protocol.messages import Printed
from everflow.state.store import StoreSpec
from everflow.testing.waiting import wait_until
from everflow.topology.graph import EdgeType, SinkNode, SourceNode, StatefulNode
from everflow.topology.program import Topology


def test_plain_lines_come_every_few_seconds_and_only_when_they_change() -> None:
    out, now = io.StringIO(), [0.0]
    with StatusLine(Console(file=out), interval_s=5.0, clock=lambda: now[0]) as status:
        for at, text in [
            (0, "lag 3"),
            (1, "lag 2"),
            (6, "lag 2"),
            (7, "lag 1"),
            (12, "lag 2"),
            (13, "lag 0"),
        ]:
            now[0] = float(at)
            status.show(text)
    assert out.getvalue().splitlines() == ["lag 3", "lag 2", "lag 0"]


def test_what_cannot_wait_is_printed_at_once_and_details_are_for_terminals() -> None:
    out = io.StringIO()
    with StatusLine(Console(file=out), interval_s=5.0, clock=lambda: 0.0) as status:
        status.show("1 warm-up", below=["0_1  warm-up  43 %"])
        status.show("2 active")
        status.show("1 active", now=True)
    assert out.getvalue().splitlines() == ["1 warm-up", "1 active"]


def test_a_terminal_shows_the_details_and_takes_brackets_as_they_are() -> None:
    out = io.StringIO()
    with StatusLine(Console(file=out, force_terminal=True, width=60, color_system=None)) as status:
        status.show("lag 3", below=["0_1  [warm-up]"])
    assert "lag 3" in out.getvalue()
    assert "0_1  [warm-up]" in out.getvalue()


def test_lasting_lines_are_printed_as_they_are() -> None:
    out = io.StringIO()
    with StatusLine(Console(file=out, width=20)) as status:
        status.say("state [bold] " + "x" * 40)
    assert out.getvalue() == "state [bold] " + "x" * 40 + "\n"


def test_a_wait_is_shown_at_once_and_then_with_its_seconds() -> None:
    out, now = io.StringIO(), [0.0]
    status = StatusLine(Console(file=out), clock=lambda: now[0])
    with status.waiting("starting Spark"):
        wait_until(lambda: "starting Spark\n" in out.getvalue(), 10, "the first line")
        now[0] = 5.0
        wait_until(lambda: "starting Spark, 5 s\n" in out.getvalue(), 10, "the seconds")
    assert out.getvalue() == "starting Spark\nstarting Spark, 5 s\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_drawn_below_the_last_state(terminal: bool) -> None:
    out = io.StringIO()
    with StatusLine(Console(file=out, force_terminal=terminal, color_system=None)) as status:
        status.line("state RUNNING -> PENDING_SHUTDOWN")
        status.show("handing over")
        status.line("state PENDING_SHUTDOWN -> NOT_RUNNING")
        status.show("lag 3")
        status.line("the log goes on")
    assert "handing over" in out.getvalue()
    assert "lag 3" not in out.getvalue()
    assert out.getvalue().splitlines()[-1].endswith("the log goes on")


def test_a_short_wait_is_not_worth_a_line() -> None:
    out = io.StringIO()
    with StatusLine(Console(file=out)).waiting("waiting for Kafka", after_s=60):
        pass
    assert out.getvalue() == ""


def test_on_a_terminal_a_wait_leaves_nothing_behind() -> None:
    out = io.StringIO()
    status = StatusLine(Console(file=out, force_terminal=True, width=80))
    with status.waiting("starting Spark"):
        wait_until(lambda: "starting Spark" in out.getvalue(), 10, "the live line")
    assert out.getvalue().endswith("\x1b[2K"), repr(out.getvalue()[-40:])


def test_of_two_waits_the_inner_one_is_shown_while_it_lasts() -> None:
    out, now = io.StringIO(), [0.0]
    status = StatusLine(Console(file=out), clock=lambda: now[0])
    with status.waiting("loading", after_s=0.01):
        wait_until(lambda: "loading\n" in out.getvalue(), 10, "the outer wait")
        with status.waiting("starting Spark"):
            wait_until(lambda: "starting Spark\n" in out.getvalue(), 10, "the inner wait")
            now[0] = 6.0
            wait_until(lambda: "starting Spark, 6 s\n" in out.getvalue(), 10, "its seconds")
        now[0] = 12.0
        wait_until(lambda: "loading, 12 s\n" in out.getvalue(), 10, "the outer wait again")
    assert out.getvalue() == "loading\nstarting Spark\nstarting Spark, 6 s\nloading, 12 s\n"


def screen(written: str) -> list[str]:
    """What a terminal shows of it: lines, of which a live one is wiped and drawn anew."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            at += 1
            lines += [""] * (at == len(lines))
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part == "\x1b[1A":
            at -= 1
        elif part == "\r" or part.startswith("\x1b"):
            continue
        else:
            lines[at] += part
    return lines


def test_rows_of_a_table_stand_above_the_live_line_as_they_are() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=30, color_system=None)
    printer = TablePrinter(lambda text: pytest.fail(f"written past the live line: {text}"))
    row = ["k", "[bold] :smile: " + "x" * 40]
    with StatusLine(console) as status, printer.written_by(status.say):
        status.show("lag 3")
        printer.add([Printed("orders", ["key", "value"], [row], 20, 0)])
        wait_until(lambda: row[1] in out.getvalue(), 60, "the row")
        status.show("lag 2")
        status.clear()
    shown = [line.rstrip() for line in screen(out.getvalue()) if line.strip()]
    assert shown == ["--- orders", "key  value", "k    " + row[1]]


# Banner, progress line and error texts.


TEXT, NUMBER = serdes.string(), serdes.long()
EDGE = EdgeType(pa.string(), pa.int64())


def source(name: str, *topics: str, kind: str = "stream") -> SourceNode:
    return SourceNode(name, (), EDGE, topics, TEXT, NUMBER, kind)


def sink(name: str, topic: str, kind: str = "sink") -> SinkNode:
    return SinkNode(name, ("a",), EDGE, topic, TEXT, NUMBER, kind)


def counted(name: str, store: str) -> StatefulNode:
    return StatefulNode(
        name,
        ("a",),
        EDGE,
        "AGGREGATE",
        TableSpec(store, TEXT, NUMBER),
        (StoreSpec(name=store, kind="key_value", key_serde=TEXT, value_serde=NUMBER),),
    )


def test_topology_lines_say_what_is_read_kept_and_written() -> None:
    topology = Topology(
        (
            source("a", "flights", "weather"),
            counted("b", "by-carrier"),
            sink("c", "by-route-repartition", "repartition"),
            source("d", "by-route-repartition", kind="repartition"),
            counted("e", "by-route"),
            sink("f", "delays"),
            sink("g", "delays"),
        )
    )
    assert topology_lines(topology) == (
        "reads  flights, weather",
        "keeps  by-carrier, by-route; re-keys through 1 repartition topic",
        "writes delays",
    )


def test_banner_has_everything_and_the_topology_in_three_lines() -> None:
    config = StreamsConfig(
        application_id="delays", bootstrap_servers="host:9092", state_dir="/var/x"
    )
    topology = Topology((source("a", "flights"), sink("f", "delays")))
    assert banner(config, topology, "app.py").splitlines() == [
        f"application  delays   (everflow {version('everflow')})",
        "program      app.py",
        "brokers      host:9092",
        "guarantee    at_least_once, 2 stream threads",
        "topology     reads  flights",
        "             keeps  nothing (stateless)",
        "             writes delays",
        "computed     Arrow 2 nodes",
        "state        /var/x/delays",
        "log          /var/x/delays/logs/everflow.log",
    ]


def test_progress_is_of_this_instance_with_rates_of_the_last_seconds() -> None:
    progress = Progress()

    def line(at_s: float, consumed: float, lag: float = math.nan, tasks: str = "") -> str:
        figures: dict[str, float | str] = {names.RECORDS_CONSUMED: consumed, names.LAG: lag}
        return progress.line(at_s, figures, tasks)

    assert line(0.0, 10) == "0 records/s · lag unknown"
    assert line(5.0, 5_010, 12_345) == "1,000 records/s · lag 12,345"
    assert line(10.0, 5_010, 0, "2 active") == "500 records/s · lag 0 · 2 active"
    assert line(5.0 + RATE_S + 1, 5_010, 0).startswith("0 records/s")


def test_error_text_indents_what_follows_the_first_line() -> None:
    assert error_text(ValueError("bad\n  at x.py:3"), "EF-X") == "error: [EF-X] bad\n  at x.py:3"
    assert (
        error_text(ValueError("bad"), "EF-X", ["More is in the log"])
        == "error: [EF-X] bad\n  More is in the log"
    )


def test_a_state_that_lasts_is_told_with_its_seconds_and_with_what_was_said_last() -> None:
    waits = StateWait(ClientState.CREATED, 0.0)
    assert waits.text(ClientState.REBALANCING, 10.0, said="Joining the group") == ""
    assert (
        waits.text(ClientState.REBALANCING, 13.0, said="Joining the group")
        == "REBALANCING for 3 s: Joining the group"
    )
    assert waits.text(ClientState.REBALANCING, 14.0, said="") == "REBALANCING for 4 s"
    assert waits.text(ClientState.RUNNING, 15.0, said="Assigned 4 tasks") == ""
    assert waits.text(ClientState.RUNNING, 99.0, said="Assigned 4 tasks") == ""
    assert waits.text(ClientState.PENDING_SHUTDOWN, 100.0, said="stopping") == ""
    ending = "waiting for the batches in flight"
    assert (
        waits.text(ClientState.PENDING_SHUTDOWN, 107.2, said=ending)
        == f"PENDING_SHUTDOWN for 7 s: {ending}"
    )
