"""Programs drawn from a seed, as data: what `java/StreamsOracle.java` and everflow both build.

A program is a list of nodes ``{"op", "id", ...}``, inputs first. Keys and values are texts. There
are few functions, and they are the same on both sides: `filter` leaves out values that contain a
letter, `map_values` appends, `flat_map_values` gives the letters, `split` goes by their number,
`select_key` takes the value's last letter, `reduce` and `aggregate` keep the last twelve letters of
all (of a grouped table: of what was added and taken back), a joiner writes ``left&right``.

`nested` counts by keys that are structs or arrays, and a ``nested`` join by a foreign key looks
structs up; `maps` aggregates into maps whose keys are numbers, texts and others. All of these have
texts before and behind them: Java has texts in their place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
)
from oracle.processors import TEXT, last, processed, transformed

KEYS = ("a", "b", "c")
VALUES = ("x", "y", "xy", "zz", "")
BAD, ODD = "\0bad", "\0odd"
"""Stand for a value that `CHECKED` refuses, so that its record is skipped, and for bytes that are
no UTF-8: U+FFFD on both sides."""
BRANCHES = ("few", "many")
"""Values of at most one letter, and longer ones; nulls are in no branch."""
Node = dict[str, Any]


@dataclass(frozen=True)
class CheckedText:
    """Texts; one that begins with a byte that no UTF-8 has, 0xfe, is refused."""

    type = TEXT.type
    kind = "checked-text"

    def encode(self, value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    def decode(self, data: bytes | None) -> str | None:
        if data is not None and data[:1] == b"\xfe":
            raise ValueError("it begins with 0xfe")
        return None if data is None else data.decode("utf-8", "replace")


CHECKED: Any = CheckedText()


@dataclass
class Program:
    """``jitter_ms``: how far behind the latest time a record of a script may be. ``step_ms``: times
    are multiples of it. ``unordered``:
    outputs with results without a match, which the original may tell later than when the window
    closes (docs/differences.md); a script's last records close all windows."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    versioned: list[str] = field(default_factory=list)
    reuses: bool = False
    """Whether tables have their topics as changelogs."""
    jitter_ms: int = 60
    step_ms: int = 1

    def shape(self) -> str:
        """Its operators, as a short text."""
        return " ".join(
            node["op"]
            + (f":{node['kind']}" if "kind" in node else "")
            + (
                f":{kind_of(node['windows'])}" + f":{node['windows'].get('results', '')}"
                if node.get("windows")
                else ""
            )
            + (f":{node['does']}" if "does" in node else "")
            + (":values" if node.get("values") else "")
            + (f":{node['clock']}" if node.get("clock") else "")
            + (":grace" if "grace" in node else "")
            + (":versioned" if "history" in node else "")
            + (f":{node['nested']}" if "nested" in node else "")
            + (f":{node['keys']}" if "keys" in node else "")
            for node in self.nodes
            if node["op"] not in ("stream", "global_table", "sink", "child", "branch")
            and (node["op"] != "table" or "history" in node)
        )


def kind_of(windows: Node) -> str:
    return "session" if "gap" in windows else "sliding" if "difference" in windows else "windows"


def script(program: Program, drawn: random.Random, records: int) -> list[list[Any]]:
    """Records ``[topic, key, value, time, headers]``, of times from 100 on. Most have headers that
    tell which record it is. Where there is a wall clock it moves: no topic, and by how many ms in
    place of the time. Some records are skipped on both sides: their value is `BAD`, or they have
    no time, -1. Where a table keeps what was, many records are of the key and of the time of one
    shortly before them, or of the moment next to it, where a version begins."""
    whole = {node["topic"] for node in program.nodes if node["op"] == "global_table"}
    found: list[list[Any]] = []
    latest, clock = 100, any(node.get("clock") == "wall" for node in program.nodes)
    past = any("history" in node for node in program.nodes)
    for number in range(records):
        latest += drawn.choice([0, 0, 1, 3, 10, 40])
        back = drawn.randint(0, program.jitter_ms) if drawn.random() < 0.3 else 0
        time = max(0, latest - back) // program.step_ms * program.step_ms
        key = drawn.choice([*KEYS, *KEYS, None])
        if past and found and drawn.random() < 0.4:
            _, beside, _, near, _ = drawn.choice(found[-4:])
            near += drawn.choice([-1, 0, 1, 1]) * program.step_ms
            if beside is not None and near >= max(0, latest - program.jitter_ms):
                key, time, latest = beside, near, max(latest, near)
        value = None if drawn.random() < 0.15 else drawn.choice(VALUES)
        if drawn.random() < 0.02:
            key, value = drawn.choice([(ODD, value), (key, ODD), (ODD, ODD)])
        headers = drawn.choice(_HEADERS)(str(number))
        found.append([drawn.choice(program.inputs), key, value, time, headers])
        if drawn.random() < 0.1:
            found.append(_skipped(found[-1], drawn, timeless=found[-1][0] not in whole))
        if clock and drawn.random() < 0.3:
            found.append([None, None, None, drawn.choice([5, 15, 40]), []])
    if program.unordered:
        found += [[topic, "z", "last", latest + 10_000, []] for topic in program.inputs]
    return found


