"""Says what each setting means, for people: docs/guide/configuration.md is made of this.

Markdown. Defaults, types and bounds stand in `everflow.config` and are taken from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SAME = "the same"
OURS = "no such key"


@dataclass(frozen=True)
class KeyText:
    """``meaning``: what it does here, now. ``kafka_streams``: what differs there; `SAME`, or `OURS`
    for a key of our own."""

    meaning: str
    kafka_streams: str = SAME


@dataclass(frozen=True)
class Group:
    """Keys that belong together, in the order of the page."""

    title: str
    keys: Mapping[str, KeyText]


def _group(title: str, **keys: KeyText) -> Group:
    return Group(title, MappingProxyType(keys))


_APPLICATION = _group(
    "The application",
    application_id=KeyText(
        "Names the application: its consumer group, its internal topics "
        "(`<application.id>-<store>-changelog`, `<application.id>-<name>-repartition`), its folder "
        "under "
        "`state.dir`. Equal on all instances; another one starts from nothing",
    ),
    bootstrap_servers=KeyText(
        "`host:port` of one or more brokers, separated by commas (or a list, from Python)",
    ),
    processing_guarantee=KeyText(
        "`exactly_once_v2`: outputs, changelogs and input offsets of a micro-batch are one Kafka "
        "transaction. "
        "`at_least_once`: offsets follow the outputs; what lay between is written again after a "
        "crash. Give "
        "all instances the same",
    ),
    num_stream_threads=KeyText(
        "Threads of this instance; each has its own tasks, micro-batches and transaction. Left "
        "out: one per "
        "core of the machine",
        "default 1",
    ),
    state_dir=KeyText(
        "Folder of the stores, with one folder per `application.id` inside. Left out: "
        "`$XDG_STATE_HOME/everflow` or `~/.local/state/everflow`. It should survive restarts; what "
        "is lost is "
        "restored from the changelogs. Two instances on one host need two",
        "default in the temporary folder, which a reboot empties",
    ),
    client_id=KeyText(
        "Begins the client id of the group's member. Left out: `application.id`; a process id is "
        "always "
        "appended",
    ),
)

_READING = _group(
    "Reading and micro-batches",
    auto_offset_reset=KeyText(
        "Where an input begins that has no committed offset, or whose committed offset is no "
        "longer in the "
        "log: `earliest`, `latest`, or `by_duration:PT12H`, at the first record of the last twelve "
        "hours. `none`: the instance stops instead. `offset_reset=` of a `stream` or `table` goes "
        "before it",
        "the consumer's setting",
    ),
    default_timestamp_extractor=KeyText(
        "Where the time of a record comes from, for sources without `timestamp=` of their own: "
        "`FailOnInvalidTimestamp` (the record's in Kafka; a negative one stops the application), "
        "`LogAndSkipOnInvalidTimestamp` (a negative one is dropped and counted), "
        "`UsePartitionTimeOnInvalidTimestamp` (it gets the highest time of its partition so far) "
        "or `WallclockTimestampExtractor`",
        "the name of a class; Java's names with their package are taken too. One of your own goes "
        "to its source",
    ),
    max_batch_records=KeyText("The most records that a micro-batch takes", OURS),
    max_batch_bytes=KeyText(
        "The most bytes of keys and values that a micro-batch reads, but for one record of each "
        "partition; fewer where `max.memory.bytes` has no room for what is made of them",
        OURS,
    ),
    max_memory_bytes=KeyText(
        "What all processes of the instance may take; see "
        "[How much memory an instance takes](#how-much-memory-an-instance-takes). Left out: about "
        "1.4 GiB and 768 MiB for each stream thread, or three quarters of the memory of the "
        "container (or machine) if that is less",
        OURS + "; the JVM's heap",
    ),
    max_batch_ms=KeyText(
        "How long a micro-batch should take: while one takes longer, the next take fewer records, "
        "down to "
        "1,000. Exactly once it is at most half of `transaction.timeout.ms`",
        OURS,
    ),
    poll_interval_ms=KeyText(
        "How often an idle thread asks for new records: part of the latency", OURS
    ),
    keep_alive_ms=KeyText(
        "How often a thread without records runs an empty micro-batch, so that Spark does not end "
        "its Python "
        "workers (after 60 s)",
        OURS,
    ),
    emit_every_update=KeyText(
        "Whether an aggregation writes each intermediate result. Otherwise it writes one per key "
        "(and window) "
        "and micro-batch, the last",
        OURS + "; there `statestore.cache.max.bytes=0` does it",
    ),
    commit_interval_ms=KeyText(
        "The longest time for which a record that could be processed waits, so that others come "
        "and share its micro-batch's commit. A stream thread that is caught up rests a "
        "quarter as long as its last micro-batch took, and so long at the most; 0: not at all",
        "30,000 at least once, 100 exactly once; there it is the time between two commits",
    ),
    max_task_idle_ms=KeyText(
        "How long a task of several inputs waits for one that has nothing to read, so that records "
        "are taken in order of time. 0: only while the log is known to hold more of it; more: so "
        "long for its producers, too; -1: never, whatever has been read is processed. A task that "
        "goes on without an input is counted (`enforced-processing-total`)",
    ),
    statestore_cache_max_bytes=KeyText(
        "Size of the cache that joins updates of a key before they are forwarded",
    ),
)

_STATE = _group(
    "State and internal topics",
    state_sync=KeyText(
        "`commit`: each commit of a store is flushed to the disk. `none`: the operating system "
        "does that when "
        "it likes; after a crash of the whole machine (not of the process) the stores are restored "
        "from their "
        "changelogs",
        OURS,
    ),
    state_memory_dir=KeyText(
        "Folder of the stores with `in_memory=True`, in a file system in memory. It is emptied "
        "when the instance begins and when it ends. In a container it is as large as `--shm-size` "
        "says",
        OURS + "; stores in memory are in the JVM's heap",
    ),
    state_cleanup_delay_ms=KeyText(
        "A copy that has no role here any more is deleted after this time"
    ),
    create_new_topics=KeyText(
        "Whether a start creates internal topics that the program has and its application, which "
        "has run before, never had: what they hold begins empty. Topics that were lost are never "
        "created again",
        OURS + "; there a topic that is missing is always created, also one that was lost",
    ),
    replication_factor=KeyText("Of internal topics; -1: the brokers' default"),
    repartition_purge_interval_ms=KeyText(
        "How often records that were read are deleted from repartition topics",
    ),
    windowstore_changelog_additional_retention_ms=KeyText(
        "Added to the retention of changelogs of windows and sessions (size or gap, plus grace). "
        "The broker "
        "deletes by record time: raise it before you reprocess old records",
    ),
    topology_optimization=KeyText(
        "`reuse.ktable.source.topics`: the topic of a `table(...)`, which has to be compacted, is "
        "its changelog, unless its source has `timestamp=` or does not begin at `earliest`. A "
        "small topic `<application.id>-<store>-left-out-changelog` says which of its records were "
        "skipped. Not to be changed once the application has run",
        "also `merge.repartition.topics`, `single.store.self.join`, and `all`, which has them: "
        "refused here",
    ),
    ensure_explicit_internal_resource_naming=KeyText(
        "Stores and repartition topics always need names from you",
        "default `false`: generated names are allowed",
    ),
)

_ERRORS = _group(
    "Errors and patience",
    task_timeout_ms=KeyText(
        "How long a task may go without progress while brokers, a schema registry or disks do not "
        "do their part; then the instance stops with `EF-TASK-TIMEOUT`, which names the task and "
        "the last failure. Each task has its own time: it begins with a failure and ends with the "
        "first progress; the other tasks go on. What is no task's (the start) is tried again for "
        "as long. 0: a second failure in a row is too late",
    ),
    max_poll_interval_ms=KeyText(
        "A micro-batch that runs for longer is taken for hanging: its worker processes are ended "
        "and it runs "
        "again",
        "the longest time between two polls; a thread that takes longer leaves the group",
    ),
    transaction_timeout_ms=KeyText(
        "Exactly once: the broker ends a transaction that is open for longer. A micro-batch must "
        "fit; it also "
        "bounds how long a crash hides outputs from readers",
        "the producer's setting, with the same default there",
    ),
    errors_dead_letter_queue_topic_name=KeyText(
        "A topic of yours: records that cannot be decoded, processed or written go there, as they "
        "came, with the error in the header `__streams.errors.message`, and the rest goes on. Left "
        "out: such a record stops the application with `EF-RECORD`",
    ),
    deserialization_exception_handler=KeyText(
        "What happens to a record that cannot be decoded: `dead-letter` (to "
        "`errors.dead.letter.queue.topic.name`; where that names none, as `fail`), `continue` "
        "(left out; to that topic if there is one), `fail`, `retry-outages` (a service that does "
        "not answer, or with 401, 429 or 5xx, is asked again under `task.timeout.ms`), a function "
        "of yours, `module:name` of one, or a dict of these by the names of sources and operators",
        "a class; by default a record goes to the topic, and the application stops all the same",
    ),
    processing_exception_handler=KeyText(
        "What happens to a record on which the program fails; as above",
        "a class; by default a record goes to the topic, and the application stops all the same",
    ),
    production_exception_handler=KeyText(
        "What happens to a record of which a result cannot be written: its serde refuses it, or "
        "it is too large; as above",
        "a class; by default the application stops",
    ),
    request_timeout_ms=KeyText("How long a client waits for an answer"),
    retry_backoff_ms=KeyText("How long a client waits before it asks again"),
)

_GROUP = _group(
    "The group",
    group_instance_id=KeyText(
        "Makes the instance a static member (KIP-345): a restart within `session.timeout.ms` moves "
        "nothing. "
        "One per instance",
        "the consumer's setting; a suffix per thread",
    ),
    group_protocol=KeyText(
        "Only the classic protocol, with the leader's assignment",
        "also `streams` (KIP-1071)",
    ),
    session_timeout_ms=KeyText(
        (
            "An instance that is silent for so long is out, and its tasks go to others. The broker "
            "bounds it"
        ),
        "the consumer's setting",
    ),
    heartbeat_interval_ms=KeyText(
        "How often a member tells that it lives, and hears of a rebalance; at most a third of "
        "`session.timeout.ms`",
        "the consumer's setting, 3,000",
    ),
    rebalance_timeout_ms=KeyText(
        (
            "How long a rebalance waits for a member that does not join: longer than your longest "
            "micro-batch"
        ),
        OURS + "; `max.poll.interval.ms` does it",
    ),
    drain_timeout_ms=KeyText(
        "How long an instance that leaves hands its tasks over to copies that are up to date",
        OURS,
    ),
    application_server=KeyText(
        "`host:port` at which queries are answered, by `query.listen` or by a service of your "
        "own; told to all instances"
    ),
)

_ASSIGNMENT = _group(
    "Copies and assignment",
    num_standby_replicas=KeyText(
        "Copies of each task with state that follow on other instances, ready to take over",
    ),
    acceptable_recovery_lag=KeyText("A copy at most so many records behind may take over"),
    max_warmup_replicas=KeyText(
        "Copies that are made in the whole group at a time, before a task moves"
    ),
    probing_rebalance_interval_ms=KeyText(
        "How often the leader looks again while something is left to move; a copy that is ready "
        "asks by "
        "itself, so this is a safety net",
        "the only way to notice that a copy is ready",
    ),
    scheduled_rebalance_max_delay_ms=KeyText(
        (
            "Tasks of a lost instance wait so long for it, where they would have to start without "
            "a "
            "copy"
        ),
        OURS + "; Connect's (KIP-415)",
    ),
    client_rack=KeyText(
        "Where this instance stands; it reads from replicas near by (KIP-392)",
        "the consumer's setting",
    ),
    rack_aware_assignment_tags=KeyText(
        (
            "Keys of `client.tag.` over which the copies of a task are spread (KIP-708), separated "
            "by "
            "commas"
        ),
    ),
    rack_aware_assignment_strategy=KeyText(
        "Tasks go near the replicas of their partitions (KIP-925); needs `client.rack`",
    ),
    rack_aware_assignment_traffic_cost=KeyText(
        "Cost of a partition that is read from another rack; left out: 10",
    ),
    rack_aware_assignment_non_overlap_cost=KeyText("Cost of a task that moves; left out: 1"),
    task_assignor_class=KeyText(
        (
            "`module:Class` (or the class) of [an assignor of your "
            "own](../SCALING.md#an-assignor-of-your-own)"
        ),
        "a Java class",
    ),
)

_WATCHING = _group(
    "Watching it",
    http_listen=KeyText(
        "`host:port` of this machine where the instance serves `/metrics` for Prometheus, the "
        "probes `/live` and `/ready`, and `/status` ([metrics](metrics.md)), and [a page](page.md) "
        "for a browser; port 0: any that is free. Empty: nothing listens",
        OURS + "; JMX",
    ),
    query_listen=KeyText(
        "`host:port` of this machine where the instance answers queries of its stores "
        "([the query service](../QUERIES.md#the-query-service)); port 0: any that is free. "
        "`application.server` is this address unless it is set. Empty: nothing listens",
        OURS,
    ),
    http_allowed_hosts=KeyText(
        "Names by which requests without a token may call the host of `http.listen` and "
        "`query.listen`, separated by commas: of a proxy, a load balancer, a Service. "
        "`localhost`, addresses, the machine's own name and that of `application.server` need not "
        "be named; `*`: any name "
        "([why](security.md#what-may-be-sent-to-an-instance))",
        OURS,
    ),
    query_token_file=KeyText(
        "File with a token, or several, each in a line, of which one has to come with each query, "
        "and with each request for [the page](page.md); `none`: nobody is asked for one. Needed "
        "where `query.listen` is no loopback address",
        OURS,
    ),
    query_ssl_certificate_location=KeyText(
        "File with the query service's certificate and its chain (PEM); with "
        "`query.ssl.key.location` the service speaks https",
        OURS,
    ),
    query_ssl_key_location=KeyText("File with the key of that certificate (PEM)", OURS),
    query_ssl_ca_location=KeyText(
        "File of the authority (PEM) that has signed the other instances' certificates: "
        "[the page](page.md#all-instances) asks them how they do. Empty: the system's",
        OURS,
    ),
    otel_exporter_otlp_metrics_endpoint=KeyText(
        "URL of an OpenTelemetry collector (`http://collector:4318/v1/metrics`) to which the "
        "figures of `/metrics` are sent, too "
        "([OpenTelemetry](metrics.md#opentelemetry)). Empty: to nobody",
        OURS + "; `enable.metrics.push` sends to the brokers",
    ),
    otel_metric_export_interval=KeyText("ms between two such requests", OURS),
    scale_target_percent=KeyText(
        "How busy stream threads should be, in percent of the time: "
        "[`everflow_desired_instances`](metrics.md#how-many-instances) aims at it",
        OURS,
    ),
    scale_drain_ms=KeyText("In which time a backlog should be worked off, by the same", OURS),
    scale_up_delay_ms=KeyText(
        "How long more instances must have been wanted before it says so", OURS
    ),
    scale_down_delay_ms=KeyText("The same of fewer: each move of a task has its price", OURS),
)

GROUPS = (_APPLICATION, _READING, _STATE, _ERRORS, _GROUP, _ASSIGNMENT, _WATCHING)

PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "consumer.": "everything that reads: librdkafka's names",
        "main.consumer.": "what reads inputs, before `consumer.`",
        "restore.consumer.": "what reads changelogs, before `consumer.`",
        "producer.": "the producer of outputs and changelogs: librdkafka's names",
        "admin.": "the admin client: librdkafka's names",
        "topic.": "settings of internal topics when they are created",
        "security.": "every client; with its prefix, as in `security.protocol`",
        "sasl.": "every client; with its prefix, as in `sasl.mechanism`",
        "ssl.": "every client; with its prefix, as in `ssl.ca.location`",
        "enable.ssl.": "every client; with its prefix, as in `enable.ssl.certificate.verification`",
        "https.": "tokens for OAUTHBEARER; with its prefix, as in `https.ca.location`",
        "client.tag.": "a tag of this instance, as in `client.tag.zone=a` (KIP-708); at most 5",
    }
)
"""Beginnings of keys that are passed on; to whom."""
