"""The time that is certain for the inputs of a task, for its operators, and for what it has written
(``stream.time=lowest``, note 076). Pure.

Times are kept beside committed offsets, by name (`everflow.topology.idle_sources` has the room).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from everflow.errors import TopologyError
from everflow.topology.graph import (
    FunctionNode,
    Graph,
    Node,
    SinkNode,
    SourceNode,
    StatefulNode,
    WriteNode,
)
from everflow.topology.subtopologies import SubTopology, cut

HIGHEST = "highest"
LOWEST = "lowest"
"""The rules of ``stream.time``."""
RULES = (HIGHEST, LOWEST)
UNKNOWN = -1
"""No time is known yet."""
IN = "/idle"
"""Behind a source's name: the time that is certain for the input (ms)."""
READ = "/read"
"""Behind a source's name: up to which offset a merged repartition input was read."""
DONE = "/done"
"""Behind a source's name: records in front of `READ` are done if they are not later (ms)."""
OUT = "/out"
"""Behind the name of a sink to a repartition topic: up to which time it has written (ms)."""
SILENT = "/silent"
"""Behind the name of such a sink: 1 while all that reaches it is silent."""


def required_rule(stream_time: str) -> str:
    """ValueError for what is no rule."""
    if stream_time not in RULES:
        raise ValueError(f"stream_time is one of {', '.join(RULES)}, found {stream_time!r}")
    return stream_time


def names_of(node: Node) -> list[str]:
    """The names under which times of a source or a sink are kept."""
    if isinstance(node, SourceNode):
        behind = (IN, READ, DONE) if node.kind == "repartition" else (IN,)
        return [one + what for one in node.names_of_topics().values() for what in behind]
    if isinstance(node, SinkNode) and node.kind == "repartition":
        return [node.name + OUT, node.name + SILENT]
    return []


def require_lowest_fits(graph: Graph) -> None:
    """TopologyError for what goes by offsets where records are taken in order of time, with the
    cure."""
    for sub in cut(graph).subtopologies:
        held = holds_back(sub)
        for node in sub.nodes:
            if held and isinstance(node, WriteNode):
                what = f"{node.name} knows its rows by the offsets of records"
            elif held and isinstance(node, FunctionNode) and node.calls is not None:
                what = f"the calls of {node.name} end by the offsets of records"
            elif isinstance(node, StatefulNode) and node.operator.in_pieces:
                raise TopologyError(
                    f"stream.time=lowest is not there for a source outside Kafka: {node.name}. "
                    f"Use stream.time=highest",
                    where=node.where,
                )
            else:
                continue
            raise TopologyError(
                f"{what}, and with stream.time=lowest the records of its sub-topology are taken in "
                f"order of time. Write .repartition(name=...) in front of it, or use "
                f"stream.time=highest",
                where=node.where,
            )


class Writer(NamedTuple):
    """A sink to a repartition topic: ``name`` is the node's, in the tasks of ``subtopology``, to
    which its topic leads back if it ``circles``."""

    subtopology: int
    name: str
    circles: bool = False


def writers(graph: Graph, application_id: str) -> dict[str, tuple[Writer, ...]]:
    """Who writes each repartition topic, by its full name."""
    found: dict[str, list[Writer]] = {}
    circling = _circling(graph)
    for sub in cut(graph).subtopologies:
        for node in sub.nodes:
            if isinstance(node, SinkNode) and node.kind == "repartition":
                topic = f"{application_id}-{node.topic}"
                writer = Writer(sub.index, node.name, node.name in circling)
                found.setdefault(topic, []).append(writer)
    return {topic: tuple(listed) for topic, listed in found.items()}


# --- by whose times an operator or a sink goes ----------------------------------------------------


class Reach(NamedTuple):
    """A source that reaches a node of its sub-topology, by its number in the plan. What comes of
    its records lies ``lag_ms`` behind its time at the most."""

    source: int
    lag_ms: int


class Teller(NamedTuple):
    """A sink to a repartition topic, and what it goes by."""

    subtopology: int
    name: str
    reached: tuple[Reach, ...]


def lags(graph: Graph) -> dict[str, dict[str, int]]:
    """Of each node the sources that reach it, with the sum of what lies between (ms): the longest
    way's."""
    found: dict[str, dict[str, int]] = {}
    for node in graph.nodes:  # inputs first
        mine = {node.name: 0} if isinstance(node, SourceNode) else dict[str, int]()
        for name in node.inputs:
            before = graph.node(name)
            lag_ms = before.operator.lag_ms if isinstance(before, StatefulNode) else 0
            for source, ms in found[name].items():
                mine[source] = max(ms + lag_ms, mine.get(source, 0))
        found[node.name] = mine
    return found


def holds_back(sub: SubTopology) -> bool:
    """Whether records of its repartition topics wait for the time that is certain: where it keeps
    state, or reads another topic, too, for which they wait. What waits has to be held: a position
    that stands still in front of it would never read up to the end that its time belongs to."""
    state = any(isinstance(node, StatefulNode) for node in sub.nodes)
    sources = (node for node in sub.nodes if isinstance(node, SourceNode))
    topics = sum(max(1, len(node.topics)) for node in sources)
    return bool(sub.repartition_sources) and (state or topics > 1)


