"""Stateful operators through the real segments, steps and reference stores: null, late and time
rules of reference 1.3 and 1.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    SessionWindows,
    StoreKindError,
    StreamsBuilder,
    TimeWindows,
    Windowed,
    agg,
    serdes,
)
from everflow.dsl.streams import KGroupedStream, KStream, KTable
from everflow.errors import RecordError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
VALUE = serdes.json("a string, n int")
TOTALS = serdes.json("n bigint, total bigint, mean double, top int")


def n(value: int | None, a: str = "x") -> dict[str, Any]:
    return {"a": a, "n": value}


@pytest.mark.parametrize("key", ["column", "function"])
def test_count_skips_null_keys_and_values_and_keeps_the_latest_time(key: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    grouped = (
        stream.group_by(F.col("value.a"), name="g")
        if key == "column"
        else stream.group_by(lambda v: v and v["a"], name="g", returns="string")
    )
    grouped.count(store="counts").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = (
            driver.create_input_topic("in", TEXT, VALUE),
            driver.create_output_topic("out", TEXT, LONG),
        )
        topic.pipe_each(
            [("k", n(1), 50), ("k", None, 60), ("k", {"a": None, "n": 1}, 70), ("l", n(2), 40)]
        )
        assert [(r.key, r.value, r.timestamp) for r in out.read_records()] == [
            ("x", 1, 50),
            ("x", 2, 50),
        ]
        topic.pipe_batch([("k", n(1), 80), ("l", n(1, "y"), 81), ("k", n(1), 10)])
        assert [(r.key, r.value, r.timestamp) for r in out.read_records()] == [
            ("y", 1, 81),
            ("x", 4, 80),
        ]
        assert dict(driver.get_key_value_store("counts").all()) == {"x": 4, "y": 1}


def test_every_update_on_demand() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT).group_by_key().count(store="c").to_stream().to("out")
    with TopologyTestDriver(builder.build(), emit_every_update=True) as driver:
        driver.create_input_topic("in", TEXT, TEXT).pipe_batch([("a", ""), ("b", ""), ("a", "")])
        assert driver.create_output_topic("out", TEXT, LONG).read_key_values() == [
            ("a", 1),
            ("b", 1),
            ("a", 2),
        ]


def test_reduce_takes_the_first_value_as_it_is_and_none_deletes() -> None:
    def add(total: int, value: int) -> int | None:
        return None if total + value == 0 else total + value + 100

    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=LONG).group_by_key().reduce(
        add, store="sums"
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = (
            driver.create_input_topic("in", TEXT, LONG),
            driver.create_output_topic("out", TEXT, LONG),
        )
        topic.pipe_each([("k", 4), (None, 9), ("k", None), ("k", 3), ("k", -107), ("k", 1)])
        assert out.read_key_values() == [("k", 4), ("k", 107), ("k", None), ("k", 1)]
        assert driver.get_key_value_store("sums").get("k") == 1


def built_in(grouped: KGroupedStream) -> KTable:
    return grouped.aggregate(
        store="s",
        n=agg.count(),
        total=agg.sum("value.n"),
        mean=agg.avg(F.col("value.n")),
        top=agg.max("value.n"),
    )


def in_python(grouped: KGroupedStream) -> KTable:
    def add(value: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        known = [x for x in (found["top"], value["n"]) if x is not None]
        total, count = found["total"], found["count"]
        if value["n"] is not None:
            total, count = (total or 0) + value["n"], count + 1
        mean = total / count if count else None
        return {
            "n": found["n"] + 1,
            "total": total,
            "mean": mean,
            "top": max(known, default=None),
            "count": count,
        }

    start = {"n": 0, "total": None, "mean": None, "top": None, "count": 0}
    returns = "n bigint, total bigint, mean double, top int, count int"
    return grouped.aggregate(
        store="s", initializer=lambda: dict(start), aggregator=add, returns=returns
    )


@pytest.mark.parametrize("build", [built_in, in_python], ids=["built-in", "function"])
def test_aggregate(build: Callable[[KGroupedStream], KTable]) -> None:
    builder = StreamsBuilder()
    build(builder.stream("in", key=TEXT, value=VALUE).group_by_key()).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = (
            driver.create_input_topic("in", TEXT, VALUE),
            driver.create_output_topic("out", TEXT, TOTALS),
        )
        topic.pipe_batch([("k", n(None)), ("k", None), (None, n(1))])
        assert out.read_key_values() == [("k", {"n": 1, "total": None, "mean": None, "top": None})]
        topic.pipe_batch([("k", n(3)), ("k", n(6))])
        expected = {"n": 3, "total": 9, "mean": 4.5, "top": 6}
        assert out.read_key_values() == [("k", expected)]
        shown = driver.get_key_value_store("s").get("k")
        assert {name: shown[name] for name in expected} == expected, (
            "results, not the state behind them"
        )
        assert driver.get_key_value_store("s").get("nobody") is None


def test_a_failing_aggregate_names_its_record() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=LONG).group_by_key()
    grouped.reduce(lambda total, value: total // value, store="s", name="divide").to_stream().to(
        "out"
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, LONG)
        with pytest.raises(RecordError, match="ZeroDivisionError") as failure:
            topic.pipe_batch([("a", 8), ("b", 1), ("a", 0)])
        assert (failure.value.topic, failure.value.offset, failure.value.node) == (
            "in",
            2,
            "divide",
        )
        assert list(driver.get_key_value_store("s").all()) == []


WINDOWS = {
    "tumbling": TimeWindows.of_size(10).grace(10),
    "tumbling without grace": TimeWindows.of_size(10).grace(0),
    "hopping": TimeWindows.of_size(10).advance_by(5).grace(5),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("piped", ["each", "batch"])
def test_windows_grace_and_late_records(name: str, piped: str) -> None:
    windows = WINDOWS[name]
    builder = StreamsBuilder()
    table = (
        builder.stream("in", key=TEXT, value=VALUE)
        .group_by_key()
        .windowed_by(windows)
        .count(store="w")
    )
    table.to_stream().to("out")
    # null keys are skipped and do not move stream time; null values are counted
    records = [
        ("k", n(1), 4),
        (None, n(1), 500),
        ("k", None, 14),
        ("k", n(1), 3),
        ("k", n(1), 22),
        ("k", n(1), 2),
    ]
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_each(records) if piped == "each" else topic.pipe_batch(records)
        key = serdes.time_windowed(TEXT, windows.size_ms)
        out = driver.create_output_topic("out", key, LONG)
        found = out.read_table()
        assert found == oracle(records, windows)
        assert dict(driver.get_window_store("w").all()).items() <= found.items()
        assert driver.get_window_store("w").fetch("k", 20) == 1
        assert driver.get_window_store("w").fetch("k", 21) is None


def oracle(records: list[tuple[Any, Any, int]], windows: TimeWindows) -> dict[Windowed, int]:
    """Kafka Streams' rule, one record at a time."""
    counts: dict[Windowed, int] = {}
    stream_time = -1
    for key, _, time in records:
        if key is None:
            continue
        stream_time = max(stream_time, time)
        for start in range(0, time + 1, windows.advance_ms):
            if (
                start <= time < start + windows.size_ms
                and start + windows.size_ms > stream_time - windows.grace_ms
            ):
                window = Windowed(key, start, start + windows.size_ms)
                counts[window] = counts.get(window, 0) + 1
    return counts


