"""What a cluster says of itself and its groups, and a broker that is not there."""

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from typer.testing import CliRunner

from everflow.assignment.user_data import hosts_of
from everflow.cli.app import app as command
from everflow.errors import RetriableError, TaskTimeoutError
from everflow.kafka.admin import ClusterAdmin, user_data_of_group
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity
from everflow.membership.member import Roles
from everflow.records import TopicPartition
from everflow.testing import EmbeddedBroker, wait_until
from everflow.testing.broker_security import INSIDE
from everflow.testing.kafka_proxy import KafkaProxy
from integration.kafka.group_members import Instance, assignor_of, await_settled

Topic = Callable[..., str]


@pytest.mark.broker
def test_topics_are_created_once_described_and_deleted(admin: ClusterAdmin, name: str) -> None:
    wanted = {name: (3, {"cleanup.policy": "compact,delete", "retention.ms": "777"})}
    assert admin.create_topics(wanted) == {name}
    assert admin.create_topics(wanted) == set()
    found = admin.describe_topics([name, f"{name}-absent"])
    assert set(found) == {name}
    assert found[name].partitions == 3
    config = admin.topic_configs([name])[name]
    assert (config["retention.ms"], set(config["cleanup.policy"].split(","))) == (
        "777",
        {"delete", "compact"},
    )
    admin.delete_topics([name, f"{name}-absent"])
    admin.create_topics(wanted)
    assert admin.describe_topics([name])[name].topic_id != found[name].topic_id


@pytest.mark.broker
def test_a_broker_says_whether_it_creates_topics(admin: ClusterAdmin) -> None:
    assert admin.creates_topics() is False


@pytest.mark.broker
def test_offsets_by_time_and_of_no_group(admin: ClusterAdmin, topic: Topic, name: str) -> None:
    tp = TopicPartition(topic(1), 0)
    assert admin.list_offsets([tp], 5, "read_committed") == {tp: -1}
    assert admin.list_offsets([tp], "earliest", "read_uncommitted") == {tp: 0}
    assert admin.committed(name, [tp]) == {}


@pytest.mark.broker
def test_lag_is_of_all_topics(admin: ClusterAdmin, bootstrap: str, topic: Topic, name: str) -> None:
    """The topics are not named: `everflow lag` knows none."""
    assert admin.all_committed(name) == {}
    one, other = topic(2), topic(1)
    with closing(Producer({"bootstrap.servers": bootstrap})) as producer:
        for _ in range(5):
            producer.produce(other, b"v", partition=0)
        producer.flush(10)
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": name})) as consumer:
        read = [(one, 1, 0), (other, 0, 3)]
        offsets = [ClientTopicPartition(*place) for place in read]
        consumer.commit(offsets=offsets, asynchronous=False)
    assert admin.all_committed(name) == {
        TopicPartition(topic, partition): offset for topic, partition, offset in read
    }
    said = CliRunner().invoke(
        command, ["lag", name, "--bootstrap-servers", bootstrap, "--output", "json"]
    )
    assert said.exit_code == 0, said.output
    assert [(row["topic"], row["lag"]) for row in json.loads(said.stdout)] == [(other, 2), (one, 0)]
    unknown = CliRunner().invoke(command, ["lag", f"{name}-x", "--bootstrap-servers", bootstrap])
    assert unknown.exit_code != 0
    assert f"group {name}-x has committed nothing" in unknown.output


