"""What programs are drawn: which operators, behind which, with which windows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from oracle.processors import CHILDREN
from oracle.programs import BRANCHES, MAP_KEYS, NESTED, Node, Program

NEVER_LATE_MS = 100_000
"""A script's last records are ten seconds behind the others."""
WIDE_MS = 1_000
"""Longer than a script without these, and than anything that is held back in it."""
_DOES = ("timed", "windows", "sessions", "versions", "split")


class Draw:
    """Draws one program. Of each stream it knows whether its times are those of input records, and
    whether its key has changed."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn
        self.program = Program()
        self._streams: dict[str, tuple[bool, bool]] = {}
        self._tables: list[str] = []
        self._views: list[str] = []
        """Tables without a store of their own: filtered, mapped or joined."""
        self._global_tables: list[str] = []
        self._used: set[str] = set()
        self._last = ""
        self._again = False
        """Whether what meets in a merge or join comes from one place, where there is such."""

    def drawn_program(self) -> Program:
        for _ in range(self._drawn.randint(1, 3)):
            topic = self._input()
            self._stream(self._add("stream", topic=topic))
        for _ in range(self._drawn.randint(0, 2)):
            topic = self._input()
            self._table(self._add("table", topic=topic, store=self._store(), **self._history()))
        for _ in range(self._drawn.choice([0, 0, 1])):
            store = self._store()
            table = self._add("global_table", topic=self._input(), store=store)
            self._global_tables.append(table)
            self.program.stores.append(store)
        deep = self._drawn.random() < 0.85
        self._again = self._drawn.random() < 0.3
        for _ in range(self._drawn.randint(2, 6)):
            step = self._drawn.choice(
                [self._filter, self._map, self._key, self._merge, self._to_table, self._to_stream]
                + [self._flat_map, self._branch, self._repartition]
                + [self._aggregate] * 5
                + [self._group_table, self._suppress] * 3
                + [self._cogroup, self._transform] * 2
                + [self._join] * 6
                + [self._process] * 3
                + [self._look_through] * 2
                + [self._foreign] * 3
                + [self._nested] * 2
                + [self._maps]
                + [self._global_join] * 2 * len(self._global_tables)
            )
            if deep:
                self._turn_last_for(step)
            step()
        self._sinks()
        self.program.reuses = self._drawn.random() < 0.5
        return self.program

    def _turn_last_for(self, step: Callable[[], None]) -> None:
        """The next operator stands behind the last one, which becomes a stream or a table as it
        needs: so each operator comes before each other."""
        name = self.program.nodes[-1]["id"]
        if name not in self._streams and name not in self._tables:
            return
        self._last = name
        from_table = step in (self._group_table, self._suppress, self._foreign, self._transform)
        if step == self._join:
            from_table = self._drawn.random() < 0.4
        if from_table and name in self._streams:
            self._to_table()
        elif not from_table and name in self._tables and step not in (self._filter, self._map):
            self._to_stream()
        self._last = self.program.nodes[-1]["id"]

    def _one_of(self, names: Iterable[str]) -> str:
        """The last one where it is to be taken, else any."""
        given = list(names)
        return self._last if self._last in given else self._drawn.choice(given)

    def _two_of(self, names: Iterable[str]) -> tuple[str, str]:
        given = list(names)
        one = self._one_of(given)
        other = self._other_than(one, given)
        return (one, other) if self._drawn.random() < 0.6 else (other, one)

    def _other_than(self, one: str, names: Iterable[str]) -> str:
        """One that may meet it."""
        given = [name for name in names if name != one]
        near = [name for name in given if self._above(name) & self._above(one)]
        return self._drawn.choice(near if near and self._again else given)

    # --- nodes ------------------------------------------------------------------------------------

    def _add(self, op: str, **more: Any) -> str:
        name = f"n{len(self.program.nodes)}"
        self.program.nodes.append({"op": op, "id": name, **more})
        self._used |= {str(more[side]) for side in ("in", "left", "right") if side in more}
        return name

    def _input(self) -> str:
        self.program.inputs.append(f"in{len(self.program.inputs)}")
        return self.program.inputs[-1]

    def _store(self) -> str:
        return f"store{len(self.program.nodes)}"

    def _history(self) -> dict[str, int]:
        """Of a table that is versioned, how long it keeps what was."""
        history = self._drawn.choice([None, None, 5, 40])
        return {} if history is None else {"history": history}

    def _stream(self, name: str, plain: bool = True, changed: bool = False) -> None:
        self._streams[name] = (plain, changed)

    def _table(self, name: str) -> None:
        self._tables.append(name)
        node = self.program.nodes[-1]
        kept = self.program.versioned if "history" in node else self.program.stores
        kept.append(node["store"])

    def _any(self) -> str:
        return self._one_of([*self._streams, *self._tables, *self._views])

    def _derived(self, given: str, op: str, **more: Any) -> None:
        if given in self._tables or given in self._views:
            if op == "filter" and self._unkept(given):
                return  # whether it knows what was depends on who asks (docs/differences.md)
            view = self._tells_before(given)
            if view and self._drawn.random() < 0.5:
                self._views.append(self._add(op, **{"in": given}, **more))
            else:
                self._table(self._add(op, **{"in": given}, store=self._store(), **more))
        else:
            self._stream(self._add(op, **{"in": given}, **more), *self._streams[given])

    def _filter(self) -> None:
        self._derived(self._any(), "filter", without=self._drawn.choice("xyz"))

    def _map(self) -> None:
        self._derived(self._any(), "map_values", suffix=self._drawn.choice("pqr"))

    def _transform(self) -> None:
        """A table's values by the user's code, some of it with a store of its own: it is asked for
        each update once, so its results are kept."""
        tables = [*self._tables, *self._views]
        if tables:
            given = self._one_of(tables)
            if self._drawn.random() < 0.5:
                self._derived(given, "transform_values", does="named")
            else:
                calls = f"{self._store()}-calls"
                more = {"does": "numbered", "calls": calls, "store": self._store()}
                self._table(self._add("transform_values", **{"in": given}, **more))

    def _flat_map(self) -> None:
        given = self._one_of(self._streams)
        self._stream(self._add("flat_map_values", **{"in": given}), *self._streams[given])

    def _branch(self) -> None:
        given = self._one_of(self._streams)
        name = self._add("split", **{"in": given})
        for which in BRANCHES:
            branch = self._add("branch", **{"in": name}, which=which)
            self._stream(branch, *self._streams[given])

    def _repartition(self) -> None:
        given = self._one_of(self._streams)
        name = self._add("repartition", **{"in": given})
        self._stream(name, self._streams[given][0], False)

    def _look_through(self) -> None:
        """A join with, or a grouping of, a table without a store."""
        tables = [
            name for name in self._tables if self._tells_before(name) and not self._unkept(name)
        ]
        if not tables:
            return
        view = self._one_of(tables)
        for _ in range(self._drawn.randint(1, 2)):
            op, what, letters = self._drawn.choice(
                [
                    ("filter", "without", "xyz"),
                    ("map_values", "suffix", "pqr"),
                    ("transform_values", "does", ["named"]),
                ]
            )
            view = self._add(op, **{"in": view, what: self._drawn.choice(letters)})
            self._views.append(view)
        self._last = view
        self._drawn.choice([self._join, self._join, self._group_table, self._foreign])()

    def _key(self) -> None:
        given = self._one_of(self._streams)
        self._stream(self._add("select_key", **{"in": given}), self._streams[given][0], True)

    def _merge(self) -> None:
        if len(self._streams) > 1:
            left = self._one_of(self._streams)
            right = self._other_than(left, self._streams)
            plain, changed = zip(self._streams[left], self._streams[right], strict=True)
            self._stream(self._add("merge", left=left, right=right), all(plain), any(changed))

    def _to_table(self) -> None:
        given = self._one_of(self._streams)
        self._table(self._add("to_table", **{"in": given}, store=self._store(), **self._history()))

    def _process(self) -> None:
        given = self._one_of(self._streams)
        plain, changed = self._streams[given]
        does = self._drawn.choice([*("running", "running"), *_DOES])
        if does == "split":
            name = self._add("process", **{"in": given}, does=does)
            for which in CHILDREN:
                self._stream(self._add("child", **{"in": name}, which=which), plain, True)
            return
        clock, values = None, False
        if does == "running":
            values = self._drawn.random() < 0.3
            known = ["stream", "stream"] if self._hears_all(given) else ["wall"]
            clock = None if values or self._clocks() else self._drawn.choice([None, *known])
        store = self._store()
        name = self._add(
            "process", **{"in": given}, does=does, store=store, values=values, clock=clock
        )
        if does in ("timed", "versions"):
            (self.program.stores if does == "timed" else self.program.versioned).append(store)
        self._stream(name, plain and clock is None, changed or not values)

    def _clocks(self) -> bool:
        return any(node.get("clock") for node in self.program.nodes)

    def _hears_all(self, name: str) -> bool:
        """Whether stream time is there what it is for the whole program: a processor's stream time
        is that of the records that reach it (docs/differences.md)."""
        read = [node for node in self.program.nodes if node["op"] in ("stream", "table")]
        ops = {self._node(one)["op"] for one in self._above(name)}
        return len(read) == 1 and ops <= {"stream", "map_values", "select_key"}

    def _to_stream(self) -> None:
        if self._tables:
            given = self._one_of(self._tables)
            self._stream(self._add("to_stream", **{"in": given}), plain=False)

    def _aggregate(self) -> None:
        given = self._one_of(self._streams)
        op = self._drawn.choice(["count", "reduce", "aggregate"])
        kind = self._drawn.choice([None, "time", "sliding", "session"])
        if kind is None:
            self._table(self._add(op, **{"in": given}, store=self._store()))
            return
        windows = self._windows(kind)
        # A null value reaches a windowed aggregate, and the functions here take texts.
        name = self._add("filter", **{"in": given}, without="\0")
        windows["results"] = self._drawn.choice(["each", "each", "suppressed", "final"])
        name = self._add(op, **{"in": name}, store=self._store(), windows=windows)
        self._stream(name, plain=False, changed=True)

    def _windows(self, kind: str) -> dict[str, Any]:
        grace = self._drawn.choice([0, 5, 30])
        if kind == "session":
            return {"gap": self._drawn.choice([3, 20]), "grace": grace}
        if kind == "sliding":
            return {"difference": self._drawn.choice([5, 25, 130]), "grace": grace}
        size = self._drawn.choice([10, 40])
        return {"size": size, "advance": size // self._drawn.choice([1, 2]), "grace": grace}

    def _group_table(self) -> None:
        tables = list(filter(self._tells_before, (*self._tables, *self._views)))
        if tables:
            given = self._one_of(tables)
            op = self._drawn.choice(["group_count", "group_reduce", "group_aggregate"])
            self._table(self._add(op, **{"in": given}, store=self._store()))

    def _foreign(self) -> None:
        tables = [*self._tables, *self._views]
        if len(tables) < 2:
            return
        left, right = self._two_of(tables)
        if self._above(left) & self._above(right) or not self._tells_before(left):
            return
        # An empty text is no entry for the original, on its way back (docs/differences.md).
        if self._tells_before(right) and self._drawn.random() < 0.5:
            right = self._add("map_values", **{"in": right}, suffix="q")
            self._views.append(right)
        else:
            right = self._add("map_values", **{"in": right}, store=self._store(), suffix="q")
            self._table(right)
        kind, more = self._drawn.choice(["inner", "left"]), Node()
        if self._drawn.random() < 0.3:
            nested = self._drawn.choice(list(NESTED))
            more = {"nested": nested, "rekeyed": f"{self._store()}-rekeyed"}
        if self._drawn.random() < 0.3:
            self._tables.append(self._add("foreign", left=left, right=right, kind=kind, **more))
            return
        more["store"] = self._store()
        self._table(self._add("foreign", left=left, right=right, kind=kind, **more))

    def _nested(self) -> None:
        """A stream or a table, counted by keys that are structs or arrays."""
        tables = list(filter(self._tells_before, (*self._tables, *self._views)))
        given = self._one_of([*self._streams, *tables])
        more: Node = {"records": True} if given in self._streams else {}
        more |= {"nested": self._drawn.choice(list(NESTED)), "store": self._store()}
        self._stream(self._add("nested", **{"in": given}, **more), plain=False, changed=True)

    def _maps(self) -> None:
        given = self._one_of(self._streams)
        keys, store = self._drawn.choice(list(MAP_KEYS)), self._store()
        more = {"keys": keys, "map": f"{store}-map", "store": store}
        self._table(self._add("maps", **{"in": given}, **more))

    def _global_join(self) -> None:
        left, right = self._one_of(self._streams), self._drawn.choice(self._global_tables)
        kind = self._drawn.choice(["inner", "left"])
        name = self._add("global_join", left=left, right=right, kind=kind)
        self._stream(name, *self._streams[left])

    def _cogroup(self) -> None:
        if self._drawn.random() < 0.5:
            self._cogroup_windows()
        elif len(self._streams) > 1:
            left = self._one_of(self._streams)
            right = self._other_than(left, self._streams)
            self._table(self._add("cogroup", left=left, right=right, store=self._store()))

    def _cogroup_windows(self) -> None:
        """The original has a stream time for each side (docs/differences.md): both are of one
        stream, or nothing is late."""
        windows = self._windows(self._drawn.choice(["time", "sliding", "session"]))
        plain = [name for name, (plain, _) in self._streams.items() if plain]
        if len(plain) > 1 and self._drawn.random() < 0.5:
            left, right = self._two_of(plain)
            self.program.jitter_ms = min(self.program.jitter_ms, windows["grace"])
        else:
            left = self._one_of(self._streams)
            right = self._add("map_values", **{"in": left}, suffix="q")
        above = map(self._node, self._above(left) | self._above(right))
        # The original takes it for versioned, and does not suppress it, if something above is.
        suppressed = [] if any("history" in node for node in above) else ["suppressed"]
        windows["results"] = self._drawn.choice(["each", *suppressed])
        left, right = (self._add("filter", **{"in": side}, without="\0") for side in (left, right))
        name = self._add("cogroup", left=left, right=right, store=self._store(), windows=windows)
        self._stream(name, plain=False, changed=True)

    def _suppress(self) -> None:
        tables = [name for name in self._tables if "history" not in self._node(name)]
        if tables:
            given = self._one_of(tables)
            most = self._drawn.choice([None, None, 1, 2])
            wait = self._drawn.choice([0, 5, 50])
            name = self._add("suppress", **{"in": given}, store=self._store(), wait=wait, most=most)
            self._stream(name, plain=False)

    def _join(self) -> None:
        what = self._drawn.choice(["stream-table", "tables", "streams"])
        kind = self._drawn.choice(["inner", "left", "outer"])
        tables = [*self._tables, *self._views]
        if what == "tables" and len(tables) > 1:
            left, right = self._two_of(tables)
            if self._drawn.random() < 0.3:
                name = self._add("join", left=left, right=right, kind=kind, tables=True)
                self._views.append(name)
                return
            self._table(self._add("join", left=left, right=right, kind=kind, store=self._store()))
        elif what == "stream-table" and self._tables:
            left = self._one_of(self._streams)
            right = self._other_than(left, [*self._tables, *self._views, *self._views])
            kind = "left" if kind == "outer" else kind
            if self._history_of(right) is not None and self._drawn.random() < 0.6:
                self._join_with_grace(left, right, kind)
                return
            name = self._add("join", left=left, right=right, kind=kind)
            self._stream(name, plain=self._streams[left][0])
        elif what == "streams":
            self._join_streams(kind)

    def _join_with_grace(self, left: str, right: str, kind: str) -> None:
        if kind == "left":  # the original's buffer ends with a null key (docs/differences.md)
            left = self._add("select_key", **{"in": left})
            self._stream(left, self._streams[self.program.nodes[-1]["in"]][0], True)
        grace = self._drawn.choice([0, 3, 20])
        grace = min(grace, self._history_of(right) or 0)
        name = self._add(
            "join", left=left, right=right, kind=kind, grace=grace, store=self._store()
        )
        self._stream(name, plain=False)

    def _above(self, name: str) -> set[str]:
        """The node and all before it."""
        node = self._node(name)
        sides = [str(node[side]) for side in ("in", "left", "right") if side in node]
        return {name}.union(*map(self._above, sides))

    def _node(self, name: str) -> Node:
        return next(node for node in self.program.nodes if node["id"] == name)

    def _is_table(self, name: str) -> bool:
        return name in self._tables or name in self._views

    def _made_of(self, name: str) -> list[Node]:
        """The views of which a table is one, up to those that have a store."""
        node = self._node(name)
        sides = [str(node[side]) for side in ("in", "left", "right") if side in node]
        if name not in self._views:
            return [node]
        return [node, *(one for side in sides for one in self._made_of(side))]

    def _history_of(self, name: str) -> int | None:
        """How long a table keeps what was, or what it is filtered or mapped from."""
        found = self._made_of(name)
        joined = any(node["op"] == "join" for node in found)
        return None if joined else found[-1].get("history")

    def _unkept(self, name: str) -> bool:
        """Whether it is made of a join by a foreign key that was given no store."""
        return any(node["op"] == "foreign" and "store" not in node for node in self._made_of(name))

    def _tells_before(self, name: str) -> bool:
        """Whether the original tells rightly what an entry was: its aggregates tell the initial
        value of a new one, and its joins of two tables from one what the other side has by now
        (docs/differences.md)."""
        nodes = [node for node in map(self._node, self._above(name)) if "windows" not in node]
        initial = any(node["op"] in ("aggregate", "cogroup", "maps") for node in nodes)
        return not initial and not self._two_ways(name)

    def _two_ways(self, name: str) -> bool:
        """Whether there is a join of tables before it whose sides have a node in common."""
        return any(
            node["op"] == "join"
            and self._is_table(node["left"])
            and bool(self._above(node["left"]) & self._above(node["right"]))
            for node in map(self._node, self._above(name))
        )

    def _join_streams(self, kind: str) -> None:
        if len(self._streams) > 1 and self._drawn.random() < 0.6:
            self._join_streams_of_any_times(kind)
            return
        plain = [name for name, (plain, _) in self._streams.items() if plain]
        if len(plain) < 2:
            return
        left, right = self._two_of(plain)
        before = after = self._drawn.choice([0, 5, 6, 24])
        if kind == "inner":
            after = self._drawn.choice([0, 5, 6, 24])
        # The original's stores keep a ms less than the windows: no record is just at that end.
        step = self.program.step_ms = 3
        grace = self._drawn.choice([ms for ms in (0, 1, 10) if (before + after + ms) % step])
        windows = {"before": before, "after": after, "grace": grace}
        self._joined(left, right, kind, windows)

    def _join_streams_of_any_times(self, kind: str) -> None:
        """Where a record waits for a match the windows are wide: little is late."""
        left, right = self._two_of(self._streams)
        before = after = grace = WIDE_MS
        if kind == "inner":
            before, after = self._drawn.choice([0, 5, 25]), self._drawn.choice([0, 5, 25])
            grace = NEVER_LATE_MS
        self._joined(left, right, kind, {"before": before, "after": after, "grace": grace})

    def _joined(self, left: str, right: str, kind: str, windows: dict[str, int]) -> None:
        name = self._add(
            "join", left=left, right=right, kind=kind, windows=windows, store=self._store()
        )
        if kind == "inner":
            self._stream(name, plain=False)
        else:
            self._sink(name)
            self.program.unordered.append(self.program.outputs[-1])

    def _sinks(self) -> None:
        for table in [name for name in self._tables + self._views if name not in self._used]:
            self._stream(self._add("to_stream", **{"in": table}), plain=False)
        for stream in [name for name in self._streams if name not in self._used]:
            self._sink(stream)

    def _sink(self, stream: str) -> None:
        self.program.outputs.append(f"out{len(self.program.outputs)}")
        self._add("sink", **{"in": stream}, topic=self.program.outputs[-1])
