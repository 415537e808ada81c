"""`KStream.deduplicate` through the real segments and steps, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import functions as F

from everflow import KStream, StreamsBuilder, serdes
from everflow.errors import RecordError, TopologyError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT = serdes.string()
VALUE = serdes.json("id string, n int")


def test_a_function_that_fails_names_the_record() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    stream.deduplicate("1 second", by=lambda v: v["nothing"], returns="string", store="s").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        with pytest.raises(RecordError, match=r"KeyError: 'nothing'"):
            topic.pipe_input("k", {"id": "x", "n": 1}, timestamp=1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.deduplicate("1 second"), "deduplicate keeps"),
        (lambda s: s.deduplicate("0 s", store="s"), r"within is above 0, found 0 ms"),
        (
            lambda s: s.deduplicate("1 s", grace=-1, store="s"),
            r"grace.*negative.*-1",
        ),
        (lambda s: s.deduplicate("1 s", by="value.id", store="s"), r"write F\.col\('value\.id'\)"),
        (
            lambda s: s.deduplicate("1 s", by=lambda v: v["id"], store="s"),
            r"deduplicate.*returns=",
        ),
        (
            lambda s: s.deduplicate("1 s", by=lambda a, b, c: a, returns="string", store="s"),
            r"deduplicate.*function",
        ),
        (
            lambda s: s.deduplicate("1 s", by=F.col("value.nothing"), store="s"),
            r"nothing",
        ),
    ],
)
def test_what_cannot_work_is_refused(build: Callable[[KStream], KStream], message: str) -> None:
    stream = StreamsBuilder().stream("in", key=TEXT, value=VALUE)
    with pytest.raises(TopologyError, match=message):
        build(stream)
