"""The names of Kafka Streams' Java API, by the class here on which they are looked for."""

from __future__ import annotations

from everflow.foreign_names.entries import Names, is_called, not_there
from everflow.foreign_names.kafka_streams_tables import VERSIONED_NAMES

_JOINER = not_there(
    "a joiner is a Column over left and right, or a Python function of them: "
    "stream.join(customers, F.concat('left.item', 'right.city')), "
    "stream.join(customers, lambda left, right: left['amount'] * right['rate'], returns='double')"
)
_JOINED = not_there(
    "its parts are arguments: stream.join(other, windows=..., store='a-name', name='a-name')"
)
_PROCESSORS = is_called(
    "process", "stream.process(lambda record, context: context.forward(record))"
)
_VALUE_PROCESSORS = is_called(
    "process_values", "stream.process_values(lambda record, context: context.forward(record))"
)
_PROCESSOR_CLASSES = not_there("a processor is a class with Processor as its base")
_GLOBAL = is_called(
    "global_table",
    "builder.global_table('cities', store='cities', key=serdes.string(), value=serdes.string())",
)
_GLOBAL_CLASS = is_called(
    "GlobalKTable", "stream.join(global_table, on=F.col('value.item')).to('enriched')"
)
_SUPPRESS = is_called(
    "suppress",
    "table.suppress(Suppressed.until_time_limit('1 minute'), store='held-back')",
)
_VERSIONED = is_called("get_versioned_store", "driver.get_versioned_store('prices')")

STREAMS_BUILDER: Names = {
    "stream": is_called(
        "stream",
        "builder.stream('orders', key=serdes.string(), value=serdes.json('amount double'))",
    ),
    "table": is_called(
        "table",
        "builder.table('customers', store='customers', key=serdes.string(), value=serdes.string())",
    ),
    "globalTable": _GLOBAL,
    "addGlobalStore": not_there(
        "a global table keeps its topic as it is: builder.global_table('cities', store='cities')"
    ),
    "addStateStore": is_called(
        "add_state_store",
        "builder.add_state_store(Stores.key_value('seen', key=serdes.string(), "
        "value=serdes.long()))",
    ),
    "build": is_called("build", "builder.build()"),
}

