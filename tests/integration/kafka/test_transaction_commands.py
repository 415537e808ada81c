"""The commands of docs/guide/operating.md by which an operator finds a transaction that holds
readers back, and ends it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition
from everflow.testing import wait_until

pytestmark = pytest.mark.broker
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "operating.md"
TITLE = "## End a transaction that holds readers back"


def commands() -> list[str]:
    """Of the section's first block, without comments."""
    section = GUIDE.read_text().split(TITLE)[1]
    (block,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)[:1]
    return [" ".join(shlex.split(line, comments=True)) for line in block.splitlines()]


def run(command: str, **changed: str) -> str:
    for before, after in changed.items():
        word = {"servers": "localhost:9092", "topic": "orders", "id": "4000"}.get(before, "1")
        command = re.sub(rf"(?<=\s){re.escape(word)}(?=\s|$)", after, command)
    tool, *arguments = shlex.split(command)
    done = subprocess.run(
        [str(Path(sys.executable).with_name(tool)), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guides_commands_find_and_end_a_transaction(
    bootstrap: str, admin: ClusterAdmin, topic: Callable[..., str], name: str
) -> None:
    tp = TopicPartition(topic(1), 0)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{name}-left"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(tp.topic, b"v", partition=0)
    assert producer.flush(30) == 0
    assert admin.end_offsets([tp], "read_committed")[tp] == 0, "it holds readers back"
    listing, hanging, describing, aborting = commands()
    assert f"{name}-left" in run(listing, servers=bootstrap)
    assert f"{name}-left" not in run(hanging, servers=bootstrap), "it is young"
    told = json.loads(run(describing, servers=bootstrap, topic=tp.topic))
    (writer,) = told[f"{tp.topic}:0"]["active_producers"]
    assert writer["current_transaction_start_offset"] == 0
    run(
        aborting,
        servers=bootstrap,
        topic=tp.topic,
        id=str(writer["producer_id"]),
        epoch=str(writer["producer_epoch"]),
    )
    wait_until(lambda: admin.end_offsets([tp], "read_committed")[tp] > 0, 60, "readers to get on")
