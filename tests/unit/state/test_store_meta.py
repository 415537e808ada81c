"""What is written of a store, across releases."""

from __future__ import annotations

import json

from everflow.state.store_meta import FORMAT, StoreMeta


def test_a_store_of_an_earlier_release_opens_and_is_written_in_this_ones_format() -> None:
    """An earlier release then says that it cannot read it, and fails over no field."""
    written = json.loads(StoreMeta(kind="key_value", position=7).encode())
    earlier = {name: value for name, value in written.items() if name != "inputs"} | {"format": 1}
    meta = StoreMeta.decode(json.dumps(earlier).encode(), "here")
    assert (meta.position, meta.inputs) == (7, {})
    again = json.loads(meta.encode())
    assert "inputs" in again
    assert again["format"] == FORMAT


def test_a_time_of_a_clock_that_was_ahead_gives_way_to_the_right_one() -> None:
    meta = StoreMeta(kind="key_value", updated_ms=1_000_000)
    assert meta.followed(-1) == 1_000_000
    assert meta.followed(999_000) == 1_000_000, "noted late"
    assert meta.followed(1_001_000) == 1_001_000
    assert meta.followed(900_000) == 900_000, "the clock was wrong"
