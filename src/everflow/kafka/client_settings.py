"""Checks the settings of Kafka's clients before anything runs.

Their names are librdkafka's. Later a wrong one would fail in a worker, or be retried for minutes.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.kafka.connection_settings import (
    CHECK_CRCS,
    CONNECTION_KEYS,
    SECURITY,
    connection_settings,
)
from everflow.kafka.writing.writer_settings import WRITER_KEYS, writer_settings

log = logging.getLogger("everflow")
ClientKind = Literal["producer", "consumer", "admin"]

_LAYERS: dict[ClientKind, tuple[str, ...]] = {
    "producer": ("producer", "shared"),
    "consumer": ("restore.consumer", "consumer", "shared"),
    "admin": ("admin", "shared"),
}
"""The layers of each client's settings (`StreamsConfig.clients`); the first that has a key
wins."""
_READ: Mapping[ClientKind, frozenset[str]] = {
    "producer": CONNECTION_KEYS | WRITER_KEYS,
    "consumer": CONNECTION_KEYS | {CHECK_CRCS, "isolation.level", "group.id"},
    "admin": CONNECTION_KEYS,
}
"""What each client reads of its settings; security has a check of its own."""
_TUNING = """
allow.auto.create.topics api.version.fallback.ms api.version.request
api.version.request.timeout.ms auto.commit.enable auto.commit.interval.ms auto.offset.reset
background_event_cb batch.num.messages broker.address.family broker.address.ttl
broker.version.fallback builtin.features client.dns.lookup client.software.name
client.software.version consume.callback.max.messages coordinator.query.interval.ms debug
delivery.report.only.error delivery.timeout.ms enable.auto.commit enable.auto.offset.store
enable.gapless.guarantee enable.metrics.push enable.partition.eof enable.random.seed
enable.sparse.connections fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes
fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.instance.id group.protocol
group.protocol.type group.remote.assignor heartbeat.interval.ms internal.termination.signal
linger.ms log.connection.close log.queue log.thread.name log_level max.in.flight
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
max.poll.records message.copy.max.bytes message.send.max.retries message.timeout.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metadata.request.timeout.ms
msg_order_cmp offset.store.method offset.store.path offset.store.sync.interval.ms
partition.assignment.strategy plugin.library.paths produce.offset.report
queue.buffering.backpressure.threshold queue.buffering.max.messages queue.buffering.max.ms
queued.max.messages.kbytes queued.min.messages queuing.strategy receive.message.max.bytes
reconnect.backoff.jitter.ms retries retry.backoff.max.ms retry.backoff.ms session.timeout.ms
socket.blocking.max.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms statistics.interval.ms
sticky.partitioning.linger.ms test.mock.broker.rtt test.mock.num.brokers topic.blacklist
topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms
topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
"""
_WITHOUT_EFFECT = frozenset(_TUNING.split())
"""Settings of librdkafka that only tune its own queues and threads, or that everflow sets."""
_NUMBER = re.compile(r"\.(ms|bytes|kbytes|messages|records)$")
_WHOLE = re.compile(r"[+-]?\d+")
_SECRET = ("password", "secret", "token", ".pem", "sasl.oauthbearer.config", "jaas")


def check_clients(config: StreamsConfig) -> None:
    """ConfigError naming the user's key, its value and the reason, if a client does not take it;
    logs what has no effect.

    Asks no broker; ``main.consumer.`` (the Java client's) is not checked.
    """
    for kind in _LAYERS:
        idle = []
        for key, (own, value) in _set_by_user(config, kind).items():
            reason = _refusal(kind, key, value)
            if reason is not None:
                shown = "(not shown)" if any(word in key for word in _SECRET) else repr(value)
                raise ConfigError(f"{own} = {shown} is refused: {reason}.")
            if key in _WITHOUT_EFFECT:
                idle.append(own)
        if idle:
            log.info(
                "Without effect on everflow's own %s client: %s.", kind, ", ".join(sorted(idle))
            )
    writer_settings({"bootstrap.servers": "", **config.producer()})
    for settings in (config.main_consumer(), config.consumer(), config.admin()):
        connection_settings({"bootstrap.servers": "", **settings})


def _set_by_user(config: StreamsConfig, kind: ClientKind) -> dict[str, tuple[str, Any]]:
    """The user's settings of this client: the client's key -> the key as the user writes it, and
    the value."""
    settings = {"producer": config.producer, "consumer": config.consumer, "admin": config.admin}
    used = settings[kind]()
    found: dict[str, tuple[str, Any]] = {}
    for layer in _LAYERS[kind]:
        for key, value in config.clients.get(layer, {}).items():
            if key in used or layer != "shared":
                found.setdefault(key, (key if layer == "shared" else f"{layer}.{key}", value))
    return found


def _refusal(kind: ClientKind, key: str, value: Any) -> str | None:
    if key.startswith(SECURITY):
        return None
    known = _READ[kind] | _WITHOUT_EFFECT
    others = frozenset[str]().union(*_READ.values())
    if key not in known | others:
        alike = difflib.get_close_matches(key, known, 1)
        hint = f"; {alike[0]} is one" if alike else ""
        return f"no such setting of Kafka's {kind} client, whose names are librdkafka's{hint}"
    if _NUMBER.search(key) and not _WHOLE.fullmatch(str(value).strip()):
        return "it must be a whole number"
    return None
