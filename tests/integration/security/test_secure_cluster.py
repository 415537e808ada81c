"""A secure cluster: every client comes in by every door, in both kinds of names; a program counts
exactly once behind each; and what an ACL forbids is named at once."""

import base64
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import trustme
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner, Result

from everflow import KafkaStreams, StreamsBuilder, serdes
from everflow.cli.app import app as command
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, FatalError, TaskTimeoutError
from everflow.instance.client_state import ClientState
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.client_settings import check_clients
from everflow.kafka.connection_settings import connection_settings
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from integration.lifecycle.lifecycle_cluster import Cluster, last_by_key, long, text
from integration.security.conftest import SECRET, USERS

pytestmark = pytest.mark.broker

LOGIN = "org.apache.kafka.common.security"
Settings = Mapping[str, Any]
DOORS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "certificate")
NAMES = ("librdkafka", "java")
TOKEN_BEGINS = base64.b64encode(b'{"alg": "none"}').decode().rstrip("=")
"""Every token of the test's endpoint begins so."""


def settings(broker: EmbeddedBroker, token_url: str, door: str, names: str, user: str) -> Settings:
    folder, java = broker.security_folder, names == "java"
    ca = {"ssl.truststore.location": folder / "ca.pem", "ssl.truststore.type": "PEM"}
    trusted: dict[str, Any] = ca if java else {"ssl.ca.location": folder / "ca.pem"}
    trusted = {key: str(value) for key, value in trusted.items()}
    if door == "certificate":
        own = str(folder / "client.pem")
        kept = {"ssl.keystore.location": own, "ssl.keystore.type": "PEM"}
        return {
            "bootstrap.servers": broker.mutual_servers,
            "security.protocol": "SSL",
            **trusted,
            **(kept if java else {"ssl.certificate.location": own, "ssl.key.location": own}),
        }
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": door,
        **trusted,
        **_login(door, java, user, token_url),
    }


def _login(door: str, java: bool, user: str, token_url: str) -> dict[str, str]:
    if door == "OAUTHBEARER":
        endpoint = {"sasl.oauthbearer.token.endpoint.url": token_url}
        if java:
            module = f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required"
            return {
                **endpoint,
                "sasl.jaas.config": f'{module} clientId="{user}" clientSecret="{SECRET}";',
                "sasl.login.callback.handler.class": (
                    f"{LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
                ),
            }
        named = {"sasl.oauthbearer.client.id": user, "sasl.oauthbearer.client.secret": SECRET}
        return {**endpoint, **named}
    if not java:
        return {"sasl.username": user, "sasl.password": USERS[user]}
    quoted = USERS[user].replace("\\", "\\\\").replace('"', '\\"')
    module = "plain.PlainLoginModule" if door == "PLAIN" else "scram.ScramLoginModule"
    options = f'username="{user}" password="{quoted}"'
    return {"sasl.jaas.config": f"{LOGIN}.{module} required {options};"}


def allow(
    broker: EmbeddedBroker,
    user: str,
    kind: ResourceType,
    name: str,
    *operations: AclOperation,
    prefix: bool = False,
    deny: bool = False,
) -> None:
    """These operations (none: all) with what is called so, or begins so."""
    rules = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
        )
        for operation in operations or (AclOperation.ALL,)
    ]
    admin = AdminClient({"bootstrap.servers": broker.inside_servers})
    for made in admin.create_acls(rules).values():
        made.result(30)


