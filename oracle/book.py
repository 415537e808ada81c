"""Which operators drawn programs have, and which stateful one stands before which."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product

from oracle.drawing import Draw
from oracle.programs import Node, Program, kind_of

STATEFUL = (
    *("table", "versioned table", "aggregate", "windows", "sliding windows", "sessions"),
    *("final results", "closed windows", "cogroup", "cogrouped windows", "grouped table"),
    *("suppress", "processor", "transformer"),
    *("join with table", "join with grace", "join of tables", "foreign-key join"),
    *("inner join of streams", "outer join of streams", "join with global table"),
)
"""What keeps a state, or looks into one."""
KEPT_FILTER = "filter of a table with a store"
"""One of thirty programs has it: too few for those that look for one."""


def stateful_kind(node: Node) -> str | None:
    """What of `STATEFUL` a node is."""
    op, windows = node["op"], node.get("windows")
    if op in ("table", "to_table"):
        return "versioned table" if "history" in node else "table"
    if op in ("count", "reduce", "aggregate"):
        if windows is None:
            return "aggregate"
        results = {"final": "final results", "suppressed": "closed windows"}
        kinds = {"session": "sessions", "sliding": "sliding windows", "windows": "windows"}
        return results.get(windows["results"], kinds[kind_of(windows)])
    if op == "join":
        if windows is not None:
            return f"{'inner' if node['kind'] == 'inner' else 'outer'} join of streams"
        if "grace" in node:
            return "join with grace"
        of_tables = "store" in node or "tables" in node
        return "join of tables" if of_tables else "join with table"
    if op.startswith("group_"):
        return "grouped table"
    if op == "nested":
        return "aggregate" if "records" in node else "grouped table"
    if op == "process":
        return "processor" if "store" in node else None
    if op == "transform_values":
        return "transformer" if "calls" in node else None
    return {
        "maps": "aggregate",
        "cogroup": "cogroup" if windows is None else "cogrouped windows",
        "suppress": "suppress",
        "foreign": "foreign-key join",
        "global_join": "join with global table",
    }.get(op)


def _never() -> Iterator[tuple[str, str]]:
    """Pairs that are not drawn, but by the way."""
    # The original's cogroup tells the initial value as what a new entry was (docs/differences.md).
    yield "cogroup", "grouped table"
    for kind in STATEFUL:
        # Its results without a match have another order in the original: they go to a sink.
        yield "outer join of streams", kind


NEVER = frozenset(_never())
"""Pairs of one stateful operator before another that are not drawn, with the reasons."""


PAIRS = tuple(pair for pair in product(STATEFUL, STATEFUL) if pair not in NEVER)
"""The others."""
TRIES = 1_000


def pairs_of(program: Program) -> set[tuple[str, str]]:
    """Each stateful operator before another one that has results of it."""
    before: dict[str, set[str]] = {}
    found = set[tuple[str, str]]()
    for node in program.nodes:
        sides = [node[side] for side in ("in", "left", "right") if side in node]
        above = set[str]().union(*(before[side] for side in sides))
        kind = stateful_kind(node)
        if kind is not None:
            found |= {(one, kind) for one in above}
            above = above | {kind}
        before[node["id"]] = above
    return found


@dataclass
class Book:
    """In how many programs was each operator, and each pair of one stateful before another."""

    programs: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, program: Program) -> None:
        """One more program."""
        self.programs += 1
        self.operators.update(set(program.shape().split()))
        self.pairs.update(pairs_of(program))

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Pairs that were not in any program, and are not in `NEVER`."""
        return [pair for pair in PAIRS if not self.pairs[pair]]

    def said(self) -> str:
        """How many pairs there were, and which not."""
        never = "".join(f"\n  never: {first} before {second}" for first, second in self.missing)
        drawn = len(PAIRS) - len(self.missing)
        return f"{drawn} of {len(PAIRS)} pairs of stateful operators{never}"

    def counted(self) -> dict[str, int]:
        """Each pair by its name, the rarest first."""
        rarest = sorted(PAIRS, key=lambda pair: self.pairs[pair])
        return {f"{first} before {second}": self.pairs[first, second] for first, second in rarest}


def programs_with(kind: str, drawn: random.Random) -> Iterator[Program]:
    """Programs without end that have this kind of `STATEFUL`, or a `KEPT_FILTER`."""
    while True:
        program = Draw(drawn).drawn_program()
        kept = kind == KEPT_FILTER and any(
            node["op"] == "filter" and "store" in node for node in program.nodes
        )
        if kept or any(stateful_kind(node) == kind for node in program.nodes):
            yield program


def drawn_programs(drawn: random.Random) -> Iterator[Program]:
    """Programs without end; every second one has the pair that was the rarest so far, if one of
    ``TRIES`` has it."""
    book, tried = Book(), Counter[tuple[str, str]]()
    while True:
        yield _noted(book, Draw(drawn).drawn_program())
        wanted = min(PAIRS, key=lambda pair: book.pairs[pair] + tried[pair])
        tried[wanted] += 1
        program = Draw(drawn).drawn_program()
        for _ in range(TRIES):
            if wanted in pairs_of(program):
                break
            program = Draw(drawn).drawn_program()
        yield _noted(book, program)


def _noted(book: Book, program: Program) -> Program:
    book.add(program)
    return program


def drawn_book(programs: int, seed: int) -> Book:
    """Of the programs that `oracle.streams.compare` draws, without their scripts."""
    book = Book()
    for program in islice(drawn_programs(random.Random(seed)), programs):
        book.add(program)
    return book