def _skipped(record: list[Any], drawn: random.Random, *, timeless: bool) -> list[Any]:
    """One that is like another, or has another key, and is skipped. ``timeless``: it may be one
    without a time, which ends the original's global tables."""
    topic, key, value, time, headers = record
    key = drawn.choice([key, key, *KEYS])
    skipped = [topic, key, BAD, time, headers]
    if not timeless:
        return skipped
    others = [[topic, key, value, -1, headers], [topic, key, None, -1, headers]]
    return drawn.choice([skipped, *others])


_HEADERS: tuple[Callable[[str], list[list[str | None]]], ...] = (
    lambda number: [["\0", number], ["", "\0"], ["a\0b", ""]],
    lambda number: [["\xe9\u20ac\U0001f600\ufffd", "\xff\xfe" + number], ["\n\r\t", "\xc3"]],
    lambda number: [],
    lambda number: [["n", number]],
    lambda number: [["n", number]],
    lambda number: [["n", number], ["twice", "1"], ["twice", ""], ["none", None]],
)


# --- in everflow ----------------------------------------------------------------------------------


def windowed_text(key: Any, value: Any) -> tuple[str, str | None]:
    return f"{key.key}@{key.start}-{key.end}", None if value is None else str(value)


def built(program: Program) -> Topology:
    """The program in everflow."""
    builder = StreamsBuilder()
    put_in(builder, program)
    return builder.build()


def put_in(builder: StreamsBuilder, program: Program) -> None:
    """The program in a builder that may have others, with other names."""
    made: dict[str, Any] = {}
    for node in program.nodes:
        made[node["id"]] = _BUILD[node["op"]](builder, made, node)


