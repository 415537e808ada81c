"""Names of other APIs: the message tells the name here, and its example works."""

import copy
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import SessionWindows, StreamsBuilder, TimeWindows, serdes
from everflow.errors import UnknownNameError
from everflow.foreign_names import foreign_names
from unit.builders import PUBLIC

pytestmark = pytest.mark.spark
VALUE = "item string, amount double"
OWNERS = (
    *("StreamsBuilder", "KStream", "KTable", "KGroupedStream", "TimeWindowedKStream"),
    *("SessionWindowedKStream", "BranchedKStream", "TimeWindows", "SlidingWindows"),
    *("SessionWindows", "Topology", "agg", "serdes"),
)
EXAMPLES = [
    (owner, entry.advice)
    for owner in OWNERS
    for entry in dict.fromkeys(foreign_names()[owner].values())
    if entry.here is not None and "KafkaStreams" not in entry.advice
]


class World:
    """Things as the examples name them, each of a new builder."""

    def __init__(self, owner: str) -> None:
        self.builder = StreamsBuilder()
        # The builder's examples read the topics themselves.
        reader = StreamsBuilder() if owner == "StreamsBuilder" else self.builder
        self.stream = reader.stream("orders", key=serdes.string(), value=serdes.json(VALUE))
        self.other = self.builder.stream("more", key=serdes.string(), value=serdes.json(VALUE))
        self.grouped = self.stream.group_by_key()
        sessions = SessionWindows.of_inactivity_gap("5 minutes")
        self.windowed: Any = self.grouped.windowed_by(TimeWindows.of_size("1 hour"))
        if owner == "SessionWindowedKStream":
            self.windowed = self.grouped.windowed_by(sessions)
        self.split = self.stream.split()
        self.table = self.grouped.count(store="a-store")
        self.customers = reader.table(
            "customers", key=serdes.string(), value=serdes.json("city string"), store="customers"
        )

    def run(self, example: str) -> object:
        names = {**PUBLIC, "F": F, "add_order": lambda order, account: account}
        return eval(example, {**names, **vars(self)})


@pytest.mark.parametrize(
    ("owner", "example"), EXAMPLES, ids=[f"{owner}: {example}" for owner, example in EXAMPLES]
)
def test_an_example_works_as_it_is_written(owner: str, example: str) -> None:
    World(owner).run(example)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("stream.mapValues(str)", "mapValues.*map_values.*stream"),
        ("stream.leftJoin(other)", r"leftJoin.*left_join"),
        ("stream.groupByKey()", "group_by_key"),
        ("stream.select('value.amount')", "map_values.*stream"),
        ("stream.where('a > 1')", r"filter.*stream\.filter"),
        ("stream.writeStream.start()", r"stream\.to\('output'"),
        ("stream.suppress(None)", r"a table's updates are held back: table\.suppress\("),
        ("table.to('out')", r"to_stream.*table\.to_stream\(\)"),
        ("grouped.agg(n=1)", "aggregate.*grouped"),
        ("windowed.emitStrategy(None)", r"emit_strategy.*windowed\.emit_s"),
        ("builder.readStream.format('kafka')", "stream.*builder"),
        ("builder.globalTable('t')", r"global_table.*builder"),
        ("builder.build().addSource('s')", r"topologies.*StreamsBuilder"),
        ("stream.fliter(None)", r"KStream.*filter\?"),
        ("stream.split().to('out')", "BranchedKStream has no to; it has branch, default_branch"),
        ("stream.qqqqq", r"KStream.*branch"),
    ],
)
def test_a_foreign_or_misspelt_name_is_told_with_the_users_line(given: str, told: str) -> None:
    world = World("KStream")
    with pytest.raises(UnknownNameError, match=told) as caught:
        world.run(given)
    assert isinstance(caught.value, AttributeError)
    assert caught.value.where == "<string>:1"
    assert caught.value.code == "EF-UNKNOWN-NAME"


def test_what_python_and_notebooks_ask_of_an_object_works_as_of_any_other() -> None:
    stream = World("KStream").stream
    assert not hasattr(stream, "suppress")
    assert getattr(stream, "_repr_mimebundle_", None) is None
    assert not hasattr(stream, "_ipython_canary_method_should_not_exist_")
    assert repr(copy.copy(stream)) == repr(stream)
    assert "map_values" in dir(stream)
