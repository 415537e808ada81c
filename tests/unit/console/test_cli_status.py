"""The progress line where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from everflow.console.status import StatusLine
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
        wait_until(
            lambda: "starting Spark, 5 s\n" in out.getvalue(), 10, "the line with the seconds"
        )
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
