"""Tables of the guide that say what operators do with nulls, tombstones, records out of order and
late ones: each is made by piping such records through the test driver.

All programs of a page lie in one topology, each in sub-topologies of its own; the n-th steps of all
are one micro-batch. So a page costs one driver.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everflow import KTable, Materialized, StreamsBuilder, Topology, Windowed, serdes
from everflow.protocol.messages import BatchRequest
from everflow.records import LATE_UNMATCHED
from everflow.serdes import Serde
from everflow.testing import InputTopic, OutputTopic, TopologyTestDriver
from everflow.testing.topics import RawRecord
from everflow.worker.task_step import StepResult

TEXT = serdes.string()
SIDES = {
    "stream": "left",
    "groups": "left",
    "table": "left",
    "right_stream": "right",
    "right_groups": "right",
    "right_table": "right",
    "global_table": "right",
    "past": "right",
}
"""Names that a program's text reads -> the side of the steps that is piped into them."""
STORES = re.compile(r"(?:store=|Materialized\(|Stores\.\w+\()\"([\w-]+)\"")
VIEWS = ("key_value", "window", "session", "versioned")


class Step(NamedTuple):
    """A record, and what is special about it."""

    time: int
    key: str | None
    value: Any
    what: str = ""
    side: str = "left"


@dataclass(frozen=True)
class Family:
    """Programs that are given the same steps.

    Args:
        programs: title -> the text of an expression over `SIDES` and ``names`` that gives a stream
            or a table. Stores and repartition topics have names of their own over all of a page.
    """

    programs: Mapping[str, str]
    steps: Sequence[Step]
    names: Mapping[str, Any] = field(default_factory=dict)
    value: Serde = field(default_factory=serdes.long)
    key: Serde = TEXT

    @property
    def across(self) -> bool:
        """True if each program is a row, and each step a column: programs are many."""
        return len(self.programs) > 6


class Program(NamedTuple):
    """A program of a family, in a topology of many."""

    sides: Mapping[str, Sequence[str]]
    """Side -> topics."""
    output: str
    nodes: frozenset[str]
    stores: Sequence[str]


@dataclass
class Seen:
    """The results of one program: a cell for each step, and its stores after the last one."""

    cells: list[str] = field(default_factory=list)
    stores: str = ""


class _CountingDriver(TopologyTestDriver):
    """One that keeps what its operators have counted as dropped: node -> reason -> how many."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, emit_every_update=True)
        self._dropped: dict[str, Counter[str]] = {}

    def take_dropped(self) -> Mapping[str, Counter[str]]:
        taken, self._dropped = self._dropped, {}
        return taken

    def _step_result(
        self, request: BatchRequest, rows: Sequence[tuple[RawRecord, int]]
    ) -> StepResult:
        result = super()._step_result(request, rows)
        for node, reasons in result.dropped.items():
            self._dropped.setdefault(node, Counter()).update(reasons)
        return result

    def content(self, store: str) -> str:
        """The content of a store that has a view; empty for other kinds."""
        kind = self._kept[store].kind if store in self._kept else ""
        if kind not in VIEWS:
            return ""
        view: Any = getattr(self, f"get_{kind}_store")(store)
        entries = list(view.all())
        if any(isinstance(key, bytes) for key, _ in entries):  # an operator's own format
            return ""
        return ", ".join(
            f"`{text(key)}: {text(value)}`".replace(": `", "`") for key, value in entries
        )


def text(value: Any) -> str:
    """A key or value as the tables show it."""
    if value is None:
        return "null"
    if isinstance(value, Windowed):
        return f"{value.key}@{value.start}-{value.end}"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return "+".join("" if one is None else text(one) for one in value.values())
    return "[" + " ".join(map(text, value)) + "]" if isinstance(value, list) else str(value)


def seen(families: Mapping[str, Family]) -> dict[str, dict[str, Seen]]:
    """Family -> title of a program -> what it made of its family's steps."""
    builder = StreamsBuilder()
    programs: dict[tuple[str, str], Program] = {}
    known: frozenset[str] = frozenset()
    for name, family in families.items():
        for at, (title, source) in enumerate(family.programs.items()):
            made = built(builder, family, source, f"{name}-{at}")
            programs[name, title] = made._replace(nodes=made.nodes - known)
            known |= made.nodes
    found = {name: {title: Seen() for title in families[name].programs} for name in families}
    driver = _CountingDriver(builder.build())
    with driver:
        topics = {
            topic: driver.create_input_topic(topic, TEXT, families[name].value)
            for (name, _), program in programs.items()
            for listed in program.sides.values()
            for topic in listed
        }
        for at in range(max(len(family.steps) for family in families.values())):
            driver.pipe_batch(dict(_step(families, programs, topics, at)))
            dropped = driver.take_dropped()
            for (name, title), program in programs.items():
                shown, left = found[name][title], len(families[name].steps) - at - 1
                if left >= 0:
                    out = driver.create_output_topic(program.output, TEXT, TEXT)
                    shown.cells.append(_cell(out, program, dropped))
                if left == 0:
                    contents = [driver.content(store) for store in program.stores]
                    shown.stores = ", ".join(filter(None, contents))
    return found