KSTREAM: Names = {
    "filter": is_called("filter", "stream.filter(F.col('value.amount') > 10)"),
    "filterNot": is_called("filter_not", "stream.filter_not(F.col('value.amount') > 10)"),
    "map": is_called("map", "stream.map(key=F.col('value.item'), value=F.col('value.amount'))"),
    "mapValues": is_called("map_values", "stream.map_values(F.col('value.amount') * 2)"),
    "flatMap": is_called(
        "flat_map", "stream.flat_map(lambda key, value: [(key, 1.0)], returns=('string', 'double'))"
    ),
    "flatMapValues": is_called(
        "flat_map_values", "stream.flat_map_values(F.split('value.item', ' '))"
    ),
    "selectKey": is_called("select_key", "stream.select_key(F.col('value.item'))"),
    "foreach": is_called("for_each", "stream.for_each(lambda key, value: print(key, value))"),
    "peek": is_called("peek", "stream.peek(lambda key, value: print(key, value))"),
    "print": is_called("print_table", "stream.print_table()"),
    "merge": is_called("merge", "stream.merge(other)"),
    "split": is_called(
        "split",
        (
            "stream.split().branch(F.col('value.amount') > 10, "
            "name='big').default_branch(name='small')"
        ),
    ),
    "branch": is_called("branch", "stream.branch(big=F.col('value.amount') > 10, default='small')"),
    "defaultBranch": is_called(
        "split",
        (
            "stream.split().branch(F.col('value.amount') > 10, "
            "name='big').default_branch(name='small')"
        ),
    ),
    "through": is_called("repartition", "stream.repartition(name='by-item')"),
    "repartition": is_called("repartition", "stream.repartition(name='by-item')"),
    "to": is_called("to", "stream.to('output')"),
    "toTable": is_called("to_table", "stream.to_table(store='latest')"),
    "toStream": not_there("it is a stream already"),
    "groupBy": is_called("group_by", "stream.group_by(F.col('value.item'), name='by-item')"),
    "groupByKey": is_called("group_by_key", "stream.group_by_key()"),
    "count": is_called("group_by_key", "stream.group_by_key().count(store='orders-per-key')"),
    "reduce": is_called(
        "map_values",
        "stream.map_values(F.col('value.amount')).group_by_key().reduce(lambda total, amount: "
        "total + amount, "
        "store='totals')",
    ),
    "aggregate": is_called(
        "group_by_key",
        "stream.group_by_key().aggregate(total=agg.sum('value.amount'), store='totals')",
    ),
    "windowedBy": is_called(
        "group_by_key",
        "stream.group_by_key().windowed_by(TimeWindows.of_size('1 hour')).count(store='hourly')",
    ),
    "cogroup": is_called("group_by_key", "stream.group_by_key().cogroup(add_order)"),
    "join": is_called(
        "join",
        "stream.join(customers, item=F.col('left.item'), city=F.col('right.city'))",
    ),
    "leftJoin": is_called(
        "left_join",
        "stream.left_join(customers)",
    ),
    "outerJoin": is_called(
        "outer_join",
        "stream.outer_join(other, windows=JoinWindows.of_time_difference('5 minutes'), "
        "store='pairs')",
    ),
    "process": _PROCESSORS,
    "processValues": _VALUE_PROCESSORS,
    "transform": _PROCESSORS,
    "transformValues": _VALUE_PROCESSORS,
    "flatTransform": _PROCESSORS,
    "flatTransformValues": _PROCESSORS,
    "suppress": not_there("a table's updates are held back: table.suppress(...)"),
}

KTABLE: Names = {
    "filter": is_called("filter", "table.filter(F.col('value') > 10)"),
    "filterNot": is_called("filter_not", "table.filter_not(F.col('value') > 10)"),
    "mapValues": is_called("map_values", "table.map_values(F.col('value') * 2)"),
    "toStream": is_called("to_stream", "table.to_stream()"),
    "to": is_called("to_stream", "table.to_stream().to('output')"),
    "through": is_called("to_stream", "table.to_stream().to('output')"),
    "foreach": is_called(
        "to_stream", "table.to_stream().for_each(lambda key, value: print(key, value))"
    ),
    "peek": is_called("to_stream", "table.to_stream().peek(lambda key, value: print(key, value))"),
    "print": is_called("print_table", "table.print_table()"),
    "toTable": not_there("it is a table already"),
    "queryableStoreName": is_called("queryable_store_name", "table.queryable_store_name"),
    "groupBy": is_called("group_by", "table.group_by(F.col('value'), name='by-value')"),
    "join": is_called("join", "table.join(customers, store='both')"),
    "leftJoin": is_called("left_join", "table.left_join(customers)"),
    "outerJoin": is_called("outer_join", "table.outer_join(customers)"),
    "transformValues": is_called(
        "transform_values",
        "table.transform_values(lambda key, value: value * 2, returns='double')",
    ),
    "suppress": _SUPPRESS,
}

KGROUPED_STREAM: Names = {
    "count": is_called("count", "grouped.count(store='orders-per-key')"),
    "reduce": is_called("reduce", "grouped.reduce(lambda older, newer: newer, store='latest')"),
    "aggregate": is_called(
        "aggregate", "grouped.aggregate(total=agg.sum('value.amount'), store='totals')"
    ),
    "windowedBy": is_called(
        "windowed_by", "grouped.windowed_by(TimeWindows.of_size('1 hour').grace('5 minutes'))"
    ),
    "cogroup": is_called("cogroup", "grouped.cogroup(add_order)"),
    "to": not_there(
        "a group is not a stream yet: "
        "grouped.count(store='orders-per-key').to_stream().to('output')"
    ),
    "toStream": not_there(
        "a group is not a table yet: grouped.count(store='orders-per-key').to_stream()"
    ),
}

