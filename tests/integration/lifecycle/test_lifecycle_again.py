"""Start, look, close, change, start again beside a Spark session: of a closed one nothing stays."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from integration.lifecycle.lifecycle_cluster import Cluster

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_200)]

PROGRAM = Path(__file__).with_name("restarting.py")
ROUNDS = 7
WARM = 2
"""Restarts after which a process has all that it ever needs: Spark's daemons, the producer's
connection."""


def test_a_process_that_restarts_often_holds_no_more(cluster: Cluster, tmp_path: Path) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    arguments = [cluster.bootstrap, f"{cluster.prefix}-app", source, output, str(ROUNDS)]
    with (tmp_path / "errors.txt").open("w") as errors:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert done.returncode == 0, (tmp_path / "errors.txt").read_text()[-4_000:]
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == ROUNDS
    for kind in ("threads", "descriptors", "processes"):
        before = Counter(rounds[WARM - 1][kind])
        assert before.total() > 0
        for number, later in enumerate(rounds[WARM:], WARM + 1):
            assert Counter(later[kind]) - before == Counter(), (
                f"{kind} after restart {number}, over those after restart {WARM}"
            )
