"""Processors in the test driver: stores, clocks, children, batches, and what is refused."""

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import (
    BatchProcessor,
    LogAndSkipOnInvalidTimestamp,
    Materialized,
    Processor,
    PunctuationType,
    Record,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    TopologyError,
    UsePartitionTimeOnInvalidTimestamp,
    Windowed,
    punctuate,
    serdes,
)
from everflow.errors import EverflowError, UnknownNameError
from everflow.instance.query.queries import StoreSite
from everflow.instance.query.store_query import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
)
from everflow.instance.topics.internal_topics import require_compacted
from everflow.operators.optimization import REUSE_SOURCE_TOPICS, optimized
from everflow.operators.processors.stores import (
    Entries,
    KeyValueStore,
    SessionStore,
    StoreClock,
    VersionedStore,
    WindowStore,
)
from everflow.records import StoreChanges
from everflow.serdes.windowed import session_key, window_store_key
from everflow.state.store import StoreSpec, memory_store
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import StatefulNode
from everflow.topology.store_layouts import fingerprint
from everflow.topology.subtopologies import cut, internal_topics
from unit.builders import store_spec
from unit.instance.query.query_stores import COUNTS, PARTITIONS, Instance, by_first_letter

SEEN = Stores.key_value("seen", key=serdes.string(), value=serdes.long())
Results = list[tuple[Any, Any, int]]


class Counts(Processor):
    """How often each key came; by stream time how many keys there are, by the clock a mark."""

    def process(self, record: Record) -> None:
        seen = self.context.store("seen")
        count = seen.get(record.key, 0) + 1
        seen.put(record.key, count)
        self.context.forward(record.with_value(count))

    @punctuate("10 s")
    def keys(self, time: int) -> None:
        found = self.context.store("seen").approximate_num_entries()
        self.context.forward(Record("keys", found, time))

    @punctuate("1 s", PunctuationType.WALL_CLOCK_TIME)
    def tick(self, time: int) -> None:
        self.context.forward(Record("tick", 0, time))


def given(
    processor: Any, feed: Callable[[Any, TopologyTestDriver], None], **options: Any
) -> Results:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    stream.process(processor, **options).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", serdes.string(), serdes.long())
        out = driver.create_output_topic("out", serdes.string(), serdes.long())
        feed(source, driver)
        return [(one.key, one.value, one.timestamp) for one in out.read_records()]


RECORDS = [("a", 1, 5_000), ("b", 1, 12_000), ("a", 1, 9_000), ("a", 1, 35_000)]


@pytest.mark.parametrize("cut", range(1, 5))
def test_stores_and_stream_time_do_not_depend_on_the_batches(cut: int) -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        for at in range(0, len(RECORDS), cut):
            source.pipe_batch(RECORDS[at : at + cut])

    assert given(Counts, feed, stores=[SEEN]) == [
        ("a", 1, 5_000),
        ("keys", 1, 5_000),
        ("b", 1, 12_000),
        ("keys", 2, 12_000),
        ("a", 2, 9_000),
        ("a", 3, 35_000),
        ("keys", 2, 35_000),
    ]


def test_the_wall_clock_calls_once_however_many_times_were_due() -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        source.pipe_batch(RECORDS[:1])
        for by in (999, 1, 2_500, 400, 100):
            driver.advance_wall_clock_time(by)

    made = given(Counts, feed, stores=[SEEN])
    assert [one[1:] for one in made if one[0] == "tick"] == [(0, 1_000), (0, 3_500), (0, 4_000)]


@pytest.mark.parametrize("ahead_ms", [1_001, 86_400_000, 50 * 365 * 86_400_000])
def test_a_clock_that_was_ahead_once_does_not_silence_a_method(ahead_ms: int) -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        driver.advance_wall_clock_time(ahead_ms)
        source.pipe_batch(RECORDS[:1])
        driver.advance_wall_clock_time(-ahead_ms)  # the clock is right again: 0
        for _ in range(3):
            driver.advance_wall_clock_time(1_000)

    made = given(Counts, feed, stores=[SEEN])
    assert [one[2] for one in made if one[0] == "tick"][-3:] == [1_000, 2_000, 3_000]


