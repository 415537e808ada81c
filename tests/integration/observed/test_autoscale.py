"""Under a changing load `everflow autoscale` goes from 1 to 3 and back; each record counts once."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster
from integration.observed.paced_load import SLOW_COUNT, PacedLoad

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

PARTITIONS = 6
PER_S = 240
SCALE = ("scale.up.delay.ms=3000", "scale.down.delay.ms=6000", "scale.drain.ms=60000")


@contextmanager
def autoscaler(
    app: Application, program: Path, log: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """The command as a process; what it has said."""
    settings = ("processing.guarantee=exactly_once_v2", *SCALE)
    command = [
        *(sys.executable, "-c", "from everflow.cli import main; main()", "autoscale"),
        f"{program.stem}:builder",
        *("--application-id", app.id, "--bootstrap-servers", app.cluster.bootstrap),
        *("--min", "1", "--max", "3", "--folder", str(program.parent / "instances")),
        *(part for one in settings for part in ("--set", one)),
    ]
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=program.parent, stdout=said, stderr=said)
    try:
        yield process, log.read_text
    finally:
        process.terminate()
        process.wait(180)


def test_one_three_one(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    source, sink = cluster.topic("in", PARTITIONS), cluster.topic("out", 1)
    program = tmp_path / "scaled_app.py"
    program.write_text(SLOW_COUNT.format(source=source, sink=sink, pause_s=0.006))
    with autoscaler(app, program, tmp_path / "autoscale.log") as (process, said):

        def running(number: int) -> bool:
            assert process.poll() is None, said()
            started = len(re.findall(r"instance \d+ starts", said()))
            ended = len(re.findall(r"instance \d+ has ended", said()))
            return started - ended == number

        def grown() -> bool:
            return running(3) and cluster.members(app.id) == 3

        wait_until(lambda: running(1) and cluster.members(app.id) == 1, 120, "the first instance")
        with PacedLoad(cluster, source, PARTITIONS, PER_S) as load:
            wait_until(grown, 300, "three instances")
            load.stop()
        wait_until(lambda: running(1), 300, "one instance again")
        app.until_processed(None, source)
        wanted = {key.encode(): count for key, count in load.written.items()}

        def exact() -> bool:
            last = {one.key: int.from_bytes(one.value or b"", "big") for one in cluster.read(sink)}
            return last == wanted

        wait_until(exact, 60, "every record to be counted once")
    assert process.returncode == 0, said()
    assert "stopping: 1 instances end" in said()
    assert cluster.members(app.id) == 0