WINDOWED_KSTREAM: Names = {
    "count": is_called("count", "windowed.count(store='hourly')"),
    "reduce": is_called("reduce", "windowed.reduce(lambda older, newer: newer, store='latest')"),
    "aggregate": is_called(
        "aggregate", "windowed.aggregate(total=agg.sum('value.amount'), store='totals')"
    ),
    "emitStrategy": is_called(
        "emit_strategy", "windowed.emit_strategy(EmitStrategy.on_window_close())"
    ),
    "suppress": not_there(
        "a table's updates are held back: windowed.count(store='hourly').suppress("
        "Suppressed.until_window_closes(), store='held-back')"
    ),
    "cogroup": not_there("streams are cogrouped before they are cut into windows"),
    "to": not_there(
        "groups in windows are not a stream yet: "
        "windowed.count(store='hourly').to_stream().to('output')"
    ),
    "toStream": not_there(
        "groups in windows are not a table yet: windowed.count(store='hourly').to_stream()"
    ),
}

BRANCHED_KSTREAM: Names = {
    "branch": is_called("branch", "split.branch(F.col('value.amount') > 10, name='big')"),
    "defaultBranch": is_called("default_branch", "split.default_branch(name='small')"),
    "noDefaultBranch": is_called(
        "no_default_branch", "split.branch(F.lit(True), name='all').no_default_branch()"
    ),
}

JOIN_WINDOWS: Names = {
    "of": is_called("of_time_difference", "JoinWindows.of_time_difference('5 minutes')"),
    "ofTimeDifferenceWithNoGrace": is_called(
        "of_time_difference_with_no_grace",
        "JoinWindows.of_time_difference_with_no_grace('5 minutes')",
    ),
    "ofTimeDifferenceAndGrace": is_called(
        "of_time_difference_and_grace",
        "JoinWindows.of_time_difference_and_grace('5 minutes', '1 minute')",
    ),
    "before": is_called("before", "JoinWindows.of_time_difference('5 minutes').before(0)"),
    "after": is_called("after", "JoinWindows.of_time_difference('5 minutes').after(0)"),
    "grace": is_called("grace", "JoinWindows.of_time_difference('5 minutes').grace('1 minute')"),
    "size": is_called("size_ms", "JoinWindows.of_time_difference('5 minutes').size_ms"),
}

TIME_WINDOWS: Names = {
    "of": is_called("of_size", "TimeWindows.of_size('1 hour')"),
    "ofSizeWithNoGrace": is_called(
        "of_size_with_no_grace", "TimeWindows.of_size_with_no_grace('1 hour')"
    ),
    "ofSizeAndGrace": is_called(
        "of_size_and_grace", "TimeWindows.of_size_and_grace('1 hour', '5 minutes')"
    ),
    "advanceBy": is_called("advance_by", "TimeWindows.of_size('1 hour').advance_by('10 minutes')"),
    "grace": is_called("grace", "TimeWindows.of_size('1 hour').grace('5 minutes')"),
    "size": is_called("size_ms", "TimeWindows.of_size('1 hour').size_ms"),
    "windowsFor": not_there(
        "in a test TopologyTestDriver shows the windows of a record: "
        "get_window_store('hourly').all()"
    ),
    "until": not_there(
        "windows are kept for size plus grace: TimeWindows.of_size('1 hour').grace('1 day')"
    ),
    "sizeMs": is_called("size_ms", "TimeWindows.of_size('1 hour').size_ms"),
    "gracePeriodMs": is_called("grace_ms", "TimeWindows.of_size('1 hour').grace_ms"),
}

