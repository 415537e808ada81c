"""Which program an instance runs, as anybody who reaches it may see."""

from __future__ import annotations

from pathlib import Path

from everflow import StreamsBuilder
from everflow.assignment.user_data import digest
from everflow.config import StreamsConfig
from everflow.instance.observer import subject_of
from everflow.topology.store_layouts import fingerprint
from everflow.topology.subtopologies import cut


def test_the_program_is_named_by_its_first_line_without_a_home() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    topology = builder.build()
    config = StreamsConfig({"application.id": "a", "bootstrap.servers": "b:1"})
    found = subject_of(config, topology, "p", 7)
    file, _, line = found.program.rpartition(":")
    assert file.endswith(Path(__file__).name)
    assert not file.startswith("/")
    assert line.isdigit()
    assert (found.topology, found.started_ms) == ("", 7), "the group's digits come with the cluster"
    assert len(digest(fingerprint(cut(topology)))) == 16
