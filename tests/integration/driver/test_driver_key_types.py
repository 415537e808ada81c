"""With keys, groups, foreign keys and ids of any type operators give what they give for texts."""

import datetime as dt
import decimal
import functools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)
from everflow.testing import InputTopic, TopologyTestDriver
from everflow.windows import Windowed
from semantics.families import PAGES, PROCESSORS, STATELESS
from semantics.probes import TEXT, Family, Step, built, text, with_own_names

pytestmark = pytest.mark.spark

UTC = dt.timezone.utc
A_STRUCT = {"x": "a", "y": None}
TEXTS = ("string", ["r", "s", "t"])
KINDS: dict[str, tuple[str, list[Any]]] = {
    "binary": ("binary", [b"", b"\0", b"\xff"]),
    "boolean": ("boolean", [False, True]),
    "tinyint": ("tinyint", [-128, -2, 127]),
    "smallint": ("smallint", [-300, -2, 300]),
    "int": ("int", [-(2**31), -2, 2**31 - 1]),
    "bigint": ("bigint", [-(2**63), -2, 2**63 - 1]),
    "float": ("float", [-0.0, 0.0, 0.5]),
    "double": ("double", [-0.0, 0.0, 1e300]),
    "decimal": ("decimal(10,2)", [Decimal("-1.50"), Decimal("0.00"), Decimal("99999999.99")]),
    "wide decimal": ("decimal(38,6)", [Decimal(-(10**31)), Decimal("0.000001"), Decimal(10**31)]),
    "date": ("date", [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (
        "timestamp",
        [dt.datetime(year, 1, 1, 0, 0, 0, 1, tzinfo=UTC) for year in (1900, 1970, 2200)],
    ),
    "timestamp_ntz": (
        "timestamp_ntz",
        [dt.datetime(year, 1, 1, 0, 0, 0, 1) for year in (1900, 1970, 2200)],
    ),
    "struct": ("struct<x: string, y: int>", [A_STRUCT, {"x": "a", "y": 7}, {"x": "b", "y": 7}]),
    "struct of nulls": (
        "struct<x: string, y: int>",
        [{"x": None, "y": None}, {"x": None, "y": 7}, {"x": "", "y": None}],
    ),
    "nested struct": (
        "struct<s: struct<x: string, y: int>, z: double>",
        [{"s": None, "z": 0.5}, {"s": A_STRUCT, "z": 0.5}, {"s": A_STRUCT, "z": 1.5}],
    ),
    "array": ("array<int>", [[6], [7, None], [7, 8]]),
    "array of structs": (
        "array<struct<x: string, y: int>>",
        [[A_STRUCT], [A_STRUCT, None], [A_STRUCT, A_STRUCT]],
    ),
    "struct of all": (
        "struct<d: decimal(10,2), t: timestamp, l: array<array<date>>, b: binary, f: float>",
        [
            {"d": Decimal("1.50"), "t": None, "l": [[dt.date(2000, 1, 1)]], "b": b"\0", "f": 0.5},
            {"d": None, "t": None, "l": [[], None], "b": b"", "f": 0.5},
            {"d": None, "t": dt.datetime(2000, 1, 1, tzinfo=UTC), "l": None, "b": None, "f": None},
        ],
    ),
    "map": ("map<string, int>", [{"x": None}, {"x": 7}, {"x": None, "y": 7}]),
    "struct with a map": ("struct<m: map<string, int>>", [{"m": {}}, {"m": {"x": 7}}, {"m": None}]),
}


OF_IDS = {
    source: source
    for source in (
        'stream.select_key(F.col("value.id"))',
        'stream.map(key=F.col("value.id"), value=F.col("key"))',
        (
            'stream.map(lambda key, value: (value and value["id"], key), returns=(KIND, KIND))'
            ".filter(lambda key, value: key is not None)"
        ),
        'stream.flat_map(lambda k, v: [(k, 1), (v and v["id"], 2)], returns=(KIND, "int"))',
        'stream.map_values(lambda value: value and value["id"], returns=KIND)',
        'stream.select_key(F.col("value.id")).to_table(store="newest", name="newest")',
        'stream.group_by(F.col("value.id"), name="by-id").count(store="counts")',
        (
            'stream.group_by(F.col("value.id"), name="to-reduce")'
            '.reduce(lambda old, new: new, store="reduced")'
        ),
        (
            'groups.aggregate(n=agg.count("value.id"), first=agg.first("value.id"), '
            'last=agg.last("value.id"), listed=agg.collect_list("value.id"), '
            'best=agg.max_by("value.id", "value.n"), store="built-in")'
        ),
        'stream.deduplicate(10, by=F.col("value.id"), store="ids")',
        'table.group_by(F.col("value.id"), name="entries-by-id").count(store="entries")',
        (
            'table.group_by(lambda key, value: (value["id"], key), returns=(KIND, KIND), '
            'name="keys-by-id").reduce(lambda _, new: new, lambda left, _: left, store="keys")'
        ),
        (
            'groups.windowed_by(TEN).count(store="of-ten").group_by(lambda window, n: '
            '(window.key, n), returns=(KIND, "bigint"), name="windows-by-key")'
            '.count(store="windows-of-key")'
        ),
        'table.join(right_table, on=F.col("value.id"), name="foreign", n=F.col("right.n"))',
        'table.left_join(right_table, on=F.col("value.id"), name="left", i=F.col("left.id"))',
        'stream.join(global_table, on=F.col("value.id"), n=F.col("right.n"))',
        (
            "stream.filter(lambda key, value: key is not None).process(lambda record, context: "
            '[context.store("kept").put(record.key, record.value), context.forward(record)], '
            'stores=[Stores.key_value("kept", key=KEY, value=VALUE)])'
        ),
    )
}
"""Programs over ``value.id``, which has the type of the keys."""
ID_STEPS = [
    Step(time, key, None if n is None else (of, n), side=side)
    for side, key, of, n, time in (
        *(("right", "a", "b", 10, 9), ("left", "a", "b", 11, 10), ("left", "b", "b", 12, 11)),
        *(("left", None, "a", 13, 12), ("left", "c", None, 14, 13), ("right", "b", "c", 15, 14)),
        *(("left", "a", "c", 16, 15), ("left", "b", "a", None, 16), ("right", "a", "a", None, 17)),
        *(("left", "c", "a", 17, 33), ("left", "a", "a", None, 34), ("right", "c", "b", 18, 35)),
        *(("left", "b", "c", 19, 60), ("left", "c", "c", 20, 61)),
    )
]


def families(kind: str) -> Iterator[tuple[str, Family]]:
    """The guide's, with keys of this type, and that of `OF_IDS`."""
    key = serdes.from_type(serdes.arrow_type(kind))
    for page in PAGES.values():
        for name, family in page.items():
            if family not in (STATELESS, PROCESSORS):
                yield name, replace(family, key=key)
    value = serdes.json(f"id {kind}, n bigint")
    names = {"F": F, "agg": agg, "Stores": Stores, "TEN": TimeWindows.of_size(10)}
    names |= {"KIND": kind, "KEY": key, "VALUE": value}
    yield "ids", Family(OF_IDS, ID_STEPS, names, value, key)


def run(kind: str, keys: Sequence[Any], stores: Collection[str] | None = None) -> tuple[Any, Any]:
    """Results of each topic by key, and the entries of ``stores`` (None: of those that are read by
    keys and values of the program), with the place of each key in its stead. Families have more
    keys than a type has here: some of theirs are one."""
    type_ = serdes.arrow_type(kind)
    known = pa.array(keys, type_).to_pylist()

    def shown(value: Any) -> str:
        return text(name_of(known, value))

    def given(key: Any) -> Any:
        return None if key is None else keys["abcdekm".index(key) % len(keys)]

    builder = StreamsBuilder()
    inputs: dict[str, tuple[Family, str]] = {}
    outputs = []
    for name, family in families(kind):
        for at, source in enumerate(family.programs.values()):
            prefix = f"{name}-{at}"
            own = with_own_names(source, prefix).replace('on=F.lit("k")', 'on=F.col("key")')
            made = built(builder, family, own, prefix, shown)
            outputs.append(made.output)
            inputs |= {one: (family, side) for side, listed in made.sides.items() for one in listed}
    with TopologyTestDriver(builder.build()) as driver:
        topics: dict[str, InputTopic] = {
            one: driver.create_input_topic(one, family.key, family.value)
            for one, (family, _) in inputs.items()
        }

        def value(family: Family, one: Any) -> Any:
            return {"id": given(one[0]), "n": one[1]} if isinstance(one, tuple) else one

        for at in range(max(len(family.steps) for family, _ in inputs.values())):
            driver.pipe_batch(
                {
                    topics[one]: [(given(step.key), value(family, step.value), step.time)]
                    for one, (family, side) in inputs.items()
                    for step in family.steps[at : at + 1]
                    if step.side == side
                }
            )
        results: dict[str, dict[str | None, list[Any]]] = {}
        for one in outputs:
            for record in driver.create_output_topic(one, TEXT, TEXT).read_records():
                of_key = results.setdefault(one, {}).setdefault(record.key, [])
                of_key.append((record.value, record.timestamp))
        return results, dict(entries(driver, known, stores))


def entries(
    driver: TopologyTestDriver, keys: list[Any], stores: Collection[str] | None
) -> Iterator[tuple[str, list[str]]]:
    for name, spec in driver._kept.items():
        own = spec.kind == "key_value" and not spec.private and spec.key_serde != serdes.bytes_()
        if own if stores is None else name in stores:
            view: Any = driver.get_key_value_store(name)
            found = list(view.all())
            assert [repr(view.get(key)) for key, _ in found] == [repr(one) for _, one in found]
            yield name, sorted(repr(name_of(keys, pair)) for pair in found)


def name_of(keys: list[Any], value: Any) -> Any:
    """``value`` with ``key 0``, ``key 1`` ... in the place of keys, however deep."""
    for place, key in enumerate(keys):
        if type(value) is type(key) and shown(value) == shown(key):
            return f"key {place}"
    if isinstance(value, Windowed):
        return tuple(name_of(keys, part) for part in (value.key, value.start, value.end))
    if isinstance(value, dict):
        return {name: name_of(keys, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [name_of(keys, one) for one in value]
    return value


def shown(value: Any) -> str:
    """UTC has several classes."""
    return re.sub(r"zoneinfo\.ZoneInfo\(key='UTC'\)|datetime\.timezone\.utc", "UTC", repr(value))


@functools.cache
def with_texts(count: int) -> Any:
    kind, keys = TEXTS
    return run(kind, keys[:count])


def with_flags_named(found: Any, keys: Sequence[Any]) -> Any:
    """Values that programs make themselves cannot be told from keys if those are booleans."""
    if isinstance(found, dict):
        return {name: with_flags_named(one, keys) for name, one in found.items()}
    if isinstance(found, list | tuple):
        return type(found)(with_flags_named(one, keys) for one in found)
    if isinstance(found, str):
        for place, key in enumerate(keys):
            if isinstance(key, bool):
                found = re.sub(rf"\b{key}\b", f"key {place}", found)
    return found


QUICK = ("struct of all",)
"""A type without Arrow kernels, of most others."""


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in KINDS]
)
def test_operators_take_keys_of_every_type(name: str) -> None:
    kind, keys = KINDS[name]
    of_texts = with_flags_named(with_texts(len(keys)), keys)
    for found, wanted in zip(run(kind, keys, of_texts[1]), of_texts, strict=True):
        assert found.keys() == wanted.keys()
        for one in wanted:
            assert found[one] == wanted[one], one


# A record with a field of every type goes through every kind of store and comes back.


SCALARS = {
    "b": ("boolean", True),
    "y": ("tinyint", -128),
    "h": ("smallint", 7),
    "i": ("int", -7),
    "n": ("bigint", 2**63 - 1),
    "f": ("float", 1.5),
    "x": ("double", float("inf")),
    "s": ("string", 'é"'),
    "r": ("binary", b"\x00\xff"),
    "d": ("date", dt.date(2024, 1, 31)),
    "t": ("timestamp", dt.datetime(2024, 1, 31, 12, tzinfo=dt.timezone.utc)),
    "z": ("timestamp_ntz", dt.datetime(2024, 1, 31, 12, 0, 0, 5)),
    "c": ("decimal(38,38)", decimal.Decimal("0." + "1" * 38)),
}
PLAIN = ", ".join(f"{name} {type_}" for name, (type_, _) in SCALARS.items())
MAPS = ", ".join(f"m{name} map<{type_},{type_}>" for name, (type_, _) in SCALARS.items())
NESTED = f"o struct<{PLAIN}>, a array<struct<{PLAIN}>>, mo map<struct<i:int,s:string>,array<date>>"
EVERY = f"{PLAIN}, {MAPS}, {NESTED}"
VALUES = {name: value for name, (_, value) in SCALARS.items()}
ROW: dict[str, Any] = {
    **VALUES,
    **{f"m{name}": [(value, value)] for name, value in VALUES.items()},
    "o": VALUES,
    "a": [VALUES, None, dict.fromkeys(VALUES)],
    "mo": [({"i": 1, "s": None}, [dt.date(1, 1, 1), None])],
}
KEY, VALUE = serdes.json("o struct<i:int,a:array<string>>, d date"), serdes.json(EVERY)
A_KEY = {"o": {"i": 1, "a": ["x", None]}, "d": dt.date(2024, 1, 31)}


class Keeps(Processor):
    """Puts each record into its store, and forwards what the store has."""

    def process(self, record: Record) -> None:
        kept = self.context.store("kept")
        kept.put(record.key, record.value)
        self.context.forward(Record(record.key, kept.get(record.key), record.timestamp))


def table(stream: KStream, **options: Any) -> Any:
    return stream.to_table(store=Materialized("t", **options)).to_stream()


def listed(stream: KStream) -> Any:
    counted = stream.group_by_key().aggregate(l=agg.collect_list("value"), store="l")
    return counted.to_stream().map_values(F.col("value.l")[0])


def first(stream: KStream, windows: Any) -> Any:
    grouped = stream.group_by_key().windowed_by(windows)
    made = grouped.aggregate(v=agg.last("value"), store="w").to_stream()
    return made.map(key=F.col("key.key"), value=F.col("value.v"))


def held(stream: KStream) -> Any:
    bounds = BufferConfig.unbounded()
    return (
        stream.to_table(store="t")
        .suppress(Suppressed.until_time_limit("1 ms", bounds), store="held")
        .to_stream()
    )


def joined(stream: KStream) -> Any:
    windows = JoinWindows.of_time_difference_with_no_grace("1 second")
    both = stream.join(
        stream.map_values(F.col("value.i")), windows=windows, store="j", v=F.col("left")
    )
    return both.map_values(F.col("value.v"))


def reduced(stream: KStream) -> Any:
    return stream.group_by_key().reduce(lambda first, second: second, store="r").to_stream()


ROADS: dict[str, Callable[[KStream], Any]] = {
    "stream": lambda stream: stream,
    "function": lambda stream: stream.map_values(lambda value: value, returns=VALUE),
    "repartition": lambda stream: stream.repartition(name="again"),
    "table": table,
    "table in memory": lambda stream: table(stream, in_memory=True),
    "table with ttl": lambda stream: stream.to_table(store="t", ttl="1 day").to_stream(),
    "versioned table": lambda stream: table(stream, history="1 day"),
    "suppress": held,
    "collect_list": listed,
    "reduce": reduced,
    "windows": lambda stream: first(stream, TimeWindows.of_size("1 second")),
    "sessions": lambda stream: first(stream, SessionWindows.of_inactivity_gap("1 second")),
    "stream join": joined,
    "processor": lambda stream: stream.process(
        Keeps, stores=[Stores.key_value("kept", key=KEY, value=VALUE)], returns=(KEY, VALUE)
    ),
}


@pytest.mark.parametrize("road", ROADS)
def test_every_type_comes_back(road: str) -> None:
    builder = StreamsBuilder()
    ROADS[road](builder.stream("in", key=KEY, value=VALUE)).to("out", key=KEY, value=VALUE)
    with TopologyTestDriver(builder.build()) as driver:
        given = driver.create_input_topic("in", KEY, VALUE)
        given.pipe_input(A_KEY, ROW, 1)
        given.pipe_input({**A_KEY, "d": None}, ROW, 100)
        found = driver.create_output_topic("out", KEY, VALUE).read_records()
    assert found[0].key == A_KEY
    assert found[0].value == ROW


UNWRITTEN: dict[str, Callable[[], Any]] = {
    "interval": lambda: F.col("value.t") - F.col("value.t"),
    "intervals": lambda: F.array(F.col("value.t") - F.col("value.t")),
    "months": lambda: F.make_ym_interval(F.lit(1)),
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_no_serde_writes_is_refused_where_it_is_declared(name: str) -> None:
    stream = StreamsBuilder().stream("in", key=KEY, value=VALUE)
    with pytest.raises(TopologyError, match="cast"):
        stream.map_values(UNWRITTEN[name]()).to("out")
    with pytest.raises(TopologyError, match=r"declare|cast"):
        stream.group_by_key().aggregate(l=agg.collect_list(UNWRITTEN[name]()), store="l")
