"""Scripts cut into micro-batches, and what of a program's results does not depend on the cuts."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, NamedTuple, TypeAlias

from everflow import Topology
from everflow.topology.graph import SinkNode
from oracle.programs import Node, Program

MOST = 12
"""Records of one batch."""

Records: TypeAlias = "list[list[Any]]"
"""``[topic, key, value, time, headers]``, in order."""


def batches(records: Records, drawn: random.Random, topology: Topology) -> list[Records]:
    """A script cut into micro-batches, in the order in which their records are taken: one by one,
    or several topics' records at once, the earlier times first. What goes through a repartition
    topic meets what does not in the order of batches, not of records, so the times of such a
    program's batches rise."""
    if drawn.random() < 0.5:
        return [[record] for record in records]
    if any(isinstance(node, SinkNode) and node.kind != "sink" for node in topology.nodes):
        timed = [record for record in records if record[0] is not None and record[3] >= 0]
        times = iter(sorted(record[3] for record in timed))
        records = [
            record
            if record[0] is None or record[3] < 0
            else [*record[:3], next(times) + at, record[4]]
            for at, record in enumerate(records)
        ]
    cut = []
    while records:
        size = drawn.randint(1, MOST)
        clocks = [at for at, record in enumerate(records[:size]) if record[0] is None]
        size = max(1, min([size, *clocks]))  # a move of the clock is for itself
        cut.append(_taken(records[:size]))
        records = records[size:]
    return cut


def _taken(records: Records) -> Records:
    """A batch in the order in which a task takes it: always the oldest of its topics' next ones."""
    waiting = {topic: deque[Any]() for topic in sorted({record[0] for record in records})}
    for record in records:
        waiting[record[0]].append(record)
    return [
        min((queue for queue in waiting.values() if queue), key=lambda queue: queue[0][3]).popleft()
        for _ in records
    ]


def unsettled(program: Program) -> set[str]:
    """Nodes whose results on the way to the last one depend on the cuts, and those behind them: a
    join by a foreign key, whose questions and answers go through topics, one with a global table,
    which is read for itself, and where records meet that have gone through topics and such that
    have not; or through several topics, one of which has records of old times: the oldest is taken
    first, while the test driver has taken the others by then. On a broker they depend on how far
    each side has come in the original, too."""
    found, rounds, changed = set[str](), dict[str, int](), set[str]()
    routes, old, late = dict[str, set[str]](), set[str](), set[str]()
    for node in program.nodes:
        name, op = node["id"], node["op"]
        sides = [node[side] for side in ("in", "left", "right") if side in node]
        routes[name], crossed = _arrivals(node, sides, routes, changed)
        if old.intersection(crossed) or late.intersection(sides):
            late.add(name)
        if _gives_old_times(node) or old.intersection(sides):
            old.add(name)
        through = _goes_through(node)
        if op in _BY_KEY:
            given = {rounds[side] + (side in changed) for side in sides}
        else:
            given = {rounds[side] + through for side in sides} or {0}
            if not through and any(side in changed for side in sides):
                changed.add(name)
        if _changes_key(node):
            changed.add(name)
        rounds[name] = max(given)
        out_of_time = name in late and len(routes[name]) > 1
        by_itself = op in ("foreign", "global_join") or len(given) > 1 or out_of_time
        if by_itself or found.intersection(sides):
            found.add(name)
    return found


_BY_KEY = ("count", "reduce", "aggregate", "maps", "cogroup", "to_table", "join")
"""What sends records whose key has changed through a topic."""
_BY_LAST = ("foreign", "map_values", "filter", "join")
"""Tables whose content follows from the last entries of those before them."""


class InTurn(NamedTuple):
    """Nodes where only the order of each key's results is known, and those where not even that
    is."""

    of_keys: set[str]
    unknown: set[str]


