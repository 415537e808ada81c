"""The programs of `bench growth --dimensions state`: one for each operator that reads state, what
fills its state, and the batch that is measured.

Each program reads ``left`` and maybe ``right``; keys are texts, values numbers. A state of n lies
under the batch's own key, or under n others. No result of the batch grows with the state: what it
costs is what the operator reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    CountWindows,
    EmitStrategy,
    JoinWindows,
    KStream,
    Materialized,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
    serdes,
)

TEXT, LONG = serdes.string(), serdes.long()
LEFT, RIGHT = "left", "right"
BATCH = 10
OWN = "k"
BEGIN_MS = 1_000_000
STEP_MS = 10
"""From one record of the state to the next."""
DAY = "1 day"

Piped = tuple[str, str, Any, int]
"""Topic, key, value and time of a record."""


@dataclass(frozen=True)
class StateProgram:
    """``fills``: the topics whose records are the state; ``asks``: that of the batch's records,
    which are ``late``: at the begin of the state, or behind it. ``owners``: whether the state is
    that of the batch's own key, or of others."""

    name: str
    build: Callable[[StreamsBuilder], object]
    fills: Sequence[str] = (LEFT,)
    asks: str = LEFT
    late: bool = False
    owners: Sequence[bool] = (True, False)

    def state(self, count: int, own: bool) -> list[Piped]:
        """What fills it."""
        return [
            (topic, OWN if own else f"o{at:08}", at + 1, BEGIN_MS + at * STEP_MS)
            for at in range(count)
            for topic in self.fills
        ]

    def batch(self, count: int, number: int) -> list[Piped]:
        """The records of the batch with a number, behind a state of so many."""
        first = BEGIN_MS if self.late else BEGIN_MS + (count + 1) * STEP_MS
        return [
            (self.asks, OWN, 1_000_000_000 + number, first + number * BATCH + at)
            for at in range(BATCH)
        ]


def _left(builder: StreamsBuilder) -> KStream:
    return builder.stream(LEFT, key=TEXT, value=LONG)


def _right(builder: StreamsBuilder) -> KStream:
    return builder.stream(RIGHT, key=TEXT, value=LONG)


def _table(builder: StreamsBuilder, topic: str = RIGHT) -> Any:
    return builder.table(topic, key=TEXT, value=LONG, store=f"{topic}-table")


def _versioned(builder: StreamsBuilder) -> Any:
    return builder.table(RIGHT, key=TEXT, value=LONG, store=Materialized("past", history=DAY))


def _both(left: Any, right: Any) -> Any:
    return (left or 0) + (right or 0)


def _processed(
    use: Callable[[Any, Any], object], *stores: Any
) -> Callable[[StreamsBuilder], object]:
    """A processor that puts every record into its store and, from the batch on, uses it."""

    def work(record: Any, context: Any) -> None:
        use(context.store("s"), record)

    return lambda builder: (
        _left(builder)
        .process(work, stores=list(stores), returns=("string", "bigint"))
        .to("out", key=TEXT, value=LONG)
    )


def _key_value(read: Callable[[Any, Any], Any]) -> Callable[[StreamsBuilder], object]:
    def use(store: Any, record: Any) -> None:
        store.put(f"{record.timestamp:012}{record.key}", record.value)
        if record.value >= 1_000_000_000:
            read(store, record)

    return _processed(use, Stores.key_value("s", key=TEXT, value=LONG))


def _queue(store: Any, record: Any) -> None:
    store.delete(next(store.all())[0])


def _window_store(read: Callable[[Any, Any], Any]) -> Callable[[StreamsBuilder], object]:
    def use(store: Any, record: Any) -> None:
        store.put(record.key, record.value, record.timestamp)
        if record.value >= 1_000_000_000:
            read(store, record)

    return _processed(use, Stores.window("s", key=TEXT, value=LONG, size=1, retention=DAY))


def _session_store(read: Callable[[Any, Any], Any]) -> Callable[[StreamsBuilder], object]:
    def use(store: Any, record: Any) -> None:
        store.put(Windowed(record.key, record.timestamp, record.timestamp), record.value)
        if record.value >= 1_000_000_000:
            read(store, record)

    return _processed(use, Stores.session("s", key=TEXT, value=LONG, retention=DAY))


def _versioned_store(store: Any, record: Any) -> None:
    store.put(record.key, record.value, record.timestamp)
    if record.value >= 1_000_000_000:
        store.get(record.key)
        store.get(record.key, record.timestamp - 5)
        next(store.all())


