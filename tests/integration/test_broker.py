"""The embedded broker survives kill and restart with its data, and never outlives its owner."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from everflow.cli.topics import create_topics
from everflow.errors import ConfigError, SetupError
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
        with pytest.raises(SetupError, match=r"ended with exit code 1[\s\S]*meta\.properties"):
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
