"""Programs whose tables do not depend on how records of different partitions meet: the same on one
instance as on several that are killed (`instances`).

Of each stream it is known what of its order is: that of a partition of one topic, that of each
key's records, or nothing. Tables that streams are joined with are written before all else, and last
records close all windows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from oracle.processors import CHILDREN
from oracle.programs import BRANCHES, Program

GRACE_MS = 3_600_000
"""So long that nothing is late before the last records."""


class Order(IntEnum):
    """What is known of a stream's records: a key comes from several places, each key's are in
    order, or all of a partition's are, as in the one topic that they are of."""

    FREE = 0
    OF_KEYS = 1
    OF_PARTITIONS = 2


class DrawSettled:
    """Draws one such program. Its nodes, topics and stores are called after ``name``. ``static``:
    the topics to be written first; ``program.unordered``: outputs of streams, whose records are
    compared as they are, and not as a table."""

    def __init__(self, drawn: random.Random, name: str) -> None:
        self._drawn, self._name = drawn, name
        self.program = Program()
        self.static: list[str] = []
        self._streams: dict[str, Order] = {}
        self._tables: dict[str, Order] = {}
        self._versioned = self._global = ""

    def drawn_program(self) -> Program:
        for _ in range(2):
            self._streams[self._add("stream", topic=self._input())] = Order.OF_PARTITIONS
        self._table("table", Order.OF_PARTITIONS, topic=self._input(), **self._history())
        steps: list[Callable[[], None]] = [
            *(self._count, self._count, self._fold, self._windows, self._windows, self._to_table),
            *(self._join_tables, self._join_tables, self._join_streams, self._join_streams),
            *(self._foreign, self._group, self._derive, self._derive_table, self._rekey),
            *(self._merge, self._cogroup, self._process, self._process, self._suppress),
            *(self._transform, self._branch, self._repartition, self._look_up, self._look_up),
        ]
        for _ in range(self._drawn.randint(4, 8)):
            self._drawn.choice(steps)()
        for table in self._tables:
            self._sink(self._add("to_stream", **{"in": table}), as_table=True)
        return self.program

    # --- nodes ------------------------------------------------------------------------------------

    def _add(self, op: str, **more: Any) -> str:
        name = f"{self._name}n{len(self.program.nodes)}"
        self.program.nodes.append({"op": op, "id": name, **more})
        return name

    def _input(self) -> str:
        self.program.inputs.append(f"{self._name}in{len(self.program.inputs)}")
        return self.program.inputs[-1]

    def _static(self) -> str:
        self.static.append(self._input())
        return self.static[-1]

    def _store(self) -> str:
        return f"{self._name}store{len(self.program.nodes)}"

    def _history(self) -> dict[str, int]:
        return self._drawn.choice([{}, {}, {"history": 40}])

    def _table(self, op: str, order: Order, **more: Any) -> None:
        store = self._store()
        self._tables[self._add(op, store=store, **more)] = order
        self.program.stores.append(store)

    def _sink(self, stream: str, *, as_table: bool = False) -> None:
        topic = f"{self._name}out{len(self.program.outputs)}"
        self.program.outputs.append(topic)
        self._add("sink", **{"in": stream}, topic=topic)
        if not as_table:
            self.program.unordered.append(topic)

    def _stream(self, least: Order = Order.FREE) -> str:
        return self._drawn.choice([name for name, has in self._streams.items() if has >= least])

    def _table_of(self, least: Order = Order.FREE) -> str:
        return self._drawn.choice([name for name, has in self._tables.items() if has >= least])

    # --- aggregates -------------------------------------------------------------------------------

    def _count(self) -> None:
        self._table("count", Order.OF_KEYS, **{"in": self._stream()})

    def _fold(self) -> None:
        given = self._stream(Order.OF_KEYS)
        op = self._drawn.choice(["reduce", "aggregate"])
        self._table(op, self._streams[given], **{"in": given})

    def _drawn_windows(self, order: Order, results: Sequence[str]) -> dict[str, Any]:
        """What is late depends on the order in a partition."""
        grace = self._drawn.choice([0, 30]) if order is Order.OF_PARTITIONS else GRACE_MS
        kind = self._drawn.choice([{"gap": 30}, {"size": 40, "advance": 20}, {"difference": 25}])
        return {**kind, "grace": grace, "results": self._drawn.choice(results)}

    def _windows(self) -> None:
        stream = self._stream(Order.OF_KEYS)
        windows = self._drawn_windows(self._streams[stream], ["each", "suppressed", "final"])
        given = self._add("filter", **{"in": stream}, without="\0")
        store = self._store()
        op = self._drawn.choice(["count", "reduce", "aggregate"])
        self._sink(self._add(op, **{"in": given}, store=store, windows=windows), as_table=True)
        self.program.stores.append(store)

    def _cogroup(self) -> None:
        """Both sides are of one topic: of two, it would depend on which comes first."""
        left = self._stream(Order.OF_PARTITIONS)
        right = self._add("map_values", **{"in": left}, suffix="q")
        if self._drawn.random() < 0.5:
            self._table("cogroup", Order.OF_KEYS, left=left, right=right)
            return
        windows = self._drawn_windows(Order.OF_PARTITIONS, ["each", "suppressed"])
        left, right = (self._add("filter", **{"in": side}, without="\0") for side in (left, right))
        store = self._store()
        name = self._add("cogroup", left=left, right=right, store=store, windows=windows)
        self._sink(name, as_table=True)
        self.program.stores.append(store)

    def _to_table(self) -> None:
        given = self._stream(Order.OF_KEYS)
        self._table("to_table", self._streams[given], **{"in": given}, **self._history())

    def _group(self) -> None:
        """From what follows from one topic's records: others are told in another order."""
        own = [node["id"] for node in self.program.nodes if node["op"] in ("table", "to_table")]
        self._table("group_count", Order.FREE, **{"in": self._drawn.choice(own)})

    def _suppress(self) -> None:
        nodes = {node["id"]: node for node in self.program.nodes}
        found = [
            name
            for name, order in self._tables.items()
            if order is Order.OF_PARTITIONS and "history" not in nodes[name]
        ]
        if found:
            given, most = self._drawn.choice(found), self._drawn.choice([None, 2])
            wait = self._drawn.choice([5, 50])
            name = self._add("suppress", **{"in": given}, store=self._store(), wait=wait, most=most)
            self._sink(name)

    # --- joins ------------------------------------------------------------------------------------

    def _join_tables(self) -> None:
        if len(self._tables) > 1:
            left, right = self._drawn.sample(sorted(self._tables), 2)
            kind = self._drawn.choice(["inner", "left", "outer"])
            self._table("join", Order.FREE, left=left, right=right, kind=kind)

    def _join_streams(self) -> None:
        found = [name for name, order in self._streams.items() if order >= Order.OF_KEYS]
        if len(found) > 1:
            left, right = self._drawn.sample(found, 2)
            kind = self._drawn.choice(["inner", "left", "outer"])
            after = 30 if kind == "inner" else 20
            windows = {"before": 20, "after": after, "grace": GRACE_MS}
            more = {"left": left, "right": right, "kind": kind, "windows": windows}
            self._sink(self._add("join", store=self._store(), **more))

    def _foreign(self) -> None:
        if len(self._tables) > 1:
            left, right = self._drawn.sample(sorted(self._tables), 2)
            kind = self._drawn.choice(["inner", "left"])
            self._table("foreign", Order.FREE, left=left, right=right, kind=kind)

    def _look_up(self) -> None:
        """A join with a table that is there before."""
        left, kind = self._stream(), self._drawn.choice(["inner", "left"])
        order = self._streams[left]
        if self._drawn.random() < 0.4:
            if not self._global:
                self._global = self._add("global_table", topic=self._static(), store=self._store())
            name = self._add("global_join", left=left, right=self._global, kind=kind)
        else:
            if not self._versioned:
                store = self._store()
                self._versioned = self._add(
                    "table", topic=self._static(), store=store, history=GRACE_MS
                )
            more: dict[str, Any] = {"left": left, "right": self._versioned, "kind": kind}
            if order is Order.OF_PARTITIONS and self._drawn.random() < 0.5:
                more |= {"grace": 20, "store": self._store()}
                order = Order.OF_KEYS
            name = self._add("join", **more)
        self._streams[name] = order
        self._sink(name)

    # --- records ----------------------------------------------------------------------------------

    def _derive(self) -> None:
        given = self._stream()
        op, what, how = self._drawn.choice(
            [("filter", "without", "x"), ("map_values", "suffix", "q"), ("flat_map_values", "", "")]
        )
        more = {what: how} if what else {}
        self._streams[self._add(op, **{"in": given}, **more)] = self._streams[given]

    def _derive_table(self) -> None:
        given = self._table_of()
        op, what, how = self._drawn.choice(
            [
                ("filter", "without", "x"),
                ("map_values", "suffix", "q"),
                ("transform_values", "does", "named"),
            ]
        )
        self._table(op, self._tables[given], **{"in": given, what: how})

    def _transform(self) -> None:
        """It counts the updates of a key: one that was made twice, or lost, shows for good."""
        given = self._table_of(Order.OF_KEYS)
        calls = f"{self._store()}-calls"
        more = {"does": "numbered", "calls": calls}
        self._table("transform_values", Order.OF_KEYS, **{"in": given}, **more)
        self.program.stores.append(calls)

    def _process(self) -> None:
        does = self._drawn.choice(["timed", "windows", "sessions", "versions", "split"])
        least = Order.OF_KEYS if does in ("timed", "split") else Order.OF_PARTITIONS
        given = self._stream(least)
        if does == "split":
            name = self._add("process", **{"in": given}, does=does)
            for which in CHILDREN:
                child = self._add("child", **{"in": name}, which=which)
                self._streams[child] = Order.OF_KEYS
            return
        store = self._store()
        name = self._add("process", **{"in": given}, does=does, store=store, values=False)
        self.program.stores.append(store)
        self._streams[name] = Order.OF_KEYS
        self._sink(name)

    def _branch(self) -> None:
        given = self._stream()
        name = self._add("split", **{"in": given})
        for which in BRANCHES:
            branch = self._add("branch", **{"in": name}, which=which)
            self._streams[branch] = self._streams[given]

    def _repartition(self) -> None:
        given = self._stream()
        name = self._add("repartition", **{"in": given})
        self._streams[name] = min(self._streams[given], Order.OF_KEYS)

    def _rekey(self) -> None:
        self._streams[self._add("select_key", **{"in": self._stream()})] = Order.FREE

    def _merge(self) -> None:
        """Behind it the records of a key come from two topics: only what counts may follow."""
        left, right = self._stream(), self._stream()
        if left != right:
            self._streams[self._add("merge", left=left, right=right)] = Order.FREE
