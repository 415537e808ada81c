"""Calls to the outside that may outlast a batch are refused at the start (note 070)."""

from typing import Any

import pytest

from everflow import ConfigError, StreamsBuilder, serdes
from everflow.instance.start_up import require_calls_fit
from everflow.topology.plan import PhysicalPlan, plan
from everflow.topology.subtopologies import cut
from unit.builders import streams_config


def planned(**calls: Any) -> PhysicalPlan:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    stream.filter(bool, concurrency=4, name="asks", **calls).for_each(print, concurrency=4)
    topology = builder.build()
    return plan(topology, cut(topology).index_of, "app")


def test_calls_that_end_within_a_batch_may_run() -> None:
    config = streams_config(max_poll_interval_ms=70_000, max_batch_ms=3_000)
    require_calls_fit(planned(timeout="30 seconds"), config)  # 30 s of the other, too


@pytest.mark.parametrize(
    "calls", [{"timeout": "38 seconds"}, {"timeout": "19 seconds", "retries": 1}]
)
def test_calls_that_may_outlast_a_batch_name_their_lines_and_the_setting(
    calls: dict[str, object],
) -> None:
    config = streams_config(max_poll_interval_ms=70_000, max_batch_ms=3_000)
    with pytest.raises(
        ConfigError, match=r"(?s)asks .*test_calls_fit\.py:\d+.*max\.poll\.interval"
    ):
        require_calls_fit(planned(**calls), config)
