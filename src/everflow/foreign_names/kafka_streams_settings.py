"""The settings of Kafka Streams that are none here."""

from __future__ import annotations

from everflow.foreign_names.entries import Names, not_there

_SERDE_SETTINGS = not_there(
    "there are no default serdes: each source and sink names its own, builder.stream('orders', "
    "key=serdes.string(), "
    "value=serdes.long()); what an operator makes is written by the serde of its type"
)
_CLIENTS = not_there(
    "it is a client's, and takes that client's prefix, as in consumer.receive.buffer.bytes"
)
_METRICS = not_there(
    "metrics have no settings: streams.metrics() has them all, by the names in everflow.metrics"
)
_HANDLERS = not_there(
    "it is the old name of the handler without default.: deserialization.exception.handler"
)
_STORES = not_there("stores are LMDB and cannot be exchanged; there is nothing to tune")

STREAMS_CONFIG: Names = {
    **dict.fromkeys(
        [
            "default.key.serde",
            "default.value.serde",
            "default.list.key.serde.inner",
            "default.list.key.serde.type",
            "default.list.value.serde.inner",
            "default.list.value.serde.type",
        ],
        _SERDE_SETTINGS,
    ),
    **dict.fromkeys(
        [
            "window.size.ms",
            "windowed.inner.class.serde",
            "default.windowed.key.serde.inner",
            "default.windowed.value.serde.inner",
        ],
        not_there(
            "a windowed serde is told both: serdes.time_windowed(serdes.string(), "
            "size_ms=3_600_000)"
        ),
    ),
    "default.deserialization.exception.handler": _HANDLERS,
    "default.production.exception.handler": not_there(
        "it is the old name of production.exception.handler"
    ),
    "processing.exception.handler.global.enabled": not_there(
        "a global table runs no code of yours; what cannot be read of its topic goes to "
        "errors.dead.letter.queue.topic.name, or stops the instance"
    ),
    "buffered.records.per.partition": not_there(
        "records are not buffered one by one: what a micro-batch reads is bounded by "
        "max.batch.records, max.batch.bytes and "
        "max.batch.ms"
    ),
    "cache.max.bytes.buffering": not_there("it is the old name of statestore.cache.max.bytes"),
    "poll.ms": not_there("how often an idle instance looks for records is poll.interval.ms"),
    "max.poll.records": not_there("what a micro-batch reads is bounded by max.batch.records"),
    **dict.fromkeys(
        ["rocksdb.config.setter", "default.dsl.store", "dsl.store.suppliers.class"], _STORES
    ),
    "allow.os.group.write.access": not_there(
        "the state folder is written by the user alone who runs the instance"
    ),
    "default.client.supplier": not_there(
        "clients cannot be exchanged; settings of theirs take a prefix, as in producer.linger.ms"
    ),
    "processor.wrapper.class": not_there("processors are not wrapped"),
    "partition.grouper": not_there(
        "partitions of equal number make a task; who gets it is task.assignor.class"
    ),
    "upgrade.from": not_there(
        "members agree on the older form of their data by themselves: roll a new version out "
        "without it"
    ),
    "retries": not_there("what may pass is tried again for task.timeout.ms"),
    "state.cleanup.dir.max.age.ms": not_there(
        "the state of tasks that are elsewhere goes after state.cleanup.delay.ms"
    ),
    **dict.fromkeys(
        ["enable.transactional.statestores", "statestore.uncommitted.max.bytes"],
        not_there(
            "stores are always transactional: a micro-batch is written into them when it has been "
            "committed in Kafka, and a crash wipes none"
        ),
    ),
    "default.interactive.query.isolation.level": not_there(
        "queries read what has been committed; there is nothing else to read"
    ),
    "dsl.store.format": not_there(
        "stores keep keys, values and times, in the bytes of the plain format; headers are those "
        "of the record that made a result, and are not stored"
    ),
    "topology.description.push.enabled": not_there(
        "what runs is shown by the instance: /status and the page of http.listen"
    ),
    "metadata.cluster.check.enable": not_there(
        "another cluster is found by its id, which each store on disk knows"
    ),
    "log.summary.interval.ms": not_there(
        "there is no summary in the log: streams.metrics() and the progress line of everflow run"
    ),
    **dict.fromkeys(
        [
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
            "built.in.metrics.version",
            "auto.include.jmx.reporter",
            "enable.metrics.push",
        ],
        _METRICS,
    ),
    "config.providers": not_there(
        "settings are Python values: read secrets with Python, password=os.environ['PASSWORD']"
    ),
    **dict.fromkeys(
        [
            "connections.max.idle.ms",
            "metadata.max.age.ms",
            "metadata.recovery.strategy",
            "metadata.recovery.rebootstrap.trigger.ms",
            "receive.buffer.bytes",
            "send.buffer.bytes",
            "reconnect.backoff.ms",
            "reconnect.backoff.max.ms",
        ],
        _CLIENTS,
    ),
}
"""Settings of Kafka Streams 4.4 that are none here, and those of older releases that programs
still carry."""