def test_a_clock_that_goes_back_by_less_than_an_interval_calls_no_more_often() -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        driver.advance_wall_clock_time(5_000)
        for by in (1_000, -900, 900, 1_000):
            driver.advance_wall_clock_time(by)

    made = given(Counts, feed, stores=[SEEN])
    assert [one[2] for one in made if one[0] == "tick"] == [6_000, 7_000]


class Doubled(BatchProcessor):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Table:
        rows = pa.array([row for row in range(len(batch)) for _ in range(2)], pa.int64())
        return pa.table(
            {"key": batch["key"].take(rows), "value": batch["value"].take(rows), "row": rows}
        )


def test_a_batch_processor_gives_results_of_rows() -> None:
    made = given(Doubled, lambda source, _: source.pipe_batch(RECORDS[:2]))
    assert made == [("a", 1, 5_000)] * 2 + [("b", 1, 12_000)] * 2


def test_windows_and_sessions_forget_by_stream_time() -> None:
    def kept(record: Record, context: Any) -> None:
        windows, sessions = context.store("windows"), context.store("sessions")
        windows.put(record.key, record.value, record.timestamp)
        sessions.put(Windowed(record.key, record.timestamp, record.timestamp + 1), record.value)
        found = [one.start for one, _ in windows.fetch(record.key, 0, 1 << 40)]
        ends = [one.end for one, _ in sessions.fetch(record.key)]
        context.forward(record.with_value(len(found) * 10 + len(ends)))

    stores = [
        Stores.window(
            "windows", key=serdes.string(), value=serdes.long(), size="1 s", retention="10 s"
        ),
        Stores.session("sessions", key=serdes.string(), value=serdes.long(), retention="10 s"),
    ]
    records = [("a", 1, 1_000), ("a", 1, 5_000), ("a", 1, 14_000), ("a", 1, 2_000)]
    made = given(kept, lambda source, _: source.pipe_batch(records), stores=stores)
    assert [value for _, value, _ in made] == [11, 22, 22, 22]


def test_children_take_what_is_sent_to_them_and_to_all() -> None:
    def routed(record: Record, context: Any) -> None:
        context.forward(record, {1: "one", 2: "two"}.get(record.value))

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    for name, child in stream.process(routed, children=["one", "two"]).items():
        child.to(name)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", serdes.string(), serdes.long())
        source.pipe_batch([("a", 1, 1), ("b", 2, 2), ("c", 3, 3)])
        found = {
            name: [
                one.key
                for one in driver.create_output_topic(
                    name, serdes.string(), serdes.long()
                ).read_records()
            ]
            for name in ("one", "two")
        }
    assert found == {"one": ["a", "c"], "two": ["b", "c"]}


def failing(record: Record, context: Any) -> None:
    raise ValueError("no")


def to_nobody(record: Record, context: Any) -> None:
    context.forward(record, "nobody")


def a_text(record: Record, context: Any) -> None:
    context.forward(record.with_value("text"))


def no_store(record: Record, context: Any) -> None:
    context.store("other")


class BadClock(Processor):
    def process(self, record: Record) -> None: ...

    @punctuate("1 s")
    def clock(self, time: int) -> None:
        raise ValueError("clock")


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (failing, "ValueError: no.*in-0@0"),
        (to_nobody, "no child 'nobody'"),
        (a_text, "the value 'text'"),
        (no_store, "no store 'other'"),
        (BadClock, "ValueError: clock"),
    ],
)
def test_a_failure_names_the_record(processor: Any, said: str) -> None:
    with pytest.raises(EverflowError, match=f"(?s){said}"):
        given(processor, lambda source, _: source.pipe_batch(RECORDS[:1]))


