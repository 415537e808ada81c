"""The names of DataFrames and Structured Streaming, by the class here that is asked."""

from __future__ import annotations

from everflow.foreign_names.entries import ForeignName, Names, is_called, not_there

_RUN = not_there(
    "a program runs as an instance: KafkaStreams(builder.build(), application_id='orders', "
    "bootstrap_servers='localhost:9092').run()"
)
_ENDLESS = "a stream has no end, so it cannot be sorted, cut off or collected; "
_LOOK = not_there(
    _ENDLESS
    + (
        "to look at its records write stream.print_table(), or pipe some through "
        "everflow.testing.TopologyTestDriver in a test"
    )
)
_SORTED = not_there(
    _ENDLESS
    + (
        "keep what is wanted per key with stream.group_by_key().aggregate(...), and read the store "
        "sorted"
    )
)
_STORE_CONTENT = not_there(
    "a running instance is asked for its store: streams.store('a-name').all(); in a test "
    "driver.get_key_value_store('a-name').all()"
)
_SAMPLE = not_there(
    "keep a part by something that stays, so that a repeated batch gives the same: "
    "stream.filter(F.abs(F.hash('key')) % 10 == 0)"
)
_READ = not_there(
    "a topic is read by the builder: "
    "builder.stream('orders', key=serdes.string(), value=serdes.json('amount double'))"
)
_WRITE = is_called("to", "stream.to('output')")
_SCHEMA = not_there(
    "print(stream) shows the types of key and value; builder.build().describe() the whole topology"
)
_GROUP_FIRST = is_called(
    "group_by_key",
    "stream.group_by_key().aggregate(total=agg.sum('value.amount'), n=agg.count(), store='totals')",
)
_TRIGGER = not_there(
    "micro-batches begin when there are records; what bounds them are settings: KafkaStreams(..., "
    "max_batch_ms=500, max_batch_records=10_000)"
)
_UPDATES = not_there(
    "results are updates, one per key and micro-batch; final ones of windows, as in append mode, "
    "are windowed.emit_strategy(EmitStrategy.on_window_close()); complete mode is not there, a "
    "table's topic holds the last value per key"
)
_OPTIONS = not_there(
    "options are keywords of builder.stream(...) and stream.to(...), and settings of "
    "KafkaStreams(...)"
)
_WATERMARK = not_there(
    "there is no watermark to declare: windows say how long they take late records, "
    "TimeWindows.of_size('1 "
    "hour').grace('10 minutes')"
)
_DEDUP = is_called(
    "deduplicate",
    "stream.deduplicate('1 hour', by=F.col('value.item'), store='seen')",
)
_STATE = is_called(
    "group_by_key",
    "stream.group_by_key().aggregate(initializer=lambda: 0.0, aggregator=lambda value, total: "
    "total + value['amount'], "
    "returns='double', store='totals')",
)
_NULLS = not_there(
    "stream.filter(F.col('value.amount').isNotNull()), or "
    "stream.map_values(F.coalesce('value.amount', F.lit(0.0)))"
)
_JOINS = not_there(
    "streams and tables are joined by their keys: stream.join(customers), "
    "stream.join(other, windows=JoinWindows.of_time_difference('5 minutes'), store='pairs')"
)
_NO_NAME = not_there(
    "streams need no names in SQL; a Python variable holds one, and name='a-name' names an operator"
)
_CHECKPOINT = not_there(
    "nothing to set: offsets are in Kafka, state in the stores and their changelog topics"
)
_KEPT = not_there(
    "a stream can be used as often as needed: its records are computed once per micro-batch"
)
_FUNCTION = is_called(
    "map_values", "stream.map_values(lambda value: value['amount'] * 2, returns='double')"
)
_NO_PARTITIONS = not_there(
    "a topic's partitions are the tasks; other keys or counts go through "
    "stream.repartition(name='by-item', "
    "partitions=4)"
)


def _all(names: str, entry: ForeignName) -> dict[str, ForeignName]:
    return dict.fromkeys(names.split(), entry)


