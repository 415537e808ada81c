"""``everflow run`` in a process of its own, ended by a signal while Spark starts: no JVM stays behind. No broker is needed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from everflow.testing import wait_until

pytestmark = pytest.mark.spark

WAIT_S = 60.0
PROGRAM = "from everflow import StreamsBuilder\nbuilder = StreamsBuilder()\nbuilder.stream('a').to('b')\n"


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped while starting")]
)
def test_a_signal_while_spark_starts_leaves_no_jvm(number: signal.Signals, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--application-id", "a", "--bootstrap-servers", "localhost:1", "--state-dir", str(tmp_path / "state")]
    child = subprocess.Popen(
        [sys.executable, "-c", "from everflow.cli import main; main()", "run", "program:builder", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started: list[psutil.Process] = []
    try:
        started += wait_until(lambda: psutil.Process(child.pid).children(recursive=True), WAIT_S, "the JVM to be launched")
        child.send_signal(number)
        printed, _ = child.communicate(timeout=WAIT_S)
        assert (child.returncode, printed) == (code, said + "\n")
        _, left = psutil.wait_procs(started, timeout=5)  # Spark's launcher, a child of the shell, ends by itself
        assert not left, f"still there: {left}"
    finally:
        for process in (child, *started):
            if process.poll() is None if isinstance(process, subprocess.Popen) else process.is_running():
                process.kill()
        child.wait()
