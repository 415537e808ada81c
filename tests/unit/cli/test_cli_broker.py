"""``everflow broker --topic``: what it reads and refuses."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.cli.topics import parse_topics
from everflow.errors import ConfigError


def test_topics_are_read_in_order() -> None:
    assert list(parse_topics(["orders:4", "a.b_c-d:1"]).items()) == [("orders", 4), ("a.b_c-d", 1)]
    assert parse_topics([]) == {}


WRONG = [
    ("orders", "name:partitions, e.g. orders:4"),
    ("orders:", "name:partitions, e.g. orders:4"),
    ("orders:four", "name:partitions, e.g. orders:4"),
    ("orders:-1", "name:partitions, e.g. orders:4"),
    ("orders:4:5", "not 'orders:4'"),
    (":4", "not ''"),
    ("..:4", r"not '\.\.'"),
    ("my orders:4", "not 'my orders'"),
    (f"{'x' * 250}:4", "1 to 249 letters"),
    ("orders:0", "1 to 1,000 partitions"),
    ("orders:1001", "1 to 1,000 partitions"),
]


@pytest.mark.parametrize(("argument", "says"), WRONG, ids=[argument[:20] for argument, _ in WRONG])
def test_what_is_no_topic_is_refused_with_the_reason(argument: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        parse_topics([argument])
    assert argument in str(refused.value)


def test_a_topic_is_given_once() -> None:
    with pytest.raises(ConfigError, match=r"orders.*twice"):
        parse_topics(["orders:4", "orders:4"])


def test_nothing_starts_with_a_wrong_topic() -> None:
    done = CliRunner().invoke(app, ["broker", "--topic", "orders"])
    assert done.exit_code == 2
    assert "[EF-CONFIG]" in done.output
    assert "broker is up" not in done.output
