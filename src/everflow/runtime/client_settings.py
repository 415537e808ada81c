"""The settings that go to Kafka's clients as they are, checked before anything runs: later they would fail in a worker, under the
client's name for them, or be retried for minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.kafka.producer import producer_config
from everflow.kafka.settings_check import ClientKind, refusal

_LAYERS: dict[ClientKind, tuple[str, ...]] = {
    "producer": ("producer", "shared"),
    "consumer": ("restore.consumer", "consumer", "shared"),
    "admin": ("admin", "shared"),
}
"""Where each client's settings come from (`StreamsConfig.clients`); the first that has a key wins."""

_SECRET = ("password", "secret", "token", ".pem", "sasl.oauthbearer.config", "jaas")


def check_clients(config: StreamsConfig) -> None:
    """ConfigError naming the user's key, its value and the client's reason, if a client refuses what it was given.

    No broker is asked. Not checked are keys with the prefix ``main.consumer.``: they are the Java client's.
    """
    transactional_id = "everflow-settings-check" if config.exactly_once else None
    wanted: dict[ClientKind, Mapping[str, Any]] = {
        "producer": producer_config(config.producer(), transactional_id),
        "consumer": config.consumer(),
        "admin": config.admin(),
    }
    for kind, settings in wanted.items():
        reason = refusal(kind, settings)
        if reason is not None:
            raise ConfigError(_text(kind, reason, _given(config, kind)))


def _given(config: StreamsConfig, kind: ClientKind) -> dict[str, tuple[str, Any]]:
    """The user's settings of this client: the client's key -> the key as the user writes it, and the value."""
    found: dict[str, tuple[str, Any]] = {}
    for layer in _LAYERS[kind]:
        for key, value in config.clients.get(layer, {}).items():
            found.setdefault(key, (key if layer == "shared" else f"{layer}.{key}", value))
    return found


def _text(kind: ClientKind, reason: str, given: Mapping[str, tuple[str, Any]]) -> str:
    # Not by the name in the reason: librdkafka names linger.ms by its older name, queue.buffering.max.ms.
    culprits = [own for key, own in given.items() if refusal(kind, {key: own[1]}) == reason]
    named = ", ".join(f"{key} = {_shown(key, value)}" for key, value in culprits or given.values())
    if culprits:
        return f"{named} is refused by Kafka's {kind} client: {reason}. Its keys and values are librdkafka's."
    together = f" made of {named} and everflow's own settings" if named else ""
    return f"Kafka's {kind} client{together} cannot be set up: {reason}."


def _shown(key: str, value: Any) -> str:
    return "(not shown)" if any(word in key for word in _SECRET) else repr(value)
