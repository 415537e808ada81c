"""The progress line, with a terminal and without one, and what stands above it."""

import io
import re

import pytest
from rich.console import Console

from everflow.console.status import StatusLine
from everflow.instance.thread.batch_counts import TablePrinter
from everflow.protocol.messages import Printed
from everflow.testing.waiting import wait_until


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
