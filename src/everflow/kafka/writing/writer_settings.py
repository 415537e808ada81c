"""The settings of a `RecordWriter`, which have librdkafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everflow.errors import ConfigError
from everflow.kafka.connection_settings import connection_settings, whole_number
from everflow.kafka.writing.record_encoding import CODECS, check_level

QUEUE = "queue.buffering.max.kbytes"
_ALIASES = {"compression.codec": "compression.type", "request.required.acks": "acks"}
_ALL_REPLICAS = ("all", "-1")
_PARTITIONERS = ("murmur2_random", "murmur2")
_CODEC_DEFAULT_LEVEL = -1


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """Sizes in bytes, times in ms. ``connection``: of `connection_settings`."""

    connection: Mapping[str, Any]
    batch_bytes: int = 1_000_000
    """``batch.size``: a batch has no more, unless it is a single larger record."""
    record_bytes: int = 1_000_000
    """``message.max.bytes``: a larger record is refused here."""
    queue_bytes: int = 131_072 << 10
    """``queue.buffering.max.kbytes``: what may wait for the broker; memory is bounded by
    configuration (I9)."""
    codec: str = "none"
    level: int | None = None
    answer_timeout_ms: int = 30_000
    """``request.timeout.ms``: how long an answer may take."""
    transaction_timeout_ms: int = 10_000
    topic_wait_ms: int = 30_000
    """``topic.metadata.propagation.max.ms``: how long a topic may be unknown."""


def writer_settings(config: Mapping[str, Any]) -> WriterSettings:
    """Of librdkafka's keys; what tunes its own queues and threads is passed over.

    ConfigError: as `connection_settings`; another partitioner than Java's, fewer acks than all, an
    unknown codec.
    """
    canonical = {_ALIASES.get(key, key): value for key, value in config.items()}
    connection = connection_settings(canonical)
    codec = str(canonical.get("compression.type", "none"))
    key = "compression.level"
    level = whole_number(key, canonical.get(key, _CODEC_DEFAULT_LEVEL))
    settings = WriterSettings(
        connection=connection,
        codec=codec,
        level=None if level == _CODEC_DEFAULT_LEVEL else level,
        **{
            name: whole_number(key, canonical[key]) * factor
            for key, (name, factor) in _NUMBERS.items()
            if key in canonical
        },
    )
    acks = str(canonical.get("acks", "all"))
    if acks not in _ALL_REPLICAS:
        raise ConfigError(
            f"acks = {acks} would lose records: everflow's producer writes with acks = all only."
        )
    partitioner = str(canonical.get("partitioner", _PARTITIONERS[0]))
    if partitioner not in _PARTITIONERS:
        raise ConfigError(
            f"partitioner = {partitioner}: everflow writes as Java's producer does "
            f"(murmur2_random), so that equal keys of two topics meet in one task."
        )
    if settings.codec not in CODECS:
        raise ConfigError(f"compression.type = {settings.codec} is none of {', '.join(CODECS)}.")
    refused = check_level(settings.codec, settings.level)
    if refused is not None:
        raise ConfigError(f"compression.level = {settings.level} for {settings.codec}: {refused}.")
    return settings


_NUMBERS = {
    "batch.size": ("batch_bytes", 1),
    "message.max.bytes": ("record_bytes", 1),
    QUEUE: ("queue_bytes", 1 << 10),
    "request.timeout.ms": ("answer_timeout_ms", 1),
    "transaction.timeout.ms": ("transaction_timeout_ms", 1),
    "topic.metadata.propagation.max.ms": ("topic_wait_ms", 1),
}
"""librdkafka's key -> the field, and its unit in the field's."""
WRITER_KEYS = frozenset(_NUMBERS) | {
    *_ALIASES,
    "acks",
    "compression.level",
    "compression.type",
    "enable.idempotence",
    "partitioner",
    "transactional.id",
}