@pytest.mark.broker
def test_an_absent_broker_is_retried_visibly_and_given_up() -> None:
    nowhere = ClusterAdmin({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    lines: list[str] = []
    with pytest.raises(
        TaskTimeoutError, match=r"127\.0\.0\.1:1.*task\.timeout\.ms.*bootstrap\.servers"
    ):
        nowhere.wait_until_reachable(3.5, lines.append, limit="task.timeout.ms")
    assert lines
    assert all("127.0.0.1:1" in line for line in lines)


@pytest.mark.broker
def test_a_broker_that_does_not_answer_in_time_has_not_told_an_offset(
    broker: EmbeddedBroker, own_proxy: KafkaProxy, name: str
) -> None:
    """librdkafka gives -1001 for each partition then, and no error: as the end of a changelog it
    would empty a store. The silence is the network's: a broker that is stopped is fenced by its
    controller, and takes no topic of the tests that follow."""
    tps = [TopicPartition(name, p) for p in range(2)]
    broker.create_topic(name, 2)
    admin = ClusterAdmin({"bootstrap.servers": own_proxy.bootstrap_servers})
    asks: list[Callable[[float], dict[TopicPartition, int]]] = [
        lambda timeout_s: admin.end_offsets(tps, "read_committed", timeout_s),
        lambda timeout_s: admin.list_offsets(tps, "earliest", "read_uncommitted", timeout_s),
        lambda timeout_s: admin.list_offsets(tps, 5, "read_committed", timeout_s),
    ]
    before = [ask(30) for ask in asks]
    for ask in asks:
        own_proxy.cut(silent=True)
        with pytest.raises(RetriableError, match=rf"offsets.*{name}-0"):
            ask(1.5)
        own_proxy.mend()
    assert [ask(30) for ask in asks] == before


@pytest.mark.broker
def test_the_host_map_is_as_sent(bootstrap: str, name: str, topic: Callable[..., str]) -> None:
    settings = GroupSettings(
        bootstrap_servers=bootstrap, group_id=name, client={"fetch_min_bytes": 1}
    )
    subtopologies = {0: [topic(40)]}
    members = [
        Instance(
            settings, assignor_of(Identity(process_id=host, endpoint=f"{host}:1"), subtopologies)
        )
        for host in ("a", "b")
    ]
    try:
        await_settled(members, 40)

        def same() -> bool:
            for member in members:
                member.step()
            sent = [event.hosts for member in members for event in member.told_of(Roles)[-1:]]
            return sent == [hosts_of(user_data_of_group(settings))] * 2 and set(sent[0] or ()) == {
                "a:1",
                "b:1",
            }

        wait_until(same, 20, "the same map", lambda: [member.told_of(Roles) for member in members])
    finally:
        for member in members:
            member.member.leave()


@pytest.mark.broker
def test_no_broker_is_a_passing_error() -> None:
    with pytest.raises(RetriableError, match="describing group g"):
        user_data_of_group(
            GroupSettings(bootstrap_servers="127.0.0.1:1", group_id="g"), timeout_s=1.0
        )


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_the_advertised_host_that_cannot_be_reached_is_named_not_the_one_that_answered() -> None:
    inside, unknown, silent, controller = free_ports(4)
    doors = f"{INSIDE}://127.0.0.1:{inside}"
    controllers = f"127.0.0.1:{controller}"
    config = {
        "listeners": (
            f"{doors},UNKNOWN://127.0.0.1:{unknown},SILENT://127.0.0.1:{silent},"
            f"CONTROLLER://{controllers}"
        ),
        "advertised.listeners": f"{doors},UNKNOWN://kafka.invalid:{unknown},SILENT://127.0.0.1:1",
        "controller.quorum.voters": f"1@{controllers}",
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in (INSIDE, "UNKNOWN", "SILENT", "CONTROLLER")
        ),
    }
    with EmbeddedBroker(port=inside, config=config):
        for door, advertised in ((unknown, f"kafka.invalid:{unknown}"), (silent, "127.0.0.1:1")):
            lines: list[str] = []
            admin = ClusterAdmin({"bootstrap.servers": f"127.0.0.1:{door}"})
            with pytest.raises(TaskTimeoutError) as error:
                admin.wait_until_reachable(3, lines.append)
            admin.close()
            for said in (str(error.value), lines[-1]):
                assert f"broker answered at 127.0.0.1:{door}" in said
                assert f"they are: {advertised}" in said
                assert "advertised.listeners" in said
                assert "no Kafka broker" not in said


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


@pytest.mark.broker
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