KSTREAM: Names = {
    "select": is_called(
        "map_values",
        "stream.map_values(item=F.col('value.item'), double=F.col('value.amount') * 2)",
    ),
    "selectExpr": is_called("map_values", "stream.map_values(F.expr('value.amount * 2'))"),
    "withColumn": is_called(
        "map_values",
        "stream.map_values(F.col('value').withField('double', F.col('value.amount') * 2))",
    ),
    "withColumns": is_called(
        "map_values",
        "stream.map_values(F.col('value').withField('double', F.col('value.amount') * 2))",
    ),
    "withColumnRenamed": is_called(
        "map_values", "stream.map_values(item=F.col('value.item'), price=F.col('value.amount'))"
    ),
    "withColumnsRenamed": is_called(
        "map_values", "stream.map_values(item=F.col('value.item'), price=F.col('value.amount'))"
    ),
    "drop": is_called("map_values", "stream.map_values(F.col('value').dropFields('amount'))"),
    "where": is_called("filter", "stream.filter(F.col('value.amount') > 10)"),
    "groupBy": is_called("group_by", "stream.group_by(F.col('value.item'), name='by-item')"),
    "groupby": is_called("group_by", "stream.group_by(F.col('value.item'), name='by-item')"),
    "union": is_called("merge", "stream.merge(other)"),
    "unionAll": is_called("merge", "stream.merge(other)"),
    "unionByName": is_called("merge", "stream.merge(other)"),
    "explode": is_called("flat_map_values", "stream.flat_map_values(F.split('value.item', ' '))"),
    "transform": not_there("call the function with the stream: enriched = enrich(stream)"),
    "observe": is_called("peek", "stream.peek(lambda key, value: print(key, value))"),
    "foreachBatch": is_called("for_each", "stream.for_each(lambda key, value: print(key, value))"),
    "foreachPartition": is_called(
        "for_each", "stream.for_each(lambda key, value: print(key, value))"
    ),
    "isStreaming": not_there("every KStream is a stream"),
    "explain": not_there("print(builder.build().describe()) shows the topology"),
    "window": is_called(
        "group_by_key",
        "stream.group_by_key().windowed_by(TimeWindows.of_size('1 hour')).count(store='hourly')",
    ),
    "rollup": not_there(
        "group by each set of columns of its own: stream.group_by(F.struct('value.item', "
        "'value.amount'), "
        "name='by-both')"
    ),
    "cube": not_there(
        "group by each set of columns of its own: stream.group_by(F.struct('value.item', "
        "'value.amount'), "
        "name='by-both')"
    ),
    "agg": _GROUP_FIRST,
    **_all("sum avg mean min max", _GROUP_FIRST),
    **_all("writeStream write writeTo save saveAsTable insertInto", _WRITE),
    **_all("start awaitTermination run", _RUN),
    **_all(
        "show collect toPandas toLocalIterator head first take tail isEmpty display toArrow", _LOOK
    ),
    **_all(
        "orderBy sort sortWithinPartitions limit offset describe summary",
        _SORTED,
    ),
    **_all("sample randomSplit", _SAMPLE),
    **_all("readStream read load", _READ),
    **_all("printSchema schema columns dtypes", _SCHEMA),
    **_all("withWatermark", _WATERMARK),
    **_all("dropDuplicates drop_duplicates dropDuplicatesWithinWatermark distinct", _DEDUP),
    **_all("trigger", _TRIGGER),
    **_all("outputMode", _UPDATES),
    **_all("option options format partitionBy", _OPTIONS),
    **_all(
        (
            "queryName alias createTempView createOrReplaceTempView registerTempTable "
            "createGlobalTempView"
        ),
        _NO_NAME,
    ),
    **_all("checkpoint localCheckpoint", _CHECKPOINT),
    **_all("cache persist unpersist", _KEPT),
    **_all("fillna dropna na replace", _NULLS),
    "join": is_called("join", "stream.join(customers)"),
    **_all("crossJoin intersect intersectAll subtract exceptAll", _JOINS),
    **_all("coalesce repartitionByRange", _NO_PARTITIONS),
    **_all("mapInPandas mapInArrow rdd toDF pandas_api", _FUNCTION),
    **_all(
        "applyInPandas applyInPandasWithState transformWithState transformWithStateInPandas", _STATE
    ),
}

