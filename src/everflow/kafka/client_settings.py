"""Checks the settings that go to Kafka's clients as they are, before anything runs.

Later they would fail in a worker, under the client's name for them, or be retried for minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.writing.writer_settings import writer_settings

ClientKind = Literal["producer", "consumer", "admin"]

_LAYERS: dict[ClientKind, tuple[str, ...]] = {
    "producer": ("producer", "shared"),
    "consumer": ("restore.consumer", "consumer", "shared"),
    "admin": ("admin", "shared"),
}
"""Where each client's settings come from (`StreamsConfig.clients`); the first that has a key
wins."""

# librdkafka knows names and values of settings, and what does not go together; everflow's own
# writer, which takes them, only what it cannot do (`writer_settings`).
_IDEMPOTENT = {"enable.idempotence": True}
_OWN: dict[bool, Mapping[str, Any]] = {
    False: _IDEMPOTENT,
    True: {**_IDEMPOTENT, "transactional.id": "everflow-settings-check"},
}
"""What the guarantee asks of a producer: is it exactly once?"""
_SILENT = {"log_level": 0}  # it would say that it has no brokers
_SECRET = ("password", "secret", "token", ".pem", "sasl.oauthbearer.config", "jaas")


def check_clients(config: StreamsConfig) -> None:
    """ConfigError naming the user's key, its value and the client's reason, if a client refuses
    what it was given.

    No broker is asked. Not checked are keys with the prefix ``main.consumer.``: they are the Java
    client's.
    """
    wanted: dict[ClientKind, Mapping[str, Any]] = {
        "producer": {**config.producer(), **_OWN[config.exactly_once]},
        "consumer": config.consumer(),
        "admin": config.admin(),
    }
    for kind, settings in wanted.items():
        reason = _refusal(kind, settings)
        if reason is not None:
            raise ConfigError(_text(kind, reason, _given(config, kind)))
    writer_settings({"bootstrap.servers": "", **config.producer()})
    for settings in (config.main_consumer(), config.consumer(), config.admin()):
        connection_settings({"bootstrap.servers": "", **settings})


def _given(config: StreamsConfig, kind: ClientKind) -> dict[str, tuple[str, Any]]:
    """The user's settings of this client: the client's key -> the key as the user writes it, and
    the value."""
    found: dict[str, tuple[str, Any]] = {}
    for layer in _LAYERS[kind]:
        for key, value in config.clients.get(layer, {}).items():
            found.setdefault(key, (key if layer == "shared" else f"{layer}.{key}", value))
    return found


def _text(kind: ClientKind, reason: str, given: Mapping[str, tuple[str, Any]]) -> str:
    # Not by the name in the reason: librdkafka names linger.ms by its older name,
    # queue.buffering.max.ms.
    culprits = [own for key, own in given.items() if _refusal(kind, {key: own[1]}) == reason]
    named = ", ".join(f"{key} = {_shown(key, value)}" for key, value in culprits or given.values())
    if culprits:
        return (
            f"{named} is refused by Kafka's {kind} client: {reason}. Its keys and values are "
            f"librdkafka's."
        )
    together = f" made of {named} and everflow's own settings" if named else ""
    return f"Kafka's {kind} client{together} cannot be set up: {reason}."


def _shown(key: str, value: Any) -> str:
    return "(not shown)" if any(word in key for word in _SECRET) else repr(value)


def _refusal(kind: ClientKind, settings: Mapping[str, Any]) -> str | None:
    """Why a client of this ``kind`` cannot be made of ``settings`` (librdkafka's keys), in
    librdkafka's words; None if it can.

    librdkafka checks names, values and what does not go together when a client is made, before it
    connects to anything. So a client is made, without ``bootstrap.servers``, and closed at once
    (under a millisecond).
    """
    offline = {
        **_SILENT,
        **{key: value for key, value in settings.items() if key != "bootstrap.servers"},
    }
    try:
        if kind == "consumer":
            Consumer({"group.id": "everflow-settings-check", **offline}).close()
        elif kind == "producer":
            Producer(offline)  # nothing was produced: it ends with its last reference
        else:
            AdminClient(offline)
    except KafkaException as failure:
        error = failure.args[0]
        return (error.str() if hasattr(error, "str") else str(error)).strip()
    except (TypeError, ValueError) as failure:  # of a type that no setting has
        return str(failure)
    return None