@pytest.mark.parametrize(
    ("processor", "options", "said"),
    [
        (Doubled(), {}, r"needs.*processor"),
        (Processor, {}, "lacks process"),
        (lambda: 3, {}, "gave 3"),
        (lambda a, b, c: None, {}, "takes 3 arguments"),
        (failing, {"stores": [3]}, r"stores.*Stores"),
        (failing, {"stores": [SEEN, SEEN]}, "names 'seen' twice"),
        (failing, {"children": ["a", "a"]}, r"children.*name"),
        (failing, {"returns": "string"}, "name both types"),
    ],
)
def test_what_cannot_be_is_refused(processor: Any, options: dict[str, Any], said: str) -> None:
    stream = StreamsBuilder().stream("in", key=serdes.string(), value=serdes.long())
    with pytest.raises(TopologyError, match=said):
        stream.process(processor, **options)


def test_process_values_keeps_the_key() -> None:
    stream = StreamsBuilder().stream("in", key=serdes.string(), value=serdes.long())
    assert not stream.process_values(failing).key_changed
    assert stream.process(failing).key_changed


FOR_EVER = (1 << 63) - 1
WINDOWS = store_spec("windows", "window", retention_ms=FOR_EVER, window_size_ms=1_000)
SESSIONS = store_spec("sessions", "session", retention_ms=FOR_EVER)
SITES = [
    StoreSite(spec=spec, subtopology=0, partitions=PARTITIONS, decode=spec.value_serde.decode)
    for spec in (COUNTS, WINDOWS, SESSIONS)
]
STORES: list[tuple[type, type]] = [
    (ReadOnlyKeyValueStore, KeyValueStore),
    (ReadOnlyWindowStore, WindowStore),
    (ReadOnlySessionStore, SessionStore),
]
OF_QUERIES = {"behind", "partitions", "to_dataframe"}
KEYS = ["a", "aa", "aaaaaaaaaaaaaaaaaa", "ab", "aé"]
BOUNDS: list[str | None] = [*KEYS, None]


def named(store: type) -> dict[str, list[str]]:
    """The public methods of a class with the names of their parameters."""
    return {
        name: list(inspect.signature(method).parameters)
        for name, method in inspect.getmembers(store, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("asked", "used"), STORES)
def test_what_a_query_has_a_processors_store_has_likewise(asked: type, used: type) -> None:
    there = named(used)
    for name, parameters in named(asked).items():
        if name not in OF_QUERIES:
            assert there[name][: len(parameters)] == parameters, name


def test_versions_have_one_name_in_both() -> None:
    asked, used = named(ReadOnlyVersionedStore), named(VersionedStore)
    for name in ("get_as_of", "versions", "all"):
        assert used[name] == asked[name]


def places(kind: str) -> list[bytes]:
    """Keys as a store of the kind has them: of nested texts, with windows and sessions whose times
    look like letters."""
    times = [0, 1, 3, 97, ord("b") << 56]
    if kind == "key_value":
        return [key.encode() for key in KEYS]
    if kind == "window":
        return [window_store_key(key.encode(), time) for key in KEYS for time in times]
    ends = [(start, end) for start in times for end in times if start <= end]
    return [session_key(key.encode(), *pair) for key in KEYS for pair in ends]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path, sites=SITES)
    yield made
    made.close()


def both(instance: Instance, spec: StoreSpec, made: Any, seed: int) -> tuple[Any, Any]:
    """A processor's store of what was committed and what its batch has changed since, and a query
    of the store behind that batch."""
    drawn = random.Random(seed)
    clock = StoreClock(lambda: 5, lambda: 0)
    committed = {key: drawn.randint(1, 99) for key in places(spec.kind) if drawn.random() < 0.5}
    behind = memory_store(spec)
    values = [spec.value_serde.encode(value) for value in committed.values()]
    times = np.zeros(len(values), np.int64)
    behind.apply(StoreChanges(spec.name, list(committed), values, times))
    entries = Entries(spec, behind)
    for key in places(spec.kind):
        if drawn.random() < 0.4:
            value = drawn.choice([None, drawn.randint(1, 99)])
            entries.put(key, spec.value_serde.encode(value), 5)
            committed.pop(key, None)
            if value is not None:
                committed[key] = value
    instance.put(0, spec, dict(committed))
    return made(entries, clock), instance.store(spec.name, partitioner=by_first_letter)