def built(
    builder: StreamsBuilder,
    family: Family,
    source: str,
    prefix: str,
    shown: Callable[[Any], str] | None = None,
) -> Program:
    """Adds a program whose topics begin with ``prefix``. ``shown``: other texts of keys and values
    than `text`."""
    shown = shown or text
    code = compile(source, prefix, "eval")
    sides: dict[str, list[str]] = {}
    names: dict[str, Any] = {}
    for name in (one for one in SIDES if one in code.co_names):
        topic = f"{prefix}-{name}"
        names[name] = source_of(builder, name, topic, family)
        sides.setdefault(SIDES[name], []).append(topic)
    made = eval(code, {**family.names, **names})
    stream = made.to_stream() if isinstance(made, KTable) else made
    texts = stream.map(lambda key, value: (shown(key), shown(value)), returns=("string", "string"))
    texts.to(f"{prefix}-out", key=TEXT, value=TEXT)
    nodes = frozenset(node.name for node in builder.build().nodes)
    stores = STORES.findall(source)
    if not stores and [*names] == ["table"]:
        stores = [f"{prefix}-table"]
    return Program(sides, f"{prefix}-out", nodes, stores)


def with_own_names(source: str, prefix: str) -> str:
    """Stores and repartition topics begin with ``prefix``: pages use the same names."""
    for one in {*STORES.findall(source), *re.findall(r"name=\"([\w-]+)\"", source)}:
        source = source.replace(f'"{one}"', f'"{prefix}-{one}"')
    return source


def source_of(builder: StreamsBuilder, name: str, topic: str, family: Family) -> Any:
    """The stream, groups or table that a name of `SIDES` stands for."""
    types: dict[str, Any] = {"key": family.key, "value": family.value}
    if name.endswith("stream"):
        return builder.stream(topic, **types)
    if name.endswith("groups"):
        return builder.stream(topic, **types).group_by_key()
    if name == "global_table":
        return builder.global_table(topic, store=topic, **types)
    store = Materialized(topic, history=50) if name == "past" else topic
    return builder.table(topic, store=store, **types)


def _step(
    families: Mapping[str, Family],
    programs: Mapping[tuple[str, str], Program],
    topics: Mapping[str, InputTopic],
    at: int,
) -> Iterator[tuple[InputTopic, list[tuple[Any, ...]]]]:
    for (name, _), program in programs.items():
        for step in families[name].steps[at : at + 1]:
            for topic in program.sides.get(step.side, ()):
                yield topics[topic], [(step.key, step.value, step.time)]


def _cell(out: OutputTopic, program: Program, dropped: Mapping[str, Counter[str]]) -> str:
    results = [f"`{key}: {value}`" for key, value in out.read_key_values()]
    counted: Counter[str] = Counter()
    for node in program.nodes & dropped.keys():
        counted.update(dropped[node])
    reasons = [
        ("counted" if reason == LATE_UNMATCHED else "dropped")
        + f": `{reason}`"
        + (f" x {n}" if n > 1 else "")
        for reason, n in counted.items()
    ]
    return ", ".join(results + reasons)


def table(family: Family, made: Mapping[str, Seen]) -> str:
    """A family's table: its steps, what came of each, and what the stores have after the last."""
    record = [f"`{text(step.key)}: {text(step.value)}`" for step in family.steps]
    if family.across:
        head = [
            ", ".join(filter(None, [f"{step.time} {one}", _what(step)]))
            for step, one in zip(family.steps, record, strict=True)
        ]
        rows = [
            [f"`{source}`", *made[title].cells, made[title].stores]
            for title, source in family.programs.items()
        ]
        return _table(["", *head, "the store then contains"], rows)
    head = ["time", "record", "", *family.programs]
    rows = [
        [str(step.time), one, _what(step), *(made[title].cells[at] for title in family.programs)]
        for at, (step, one) in enumerate(zip(family.steps, record, strict=True))
    ]
    rows.append(
        ["", "", "the store then contains", *(made[title].stores for title in family.programs)]
    )
    listed = [f"- {title}: `{source}`\n" for title, source in family.programs.items()]
    return _table(head, rows) + "\n" + "".join(listed)


def _what(step: Step) -> str:
    return ", ".join(filter(None, ["right" if step.side == "right" else "", step.what]))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [row for row in rows if any(row)]
    if not any(row[-1] for row in rows) and head[-1] == "the store then contains":
        head, rows = head[:-1], [row[:-1] for row in rows]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(f' {one} ' if one else ' ' for one in line)}|\n" for line in lines)
