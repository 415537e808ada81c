"""`everflow reset` on a real broker: an application begins anew, and counts what it counted."""

import json
import os
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from typer.testing import CliRunner, Result

from everflow import Topology
from everflow.cli import app as commands
from everflow.cli import cluster_reset
from everflow.cli.cluster_reset import ClusterReset
from everflow.errors import FatalError, InternalTopicError
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PROGRAM = """
from pyspark.sql import functions as F
from everflow import StreamsBuilder, serdes
builder = StreamsBuilder()
stream = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
words = stream.group_by(F.col("value"), name="words")
words.count(store="counts").to_stream().to({output!r})
topology = builder.build()
"""


class Words:
    """A program that counts words, behind a repartition topic, and its file."""

    def __init__(self, app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app, self.cluster = app, cluster
        self.source, self.output = cluster.topic("in"), cluster.topic("out")
        program = PROGRAM.format(source=self.source, output=self.output)
        self.module = f"words_{uuid.uuid4().hex[:8]}"
        (app.folder / f"{self.module}.py").write_text(program)
        names: dict[str, Any] = {}
        exec(program, names)
        self.topology: Topology = names["topology"]
        self._seen: set[tuple[int, int]] = set()
        monkeypatch.chdir(app.folder)

    def write(self) -> None:
        self.cluster.write(
            self.source, [text("k", f"w{n % 5}", 1_000 + n, n % 2) for n in range(40)]
        )

    def run(self) -> list[Record]:
        """The records that a run until the end of the input adds to the output."""
        repartition = f"{self.app.id}-words-repartition"
        self.app.run_through(self.topology, self.source, repartition)
        return self.added()

    def added(self) -> list[Record]:
        found = self.cluster.read(self.output)
        new = [one for one in found if (one.partition, one.offset) not in self._seen]
        self._seen |= {(one.partition, one.offset) for one in new}
        return new

    def last(self, records: list[Record]) -> dict[bytes | None, bytes | None]:
        return {record.key: record.value for record in records}

    def reset(self, *options: str, text: str = "") -> Result:
        given = ["--application-id", self.app.id, "--bootstrap-servers", self.cluster.bootstrap]
        given += ["--state-dir", str(self.app.state), *options]
        target = f"{self.module}:topology"
        return CliRunner().invoke(commands.app, ["reset", target, *given], input=text)

    @property
    def internal(self) -> list[str]:
        return [f"{self.app.id}-counts-changelog", f"{self.app.id}-words-repartition"]


@pytest.fixture
def words(app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Words:
    return Words(app, cluster, monkeypatch)


def committed(words: Words) -> dict[int, int]:
    found = words.cluster.committed(words.app.id, words.source)
    return {partition: offset for partition, (offset, _) in found.items()}


def test_an_application_counts_again_what_it_counted(words: Words) -> None:
    app, cluster = words.app, words.cluster
    untouched = words.reset("--yes")
    assert (untouched.exit_code, committed(words)) == (0, {})
    assert f"nothing to reset: {app.id} " in untouched.output

    words.write()
    with app.running(words.topology) as streams:
        app.until_processed(streams, words.source, words.internal[1])
        running = words.reset("--yes")
        assert running.exit_code == 1
        assert "EF-STILL-RUNNING" in running.output
        assert f"The group {app.id} has members: " in running.output
        locked = words.reset("--yes", "--force")
        assert "EF-STATE-LOCKED" in locked.output
        assert streams.error is None
    first = words.last(words.added())
    assert len(first) == 5
    assert {int.from_bytes(n or b"", "big") for n in first.values()} == {8}

    old, foreign = f"{app.id}-gone-changelog", f"{app.id}-eu-counts-changelog"
    for name in ("gone-changelog", "eu-counts-changelog"):
        cluster.topic(f"app-{name}", 1)
    other = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"{app.id}-eu"})
    other.commit(offsets=[TopicPartition(words.source, 0, 1)], asynchronous=False)
    other.close()
    ids = {name: cluster.topic_id(name) for name in words.internal}

    before = committed(words)
    shown = words.reset("--dry-run", "--output", "json")
    plan = json.loads(shown.stdout)
    assert {one["topic"] for one in plan["delete_topics"]} == {*words.internal, old}
    assert plan["left_alone"] == [{"topic": foreign, "group": f"{app.id}-eu"}]
    assert [(one["committed"], one["offset"]) for one in plan["offsets"]] == [(20, 0), (20, 0)]
    declined = words.reset(text="n\n")
    assert (declined.exit_code, "nothing was changed" in declined.output) == (1, True)
    assert committed(words) == before
    assert {name: cluster.topic_id(name) for name in words.internal} == ids

    done = words.reset(text="y\n")
    assert done.exit_code == 0, done.output
    assert "5/5 done: creating internal topics" in done.output
    assert committed(words) == {0: 0, 1: 0}
    assert not os.path.exists(app.state / app.id)
    assert old not in cluster.topics()
    assert foreign in cluster.topics()
    assert not {cluster.topic_id(name) for name in words.internal} & set(ids.values())
    assert words.last(words.run()) == first


