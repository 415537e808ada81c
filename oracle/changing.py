"""Draws a second version of a program: changes that keep what it means, and such that touch what is
stored (`checks`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from oracle.programs import NESTED, Node, Program
from oracle.settled import GRACE_MS, DrawSettled

SIDES = ("in", "left", "right")
_TABLES = ("table", "to_table", "foreign", "maps", "group_count", "global_table")
_NEVER_STREAMS = ("split", "sink", "global_table")


class DrawStored(DrawSettled):
    """Programs with more kinds of what is stored."""

    def drawn_program(self) -> Program:
        super().drawn_program()
        for step in self._drawn.sample([self._nested, self._maps, self._boxed], 2):
            step()
        return self.program

    def _nested(self) -> None:
        given, store = self._stream(), self._store()
        more = {"records": True, "nested": self._drawn.choice(list(NESTED)), "store": store}
        self._sink(self._add("nested", **{"in": given}, **more), as_table=True)
        self.program.stores.append(store)

    def _maps(self) -> None:
        keys, store = self._drawn.choice(["int", "string", "date"]), self._store()
        more = {"keys": keys, "map": f"{store}-map", "store": store}
        name = self._add("maps", **{"in": self._stream()}, **more)
        self._sink(self._add("to_stream", **{"in": name}), as_table=True)
        self.program.stores += [store, more["map"]]

    def _boxed(self) -> None:
        name = self._add("repartition", **{"in": self._stream()}, boxed="v")
        store = self._store()
        counted = self._add("count", **{"in": name}, store=store)
        self._sink(self._add("to_stream", **{"in": counted}), as_table=True)
        self.program.stores.append(store)


@dataclass
class Changed:
    """The second version. ``fresh``: nodes whose stores begin empty; ``aside``: nodes that mean
    something else from now on, so nothing behind them is compared; ``moved``: new outputs and those
    they go on from; ``replaced``: new inputs and those in whose place they are read; ``grown``:
    inputs and the partitions that they get; ``written``: repartition topics in which records wait;
    ``static``: inputs that are written before all else."""

    program: Program
    kinds: list[str] = field(default_factory=list)
    fresh: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    grown: dict[str, int] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    static: set[str] = field(default_factory=set)

    def node(self, name: str) -> Node:
        return next(one for one in self.program.nodes if one["id"] == name)

    def of(self, *ops: str, having: Callable[[Node], bool] = lambda node: True) -> list[Node]:
        return [one for one in self.program.nodes if one["op"] in ops and having(one)]

    def above(self, name: str) -> set[str]:
        """The node and all before it."""
        node = self.node(name)
        return {name}.union(*(self.above(node[side]) for side in SIDES if side in node))

    def below(self, names: set[str]) -> set[str]:
        """The nodes and all behind them."""
        found = set(names)
        for node in self.program.nodes:
            if found & {node.get(side) for side in SIDES}:
                found.add(node["id"])
        return found

    def is_table(self, name: str) -> bool:
        node = self.node(name)
        op = node["op"]
        if op in ("count", "reduce", "aggregate", "cogroup"):
            return "windows" not in node
        if op == "join":
            return "windows" not in node and self.is_table(node["left"])
        if op in ("filter", "map_values", "transform_values"):
            return self.is_table(node["in"])
        return op in _TABLES

    def streams(self) -> list[str]:
        return [
            one["id"]
            for one in self.program.nodes
            if one["op"] not in _NEVER_STREAMS
            and not (one["op"] == "process" and one["does"] == "split")
            and not self.is_table(one["id"])
        ]

    def is_timed(self, name: str) -> bool:
        """Whether its results depend on how the records of different keys meet."""
        node = self.node(name)
        windows = node.get("windows", {})
        return (
            windows.get("grace", GRACE_MS) < GRACE_MS
            or "grace" in node
            or "history" in node
            or node["op"] in ("process", "suppress")
        )

    def new(self, what: str) -> str:
        """A name that is not taken."""
        first = self.program.nodes[0]["id"]
        taken = {str(value) for node in self.program.nodes for value in node.values()}
        numbers = count(len(self.program.nodes))
        names = (f"{first[: first.rindex('n')]}{what}{number}x" for number in numbers)
        return next(name for name in names if name not in taken)

    def put(self, node: Node, at: int | None = None) -> str:
        self.program.nodes.insert(len(self.program.nodes) if at is None else at, node)
        return str(node["id"])

    def sink(self, stream: str, *, at: int | None = None, begins: bool = False) -> None:
        """A new output. ``begins``: what it is of begins with it; else earlier results are missing
        in it, and it is not compared."""
        topic = self.new("out")
        self.program.outputs.append(topic)
        name = self.put({"op": "sink", "id": self.new("s"), "in": stream, "topic": topic}, at)
        if not begins:
            self.aside.add(name)

    def prune(self, unused: set[str]) -> None:
        """Leaves out nodes of these operators that nothing reads."""
        while True:
            read = {one.get(side) for one in self.program.nodes for side in SIDES}
            dead = [n for n in self.program.nodes if n["op"] in unused and n["id"] not in read]
            if not dead:
                return
            self.program.nodes = [n for n in self.program.nodes if n not in dead]


Change = Callable[[Changed, random.Random], bool]
"""Whether it could be made."""


# --- those that keep the meaning ------------------------------------------------------------------


def _insert(changed: Changed, drawn: random.Random) -> bool:
    streams = set(changed.streams())
    edges = [(n, side) for n in changed.program.nodes for side in SIDES if n.get(side) in streams]
    node, side = drawn.choice(edges)
    at = changed.program.nodes.index(node)
    op = drawn.choice(["same", "all", "peek"])
    node[side] = changed.put({"op": op, "id": changed.new("n"), "in": node[side]}, at)
    return True


def _shift(changed: Changed, drawn: random.Random) -> bool:
    """A branch at the front: all generated names behind it shift."""
    at, source = next((k, n) for k, n in enumerate(changed.program.nodes) if n["op"] == "stream")
    branch = changed.put({"op": "all", "id": changed.new("n"), "in": source["id"]}, at + 1)
    changed.sink(branch, at=at + 2)
    return True


def _branch(changed: Changed, drawn: random.Random) -> bool:
    given = drawn.choice(changed.streams())
    changed.sink(
        changed.put({"op": "map_values", "id": changed.new("n"), "in": given, "suffix": "w"})
    )
    return True


def _add_sink(changed: Changed, drawn: random.Random) -> bool:
    changed.sink(drawn.choice(changed.streams()))
    return True


def _rename(changed: Changed, drawn: random.Random, *, ops: Sequence[str], to: str) -> bool:
    """One of these operators. Of a table it is the source, whose names the numbers of
    sub-topologies follow."""
    found = changed.of(*ops)
    if not found:
        return False
    drawn.choice(found)["name"] = changed.new(to)
    return True


_NAMED = ("process", "filter", "map_values", "to_table")


def _other_lines(changed: Changed, drawn: random.Random) -> bool:
    """Another order; sources stay in theirs, for their numbers come from there. Of two sides of one
    stream the one whose line is first gets a record first, so aggregators of a cogroup change
    places."""
    left, nodes = list(changed.program.nodes), list[Node]()
    while left:
        have = {one["id"] for one in nodes}
        sources = [one for one in left if not any(side in one for side in SIDES)]
        ready = [
            one
            for one in left
            if all(one[side] in have for side in SIDES if side in one)
            and (one not in sources or one is sources[0])
        ]
        nodes.append(drawn.choice(ready))
        left.remove(nodes[-1])
    changed.program.nodes = nodes
    changed.aside |= {node["id"] for node in changed.of("cogroup")}
    return True


def _equal_function(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("filter", "map_values", having=lambda node: "python" not in node)
    if not found:
        return False
    drawn.choice(found)["python"] = True
    return True


def _equal_aggregate(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("reduce", "aggregate", having=lambda node: "windows" not in node)
    if not found:
        return False
    node = drawn.choice(found)
    node["op"] = {"reduce": "aggregate", "aggregate": "reduce"}[node["op"]]
    return True


def _other_output(changed: Changed, drawn: random.Random) -> bool:
    node = drawn.choice(changed.of("sink", having=lambda node: node["id"] not in changed.aside))
    old, node["topic"] = node["topic"], changed.new("out")
    if old in changed.moved:
        return False
    outputs, unordered = changed.program.outputs, changed.program.unordered
    outputs[outputs.index(old)] = node["topic"]
    if old in unordered:
        unordered[unordered.index(old)] = node["topic"]
    changed.moved[node["topic"]] = old
    return True


def _other_condition(changed: Changed, drawn: random.Random) -> bool:
    """Another condition or mapping: what is behind it is another matter from now on."""
    found = changed.of("filter", "map_values", having=lambda node: node.get("without") != "\0")
    if not found:
        return False
    node = drawn.choice(found)
    node["without" if node["op"] == "filter" else "suffix"] = "t"
    changed.aside.add(node["id"])
    return True


def _table_as_stream(changed: Changed, drawn: random.Random) -> bool:
    """A topic read as a table, or as a stream that is made one: the same store."""
    found = changed.of("table")
    if not found:
        return False
    node = drawn.choice(found)
    at = changed.program.nodes.index(node)
    source = {"op": "stream", "id": changed.new("n"), "topic": node.pop("topic")}
    node |= {"op": "to_table", "in": changed.put(source, at)}
    return True


# --- those that touch what is stored --------------------------------------------------------------


def _with_store(changed: Changed) -> list[Node]:
    return [n for n in changed.program.nodes if n.get("store") in changed.program.stores]


def _rename_store(changed: Changed, drawn: random.Random) -> bool:
    node = drawn.choice(_with_store(changed))
    old, node["store"] = node["store"], changed.new("store")
    changed.program.stores[changed.program.stores.index(old)] = node["store"]
    if "map" in node:  # what the store is made of, else it would go on
        old, node["map"] = node["map"], f"{node['store']}-map"
        if old in changed.program.stores:
            changed.program.stores[changed.program.stores.index(old)] = node["map"]
    changed.fresh.add(node["id"])
    return True


def _remove(changed: Changed, drawn: random.Random) -> bool:
    """A sink, and all that only it needs."""
    sinks = changed.of("sink")
    if len(sinks) < 2:
        return False
    gone = drawn.choice(sinks)
    changed.program.nodes.remove(gone)
    changed.program.outputs.remove(gone["topic"])
    if gone["topic"] in changed.program.unordered:
        changed.program.unordered.remove(gone["topic"])
    kept = ("stream", "table", "global_table", "branch", "child", "split")
    sources = drawn.random() < 0.5  # they stay, though nothing reads them
    changed.prune({n["op"] for n in changed.program.nodes} - {"sink", *(kept if sources else ())})
    changed.program.stores = [
        store
        for store in changed.program.stores
        if any(
            store in (n.get("store"), n.get("map"), n.get("calls")) for n in changed.program.nodes
        )
    ]
    return True


def _add_aggregate(changed: Changed, drawn: random.Random) -> bool:
    given, store = drawn.choice(changed.streams()), changed.new("store")
    name = changed.put({"op": "count", "id": changed.new("n"), "in": given, "store": store})
    stream = changed.put({"op": "to_stream", "id": changed.new("n"), "in": name})
    changed.sink(stream, begins=True)
    changed.program.stores.append(store)
    changed.fresh.add(name)
    return True


def _replace_aggregate(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("count", "reduce", "aggregate")
    if not found:
        return False
    node = drawn.choice(found)
    node["op"] = "reduce" if node["op"] == "count" else "count"
    changed.aside.add(node["id"])
    return True


def _key_type(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("nested")
    if not found:
        return False
    node = drawn.choice(found)
    node["nested"] = drawn.choice([one for one in NESTED if one != node["nested"]])
    changed.aside.add(node["id"])
    return True


def _value_type(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("maps")
    if not found:
        return False
    node = drawn.choice(found)
    node["keys"] = drawn.choice([one for one in ("int", "string", "date") if one != node["keys"]])
    changed.aside.add(node["id"])
    return True


def _windowed(changed: Changed) -> list[Node]:
    return [n for n in changed.program.nodes if n["op"] != "join" and n.get("windows")]


def _window_size(changed: Changed, drawn: random.Random) -> bool:
    found = _windowed(changed)
    if not found:
        return False
    node = drawn.choice(found)
    windows = node["windows"]
    for name in {"size", "advance", "gap", "difference"} & windows.keys():
        windows[name] *= 2
    changed.aside.add(node["id"])
    return True


def _window_kind(changed: Changed, drawn: random.Random) -> bool:
    found = _windowed(changed)
    if not found:
        return False
    node = drawn.choice(found)
    old = node["windows"]
    kind = {"gap": 30} if "gap" not in old else {"size": 40, "advance": 20}
    node["windows"] = {**kind, "grace": old["grace"], "results": old["results"]}
    changed.aside.add(node["id"])
    return True


def _grace(changed: Changed, drawn: random.Random) -> bool:
    found = [n for n in changed.program.nodes if n.get("windows")]
    if not found:
        return False
    node = drawn.choice(found)
    node["windows"]["grace"] += 10
    changed.aside.add(node["id"])
    return True


def _retention(changed: Changed, drawn: random.Random) -> bool:
    found = [n for n in _windowed(changed) if n["op"] != "cogroup"]
    if not found:
        return False
    drawn.choice(found)["retention"] = 3 * GRACE_MS
    return True


def _history(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("table", "to_table")
    if not found:
        return False
    node = drawn.choice(found)
    if drawn.random() < 0.5 and "history" in node:
        del node["history"]
    else:
        node["history"] = node.get("history", 20) * 2
    changed.aside.add(node["id"])
    return True


def _no_log(changed: Changed, drawn: random.Random) -> bool:
    found = [n for n in _with_store(changed) if n["op"] in ("count", "reduce", "aggregate")]
    if not found:
        return False
    node = drawn.choice(found)
    node["logging"] = False
    changed.program.stores.remove(node["store"])
    changed.aside.add(node["id"])
    return True


def _repartition_partitions(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("repartition")
    if not found:
        return False
    node = drawn.choice(found)
    node["partitions"] = drawn.choice([4, 6])
    changed.aside.add(node["id"])
    return True


def _repartition_type(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("repartition")
    if not found:
        return False
    node = drawn.choice(found)
    node["boxed"] = "w" if node.get("boxed") == "v" else "v"
    if drawn.random() < 0.4:
        changed.written.append(str(node.get("name", node["id"])))
    return True


def _cut(changed: Changed, drawn: random.Random) -> bool:
    found = [
        n for n in changed.of("count", "reduce", "aggregate") if "windows" not in n and n["store"]
    ]
    if not found:
        return False
    node = drawn.choice(found)
    again = {"op": "repartition", "id": changed.new("n"), "in": node["in"]}
    node["in"] = changed.put(again, changed.program.nodes.index(node))
    return True


def _join(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("repartition", having=lambda n: "partitions" not in n)
    if not found:
        return False
    gone = drawn.choice(found)
    changed.program.nodes.remove(gone)
    for node in changed.program.nodes:
        node.update({side: gone["in"] for side in SIDES if node.get(side) == gone["id"]})
    changed.aside |= {
        name
        for name in changed.below(
            {n["id"] for n in changed.program.nodes if gone["in"] in n.values()}
        )
        if changed.is_timed(name)
    }
    return True


def _replace_input(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("stream", "table")
    node = drawn.choice(found)
    old, new = node["topic"], changed.new("in")
    if sum(one.get("topic") == old for one in changed.program.nodes) > 1:
        return False
    node["topic"] = new
    changed.program.inputs[changed.program.inputs.index(old)] = new
    changed.replaced[new] = changed.replaced.pop(old, old)
    return True


def _add_input(changed: Changed, drawn: random.Random) -> bool:
    topic = changed.new("in")
    changed.program.inputs.append(topic)
    at = drawn.choice([0, len(changed.program.nodes)])
    source = changed.put({"op": "stream", "id": changed.new("n"), "topic": topic}, at)
    changed.sink(source, begins=True)
    return True


def _other_sources(changed: Changed, drawn: random.Random) -> bool:
    """Sources in another order: their names have other numbers."""
    sources = [n for n in changed.program.nodes if not any(side in n for side in SIDES)]
    rest = [n for n in changed.program.nodes if n not in sources]
    changed.program.nodes = [*drawn.sample(sources, len(sources)), *rest]
    return True


def _global_table(changed: Changed, drawn: random.Random) -> bool:
    found = changed.of("global_table")
    if not found:
        return False
    drawn.choice(found)["store"] = changed.new("store")
    return True


def _grow(changed: Changed, drawn: random.Random, times: int = 2, more: int = 0) -> bool:
    fitting = [
        n["topic"]
        for n in changed.of("stream", "table")
        if not any(map(changed.is_timed, changed.below({n["id"]})))
        and n["topic"] not in changed.replaced
    ]
    if not fitting:
        return False
    changed.grown[drawn.choice(fitting)] = times * 2 + more
    return True


def _grow_otherwise(changed: Changed, drawn: random.Random) -> bool:
    return _grow(changed, drawn, 1, 1)


KEEPING: dict[str, Change] = {
    "an operator inserted": _insert,
    "names shifted": _shift,
    "a branch added": _branch,
    "a sink added": _add_sink,
    "a node renamed": partial(_rename, ops=_NAMED, to="called"),
    "lines in another order": _other_lines,
    "an equal function": _equal_function,
    "another output": _other_output,
    "another condition": _other_condition,
    "a table read as a stream": _table_as_stream,
}
TOUCHING: dict[str, Change] = {
    "a store renamed": _rename_store,
    "an operator removed": _remove,
    "an aggregate added": _add_aggregate,
    "an aggregate written otherwise": _equal_aggregate,
    "a source renamed": partial(_rename, ops=["table"], to="called"),
    "an aggregate replaced": _replace_aggregate,
    "another key type": _key_type,
    "another value type": _value_type,
    "another window size": _window_size,
    "another kind of windows": _window_kind,
    "another grace": _grace,
    "another retention": _retention,
    "another history": _history,
    "logging switched off": _no_log,
    "a repartition renamed": partial(_rename, ops=["repartition"], to="again"),
    "other partitions of a repartition": _repartition_partitions,
    "another type in a repartition": _repartition_type,
    "cut at a repartition": _cut,
    "joined at a repartition": _join,
    "an input replaced": _replace_input,
    "an input added": _add_input,
    "sources in another order": _other_sources,
    "a global table's store renamed": _global_table,
    "an input grown to a multiple": _grow,
}
ALONE: dict[str, Change] = {"an input grown otherwise": _grow_otherwise, "a branch added": _branch}
"""For pairs that have an application of their own, which may not be started any more."""


def changed_by(
    program: Program, drawn: random.Random, kinds: dict[str, Change], most: int
) -> Changed:
    """One with so many of these changes."""
    changed = Changed(deepcopy(program))
    for kind in drawn.sample(sorted(kinds), len(kinds)):
        if len(changed.kinds) == most:
            break
        before = deepcopy(changed)
        if kinds[kind](changed, drawn):
            changed.kinds.append(kind)
        else:
            changed = before
    return changed
