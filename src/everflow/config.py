"""`StreamsConfig` holds every setting, checked and frozen; folders get small records of it.

Names and defaults are Kafka Streams' where it has the key (D11); keys of our own are marked. Keys
may be written dotted (``{"commit.interval.ms": 100}``) or in snake_case
(``commit_interval_ms=100``); a key with a client prefix goes to that client as it is.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from everflow.errors import ConfigError
from everflow.foreign_names import entry_of
from everflow.foreign_names.java_security import in_librdkafkas_names
from everflow.handlers import DESERIALIZATION, PROCESSING, PRODUCTION, Handlers, handler_setting
from everflow.memory import MemoryBudget, least_budget, machine_memory, usual_budget
from everflow.setting_checks import (
    INT64,
    Between,
    Check,
    OneOf,
    Replicas,
    broker_addresses,
    host_and_port,
    host_names,
    http_url,
    int32,
    kafka_name,
    listening,
    offset_reset,
    path,
    printable,
    time_ms,
    timestamp_extractor,
)

AT_LEAST_ONCE = "at_least_once"
EXACTLY_ONCE_V2 = "exactly_once_v2"

CLIENT_PREFIXES = (
    "main.consumer.",
    "restore.consumer.",
    "consumer.",
    "producer.",
    "admin.",
    "topic.",
)
SHARED_PREFIXES = ("security.", "sasl.", "ssl.", "https.", "enable.ssl.")
TAG_PREFIX = "client.tag."

# Client settings that are everflow's own business: exactly-once and the membership stand on them.
FIXED_BY_EVERFLOW = frozenset(
    {
        "enable.auto.commit",
        "isolation.level",
        "transactional.id",
        "group.id",
        "enable.idempotence",
        "partition.assignment.strategy",
        "allow.auto.create.topics",
    }
)

# What to set instead, where it is not `processing.guarantee`.
_SET_INSTEAD = {
    "group.id": "application.id",
    "enable.auto.commit": "max.batch.ms",  # every micro-batch commits
    "partition.assignment.strategy": "task.assignor.class",
}

# With a consumer's prefix these would reach our readers only, which are in no group.
_MEMBERS_OWN = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "group.instance.id",
    "client.rack",
)

# Kafka Streams' keys that are read, and have no effect yet; and what holds instead.
WITHOUT_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "request_timeout_ms": "set it with a client's prefix, as in producer.request.timeout.ms",
        "retry_backoff_ms": "set it with a client's prefix, as in producer.retry.backoff.ms",
        "statestore_cache_max_bytes": (
            "aggregations emit one update per key and micro-batch unless emit.every.update is set"
        ),
        "ensure_explicit_internal_resource_naming": "names are always required",
    }
)

_REMOVED: Mapping[str, str] = MappingProxyType(
    {
        "spark.job.per.batch": (
            "stream threads run micro-batches in long-running Spark tasks, and in no other way"
        ),
    }
)
"""Keys of earlier releases, and what holds now."""

# Kafka Streams' bounds (KIP-708): tags travel with every join.
MAX_TAGS = 5
MAX_TAG_KEY = 20
MAX_TAG_VALUE = 30

# Readers must see an offset that is gone; `auto.offset.reset` would skip records in silence.
READERS_OWN = frozenset({"auto.offset.reset", "enable.partition.eof"})

_OWN_TIMES = ("FailOnInvalidTimestamp", "LogAndSkipOnInvalidTimestamp")
"""Extractors that change no record's time."""


def _key(default: Any, check: Check | None = None) -> Any:
    return field(default=default, metadata={"check": check})


def default_state_dir() -> str:
    """``$XDG_STATE_HOME/everflow`` or ``~/.local/state/everflow``: a folder that survives reboots,
    never a temp folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(base) / "everflow")


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of one micro-batch (D1): records, raw bytes, the time it should take, and the longest
    rest of its thread behind it (ms)."""

    max_records: int
    max_bytes: int
    target_ms: int
    most_rest_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class AssignmentRules:
    """What the assignor goes by (note 005): lags in records, times in ms.

    ``rack_strategy`` is ``none``, ``min_traffic`` or ``balance_subtopology`` (KIP-925); a cost of
    None is the assignor's default. ``rack_tags`` are the tag keys over which standbys are spread
    (KIP-708).
    """

    acceptable_lag: int = 10_000
    max_warmups: int = 2
    num_standbys: int = 0
    rack_tags: tuple[str, ...] = ()
    rack_strategy: str = "none"
    traffic_cost: int | None = None
    non_overlap_cost: int | None = None
    probing_interval_ms: int = 600_000


