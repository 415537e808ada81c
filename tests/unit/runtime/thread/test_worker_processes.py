"""Which processes an instance may end: its own Python workers, never one that got an old worker's number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everflow.runtime.thread.worker_processes import is_worker


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="tells it by /proc")
@pytest.mark.parametrize("ours", [True, False])
def test_a_worker_is_told_by_its_slot(ours: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "EVERFLOW_SLOT"}
    if ours:
        environment["EVERFLOW_SLOT"] = "t0-0"
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_worker(process.pid) == ours
        process.communicate(b"\n")
