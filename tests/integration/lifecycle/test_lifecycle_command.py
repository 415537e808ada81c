"""``everflow run`` in a process of its own: stopped by a signal it commits, leaves the group at
once and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from everflow.state.task_directory import StateDirectory
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    last_by_key,
    long,
    text,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

START_S = 120.0
STOP_S = 30.0
PROGRAM = """
from everflow import StreamsBuilder, serdes
builder = StreamsBuilder()
stream = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
PREFIX = "v"
def ours(value):
    return value.startswith(PREFIX)
stream.filter(ours).group_by_key().count(store="counts").to_stream().to({output!r})
"""


def words(n: int, first: int = 0) -> list[Record]:
    return [text(f"w{i % 7}", f"v{i}", 10_000 + i, i % 7 % 2) for i in range(first, first + n)]


@contextmanager
def command(app: Application, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A running ``everflow run`` with ``more`` options; killed with all it started if the test
    fails before its end."""
    options = [
        "--application-id",
        app.id,
        "--bootstrap-servers",
        app.cluster.bootstrap,
        "--guarantee",
        "exactly_once_v2",
    ]
    options += ["--threads", "1", "--state-dir", str(app.state), *more]
    with (app.folder / "output.txt").open("w") as output:
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from everflow.cli import main; main()",
                "run",
                "program:builder",
                *options,
            ],
            cwd=app.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "PYTHONSAFEPATH": "1",
            },  # as the installed command
        )
    tree = psutil.Process(child.pid)
    try:
        yield child
    finally:
        if child.poll() is None:
            for process in (*tree.children(recursive=True), tree):
                process.kill()
        child.wait()


def test_a_signal_ends_it_cleanly_and_a_restart_goes_on(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    (app.folder / "program.py").write_text(PROGRAM.format(source=source, output=output))
    (app.folder / "queue.py").write_text("LINE = []\n")  # hides no library in the workers
    cluster.write(source, words(70))
    printed = app.folder / "output.txt"
    static = (
        "--set",
        "group.instance.id=one",
        "--leave",
    )  # told to, it leaves on purpose too (KIP-812)
    for first, number, more in ((70, signal.SIGTERM, ()), (77, signal.SIGINT, static)):
        with command(app, *more) as child:

            def done(child: subprocess.Popen[str] = child) -> bool:
                assert child.poll() is None, printed.read_text()
                have = {p: offset for p, (offset, _) in cluster.committed(app.id, source).items()}
                return have == {tp.partition: end for tp, end in cluster.ends(source).items()}

            wait_until(
                lambda: "-> RUNNING" in printed.read_text() and done(),
                START_S,
                "the input to be processed",
            )
            before = len(cluster.read(output))
            cluster.write(source, words(7, first=first))
            wait_until(done, START_S, "the new records to be processed")
            assert len(cluster.read(output)) - before <= 7, "old records were processed again"
            tree = psutil.Process(child.pid).children(recursive=True)
            child.send_signal(number)
            assert child.wait(STOP_S) == 0, printed.read_text()
            assert cluster.members(app.id) == 0, "it must leave the group at once, not time out"
            gone, left = psutil.wait_procs(tree, timeout=STOP_S)
            assert not left, f"still there: {left}"
            assert gone
    lines = printed.read_text()
    assert "application  " in lines
    for step in (
        "CREATED -> REBALANCING",
        "REBALANCING -> RUNNING",
        "PENDING_SHUTDOWN -> NOT_RUNNING",
    ):
        assert f"state {step}" in lines
    expected = Counter(record.key for record in words(84))
    assert {
        key: long(value) for key, value in last_by_key(cluster.read(output)).items()
    } == expected
    _is_checkpointed(app)


def _is_checkpointed(app: Application) -> None:
    """Nobody holds the folder, and it says that it was closed in order."""
    directory = StateDirectory.open(app.state, app.id)
    try:
        assert directory.previous is not None
        assert directory.previous.clean_close
    finally:
        directory.close()
