"""One security configuration, in Java's names or librdkafka's: what Java's say, in librdkafka's.

They differ where Java has a class, a key store or a login module. Everything behind `StreamsConfig`
knows librdkafka's names only. Pure: no file is opened here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everflow.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""What all of everflow's clients speak."""

_RENAMED = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
_JAVA_CLASSES = (
    "sasl.login.callback.handler.class",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
)
"""Java needs them for a token endpoint; here the endpoint's address is enough."""
_OWN_CLASSES = re.compile(r"(^|\.)org\.apache\.kafka\.common\.security\.oauthbearer\.")
_PEM_ENDINGS = (".pem", ".crt", ".cer", ".cert")
_STORES = {
    "truststore": (("ssl.ca.location",), "keytool -exportcert -rfc -alias ... -keystore"),
    "keystore": (
        ("ssl.certificate.location", "ssl.key.location"),
        "openssl pkcs12 -nodes -out client.pem -in",
    ),
}
"""A store of Java's, the keys that a PEM file of it has here, and what makes one."""
_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.S)
_OPTION = re.compile(r"""([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
_MODULES = {
    "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
}
_EXTENSION = "extension_"


def in_librdkafkas_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A client's settings with its security in librdkafka's names; others stay as they are. Of a
    setting in both names librdkafka's counts.

    Raises:
        ConfigError: a mechanism that not all of everflow's clients speak, a store that is not PEM,
            a login module or a class that is not known here. No secret is in the message.
    """
    settings = {
        _RENAMED.get(key, key): value for key, value in config.items() if key not in _RENAMED
    }
    for key, name in _RENAMED.items():
        if key in config:
            settings.setdefault(name, config[key])
    _classes(settings)
    for store in _STORES:
        _store(settings, store)
    _login(settings)
    _names(settings)
    return settings


def _classes(settings: dict[str, Any]) -> None:
    for key in _JAVA_CLASSES:
        named = str(settings.pop(key, ""))
        if named and not _OWN_CLASSES.search(named):
            raise ConfigError(
                f"{key} = {named}: classes of Java cannot be called here. For OAUTHBEARER with a "
                f"token endpoint set sasl.oauthbearer.token.endpoint.url, "
                f"sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret."
            )


def _store(settings: dict[str, Any], store: str) -> None:
    location, kind, password = (
        settings.pop(f"ssl.{store}.{part}", None) for part in ("location", "type", "password")
    )
    names, command = _STORES[store]
    if location is None:
        return
    if str(kind or "").upper() == "PEM" or (
        not kind and str(location).lower().endswith(_PEM_ENDINGS)
    ):
        for name in names:
            settings.setdefault(name, location)
        if store == "keystore" and password is not None:
            settings.setdefault("ssl.key.password", password)
        return
    raise ConfigError(
        f"ssl.{store}.location = {location}: only Java reads {str(kind or 'JKS').upper()} stores. "
        f"Make a PEM file of it ({command} {location} ...), and set {' and '.join(names)} to it; "
        f"or, in Java's names, ssl.{store}.type = PEM."
    )


def _login(settings: dict[str, Any]) -> None:
    text = settings.pop("sasl.jaas.config", None)
    if text is None:
        return
    found = _JAAS.fullmatch(str(text))
    module = found.group(1).rpartition(".")[2] if found else None
    if found is None or module not in _MODULES:
        what = f"the login module {found.group(1)}" if found else "a text that is none"
        raise ConfigError(
            f"sasl.jaas.config has {what}; known are {', '.join(_MODULES)}, as in "
            f"'org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="..." password="...";\'. Without it: sasl.username and sasl.password.'
        )
    extensions = []
    for option, quoted in _OPTION.findall(found.group(2)):
        value = _unquoted(quoted)
        if option in _MODULES[module]:
            settings.setdefault(_MODULES[module][option], value)
        elif option.startswith(_EXTENSION):
            extensions.append(f"{option.removeprefix(_EXTENSION)}={value}")
    if extensions:
        settings.setdefault("sasl.oauthbearer.extensions", ",".join(extensions))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[:1] in ("'", '"') else text


def _names(settings: dict[str, Any]) -> None:
    """The values that the two write differently."""
    check = "ssl.endpoint.identification.algorithm"
    if settings.get(check) == "":
        settings[check] = "none"
    if "security.protocol" in settings:
        settings["security.protocol"] = str(settings["security.protocol"]).upper()
    mechanism = settings.get("sasl.mechanism")
    if mechanism is not None and mechanism not in MECHANISMS:
        raise ConfigError(
            f"sasl.mechanism = {mechanism}: everflow's clients speak {', '.join(MECHANISMS)}."
        )
    if mechanism == "OAUTHBEARER":
        settings.setdefault("sasl.oauthbearer.method", "oidc")
    _complete(settings)


_NEEDED = {
    "PLAIN": ("sasl.username", "sasl.password"),
    "SCRAM-SHA-256": ("sasl.username", "sasl.password"),
    "SCRAM-SHA-512": ("sasl.username", "sasl.password"),
    "OAUTHBEARER": (
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
    ),
}


def _complete(settings: Mapping[str, Any]) -> None:
    """Clients pass over settings that their protocol does not use, and then wait for brokers that
    speak another one."""
    protocol = str(settings.get("security.protocol", "PLAINTEXT"))
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security.protocol = {protocol!r} is none of {', '.join(PROTOCOLS)}.")
    for prefix, part in (("sasl.", "SASL"), ("ssl.", "SSL")):
        idle = sorted(key for key in settings if key.startswith(prefix))
        if idle and part not in protocol.split("_"):
            wanted = [name for name in PROTOCOLS if part in name.split("_")]
            raise ConfigError(
                f"{', '.join(idle)} would have no effect: security.protocol is {protocol}. Set it "
                f"to {' or '.join(wanted)}."
            )
    if "SASL" not in protocol.split("_"):
        return
    mechanism = settings.get("sasl.mechanism")
    if mechanism is None:
        raise ConfigError(
            f"security.protocol = {protocol} needs sasl.mechanism, one of {', '.join(MECHANISMS)}."
        )
    missing = [key for key in _NEEDED[mechanism] if not settings.get(key)]
    if missing:
        raise ConfigError(
            f"sasl.mechanism = {mechanism} needs {' and '.join(missing)} (or, in Java's names, "
            f"sasl.jaas.config)."
        )
