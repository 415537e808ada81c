"""Dead letters as the page has them, on a real broker: looked at and replayed, once each."""

from __future__ import annotations

import pytest

from everflow import StreamsConfig
from everflow.instance import observer
from everflow.instance.observer import DeadLetterTopic, dead_letters_of
from everflow.observe.page.letters import LetterCause
from integration.bad_records.test_dlq_commands import Dlq, letter
from integration.lifecycle.lifecycle_cluster import Cluster, Record

pytestmark = pytest.mark.broker


def desk_of(cluster: Cluster, topic: str) -> DeadLetterTopic:
    keys = {"application.id": "a", "bootstrap.servers": cluster.bootstrap}
    found = dead_letters_of(StreamsConfig({**keys, "errors.dead.letter.queue.topic.name": topic}))
    assert found is not None
    return found


def test_they_are_replayed_once_and_the_command_knows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlq = Dlq(cluster)
    desk = desk_of(cluster, dlq.topic)
    values, lookup = desk.look().causes
    assert values.cause == LetterCause("ValueError", "parse", dlq.source)
    assert (values.letters, values.open, lookup.open) == (2, 2, 1)
    assert "b'v4'" in values.sample
    with monkeypatch.context() as patched:
        patched.setattr(observer, "MOST_REPLAYED", 1)
        first = desk.replay(values.cause, None)
    assert (first.replayed, first.left, first.error) == (1, 1, "")
    assert desk.replay(values.cause, None).replayed == 1
    assert desk.replay(values.cause, None).replayed == 0
    assert [record.value for record in dlq.cluster.read(dlq.source)] == [b"v3", b"v4"]
    assert {one.cause.node: (one.letters, one.open) for one in desk.look().causes} == {
        "parse": (2, 0),
        "look-up": (1, 1),
    }
    assert "1 dead letter replayed" in dlq("replay", dlq.topic).output, "of the other cause"


def test_letters_that_are_older_than_their_topic_are_counted_and_may_get_the_present_time(
    cluster: Cluster,
) -> None:
    dlq = Dlq(cluster)
    desk = desk_of(cluster, dlq.topic)
    assert [one.late for one in desk.look().causes] == [0, 0]
    cluster.write(dlq.source, [Record(b"k", b"v", 90_000, 0), Record(b"k", b"v", 7_004, 1)])
    assert [one.late for one in desk.look().causes] == [1, 0], "one of the same time is not late"
    assert desk.replay(desk.look().causes[0].cause, 95_000).replayed == 2
    times = [one.timestamp for one in cluster.read(dlq.source)]
    assert sorted(times)[-2:] == [95_000, 95_000]
    assert {one.cause.node: one.late for one in desk.look().causes} == {"parse": 0, "look-up": 1}


def test_a_topic_that_is_gone_is_said_and_holds_nobody_up(cluster: Cluster) -> None:
    dead = cluster.topic("dead", 1)
    cluster.write(dead, [letter(f"{cluster.prefix}-gone", 0, b"v", "ValueError", "parse")])
    desk = desk_of(cluster, dead)
    done = desk.replay(desk.look().causes[0].cause, None)
    assert (done.replayed, done.left) == (0, 1)
    assert "does not exist any more" in done.error
    assert desk.look().causes[0].open == 1


def test_only_the_end_of_a_large_topic_is_looked_at(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlq = Dlq(cluster)
    monkeypatch.setattr(observer, "MOST_LOOKED", 1)
    found = desk_of(cluster, dlq.topic).look()
    assert found.earlier > 0
    assert sum(one.letters for one in found.causes) <= 1


def test_a_topic_that_nobody_has_written_to_is_empty(cluster: Cluster) -> None:
    assert desk_of(cluster, f"{cluster.prefix}-never").look().causes == []
