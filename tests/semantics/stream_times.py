"""Which records move an operator's stream time: each cell of the guide's table, tried."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from everflow import StreamsBuilder
from everflow.testing import TopologyTestDriver
from semantics import families
from semantics.probes import TEXT, Family, Program, built, with_own_names

BEFORE_MS, BEHIND_MS = 10, 50


class Kind(NamedTuple):
    """A kind of record, by its side and what it has."""

    title: str
    side: str
    key: str | None
    valued: bool


KINDS = (
    Kind("a null key", "left", None, True),
    Kind("a null value", "left", "a", False),
    Kind("of the right side", "right", "a", True),
    Kind("a null key there", "right", None, True),
    Kind("a null value there", "right", "a", False),
)
ROWS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "groups: `count`, `reduce`, `aggregate`, also with `ttl=`; sliding windows; `cogroup`": {
        "aggregates": (*families.AGGREGATES.programs,),
        "ttl": ("count",),
        "windows": ("sliding",),
        "cogroup": ("cogroup",),
    },
    "time windows, sessions, count windows, their final and early results; `cogroup` in them": {
        "windows": ("tumbling", "hopping", "sessions", "of 2 records", "when they close"),
        "final": (*families.FINAL.programs,),
        "cogroup": ("in windows",),
    },
    "tables, `to_table` with `ttl=`, and what is made of tables (`suppress`, groups)": {
        "tables": (*families.TABLES.programs,),
        "ttl": ("to_table",),
    },
    "`deduplicate`": {"deduplicate": ("by key",)},
    "`deduplicate` with `by=` (its null value has no id)": {"deduplicate": ("by value",)},
    "streams joined in windows": {
        "joins": [one for one in families.JOINS.programs if "windows=" in one]
    },
    "`join_asof`": {"in-time": ("as of", "as of, with a grace")},
    "a stream joined with a versioned table, with `grace=`": {"in-time": ("with a grace",)},
    "`lookup_join`": {"lookups": (*families.LOOKUPS.programs,)},
    "processors": {"processors": (*families.PROCESSORS.programs,)},
}


def stream_times() -> str:
    """A row for each group of operators. AssertionError where those of one are not of one kind."""
    found = {name: family for page in families.PAGES.values() for name, family in page.items()}
    builder = StreamsBuilder()
    programs: dict[tuple[str, str], Program] = {}
    known: frozenset[str] = frozenset()
    for name, titles in ((n, t) for row in ROWS.values() for n, t in row.items()):
        for title in titles:
            prefix = f"{name}-{len(programs)}"
            source = with_own_names(found[name].programs[title], prefix)
            made = built(builder, found[name], source, prefix)
            programs[name, title] = made._replace(nodes=made.nodes - known)
            known |= made.nodes
    of_topic = {
        topic: found[name]
        for (name, _), program in programs.items()
        for listed in program.sides.values()
        for topic in listed
    }
    cells: dict[tuple[str, str], list[str]] = {one: [] for one in programs}
    with TopologyTestDriver(builder.build()) as driver:
        topics = {
            topic: driver.create_input_topic(topic, TEXT, family.value)
            for topic, family in of_topic.items()
        }
        for kind in KINDS:
            driver.reset()
            driver.pipe_batch(
                {topics[one]: [("a", _value(of_topic[one]), BEFORE_MS)] for one in topics}
            )
            asked = [one for p in programs.values() for one in p.sides.get(kind.side, ())]
            driver.pipe_batch(
                {
                    topics[one]: [
                        (kind.key, _value(of_topic[one]) if kind.valued else None, BEHIND_MS)
                    ]
                    for one in asked
                }
            )
            times = {node: ms for of in driver._stream_times.values() for node, ms in of.items()}
            for which, program in programs.items():
                mine = list(program.nodes & times.keys())
                own = [node for node in mine if not node.startswith("KTABLE-SOURCE")] or mine
                moved = any(times[node] == BEHIND_MS for node in own)
                asks = kind.side in program.sides
                cells[which].append(("moves" if moved else "stays") if asks else "")
    rows = [["", *(kind.title for kind in KINDS)], ["---"] * (1 + len(KINDS))]
    for label, parts in ROWS.items():
        listed = [cells[name, title] for name, titles in parts.items() for title in titles]
        (one,) = {tuple(filter(None, cell)) for cell in listed if "" not in cell} or {
            tuple(filter(None, cell)) for cell in listed
        }
        assert all(one[: len(mine)] == mine for mine in (tuple(filter(None, c)) for c in listed)), (
            label
        )
        rows.append([label, *one, *[""] * (len(KINDS) - len(one))])
    return "".join(f"| {' | '.join(row)} |\n".replace("  ", " ") for row in rows)


def _value(family: Family) -> object:
    return "v" if family.value is TEXT else 1
