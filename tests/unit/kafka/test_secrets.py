"""Secrets are in no error, no line of any log, and no representation of the settings."""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from everflow.config import StreamsConfig
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.client_settings import check_clients
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.records import TopicPartition

SECRET = "hunter2-of-this-test"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": SECRET}
GOOD: dict[str, dict[str, Any]] = {
    "plain": {**SASL, "sasl.mechanism": "PLAIN"},
    "scram": {**SASL, "sasl.mechanism": "SCRAM-SHA-256"},
    "token": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "i",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
    },
    "java": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="u" password="{SECRET}";',
    },
}
WRONG: dict[str, dict[str, Any]] = {
    "mechanism": {**SASL, "sasl.mechanism": "NONE-SUCH"},
    "protocol": {**SASL, "security.protocol": "SASL_NOTHING"},
    "a key of a certificate": {"security.protocol": "SSL", "ssl.key.pem": SECRET},
    "its password": {
        "security.protocol": "SSL",
        "ssl.key.location": "/none",
        "ssl.certificate.location": "/none",
        "ssl.key.password": SECRET,
    },
    "a certificate": {"security.protocol": "SSL", "ssl.ca.pem": SECRET},
    "java's login": {**GOOD["java"], "sasl.jaas.config": f"nothing password={SECRET}"},
    "a type": {**SASL, "sasl.mechanism": "PLAIN", "sasl.password": [SECRET]},
    "java's store": {
        "security.protocol": "SSL",
        "ssl.keystore.location": "/none.jks",
        "ssl.keystore.password": SECRET,
    },
}


class SaslAuthenticateRequest:
    """As kafka-python's shows itself."""

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest(auth_bytes={SECRET})"


@pytest.mark.parametrize(
    ("logger", "said", "arguments", "shown"),
    [
        (
            "kafka.net.connection",
            "%s Request %d: %s",
            ("conn", 3, SaslAuthenticateRequest()),
            "conn Request 3: SaslAuthenticateRequest(...)",
        ),
        (
            "kafka.protocol.parser",
            "%s Sending request %d %s",
            ("conn", 3, SaslAuthenticateRequest()),
            "conn Sending request 3 SaslAuthenticateRequest(...)",
        ),
        (
            "kafka.protocol.parser",
            "%s Send: %r",
            ("conn", bytearray(SECRET.encode())),
            f"conn Send: '{len(SECRET)} bytes'",
        ),
        (
            "kafka.admin.client",
            "Starting KafkaAdminClient with configuration: %s",
            ({"client_id": "c", "sasl_plain_password": SECRET},),
            "configuration: {'client_id': 'c', 'sasl_plain_password': '...'}",
        ),
    ],
)
def test_kafka_python_does_not_say_how_it_comes_in(
    logger: str,
    said: str,
    arguments: tuple[object, ...],
    shown: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It logs requests whole, and an admin client its settings."""
    connection_settings({"bootstrap.servers": "b:1"})
    its = logging.getLogger(logger)
    with caplog.at_level(logging.DEBUG, logger):
        its.addHandler(caplog.handler)
        try:
            its.debug(said, *arguments)
        finally:
            its.removeHandler(caplog.handler)
    assert shown in caplog.text
    assert SECRET not in caplog.text


@pytest.fixture
def nobody() -> Iterator[str]:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def told(act: Callable[[], object]) -> str:
    """The whole text of what an act raises: the error, its causes, and their representations."""
    texts = []
    try:
        act()
    except Exception as raised:
        error: BaseException | None = raised
        while error is not None:
            texts += [str(error), repr(error)]
            error = error.__cause__ or error.__context__
    return "\n".join(texts)


@pytest.mark.parametrize("given", [*GOOD.values(), *WRONG.values()], ids=[*GOOD, *WRONG])
def test_settings_never_show_a_secret(
    given: dict[str, Any], nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config: list[StreamsConfig] = []

    def made() -> None:
        config.append(StreamsConfig({"application.id": "a", "bootstrap.servers": nobody, **given}))

    texts = [told(made)]
    for one in config:
        texts += [repr(one), str(one), *one.warnings(), told(lambda one=one: check_clients(one))]  # type: ignore[misc]
        texts += [told(lambda one=one: connection_settings(one.consumer()))]  # type: ignore[misc]
    assert SECRET not in "\n".join([*texts, caplog.text])


@pytest.mark.parametrize("given", GOOD.values(), ids=GOOD)
def test_clients_that_reach_nobody_never_show_a_secret(
    given: dict[str, Any], nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = StreamsConfig({"application.id": "a", "bootstrap.servers": nobody, **given})
    settings = config.consumer()
    tp = TopicPartition("t", 0)

    def admin() -> None:
        cluster = ClusterAdmin(config.admin())
        try:
            cluster.end_offsets([tp], "read_committed", 0.2)
        finally:
            cluster.close()

    def tap() -> None:
        reader = FetchTap.over(settings)
        reader.go_to({tp: 0}, 0.3)
        reader.take({tp: 1}, 0.3)
        reader.close()

    texts = [told(act) for act in (admin, tap)]
    assert any(isinstance(text, str) and text for text in texts), "somebody answered"
    assert SECRET not in "\n".join([*texts, caplog.text])