@dataclass(frozen=True, init=False)
class StreamsConfig:
    """All settings of an application. Raises ConfigError for an unknown key (and names a similar
    valid one, if any) or a wrong value.

    The keys are keywords, or a mapping, or both: ``StreamsConfig({"application.id": "delays"},
    num_stream_threads=2)``. Durations are in ms, sizes in bytes. Our own keys stand last, below the
    marker.
    """

    application_id: str = _key("", kafka_name(200, " (it names topics)"))
    bootstrap_servers: str = _key("", broker_addresses)
    processing_guarantee: str = _key(AT_LEAST_ONCE, OneOf((AT_LEAST_ONCE, EXACTLY_ONCE_V2)))
    num_stream_threads: int = _key(0, int32(1))  # left out: one per core (ours; Kafka Streams: 1)
    state_dir: str = _key("", path)
    application_server: str = _key("", host_and_port)
    client_id: str = _key("", printable)
    client_rack: str = _key("", printable)
    group_instance_id: str | None = _key(None, kafka_name(249))
    group_protocol: str = _key("classic", OneOf(("classic",)))
    commit_interval_ms: int = _key(100, time_ms(0))
    create_new_topics: bool = _key(False)
    replication_factor: int = _key(-1, Replicas(-1, 2**15 - 1))
    task_timeout_ms: int = _key(300_000, time_ms(0))
    max_poll_interval_ms: int = _key(300_000, int32(1_000))
    session_timeout_ms: int = _key(45_000, int32(1_000))
    heartbeat_interval_ms: int = _key(500, int32(50))
    request_timeout_ms: int = _key(40_000, int32(1_000))
    retry_backoff_ms: int = _key(100, time_ms(1))
    transaction_timeout_ms: int = _key(10_000, int32(1_000))
    auto_offset_reset: str = _key("earliest", offset_reset)
    max_task_idle_ms: int = _key(0, time_ms(-1))
    default_timestamp_extractor: str = _key("FailOnInvalidTimestamp", timestamp_extractor)
    acceptable_recovery_lag: int = _key(10_000, Between(0, INT64))
    max_warmup_replicas: int = _key(2, int32(1))
    num_standby_replicas: int = _key(0, int32(0))
    probing_rebalance_interval_ms: int = _key(600_000, time_ms(60_000))
    scheduled_rebalance_max_delay_ms: int = _key(0, time_ms(0))  # Connect's (KIP-415), off
    rack_aware_assignment_tags: str = _key("")
    task_assignor_class: str = _key("")  # module:Class of an own assignor (KIP-924)
    rack_aware_assignment_strategy: str = _key(
        "none", OneOf(("none", "min_traffic", "balance_subtopology"))
    )
    rack_aware_assignment_traffic_cost: int | None = _key(None, int32(0))
    rack_aware_assignment_non_overlap_cost: int | None = _key(None, int32(0))
    deserialization_exception_handler: str = _key("dead-letter", handler_setting)
    processing_exception_handler: str = _key("dead-letter", handler_setting)
    production_exception_handler: str = _key("dead-letter", handler_setting)
    errors_dead_letter_queue_topic_name: str | None = _key(None, kafka_name(249))
    statestore_cache_max_bytes: int = _key(10 << 20, Between(0, INT64))
    state_cleanup_delay_ms: int = _key(600_000, time_ms(0))
    repartition_purge_interval_ms: int = _key(30_000, time_ms(100))
    # Nobody waits for it.
    windowstore_changelog_additional_retention_ms: int = _key(86_400_000, Between(0, 2**62))
    topology_optimization: str = _key(
        "none",
        OneOf(
            ("none", "reuse.ktable.source.topics"),
            "; Kafka Streams' merge.repartition.topics and single.store.self.join, and all, which "
            "has them, are not there; they change no result",
        ),
    )
    ensure_explicit_internal_resource_naming: bool = _key(True)
    # --- keys of our own -------------------------------------------------------------------------
    stream_time: str = _key("highest", OneOf(("highest", "lowest")))
    stream_time_idle_ms: int = _key(30_000, time_ms(0))
    max_event_time_lead: int = _key(3_600_000, time_ms(1))
    max_event_time_ahead: int = _key(0, time_ms(0))
    max_batch_records: int = _key(500_000, Between(1, INT64))
    max_batch_bytes: int = _key(256 << 20, Between(1_024, INT64))
    max_batch_ms: int = _key(3_000, time_ms(10))
    max_memory_bytes: int = _key(0, Between(1, INT64))  # left out: by threads and machine
    poll_interval_ms: int = _key(15, time_ms(1))  # how often ends of topics are asked for when idle
    keep_alive_ms: int = _key(30_000, time_ms(1_000))
    rebalance_timeout_ms: int = _key(30_000, int32(1_000))
    drain_timeout_ms: int = _key(60_000, time_ms(0))
    emit_every_update: bool = _key(False)
    state_sync: str = _key("none", OneOf(("none", "commit")))
    state_memory_dir: str = _key("/dev/shm", path)
    http_listen: str = _key("", listening)
    query_listen: str = _key("", listening)
    http_allowed_hosts: str = _key("", host_names)
    query_token_file: str = _key("")
    query_ssl_certificate_location: str = _key("")
    query_ssl_key_location: str = _key("")
    query_ssl_ca_location: str = _key("")
    otel_exporter_otlp_metrics_endpoint: str = _key("", http_url)
    otel_metric_export_interval: int = _key(60_000, time_ms(1_000))
    scale_target_percent: int = _key(70, Between(1, 100))
    scale_drain_ms: int = _key(120_000, time_ms(1_000))
    scale_up_delay_ms: int = _key(15_000, time_ms(0))
    scale_down_delay_ms: int = _key(180_000, time_ms(0))
    # Not in the representation: passwords are in it.
    clients: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, metadata={"key": False}, repr=False
    )
    fields_set: frozenset[str] = field(
        default=frozenset(), metadata={"key": False}, compare=False, repr=False
    )
    """Names of the fields that were set, rather than left at their default."""

    def __init__(
        self, settings: Mapping[str, object] | StreamsConfig | None = None, /, **keys: Any
    ) -> None:
        fields = {f.name: f for f in dataclasses.fields(self) if f.metadata.get("key", True)}
        clients: dict[str, dict[str, Any]] = {}
        values: dict[str, Any] = {}
        for written, raw in (*_mapped(settings).items(), *keys.items()):
            name = written.replace(".", "_").replace("-", "_")
            if name in fields:
                if name in values:
                    raise ConfigError(f"{dotted_name(name)} is given twice.")
                values[name] = raw
                continue
            client, key = _client_key(written)
            if client is None:
                raise ConfigError(_unknown(written, [*fields]))
            clients.setdefault(client, {})[key] = raw
        typed = {name: _typed(name, raw, str(fields[name].type)) for name, raw in values.items()}
        found: dict[str, Any] = {name: spec.default for name, spec in fields.items()}
        found |= {"num_stream_threads": os.cpu_count() or 1} | typed
        if "state_dir" not in values:
            found["state_dir"] = default_state_dir()
        if "max_memory_bytes" not in values:
            threads = max(1, found["num_stream_threads"])
            found["max_memory_bytes"] = usual_budget(threads, machine_memory())
        frozen = {client: MappingProxyType(settings) for client, settings in clients.items()}
        found |= {"clients": MappingProxyType(frozen), "fields_set": frozenset(values)}
        vars(self).update(found)
        for name, spec in fields.items():
            self._check(name, spec.metadata["check"])
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat.interval.ms ({self.heartbeat_interval_ms}) must be at most a third of "
                f"session.timeout.ms "
                f"({self.session_timeout_ms}): one lost heartbeat must not end the membership."
            )
        least = least_budget(self.num_stream_threads)
        if self.max_memory_bytes < least:
            raise ConfigError(
                f"max.memory.bytes ({self.max_memory_bytes:,}) is too little for "
                f"num.stream.threads = {self.num_stream_threads}: Spark, this process and the "
                f"threads' workers take {least:,} at least. Set more, or fewer threads."
            )
        _check_tags(self.assignment().rack_tags, self.tags())

    def _check(self, name: str, check: Check | None) -> None:
        value = getattr(self, name)
        problem = None if check is None or value is None else check(value)
        if problem is None:
            return
        if value == "" and name in ("application_id", "bootstrap_servers"):
            raise ConfigError(
                f"{dotted_name(name)} is missing: pass {name}=... (it has no default)."
            )
        left_out = " Left out, it is one per core." if name == "num_stream_threads" else ""
        raise ConfigError(f"{dotted_name(name)} = {value!r} {problem}.{left_out}")

    def warnings(self) -> list[str]:
        """One sentence for each setting that was given and has no effect."""
        return [
            f"{dotted_name(name)} = {getattr(self, name)!r} has no effect yet: {instead}."
            for name, instead in WITHOUT_EFFECT.items()
            if name in self.fields_set
        ]

    @property
    def exactly_once(self) -> bool:
        """True if ``processing.guarantee`` is ``exactly_once_v2``."""
        return self.processing_guarantee == EXACTLY_ONCE_V2

    def producer(self) -> dict[str, Any]:
        """Settings of the sink's producer; an orphaned transaction blocks for seconds only (D6)."""
        settings = self._client("producer")
        if self.exactly_once:
            settings["transaction.timeout.ms"] = self.transaction_timeout_ms
        return settings

    @property
    def optimization(self) -> str:
        """``topology.optimization``, or ``none`` unless ``auto.offset.reset`` is ``earliest`` and
        ``default.timestamp.extractor`` leaves record times as they are."""
        extractor = self.default_timestamp_extractor.rpartition(".")[2]
        kept = self.auto_offset_reset == "earliest" and extractor in _OWN_TIMES
        return self.topology_optimization if kept else "none"

    def consumer(self) -> dict[str, Any]:
        """librdkafka settings of readers of changelogs (restoration, recovery)."""
        return self._reader("restore.consumer")

    def main_consumer(self) -> dict[str, Any]:
        """librdkafka settings of readers of inputs."""
        return self._reader("main.consumer")

    def _reader(self, kind: str) -> dict[str, Any]:
        settings = self._client("consumer", kind)
        return {key: value for key, value in settings.items() if key not in READERS_OWN}

    def admin(self) -> dict[str, Any]:
        return self._client("admin")

    def _client(self, *layers: str) -> dict[str, Any]:
        """Later layers win. ConfigError for security that cannot be."""
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers}
        for layer in ("shared", *layers):
            settings.update(self.clients.get(layer, {}))
        return in_librdkafkas_names(settings)

    def handlers(self) -> Handlers:
        """The exception handlers for failed records. Raises ConfigError if a handler cannot be
        loaded."""
        settings = {
            DESERIALIZATION: self.deserialization_exception_handler,
            PROCESSING: self.processing_exception_handler,
            PRODUCTION: self.production_exception_handler,
        }
        return Handlers.of(self.errors_dead_letter_queue_topic_name, settings)

    def topic(self) -> dict[str, str]:
        """Overrides for internal topics (``topic.`` prefix)."""
        return {key: str(value) for key, value in self.clients.get("topic", {}).items()}

    def batches(self) -> BatchLimits:
        """Bounds of a micro-batch. Under exactly-once well below the transaction's time-out."""
        target = self.max_batch_ms
        if self.exactly_once:
            target = min(target, self.transaction_timeout_ms // 2)
        return BatchLimits(
            self.max_batch_records, self.max_batch_bytes, target, self.commit_interval_ms
        )

    @property
    def memory(self) -> MemoryBudget:
        """Memory limits of the instance's processes."""
        return MemoryBudget(self.max_memory_bytes)

    def assignment(self) -> AssignmentRules:
        """What the assignor goes by."""
        tags = (part.strip() for part in self.rack_aware_assignment_tags.split(","))
        return AssignmentRules(
            acceptable_lag=self.acceptable_recovery_lag,
            max_warmups=self.max_warmup_replicas,
            num_standbys=self.num_standby_replicas,
            rack_tags=tuple(tag for tag in tags if tag),
            rack_strategy=self.rack_aware_assignment_strategy,
            traffic_cost=self.rack_aware_assignment_traffic_cost,
            non_overlap_cost=self.rack_aware_assignment_non_overlap_cost,
            probing_interval_ms=self.probing_rebalance_interval_ms,
        )

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The host names in ``http.allowed.hosts``, without spaces; ``*`` allows all."""
        return tuple(name.strip() for name in self.http_allowed_hosts.split(",") if name.strip())

    def tags(self) -> Mapping[str, str]:
        """The tags of this instance (``client.tag.zone=...``, KIP-708), by tag key."""
        return MappingProxyType(
            {key: str(value) for key, value in self.clients.get("client.tag", {}).items()}
        )


def asked_at(config: StreamsConfig, address: str) -> StreamsConfig:
    found = copy.copy(config)
    vars(found)["application_server"] = address
    return found


def _mapped(settings: object) -> Mapping[str, object]:
    """The mapping of keys that was passed by place; ConfigError for anything else."""
    if settings is None:
        return {}
    if isinstance(settings, StreamsConfig):
        raise ConfigError(
            "Settings are a StreamsConfig or keywords, not both: give all of them to "
            "StreamsConfig(...)."
        )
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise ConfigError(
            "Settings are keywords, a StreamsConfig or a mapping of names, as in "
            f"{{'application.id': 'orders'}}, found {settings!r:.100} ({type(settings).__name__})."
        )
    return settings


def dotted_name(name: str) -> str:
    """A field's name as Kafka Streams writes the key."""
    for cost in ("traffic_cost", "non_overlap_cost"):  # the two keys with an underscore
        if name.endswith(cost):
            return f"{name.removesuffix(cost).replace('_', '.')}{cost}"
    return name.replace("_", ".")


def _check_tags(used: Sequence[str], tags: Mapping[str, str]) -> None:
    """ConfigError as in Kafka Streams: replicas are spread over tags that this instance has."""
    for key in used:
        if key not in tags:
            raise ConfigError(
                f"rack.aware.assignment.tags names {key!r}, which this instance lacks: set "
                f"{TAG_PREFIX}{key}, on every instance."
            )
    found = [(f"{len(tags)} tags are set", len(tags), MAX_TAGS)]
    for key, value in tags.items():
        found.append(
            (f"{TAG_PREFIX}{key}: the key has {len(key)} characters", len(key), MAX_TAG_KEY)
        )
        said = f"{TAG_PREFIX}{key} = {value!r} has {len(value)} characters"
        found.append((said, len(value), MAX_TAG_VALUE))
    for said, count, most in found:
        if count > most:
            raise ConfigError(f"{said}; at most {most} are allowed.")


def _client_key(written: str) -> tuple[str | None, str]:
    """``consumer``, ``fetch.min.bytes`` of ``consumer_fetch_min_bytes``; else (None, "")."""
    dotted = written if "." in written else dotted_name(written)
    for prefix in CLIENT_PREFIXES:
        if dotted.startswith(prefix) and dotted != prefix:
            key = dotted.removeprefix(prefix)
            if prefix != "topic." and key in FIXED_BY_EVERFLOW:
                raise ConfigError(_fixed(dotted, key))
            if prefix in ("consumer.", "main.consumer.") and key in _MEMBERS_OWN:
                raise ConfigError(
                    f"{dotted} would never reach the group's member. Set {key} instead."
                )
            return prefix[:-1], key
    if dotted.startswith(SHARED_PREFIXES):
        return "shared", dotted
    if dotted.startswith(TAG_PREFIX) and dotted != TAG_PREFIX:
        return "client.tag", dotted.removeprefix(TAG_PREFIX)
    return None, ""


def _fixed(dotted: str, key: str) -> str:
    if key == "allow.auto.create.topics":
        return (
            f"{dotted} cannot be set: topics that are read must be there; internal topics are "
            f"created at the start."
        )
    instead = _SET_INSTEAD.get(key, "processing.guarantee")
    return (
        f"{dotted} cannot be set: everflow's guarantees stand on its value, which follows "
        f"{instead}. Set {instead} instead."
    )


def _unknown(written: str, known: list[str]) -> str:
    dotted = dotted_name(written)
    if dotted in FIXED_BY_EVERFLOW:
        return _fixed(dotted, dotted)
    if dotted in _REMOVED:
        return f"{dotted} was removed: {_REMOVED[dotted]}. Delete the setting."
    theirs = entry_of("StreamsConfig", dotted)
    if theirs is not None:
        return f"{dotted} is no setting here: {theirs}."
    near = difflib.get_close_matches(
        dotted,
        [dotted_name(name) for name in known],
        n=1,
        cutoff=0.5,
    )
    hint = (
        f"did you mean {near[0]} ({near[0].replace('.', '_')}=...)?"
        if near
        else "no known key is near."
    )
    prefixes = "Client settings take a prefix: consumer., producer., admin., topic."
    return f"Unknown configuration key {written!r}: {hint} {prefixes}"


def _typed(name: str, raw: Any, annotation: str) -> Any:
    """``raw`` as the field's type; text is parsed. ConfigError names the right type."""
    base, _, optional = annotation.partition(" | ")
    if raw is None and optional == "None":
        return None
    if base == "bool":
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
    elif base == "int":
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]{1,30}", raw.strip()):
            return int(raw)
    elif base == "str":
        if name == "bootstrap_servers" and isinstance(raw, (str, list, tuple)):
            return ",".join(
                str(server).strip() for server in (raw.split(",") if isinstance(raw, str) else raw)
            )
        if isinstance(raw, type) and name.endswith(("_class", "_extractor", "_handler")):
            return f"{raw.__module__}:{raw.__qualname__}"
        if name.endswith("_handler") and (callable(raw) or isinstance(raw, Mapping)):
            return raw
        if isinstance(raw, (str, os.PathLike)):
            return os.fspath(raw)
    wanted = {"bool": "true or false", "int": "a whole number", "str": "text"}[base]
    raise ConfigError(f"{dotted_name(name)} must be {wanted}, not {raw!r} ({type(raw).__name__}).")
