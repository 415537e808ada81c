"""An instance and a test driver take a topology; whoever gives something else is told when they are
made."""

from __future__ import annotations

from typing import Any

import pytest

from everflow import KafkaStreams, StreamsBuilder, TopologyError
from everflow.testing import TopologyTestDriver

SETTINGS: dict[str, Any] = {"application_id": "app", "bootstrap_servers": "b:1"}


def test_a_builder_is_to_be_built() -> None:
    builder: Any = StreamsBuilder()
    builder.stream("orders")
    told = (
        r"takes the topology that builder\.build\(\) gives, found the StreamsBuilder itself: "
        r"call \.build\(\) on it\n  at .*:\d+"
    )
    with pytest.raises(TopologyError, match="KafkaStreams " + told):
        KafkaStreams(builder, **SETTINGS)
    with pytest.raises(TopologyError, match="TopologyTestDriver " + told):
        TopologyTestDriver(builder)


@pytest.mark.parametrize(
    ("given", "told"), [(None, "None"), ("orders", "'orders'"), (StreamsBuilder, "<class ")]
)
def test_anything_else_is_named(given: Any, told: str) -> None:
    with pytest.raises(TopologyError, match=rf"topology.*builder\.build.*{told}"):
        KafkaStreams(given, **SETTINGS)
