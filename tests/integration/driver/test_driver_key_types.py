"""With keys, groups, foreign keys and ids of any type operators give what they give for texts."""

import datetime as dt
import functools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import Stores, StreamsBuilder, TimeWindows, agg, serdes
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
    "struct with a map": (
        "struct<m: map<string, int>>",
        [{"m": {}}, {"m": {"x": 7}}, {"m": None}],
    ),
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
