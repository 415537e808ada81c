"""What an instance says of itself before it starts. Text in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from everflow.config import StreamsConfig
from everflow.logs import log_path
from everflow.topology.describe import roads, summary
from everflow.topology.graph import (
    GlobalTableNode,
    SinkNode,
    SourceNode,
    StatefulNode,
    WholeTableNode,
)
from everflow.topology.plan import plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut

_LIST_WIDTH = 76  # topics or stores named before "and n more"


@dataclass(frozen=True, kw_only=True)
class Banner:
    """``topology`` is `topology_lines` of the program, ``computed`` how many of its nodes take
    which road, ``program`` says where it is, if anywhere."""

    application_id: str
    version: str
    bootstrap_servers: str
    guarantee: str
    threads: int
    state_folder: str
    topology: tuple[str, str, str]
    log_file: str
    computed: str
    program: str = ""

    def text(self) -> str:
        """Several lines, without a final newline."""
        rows = [
            ("application", f"{self.application_id}   (everflow {self.version})"),
            ("brokers", self.bootstrap_servers),
            (
                "guarantee",
                f"{self.guarantee}, {self.threads} stream thread{'s' * (self.threads != 1)}",
            ),
            ("topology", self.topology[0]),
            ("", self.topology[1]),
            ("", self.topology[2]),
            ("computed", self.computed),
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
    stores = [
        spec.name
        for node in topology.nodes
        if isinstance(node, StatefulNode)
        for spec in node.stores
    ]
    written = [
        node.topic if isinstance(node.topic, str) else "(a topic per record)"
        for node in sinks
        if node.kind != "repartition"
    ]
    tables = [node for node in topology.nodes if isinstance(node, WholeTableNode)]
    read += [node.topic for node in tables if isinstance(node, GlobalTableNode)]
    stores += [node.store.name for node in tables]
    rekeyed = len(
        {topic for node in sources if node.kind == "repartition" for topic in node.topics}
    )
    keeps = _listed(stores) if stores else "nothing (stateless)"
    if rekeyed:
        keeps += f"; re-keys through {rekeyed} repartition topic{'s' * (rekeyed != 1)}"
    return (f"reads  {_listed(read)}", f"keeps  {keeps}", f"writes {_listed(written) or 'nothing'}")


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


def banner(config: StreamsConfig, topology: Topology, program: str = "") -> Banner:
    """The banner of an instance; ``program``: where it was loaded from, if from anywhere."""
    planned = plan(topology, cut(topology).index_of, config.application_id)
    return Banner(
        program=program,
        application_id=config.application_id,
        version=version("everflow"),
        bootstrap_servers=config.bootstrap_servers,
        guarantee=config.processing_guarantee,
        threads=config.num_stream_threads,
        state_folder=str(Path(config.state_dir) / config.application_id),
        log_file=str(log_path(config.state_dir, config.application_id)),
        topology=topology_lines(topology),
        computed=summary(roads(planned)),
    )
