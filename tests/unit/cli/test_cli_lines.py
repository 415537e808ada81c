"""What `everflow run` prints of tasks that come and go."""

from __future__ import annotations

import io
import logging

from rich.console import Console

from everflow.console.status import StatusLine
from everflow.logs import lines_to, moves, some


def test_moves_are_printed_with_the_time_and_only_once() -> None:
    out = io.StringIO()
    with StatusLine(Console(file=out, width=20), stamp=lambda: "21:14:06") as status:
        with lines_to(status.event):
            moves.info("Assigned 2 tasks: %s", "0_0, [0_1]")
            moves.warning("Lost 1 task: 0_0")
            logging.getLogger("everflow").info("Stream thread 0 runs tasks 0_0")
        moves.info("after the run")
    assert out.getvalue().splitlines() == [
        "21:14:06 Assigned 2 tasks: 0_0, [0_1]",
        "21:14:06 WARNING Lost 1 task: 0_0",
    ]


def test_progress_has_the_time_where_there_is_no_terminal_and_repeats_nothing() -> None:
    out, now = io.StringIO(), [0.0]
    with StatusLine(
        Console(file=out), clock=lambda: now[0], stamp=lambda: f"t{now[0]:.0f}"
    ) as status:
        for at in (0.0, 6.0, 12.0):
            now[0] = at
            status.show("lag 3" if at < 12 else "lag 2")
    assert out.getvalue().splitlines() == ["t0 lag 3", "t12 lag 2"]


def test_long_lists_are_cut_and_counted() -> None:
    assert some(range(7)) == "0, 1, 2, 3, 4 and 2 more"
    assert some(range(5)) == "0, 1, 2, 3, 4"
    assert some([]) == "none"