KTABLE: Names = {
    **_all("toDF toLocalIterator", _STORE_CONTENT),
    "select": is_called("map_values", "table.map_values(F.col('value') * 2)"),
    "selectExpr": is_called("map_values", "table.map_values(F.expr('value * 2'))"),
    "withColumn": is_called(
        "map_values", "table.map_values(n=F.col('value'), double=F.col('value') * 2)"
    ),
    "withColumnRenamed": is_called("map_values", "table.map_values(n=F.col('value'))"),
    "drop": is_called("map_values", "table.map_values(n=F.col('value'))"),
    "where": is_called("filter", "table.filter(F.col('value') > 10)"),
    "union": is_called("to_stream", "table.to_stream().merge(table.to_stream())"),
    "unionByName": is_called("to_stream", "table.to_stream().merge(table.to_stream())"),
    "alias": _NO_NAME,
    "agg": is_called(
        "group_by",
        "table.group_by(F.col('value'), name='by-value').aggregate(n=agg.count(), store='groups')",
    ),
    "foreachBatch": is_called(
        "to_stream", "table.to_stream().for_each(lambda key, value: print(key, value))"
    ),
    **_all(
        "writeStream write writeTo save", is_called("to_stream", "table.to_stream().to('output')")
    ),
    **_all("show collect toPandas head first take limit display", _STORE_CONTENT),
    **_all(
        "orderBy sort",
        not_there(
            "stores are read in order of key bytes: streams.store('a-name').all(); sort what was "
            "read"
        ),
    ),
    **_all(
        "printSchema schema columns dtypes",
        not_there("print(table) shows the types of key and value"),
    ),
    **_all("start awaitTermination", _RUN),
    **_all("outputMode", _UPDATES),
    **_all("withWatermark", _WATERMARK),
    **_all("cache persist", _KEPT),
}

STREAMS_BUILDER: Names = {
    "readStream": is_called(
        "stream",
        "builder.stream('orders', key=serdes.string(), value=serdes.json('amount double'))",
    ),
    "read": is_called(
        "stream",
        "builder.stream('orders', key=serdes.string(), value=serdes.json('amount double'))",
    ),
    "load": is_called(
        "stream",
        "builder.stream('orders', key=serdes.string(), value=serdes.json('amount double'))",
    ),
    "format": is_called(
        "stream",
        "builder.stream('orders', key=serdes.string(), value=serdes.json('amount double'))",
    ),
    "subscribe": is_called("stream", "builder.stream(['orders', 'returns'])"),
    "option": is_called("stream", "builder.stream('orders', offset_reset='latest')"),
    "options": is_called("stream", "builder.stream('orders', offset_reset='latest')"),
    "schema": is_called(
        "stream", "builder.stream('orders', value=serdes.json('item string, amount double'))"
    ),
    "sql": not_there(
        "write Columns, with F.expr('...') for SQL expressions: stream.filter(F.expr('value.amount "
        "> 10'))"
    ),
    "createDataFrame": not_there(
        "a test pipes records: "
        "everflow.testing.TopologyTestDriver(topology).create_input_topic(...).pipe_input('a', 1)"
    ),
    **_all("start run awaitTermination", _RUN),
}

_GROUPED_AGG = is_called(
    "aggregate", "grouped.aggregate(total=agg.sum('value.amount'), n=agg.count(), store='totals')"
)
_GROUPED_STATE = is_called(
    "aggregate",
    "grouped.aggregate(initializer=lambda: 0.0, aggregator=lambda value, total: total + "
    "value['amount'], "
    "returns='double', store='totals')",
)

KGROUPED_STREAM: Names = {
    **_all("agg sum avg mean min max", _GROUPED_AGG),
    **_all(
        (
            "applyInPandas applyInPandasWithState transformWithState transformWithStateInPandas "
            "apply "
            "cogroup"
        ),
        _GROUPED_STATE,
    ),
    "pivot": not_there(
        "one aggregate per value: grouped.aggregate(a=agg.sum(F.when(F.col('value.item') == 'a', "
        "F.col('value.amount'))), store='s')"
    ),
    "window": is_called(
        "windowed_by", "grouped.windowed_by(TimeWindows.of_size('1 hour').grace('5 minutes'))"
    ),
    "withWatermark": _WATERMARK,
    **_all(
        "writeStream write foreachBatch foreach start awaitTermination",
        not_there(
            "a group is not a stream yet: "
            "grouped.count(store='orders-per-key').to_stream().to('output')"
        ),
    ),
}

