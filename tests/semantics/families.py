"""The families of operators whose semantics tables are made, by the page that has them."""

from collections.abc import Mapping

from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    CountWindows,
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    Stores,
    Suppressed,
    TimeWindows,
    agg,
    serdes,
)
from semantics.probes import TEXT, Family, Step

LONG = serdes.long()
NULLS = [Step(1, "a", 5), Step(2, None, 6, "a null key"), Step(3, "a", None, "a null value")]

STATELESS = Family(
    {
        source: source
        for source in (
            'stream.filter(F.col("value") > 3)',
            'stream.filter_not(F.col("value") > 3)',
            'stream.map_values(F.col("value") + 1)',
            'stream.map_values(lambda value: value is None, returns="boolean")',
            'stream.map(key=F.lit("k"), value=F.col("key"))',
            'stream.select_key(F.lit("k"))',
            'stream.flat_map_values(F.array("value", "value"))',
            'stream.flat_map(lambda key, value: [(key, value)], returns=("string", "bigint"))',
            "stream.peek(lambda key, value: None)",
            (
                'stream.split().branch(F.col("value") > 3, name="large")'
                '.default_branch(name="rest")["rest"]'
            ),
            'stream.repartition(name="again")',
            'stream.select_key(F.col("key")).assume_partitioned()',
            'stream.to_table(store="latest")',
        )
    },
    NULLS,
    {"F": F},
)

AGGREGATES = Family(
    {
        "count": 'groups.count(store="counts")',
        "reduce": 'groups.reduce(lambda total, value: total + value or None, store="totals")',
        "aggregate": 'groups.aggregate(n=agg.count(), total=agg.sum("value"), store="both")',
        "with functions": (
            "groups.aggregate(initializer=list, aggregator=lambda value, found: [*found, value], "
            'returns="array<bigint>", store="listed")'
        ),
        "after a new key": 'stream.group_by(F.col("key"), name="by-key").count(store="grouped")',
    },
    [
        Step(10, "a", 5, "the first of its key"),
        Step(20, "a", 2),
        Step(21, None, 1, "a null key"),
        Step(22, "a", None, "a null value"),
        Step(5, "a", -7, "out of order; the sum is 0, for which this `reduce` gives None"),
        Step(1, "b", 3, "old, but never late"),
        Step(23, "a", 4),
    ],
    {"F": F, "agg": agg},
)

TTL = Family(
    {
        "count": 'groups.count(store="recent", ttl=10)',
        "to_table": 'stream.to_table(store="newest", ttl=10)',
    },
    [
        Step(10, "a", 1),
        Step(16, "b", 2),
        Step(12, "b", 3, "out of order"),
        Step(20, "c", 4, "`a` has expired"),
        Step(11, "a", 5, "a new row, not older than `ttl`"),
        Step(9, "d", 6, "older than `ttl`, no row"),
        Step(22, None, 7, "a null key"),
        Step(22, "c", None, "a null value"),
        Step(40, "e", 8, "all other rows have expired"),
    ],
)

WINDOWS = Family(
    {
        "tumbling": 'groups.windowed_by(TimeWindows.of_size(10).grace(5)).count(store="tumbling")',
        "hopping": (
            "groups.windowed_by(TimeWindows.of_size(10).advance_by(5).grace(5))"
            '.count(store="hopping")'
        ),
        "sliding": (
            "groups.windowed_by(SlidingWindows.of_time_difference(10).grace(5))"
            '.count(store="sliding")'
        ),
        "sessions": (
            "groups.windowed_by(SessionWindows.of_inactivity_gap(4).grace(5))"
            '.count(store="sessions")'
        ),
        "of 2 records": 'groups.windowed_by(CountWindows.of_size(2)).count(store="pairs")',
        "when they close": (
            "groups.windowed_by(TimeWindows.of_size(10).grace(5))"
            '.emit_strategy(EmitStrategy.on_window_close()).count(store="closed")'
        ),
    },
    [
        Step(12, "a", 1),
        Step(13, None, 1, "a null key"),
        Step(14, "a", None, "a null value"),
        Step(23, "a", 1),
        Step(18, "a", 1, "out of order"),
        Step(9, "b", 1, "its tumbling window and the grace have ended"),
        Step(37, "b", 1),
    ],
    {
        "CountWindows": CountWindows,
        "EmitStrategy": EmitStrategy,
        "SessionWindows": SessionWindows,
        "SlidingWindows": SlidingWindows,
        "TimeWindows": TimeWindows,
    },
)

DEDUPLICATE = Family(
    {
        "by key": 'stream.deduplicate(10, store="keys")',
        "by value": 'stream.deduplicate(10, by=F.col("value"), grace=5, store="ids")',
    },
    [
        Step(20, "a", 1, "the first"),
        Step(25, "a", 1, "again"),
        Step(22, "a", 1, "again, and out of order"),
        Step(26, None, 2, "a null key"),
        Step(27, "b", None, "a null value"),
        Step(28, "b", None, "again"),
        Step(31, "a", 1, "more than `within` after the first"),
        Step(24, "c", 3, "7 behind stream time"),
        Step(10, "d", 4, "21 behind stream time"),
    ],
    {"F": F},
)

