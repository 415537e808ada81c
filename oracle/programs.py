"""Programs drawn from a seed, as data: what `java/StreamsOracle.java` and everflow both build.

A program is a list of nodes ``{"op", "id", ...}``, inputs first. Keys and values are texts. There
are few functions, and they are the same on both sides: `filter` leaves out values that contain a
letter, `map_values` appends, `flat_map_values` gives the letters, `split` goes by their number,
`select_key` takes the value's last letter, `reduce` and `aggregate` keep the last twelve letters of
all (of a grouped table: of what was added and taken back), a joiner writes ``left&right``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
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
BRANCHES = ("few", "many")
"""Values of at most one letter, and longer ones; nulls are in no branch."""
Node = dict[str, Any]


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
            for node in self.nodes
            if node["op"] not in ("stream", "global_table", "sink", "child", "branch")
            and (node["op"] != "table" or "history" in node)
        )


def kind_of(windows: Node) -> str:
    return "session" if "gap" in windows else "sliding" if "difference" in windows else "windows"


def script(program: Program, drawn: random.Random, records: int) -> list[list[Any]]:
    """Records ``[topic, key, value, time, headers]``, of times from 100 on. Most have headers that
    tell which record it is. Where there is a wall clock it moves: no topic, and by how many ms in
    place of the time."""
    found: list[list[Any]] = []
    latest, clock = 100, any(node.get("clock") == "wall" for node in program.nodes)
    for number in range(records):
        latest += drawn.choice([0, 0, 1, 3, 10, 40])
        back = drawn.randint(0, program.jitter_ms) if drawn.random() < 0.3 else 0
        time = max(0, latest - back) // program.step_ms * program.step_ms
        key = drawn.choice([*KEYS, *KEYS, None])
        value = None if drawn.random() < 0.15 else drawn.choice(VALUES)
        headers = drawn.choice(_HEADERS)(str(number))
        found.append([drawn.choice(program.inputs), key, value, time, headers])
        if clock and drawn.random() < 0.3:
            found.append([None, None, None, drawn.choice([5, 15, 40]), []])
    if program.unordered:
        found += [[topic, "z", "last", latest + 10_000, []] for topic in program.inputs]
    return found


_HEADERS: tuple[Callable[[str], list[list[str | None]]], ...] = (
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
    keep = ~F.contains(F.col("value"), F.lit(node["without"]))
    return made[node["in"]].filter(keep, **_kept(node))


def _map(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    return made[node["in"]].map_values(F.concat("value", F.lit(node["suffix"])), **_kept(node))


def _key(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    letter = F.right(F.col("value"), F.lit(1))
    return made[node["in"]].select_key(F.when(F.length("value") > 0, letter).otherwise(F.lit("z")))


def _aggregated(_: StreamsBuilder, made: dict[str, Any], node: Node) -> Any:
    grouped, windows = made[node["in"]].group_by_key(name=node["id"]), node.get("windows")
    grouped, merger = _windowed(grouped, windows)
    if windows is not None and windows["results"] == "final":
        grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
    if node["op"] == "count":
        table = grouped.count(store=node["store"])
        if windows is None:
            return table.map_values(F.col("value").cast("string"), store=f"{node['store']}-text")
    elif node["op"] == "reduce":
        table = grouped.reduce(lambda all_, value: last(all_ + value), store=node["store"])
    else:
        table = grouped.aggregate(
            initializer=str,
            aggregator=lambda value, all_: last(all_ + value),
            returns="string",
            store=node["store"],
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
    left, right = made[node["left"]], made[node["right"]]
    join = left.left_join if node["kind"] == "left" else left.join
    both = F.concat(F.col("left"), F.lit("&"), F.coalesce(F.col("right"), F.lit("_")))
    return join(right, both, on=_letter(), name=node["id"], **_kept(node))


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
    kept: dict[str, Any] = {name: node[name] for name in ("store", "grace") if name in node}
    if "history" in node:
        kept["store"] = Materialized(node["store"], history=node["history"])
    return kept


_BUILD: dict[str, Any] = {
    "stream": lambda b, made, n: b.stream(n["topic"], key=TEXT, value=TEXT),
    "table": lambda b, made, n: b.table(n["topic"], key=TEXT, value=TEXT, **_kept(n)),
    "global_table": lambda b, made, n: b.global_table(
        n["topic"], key=TEXT, value=TEXT, store=n["store"]
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
    "repartition": lambda b, made, n: made[n["in"]].repartition(name=n["id"]),
    "transform_values": lambda b, made, n: transformed(made[n["in"]], n, _kept(n)),
    "process": lambda b, made, n: processed(made[n["in"]], n),
    "child": lambda b, made, n: made[n["in"]][n["which"]],
    "merge": lambda b, made, n: made[n["left"]].merge(made[n["right"]]),
    "to_table": lambda b, made, n: made[n["in"]].to_table(**_kept(n)),
    "to_stream": lambda b, made, n: made[n["in"]].to_stream(),
    "count": _aggregated,
    "reduce": _aggregated,
    "aggregate": _aggregated,
    "group_count": _group_aggregated,
    "group_reduce": _group_aggregated,
    "group_aggregate": _group_aggregated,
    "cogroup": _cogrouped,
    "foreign": _foreign,
    "suppress": _suppressed,
    "join": _joined,
    "sink": lambda b, made, n: made[n["in"]].to(n["topic"]),
}