SESSION_WINDOWS: Names = {
    "with": is_called("of_inactivity_gap", "SessionWindows.of_inactivity_gap('30 minutes')"),
    "ofInactivityGapWithNoGrace": is_called(
        "of_inactivity_gap_with_no_grace",
        "SessionWindows.of_inactivity_gap_with_no_grace('30 minutes')",
    ),
    "ofInactivityGapAndGrace": is_called(
        "of_inactivity_gap_and_grace",
        "SessionWindows.of_inactivity_gap_and_grace('30 minutes', '5 minutes')",
    ),
    "grace": is_called(
        "grace", "SessionWindows.of_inactivity_gap('30 minutes').grace('5 minutes')"
    ),
    "until": not_there(
        "sessions are kept for gap plus grace: SessionWindows.of_inactivity_gap('30 "
        "minutes').grace('1 day')"
    ),
    "inactivityGap": is_called("gap_ms", "SessionWindows.of_inactivity_gap('30 minutes').gap_ms"),
    "gracePeriodMs": is_called(
        "grace_ms", "SessionWindows.of_inactivity_gap('30 minutes').grace_ms"
    ),
}

SLIDING_WINDOWS: Names = {
    "ofTimeDifferenceWithNoGrace": is_called(
        "of_time_difference_with_no_grace",
        "SlidingWindows.of_time_difference_with_no_grace('10 minutes')",
    ),
    "ofTimeDifferenceAndGrace": is_called(
        "of_time_difference_and_grace",
        "SlidingWindows.of_time_difference_and_grace('10 minutes', '1 minute')",
    ),
    "withTimeDifferenceAndGrace": is_called(
        "of_time_difference_and_grace",
        "SlidingWindows.of_time_difference_and_grace('10 minutes', '1 minute')",
    ),
    "timeDifferenceMs": is_called(
        "difference_ms", "SlidingWindows.of_time_difference('10 minutes').difference_ms"
    ),
    "gracePeriodMs": is_called(
        "grace_ms", "SlidingWindows.of_time_difference('10 minutes').grace_ms"
    ),
}

TOPOLOGY: Names = {
    "describe": is_called("describe", "print(builder.build().describe())"),
    **{
        name: not_there(
            "topologies are written with StreamsBuilder: builder.stream('orders'), and processors "
            "are operators of a stream: stream.process(...)"
        )
        for name in (
            "addSource",
            "addProcessor",
            "addSink",
            "addStateStore",
            "addGlobalStore",
            "addReadOnlyStateStore",
        )
    },
    "connectProcessorAndStateStores": not_there(
        "a processor names its stores: stream.process(Seen, stores=['seen'])"
    ),
}

KAFKA_STREAMS: Names = {
    "start": is_called("start", "streams.start()"),
    "close": is_called("close", "streams.close(timeout=30)"),
    "cleanUp": is_called("clean_up", "streams.clean_up()"),
    "state": is_called("state", "streams.state is ClientState.RUNNING"),
    "State": not_there("the states are everflow.ClientState: streams.state is ClientState.RUNNING"),
    "setStateListener": is_called(
        "set_state_listener", "streams.set_state_listener(lambda new, old: print(new))"
    ),
    "setGlobalStateRestoreListener": is_called(
        "set_global_state_restore_listener", "streams.set_global_state_restore_listener(mine)"
    ),
    "setStandbyUpdateListener": is_called(
        "set_standby_update_listener", "streams.set_standby_update_listener(mine)"
    ),
    "setUncaughtExceptionHandler": is_called(
        "set_uncaught_exception_handler",
        "streams.set_uncaught_exception_handler("
        "lambda error: StreamThreadExceptionResponse.REPLACE_THREAD)",
    ),
    "metrics": is_called("metrics", "streams.metrics()"),
    "store": is_called("store", "streams.store('orders-per-key').get('a')"),
    "query": is_called("store", "streams.store('orders-per-key').get('a')"),
    "queryMetadataForKey": is_called(
        "query_metadata_for_key", "streams.query_metadata_for_key('orders-per-key', 'a')"
    ),
    "streamsMetadataForStore": is_called(
        "streams_metadata_for_store", "streams.streams_metadata_for_store('orders-per-key')"
    ),
    "allMetadata": is_called(
        "metadata_for_all_streams_clients", "streams.metadata_for_all_streams_clients()"
    ),
    "allMetadataForStore": is_called(
        "streams_metadata_for_store", "streams.streams_metadata_for_store('orders-per-key')"
    ),
    "metadataForAllStreamsClients": is_called(
        "metadata_for_all_streams_clients", "streams.metadata_for_all_streams_clients()"
    ),
    "allLocalStorePartitionLags": is_called(
        "all_local_store_partition_lags", "streams.all_local_store_partition_lags()"
    ),
    "localThreadsMetadata": is_called("all_tasks", "streams.all_tasks()"),
    "metadataForLocalThreads": is_called("all_tasks", "streams.all_tasks()"),
    "addStreamThread": is_called("add_stream_thread", "streams.add_stream_thread()"),
    "removeStreamThread": is_called("remove_stream_thread", "streams.remove_stream_thread()"),
    "pause": is_called("pause", "streams.pause()"),
    "resume": is_called("resume", "streams.resume()"),
    "isPaused": is_called("is_paused", "streams.is_paused()"),
    "clientInstanceIds": not_there("ids of the clients' telemetry are not there yet"),
}

