"""The time that is certain for the inputs of a task, for its operators, and for what it has written
(``stream.time=lowest``, note 076). Pure.

Times are kept beside committed offsets, by name (`everflow.topology.idle_sources` has the room).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from everflow.topology.graph import Graph, SinkNode
from everflow.topology.subtopologies import cut

HIGHEST = "highest"
LOWEST = "lowest"
"""The rules of ``stream.time``."""
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


class Writer(NamedTuple):
    """A sink to a repartition topic: ``name`` is the node's, in the tasks of ``subtopology``."""

    subtopology: int
    name: str


def writers(graph: Graph, application_id: str) -> dict[str, tuple[Writer, ...]]:
    """Who writes each repartition topic, by its full name."""
    found: dict[str, list[Writer]] = {}
    for sub in cut(graph).subtopologies:
        for node in sub.nodes:
            if isinstance(node, SinkNode) and node.kind == "repartition":
                topic = f"{application_id}-{node.topic}"
                found.setdefault(topic, []).append(Writer(sub.index, node.name))
    return {topic: tuple(listed) for topic, listed in found.items()}


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