PAGE = (Path(__file__).parents[3] / "docs/guide/security.md").read_text()
OPERATION = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
}
TOPIC, IDS = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
RESOURCES: Mapping[str, tuple[ResourceType, tuple[str, ...], bool]] = {
    "group `<application.id>`": (ResourceType.GROUP, ("{application}",), False),
    "transactional ids that begin with `<application.id>` (exactly once)": (
        IDS,
        ("{application}",),
        True,
    ),
    "transactional id `everflow-dlq-<dead letter topic>`": (IDS, ("everflow-dlq-{dead}",), False),
    "topics that begin with `<application.id>-`": (ResourceType.TOPIC, ("{application}-",), True),
    "input topics": (ResourceType.TOPIC, ("{source}",), False),
    "output topics, the dead letter topic": (ResourceType.TOPIC, ("{output}", "{dead}"), False),
    "the dead letter topic": (ResourceType.TOPIC, ("{dead}",), False),
    "source topics of the dead-letter records, or the topic of `--to`": (
        TOPIC,
        ("{source}",),
        False,
    ),
    "topics of which the group has committed offsets": (ResourceType.TOPIC, ("{source}",), False),
    "topic `<application.id>-everflow-connectors-changelog`": (
        TOPIC,
        ("{application}-everflow-connectors-changelog",),
        False,
    ),
    "topics that the connectors read": (ResourceType.TOPIC, ("{source}",), False),
    "topics that are to be listed": (ResourceType.TOPIC, ("{output}",), False),
    "the topic": (ResourceType.TOPIC, ("{output}",), False),
}
"""What the page calls a resource -> what a test calls it, and whether names only begin so."""


def said(who: str) -> list[tuple[str, list[AclOperation]]]:
    """docs/guide/security.md, "What an application has to be allowed": the rows of somebody."""
    table = PAGE.split("## What an application has to be allowed\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| ")
    ]
    assert rows[0] == ["who", "resource", "operations"]
    mine = [row for row in rows[2:] if row[0].startswith(who)]
    assert mine, who
    return [
        (resource, [OPERATION[one.split()[0]] for one in operations.split(", ")])
        for _, resource, operations in mine
        if resource != "all resources of an instance"
    ]


def allow_what_the_guide_says(
    broker: EmbeddedBroker, user: str, who: str = "an instance", **parts: str
) -> None:
    """``parts``: names of the test's ``application``, ``source``, ``output`` and ``dead``."""
    parts.setdefault("dead", f"{parts['application']}-dead")
    for resource, operations in said(who):
        kind, names, prefix = RESOURCES[resource]
        for named in names:
            allow(broker, user, kind, named.format(**parts), *operations, prefix=prefix)


def test_the_guide_says_what_each_resource_is() -> None:
    assert {resource for resource, _ in said("")} == set(RESOURCES)


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "`everflow dlq list`": ("dlq", "list", "{dead}"),
    "`everflow dlq replay`": ("dlq", "replay", "{dead}", "--yes"),
    "`everflow lag`": ("lag", "{application}"),
    "`everflow consume`": (
        *("consume", "{output}", "--from-beginning", "--count", "1", "--timeout", "9"),
    ),
    "`everflow produce`": ("produce", "{output}"),
    "`everflow topic create`": ("topic", "create", "{output}"),
    "`everflow topic delete`": ("topic", "delete", "{output}", "--yes"),
}


@pytest.mark.parametrize("who", COMMANDS)
def test_a_command_is_allowed_by_what_the_guide_says_and_by_no_less(
    secure: EmbeddedBroker, token_url: str, name: str, who: str
) -> None:
    parts = {part: f"may-{name}-{part}" for part in ("application", "source", "output", "dead")}
    made = [parts[part] for part in ("source", "dead")]
    topics(secure, *made, *([] if "create" in who else [parts["output"]]))
    write(secure, parts["output"] if "create" not in who else parts["source"], ["a", "b"])
    dead_letter(secure, parts["dead"], parts["source"])
    commit(secure, parts["application"], parts["source"])
    given = settings(secure, token_url, "SCRAM-SHA-512", "librdkafka", "alice")
    servers = f"--bootstrap-servers={given['bootstrap.servers']}"
    options = [f"--set={key}={value}" for key, value in given.items() if "bootstrap" not in key]
    arguments = [part.format(**parts) for part in COMMANDS[who]]

    def asked() -> Result:
        return CliRunner().invoke(command, [*arguments, servers, *options], input="k\tv\n")

    refused = asked()
    assert refused.exit_code != 0, refused.output
    allow_what_the_guide_says(secure, "alice", who, **parts)
    wait_until(lambda: asked().exit_code == 0, 30, who, history=lambda: [asked().output])


