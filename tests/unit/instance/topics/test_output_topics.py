"""Output topics that do not exist: an error before anything runs, where nobody would create
them."""

from __future__ import annotations

import pytest

from everflow import StreamsBuilder
from everflow.errors import TopologyError
from everflow.instance.topics.internal_topics import fixed_outputs, missing_outputs


def test_the_outputs_known_at_start_are_the_ones_named_in_the_program() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.to("out")
    stream.to(lambda record: str(record.key))
    stream.repartition(name="by-key").to("also")
    found = fixed_outputs(builder.build(), "letters")
    assert set(found) == {"out", "also", "letters"}
    assert str(found["out"]).startswith(__file__)


def test_a_missing_one_is_named_with_the_command_that_creates_it() -> None:
    error = missing_outputs({"nope": "program.py:3"}, False, 6)
    assert isinstance(error, TopologyError)
    assert "output topic nope does not exist" in str(error)
    assert "everflow topic create nope:6 --bootstrap-servers" in str(error)
    assert error.where == "program.py:3"


def test_a_missing_dead_letter_topic_is_called_one() -> None:
    alone = str(missing_outputs({"letters": None}, False, 6, "letters"))
    assert alone.startswith(
        "dead-letter topic letters (errors.dead.letter.queue.topic.name) does not exist"
    )
    assert "output topic" not in alone
    assert "everflow topic create letters:" in alone
    both = missing_outputs({"letters": None, "nope": "program.py:3"}, False, 6, "letters")
    assert both is not None
    assert str(both).startswith(
        "output topic nope and dead-letter topic letters (errors.dead.letter.queue.topic.name) do "
        "not"
    )
    assert both.where == "program.py:3"


@pytest.mark.parametrize("creates", [True, None])
def test_brokers_that_create_topics_or_do_not_tell_are_no_reason_to_stop(
    creates: bool | None,
) -> None:
    assert missing_outputs({"nope": None}, creates, 6) is None
    assert missing_outputs({}, False, 6) is None
