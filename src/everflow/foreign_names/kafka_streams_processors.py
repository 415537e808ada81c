"""Names of Kafka Streams' Java API around processors: their stores, and what a processor is told.

By the class here on which they are looked for."""

from __future__ import annotations

from everflow.foreign_names.entries import ForeignName, Names, is_called, not_there


def _store(here: str, options: str = "") -> ForeignName:
    made = f"Stores.{here}('seen', key=serdes.string(), value=serdes.long(){options})"
    return is_called(here, made)


STORES: Names = {
    **dict.fromkeys(
        [
            "keyValueStoreBuilder",
            "timestampedKeyValueStoreBuilder",
            "persistentKeyValueStore",
            "persistentTimestampedKeyValueStore",
        ],
        _store("key_value"),
    ),
    "inMemoryKeyValueStore": _store("key_value", ", in_memory=True"),
    "lruMap": not_there(
        "a store does not forget because it is full; let entries end by time: "
        "Stores.key_value(..., ttl='1 day')"
    ),
    **dict.fromkeys(
        [
            "windowStoreBuilder",
            "timestampedWindowStoreBuilder",
            "persistentWindowStore",
            "persistentTimestampedWindowStore",
        ],
        _store("window", ", size='1 minute', retention='1 day'"),
    ),
    "inMemoryWindowStore": _store("window", ", size='1 minute', retention='1 day', in_memory=True"),
    **dict.fromkeys(
        ["sessionStoreBuilder", "persistentSessionStore"],
        _store("session", ", retention='1 day'"),
    ),
    **dict.fromkeys(
        [
            "persistentTimestampedKeyValueStoreWithHeaders",
            "timestampedKeyValueStoreWithHeadersBuilder",
            "persistentTimestampedWindowStoreWithHeaders",
            "timestampedWindowStoreWithHeadersBuilder",
            "persistentSessionStoreWithHeaders",
            "sessionStoreWithHeadersBuilder",
        ],
        not_there(
            "stores keep no headers: put what you need of them into the value, "
            "map_values(order=F.col('value'), trace=F.col('headers')), and take Stores.key_value, "
            "Stores.window or Stores.session"
        ),
    ),
    "inMemorySessionStore": _store("session", ", retention='1 day', in_memory=True"),
    **dict.fromkeys(
        ["versionedKeyValueStoreBuilder", "persistentVersionedKeyValueStore"],
        _store("versioned", ", history='1 hour'"),
    ),
    **dict.fromkeys(
        ["withLoggingEnabled", "withLoggingDisabled"],
        not_there(
            "logging is a keyword: Stores.key_value('seen', key=serdes.string(), "
            "value=serdes.long(), logging=False)"
        ),
    ),
    **dict.fromkeys(
        ["withCachingEnabled", "withCachingDisabled"],
        not_there(
            "there is nothing to choose: a batch's changes are held in memory and written once a "
            "key"
        ),
    ),
}

_OF_RECORD = not_there(
    "it is the record's: process(record) gets its key, value, timestamp and headers"
)
_OF_METADATA = not_there(
    "it is in context.record_metadata, which has topic, partition and offset, and is None in a "
    "method that a clock calls"
)
_CONFIG = not_there(
    "a processor has what its module or a function that makes it gives it: "
    "stream.process(lambda: Enrich(limit=10))"
)

PROCESSOR_CONTEXT: Names = {
    "forward": is_called("forward", "context.forward(record.with_value(3), 'late')"),
    "getStateStore": is_called("store", "context.store('seen').get(record.key)"),
    "commit": is_called("commit", "context.commit()"),
    "taskId": is_called("task_id", "context.task_id.partition"),
    "applicationId": is_called("application_id", "context.application_id"),
    "recordMetadata": is_called("record_metadata", "context.record_metadata.offset"),
    "currentStreamTimeMs": is_called("stream_time", "context.stream_time"),
    "currentSystemTimeMs": is_called("wall_clock_time", "context.wall_clock_time"),
    "schedule": not_there(
        "a clock calls a method that is marked before the program runs, "
        "@punctuate('1 minute', PunctuationType.WALL_CLOCK_TIME): the plan has to know the clocks"
    ),
    **dict.fromkeys(["topic", "partition", "offset"], _OF_METADATA),
    **dict.fromkeys(["headers", "timestamp"], _OF_RECORD),
    **dict.fromkeys(["appConfigs", "appConfigsWithPrefix"], _CONFIG),
    **dict.fromkeys(
        ["keySerde", "valueSerde"],
        not_there(
            "there are no default serdes: each store has its own, Stores.key_value('seen', "
            "key=serdes.string(), value=serdes.long())"
        ),
    ),
    "metrics": not_there("they are the instance's: streams.metrics()"),
    "stateDir": not_there("what lasts is in stores: context.store('seen').put(key, value)"),
}
