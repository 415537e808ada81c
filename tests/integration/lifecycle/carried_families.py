"""For tests of `everflow migrate`: the programs of the guide's tables, as an old and a new version.

Both files of a migration call `add`. The new version has other names of stores and topics between,
and what `Migration`'s text puts in front shifts the generated names and the sub-topologies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from everflow import KTable, Materialized, StreamsBuilder, Topology
from everflow.columns.key_partitions import java_partitions
from everflow.topology.graph import StatefulNode
from semantics.families import PAGES
from semantics.probes import SIDES, TEXT, Family, Step, text, with_own_names

REPLICAS = 24
"""Of each key of a step, one for each remainder: so each of 4, 6 or 8 tasks has every step."""
NOT_SPREAD = re.compile(r"global_table|lookup_join|Stores\.|by=F|max_records")
"""Programs without a task of their own to be spread, whose keys are not to be moved, or whose
results go by the number of keys in a task."""


ONE_OF_TWO = r"^table\.\w*join\(.*on="
"""A foreign key's two ways give results of which only the last is fixed (docs/differences.md)."""
BY_NEIGHBOURS = r'every\("'
"""The first key of a task that moves stream time on has one early result less than the others."""


class Program(NamedTuple):
    """``last``: of its results only the last one of each key is fixed."""

    name: str
    family: Family
    source: str
    output: str
    last: bool


def programs(pages: Sequence[str], prefix: str, spread: bool) -> Iterator[Program]:
    for name, family in (one for page in pages for one in PAGES[page].items()):
        for at, source in enumerate(family.programs.values()):
            if spread:
                # One foreign key for all would have one partition, and results of one key from
                # several tasks have no order.
                source = source.replace('on=F.lit("k")', 'on=F.col("key")')
                source = source.replace('key=F.lit("k")', 'key=F.concat(F.lit("k"), "key")')
            if not (spread and NOT_SPREAD.search(source)):
                own = f"{name}-{at}"
                loose = f"{ONE_OF_TWO}|{BY_NEIGHBOURS}" if spread else ONE_OF_TWO
                last = re.search(loose, source) is not None
                yield Program(own, family, source, f"{prefix}-{own}-out", last)


def topic_of(prefix: str, program: Program, side: str, spread: bool) -> str:
    """Spread programs of a family share their inputs, so there are not too many tasks."""
    own = program.name.rpartition("-")[0] if spread else program.name
    return f"{prefix}-{own}-{'all' if spread else side}-{SIDES[side]}"


def add(
    builder: StreamsBuilder, pages: Sequence[str], prefix: str, version: str, partitions: int = 0
) -> None:
    """``partitions``: of a topic behind each source; 0: there is none."""
    streams: dict[str, Any] = {}
    for program in programs(pages, prefix, partitions > 0):
        own = with_own_names(program.source, f"{version}-{program.name}")
        code = compile(own, program.name, "eval")
        names = {
            side: _side(builder, prefix, program, side, version, partitions, streams)
            for side in SIDES
            if side in code.co_names
        }
        made = eval(code, {**program.family.names, **names})
        stream = made.to_stream() if isinstance(made, KTable) else made
        texts = stream.map(lambda key, value: (text(key), text(value)), returns=("string",) * 2)
        texts.to(program.output, key=TEXT, value=TEXT)


def _side(
    builder: StreamsBuilder,
    prefix: str,
    program: Program,
    side: str,
    version: str,
    partitions: int,
    streams: dict[str, Any],
) -> Any:
    topic, family = topic_of(prefix, program, side, partitions > 0), program.family
    types: dict[str, Any] = {"key": family.key, "value": family.value}
    kept: Any = f"{version}-{program.name}-{side}"
    if side == "global_table":
        return builder.global_table(topic, store=kept, **types)
    if side == "past":
        kept = Materialized(kept, history=50)
    if partitions:
        if topic not in streams:
            between = f"{version}-{topic.removeprefix(prefix)}"
            streams[topic] = builder.stream(topic, **types).repartition(
                name=between, partitions=partitions
            )
        stream = streams[topic]
    elif side in ("table", "right_table", "past"):
        return builder.table(topic, store=kept, **types)
    else:
        stream = builder.stream(topic, **types)
    if side.endswith("stream"):
        return stream
    return stream.group_by_key() if side.endswith("groups") else stream.to_table(store=kept)


def renames(old: Topology, new: Topology) -> list[str]:
    """``OLD=NEW`` of each store that is called otherwise."""
    mine, its = (
        [
            store.name
            for node in one.nodes
            if isinstance(node, StatefulNode)
            for store in node.stores
        ]
        for one in (old, new)
    )
    pairs = zip(sorted(mine), sorted(its), strict=True)
    return [f"{one}={other}" for one, other in pairs if one != other]


@dataclass
class Fed:
    """The records of the programs, step by step: topic -> key, value and time (ms). Of each family
    half of the steps are before ``half``."""

    pages: Sequence[str]
    prefix: str
    spread: bool
    steps: list[dict[str, list[tuple[bytes | None, bytes | None, int]]]] = field(
        default_factory=list
    )

    half: int = 0

    def __post_init__(self) -> None:
        found = list(programs(self.pages, self.prefix, self.spread))
        self.half = max(len(one.family.steps) // 2 for one in found)
        for program in found:
            begin = self.half - len(program.family.steps) // 2
            for at, step in enumerate(program.family.steps, begin):
                while len(self.steps) <= at:
                    self.steps.append({})
                for side in sides(program):
                    topic = topic_of(self.prefix, program, side, self.spread)
                    if SIDES[side] == step.side and topic not in self.steps[at]:
                        self.steps[at][topic] = list(self._records(program.family, step))

    def _records(self, family: Family, step: Step) -> Iterator[tuple[Any, Any, int]]:
        value = family.value.encode(step.value)
        if not self.spread:
            yield TEXT.encode(step.key), value, step.time
        elif step.key is not None:
            for key in replicas(step.key):
                yield key.encode(), value, step.time

    @property
    def inputs(self) -> list[str]:
        return sorted({topic for step in self.steps for topic in step})


def sides(program: Program) -> list[str]:
    names = compile(program.source, program.name, "eval").co_names
    return [side for side in SIDES if side in names]


_REPLICAS: dict[str, list[str]] = {}


def replicas(key: str) -> list[str]:
    if key not in _REPLICAS:
        asked = [f"{key}{number}" for number in range(40 * REPLICAS)]
        places = java_partitions(pa.array([one.encode() for one in asked]), REPLICAS).tolist()
        first: Mapping[int, str] = dict(zip(places[::-1], asked[::-1], strict=True))
        _REPLICAS[key] = [first[place] for place in range(REPLICAS)]
    return _REPLICAS[key]
