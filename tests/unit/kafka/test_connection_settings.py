"""Settings of clients: TLS, tokens, Java's names, and refusals under the name that was given."""

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from kafka.errors import SaslAuthenticationFailedError

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.foreign_names.java_security import in_librdkafkas_names
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.client_settings import check_clients
from everflow.kafka.connection_settings import TokenProvider, connection_settings, security_keywords
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.records import TopicPartition

TLS = {"bootstrap.servers": "b:1", "security.protocol": "SSL"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_texts_and_files_make_the_same_context(authority: trustme.CA, tmp_path: Path) -> None:
    ca, made = authority.cert_pem, authority.issue_cert("client")
    chain, key = made.cert_chain_pems[0], made.private_key_pem
    for part, name in ((ca, "ca"), (chain, "chain"), (key, "key")):
        part.write_to_path(str(tmp_path / name))
    files = {"ca": "ca", "certificate": "chain", "key": "key"}
    texts = {"ca": ca, "certificate": chain, "key": key}
    for given in (
        {f"ssl.{part}.location": str(tmp_path / name) for part, name in files.items()},
        {f"ssl.{part}.pem": text.bytes().decode() for part, text in texts.items()},
    ):
        context = connection_settings({**TLS, **given})["ssl_context"]
        assert isinstance(context, ssl.SSLContext)
        assert context.check_hostname
        assert len(context.get_ca_certs()) == 1
    assert set(security_keywords({**TLS, "client.id": "c"})) == {"security_protocol", "ssl_context"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ssl.ca.location": "/no/such"}, r"ssl.ca.location.*/no/such.*used"),
        ({"ssl.ca.pem": "hello"}, r"ssl.ca.pem.*text"),
        ({"ssl.key.pem": "hello"}, "needs ssl.certificate.location"),
        ({"ssl.certificate.location": __file__}, "ssl.certificate.location"),
        ({"ssl.cipher.suites": "none-such"}, "ssl.cipher.suites = none-such"),
        ({"ssl.engine.id": "x"}, "ssl.engine.id cannot be said"),
        ({"https.ca": "x"}, "https.ca cannot be said"),  # mistyped: https.ca.location
    ],
)
def test_what_cannot_be_used_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        connection_settings({**TLS, **given})


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        code, given = self.server.answers.pop(0)  # type: ignore[attr-defined]
        body = given if isinstance(given, bytes) else json.dumps(given).encode()
        self.send_response(code)
        if 300 <= code < 400:
            self.send_header("Location", body.decode())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Where a redirection goes that is followed."""
        self.server.followed.append(dict(self.headers))  # type: ignore[attr-defined]
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Not to the terminal."""


@pytest.fixture
def endpoint() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def provider(server: ThreadingHTTPServer, now: list[float]) -> TokenProvider:
    url = f"http://127.0.0.1:{server.server_port}/"
    given = {"token.endpoint.url": url, "client.id": "me", "client.secret": "hunter2"}
    config = {f"sasl.oauthbearer.{key}": value for key, value in given.items()}
    return TokenProvider(config, lambda: now[0])


def test_a_token_is_kept_until_it_is_old(endpoint: ThreadingHTTPServer) -> None:
    endpoint.answers = [  # type: ignore[attr-defined]
        (200, {"access_token": "one", "expires_in": 100}),
        (200, {"access_token": "two"}),
    ]
    now = [0.0]
    tokens = provider(endpoint, now)
    assert tokens.token() == tokens.token() == "one"
    now[0] = 79.0
    assert tokens.token() == "one"
    now[0] = 81.0
    assert tokens.token() == "two"


@pytest.mark.parametrize(
    "answer", [(401, {"error": "no"}), (200, {}), (200, b"<html>"), (200, [1]), (500, b"")]
)
def test_no_token_names_endpoint(endpoint: ThreadingHTTPServer, answer: tuple[int, object]) -> None:
    endpoint.answers = [answer]  # type: ignore[attr-defined]
    with pytest.raises(SaslAuthenticationFailedError, match="token endpoint http://127") as refused:
        provider(endpoint, [0.0]).token()
    assert "hunter2" not in str(refused.value)


