"""The embedded broker survives kill and restart with its data, and never outlives its owner."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from typer.testing import CliRunner, Result

from everflow.cli import commands
from everflow.cli.app import app
from everflow.cli.topics import create_topics
from everflow.errors import ConfigError, SetupError
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def _produce(broker: EmbeddedBroker, topic: str, value: bytes) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"test-{topic}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(30)


def _values(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "test", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        values: list[bytes | None] = []

        def enough() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value())
            return len(values) >= count

        wait_until(enough, 30, f"{count} records of {topic}", history=values)
        return values
    finally:
        consumer.close()


def test_data_and_address_survive_kill_and_restart(broker: EmbeddedBroker) -> None:
    address = broker.bootstrap_servers
    broker.create_topic("survives", partitions=1)
    _produce(broker, "survives", b"before")
    broker.kill()
    assert not broker.running
    broker.restart()
    assert broker.bootstrap_servers == address
    _produce(broker, "survives", b"after")
    assert _values(broker, "survives", 2) == [b"before", b"after"]


def test_create_topic_sets_partitions_and_config(broker: EmbeddedBroker) -> None:
    broker.create_topic("configured", partitions=3, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(admin.list_topics("configured", timeout=10).topics["configured"].partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, "configured")
    assert (
        admin.describe_configs([resource])[resource].result(10)["cleanup.policy"].value == "compact"
    )


def test_topics_asked_for_are_created_once_and_never_changed(broker: EmbeddedBroker) -> None:
    said: list[str] = []
    create_topics(broker.bootstrap_servers, {"orders": 4}, said.append)
    create_topics(broker.bootstrap_servers, {"orders": 4, "rates": 1}, said.append)
    assert said == [
        "topic orders, 4 partitions",
        "topic orders, 4 partitions (was there already)",
        "topic rates, 1 partition",
    ]
    with pytest.raises(ConfigError, match=r"with 4 partitions\. Write orders:4"):
        create_topics(broker.bootstrap_servers, {"fresh": 1, "orders": 5}, said.append)
    create_topics(
        broker.bootstrap_servers, {"fresh": 2}, said.append
    )  # the refused call has created nothing
    assert said[-1] == "topic fresh, 2 partitions"


def test_a_topic_is_never_created_by_asking_for_it(broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    asked = producer.list_topics("mistyped", timeout=10).topics[
        "mistyped"
    ]  # a producer's request may create
    assert asked.error is not None
    assert "mistyped" not in producer.list_topics(timeout=10).topics


_OWNER = """
import sys
from threading import Event
from everflow.testing.broker import EmbeddedBroker
broker = EmbeddedBroker().start()
print(broker.data_folder, flush=True)
Event().wait()
"""


def _children(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if p.is_running()]


def _gone(processes: list[psutil.Process]) -> bool:
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_kill_9_of_the_owner_leaves_no_orphan_and_no_folder() -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        folder = Path(owner.stdout.readline().strip())
    children = _children(owner.pid)
    try:
        assert any("kafka.Kafka" in p.cmdline() for p in children), "the broker ran before the kill"
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(10)
        wait_until(lambda: _gone(children), 10, "broker and guard to end", history=children)
        wait_until(lambda: not folder.exists(), 10, f"{folder} to be deleted")
    finally:
        for process in children:
            if process.is_running():
                process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_kill_9_of_the_guard_takes_the_broker_and_a_failed_start_tells_why(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        guard, java = sorted(_children(os.getpid()), key=lambda p: p.create_time())[-2:]
        assert "kafka.Kafka" in java.cmdline()
        guard.kill()
        wait_until(lambda: _gone([java]), 10, "the broker to end")
        assert not broker.running
        (tmp_path / "log" / "meta.properties").write_text("version=1\nnode.id=7\n")
        with pytest.raises(SetupError, match=r"exit code 1[\s\S]*meta\.properties"):
            broker.start()
    assert (tmp_path / "log" / "meta.properties").exists(), "a given folder is kept"


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port}"), EmbeddedBroker(port=port):
            pass


def test_a_second_broker_on_a_folder_is_refused_and_harms_nothing(broker: EmbeddedBroker) -> None:
    settings = (broker.data_folder / "server.properties").read_text()
    with (
        pytest.raises(SetupError, match=rf"Kafka broker.*{broker.data_folder}"),
        EmbeddedBroker(broker.data_folder),
    ):
        pass
    assert broker.running
    assert (broker.data_folder / "server.properties").read_text() == settings


# `everflow topic`, `produce` and `consume` on a broker, and what is said while none answers.


def everflow(bootstrap: str, *arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(
        app, arguments, input=text, env={"EVERFLOW_BOOTSTRAP_SERVERS": bootstrap}
    )


def test_topics_are_created_listed_and_deleted(bootstrap: str, name: str) -> None:
    options = ["--partitions", "2", "--config", "cleanup.policy=compact"]
    made = everflow(bootstrap, "topic", "create", f"{name}-a", f"{name}-b:3", *options)
    assert (made.exit_code, made.stdout) == (
        0,
        f"created topic {name}-a, 2 partitions\ncreated topic {name}-b, 3 partitions\n",
    )
    wrote = everflow(bootstrap, "produce", f"{name}-b", text="k\t1\nl\t2\n")
    assert wrote.exit_code == 0, wrote.output
    listed = [line.split() for line in everflow(bootstrap, "topic", "list").stdout.splitlines()]
    assert [f"{name}-a", "2", "1", "0"] in listed
    assert [f"{name}-b", "3", "1", "2"] in listed
    told = json.loads(everflow(bootstrap, "topic", "list", "--output", "json").stdout)
    (row,) = (one for one in told if one["topic"] == f"{name}-b")
    assert (row["partitions"], row["replication_factor"], row["records"]) == (3, 1, 2)

    again = everflow(bootstrap, "topic", "create", f"{name}-c", f"{name}-a")
    assert again.exit_code == 2
    assert f"exists already: {name}-a (2 partitions). Nothing was created." in again.output

    missing = everflow(bootstrap, "topic", "delete", f"{name}-a", f"{name}-c", "--yes")
    assert missing.exit_code == 2
    assert f"no such topic: {name}-c. Nothing was deleted" in missing.output

    kept = everflow(bootstrap, "topic", "delete", f"{name}-b", text="n\n")
    assert kept.exit_code == 1
    assert f"Delete {name}-b (about 2 records)?" in kept.output
    gone = everflow(bootstrap, "topic", "delete", f"{name}-a", f"{name}-b", text="y\n")
    assert gone.exit_code == 0, gone.output
    assert name not in everflow(bootstrap, "topic", "list").stdout


def test_what_the_broker_refuses_is_said_in_its_words(bootstrap: str, name: str) -> None:
    wrong = {
        "--config=foo=bar": "Unknown topic config name: foo",
        "--replication-factor=3": "only 1 broker",
    }
    for option, says in wrong.items():
        refused = everflow(bootstrap, "topic", "create", name, option)
        assert refused.exit_code == 2
        assert f"refused to create {name}: " in refused.output
        assert says in refused.output
        assert "start again" not in refused.output
        assert "Traceback" not in refused.output


def test_records_written_are_read_again(bootstrap: str, topic: Callable[..., str]) -> None:
    name = topic()
    wrote = everflow(bootstrap, "produce", name, "--value", "json", text='{"n": 1}\nk\t{"n": 2}\n')
    assert (wrote.exit_code, wrote.stderr) == (0, f"2 records written to {name}\n")
    read = everflow(
        bootstrap, "consume", name, "--value", "json", "--count", "2", "--timeout", "30"
    )
    assert (read.exit_code, read.stdout) == (0, 'null\t{"n": 1}\nk\t{"n": 2}\n')

    ended = ("--count", "2", "--timeout", "30", "--output", "json")
    told = everflow(bootstrap, "consume", name, "--value", "json", *ended).stdout.splitlines()
    first, second = map(json.loads, told)
    assert (first["key"], first["value"], first["headers"]) == (None, {"n": 1}, [])
    assert (second["key"], second["value"], second["topic"]) == ("k", {"n": 2}, name)
    assert second["timestamp"] > 0
    raw = everflow(bootstrap, "consume", name, "--value", "bytes", *ended).stdout.splitlines()
    assert base64.b64decode(json.loads(raw[1])["value"]) == b'{"n": 2}'

    fewer = everflow(bootstrap, "consume", name, "--count", "3", "--timeout", "0.5")
    assert fewer.exit_code == 1
    assert f"2 of 3 records of {name}" in fewer.stderr

    late = everflow(bootstrap, "consume", name, "--from-end", "--timeout", "0.5")
    assert (late.exit_code, late.stdout) == (0, "")
    none = everflow(bootstrap, "consume", name, "--from-end", "--to-end")
    assert (none.exit_code, none.stdout) == (0, "")


def test_a_topic_that_goes_on_getting_records_is_read_to_its_end_of_now(
    bootstrap: str, topic: Callable[..., str]
) -> None:
    name, stop = topic(), Event()
    written = 0

    def write() -> None:
        nonlocal written
        with closing(RecordWriter({"bootstrap.servers": bootstrap}, None)) as writer:
            while not stop.is_set():
                writer.begin()
                writer.write(name, [None], [b"again"], [1_000])
                writer.flush(30.0)
                written += 1

    writing = Thread(target=write)
    writing.start()
    try:
        wait_until(lambda: written > 10, 30.0, "records to be there")
        before = written
        read = everflow(bootstrap, "consume", name, "--to-end")
        assert read.exit_code == 0, read.output
        assert before <= len(read.stdout.splitlines()) <= written
    finally:
        stop.set()
        writing.join(30.0)
    fewer = everflow(bootstrap, "consume", name, "--to-end", "--count", str(written + 1))
    assert fewer.exit_code == 1
    assert f"{written:,} of {written + 1:,} records" in fewer.stderr


def test_bytes_of_another_kind_name_their_record(bootstrap: str, topic: Callable[..., str]) -> None:
    name = topic()
    everflow(bootstrap, "produce", name, text="abc\n")
    wrong = everflow(bootstrap, "consume", name, "--value", "long", "--timeout", "30")
    assert wrong.exit_code == 1
    assert f"the value of {name}-0@0 cannot be read: long takes 8 bytes, found 3" in wrong.output
    assert "--value bytes shows" in wrong.output


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_missing_topic_is_told_with_the_command(command: str, bootstrap: str, name: str) -> None:
    done = everflow(bootstrap, command, name, text="x\n")
    assert done.exit_code == 2
    assert f"no such topic: {name}. `everflow topic create {name}` creates it" in done.output


def test_an_absent_broker_is_waited_for_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "REACH_S", 1.5)
    done = everflow("localhost:1", "topic", "list")
    assert done.exit_code == 1
    assert "Kafka at localhost:1 (for 1.5 s at most), 1 s" in done.stderr
    assert "answered at localhost:1 within 1.5 s" in done.stderr
    assert "--bootstrap-servers (or EVERFLOW_BOOTSTRAP_SERVERS)" in done.stderr