def require_same(used: Any, asked: Any, name: str, *given: Any) -> None:
    mine, its = getattr(used, name)(*given), getattr(asked, name)(*given)
    if isinstance(its, Iterator):
        mine, its = list(mine), list(its)
    assert mine == its, (name, given)


@pytest.mark.parametrize("seed", range(3))
def test_keys_are_found_as_by_a_query(instance: Instance, seed: int) -> None:
    used, asked = both(instance, COUNTS, KeyValueStore, seed)
    for name in ("all", "reverse_all", "approximate_num_entries", "range", "reverse_range"):
        require_same(used, asked, name)
    for first in BOUNDS:
        for last in BOUNDS:
            require_same(used, asked, "range", first, last)
            require_same(used, asked, "reverse_range", first, last)
    for prefix in ("a", "aa", b"a\xc3", b"", "b"):
        require_same(used, asked, "prefix_scan", prefix)


@pytest.mark.parametrize("seed", range(3))
def test_windows_are_found_as_by_a_query(instance: Instance, seed: int) -> None:
    used, asked = both(instance, WINDOWS, WindowStore, seed)
    spans = [(0, 1 << 70), (1, 97), (97, 97), (3, 1), (-5, -1), (-5, 0)]
    for name in ("all", "reverse_all", "approximate_num_entries"):
        require_same(used, asked, name)
    for span in spans:
        require_same(used, asked, "fetch_all", *span)
        require_same(used, asked, "backward_fetch_all", *span)
        for key in KEYS:
            require_same(used, asked, "fetch", key, *span)
            require_same(used, asked, "backward_fetch", key, *span)
            require_same(used, asked, "fetch_window", key, 97)
            require_same(used, asked, "fetch", key, 97)
            for last in BOUNDS:
                require_same(used, asked, "fetch_range", key, last, *span)
                require_same(used, asked, "backward_fetch_range", last, key, *span)


@pytest.mark.parametrize("seed", range(3))
def test_sessions_are_found_as_by_a_query(instance: Instance, seed: int) -> None:
    used, asked = both(instance, SESSIONS, SessionStore, seed)
    spans = [(0, 1 << 70), (1, 97), (97, 1), (1 << 70, 5), (-5, -1), (-5, 0)]
    for name in ("all", "reverse_all", "approximate_num_entries"):
        require_same(used, asked, name)
    for key in KEYS:
        require_same(used, asked, "fetch", key)
        require_same(used, asked, "backward_fetch", key)
        require_same(used, asked, "fetch_session", key, 1, 97)
        for span in spans:
            require_same(used, asked, "find_sessions", key, *span)
            require_same(used, asked, "backward_find_sessions", key, *span)
        for last in BOUNDS:
            require_same(used, asked, "fetch_range", key, last)
            require_same(used, asked, "backward_fetch_range", last, key)
            for span in spans:
                require_same(used, asked, "find_sessions_range", key, last, *span)
                require_same(used, asked, "backward_find_sessions_range", last, key, *span)


def test_a_result_is_of_the_moment_of_the_call() -> None:
    entries = Entries(WINDOWS, memory_store(WINDOWS))
    store = WindowStore(entries, StoreClock(lambda: 5, lambda: 0))
    store.put("a", 1, 0)
    found = store.fetch("a", 0, 9)
    store.put("a", 2, 0)
    store.put("a", 3, 5)
    assert list(found) == [(Windowed("a", 0, 1000), 1)]


@pytest.mark.parametrize(
    ("store", "name", "here"),
    [
        (KeyValueStore, "reverseRange", "reverse_range"),
        (KeyValueStore, "prefixScan", "prefix_scan"),
        (WindowStore, "backwardFetchAll", "backward_fetch_all"),
        (SessionStore, "backwardFindSessions", "backward_find_sessions"),
    ],
)
def test_javas_name_of_a_method_is_told(store: type, name: str, here: str) -> None:
    with pytest.raises(UnknownNameError, match=here):
        getattr(store, name)


