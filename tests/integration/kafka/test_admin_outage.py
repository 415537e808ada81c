"""Questions about a group that time out while no broker answers, and the broker is back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker

ASK = """
import sys
from everflow.errors import RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition

admin = ClusterAdmin({"bootstrap.servers": sys.argv[1]})
partitions = [TopicPartition("asked", 0)]
questions = {
    "members": lambda: admin.members("asking", 1.0),
    "offsets": lambda: admin.committed("asking", partitions, 1.0, stable=False),
    "all": lambda: admin.all_committed("asking", 1.0),
}
while True:
    for name, ask in questions.items():
        try:
            ask()
            print(name, "told", flush=True)
        except RetriableError:
            print(name, "not told", flush=True)
"""
TIMES = 5
DEADLINE_S = 60.0


@pytest.mark.timeout(240)
def test_who_asks_about_a_group_outlives_an_outage(tmp_path: Path) -> None:
    said = tmp_path / "said"

    def heard(answer: str) -> None:
        """All questions have this answer several times from now on, or nobody asks any more."""
        since = len(said.read_text())
        wanted = [f"{question} {answer}\n" for question in ("members", "offsets", "all")]
        wait_until(
            lambda: (
                asking.poll() is not None
                or all(said.read_text()[since:].count(line) >= TIMES for line in wanted)
            ),
            DEADLINE_S,
            f"{answer}, {TIMES} times",
            lambda: said.read_text().splitlines(),
        )
        assert asking.poll() is None, said.read_text()[-2_000:]

    with EmbeddedBroker() as broker, said.open("w") as out:
        broker.create_topic("asked")
        asking = subprocess.Popen(
            [sys.executable, "-c", ASK, broker.bootstrap_servers], stdout=out, stderr=out
        )
        try:
            heard("told")
            broker.stop()
            heard("not told")
            broker.start()
            heard("told")
        finally:
            asking.kill()
            asking.wait()
