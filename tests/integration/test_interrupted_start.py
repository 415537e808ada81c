"""``everflow run`` in a process of its own, ended by a signal before its tasks run: it says so, and no JVM stays behind.

No broker is needed: none answers.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from everflow.testing import wait_until

pytestmark = pytest.mark.spark

WAIT_S = 60.0
HEARD_S = 20.0
"""Far less than ``task.timeout.ms`` (five minutes), for which a start waits for a broker."""
PROGRAM = "from everflow import StreamsBuilder\nbuilder = StreamsBuilder()\nbuilder.stream('a').to('b')\n"
NO_ANSWER = "no answer from Kafka at localhost:1"
SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped while starting")]


@pytest.mark.parametrize(("number", "code", "said"), SIGNALS)
def test_a_signal_while_spark_starts_leaves_no_jvm(number: signal.Signals, code: int, said: str, tmp_path: Path) -> None:
    with _starting(tmp_path) as (child, printed, started):
        started += wait_until(lambda: _family(child), WAIT_S, "the JVM to be launched", lambda: [printed.read_text()])
        child.send_signal(number)
        assert (child.wait(WAIT_S), printed.read_text().splitlines()[-1]) == (code, said), printed.read_text()
        _, left = psutil.wait_procs(started, timeout=5)  # Spark's launcher, a child of the shell, ends by itself
        assert not left, f"still there: {left}"


@pytest.mark.parametrize(("number", "code", "said"), SIGNALS)
def test_a_signal_is_heard_while_no_broker_answers(number: signal.Signals, code: int, said: str, tmp_path: Path) -> None:
    with _starting(tmp_path) as (child, printed, started):
        wait_until(lambda: NO_ANSWER in printed.read_text(), WAIT_S, "no broker to answer", lambda: [printed.read_text()])
        started += _family(child)
        child.send_signal(number)
        assert (child.wait(HEARD_S), printed.read_text().splitlines()[-1]) == (code, said), printed.read_text()
        _, left = psutil.wait_procs(started, timeout=5)
        assert not left, f"still there: {left}"


@contextmanager
def _starting(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, list[psutil.Process]]]:
    """The command in a process of its own, the file of what it prints, and an empty list: what the test puts there is ended too."""
    (folder / "program.py").write_text(PROGRAM)
    printed = folder / "printed"
    options = ["--application-id", "a", "--bootstrap-servers", "localhost:1", "--state-dir", str(folder / "state")]
    with printed.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", "from everflow.cli import main; main()", "run", "program:builder", *options],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    started: list[psutil.Process] = []
    try:
        yield child, printed, started
    finally:
        started += _family(child)
        child.kill()
        child.wait()
        for process in started:
            if process.is_running():
                process.kill()


def _family(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes below the command's, none where it has ended."""
    try:
        return psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
