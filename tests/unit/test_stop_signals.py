"""SIGINT, SIGTERM and SIGHUP raise once, or are told by a thread while something must end."""

import gc
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everflow.stop_signals import NUMBERS, StopRequestedError, StopSignals, owned
from everflow.testing import wait_until

WAIT_S = 5.0


@pytest.fixture(autouse=True)
def hang_up_as_a_shell_leaves_it() -> Iterator[None]:
    """Whatever runs these tests: nohup ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def pause() -> None:
    """Long enough for a handler to run in it."""
    threading.Event().wait(WAIT_S)


def test_the_first_signal_raises_and_the_next_lets_it_unwind() -> None:
    cleaned = []

    def interrupted() -> None:
        try:
            send(signal.SIGTERM)
            pause()
        finally:
            send(signal.SIGINT)
            cleaned.append(True)

    with StopSignals() as signals:
        with pytest.raises(StopRequestedError) as raised:
            interrupted()
        assert cleaned
        assert (raised.value.number, signals.exit_code, signals.count) == (signal.SIGTERM, 143, 2)


def test_while_something_runs_a_thread_tells_of_each_and_nothing_is_raised() -> None:
    told: list[tuple[int, int]] = []
    with (
        StopSignals() as signals,
        signals.reported_to(lambda count, number: told.append((count, number))),
    ):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            send(number)
        wait_until(lambda: len(told) == 3, WAIT_S, "three signals to be told")
    assert told == [(1, signal.SIGINT), (2, signal.SIGTERM), (3, signal.SIGINT)]
    assert signals.exit_code == 130


def test_behind_it_signals_are_only_counted() -> None:
    with StopSignals() as signals:
        with signals.reported_to(lambda *_: None):
            pass
        send(signal.SIGINT)
        assert signals.count == 1


def test_one_that_a_library_has_swallowed_is_raised_by_the_next_check() -> None:
    with StopSignals() as signals:
        try:
            send(signal.SIGINT)
            pause()
        except BaseException:
            pass
        with pytest.raises(StopRequestedError), signals.reported_to(lambda *_: None):
            raise AssertionError("it must not begin")


def test_one_that_came_into_a_finaliser_comes_again(capfd: pytest.CaptureFixture[str]) -> None:
    class Interrupted:
        def __del__(self) -> None:
            send(signal.SIGINT)
            pause()

    def finalise() -> None:
        interrupted = Interrupted()
        del interrupted
        gc.collect()
        pause()

    with StopSignals() as signals:
        with pytest.raises(StopRequestedError):
            finalise()
        assert signals.count == 1
    assert capfd.readouterr().err == ""


def test_one_in_the_middle_of_a_fork_waits_for_its_end() -> None:
    armed = True

    def before_fork() -> None:
        nonlocal armed
        if armed:
            armed = False
            send(signal.SIGINT)

    def fork() -> None:
        subprocess.run(["true"], check=True, preexec_fn=lambda: None)
        pause()

    os.register_at_fork(before=before_fork)
    with StopSignals(), pytest.raises(StopRequestedError):
        fork()
    assert not armed


LOSES_ITS_TERMINAL = """
import fcntl, os, sys, termios, threading
from everflow.stop_signals import StopSignals
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
said, over = open(sys.argv[1], "w", buffering=1), threading.Event()
def told(count, number):
    print("to the terminal", flush=True)
    said.write(f"{count} {number}\\n")
    over.set()
with StopSignals() as signals, signals.reported_to(told):
    print("waits", flush=True)
    over.wait()
    print("the end", flush=True)
sys.exit(signals.exit_code)
"""


def test_a_closed_terminal_is_a_signal_and_lines_for_it_do_no_harm(tmp_path: Path) -> None:
    said = tmp_path / "said"
    controller, screen = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", LOSES_ITS_TERMINAL, str(said)],
        stdin=screen,
        stdout=screen,
        stderr=screen,
        start_new_session=True,
    )
    try:
        os.close(screen)
        assert os.read(controller, 100).startswith(b"waits")
        os.close(controller)
        assert child.wait(WAIT_S) == 129
    finally:
        child.kill()
    assert said.read_text() == f"1 {signal.SIGHUP.value}\n"


def test_a_hang_up_says_nothing_after_another_signal() -> None:
    told: list[tuple[int, int]] = []
    with (
        StopSignals() as signals,
        signals.reported_to(lambda count, number: told.append((count, number))),
    ):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            send(number)
        wait_until(lambda: len(told) == 2, WAIT_S, "two signals to be told")
    assert told == [(1, signal.SIGHUP), (2, signal.SIGTERM)]
    assert signals.exit_code == 129


@pytest.mark.parametrize("given", [signal.SIG_IGN, lambda *_: None], ids=["nohup", "own handler"])
def test_a_hang_up_that_is_ignored_or_has_a_handler_stays_so(given: Any) -> None:
    before = signal.signal(signal.SIGHUP, given)
    try:
        with StopSignals() as signals:
            send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is given
        assert signals.count == 0
        assert signal.getsignal(signal.SIGHUP) is given
    finally:
        signal.signal(signal.SIGHUP, before)


def test_there_is_one_owner_and_the_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    with owned() as outer, owned() as inner:
        assert inner is outer
        assert signal.getsignal(signal.SIGINT) is not before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before
    assert StopSignals.current is None


def test_on_another_thread_it_hears_nothing_and_does_no_harm() -> None:
    before, codes = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with owned() as signals, signals.reported_to(lambda *_: None):
            codes.append(signals.exit_code)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert codes == [None]
    assert signal.getsignal(signal.SIGINT) is before


LATE = """
import os, signal
from everflow.stop_signals import StopSignals

class Last:
    kill, pid, number = os.kill, os.getpid(), int(signal.SIGINT)
    def __del__(self):
        Last.kill(self.pid, self.number)

last = Last()
signals = StopSignals().install()
{over}
print("done", flush=True)
"""


@pytest.mark.parametrize(("over", "code"), [("", -signal.SIGINT), ("signals.over()", 0)])
def test_a_signal_while_python_ends_itself_changes_nothing_any_more(over: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE.format(over=over)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (code, "done\n"), done.stderr