def test_a_secret_does_not_pass_a_proxy_that_reads_it(
    endpoint: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    endpoint.answers = [(200, {"access_token": "one"})]  # type: ignore[attr-defined]
    assert provider(endpoint, [0.0]).token() == "one"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_secret_does_not_follow_a_redirection(endpoint: ThreadingHTTPServer, code: int) -> None:
    elsewhere = f"http://localhost:{endpoint.server_port}/?secret=hunter2"
    endpoint.followed = []  # type: ignore[attr-defined]
    endpoint.answers = [  # type: ignore[attr-defined]
        (code, elsewhere.encode()),
        (200, {"access_token": "of another"}),
    ]
    with pytest.raises(SaslAuthenticationFailedError, match="redirections are not") as refused:
        provider(endpoint, [0.0]).token()
    assert f"it redirects to http://localhost:{endpoint.server_port} ({code})" in str(refused.value)
    assert endpoint.followed == []  # type: ignore[attr-defined]
    assert "hunter2" not in str(refused.value)


def test_an_endpoint_has_an_address() -> None:
    with pytest.raises(ConfigError, match="is no http"):
        TokenProvider({"sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"})


JAVA_TLS = {"security.protocol": "SSL"}
SASL = {"security.protocol": "sasl_ssl"}
LOGIN = "org.apache.kafka.common.security"


@pytest.mark.parametrize(
    ("java", "ours"),
    [
        (
            {
                **JAVA_TLS,
                "ssl.truststore.location": "/t.pem",
                "ssl.keystore.location": "/k.pem",
                "ssl.keystore.password": "p",
            },
            {
                **JAVA_TLS,
                "ssl.ca.location": "/t.pem",
                "ssl.certificate.location": "/k.pem",
                "ssl.key.location": "/k.pem",
                "ssl.key.password": "p",
            },
        ),
        (
            {
                **JAVA_TLS,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "a",
                "ssl.keystore.certificate.chain": "b",
                "ssl.keystore.key": "c",
                "ssl.endpoint.identification.algorithm": "",
            },
            {
                **JAVA_TLS,
                "ssl.ca.pem": "a",
                "ssl.certificate.pem": "b",
                "ssl.key.pem": "c",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
        (
            {
                **SASL,
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required\n"
                ' username="it\'s" password="a\\"b\\\\c; d=e" ;',
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "it's",
                "sasl.password": 'a"b\\c; d=e',
            },
        ),
        (
            {
                **SASL,
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://a/token",
                "sasl.login.callback.handler.class": (
                    f"{LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
                ),
                "sasl.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required "
                'clientId=\'me\' clientSecret="s" scope=all extension_pool="one";',
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://a/token",
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "all",
                "sasl.oauthbearer.extensions": "pool=one",
            },
        ),
        ({"fetch.min.bytes": 3}, {"fetch.min.bytes": 3}),
    ],
)
def test_java_s_names(java: dict[str, Any], ours: dict[str, Any]) -> None:
    assert in_librdkafkas_names(java) == ours
    assert in_librdkafkas_names(ours) == ours  # they are taken as well


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({**JAVA_TLS, "ssl.truststore.location": "/t.jks"}, r"Java.*JKS.*keytool"),
        (
            {**JAVA_TLS, "ssl.keystore.location": "/k.p12", "ssl.keystore.type": "PKCS12"},
            r"Java.*PKCS12.*openssl pkcs12",
        ),
        ({"security.protocol": "TLS"}, "security.protocol = 'TLS' is none of PLAINTEXT, SSL"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "GSSAPI: everflow's clients speak PLAIN"),
        (SASL, "SASL_SSL needs sasl.mechanism"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}, "needs sasl.username"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.username": "u"}, r"sasl.username.*effect.*security.protocol.*PLAIN"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/c"}, "ssl.ca.location"),
        (
            {**SASL, "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
            r"module com.sun.security.auth.module.Krb5LoginModule.*PlainLogin",
        ),
        ({**SASL, "sasl.jaas.config": "hunter2"}, r"sasl.jaas.config.*text"),
        ({**SASL, "sasl.login.callback.handler.class": "com.example.Mine"}, "com.example.Mine"),
    ],
)
def test_what_cannot_be_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        in_librdkafkas_names(given)
    assert "hunter2" not in str(refused.value)


def test_a_client_s_own_settings_come_first() -> None:
    config = StreamsConfig(
        {
            "application.id": "a",
            "bootstrap.servers": "b:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "all",
            "sasl.password": "p",
            "producer.sasl.username": "writer",
        }
    )
    assert config.producer()["sasl.username"] == "writer"
    assert config.consumer()["sasl.username"] == "all"


