"""Which processes an instance may end: its own Python workers, never one that got an old worker's
number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everflow.clock import SystemClock
from everflow.instance.thread.worker_processes import alive, is_worker, trace_and_kill
from everflow.worker.failures import innermost_line_in


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