TOPOLOGY_TEST_DRIVER: Names = {
    "createInputTopic": is_called(
        "create_input_topic", "driver.create_input_topic('orders', serdes.string(), serdes.long())"
    ),
    "createOutputTopic": is_called(
        "create_output_topic",
        "driver.create_output_topic('output', serdes.string(), serdes.long())",
    ),
    "producedTopicNames": is_called("produced_topics", "driver.produced_topics()"),
    "advanceWallClockTime": is_called(
        "advance_wall_clock_time", "driver.advance_wall_clock_time(1000)"
    ),
    "getKeyValueStore": is_called(
        "get_key_value_store", "driver.get_key_value_store('orders-per-key').get('a')"
    ),
    "getTimestampedKeyValueStore": is_called(
        "get_key_value_store",
        "driver.get_key_value_store('orders-per-key').get_with_timestamp('a')",
    ),
    "getWindowStore": is_called(
        "get_window_store", "driver.get_window_store('hourly').fetch('a', 0)"
    ),
    "getTimestampedWindowStore": is_called(
        "get_window_store", "driver.get_window_store('hourly').fetch_with_timestamp('a', 0)"
    ),
    "getSessionStore": is_called(
        "get_session_store", "driver.get_session_store('visits').fetch('a')"
    ),
    "getVersionedKeyValueStore": _VERSIONED,
    "getStateStore": not_there(
        "ask by kind: driver.get_key_value_store('orders-per-key'), get_window_store, "
        "get_session_store"
    ),
    "getAllStateStores": not_there(
        "ask by name: driver.get_key_value_store('orders-per-key'), get_window_store, "
        "get_session_store"
    ),
    "metrics": not_there("the driver keeps no metrics; an instance has them: streams.metrics()"),
    "pipeInput": not_there(
        "driver.create_input_topic('orders', serdes.string(), serdes.long()).pipe_input('a', 1)"
    ),
    "readOutput": not_there(
        "driver.create_output_topic('output', serdes.string(), serdes.long()).read_record()"
    ),
}

INPUT_TOPIC: Names = {
    "pipeInput": is_called("pipe_input", "orders.pipe_input('a', 1, timestamp=0)"),
    "pipeKeyValueList": is_called("pipe_each", "orders.pipe_each([('a', 1), ('b', 2)])"),
    "pipeRecordList": is_called("pipe_each", "orders.pipe_each([('a', 1, 0), ('b', 2, 1000)])"),
    "pipeValueList": is_called("pipe_each", "orders.pipe_each([(None, 1), (None, 2)])"),
    "advanceTime": is_called("advance_time", "orders.advance_time(1000)"),
}