def counted(grouped: KGroupedStream) -> KTable:
    sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap(5).grace(10))
    return sessions.aggregate(store="v", n=agg.count(), total=agg.sum("value.n"))


def counted_in_python(grouped: KGroupedStream) -> KTable:
    sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap(5).grace(10))
    return sessions.aggregate(
        store="v",
        initializer=lambda: {"n": 0, "total": 0},
        aggregator=lambda value, found: {"n": found["n"] + 1, "total": found["total"] + value["n"]},
        merger=lambda one, two: {"n": one["n"] + two["n"], "total": one["total"] + two["total"]},
        returns="n bigint, total bigint",
    )


@pytest.mark.parametrize("visits", [counted, counted_in_python])
def test_sessions_grow_merge_and_close(visits: Callable[[KGroupedStream], KTable]) -> None:
    builder = StreamsBuilder()
    visits(builder.stream("in", key=TEXT, value=VALUE).group_by_key()).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        out = driver.create_output_topic(
            "out", serdes.session_windowed(TEXT), serdes.json("n bigint, total bigint")
        )

        def shown() -> list[tuple[int, int, Any]]:
            records = out.read_records()
            assert [r.timestamp for r in records] == [r.key.end for r in records], (
                "a session's time is its end"
            )
            return [(r.key.start, r.key.end, r.value and tuple(r.value.values())) for r in records]

        topic.pipe_batch([("k", n(1), 0), ("k", n(2), 10), (None, n(9), 500)])
        assert shown() == [(0, 0, (1, 1)), (10, 10, (1, 2))]
        topic.pipe_batch([("k", n(3), 13)])
        assert shown() == [(10, 10, None), (10, 13, (2, 5))], "the session has another key now"
        topic.pipe_batch([("k", n(4), 5), ("k", n(5), 18)])
        assert shown() == [(0, 0, None), (10, 13, None), (0, 18, (5, 15))], (
            "no window that nobody has seen"
        )
        topic.pipe_batch([("k", n(6), 40), ("k", n(7), 24)])
        assert shown() == [(40, 40, (1, 6))], "what is late by gap and grace is dropped"
        store = driver.get_session_store("v")
        assert [(key, tuple(value.values())) for key, value in store.all()] == [
            (("k", 40, 40), (1, 6))
        ]
        assert (store.fetch_session("k", 40, 40) or {})["n"] == 1
        assert store.fetch_session("k", 0, 40) is None
        assert [key for key, _ in store.find_sessions("k", 0, 40)] == [("k", 40, 40)]
        assert list(store.find_sessions("k", 41, 60)) == list(store.fetch("l")) == []
        with pytest.raises(StoreKindError, match=r"session.*get_session_store"):
            driver.get_window_store("v")