def fed_back(graph: Graph) -> frozenset[str]:
    """Sources of repartition topics that close a circle of sub-topologies, as they are in the order
    of the nodes: no other input of their tasks waits for them."""
    feeds: dict[int, set[int]] = {}
    found = set[str]()
    for start, _, reader, end in _hops(graph):
        if start == end or _leads(feeds, end, start):
            found.add(reader)
        else:
            feeds.setdefault(start, set()).add(end)
    return frozenset(found)


def sources_of_sinks(graph: Graph) -> dict[str, frozenset[str]]:
    """Of each sink to a repartition topic the sources by whose times it goes. If its topic leads
    back to its own sub-topology, those that close the circle are not among them: what comes of a
    record would wait for the record."""
    reaching, closing, circling = lags(graph), fed_back(graph), _circling(graph)
    return {
        node.name: frozenset(reaching[node.name]) - (closing if node.name in circling else set())
        for node in graph.nodes
        if isinstance(node, SinkNode) and node.kind == "repartition"
    }


def _circling(graph: Graph) -> frozenset[str]:
    """The sinks whose topic leads back to their sub-topology."""
    hops, feeds = list(_hops(graph)), dict[int, set[int]]()
    for start, _, _, end in hops:
        feeds.setdefault(start, set()).add(end)
    return frozenset(
        sink for start, sink, _, end in hops if start == end or _leads(feeds, end, start)
    )


def _hops(graph: Graph) -> Iterator[tuple[int, str, str, int]]:
    """Of each sink to a repartition topic and each source of it: the sub-topology and the name of
    the sink, the name and the sub-topology of the source."""
    place = {node.name: sub.index for sub in cut(graph).subtopologies for node in sub.nodes}
    readers: dict[object, list[str]] = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode) and node.kind == "repartition":
            for topic in node.topics:
                readers.setdefault(topic, []).append(node.name)
    for node in graph.nodes:
        if isinstance(node, SinkNode) and node.kind == "repartition":
            for reader in readers.get(node.topic, ()):
                yield place[node.name], node.name, reader, place[reader]


def _leads(feeds: Mapping[int, set[int]], start: int, end: int) -> bool:
    todo, seen = [start], {start}
    while todo:
        for one in feeds.get(todo.pop(), ()):
            if one == end:
                return True
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return False


# --- what was told --------------------------------------------------------------------------------


class Told(NamedTuple):
    """What the commit of a task says of a sink. ``ms``: `UNKNOWN` if it has said nothing."""

    ms: int = UNKNOWN
    silent: bool = False


def told(times: Mapping[str, int], sink: str) -> Told:
    """``times``: the stream times beside the committed offsets of a task."""
    return Told(times.get(sink + OUT, UNKNOWN), times.get(sink + SILENT, 0) == 1)


def least(inputs: Iterable[Told]) -> int:
    """The time (ms) that is certain for all of ``inputs``: the least of those that are not silent;
    if all are, the highest. `UNKNOWN` if one that is not silent has none, or without inputs."""
    listed = list(inputs)
    going = [one.ms for one in listed if not one.silent]
    return min(going) if going else max((one.ms for one in listed), default=UNKNOWN)


def of_reached(inputs: Mapping[int, Told], reached: Iterable[Reach]) -> Told:
    """The time of an operator or a sink. ``inputs``: what is certain, and done, of each source of
    its task; one that is not there is silent and has no time."""
    mine = [(inputs.get(one.source, Told(silent=True)), one.lag_ms) for one in reached]
    behind = [Told(max(UNKNOWN, one.ms - lag), one.silent) for one, lag in mine]
    return Told(least(behind), all(one.silent for one in behind))


def read_to(times: Mapping[str, int], timed: str) -> int:
    """Up to which offset a merged repartition input was read; -1 if nothing of it was. ``timed``:
    `Source.timed`."""
    return times.get(timed + READ, -1)


@dataclass
class Timeline:
    """What was learnt of a repartition partition: from which offset on which time is certain. Owned
    by one thread; keeps ``most`` pairs, of which it thins out the older ones."""

    most: int = 64
    _ends: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)

    def add(self, end: int, ms: int) -> None:
        """``ms`` is certain from ``end`` on. Pairs come in order; one that tells nothing more is
        left out."""
        if self._times and ms <= self._times[-1]:
            return
        if self._ends and end <= self._ends[-1]:
            self._times[-1] = ms
            return
        self._ends.append(end)
        self._times.append(ms)
        if len(self._ends) > self.most:
            del self._ends[1:-1:2], self._times[1:-1:2]

    def before(self, offset: int) -> tuple[int, int]:
        """The latest (end, ms) with an end up to ``offset``; (-1, `UNKNOWN`) if there is none."""
        at = bisect_right(self._ends, offset) - 1
        return (self._ends[at], self._times[at]) if at >= 0 else (-1, UNKNOWN)

    def passed(self, offset: int) -> None:
        """The input has been read up to ``offset``: what lies before tells nothing more."""
        at = bisect_right(self._ends, offset) - 1
        if at > 0:
            del self._ends[:at], self._times[:at]