OUTPUT_TOPIC: Names = {
    "readValue": is_called("read_value", "output.read_value()"),
    "readKeyValue": is_called("read_key_value", "output.read_key_value()"),
    "readRecord": is_called("read_record", "output.read_record()"),
    "readRecordsToList": is_called("read_records", "output.read_records()"),
    "readKeyValuesToList": is_called("read_key_values", "output.read_key_values()"),
    "readKeyValuesToMap": is_called("read_table", "output.read_table()"),
    "readValuesToList": is_called(
        "read_records", "[record.value for record in output.read_records()]"
    ),
    "isEmpty": is_called("is_empty", "output.is_empty()"),
    "getQueueSize": is_called("queue_size", "output.queue_size()"),
}

SERDES: Names = {
    "String": is_called("string", "serdes.string()"),
    "Long": is_called("long", "serdes.long()"),
    "Integer": is_called("int_", "serdes.int_()"),
    "Short": is_called("short", "serdes.short()"),
    "Double": is_called("double", "serdes.double()"),
    "Float": is_called("float_", "serdes.float_()"),
    "Boolean": is_called("boolean", "serdes.boolean()"),
    "Bytes": is_called("bytes_", "serdes.bytes_()"),
    "ByteArray": is_called("bytes_", "serdes.bytes_()"),
    "ByteBuffer": is_called("bytes_", "serdes.bytes_()"),
    "UUID": is_called("string", "serdes.string()"),
    "Void": is_called("bytes_", "serdes.bytes_()"),
    "ListSerde": is_called("list_", "serdes.list_(serdes.string())"),
    "serdeFrom": not_there(
        "a serde of your own is an object with type (as 'string' or 'x bigint, y bigint'), encode "
        "and decode"
    ),
    "timeWindowedSerdeFrom": is_called(
        "time_windowed", "serdes.time_windowed(serdes.string(), size_ms=3_600_000)"
    ),
    "sessionWindowedSerdeFrom": is_called(
        "session_windowed", "serdes.session_windowed(serdes.string())"
    ),
}

_NAMED = not_there(
    "names are keywords: name='a-name' of every operator, as in stream.filter(F.lit(True), "
    "name='all')"
)
_FUNCTIONS = not_there(
    "a plain Python function does, as in stream.map_values(lambda value: value * 2, "
    "returns='double')"
)
_TEST_TOPIC = not_there(
    "it is in everflow.testing: TopologyTestDriver(topology).create_input_topic(...), "
    "create_output_topic(...)"
)

