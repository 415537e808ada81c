"""What a store's values show in columns is what they show one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from everflow import (
    CountWindows,
    JoinWindows,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.testing import TopologyTestDriver


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.json("n int"))
    grouped = stream.group_by_key()
    grouped.count(store="counts")
    grouped.reduce(lambda a, b: {"n": a["n"] + b["n"]}, store="sums")
    grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace("1 minute")).count(
        store="sessions"
    )
    grouped.windowed_by(CountWindows.of_size(2)).count(store="numbers")
    windowed = grouped.windowed_by(TimeWindows.of_size("1 minute")).count(store="windows")
    windowed.suppress(Suppressed.until_window_closes(), store="closing")
    other = builder.stream("other", key=serdes.string(), value=serdes.json("n int"))
    stream.join(
        other,
        lambda a, b: {"n": a["n"] + b["n"]},
        windows=JoinWindows.of_time_difference("1 minute"),
        returns="n int",
        store="met",
    )
    builder.table("users", key=serdes.string(), value=serdes.json("n int"), store="users")
    return builder


def test_columns_show_what_values_show() -> None:
    with TopologyTestDriver(topology().build()) as driver:
        for name in ("in", "other", "users"):
            topic = driver.create_input_topic(name, key=serdes.string(), value=serdes.json("n int"))
            for at in range(5):
                topic.pipe_input("ab"[at % 2], {"n": at}, 1_000 * at)
        planned, stores = driver._plan, driver._stores
        assert {"counts", "sums", "sessions", "numbers", "windows", "users"} < stores.keys()
        seen = 0
        for name, store in stores.items():
            raw = [stored[TIMESTAMP_BYTES:] for _, stored in store.range(None, None)]
            decode, results = planned.value_decoder(name), planned.value_results(name)
            shown = results.decode_array(pa.array(raw, pa.binary())).to_pylist()
            assert shown == [decode(one) for one in raw], name
            seen += len(raw)
        assert seen > 10


def test_an_unknown_store_is_none() -> None:
    with TopologyTestDriver(topology().build()) as driver, pytest.raises(KeyError):
        driver._plan.value_results("nothing")
