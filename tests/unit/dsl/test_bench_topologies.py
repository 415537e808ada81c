"""The topologies of `bench programs` build, and have as many sub-topologies as their names say."""

from __future__ import annotations

import pytest

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.programs import topologies
from bench.programs.catalogue import PROGRAMS

pytestmark = pytest.mark.spark
SUB_TOPOLOGIES = {"chain": 3, "trades": 2, "flights": 2, "words": 2, "cities": 2}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_builds_and_writes_the_topics_that_are_compared(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INPUT_TOPIC_VARIABLE, "in")
    monkeypatch.setenv(OUTPUT_TOPIC_VARIABLE, "out")
    text = getattr(topologies, name)().build().describe()
    assert text.count("Sub-topology:") == SUB_TOPOLOGIES.get(name, 1)
    assert all(f"(topic: out{branch})" in text for branch in PROGRAMS[name].branches)