TABLES = Family(
    {
        source: source
        for source in (
            "table",
            'table.filter(F.col("value") > 3)',
            'table.filter_not(F.col("value") > 3, store="small")',
            'table.map_values(F.col("value") * 10)',
            'table.transform_values(lambda key, value: value is None, returns="boolean")',
            'table.group_by(F.lit("all"), name="by-all").count(store="entries")',
            (
                'table.group_by(F.col("value").cast("string"), name="by-value")'
                ".reduce(lambda total, value: total + value, lambda total, "
                'value: total - value or None, store="sums")'
            ),
            'table.suppress(Suppressed.until_time_limit(10), store="calm")',
        )
    },
    [
        Step(10, "a", 5, "new"),
        Step(11, "a", 2, "changed"),
        Step(8, "a", 7, "out of order"),
        Step(12, None, 9, "a null key"),
        Step(13, "b", None, "a tombstone without a row"),
        Step(14, "a", None, "a tombstone"),
        Step(30, "c", 1, "new"),
    ],
    {"F": F, "Suppressed": Suppressed},
)

FINAL = Family(
    {
        "each update": 'groups.windowed_by(TEN).count(store="each")',
        "suppress": (
            'groups.windowed_by(TEN).count(store="held")'
            '.suppress(Suppressed.until_window_closes(), store="buffer")'
        ),
        "on_window_close": (
            "groups.windowed_by(TEN).emit_strategy(EmitStrategy.on_window_close())"
            '.count(store="final")'
        ),
        "every 2": (
            'groups.windowed_by(TEN).emit_strategy(EmitStrategy.every(2)).count(store="second")'
        ),
        "every 4 ms": (
            'groups.windowed_by(TEN).emit_strategy(EmitStrategy.every("4 ms")).count(store="timed")'
        ),
    },
    [
        Step(1, "a", 1),
        Step(2, "a", None, "a null value"),
        Step(3, None, 1, "a null key"),
        Step(6, "a", 1),
        Step(12, "b", 1),
        Step(4, "a", 1, "out of order, within the grace"),
        Step(15, "b", 1, "the first window closes"),
        Step(5, "a", 1, "late"),
        Step(30, "c", 1, "the second closes"),
    ],
    {
        "EmitStrategy": EmitStrategy,
        "Suppressed": Suppressed,
        "TEN": TimeWindows.of_size(10).grace(5),
    },
)

SUPPRESSED = Family(
    {
        "until the window closes": (
            'groups.windowed_by(TEN).reduce(total, store="totals-of-ten")'
            '.suppress(Suppressed.until_window_closes(), store="until-closed")'
        ),
        "sessions": (
            'groups.windowed_by(SessionWindows.of_inactivity_gap(4)).reduce(total, store="visits")'
            '.suppress(Suppressed.until_window_closes(), store="visits-held")'
        ),
        "until a time limit": (
            'groups.reduce(total, store="totals")'
            '.suppress(Suppressed.until_time_limit(10), store="until-limit")'
        ),
        "with a bound": (
            'groups.reduce(total, store="bounded")'
            '.suppress(Suppressed.until_time_limit(10, BufferConfig.max_records(1)), store="one")'
        ),
    },
    [
        Step(1, "a", 5),
        Step(3, "a", 2, "changed; the session grows"),
        Step(4, "b", 1),
        Step(5, "b", -1, "the sum is 0: a deletion"),
        Step(2, "a", 1, "out of order"),
        Step(12, "c", 4),
        Step(15, "c", -4, "a deletion of a row that was never emitted"),
        Step(30, "d", 9),
    ],
    {
        "BufferConfig": BufferConfig,
        "SessionWindows": SessionWindows,
        "Suppressed": Suppressed,
        "TEN": TimeWindows.of_size(10).grace(5),
        "total": lambda so_far, value: so_far + (value or 0) or None,
    },
)

COGROUP = Family(
    {
        "cogroup": (
            'groups.cogroup(plus).cogroup(right_groups, minus).aggregate(int, store="cogrouped", '
            'returns="bigint")'
        ),
        "in windows": (
            "groups.cogroup(plus).cogroup(right_groups, minus)"
            '.windowed_by(TimeWindows.of_size(10)).aggregate(int, store="cut", returns="bigint")'
        ),
    },
    [
        Step(1, "a", 5),
        Step(4, "a", 2, "", "right"),
        Step(5, None, 1, "a null key"),
        Step(6, "a", None, "a null value", "right"),
        Step(3, "a", 1, "out of order"),
        Step(12, "b", 1),
        Step(7, "a", 1, "late by the other stream's time", "right"),
    ],
    {
        "TimeWindows": TimeWindows,
        "plus": lambda value, total: total + (value or 0),
        "minus": lambda value, total: total - (value or 0),
    },
)

