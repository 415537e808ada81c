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
