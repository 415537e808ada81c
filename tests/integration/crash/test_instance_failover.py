"""An instance and all its processes vanish in the middle of a transaction: who takes over ends it
and goes on (scenario 11)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from everflow.testing.waiting import wait_until
from everflow.worker.crash_points import OFFSETS_SENT
from integration.crash.crash_instance import Application, records

pytestmark = pytest.mark.slow

SESSION_MS = 6_000
TRANSACTION_MS = 60_000
TAKEOVER_S = 4.0
"""Beyond the session's end, on a busy machine; the target is 2 s (design note 006)."""


def tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def test_the_gap_after_a_kill_is_the_session_time_out_not_the_transactions(
    application: Callable[..., Application],
) -> None:
    app = application(
        settings={"session.timeout.ms": SESSION_MS, "transaction.timeout.ms": TRANSACTION_MS}
    )
    app.start(**{"state.dir": str(app.folder / "one")})
    one = app.process
    assert one is not None
    app.produce(records(50, 500, "a"))
    app.drain_committed()
    app.start(**{"state.dir": str(app.folder / "two")})
    two = app.process
    assert two is not None

    def both_work() -> bool:
        return (
            app.said().count("runs tasks") >= 3
        )  # both; the first alone with one of them; the second with the other

    wait_until(both_work, 60, "a task on each instance", app.history)
    app.drain_committed()
    app.arm(OFFSETS_SENT)
    app.produce(records(50, 500, "b"))
    worker = app.wait_reached(OFFSETS_SENT)
    ends = app.ends(app.inputs(), "read_uncommitted")
    victim = one if any(p.pid == worker for p in tree(one.pid)) else two
    killed = time.monotonic()
    for process in tree(victim.pid):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    victim.wait(30)
    app.process = two if victim is one else one

    def taken_over() -> bool:
        return all(offset >= ends[tp] for tp, offset in app.committed(stable=False).items())

    wait_until(
        taken_over,
        TRANSACTION_MS / 1000,
        "the tasks of the instance that is gone to be processed",
        app.history,
    )
    gap = time.monotonic() - killed
    print(f"gap {gap:.1f} s with a session time-out of {SESSION_MS / 1000:g} s")
    assert gap <= SESSION_MS / 1000 + TAKEOVER_S, app.history()
    ended = "Ended open transactions of instances that have left"
    wait_until(
        lambda: ended in app.said(), 10, "the log to say who ended the transactions", app.history
    )
    app.drain_committed()
    app.check_outputs()