def _filter(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    without = node["without"]
    if "python" in node:
        return made[node["in"]].filter(
            lambda key, value: value is not None and without not in value, **_kept(node)
        )
    return made[node["in"]].filter(~F.contains(F.col("value"), F.lit(without)), **_kept(node))


def _map(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    suffix = node["suffix"]
    if "python" in node:
        return made[node["in"]].map_values(
            lambda value: None if value is None else value + suffix,
            returns="string",
            **_kept(node),
        )
    return made[node["in"]].map_values(F.concat("value", F.lit(suffix)), **_kept(node))


def _repartition(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    """``boxed``: its topic has structs, of which what is behind it sees nothing."""
    given, boxed = made[node["in"]], node.get("boxed")
    if boxed:
        given = given.map_values(F.struct(F.col("value").alias(boxed)))
    again = given.repartition(name=node.get("name", node["id"]), partitions=node.get("partitions"))
    return again.map_values(F.col(f"value.{boxed}")) if boxed else again


def _key(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    letter = F.right(F.col("value"), F.lit(1))
    return made[node["in"]].select_key(F.when(F.length("value") > 0, letter).otherwise(F.lit("z")))


def _aggregated(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    grouped, windows = made[node["in"]].group_by_key(name=node["id"]), node.get("windows")
    grouped, merger = _windowed(grouped, windows)
    if windows is not None and windows["results"] == "final":
        grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
    if node["op"] == "count":
        table = grouped.count(store=_store(node))
        if windows is None:
            return table.map_values(F.col("value").cast("string"), store=f"{node['store']}-text")
    elif node["op"] == "reduce":
        table = grouped.reduce(lambda all_, value: last(all_ + value), store=_store(node))
    else:
        table = grouped.aggregate(
            initializer=str,
            aggregator=lambda value, all_: last(all_ + value),
            returns="string",
            store=_store(node),
            **merger,
        )
    return table if windows is None else _shown(table, node)


def _windowed(grouped: Any, windows: Node | None) -> tuple[Any, dict[str, Any]]:
    """Grouped streams in windows, and what merges two sessions' texts."""
    if windows is None:
        return grouped, {}
    if "gap" in windows:
        sessions = SessionWindows(windows["gap"], windows["grace"])
        return grouped.windowed_by(sessions), {"merger": lambda one, two: last(one + two)}
    if "difference" in windows:
        return grouped.windowed_by(SlidingWindows(windows["difference"], windows["grace"])), {}
    cut = TimeWindows(windows["size"], windows["advance"], windows["grace"])
    return grouped.windowed_by(cut), {}


def _shown(table: Any, node: Node) -> Any:
    """A windowed table's results as texts."""
    if node["windows"]["results"] == "suppressed":
        closed = Suppressed.until_window_closes()
        table = table.suppress(closed, store=f"{node['store']}-suppressed")
    return table.to_stream().map(windowed_text, returns=("string", "string"))


def _group_aggregated(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    letter = F.right(F.col("value"), F.lit(1))
    group = F.when(F.length("value") > 0, letter).otherwise(F.lit("z"))
    grouped, store = made[node["in"]].group_by(group, name=node["id"]), node["store"]
    if node["op"] == "group_count":
        return grouped.count(store=store).map_values(
            F.col("value").cast("string"), store=f"{store}-text"
        )
    if node["op"] == "group_reduce":
        return grouped.reduce(
            lambda all_, value: last(f"{all_}+{value}"),
            lambda all_, value: last(f"{all_}-{value}"),
            store=store,
        )
    return grouped.aggregate(
        initializer=str,
        adder=lambda value, all_: last(f"{all_}+{value}"),
        subtractor=lambda value, all_: last(f"{all_}-{value}"),
        returns="string",
        store=store,
    )


def _foreign(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    left, right, on = made[node["left"]], made[node["right"]], _letter()
    join = left.left_join if node["kind"] == "left" else left.join
    both = F.concat(F.col("left"), F.lit("&"), F.coalesce(F.col("right"), F.lit("_")))
    if "nested" in node:
        on, nest = NESTED[node["nested"]](on), NESTED[node["nested"]](F.col("key"))
        right = (
            right.to_stream()
            .select_key(nest)
            .to_table(name=node["id"] + "-right", store=node["rekeyed"])
        )
    return join(right, both, on=on, name=node["id"], **_kept(node))


NESTED: dict[str, Callable[[Any], Any]] = {
    "struct": lambda one: F.struct(one.alias("a")),
    "deep": lambda one: F.struct(F.struct(one.alias("b"), F.lit(1).alias("c")).alias("a")),
    "array": lambda one: F.array(one, F.lit("-")),
    "structs": lambda one: F.array(F.struct(one.alias("a"))),
}
"""Keys around a text."""


def _text_of(key: Any) -> str:
    """The text in it."""
    if isinstance(key, str):
        return key
    return _text_of(key[0] if isinstance(key, list) else next(iter(dict(key).values())))


def _counted_by_nested(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    """Of a stream or a table, by the value's last letter."""
    letter = F.when(F.length("value") > 0, F.right(F.col("value"), F.lit(1))).otherwise(F.lit("z"))
    given = made[node["in"]]
    if "records" in node:
        given = given.filter(F.col("value").isNotNull())
    grouped = given.group_by(NESTED[node["nested"]](letter), name=node["id"])
    counted = grouped.count(store=node["store"])
    return counted.to_stream().map(
        lambda key, value: (_text_of(key), None if value is None else str(value)),
        returns=("string", "string"),
    )


MAP_KEYS: dict[str, Callable[[int], Any]] = {
    "string": str,
    "int": int,
    "bigint": lambda n: n + (1 << 40),
    "boolean": lambda n: n % 2 == 1,
    "date": lambda n: date(2026, 1, 1 + n),
    "timestamp": lambda n: datetime(2026, 1, 1, n, tzinfo=timezone.utc),
    "double": lambda n: n / 2,
    "decimal(10,2)": lambda n: Decimal(n) / 4,
}
"""Of a type, the key that stands for a number."""
MOST_LETTERS = 20
"""As many are counted of a value."""


def _mapped(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    """How often values of each length came, counted in a map; of booleans, of each parity."""
    key_of, parity = MAP_KEYS[node["keys"]], node["keys"] == "boolean"

    def counted(value: str, before: Any) -> Any:
        key = key_of(min(len(value), MOST_LETTERS))
        counts = dict(before)
        return {**counts, key: counts.get(key, 0) + 1}

    def told(value: Any) -> str:
        counts = dict(value)
        found = [
            (n, counts[key_of(n)])
            for n in range(2 if parity else MOST_LETTERS + 1)
            if key_of(n) in counts
        ]
        return ",".join(f"{n}={count}" for n, count in found)

    table = (
        made[node["in"]]
        .group_by_key(name=node["id"])
        .aggregate(
            initializer=dict,
            aggregator=counted,
            returns=f"map<{node['keys']},bigint>",
            store=node["map"],
        )
    )
    return table.map_values(told, returns="string", store=node["store"])


def _global_joined(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    left, right = made[node["left"]], made[node["right"]]
    join = left.left_join if node["kind"] == "left" else left.join
    both = F.concat(F.col("left"), F.lit("&"), F.coalesce(F.col("right"), F.lit("_")))
    # An empty text has no key.
    return join(right, both, on=F.when(F.length("value") > 0, _letter()))


def _letter() -> Any:
    """The value's last letter, made one of the keys."""
    key = F.translate(F.right(F.col("value"), F.lit(1)), "xyzpqrt&_", "abcabcabc")
    return F.when(F.length("value") > 0, key).otherwise(F.lit("c"))


def _cogrouped(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    left, right = (
        made[node[side]].group_by_key(name=f"{node['id']}-{side}") for side in ("left", "right")
    )
    both = left.cogroup(lambda value, all_: last(f"{all_}+{value}")).cogroup(
        right, lambda value, all_: last(f"{all_}*{value}")
    )
    windows = node.get("windows")
    both, merger = _windowed(both, windows)
    table = both.aggregate(str, store=node["store"], returns="string", **merger)
    return table if windows is None else _shown(table, node)


def _split(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    few, many = BRANCHES
    split = made[node["in"]].split(name=node["id"]).branch(F.length("value") < 2, name=few)
    return split.branch(F.length("value") > 1, name=many).no_default_branch()


def _suppressed(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    most = node["most"]
    buffer = BufferConfig.unbounded() if most is None else BufferConfig.max_records(most)
    limit = Suppressed.until_time_limit(node["wait"], buffer)
    return made[node["in"]].suppress(limit, store=node["store"]).to_stream()


def _joined(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    left, right = made[node["left"]], made[node["right"]]
    options = _kept(node)
    if node["right"] and hasattr(left, "key_changed"):
        options["name"] = node["id"]
    if "windows" in node:
        windows = node["windows"]
        options["windows"] = JoinWindows(windows["before"], windows["after"], windows["grace"])
    joiner = F.concat(
        F.coalesce(F.col("left"), F.lit("_")), F.lit("&"), F.coalesce(F.col("right"), F.lit("_"))
    )
    call = {"inner": "join", "left": "left_join", "outer": "outer_join"}[node["kind"]]
    return getattr(left, call)(right, joiner, **options)


def _kept(node: Node) -> dict[str, Any]:
    kept: dict[str, Any] = {name: node[name] for name in ("grace", "name") if name in node}
    return {**kept, "store": _store(node)} if "store" in node else kept


def _store(node: Node) -> Any:
    """None: its name is generated."""
    options = {name: node[name] for name in ("history", "retention", "logging") if name in node}
    return Materialized(node["store"], **options) if options else node["store"]


_BUILD: dict[str, Any] = {
    "stream": lambda b, made, n: b.stream(n["topic"], key=TEXT, value=CHECKED),
    "table": lambda b, made, n: b.table(n["topic"], key=TEXT, value=CHECKED, **_kept(n)),
    "global_table": lambda b, made, n: b.global_table(
        n["topic"], key=TEXT, value=CHECKED, store=n["store"]
    ),
    "global_join": _global_joined,
    "filter": _filter,
    "map_values": _map,
    "select_key": _key,
    "flat_map_values": lambda b, made, n: made[n["in"]].flat_map_values(
        lambda value: [*value] if value else [], returns="string"
    ),
    "split": _split,
    "branch": lambda b, made, n: made[n["in"]][n["which"]],
    "repartition": _repartition,
    "all": lambda b, made, n: made[n["in"]].filter(lambda key, value: True, **_kept(n)),
    "same": lambda b, made, n: made[n["in"]].map_values(
        lambda value: value, returns="string", **_kept(n)
    ),
    "peek": lambda b, made, n: made[n["in"]].peek(lambda key, value: None, **_kept(n)),
    "transform_values": lambda b, made, n: transformed(made[n["in"]], n, _kept(n)),
    "process": lambda b, made, n: processed(made[n["in"]], n),
    "child": lambda b, made, n: made[n["in"]][n["which"]],
    "merge": lambda b, made, n: made[n["left"]].merge(made[n["right"]]),
    "to_table": lambda b, made, n: made[n["in"]].to_table(**_kept(n)),
    "to_stream": lambda b, made, n: made[n["in"]].to_stream(),
    "count": _aggregated,
    "reduce": _aggregated,
    "aggregate": _aggregated,
    "nested": _counted_by_nested,
    "maps": _mapped,
    "group_count": _group_aggregated,
    "group_reduce": _group_aggregated,
    "group_aggregate": _group_aggregated,
    "cogroup": _cogrouped,
    "foreign": _foreign,
    "suppress": _suppressed,
    "join": _joined,
    "sink": lambda b, made, n: made[n["in"]].to(n["topic"]),
}