CLOCKS = {"windows": TimeWindows.of_size(10), "sessions": SessionWindows.of_inactivity_gap(10)}


@pytest.mark.parametrize("windows", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("piped", ["each", "batch"])
def test_a_store_expires_by_its_own_operator_s_stream_time(windows: Any, piped: str) -> None:
    """Not by that of another operator of the task, which has seen later records."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.filter(F.col("value") == "mine").group_by_key().windowed_by(windows).count(
        store="mine"
    ).to_stream().to("out")
    stream.group_by_key().windowed_by(windows).count(store="all")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        records = [
            ("a", "mine", 100),
            ("b", "other", 1_000),
            ("c", "mine", 101),
            ("a", "mine", 105),
        ]
        topic.pipe_each(records) if piped == "each" else topic.pipe_batch(records)
        view = (
            driver.get_session_store
            if isinstance(windows, SessionWindows)
            else driver.get_window_store
        )
        assert {key[0]: count for key, count in view("mine").all()} == {"a": 2, "c": 1}
        assert {key[0]: count for key, count in view("all").all()} == {"b": 1}


def test_every_update_of_a_session_on_demand() -> None:
    """As Kafka Streams without its cache: also a session that keeps its window is deleted and put
    again."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
    grouped.windowed_by(SessionWindows.of_inactivity_gap(5)).count(store="v").to_stream().to("out")
    with TopologyTestDriver(builder.build(), emit_every_update=True) as driver:
        driver.create_input_topic("in", TEXT, TEXT).pipe_batch(
            [("k", "", 1), ("k", "", 1), ("k", "", 3), ("k", "", 2)]
        )
        out = driver.create_output_topic("out", serdes.session_windowed(TEXT), LONG).read_records()
        found = [(r.key.start, r.key.end, r.value) for r in out]
        assert found == [(1, 1, 1), (1, 1, 2), (1, 1, None), (1, 3, 3), (1, 3, None), (1, 3, 4)]


def table_of(kind: str, builder: StreamsBuilder) -> KTable:
    if kind == "table":
        return builder.table("in", key=TEXT, value=VALUE, store="t")
    return builder.stream("in", key=TEXT, value=VALUE).to_table(store="t")


@pytest.mark.parametrize("kind", ["table", "to_table"])
def test_tables_delete_and_apply_what_is_out_of_order(kind: str) -> None:
    builder = StreamsBuilder()
    table_of(kind, builder).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = (
            driver.create_input_topic("in", TEXT, VALUE),
            driver.create_output_topic("out", TEXT, VALUE),
        )
        topic.pipe_each(
            [
                ("k", n(1), 50),
                (None, n(9), 51),
                ("k", n(2), 10),
                ("l", n(3), 52),
                ("l", None, 53),
                ("m", None, 54),
            ]
        )
        records = [(r.key, r.value, r.timestamp) for r in out.read_records()]
        assert records == [
            ("k", n(1), 50),
            ("k", n(2), 10),
            ("l", n(3), 52),
            ("l", None, 53),
            ("m", None, 54),
        ]
        assert list(driver.get_key_value_store("t").all()) == [("k", n(2))]


@pytest.mark.parametrize("variant", ["column", "function"])
def test_table_operators_turn_into_tombstones_and_pass_them(variant: str) -> None:
    columns = variant == "column"
    builder = StreamsBuilder()
    table = builder.table("in", key=TEXT, value=VALUE, store="t")
    table.filter(F.col("value.n") > 1 if columns else (lambda v: v["n"] > 1)).to_stream().to("kept")
    mapped = (
        table.map_values(F.col("value.a"))
        if columns
        else table.map_values(lambda v: v["a"], returns="string")
    )
    mapped.to_stream().to("mapped")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, VALUE).pipe_each(
            [("k", n(1)), ("k", n(2)), ("k", None), ("l", n(0))]
        )
        kept = driver.create_output_topic("kept", TEXT, VALUE).read_key_values()
        assert kept == [("k", n(2)), ("k", None)], "nothing of what was never visible"
        names = driver.create_output_topic("mapped", TEXT, TEXT).read_key_values()
        assert names == [("k", "x"), ("k", "x"), ("k", None), ("l", "x")]