# Which tables have their topic as their changelog, and what is asked of such a topic.


TEXT, LONG = serdes.string(), serdes.long()


def program() -> Topology:
    builder = StreamsBuilder()
    builder.table("plain", key=TEXT, value=serdes.json("a int"), store="plain")
    builder.table("past", key=TEXT, value=TEXT, store=Materialized("past", history=5))
    builder.table("quoted", key=serdes.json("string"), value=TEXT, store="quoted")
    builder.stream("in", key=TEXT, value=LONG).to_table(store="made")
    return builder.build()


def sources(topology: Topology) -> dict[str, str | None]:
    return {
        spec.name: spec.source_topic
        for node in topology.nodes
        if isinstance(node, StatefulNode)
        for spec in node.stores
    }


def test_the_topic_of_a_table_whose_keys_are_written_as_they_were_read() -> None:
    assert sources(optimized(program(), REUSE_SOURCE_TOPICS)) == {
        "plain": "plain",
        "past": None,
        "quoted": None,
        "made": None,
    }
    assert set(sources(optimized(program(), "none")).values()) == {None}


@pytest.mark.parametrize(
    ("options", "reused"),
    [
        ({}, True),
        ({"offset_reset": "earliest"}, True),
        ({"offset_reset": "latest"}, False),
        ({"timestamp": LogAndSkipOnInvalidTimestamp()}, True),
        ({"timestamp": UsePartitionTimeOnInvalidTimestamp()}, False),
        ({"timestamp": lambda value: value["at"]}, False),
    ],
)
def test_a_topic_that_is_not_taken_as_it_is_is_none(options: dict[str, Any], reused: bool) -> None:
    builder = StreamsBuilder()
    builder.table("t", key=TEXT, value=serdes.json("at bigint"), store="t", **options)
    found = sources(optimized(builder.build(), REUSE_SOURCE_TOPICS))
    assert found == {"t": "t" if reused else None}


@pytest.mark.parametrize(
    ("settings", "reused"),
    [
        ({}, True),
        ({"default.timestamp.extractor": "LogAndSkipOnInvalidTimestamp"}, True),
        ({"default.timestamp.extractor": "WallclockTimestampExtractor"}, False),
        ({"auto.offset.reset": "latest"}, False),
    ],
)
def test_so_say_the_settings(settings: dict[str, Any], reused: bool) -> None:
    given = {"application.id": "a", "bootstrap.servers": "b:1", **settings}
    config = StreamsConfig(given | {"topology.optimization": REUSE_SOURCE_TOPICS})
    assert (config.optimization == REUSE_SOURCE_TOPICS) is reused


def test_no_changelog_is_made_and_instances_agree_on_it() -> None:
    counts = dict.fromkeys(("plain", "past", "quoted", "in"), 2)
    subs = cut(optimized(program(), REUSE_SOURCE_TOPICS))
    topics = internal_topics(subs, counts, "app")
    assert "app-plain-changelog" not in topics.changelog
    assert topics.left_out == {"app-plain-left-out-changelog"} & topics.changelog.keys()
    assert "app-past-changelog" in internal_topics(subs, counts, "app").changelog
    assert fingerprint(subs) != fingerprint(cut(program()))


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_deletes_records_is_refused_with_the_cure(policy: str) -> None:
    subs = cut(optimized(program(), REUSE_SOURCE_TOPICS))
    stores = [store for sub in subs.subtopologies for store in sub.stores]
    asked: list[str] = []

    def configs(names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        asked.extend(names)
        return {name: {"cleanup.policy": policy} for name in names}

    with pytest.raises(TopologyError, match=r"topic plain.*cleanup\.policy=compact") as e:
        require_compacted(stores, configs)
    assert "test_processors.py" in str(e.value)
    assert "plain" in asked
    require_compacted(stores, lambda names: {name: {"cleanup.policy": "compact"} for name in names})
    require_compacted(stores, lambda _: {})