_WINDOWED_AGG = is_called(
    "aggregate", "windowed.aggregate(total=agg.sum('value.amount'), n=agg.count(), store='totals')"
)

WINDOWED_KSTREAM: Names = {
    **_all("agg sum avg mean min max", _WINDOWED_AGG),
    "withWatermark": _WATERMARK,
    **_all(
        "writeStream write start awaitTermination",
        not_there(
            "groups in windows are not a stream yet: "
            "windowed.count(store='hourly').to_stream().to('output')"
        ),
    ),
}

KAFKA_STREAMS: Names = {
    "awaitTermination": is_called("run", "streams.run()"),
    "awaitAnyTermination": is_called("run", "streams.run()"),
    "stop": is_called("close", "streams.close()"),
    "isActive": is_called("state", "streams.state is ClientState.RUNNING"),
    "status": is_called("state", "streams.state"),
    "exception": is_called("error", "streams.error"),
    "lastProgress": is_called("metrics", "streams.metrics()"),
    "recentProgress": is_called("metrics", "streams.metrics()"),
    "explain": not_there("print(topology.describe()) shows the topology"),
    "processAllAvailable": not_there(
        "in a test everflow.testing.TopologyTestDriver is done when pipe_input returns"
    ),
    "addListener": is_called(
        "set_state_listener", "streams.set_state_listener(lambda new, old: print(new))"
    ),
    **_all("id runId name", is_called("config", "streams.config.application_id")),
}

TOPOLOGY: Names = {
    "explain": is_called("describe", "print(builder.build().describe())"),
    **_all(
        "start run awaitTermination",
        not_there(
            "a topology runs as an instance: KafkaStreams(topology, application_id='orders', "
            "bootstrap_servers='localhost:9092').run()"
        ),
    ),
}

AGG: Names = {
    "mean": is_called("avg", "agg.avg('value.amount')"),
    "average": is_called("avg", "agg.avg('value.amount')"),
    "array_agg": is_called("collect_list", "agg.collect_list('value.item', limit=1_000)"),
    "count_distinct": is_called(
        "approx_count_distinct", "agg.approx_count_distinct('value.item', rsd=0.02)"
    ),
    "countDistinct": is_called(
        "approx_count_distinct", "agg.approx_count_distinct('value.item', rsd=0.02)"
    ),
    "approxCountDistinct": is_called(
        "approx_count_distinct", "agg.approx_count_distinct('value.item', rsd=0.02)"
    ),
    "any_value": is_called("first", "agg.first('value.item')"),
    "first_value": is_called("first", "agg.first('value.item')"),
    "last_value": is_called("last", "agg.last('value.item')"),
    "nlargest": is_called("top_n", "agg.top_n('value.item', 10, by='value.amount')"),
    "every": is_called("min", "agg.min(F.col('value.amount') > 10)"),
    "some": is_called("max", "agg.max(F.col('value.amount') > 10)"),
    **_all(
        "stddev variance median percentile_approx mode sum_distinct",
        not_there(
            "it is not among the built-ins yet; write it with Python functions: "
            "grouped.aggregate(initializer=list, "
            "aggregator=lambda value, found: [*found, value['item']], returns='array<string>', "
            "store='items')"
        ),
    ),
}

EVERFLOW: Names = {
    "SparkSession": not_there(
        "StreamsBuilder() starts or adopts a session; your own is "
        "SparkSession.builder.getOrCreate() of pyspark.sql"
    ),
    "functions": not_there("Columns are PySpark's: from pyspark.sql import functions as F"),
    "F": not_there("Columns are PySpark's: from pyspark.sql import functions as F"),
    "col": not_there(
        "Columns are PySpark's: from pyspark.sql import functions as F; F.col('value.amount')"
    ),
    "Column": not_there("Columns are PySpark's: from pyspark.sql import Column"),
    "DataFrame": is_called("KStream", "builder.stream('orders')"),
    "StreamingQuery": is_called(
        "KafkaStreams",
        "KafkaStreams(topology, application_id='orders', bootstrap_servers='localhost:9092')",
    ),
    "window": is_called("TimeWindows", "TimeWindows.of_size('1 hour')"),
    "session_window": is_called("SessionWindows", "SessionWindows.of_inactivity_gap('30 minutes')"),
}
