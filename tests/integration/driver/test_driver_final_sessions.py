"""In which order sessions give their final results, through the test driver."""

from __future__ import annotations

from everflow import EmitStrategy, SessionWindows, StreamsBuilder, serdes
from everflow.testing import TopologyTestDriver

TEXT = serdes.string()


def test_sessions_that_close_at_once_come_by_their_ends_and_starts() -> None:
    builder = StreamsBuilder()
    (
        builder.stream("visits", key=TEXT, value=TEXT)
        .group_by_key()
        .windowed_by(SessionWindows(3, 5))
        .emit_strategy(EmitStrategy.on_window_close())
        .count(store="sessions")
        .to_stream()
        .map(lambda key, value: (key.key, str(value)), returns=("string", "string"))
        .to("counted")
    )
    with TopologyTestDriver(builder.build()) as driver:
        visits = driver.create_input_topic("visits", TEXT, TEXT)
        visits.pipe_each([("c", "", 150), ("c", "", 152), ("b", "", 152), ("z", "", 200)])
        counted = driver.create_output_topic("counted", TEXT, TEXT)
        assert counted.read_key_values() == [("c", "2"), ("b", "1")]