def _grouped(builder: StreamsBuilder) -> Any:
    return _left(builder).group_by_key()


def _windowed(windows: Any) -> Callable[[StreamsBuilder], object]:
    return lambda builder: _grouped(builder).windowed_by(windows).count(store="s")


def _emitting(strategy: Any) -> Callable[[StreamsBuilder], object]:
    windows = TimeWindows.of_size(50).grace(DAY)
    return lambda builder: (
        _grouped(builder).windowed_by(windows).emit_strategy(strategy).count(store="s")
    )


def _suppressed(by: Any) -> Callable[[StreamsBuilder], object]:
    return lambda builder: _table(builder, LEFT).suppress(by, store="held")


def _suppressed_windows(by: Any, windows: Any) -> Callable[[StreamsBuilder], object]:
    return lambda builder: (
        _grouped(builder).windowed_by(windows).count(store="s").suppress(by, store="held")
    )


def _joined(how: str, windows: Any) -> Callable[[StreamsBuilder], object]:
    return lambda builder: getattr(_left(builder), how)(
        _right(builder), _both, returns="bigint", windows=windows, store="s"
    )


def _foreign(builder: StreamsBuilder) -> Any:
    left, right = _table(builder, LEFT), _table(builder)
    return left.join(right, _both, on=F.col("key"), returns="bigint", name="by", store="s")


FULL = BufferConfig.max_records(1_000_000)
NEAR = JoinWindows.of_time_difference(20).grace(DAY)
PAST = JoinWindows.of_time_difference(0).before(DAY)
"""The left side's records are closed at once, the right side's wait for a day."""

