"""What a program may change of a store that has data, and what a refusal says."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from everflow import JoinWindows, StreamsBuilder, Suppressed, TimeWindows, agg, serdes
from everflow.errors import StoreLayoutError
from everflow.operators.agg import Aggregator
from everflow.operators.aggregates.aggregate import AggregateSpec
from everflow.operators.table import TableSpec
from everflow.serdes import Serde
from everflow.serdes.by_record import adopted
from everflow.state.store import StoreSpec
from everflow.topology.compatibility import layouts_to_keep, require_readable
from everflow.topology.graph import EdgeType, StatefulNode
from everflow.topology.program import Topology
from everflow.topology.store_layouts import (
    Kept,
    StoreLayout,
    differing_types,
    differing_words,
    digest,
    fingerprint,
    from_json,
    gone_in,
    kept_text,
    layout_of,
    newest,
    program_in,
    reads_in,
    repartition_in,
    repartition_words,
    serde_words,
    to_text,
    topics_in,
)
from everflow.topology.stream_times import timed_by, times_text
from everflow.topology.subtopologies import cut
from unit.builders import store_spec

TEXT = serdes.string()
EDGE = EdgeType(pa.string(), pa.string())


ROOM = 2_400


def store(value: Serde, key: Serde = TEXT, **other: Any) -> StoreSpec:
    return store_spec("totals", key=key, value=value, where="shop.py:12", **other)


def packed(schema: str, *folds: str) -> StoreSpec:
    return store(serdes.packed(schema), folds=folds)


def struct(schema: str) -> pa.DataType:
    return serdes.arrow_type(schema)


def program(*stores: StoreSpec) -> Topology:
    return Topology(
        tuple(
            StatefulNode(
                f"AGG-{at}",
                (),
                EDGE,
                "AGGREGATE",
                TableSpec(one.name, one.key_serde, one.value_serde),
                (one,),
            )
            for at, one in enumerate(stores)
        )
    )


def restarted(before: StoreSpec, after: StoreSpec) -> None:
    """``before`` ran and committed; now ``after`` starts."""
    written = to_text(layouts_to_keep("shop", program(before), []), ROOM)
    layouts_to_keep("shop", program(after), [from_json(json.loads(written))])


@dataclass
class Own:
    type: str = "bigint"

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)


class Another(Own):
    """The same type, and who knows which bytes."""


NOT_NULL = pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])
SAME = {
    "nothing": (packed("n bigint, total double"), packed("n bigint, total double")),
    "nulls": (store(serdes.packed(NOT_NULL)), packed("n bigint, s string")),
    "order in JSON, which is read by name": (
        store(serdes.json("a int, b string")),
        store(serdes.json("b string, a int")),
    ),
    "order deep in JSON": (
        store(serdes.json("a array<struct<x: int, y: map<string, struct<p: int, q: int>>>>")),
        store(serdes.json("a array<struct<y: map<string, struct<q: int, p: int>>, x: int>>")),
    ),
    "order in the JSON of a packed field": (
        packed("s struct<a: int, b: int>"),
        packed("s struct<b: int, a: int>"),
    ),
    "line": (packed("n bigint"), replace(packed("n bigint"), where="other.py:99")),
    "retention, by which the store is rebuilt": (
        replace(packed("n bigint"), kind="session", retention_ms=1),
        replace(packed("n bigint"), kind="session", retention_ms=2),
    ),
}
OTHER = {
    "order": (packed("n bigint, total bigint"), packed("total bigint, n bigint")),
    "type": (packed("total bigint"), packed("total double")),
    "narrower type": (packed("total bigint"), packed("total int")),
    "digits": (packed("total decimal(10,2)"), packed("total decimal(10,4)")),
    "a field more": (packed("n bigint"), packed("n bigint, total bigint")),
    "a field less": (packed("n bigint, total bigint"), packed("n bigint")),
    "names only": (packed("n bigint"), packed("m bigint")),
    "aggregate of the same name and type": (packed("x bigint", "sum"), packed("x bigint", "max")),
    "function instead of a built-in": (packed("n bigint", "count"), store(serdes.json("n bigint"))),
    "type in JSON": (store(serdes.json("a int")), store(serdes.json("a string"))),
    "a field of JSON more": (store(serdes.json("a int")), store(serdes.json("a int, b int"))),
    "name deep in JSON": (
        store(serdes.json("a array<struct<x: int>>")),
        store(serdes.json("a array<struct<y: int>>")),
    ),
    "format": (store(serdes.json("a int")), packed("a int")),
    "format of a number": (store(serdes.json("bigint")), store(serdes.long())),
    "own serde": (store(adopted(Own())), store(adopted(Another()))),
    "type of the key": (store(serdes.long()), store(serdes.long(), serdes.long())),
    "order in a JSON key, whose bytes are compared": (
        store(serdes.long(), serdes.json("a int, b int")),
        store(serdes.long(), serdes.json("b int, a int")),
    ),
    "order deep in a packed key": (
        store(serdes.long(), serdes.packed("k struct<a: int, b: int>")),
        store(serdes.long(), serdes.packed("k struct<b: int, a: int>")),
    ),
    "windows": (
        packed("n bigint"),
        replace(packed("n bigint"), kind="window", window_size_ms=1000, retention_ms=1000),
    ),
    "size of windows": (
        replace(packed("n bigint"), kind="window", window_size_ms=1000, retention_ms=9000),
        replace(packed("n bigint"), kind="window", window_size_ms=2000, retention_ms=9000),
    ),
    "size of windows in the key": (
        store(serdes.long(), serdes.time_windowed(TEXT, 1000)),
        store(serdes.long(), serdes.time_windowed(TEXT, 2000)),
    ),
    "unit of time": (
        store(serdes.packed(pa.struct([("t", pa.timestamp("us"))]))),
        store(serdes.packed(pa.struct([("t", pa.timestamp("ns"))]))),
    ),
    "width of offsets, by which a text is packed": (
        store(serdes.packed(pa.struct([("t", pa.string())]))),
        store(serdes.packed(pa.struct([("t", pa.large_string())]))),
    ),
}


@pytest.mark.parametrize("change", SAME)
def test_what_is_read_as_it_was_written_is_accepted(change: str) -> None:
    before, after = SAME[change]
    restarted(before, after)
    restarted(after, before)


@pytest.mark.parametrize("change", OTHER)
def test_what_would_be_read_as_something_else_is_refused(change: str) -> None:
    before, after = OTHER[change]
    for one, other in ((before, after), (after, before)):
        with pytest.raises(StoreLayoutError, match=r"\n +before: .*\n +now:    "):
            restarted(one, other)


@pytest.mark.parametrize("width", [pa.string(), pa.large_string()])
def test_a_wide_text_is_packed_in_other_bytes(width: pa.DataType) -> None:
    serde = serdes.packed(pa.struct([("t", width)]))
    assert (serde.encode({"t": "x"}) == serdes.packed("t string").encode({"t": "x"})) == (
        width == pa.string()
    )


def test_json_written_in_another_order_is_read_by_its_names() -> None:
    one, other = (
        serdes.json("a int, b struct<x: int, y: int>"),
        serdes.json("b struct<y: int, x: int>, a int"),
    )
    value = {"a": 1, "b": {"x": 2, "y": 3}}
    assert other.decode(one.encode(value)) == value
    assert layout_of(store(one)) == layout_of(store(other))


@pytest.mark.parametrize(
    ("then", "now", "before", "after"),
    [
        ("a string, n bigint", "a string, n double, z date", "n bigint, no z", "n double, z date"),
        ("a struct<b int, c date>", "a struct<b int, c string>", "a.c date", "a.c string"),
        ("a array<struct<x int, y int>>", "a array<struct<x int>>", "a[].y int", "no a[].y"),
        (
            "a decimal(10, 2), b int",
            "a decimal(12, 2), b int",
            "a decimal(10, 2)",
            "a decimal(12, 2)",
        ),
        ("a int, b int", "b int, a int", "order a, b", "order b, a"),
        ("a struct<b int, c int>", "a struct<c int, b int>", "order in a b, c", "order in a c, b"),
        ("`a b, c` int, d int", "`a b, c` int, d date", "d int", "d date"),
        ("n int (count)", "n int (count), m int (max)", "no m", "m int (max)"),
        ("a string as JSON", "a string as Avro", "written as JSON", "written as Avro"),
        ("bigint", "string", "bigint", "string"),
        ("a int", "bigint", "a int", "bigint"),
    ],
)
def test_of_two_types_what_differs_is_shown(then: str, now: str, before: str, after: str) -> None:
    assert differing_words(then, now) == (before, after)


def test_of_the_types_of_a_node_what_differs_is_shown() -> None:
    old, new = ("SINK: string -> struct<a:int>", "SINK: string -> struct<a:int,b:string>")
    assert differing_types(old, new) == ("no value.b", "value.b string")
    other = "SINK: bigint -> struct<a:int>"
    assert differing_types(old, other) == (old, other), "of more than the values all is shown"


def test_the_message_says_where_what_and_what_to_do() -> None:
    before, after = (
        packed("n bigint, total bigint", "count", "sum"),
        packed("total bigint, n bigint", "sum", "count"),
    )
    with pytest.raises(StoreLayoutError) as refused:
        restarted(before, after)
    told = str(refused.value).splitlines()
    assert told[0].startswith("Application shop has stored ")
    assert told[1:5] == [
        "  store totals: its values have another type or format",
        "      at:     shop.py:12",
        "      before: value order n, total",
        "      now:    value order total, n",
    ]
    assert refused.value.difference.splitlines() == told[1:5]
    for cure in (
        "everflow migrate",
        "write the operator as it was",
        "an application.id of its own",
        "To start shop over from its input: stop all",
    ):
        assert cure in str(refused.value)


def test_every_store_and_every_part_that_differs_is_told() -> None:
    ran = program(store(serdes.long()), replace(store(TEXT), name="names"))
    changed = program(
        store(serdes.double(), serdes.long()), replace(store(serdes.bytes_()), name="names")
    )
    with pytest.raises(StoreLayoutError) as refused:
        layouts_to_keep("shop", changed, [layouts_to_keep("shop", ran, [])])
    told = [line.strip().partition(":")[::2] for line in refused.value.difference.splitlines()]
    assert [(word, text.strip()) for word, text in told if word in ("before", "now")] == [
        ("before", "value string"),
        ("now", "value binary"),
        ("before", "key string; value bigint"),
        ("now", "key bigint; value double"),
    ]
    assert [word for word, _ in told if word.startswith("store")] == ["store names", "store totals"]


def test_offsets_of_before_without_layouts_are_accepted() -> None:
    assert layouts_to_keep("shop", program(packed("n bigint")), [{}, {}]) == {
        "totals": layout_of(packed("n bigint"))
    }


def test_one_partition_that_differs_is_enough() -> None:
    same, other = ({"totals": layout_of(packed(schema))} for schema in ("n bigint", "n int"))
    for found in ([same, other], [other, same]):
        with pytest.raises(StoreLayoutError, match="stored"):
            layouts_to_keep("shop", program(packed("n bigint")), found)


def test_a_store_that_the_program_has_no_more_is_not_forgotten() -> None:
    ran = layouts_to_keep("shop", program(packed("n bigint")), [])
    without = layouts_to_keep("shop", program(), [ran])
    assert without == ran
    with pytest.raises(StoreLayoutError):
        layouts_to_keep("shop", program(packed("n int")), [without])


def test_layouts_without_room_become_digests_the_longest_first() -> None:
    long = StoreLayout(
        "key_value", "string", ", ".join(f"field{n} bigint" for n in range(ROOM // 10))
    )
    short = StoreLayout("key_value", "string", "n bigint")
    text = to_text({"long": long, "short": short}, ROOM)
    assert len(text) <= ROOM
    assert from_json(json.loads(text)) == {"long": digest(long), "short": short}
    assert to_text(from_json(json.loads(text)), ROOM) == text
    assert to_text({f"store-{n}": short for n in range(ROOM // 20)}, ROOM) == ""


def test_a_digest_is_compared_too() -> None:
    now = packed("n bigint")
    assert layouts_to_keep("shop", program(now), [{"totals": digest(layout_of(now))}]) == {
        "totals": layout_of(now)
    }
    with pytest.raises(StoreLayoutError, match="words"):
        layouts_to_keep("shop", program(now), [{"totals": digest(layout_of(packed("m bigint")))}])


def test_names_that_are_no_words_are_quoted() -> None:
    odd = pa.struct([("a bigint, b", pa.int64()), ("`", pa.int64())])
    assert layout_of(store(serdes.packed(odd))).value == "`a bigint, b` bigint, ```` bigint"


def test_a_built_in_aggregate_says_what_makes_its_fields() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("t", key=TEXT, value=TEXT).group_by_key()
    grouped.count(store="counts")
    grouped.windowed_by(TimeWindows.of_size("1 second")).aggregate(store="windows", n=agg.count())
    grouped.aggregate(store="own", initializer=int, aggregator=lambda _, n: n + 1, returns="bigint")
    stores = {
        one.name: layout_of(one)
        for node in builder.build().nodes
        if isinstance(node, StatefulNode)
        for one in node.stores
    }
    assert stores == {
        "counts": StoreLayout("key_value", "string", "bigint (count)"),
        "windows": StoreLayout("window of 1000 ms", "string", "n bigint (count)"),
        "own": StoreLayout("key_value", "string", "bigint"),
    }


def test_a_mean_has_two_fields() -> None:
    spec = AggregateSpec.of(
        "s", TEXT, [Aggregator(kind="avg", column="a0")], ["mean"], struct("a0 int, a1 int")
    )
    words = layout_of(store(spec.value_serde, folds=tuple(column.op for column in spec.columns)))
    assert words.value == "mean.sum double (sum), mean.count bigint (count)"


def test_what_java_writes_otherwise_is_refused_by_name_and_line() -> None:
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=TEXT, value=TEXT)
    visits.group_by_key().count(store="counts").suppress(
        Suppressed.until_time_limit("1 minute"), store="held"
    )
    visits.group_by_key().aggregate(store="packed", n=agg.count(), all=agg.collect_list("value"))
    windows = JoinWindows.of_time_difference("1 minute")
    visits.left_join(builder.stream("others", key=TEXT, value=TEXT), windows=windows, store="pair")
    with pytest.raises(StoreLayoutError, match=r"Kafka Streams \(Java\)") as raised:
        require_readable("shop", builder.build())
    told = str(raised.value)
    for store_name in ("held", "packed", "pair-left-shared-join-store"):
        assert f"store {store_name}: " in told
    assert "store counts" not in told
    assert "test_store_layouts.py" in told


def test_what_java_writes_alike_is_accepted() -> None:
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=TEXT, value=TEXT)
    visits.group_by_key().count(store="counts")
    visits.group_by_key().windowed_by(TimeWindows.of_size("1 minute")).count(store="windows")
    windows = JoinWindows.of_time_difference("1 minute")
    visits.join(builder.stream("others", key=TEXT, value=TEXT), windows=windows, store="pair")
    require_readable("shop", builder.build())


def test_what_java_has_serdes_of_is_told_from_json_of_the_same_type() -> None:
    words = {
        serde_words(serde)
        for serde in (
            *(serdes.boolean(), serdes.short(), serdes.float_()),
            *(serdes.list_(serdes.int_()), serdes.list_(serdes.json("int")), serdes.list_(TEXT)),
            *map(serdes.json, ("boolean", "smallint", "float", "array<int>", "array<string>")),
        )
    }
    assert len(words) == 11
    assert {"boolean", "smallint", "float", "list of int", "list of int as JSON"} <= words


# What is kept beside the layouts.

Texts = list[dict[str, Kept]]


def by_words(value: Serde = TEXT, name: str = "by-words") -> Topology:
    builder = StreamsBuilder()
    read = builder.stream("in", key=TEXT, value=value)
    read.repartition(name=name).group_by_key().count(store="counts")
    return builder.build()


def ran(topology: Topology, found: Texts, room: int = ROOM) -> dict[str, Kept]:
    """A program starts on what was found; what it keeps."""
    kept = layouts_to_keep("shop", topology, found)
    text = kept_text(kept, cut(topology), found, room)
    assert len(text) <= room
    return from_json(json.loads(text or "{}"))


def test_a_program_its_repartition_topics_and_its_inputs_are_kept() -> None:
    topology = by_words()
    kept = ran(topology, [{}])
    assert kept == {
        "*": digest(fingerprint(cut(topology))),
        "*:0": "in",
        "*:1": "*by-words-repartition",
        "*:times": times_text(timed_by(topology)),
        "*by-words-repartition": digest(("string", "string")),
        "counts": StoreLayout("key_value", "string", "bigint (count)"),
    }
    assert repartition_words(topology) == {"by-words-repartition": ("string", "string")}
    assert reads_in(kept) == {0: ["in"], 1: ["*by-words-repartition"]}
    assert topics_in([kept]) == {
        "changelog": {"counts-changelog"},
        "repartition": {"by-words-repartition"},
    }


def test_a_partition_of_the_program_before_does_not_count() -> None:
    """Nothing was processed in it since: its text stays, and would tell the wrong types."""
    first = ran(by_words(), [])
    second = ran(by_words(serdes.bytes_()), [first])
    third = ran(by_words(), [first, second])
    assert [str(one["*"]).partition(".")[2] for one in (first, second, third)] == ["", "1", "2"]
    assert ran(by_words(), [first, second, third]) == third
    for found in ([first, second], [second, first]):
        assert newest(found) == second
        assert repartition_in(newest(found)) == {
            "by-words-repartition": digest(("string", "binary"))
        }
    assert program_in(third) == program_in(first)
    assert program_in(third) != program_in(second)


def test_what_a_program_has_no_more_is_passed_on_and_named() -> None:
    first = ran(by_words(), [])
    second = ran(by_words(name="others"), [first])
    assert second["*by-words-repartition"] == first["*by-words-repartition"]
    assert gone_in(second) == {"*by-words-repartition"}
    again = ran(by_words(), [first, second])
    assert gone_in(again) == {"*others-repartition"}
    assert topics_in([again])["repartition"] == {"by-words-repartition", "others-repartition"}


def test_where_there_is_no_room_the_least_needed_goes_first() -> None:
    topology = by_words()
    whole = ran(topology, [])
    size = len(json.dumps(whole, separators=(",", ":")))
    rooms = {room: ran(topology, [], room) for room in (size, size - 1, 130, 80, 40)}
    assert rooms[size] == whole
    assert reads_in(rooms[size - 1]) is None
    assert rooms[size - 1].items() <= whole.items()
    assert repartition_in(rooms[130]) == {"by-words-repartition": whole["*by-words-repartition"]}
    assert repartition_in(rooms[80]) == {}
    assert rooms[80] == {"counts": whole["counts"]}
    assert rooms[40] == {"counts": digest(StoreLayout("key_value", "string", "bigint (count)"))}


def of_a_release_before(topology: Topology, found: Texts) -> dict[str, Kept]:
    """What releases without digests wrote of the same text: their names, all values empty."""
    mine = layouts_to_keep("shop", topology, [])
    kept = {**{name: value for one in found for name, value in one.items()}, **mine}
    names = {name for one in found for name in one if name.startswith("*")}
    names |= {f"*{name}" for name in repartition_words(topology)}
    assert all(isinstance(kept.get(name, ""), str) for name in names), "or they leave it out"
    return {**kept, "*": "", **dict.fromkeys(names, "")}


def test_an_older_release_passes_the_entries_on_and_its_own_are_read() -> None:
    first = ran(by_words(), [])
    between = of_a_release_before(by_words(), [from_json(json.loads(json.dumps(first)))])
    assert between.keys() == first.keys()
    assert topics_in([between]) == topics_in([first])
    assert (reads_in(between), program_in(between)) == (None, None)
    assert repartition_in(between) == {"by-words-repartition": ""}
    assert ran(by_words(), [between]) == first
