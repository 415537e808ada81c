"""What every reader of an instance gets from the configuration (KIP-392: ``client.rack``)."""

from __future__ import annotations

from typing import Any, cast

from everflow.config import StreamsConfig
from everflow.instance.assembly import Dependencies


def dependencies(**settings: Any) -> Dependencies:
    """The readers' settings stand on the configuration only."""
    config = StreamsConfig(**{"application.id": "a", "bootstrap.servers": "b:9092", **settings})
    nothing = cast(Any, None)
    return Dependencies(
        config=config,
        clock=nothing,
        admin=nothing,
        blueprint=nothing,
        directory=nothing,
        changelogs=nothing,
    )


def test_the_rack_reaches_the_readers_of_inputs_and_changelogs() -> None:
    found = dependencies(**{"client.rack": "zone-a"})
    assert found.reader["client.rack"] == "zone-a"
    assert found.main_reader["client.rack"] == "zone-a"


def test_without_a_rack_there_is_no_such_setting() -> None:
    found = dependencies()
    assert "client.rack" not in found.reader
    assert "client.rack" not in found.main_reader


def test_each_reader_has_its_prefix() -> None:
    found = dependencies(
        **{"consumer.fetch.min.bytes": 1, "main.consumer.fetch.min.bytes": 2, "client.rack": "a"}
    )
    assert (found.reader["fetch.min.bytes"], found.main_reader["fetch.min.bytes"]) == (1, 2)
    assert found.main_reader["bootstrap.servers"] == "b:9092"
