"""`everflow topic`: its table, and what it refuses before it asks a broker."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.cli.topics import topic_lines, topic_rows
from everflow.kafka.admin import TopicShape


def test_the_table_has_users_topics_first_and_marks_the_others() -> None:
    topics = {
        "__consumer_offsets": TopicShape(8, 1),
        "app-counts-changelog": TopicShape(4, 1),
        "app-by-x-repartition": TopicShape(4, 1),
        "orders": TopicShape(4, 3),
    }
    records = {
        "__consumer_offsets": 1_234,
        "app-counts-changelog": 2,
        "app-by-x-repartition": 0,
        "orders": 10,
    }
    lines = topic_lines(topic_rows(topics, records))
    assert [" ".join(line.split()) for line in lines] == [
        "TOPIC PARTITIONS REPLICATION RECORDS",
        "orders 4 3 10",
        "app-by-x-repartition 4 1 0 internal",
        "app-counts-changelog 4 1 2 internal",
        "__consumer_offsets 8 1 1,234 the broker's own",
    ]
    assert topic_lines([]) == ["no topics"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "my orders"], "topic 'my orders': a topic's name is 1 to 249 letters"),
        (["create", "orders:0"], "topic 'orders:0': a topic has 1 to 1,000 partitions"),
        (["create", "orders", "orders:2"], "topic orders is given twice"),
        (["create", "orders", "--config", "cleanup.policy"], "--config 'cleanup.policy': write"),
        (["list", "--set", "securty.protocol=SSL"], "'securty.protocol'"),
        (["list", "--set", "x"], "--set 'x': write it as key=value"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["topic", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert "EF-CONFIG" in done.output