PROGRAM = """
from everflow import StreamsBuilder, serdes

builder = StreamsBuilder()
words = builder.stream("{source}", key=serdes.string(), value=serdes.string())
counts = words.group_by(lambda key, value: value, returns="string", name="by-word").count(store="n")
counts.to_stream().to("{output}")
"""


def test_a_reset_is_allowed_what_an_instance_is(
    secure: EmbeddedBroker,
    token_url: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {part: f"reset-{name}-{part}" for part in ("application", "source", "output")}
    topics(secure, parts["source"], parts["output"], f"{parts['application']}-n-changelog")
    commit(secure, parts["application"], parts["source"])
    allow_what_the_guide_says(secure, "bob", **parts)
    (tmp_path / f"{name.replace('-', '_')}_program.py").write_text(PROGRAM.format(**parts))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = settings(secure, token_url, "SCRAM-SHA-512", "librdkafka", "bob")
    options = [f"--set={key}={value}" for key, value in given.items()]
    options += [f"--set=state.dir={tmp_path}", "--application-id", parts["application"], "--yes"]
    target = f"{name.replace('-', '_')}_program:builder"
    done = CliRunner().invoke(command, ["reset", target, *options])
    assert done.exit_code == 0, done.output


def dead_letter(broker: EmbeddedBroker, topic: str, source: str) -> None:
    producer = Producer({"bootstrap.servers": broker.inside_servers})
    told = {"exception": "ValueError", "topic": source, "partition": "0", "offset": "0"}
    headers = [(f"__streams.errors.{key}", value) for key, value in told.items()]
    producer.produce(topic, "v", "k", headers=headers)  # type: ignore[arg-type]
    producer.flush(30)


def commit(broker: EmbeddedBroker, group: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.inside_servers, "group.id": group})
    consumer.commit(offsets=[ClientTopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("door", DOORS)
def test_all_clients_come_in(secure: EmbeddedBroker, token_url: str, door: str, names: str) -> None:
    given = settings(secure, token_url, door, names, "bob")
    config = StreamsConfig({"application.id": "open", **given})
    check_clients(config)
    assert ClusterAdmin(config.admin()).cluster_id(30)
    link = BrokerLink(connection_settings(config.producer()), 10_000, 30)
    link.close()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sasl.password": "nope"}, "invalid credentials.*Check sasl.mechanism"),
        ({"sasl.mechanism": "PLAIN", "sasl.password": "nope"}, r"username.*password"),
        ({"ssl.ca.location": "other"}, r"certificate.*Check.*ssl.ca.location"),
    ],
)
def test_a_refusal_does_not_wait_for_the_task_s_time_out(
    secure: EmbeddedBroker, token_url: str, tmp_path: Path, changed: dict[str, str], told: str
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other"))
    given = settings(secure, token_url, "SCRAM-SHA-512", "librdkafka", "alice")
    changed = {k: str(tmp_path / v) if v == "other" else v for k, v in changed.items()}
    config = StreamsConfig({"application.id": "a", **given, **changed})
    began = time.monotonic()
    with pytest.raises(FatalError, match=told) as refused:
        ClusterAdmin(config.admin()).wait_until_reachable(300, lambda line: None)
    assert time.monotonic() - began < 60
    assert "nope" not in str(refused.value)


def test_a_token_endpoint_that_is_away_is_an_outage(secure: EmbeddedBroker) -> None:
    given = settings(secure, "http://127.0.0.1:9/token", "OAUTHBEARER", "librdkafka", "alice")
    lines: list[str] = []
    admin = ClusterAdmin(StreamsConfig({"application.id": "a", **given}).admin())
    with pytest.raises(TaskTimeoutError, match="token endpoint"):
        admin.wait_until_reachable(9, lines.append)
    assert "gave no token" in "".join(lines)


@cache
def inside(broker: EmbeddedBroker) -> Cluster:
    """The same cluster through the listener without a password."""
    return Cluster(broker.inside_servers, "")


@pytest.fixture(scope="module", autouse=True)
def closed_inside(secure: EmbeddedBroker) -> Iterator[None]:
    """No client looks for the broker when it is gone."""
    yield
    inside(secure).close()
    inside.cache_clear()


def topics(broker: EmbeddedBroker, *names: str) -> None:
    inside(broker).make(*names, partitions=2)


def write(broker: EmbeddedBroker, topic: str, words: list[str]) -> None:
    records = [text(f"k{at}", word, 1_000 + at, at % 2) for at, word in enumerate(words)]
    inside(broker).write(topic, records)


def counts(broker: EmbeddedBroker, topic: str) -> dict[str, int | None]:
    found = last_by_key(inside(broker).read(topic))
    return {(key or b"").decode(): long(value) for key, value in found.items()}


@contextmanager
def running(
    parts: Mapping[str, str], folder: Path, config: Mapping[str, Any]
) -> Iterator[KafkaStreams]:
    builder = StreamsBuilder()
    stream = builder.stream(parts["source"], key=serdes.string(), value=serdes.string())
    counted = stream.group_by(lambda key, value: value, returns="string", name="by-word")
    counted.count(store="words").to_stream().to(parts["output"])
    own = {"state.dir": str(folder), "num.stream.threads": 1}
    streams = KafkaStreams(builder.build(), {**own, **config})
    streams.start()
    try:
        yield streams
    finally:
        streams.close(60)


def shown(secret: str) -> list[str]:
    """As what a log may show it: as it is, in a URL, and within any bytes in base64 (so does py4j
    with functions)."""
    data = secret.encode()
    packed = [base64.b64encode(b"\0" * shift + data).decode()[4:-4] for shift in range(3)]
    return [secret, quote(secret), quote_plus(secret), *packed]


def granted(
    broker: EmbeddedBroker, name: str, given: Settings, user: str, words: list[str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Topics with ``words`` in the first, allowed to ``user`` as the guide says: what they are
    called, and the settings of an application."""
    parts = {part: f"{name}-{part}" for part in ("source", "output", "application")}
    topics(broker, parts["source"], parts["output"])
    write(broker, parts["source"], words)
    allow_what_the_guide_says(broker, user, **parts)
    named = {"application.id": parts["application"], "processing.guarantee": "exactly_once_v2"}
    return parts, {**named, **given}


def until_counted(
    broker: EmbeddedBroker, streams: KafkaStreams, topic: str, wanted: Mapping[str, int]
) -> None:
    wait_until(
        lambda: streams.error or counts(broker, topic) == wanted,
        60,
        "the counts",
        history=lambda: [streams.state, streams.error, counts(broker, topic)],
    )
    assert streams.error is None


@pytest.mark.spark
@pytest.mark.parametrize(
    ("door", "names"),
    [
        ("OAUTHBEARER", "java"),
        pytest.param("SCRAM-SHA-512", "java", marks=pytest.mark.slow),
        pytest.param("SCRAM-SHA-256", "librdkafka", marks=pytest.mark.slow),
        pytest.param("PLAIN", "java", marks=pytest.mark.slow),
        pytest.param("certificate", "librdkafka", marks=pytest.mark.slow),
    ],
)
def test_a_program_counts_exactly_once_on_a_secure_cluster(
    secure: EmbeddedBroker,
    token_url: str,
    door: str,
    names: str,
    name: str,
    tmp_path: Path,
    spark: object,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And says no secret, though everything is logged at DEBUG."""
    caplog.set_level(logging.DEBUG)
    for logger in ("py4j", "kafka", "everflow"):
        caplog.set_level(logging.DEBUG, logger)
    user = "client" if door == "certificate" else "bob"
    given = settings(secure, token_url, door, names, "bob")
    parts, config = granted(secure, f"open-{name}", given, user, ["a", "b", "a", "c", "a"])
    with running(parts, tmp_path, config) as streams:
        until_counted(secure, streams, parts["output"], {"a": 3, "b": 1, "c": 1})
    told = [*capfd.readouterr(), caplog.text]
    told += [path.read_text() for path in tmp_path.rglob("*.log")]
    assert "Command to send" in told[2], "py4j does not tell what it sends: nothing was looked at"
    assert TOKEN_BEGINS not in "".join(told)
    for secret in (SECRET, *USERS.values()):
        for form in shown(secret):
            assert not any(form in text for text in told), (secret, form)


FORBIDDEN: dict[str, tuple[ResourceType, str]] = {
    "the input topic": (ResourceType.TOPIC, "source"),
    "the output topic": (ResourceType.TOPIC, "output"),
    "the group": (ResourceType.GROUP, "application"),
    "the transactional id": (ResourceType.TRANSACTIONAL_ID, "application"),
}


@pytest.mark.spark
@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.parametrize(
    "when", ["at the start", pytest.param("while it runs", marks=pytest.mark.slow)]
)
def test_what_is_forbidden_is_named_and_ends_the_instance(
    secure: EmbeddedBroker,
    token_url: str,
    when: str,
    what: str,
    name: str,
    tmp_path: Path,
    spark: object,
) -> None:
    """Not after task.timeout.ms; what was committed before stays."""
    kind, part = FORBIDDEN[what]
    given = settings(secure, token_url, "SCRAM-SHA-512", "librdkafka", "alice")
    parts, config = granted(secure, f"shut-{name}", given, "alice", ["a", "b"])
    error: BaseException | None
    try:
        if when == "at the start":
            allow(secure, "alice", kind, parts[part], prefix=True, deny=True)
        with running(parts, tmp_path, config) as streams:
            if when == "while it runs":
                until_counted(secure, streams, parts["output"], {"a": 1, "b": 1})
                allow(secure, "alice", kind, parts[part], prefix=True, deny=True)
                write(secure, parts["source"], ["a"])
            wait_until(
                lambda: streams.state is ClientState.ERROR,
                60,
                "an error",
                history=lambda: [streams.state, streams.error],
            )
            error = streams.error
    except EverflowError as at_the_start:
        error = at_the_start
    assert parts[part] in str(error)
    assert "uthoriz" in str(error) or "permitted" in str(error) or "ACL" in str(error), error
    wanted = {"a": 1, "b": 1} if when == "while it runs" else {}
    assert counts(secure, parts["output"]) == wanted


def test_the_command_makes_a_secure_broker(tmp_path: Path) -> None:
    everflow = str(Path(sys.executable).with_name("everflow"))
    command = [everflow, "broker", "--security", "--topic", "orders:2"]
    with started([*command, "--data-dir", str(tmp_path)]) as lines:
        servers = next(line.split()[-1] for line in lines if "bootstrap servers" in line)
        file = next(line.split("settings of ")[1] for line in lines if "settings of" in line)
        assert Path(file.strip()).stat().st_mode & 0o077 == 0
        lines_of_file = Path(file.strip()).read_text().splitlines()
        given = dict(line.split("=", 1) for line in lines_of_file)
        config = StreamsConfig({"application.id": "a", "bootstrap.servers": servers, **given})
        assert ClusterAdmin(config.admin()).describe_topics(["orders"])["orders"].partitions == 2


@contextmanager
def started(command: list[str]) -> Iterator[Iterator[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield iter(process.stdout)
        finally:
            process.send_signal(signal.SIGTERM)