PROCESSORS = Family(
    {
        "forwards": "stream.process(lambda record, context: context.forward(record))",
        "process_values": "stream.process_values(lambda record, context: context.forward(record))",
        "stream time": (
            "stream.process_values(lambda record, "
            "context: context.forward(record.with_value(context.stream_time)))"
        ),
        "a window store": (
            'stream.process(lambda record, context: context.store("windows")'
            '.put(record.key or "-", record.value, record.timestamp), '
            'stores=[Stores.window("windows", key=TEXT, value=LONG, size=1, retention=10)], '
            'returns=("string", "bigint"))'
        ),
        "a versioned store": (
            'stream.process(lambda record, context: context.store("versions")'
            '.put(record.key or "-", record.value, record.timestamp), '
            'stores=[Stores.versioned("versions", key=TEXT, value=LONG, history=10)], '
            'returns=("string", "bigint"))'
        ),
    },
    [
        Step(10, "a", 1),
        Step(12, None, 2, "a null key"),
        Step(13, "b", None, "a null value"),
        Step(8, "a", 3, "out of order"),
        Step(30, "a", 4),
        Step(9, "c", 5, "older than the stores' retention"),
    ],
    {"Stores": Stores, "TEXT": TEXT, "LONG": LONG},
)

JOINS = Family(
    {
        source: source
        for source in (
            "stream.join(right_table)",
            "stream.left_join(right_table)",
            'stream.join(global_table, on=F.col("key"))',
            'stream.left_join(global_table, on=F.col("key"))',
            'stream.join(right_stream, windows=TEN, store="inner")',
            'stream.left_join(right_stream, windows=TEN, store="left")',
            'stream.outer_join(right_stream, windows=TEN, store="outer")',
            "table.join(right_table)",
            "table.left_join(right_table)",
            "table.outer_join(right_table)",
            'table.join(right_table, on=F.lit("k"), name="foreign")',
            'table.left_join(right_table, on=F.lit("k"), name="foreign-left")',
        )
    },
    [
        Step(1, "k", "A", "no match yet"),
        Step(2, "k", "a", "", "right"),
        Step(3, None, "B", "a null key"),
        Step(4, None, "b", "a null key", "right"),
        Step(5, "k", None, "a null value"),
        Step(6, "k", None, "a null value", "right"),
        Step(7, "k", "C"),
        Step(30, "k", "c", "", "right"),
        Step(8, "k", "D", "out of order; late in windows"),
    ],
    {"F": F, "TEN": JoinWindows.of_time_difference(10)},
    TEXT,
)

LOOKUPS = Family(
    {
        "emit": 'stream.lookup_join(right_table, grace=10, store="waits")',
        "drop": (
            'stream.lookup_join(right_table, grace=10, on_timeout="drop", store="waits-or-goes")'
        ),
    },
    [
        Step(1, "k", "A", "waits"),
        Step(2, None, "B", "a null key"),
        Step(3, "k", None, "a null value"),
        Step(4, "k", "a", "the row arrives", "right"),
        Step(5, "k", "C"),
        Step(6, "k", None, "a tombstone of the row", "right"),
        Step(7, "k", "D", "waits"),
        Step(3, "k", "E", "waits, out of order"),
        Step(20, "m", "F", "the grace of the waiting records is over"),
        Step(8, "k", "G", "later than the grace"),
    ],
    value=TEXT,
)

IN_TIME = Family(
    {
        "past": "stream.left_join(past)",
        "with a grace": 'stream.left_join(past, grace=5, store="held-for-past")',
        "as of": 'stream.join_asof(right_stream, tolerance=10, how="left", store="quotes")',
        "as of, with a grace": (
            'stream.join_asof(right_stream, tolerance=10, grace=5, how="left", store="late-quotes")'
        ),
    },
    [
        Step(10, "k", "a", "", "right"),
        Step(12, "k", "A"),
        Step(13, None, "B", "a null key"),
        Step(14, None, "b", "a null key", "right"),
        Step(15, "k", None, "a null value"),
        Step(16, "k", None, "a null value", "right"),
        Step(17, "k", "C"),
        Step(11, "k", "c", "out of order", "right"),
        Step(11, "k", "D", "out of order"),
        Step(90, "k", "d", "", "right"),
        Step(92, "k", "E"),
        Step(30, "k", "e", "older than history, or tolerance and grace", "right"),
        Step(30, "k", "F", "also older"),
        Step(99, "k", "G"),
    ],
    value=TEXT,
)

PAGES: Mapping[str, Mapping[str, Family]] = {
    "operators.md": {"stateless": STATELESS, "deduplicate": DEDUPLICATE},
    "aggregations.md": {"aggregates": AGGREGATES, "ttl": TTL},
    "tables.md": {"tables": TABLES, "suppressed": SUPPRESSED, "final": FINAL, "cogroup": COGROUP},
    "time.md": {"windows": WINDOWS},
    "joins.md": {"joins": JOINS, "lookups": LOOKUPS},
    "joins-in-time.md": {"in-time": IN_TIME},
    "processors.md": {"processors": PROCESSORS},
}
"""Page -> name of a part -> its family."""