EVERFLOW: Names = {
    "Materialized": is_called(
        "Materialized", "grouped.count(store=Materialized('counts', caching=False))"
    ),
    "Stores": is_called(
        "Stores",
        "stream.process(lambda record, context: context.forward(record), stores=[Stores.key_value("
        "'seen', key=serdes.string(), value=serdes.long())])",
    ),
    "StoreBuilder": not_there(
        "a processor's stores are made by Stores: stream.process(..., stores=[Stores.key_value("
        "'seen', key=serdes.string(), value=serdes.long())])"
    ),
    "Named": _NAMED,
    "Branched": _NAMED,
    "Consumed": not_there(
        "what it carries are keywords: builder.stream('orders', key=serdes.string(), "
        "value=serdes.long())"
    ),
    "Produced": not_there(
        "what it carries are keywords: stream.to('output', key=serdes.string(), "
        "value=serdes.long())"
    ),
    "Grouped": not_there(
        "what it carries are keywords: stream.group_by(F.col('value.item'), name='by-item', "
        "key_serde=serdes.string())"
    ),
    "Repartitioned": not_there(
        "what it carries are keywords: stream.repartition(name='by-item', partitions=4, "
        "key=serdes.string())"
    ),
    "Printed": not_there("a stream prints itself: stream.print_table('orders')"),
    "Serdes": not_there(
        "they are in everflow.serdes: from everflow import serdes; serdes.string(), serdes.long(), "
        "serdes.json('a int')"
    ),
    "Serde": not_there("it is in everflow.serdes: from everflow.serdes import Serde"),
    "JoinWindows": is_called("JoinWindows", "JoinWindows.of_time_difference('5 minutes')"),
    "Joined": _JOINED,
    "StreamJoined": _JOINED,
    "TableJoined": _JOINED,
    "ValueJoiner": _JOINER,
    "SlidingWindows": is_called(
        "SlidingWindows", "SlidingWindows.of_time_difference('10 minutes').grace('1 minute')"
    ),
    "UnlimitedWindows": not_there(
        "an aggregation without windows does the same: stream.group_by_key().count(store='n')"
    ),
    "Window": not_there(
        "windows are made with TimeWindows.of_size('1 hour') or "
        "SessionWindows.of_inactivity_gap('30 minutes')"
    ),
    "Suppressed": is_called("Suppressed", "Suppressed.until_window_closes()"),
    "EmitStrategy": is_called("EmitStrategy", "EmitStrategy.on_window_close()"),
    "KGroupedTable": is_called(
        "KGroupedTable", "table.group_by(F.col('value'), name='by-value').count(store='n')"
    ),
    "CogroupedKStream": is_called("CogroupedKStream", "grouped.cogroup(add_order)"),
    "GlobalKTable": _GLOBAL_CLASS,
    "KeyValue": not_there(
        "a pair is a tuple: stream.map(lambda key, value: (value, key), returns=('string', "
        "'string'))"
    ),
    "ProcessorSupplier": _PROCESSOR_CLASSES,
    "FixedKeyProcessor": _PROCESSOR_CLASSES,
    "Transformer": _PROCESSOR_CLASSES,
    "ValueTransformerWithKey": is_called(
        "ValueTransformer", "table.transform_values(Changes, stores=['last'], store='changes')"
    ),
    "Punctuator": _PROCESSOR_CLASSES,
    **dict.fromkeys(
        ["ExtractRecordMetadataTimestamp", "ConsumerRecord"],
        not_there(
            "an extractor of your own is a Column or a function: stream('orders', "
            "timestamp=lambda key, value, record, partition_time: value['at'])"
        ),
    ),
    "StreamPartitioner": not_there(
        "a partitioner is a Column or a function: stream.to('orders', partitioner=lambda topic, "
        "key, value, partitions: value['customer'] % partitions)"
    ),
    **dict.fromkeys(
        [
            "ValueMapper",
            "ValueMapperWithKey",
            "KeyValueMapper",
            "Predicate",
            "Initializer",
            "Aggregator",
            "Merger",
            "Reducer",
            "ForeachAction",
        ],
        _FUNCTIONS,
    ),
    "StoreQueryParameters": is_called(
        "KafkaStreams", "streams.store('orders-per-key', stale=True)"
    ),
    **VERSIONED_NAMES,
    "QueryableStoreTypes": is_called("KafkaStreams", "streams.store('orders-per-key')"),
    "StateQueryRequest": is_called("KafkaStreams", "streams.store('orders-per-key').get('a')"),
    "StreamsUncaughtExceptionHandler": is_called(
        "StreamThreadExceptionResponse",
        "streams.set_uncaught_exception_handler("
        "lambda error: StreamThreadExceptionResponse.REPLACE_THREAD)",
    ),
    "StateRestoreListener": is_called(
        "RestoreListener", "streams.set_global_state_restore_listener(mine)"
    ),
    "Duration": not_there(
        "a duration is text, ms or a timedelta: TimeWindows.of_size('5 minutes')"
    ),
    "Properties": not_there(
        "settings are keywords, KafkaStreams(topology, application_id='orders', "
        "num_stream_threads=2), or a dict: "
        "KafkaStreams(topology, {'application.id': 'orders', 'num.stream.threads': 2})"
    ),
    "TopologyTestDriver": not_there(
        "it is in everflow.testing: from everflow.testing import TopologyTestDriver"
    ),
    "TestInputTopic": _TEST_TOPIC,
    "TestOutputTopic": _TEST_TOPIC,
    "EmbeddedBroker": not_there(
        "it is in everflow.testing: from everflow.testing import EmbeddedBroker"
    ),
}
