"""What the commands print: banner, progress, errors. Text in, text out; times are passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everflow import __version__
from everflow.config import StreamsConfig
from everflow.logs import log_path
from everflow.runtime.client_state import ENDED, ClientState
from everflow.topology.graph import SinkNode, SourceNode, StatefulNode
from everflow.topology.program import Topology

_SETTLED = frozenset({ClientState.RUNNING, *ENDED})
_LIST_WIDTH = 76  # topics or stores named in the banner before "and n more"


@dataclass(frozen=True)
class Banner:
    """The first thing a run prints; ``topology`` is `topology_lines` of the program, ``program`` says where it is, if anywhere."""

    application_id: str
    version: str
    bootstrap_servers: str
    guarantee: str
    threads: int
    state_folder: str
    topology: tuple[str, str, str]
    log_file: str
    program: str = ""

    def text(self) -> str:
        """Several lines, without a final newline."""
        rows = [
            ("application", f"{self.application_id}   (everflow {self.version})"),
            ("brokers", self.bootstrap_servers),
            ("guarantee", f"{self.guarantee}, {self.threads} stream thread{'s' * (self.threads != 1)}"),
            ("topology", self.topology[0]),
            ("", self.topology[1]),
            ("", self.topology[2]),
            ("state", self.state_folder),
            ("log", self.log_file),
        ]
        if self.program:
            rows.insert(1, ("program", self.program))
        return "\n".join(f"{label:<12} {text}" for label, text in rows)


def topology_lines(topology: Topology) -> tuple[str, str, str]:
    """The program in three lines: what it reads, what it keeps, what it writes."""
    sources = [node for node in topology.nodes if isinstance(node, SourceNode)]
    sinks = [node for node in topology.nodes if isinstance(node, SinkNode)]
    read = [topic for node in sources if node.kind != "repartition" for topic in node.topics]
    stores = [spec.name for node in topology.nodes if isinstance(node, StatefulNode) for spec in node.stores]
    written = [
        node.topic if isinstance(node.topic, str) else "(a topic per record)" for node in sinks if node.kind != "repartition"
    ]
    rekeyed = len({topic for node in sources if node.kind == "repartition" for topic in node.topics})
    keeps = _listed(stores) if stores else "nothing (stateless)"
    if rekeyed:
        keeps += f"; re-keys through {rekeyed} repartition topic{'s' * (rekeyed != 1)}"
    return (f"reads  {_listed(read)}", f"keeps  {keeps}", f"writes {_listed(written) or 'nothing'}")


def banner(config: StreamsConfig, topology: Topology, program: str = "") -> Banner:
    """What a run prints first; ``program``: where it was loaded from, if from anywhere."""
    return Banner(
        program=program,
        application_id=config.application_id,
        version=__version__,
        bootstrap_servers=config.bootstrap_servers,
        guarantee=config.processing_guarantee,
        threads=config.num_stream_threads,
        state_folder=str(Path(config.state_dir) / config.application_id),
        log_file=str(log_path(config.state_dir, config.application_id)),
        topology=topology_lines(topology),
    )


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    shown: list[str] = []
    width = 0
    for name in unique:
        width += len(name) + 2
        if shown and width > _LIST_WIDTH:
            return f"{', '.join(shown)} and {len(unique) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


@dataclass(frozen=True)
class Sample:
    """One look at an application and at the instance here.

    ``consumed`` and ``log_end`` are the application's: committed offsets and ends summed over all input partitions, repartition
    topics included. ``tasks`` says what the tasks of this instance do (`everflow.runtime.task_words.summary`).
    """

    at_s: float
    consumed: int
    log_end: int
    tasks: str = ""


@dataclass
class Progress:
    """Samples -> the progress line. Rates are taken over the last ``window_s`` seconds. Not thread-safe."""

    window_s: float = 10.0
    _samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample) -> None:
        """Take a sample; times must not go back."""
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[0].at_s > self.window_s:
            self._samples.popleft()

    @property
    def records_per_s(self) -> float:
        """Records a second over the window; 0 before the second sample."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        elapsed = last.at_s - first.at_s
        return max(0, last.consumed - first.consumed) / elapsed if elapsed > 0 else 0.0

    @property
    def lag(self) -> int | None:
        """Records not yet committed; None before the first sample."""
        last = self._samples[-1] if self._samples else None
        return None if last is None else max(0, last.log_end - last.consumed)

    def line(self) -> str:
        """``45,120 records/s · lag 12,345 · here: 6 active, 2 standby``; rate and lag are of all instances together."""
        lag = self.lag
        parts = [f"{self.records_per_s:,.0f} records/s", "lag unknown" if lag is None else f"lag {lag:,}"]
        if self._samples and self._samples[-1].tasks:
            parts.append(f"here: {self._samples[-1].tasks}")
        return " · ".join(parts)


@dataclass
class StateWait:
    """For how long an instance has been in a state that is not the one it is meant for. Not thread-safe."""

    state: ClientState
    since_s: float

    def text(self, state: ClientState, at_s: float, *, said: str) -> str:
        """``REBALANCING for 12 s: Joining the group``, with what was ``said`` last; empty while it runs and in the first second."""
        if state is not self.state:
            self.state, self.since_s = state, at_s
        elapsed = at_s - self.since_s
        if state in _SETTLED or elapsed < 1.0:
            return ""
        return f"{state.name} for {elapsed:.0f} s" + (f": {said}" if said else "")


def parse_settings(assignments: Sequence[str]) -> dict[str, str]:
    """``--set key=value`` arguments as a mapping; the last of equal keys wins.

    Raises:
        ValueError: an argument without ``=`` or without a key; the message names it.
    """
    settings: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"{assignment!r}: write it as key=value, e.g. commit.interval.ms=50")
        settings[key.strip()] = value.strip()
    return settings


def error_text(error: BaseException, code: str, more: Sequence[str] = ()) -> str:
    """``error: [code] message``, continuation lines and ``more`` indented."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    return "\n".join([f"error: [{code}] {first}", *(f"  {line.strip()}" for line in (*rest, *more))])


def merge_settings(*layers: Mapping[str, object | None]) -> dict[str, object]:
    """Later layers win; None means not given."""
    merged: dict[str, object] = {}
    for layer in layers:
        merged.update({key: value for key, value in layer.items() if value is not None})
    return merged