def test_a_column_behind_an_aggregate_and_a_second_aggregate_behind_it() -> None:
    builder = StreamsBuilder()
    counts = (
        builder.stream("in", key=TEXT, value=VALUE).group_by_key().count(store="first").to_stream()
    )
    sizes: KStream = counts.map_values(F.when(F.col("value") > 1, "many").otherwise("one"))
    sizes.group_by(F.col("value"), name="sizes").count(store="second").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = (
            driver.create_input_topic("in", TEXT, VALUE),
            driver.create_output_topic("out", TEXT, LONG),
        )
        topic.pipe_batch([])
        topic.pipe_batch([(None, n(1)), ("a", None)])
        assert out.is_empty(), "batches that change nothing pass through all hops too"
        topic.pipe_each([("a", n(1)), ("b", n(1)), ("a", n(1))])
        assert out.read_key_values() == [("one", 1), ("one", 2), ("many", 1)]
        assert dict(driver.get_key_value_store("first").all()) == {"a": 2, "b": 1}, (
            "changed two hops before the sink"
        )
        assert dict(driver.get_key_value_store("second").all()) == {"one": 2, "many": 1}


def test_windows_over_several_sources_go_by_the_merge_order() -> None:
    builder = StreamsBuilder()
    streams = [builder.stream(name, key=TEXT, value=TEXT) for name in ("a", "b")]
    grouped = streams[0].merge(streams[1]).group_by_key()
    grouped.windowed_by(TimeWindows.of_size(10).grace(0)).count(store="w").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topics = [driver.create_input_topic(name, TEXT, TEXT) for name in ("a", "b")]
        driver.pipe_batch(
            {topics[0]: [("k", "", 5), ("k", "", 25)], topics[1]: [("k", "", 6), ("k", "", 26)]}
        )
        out = driver.create_output_topic("out", serdes.time_windowed(TEXT, 10), LONG).read_records()
        assert [(r.key.start, r.value) for r in out] == [(0, 2), (20, 2)], (
            "b's record at 6 is not late"
        )
        assert dict(driver.get_window_store("w").all()) == {Windowed("k", 20, 30): 2}, (
            "kept for size and grace"
        )


def test_a_windowed_key_has_one_form_in_functions_and_their_results_outputs_and_views() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    table = stream.group_by_key().windowed_by(TimeWindows.of_size(10)).count(store="w")
    counts = table.to_stream().filter(lambda window, count: window.start < 30)
    key_type = "key string, start bigint, end bigint"
    value_type = f"window struct<{key_type}>, n bigint"
    counts.map(
        lambda window, count: (
            window._replace(key=window.key.upper()),
            {"window": window, "n": count},
        ),
        returns=(serdes.time_windowed(TEXT, 10), value_type),
    ).to("mapped")
    twice = counts.flat_map(
        lambda window, count: [(window, count)] * 2, returns=(key_type, "bigint")
    )
    twice.to("twice", key=serdes.json(key_type))
    counts.to(lambda window, count: f"from-{window.start}")
    again = counts.group_by_key().aggregate(
        store="longest",
        initializer=lambda: None,
        aggregator=lambda window, n, _: window.end - window.start,
        returns="bigint",
    )
    again.to_stream().to("lengths")
    nested = (
        counts.group_by_key().windowed_by(SessionWindows.of_inactivity_gap(5)).count(store="nested")
    )
    nested.filter(lambda outer, count: outer.key.key == "a").to_stream().to("nested")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, VALUE).pipe_batch(
            [("a", n(1), 1), ("a", n(1), 2), ("a", n(1), 31)]
        )
        key, window = serdes.time_windowed(TEXT, 10), Windowed("a", 0, 10)
        mapped = driver.create_output_topic(
            "mapped", key, serdes.json(value_type)
        ).read_key_values()
        assert mapped == [(Windowed("A", 0, 10), {"window": window._asdict(), "n": 2})]
        read_twice = driver.create_output_topic(
            "twice", serdes.json(key_type), LONG
        ).read_key_values()
        assert read_twice == [(window._asdict(), 2)] * 2, "a topic in JSON has what JSON has"
        assert driver.create_output_topic("from-0", key, LONG).read_table() == {window: 2}
        assert driver.create_output_topic("lengths", key, LONG).read_table() == {window: 10}
        assert dict(driver.get_key_value_store("longest").all()) == {window: 10}
        sessions = driver.create_output_topic(
            "nested", serdes.session_windowed(key), LONG
        ).read_table()
        assert sessions == {Windowed(window, 2, 2): 1}
        assert dict(driver.get_window_store("w").all()) == {Windowed("a", 30, 40): 1}