def taken_in_turn(program: Program) -> InTurn:
    """Nodes whose results depend on which of several topics a task takes from first, and those
    behind them. Which is first no broker says; the original takes the topics in turn, as far as
    they have been fetched.

    One record has made several of equal times, which come to one place through two repartition
    topics; in a join of tables each key's results are in order. Or it has made several entries of
    one key, which come to the left side of a join by a foreign key through a topic: an entry is
    answered before the next one comes, or is gone by then. Or several entries of one key come at
    once to a table that is joined with one made of it, behind a topic: the test driver takes what
    follows from the first of them before the second."""
    found, above = InTurn(set(), set()), dict[str, set[str]]()
    routes, changed, several = dict[str, set[str]](), set[str](), set[str]()
    of_one_key, apart = set[str](), set[str]()
    for node in program.nodes:
        name, op = node["id"], node["op"]
        sides = [node[side] for side in ("in", "left", "right") if side in node]
        above[name] = {name}.union(*(above[side] for side in sides))
        routes[name], crossed = _arrivals(node, sides, routes, changed)
        stays = op not in _BY_KEY and not _goes_through(node)
        if _changes_key(node) or (stays and any(side in changed for side in sides)):
            changed.add(name)
        meet = len(sides) > 1 and bool(above[sides[0]] & above[sides[-1]])
        if meet or _gives_several(node) or several.intersection(sides):
            several.add(name)
        if apart.intersection(sides) or of_one_key.intersection(crossed):
            apart.add(name)
        two_keys = (
            op.startswith("group_") or op == "nested"
        )  # what was and what is: one key has one of them
        if meet or (_gives_several(node) and not two_keys) or of_one_key.intersection(sides):
            of_one_key.add(name)
        two = meet and len(routes[name] - {""}) > 1
        kept = "store" in node or "tables" in node
        of_tables = op == "join" and kept and not {"grace", "windows"} & node.keys()
        keyed = of_tables or (op in _OF_KEYS and "windows" not in node)
        folds = op == "cogroup"  # one record comes to it by two topics
        open_order = two and not of_tables and (folds or bool(several.intersection(sides)))
        open_order |= op == "foreign" and node["left"] in apart
        of_each_other = of_tables and any(
            one in apart and one in above[other] for one in sides for other in sides if one != other
        )
        open_order |= two and of_each_other
        one_of_keys = bool(found.of_keys.intersection(sides))
        if found.unknown.intersection(sides) or open_order or (one_of_keys and not keyed):
            found.unknown.add(name)
        elif one_of_keys or (two and of_tables):
            found.of_keys.add(name)
    return found


_OF_KEYS = (
    *("filter", "map_values", "transform_values", "flat_map_values", "split", "branch"),
    *("repartition", "to_stream", "to_table", "count", "reduce", "aggregate", "maps", "sink"),
)
"""Where the results of each key depend on the records of that key alone."""


def _arrivals(
    node: Node, sides: list[str], routes: dict[str, set[str]], changed: set[str]
) -> tuple[set[str], list[str]]:
    """Through which topics records come to a node, and which of its sides come through one of their
    own."""
    came = [_routes(node, side, routes[side], side in changed) for side in sides]
    crossed = [side for side, by in zip(sides, came, strict=True) if by != routes[side]]
    return set[str]().union(*came), crossed


def _routes(node: Node, side: str, before: set[str], changed: bool) -> set[str]:
    """Through which topics records of a side come to a node; "" is none."""
    name = node["id"]
    if _goes_through(node) or (changed and node["op"] in _BY_KEY):
        return {f"{name}-{side}"}
    return before or {""}


def _goes_through(node: Node) -> bool:
    """Whether it sends all through a topic, with their keys changed or not."""
    op: str = node["op"]
    return op in ("repartition", "nested") or op.startswith("group_")


def _changes_key(node: Node) -> bool:
    op = node["op"]
    if "windows" in node and op != "join":
        return True
    return op in ("select_key", "nested") or (op == "process" and not node.get("values"))


def _gives_old_times(node: Node) -> bool:
    """Whether results may be older than the record that brings them out: what has waited, and the
    deletion of a session that goes into a later one. Results without a match go to sinks."""
    waits = node.get("wait", 0) > 0 or (node["op"] == "join" and node.get("grace", 0) > 0)
    windows = node.get("windows", {})
    return waits or "gap" in windows or windows.get("results") in ("suppressed", "final")


def _gives_several(node: Node) -> bool:
    op = node["op"]
    several = ("suppress", "process", "flat_map_values")
    several_keys = op == "nested" and "records" not in node
    return op in several or several_keys or op.startswith("group_") or "windows" in node


def left_out(program: Program, behind: set[str]) -> tuple[set[str], set[str], set[str]]:
    """Where the results of the nodes ``behind`` are not compared: outputs, stores, and times of
    stores."""
    nodes = {node["id"]: node for node in program.nodes}
    outputs = {
        node["topic"] for node in program.nodes if node["op"] == "sink" and node["id"] in behind
    }
    open_ends = set[str]()
    for node in program.nodes:
        sides = {node.get(side) for side in ("in", "left", "right")}
        if node["id"] in behind and (sides & open_ends or node["op"] not in _BY_LAST):
            open_ends.add(node["id"])
    stores = {nodes[name]["store"] for name in open_ends if "store" in nodes[name]}
    times = {nodes[name]["store"] for name in behind if "store" in nodes[name]}
    return outputs, stores, times