BASE = {"application_id": "a", "bootstrap_servers": "nowhere.invalid:1"}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("producer.linger.mss", 4, "linger.ms is one"),
        ("producer.linger.ms", "x", "whole number"),
        ("producer.request.timeout.ms", "x", "whole number"),
        ("consumer.fetch.min.bytes", "x", "whole number"),
        ("restore.consumer.metadata.max.age.ms", "soon", "whole number"),
        ("admin.socket.timeout.ms", "soon", "whole number"),
    ],
)
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_refusals_name_the_users_key(key: str, value: object, reason: str, guarantee: str) -> None:
    config = StreamsConfig(**BASE, processing_guarantee=guarantee, **{key: value})
    with pytest.raises(ConfigError) as refused:
        check_clients(config)
    assert f"{key} = {value!r}" in str(refused.value)
    assert reason in str(refused.value)


def test_the_layer_that_wins_is_named() -> None:
    keys = {"consumer.fetch.min.bytes": "x", "restore.consumer.fetch.min.bytes": "y"}
    with pytest.raises(
        ConfigError, match=r"^restore\.consumer\.fetch\.min\.bytes = 'y' is refused"
    ):
        check_clients(StreamsConfig(**BASE, **keys))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer.acks", "1"),
        ("ssl.ca.location", "/no/such/file"),
        ("ssl.ca.locaton", "/no/such/file"),
        ("producer.compression.type", "brotli"),
    ],
)
def test_what_would_lose_a_guarantee_or_cannot_be_read_is_refused(key: str, value: str) -> None:
    config = StreamsConfig(**BASE, **{"security.protocol": "SSL", key: value})
    with pytest.raises(ConfigError, match=rf"{key.removeprefix('producer.')}\b.*{value}|{key}"):
        check_clients(config)


def test_no_secret_is_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        check_clients(StreamsConfig(**BASE, **{"producer.my.password": "hunter2"}))
    assert "hunter2" not in str(refused.value)


def test_what_has_no_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "everflow")
    check_clients(StreamsConfig(**BASE, **{"consumer.fetch.min.bytes": 7, "producer.linger.ms": 5}))
    assert "consumer.fetch.min.bytes" in caplog.text
    assert "producer.linger.ms" in caplog.text


def test_right_settings_pass_without_a_broker(capfd: pytest.CaptureFixture[str]) -> None:
    keys = {
        "producer.linger.ms": 5,
        "consumer.fetch.min.bytes": "7",
        "main.consumer.max.poll.records": 5,
        "admin.log_level": 3,
    }
    for guarantee in ("at_least_once", "exactly_once_v2"):
        check_clients(StreamsConfig(**BASE, processing_guarantee=guarantee, **keys))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("partitioner", ["consistent_random", "fnv1a"])
def test_a_partitioner_that_is_not_java_s_is_refused(partitioner: str) -> None:
    with pytest.raises(ConfigError, match=f"partitioner = {partitioner}: .*murmur2_random"):
        check_clients(StreamsConfig(**BASE, **{"producer.partitioner": partitioner}))


# Secrets are in no error, no line of any log, and no representation of the settings.

SECRET = "hunter2-of-this-test"
SECRET_SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": SECRET}
GOOD: dict[str, dict[str, Any]] = {
    "plain": {**SECRET_SASL, "sasl.mechanism": "PLAIN"},
    "scram": {**SECRET_SASL, "sasl.mechanism": "SCRAM-SHA-256"},
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
    "mechanism": {**SECRET_SASL, "sasl.mechanism": "NONE-SUCH"},
    "protocol": {**SECRET_SASL, "security.protocol": "SASL_NOTHING"},
    "a key of a certificate": {"security.protocol": "SSL", "ssl.key.pem": SECRET},
    "its password": {
        "security.protocol": "SSL",
        "ssl.key.location": "/none",
        "ssl.certificate.location": "/none",
        "ssl.key.password": SECRET,
    },
    "a certificate": {"security.protocol": "SSL", "ssl.ca.pem": SECRET},
    "java's login": {**GOOD["java"], "sasl.jaas.config": f"nothing password={SECRET}"},
    "a type": {**SECRET_SASL, "sasl.mechanism": "PLAIN", "sasl.password": [SECRET]},
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

    def fetcher() -> None:
        reader = LogFetcher.over(settings)
        reader.go_to({tp: 0}, 0.3)
        reader.take({tp: 1}, 0.3)
        reader.close()

    texts = [told(act) for act in (admin, fetcher)]
    assert any(isinstance(text, str) and text for text in texts), "somebody answered"
    assert SECRET not in "\n".join([*texts, caplog.text])