def test_no_start_follows_a_reset_cut_off(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    words.write()
    first = words.last(words.run())
    for step in ("_commit", "_create"):
        with monkeypatch.context() as cut_off:

            def fail(*_: object) -> None:
                raise FatalError("cut off")

            cut_off.setattr(ClusterReset, step, fail)
            ended = words.reset("--yes")
        assert (ended.exit_code, "call it again" in ended.output) == (1, True)
        with pytest.raises(InternalTopicError, match="everflow reset"):
            words.run()
    latest = words.reset("--yes", "--to", "latest")
    assert (latest.exit_code, committed(words)) == (0, {0: 20, 1: 20}), latest.output
    again = words.reset("--yes")
    assert again.exit_code == 0, again.output
    assert words.last(words.run()) == first


def test_a_static_member_that_was_stopped_is_taken_out_by_force(words: Words) -> None:
    words.write()
    words.app.run_through(words.topology, words.source, group_instance_id="one")
    refused = words.reset("--yes")
    assert refused.exit_code == 1
    assert "group.instance.id one" in refused.output
    assert "session.timeout.ms, 45 s here" in refused.output
    forced = words.reset("--yes", "--force")
    assert forced.exit_code == 0, forced.output
    assert "took 1 member out" in forced.output
    assert words.cluster.members(words.app.id) == 0


def opened(words: Words, name: str, reader: Consumer) -> Producer:
    """A transaction of this id, left open, with an offset of the group."""
    writer = Producer({"bootstrap.servers": words.cluster.bootstrap, "transactional.id": name})
    writer.init_transactions(30)
    writer.begin_transaction()
    offsets = [TopicPartition(words.source, 0, 9)]
    writer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 30)
    return writer


def test_an_open_transaction_undoes_no_reset(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    group, servers = words.app.id, words.cluster.bootstrap
    words.write()
    reader = Consumer({"bootstrap.servers": servers, "group.id": group})
    reader.commit(offsets=[TopicPartition(words.source, 0, 3)], asynchronous=False)

    writer = opened(words, f"{group}-{uuid.uuid4()}-1", reader)
    done = words.reset("--yes", "--to", "earliest")
    assert done.exit_code == 0, done.output
    assert committed(words) == {0: 0, 1: 0}
    with pytest.raises(KafkaException):
        writer.commit_transaction(30)
    assert committed(words) == {0: 0, 1: 0}

    foreign = opened(words, f"another-{group}", reader)
    ids = {name: words.cluster.topic_id(name) for name in words.internal}
    monkeypatch.setattr(cluster_reset, "STEP_S", 3.0)
    held = words.reset("--yes")
    assert (held.exit_code, "Nothing was deleted" in held.output) == (1, True), held.output
    assert {name: words.cluster.topic_id(name) for name in words.internal} == ids
    foreign.abort_transaction(30)
    reader.close()