PROGRAMS: Sequence[StateProgram] = (
    StateProgram("count", lambda b: _grouped(b).count(store="s")),
    StateProgram("count, ttl", lambda b: _grouped(b).count(store="s", ttl=DAY)),
    StateProgram("table, ttl", lambda b: _left(b).to_table(store="s", ttl=DAY)),
    StateProgram("windows", _windowed(TimeWindows.of_size(50).grace(DAY))),
    StateProgram("windows, late", _windowed(TimeWindows.of_size(50).grace(DAY)), late=True),
    StateProgram("sliding", _windowed(SlidingWindows.of_time_difference(20).grace(DAY))),
    StateProgram(
        "sliding, late", _windowed(SlidingWindows.of_time_difference(20).grace(DAY)), late=True
    ),
    StateProgram("sessions", _windowed(SessionWindows.of_inactivity_gap(5).grace(DAY))),
    StateProgram(
        "sessions, late", _windowed(SessionWindows.of_inactivity_gap(5).grace(DAY)), late=True
    ),
    StateProgram("count windows", _windowed(CountWindows.of_size(3))),
    StateProgram("final results", _emitting(EmitStrategy.on_window_close())),
    StateProgram("early results", _emitting(EmitStrategy.every(2))),
    StateProgram("early results by time", _emitting(EmitStrategy.every("1 hour"))),
    StateProgram(
        "suppress, bounded",
        _suppressed(Suppressed.until_time_limit(DAY, FULL.emit_early_when_full())),
    ),
    StateProgram(
        "suppress, full",
        _suppressed(
            Suppressed.until_time_limit(DAY, BufferConfig.max_bytes(1).emit_early_when_full())
        ),
    ),
    StateProgram("suppress", _suppressed(Suppressed.until_time_limit(DAY))),
    StateProgram(
        "suppress, bounded windows",
        _suppressed_windows(
            Suppressed.until_window_closes(FULL.shut_down_when_full()),
            TimeWindows.of_size(50).grace(DAY),
        ),
    ),
    StateProgram(
        "suppress, bounded sessions",
        _suppressed_windows(
            Suppressed.until_window_closes(FULL.shut_down_when_full()),
            SessionWindows.of_inactivity_gap(5).grace(DAY),
        ),
    ),
    StateProgram("deduplicate", lambda b: _left(b).deduplicate(DAY, store="s")),
    StateProgram(
        "deduplicate, near", lambda b: _left(b).deduplicate(5, grace=DAY, store="s"), late=True
    ),
    StateProgram("join in windows", _joined("join", NEAR), fills=(LEFT, RIGHT)),
    StateProgram("join in windows, late", _joined("join", NEAR), fills=(LEFT, RIGHT), late=True),
    StateProgram("left join in windows", _joined("left_join", NEAR)),
    StateProgram("outer join in windows", _joined("outer_join", NEAR)),
    StateProgram(
        "outer join in uneven windows", _joined("outer_join", PAST), fills=(RIGHT,), asks=RIGHT
    ),
    StateProgram(
        "as of",
        lambda b: _left(b).join_asof(_right(b), _both, returns="bigint", tolerance=DAY, store="s"),
        fills=(RIGHT,),
    ),
    StateProgram(
        "as of, late",
        lambda b: _left(b).join_asof(
            _right(b), _both, returns="bigint", tolerance=DAY, grace=DAY, store="s"
        ),
        fills=(RIGHT,),
        late=True,
    ),
    StateProgram(
        "as of, held back",
        lambda b: _left(b).join_asof(
            _right(b), _both, returns="bigint", tolerance=DAY, grace=DAY, store="s"
        ),
    ),
    StateProgram(
        "table", lambda b: _left(b).join(_table(b), _both, returns="bigint"), fills=(RIGHT,)
    ),
    StateProgram(
        "past table",
        lambda b: _left(b).join(_versioned(b), _both, returns="bigint"),
        fills=(RIGHT,),
    ),
    StateProgram(
        "past table, late",
        lambda b: _left(b).join(_versioned(b), _both, returns="bigint"),
        fills=(RIGHT,),
        late=True,
    ),
    StateProgram(
        "past table, held back",
        lambda b: _left(b).join(
            _versioned(b), _both, returns="bigint", grace="12 hours", store="held"
        ),
    ),
    StateProgram(
        "versioned table", lambda b: _left(b).to_table(store=Materialized("s", history=DAY))
    ),
    StateProgram(
        "versioned table, late",
        lambda b: _left(b).to_table(store=Materialized("s", history=DAY)),
        late=True,
    ),
    StateProgram(
        "tables", lambda b: _table(b, LEFT).join(_table(b), _both, returns="bigint", store="s")
    ),
    StateProgram(
        "global table",
        lambda b: _left(b).join(
            b.global_table(RIGHT, key=TEXT, value=LONG, store="g"),
            _both,
            on=F.col("key"),
            returns="bigint",
        ),
        fills=(RIGHT,),
    ),
    StateProgram("foreign keys", _foreign, fills=(LEFT, RIGHT)),
    StateProgram("foreign keys, updated", _foreign, (LEFT, RIGHT), RIGHT, owners=(False,)),
    StateProgram(
        "grouped table",
        lambda b: (
            _table(b, LEFT)
            .group_by(lambda key, value: key[:1], name="by", returns="string")
            .count(store="s")
        ),
    ),
    StateProgram(
        "cogroup",
        lambda b: (
            _grouped(b)
            .cogroup(lambda value, total: total + value)
            .aggregate(int, store="s", returns="bigint")
        ),
    ),
    StateProgram(
        "lookup, others wait",
        lambda b: _left(b).lookup_join(
            _table(b), _both, returns="bigint", grace=DAY, store="waits"
        ),
    ),
    StateProgram("queue", _key_value(_queue), owners=(False,)),
    StateProgram("last of all", _key_value(lambda s, r: next(s.reverse_all())), owners=(False,)),
    StateProgram(
        "first of a range", _key_value(lambda s, r: next(s.range("0", "z"), None)), owners=(False,)
    ),
    StateProgram(
        "first of a prefix",
        _key_value(lambda s, r: next(s.prefix_scan("0"), None)),
        owners=(False,),
    ),
    StateProgram("entries", _key_value(lambda s, r: s.approximate_num_entries()), owners=(False,)),
    StateProgram(
        "latest window", _window_store(lambda s, r: next(s.backward_fetch(r.key, 0, r.timestamp)))
    ),
    StateProgram("first window", _window_store(lambda s, r: next(s.fetch(r.key, 0, r.timestamp)))),
    StateProgram("windows of all", _window_store(lambda s, r: next(s.fetch_all(0, r.timestamp)))),
    StateProgram("latest session", _session_store(lambda s, r: next(s.backward_fetch(r.key)))),
    StateProgram("sessions of all", _session_store(lambda s, r: next(s.fetch_range(None, None)))),
    StateProgram(
        "versions",
        _processed(_versioned_store, Stores.versioned("s", key=TEXT, value=LONG, history=DAY)),
    ),
    StateProgram(
        "entries that end",
        _processed(
            lambda store, record: (
                store.put(f"{record.timestamp:012}", record.value),
                next(store.all()),
            ),
            Stores.key_value("s", key=TEXT, value=LONG, ttl=DAY),
        ),
        owners=(False,),
    ),
)
