"""What every reader of an instance gets from the configuration (KIP-392: ``client.rack``)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from everflow.config import StreamsConfig
from everflow.runtime.wiring import Ground


def ground(**settings: Any) -> Ground:
    """The readers' settings stand on the configuration only."""
    config = StreamsConfig(**{"application.id": "a", "bootstrap.servers": "b:9092", **settings})
    nothing = cast(Any, None)
    return Ground(
        config=config,
        clock=nothing,
        admin=nothing,
        blueprint=nothing,
        directory=nothing,
        changelogs=nothing,
    )


def test_the_rack_reaches_our_readers_and_spark_s() -> None:
    found = ground(**{"client.rack": "zone-a"})
    assert found.reader["client.rack"] == "zone-a"
    assert found.source["client.rack"] == "zone-a"


def test_without_a_rack_there_is_no_such_setting() -> None:
    found = ground()
    assert "client.rack" not in found.reader
    assert "client.rack" not in found.source


@pytest.mark.parametrize("readers", ["reader", "source"])
def test_the_servers_are_only_in_what_needs_them(readers: str) -> None:
    assert ("bootstrap.servers" in getattr(ground(), readers)) == (readers == "reader")
