"""What makes the embedded broker a secure one: certificates, users, listeners that ask for them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from everflow.errors import SetupError

SASL = "SASL"
MUTUAL = "MUTUAL"
INSIDE = "INSIDE"
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class BrokerSecurity:
    """Gives an `EmbeddedBroker` two secure listeners: ``SASL_SSL`` (PLAIN, SCRAM-SHA-256,
    SCRAM-SHA-512, and OAUTHBEARER with unsigned tokens, as in Kafka's own development setting) and
    mutual TLS.

    Args:
        users: passwords by name, of PLAIN and SCRAM.
        authorizer: whether what no ACL allows is forbidden (`StandardAuthorizer`). The broker
            itself, which comes in by a third door on the loopback, may do all.
    """

    users: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({"alice": "alice-secret"})
    )
    authorizer: bool = False

    def settings(self, folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
        """Broker settings for the secure listeners; ``ports``: by listener name. Creates
        certificates in ``folder`` unless it has some; SetupError without the package trustme."""
        _certificates(folder)
        plain = " ".join(f"user_{name}={json.dumps(word)}" for name, word in self.users.items())
        mechanisms = {
            "plain": f"{_LOGIN}.plain.PlainLoginModule required {plain};",
            "scram-sha-256": f"{_LOGIN}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{_LOGIN}.scram.ScramLoginModule required;",
            "oauthbearer": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
        }
        doors = {name: f"{name}://127.0.0.1:{ports[name]}" for name in (INSIDE, SASL, MUTUAL)}
        settings = {
            "listeners": ",".join(
                (*doors.values(), f"CONTROLLER://127.0.0.1:{ports['CONTROLLER']}")
            ),
            "advertised.listeners": ",".join(doors.values()),
            "inter.broker.listener.name": INSIDE,
            "listener.security.protocol.map": (
                f"{INSIDE}:PLAINTEXT,{SASL}:SASL_SSL,{MUTUAL}:SSL,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": ",".join(mechanism.upper() for mechanism in mechanisms),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required",
            f"listener.name.{MUTUAL.lower()}.ssl.principal.mapping.rules": (
                "RULE:^.*CN=([^,]*).*$/$1/,DEFAULT"
            ),
        }
        for mechanism, login in mechanisms.items():
            settings[f"listener.name.{SASL.lower()}.{mechanism}.sasl.jaas.config"] = login
        if self.authorizer:
            settings["authorizer.class.name"] = (
                "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            )
            settings["super.users"] = "User:ANONYMOUS"
        return settings

    def scram(self) -> list[str]:
        """Arguments of Kafka's storage tool (``format``) that create the users' SCRAM passwords."""
        return [
            part
            for name, word in self.users.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for part in ("--add-scram", f"{mechanism}=[name={name},password={word}]")
        ]


def write_client_settings(security: BrokerSecurity, folder: Path) -> Path:
    """Writes `client.properties`, for the first user; this user of the machine alone reads it."""
    name, word = next(iter(security.users.items()))
    login = f'{_LOGIN}.scram.ScramLoginModule required username="{name}" password="{word}";'
    lines = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": login,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
    }
    file = folder / "client.properties"
    _private(file, "".join(f"{key}={value}\n" for key, value in lines.items()).encode())
    return file


def _certificates(folder: Path) -> None:
    if (folder / "broker.pem").exists():
        return
    try:
        import trustme
        from cryptography.hazmat.primitives import serialization as pem
    except ImportError as missing:
        raise SetupError(
            "a secure broker needs the package trustme, which makes its certificates: pip install "
            "'everflow[secure-broker]'",
            code="EF-BROKER",
        ) from missing
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA(organization_name="everflow's embedded broker")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name, identities in (("broker", ("localhost", "127.0.0.1")), ("client", ("client",))):
        made = authority.issue_cert(*identities, common_name=name)
        # Java reads no other form of keys than PKCS 8.
        key = pem.load_pem_private_key(made.private_key_pem.bytes(), None).private_bytes(
            pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()
        )
        chain = b"".join(part.bytes() for part in made.cert_chain_pems)
        _private(folder / f"{name}.pem", key + chain)


def _private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
