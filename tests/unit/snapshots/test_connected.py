"""Readers of changelogs where no broker answers."""

from __future__ import annotations

import pytest

from everflow.config import StreamsConfig
from everflow.errors import TaskTimeoutError
from everflow.snapshots import state_reader
from everflow.snapshots.entry_columns import EntryColumns
from everflow.snapshots.logged_stores import LoggedStore
from unit.builders import store_spec


def test_where_no_broker_answers_address_and_cure_are_in_the_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_reader, "REACH_S", 0.5)
    spec = store_spec("s")
    config = StreamsConfig(application_id="a", bootstrap_servers="127.0.0.1:1")
    store = LoggedStore(EntryColumns(spec, spec.value_serde), "a-s-changelog")
    with (
        pytest.raises(TaskTimeoutError) as caught,
        state_reader.reading(store, config, None) as reader,
    ):
        reader.parts("end")
    last = str(caught.value).splitlines()[-1]
    assert "127.0.0.1:1" in last
    assert "Check bootstrap.servers" in last
