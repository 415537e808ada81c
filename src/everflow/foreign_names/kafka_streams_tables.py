"""Names of Kafka Streams' Java API around grouped tables, cogroups and suppressed results.

By the class here on which they are looked for."""

from __future__ import annotations

from everflow.foreign_names.entries import Names, is_called, not_there

KGROUPED_TABLE: Names = {
    "count": is_called("count", "grouped.count(store='people-per-city')"),
    "reduce": is_called(
        "reduce",
        "grouped.reduce(lambda total, new: total + new, lambda total, old: total - old, "
        "store='totals')",
    ),
    "aggregate": is_called(
        "aggregate", "grouped.aggregate(mean=agg.avg('value.age'), store='ages')"
    ),
}

GLOBAL_KTABLE: Names = {
    "queryableStoreName": is_called("queryable_store_name", "global_table.queryable_store_name"),
    "join": not_there("streams are joined with it: stream.join(global_table, on=...)"),
    "leftJoin": not_there("streams are joined with it: stream.left_join(global_table, on=...)"),
    "toStream": not_there(
        "its changes are nobody's input; read the topic with builder.stream('topic')"
    ),
    "filter": not_there("it keeps its topic as it is; filter what a join gives"),
    "mapValues": not_there("it keeps its topic as it is; map what a join gives"),
}

COGROUPED_KSTREAM: Names = {
    "cogroup": is_called("cogroup", "cogrouped.cogroup(payments.group_by_key(), add_payment)"),
    "aggregate": is_called(
        "aggregate", "cogrouped.aggregate(dict, store='accounts', returns='due double')"
    ),
    "windowedBy": is_called("windowed_by", "cogrouped.windowed_by(TimeWindows.of_size('1 hour'))"),
}

SUPPRESSED: Names = {
    "untilWindowCloses": is_called("until_window_closes", "Suppressed.until_window_closes()"),
    "untilTimeLimit": is_called("until_time_limit", "Suppressed.until_time_limit('1 minute')"),
    "withName": not_there(
        "names are keywords: table.suppress(..., store='held-back', name='final')"
    ),
    "BufferConfig": not_there(
        "it is a class of its own: from everflow import BufferConfig; BufferConfig.unbounded()"
    ),
}

BUFFER_CONFIG: Names = {
    "unbounded": is_called("unbounded", "BufferConfig.unbounded()"),
    "maxRecords": is_called("max_records", "BufferConfig.max_records(1000)"),
    "maxBytes": is_called("max_bytes", "BufferConfig.max_bytes(1_000_000)"),
    "withMaxRecords": is_called(
        "with_max_records", "BufferConfig.max_bytes(1_000_000).with_max_records(1000)"
    ),
    "withMaxBytes": is_called(
        "with_max_bytes", "BufferConfig.max_records(1000).with_max_bytes(1_000_000)"
    ),
    "withNoBound": is_called("with_no_bound", "BufferConfig.max_records(1000).with_no_bound()"),
    "shutDownWhenFull": is_called(
        "shut_down_when_full", "BufferConfig.max_records(1000).shut_down_when_full()"
    ),
    "emitEarlyWhenFull": is_called(
        "emit_early_when_full", "BufferConfig.max_records(1000).emit_early_when_full()"
    ),
    "withLoggingDisabled": not_there(
        "it is the buffer's store that says so: table.suppress(Suppressed.until_time_limit("
        "'1 minute'), store=Materialized('held-back', logging=False))"
    ),
    "withLoggingEnabled": not_there(
        "it is the buffer's store that says so: table.suppress(Suppressed.until_time_limit("
        "'1 minute'), store=Materialized('held-back', topic_config={'segment.bytes': '1000000'}))"
    ),
}

VERSIONED_NAMES: Names = {
    "VersionedKeyValueStore": is_called(
        "VersionedStore",
        "stream.process(Correct, stores=[Stores.versioned('prices', key=serdes.string(), "
        "value=serdes.double(), history='1 hour')])",
    ),
    "VersionedBytesStoreSupplier": is_called(
        "StreamsBuilder", "builder.table('prices', store=Materialized('prices', history='1 hour'))"
    ),
    "VersionedKeyQuery": is_called(
        "KafkaStreams", "streams.store('prices').get_as_of('tea', 1_000)"
    ),
    "MultiVersionedKeyQuery": is_called(
        "KafkaStreams", "streams.store('prices').versions('tea', 1_000, 2_000)"
    ),
}
"""Of the package; tables with a history."""

EMIT_STRATEGY: Names = {
    "onWindowUpdate": is_called("on_window_update", "EmitStrategy.on_window_update()"),
    "onWindowClose": is_called("on_window_close", "EmitStrategy.on_window_close()"),
}

MATERIALIZED: Names = {
    "as": not_there("the store's name comes first: Materialized('counts', retention='1 day')"),
    "withRetention": is_called("retention", "Materialized('counts', retention='1 day')"),
    **dict.fromkeys(
        ["withCachingEnabled", "withCachingDisabled"],
        is_called("caching", "Materialized('counts', caching=False)"),
    ),
    "withLoggingEnabled": not_there(
        "settings of the changelog topic: Materialized('counts', topic_config={'segment.bytes': "
        "'1000000'})"
    ),
    "withLoggingDisabled": is_called("logging", "Materialized('counts', logging=False)"),
    "withValueSerde": not_there("the operator takes it: aggregate(..., value=serdes.long())"),
    "withKeySerde": not_there(
        "the stream has it: group_by(F.col('value.item'), name='by-item', "
        "key_serde=serdes.string())"
    ),
    "withStoreType": is_called("in_memory", "Materialized('counts', in_memory=True)"),
}
