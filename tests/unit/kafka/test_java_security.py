"""Java's names of security settings say what librdkafka's say; what cannot be is told by the key
that was given, with the cure and without a secret."""

from __future__ import annotations

from typing import Any

import pytest

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.foreign_names.java_security import in_librdkafkas_names

TLS = {"security.protocol": "SSL"}
SASL = {"security.protocol": "sasl_ssl"}
LOGIN = "org.apache.kafka.common.security"


@pytest.mark.parametrize(
    ("java", "ours"),
    [
        (
            {
                **TLS,
                "ssl.truststore.location": "/t.pem",
                "ssl.keystore.location": "/k.pem",
                "ssl.keystore.password": "p",
            },
            {
                **TLS,
                "ssl.ca.location": "/t.pem",
                "ssl.certificate.location": "/k.pem",
                "ssl.key.location": "/k.pem",
                "ssl.key.password": "p",
            },
        ),
        (
            {
                **TLS,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "a",
                "ssl.keystore.certificate.chain": "b",
                "ssl.keystore.key": "c",
                "ssl.endpoint.identification.algorithm": "",
            },
            {
                **TLS,
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
        ({**TLS, "ssl.truststore.location": "/t.jks"}, r"Java.*JKS.*keytool"),
        (
            {**TLS, "ssl.keystore.location": "/k.p12", "ssl.keystore.type": "PKCS12"},
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
