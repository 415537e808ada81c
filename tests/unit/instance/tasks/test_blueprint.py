"""What an instance runs."""

from __future__ import annotations

from typing import Any, cast

from everflow.instance.tasks.blueprint import Blueprint
from everflow.records import TopicPartition


def test_only_topics_that_nobody_else_deletes_from_say_what_was_purged() -> None:
    blueprint = Blueprint(
        application_id="app",
        cluster_id="c",
        plan=cast(Any, None),
        inputs={},
        stores={},
        partitions={"in": 1, "kept": 2, "aging": 2},
        offset_reset={},
        repartition=frozenset({"kept", "aging"}),
        kept=frozenset({"kept"}),
    )
    assert blueprint.purged() == [TopicPartition("kept", 0), TopicPartition("kept", 1)]
