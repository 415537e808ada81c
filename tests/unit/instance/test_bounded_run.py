"""What `KafkaStreams.run` refuses to be bounded by, and how long a time is."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from everflow import KafkaStreams, StreamsBuilder, StreamsConfig, Topology, TopologyError, serdes
from everflow.instance.bounded_run import bounded_run
from everflow.instance.client_state import ClientState


def topology(output: str | None = "out") -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    if output is None:
        stream.for_each(lambda value: None)
    else:
        stream.to(output)
    return builder.build()


@pytest.mark.parametrize(
    ("output", "asked", "told"),
    [
        ("out", {"count": 0}, "count is a number of records, 1 at least, found 0"),
        ("out", {"count": True}, "1 at least, found True"),
        ("out", {"count": "5"}, "1 at least, found '5'"),
        ("out", {"timeout": 0}, "timeout is above 0, '30 seconds'"),
        ("out", {"timeout": float("nan")}, "timeout is above 0"),
        ("out", {"timeout": "soon"}, "cannot read the duration 'soon'"),
        ("out", {"collect": "in"}, "collect='in' is no topic that the program writes; it writes o"),
        ("out", {"collect": []}, "the name of an output topic or a list of names, found []"),
        ("out", {"collect": 7}, "the name of an output topic or a list of names, found 7"),
        (None, {"count": 1}, "write .to('topic'), or end the run with timeout='30 seconds'"),
    ],
)
def test_a_bound_that_cannot_be_is_refused_with_the_cure(
    tmp_path: Path, output: str | None, asked: dict[str, Any], told: str
) -> None:
    streams = KafkaStreams(
        topology(output), application_id="a", bootstrap_servers="x:1", state_dir=str(tmp_path)
    )
    with pytest.raises(TopologyError, match=re.escape(told)) as refused:
        streams.run(**asked)
    assert "test_bounded_run.py:" in str(refused.value)
    assert streams.state is ClientState.CREATED, "it can be run again, corrected"


@pytest.mark.parametrize("timeout", [1.5, "1500 ms", timedelta(milliseconds=1500)])
def test_a_time_is_seconds_text_or_a_timedelta(timeout: object) -> None:
    config = StreamsConfig(application_id="a", bootstrap_servers="x:1")
    bound = bounded_run(topology(), config, None, timeout, None)
    assert bound is not None
    assert bound.timeout_s == 1.5
    assert bound.sinks == {}, "nothing is read that nobody asked for"
