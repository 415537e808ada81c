"""Inputs with more partitions than the state behind them (note 067): tasks, refusals, the plan."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import (
    Materialized,
    StreamsBuilder,
    Topology,
    TopologyError,
    UsePartitionTimeOnInvalidTimestamp,
    serdes,
)
from everflow.assignment.cluster_state import inputs_of, tasks_of
from everflow.columns.key_partitions import BY_HASH, key_partitions
from everflow.operators.optimization import optimized
from everflow.records import TaskId, TopicPartition
from everflow.topology.graph import SourceNode
from everflow.topology.grown_topics import grown_topics, misfits, read_before, with_shares
from everflow.topology.idle_sources import idle_sources
from everflow.topology.patterns import growth, why_not_grown
from everflow.topology.plan import plan
from everflow.topology.sources import sources_of_logs
from everflow.topology.subtopologies import cut, fixed_tasks, internal_names, internal_topics

TEXT = serdes.string()
COUNTS = {"app-n-changelog": 4}


def counted(**reading: object) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT, **reading).group_by_key().count(store="n")  # type: ignore[arg-type]
    return builder.build()


def joined(logging: bool = True) -> Topology:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store=Materialized("s", logging=logging))
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.join(table, lambda left, right: left, returns="string").to("out")
    return builder.build()


def rekeyed(partitions: int | None = None) -> Topology:
    builder = StreamsBuilder()
    keyed = builder.stream("in", key=TEXT, value=TEXT).select_key(
        lambda key, value: value, returns="string"
    )
    keyed.repartition(name="by", partitions=partitions).group_by_key().count(store="n")
    return builder.build()


def partitions_of(topology: Topology, counts: dict[str, int], existing: dict[str, int]) -> object:
    found = internal_topics(cut(topology), counts, "app", existing=existing)
    return {name: count for name, (count, _) in {**found.repartition, **found.changelog}.items()}


# --- how many tasks -------------------------------------------------------------------------------


def test_a_store_that_is_there_keeps_its_tasks_whatever_its_input_has_now() -> None:
    subs = cut(counted())
    assert fixed_tasks(subs, {}, "app") == {}
    assert fixed_tasks(subs, COUNTS, "app") == {0: 4}
    assert partitions_of(counted(), {"in": 8}, {}) == {"app-n-changelog": 8}
    assert partitions_of(counted(), {"in": 8}, COUNTS) == COUNTS
    assert internal_names(cut(rekeyed()), "app") == ["app-by-repartition", "app-n-changelog"]


def test_an_input_before_a_repartition_topic_may_have_any_number() -> None:
    there = {"app-by-repartition": 4, "app-n-changelog": 4}
    assert partitions_of(rekeyed(), {"in": 6}, there) == there
    assert misfits(cut(rekeyed()), {"in": 6}, fixed_tasks(cut(rekeyed()), there, "app")) == []
    assert why_not_grown(rekeyed(), {"in": 4}, "in", 6, "app", there) is None
    assert growth(rekeyed(), {"in": 4}, {"in": 6}, "app", there).taken == {"in": 6}


def test_the_number_that_the_program_says_counts() -> None:
    there = {"app-by-repartition": 4, "app-n-changelog": 4}
    needed = {"app-by-repartition": 6, "app-n-changelog": 6}
    assert partitions_of(rekeyed(6), {"in": 4}, there) == needed
    assert fixed_tasks(cut(rekeyed(6)), there, "app") == {}
    assert fixed_tasks(cut(rekeyed(4)), there, "app") == {1: 4}


def test_both_sides_of_a_join_may_grow_one_after_the_other() -> None:
    subs, there = cut(joined()), {"app-s-changelog": 4}
    for counts in ({"in": 8, "t": 4}, {"in": 4, "t": 12}, {"in": 8, "t": 12}):
        assert misfits(subs, counts, fixed_tasks(subs, there, "app")) == []
        assert partitions_of(joined(), counts, there) == there
    with pytest.raises(TopologyError, match="different partition counts"):
        partitions_of(joined(), {"in": 8, "t": 4}, {})


def test_another_number_is_refused_with_both_and_what_follows() -> None:
    subs = cut(joined())
    fixed = fixed_tasks(subs, {"app-s-changelog": 4}, "app")
    (found,) = misfits(subs, {"in": 6, "t": 4}, fixed)
    assert (found.topic, found.partitions, found.tasks) == ("in", 6, 4)
    assert found.where is not None
    assert "partitions=6" in found.cure
    assert "everflow migrate" in found.cure
    assert all(text in found.text for text in ("in", "6", "4", found.where))


def test_a_topic_that_had_fewer_partitions_than_the_state_may_not_grow() -> None:
    """Its keys were in fewer tasks."""
    builder = StreamsBuilder()
    wide = builder.stream("wide", key=TEXT, value=TEXT)
    narrow = builder.stream("in", key=TEXT, value=TEXT)
    narrow.group_by_key().count(store="n")
    wide.merge(narrow).to("out")
    program, there = builder.build(), {"app-n-changelog": 6}
    subs = cut(program)
    fixed, now = fixed_tasks(subs, there, "app"), {"wide": 6, "in": 12}
    assert misfits(subs, {"wide": 6, "in": 4}, fixed) == []
    assert [one.topic for one in misfits(subs, now, fixed, {"in": 4})] == ["in"]
    assert misfits(subs, now, fixed, {"in": 6}) == []
    for partitions in (6, 12):
        assert why_not_grown(program, {"wide": 6, "in": 4}, "in", partitions, "app", there)


def test_a_function_that_spreads_keys_is_not_trusted() -> None:
    def by(topic: str, key: str, value: None, count: int) -> int:
        return len(key) % count

    subs = cut(counted(partitioner=by))
    (found,) = misfits(subs, {"in": 8}, {0: 4})
    assert "the function by" in found.why
    for name in BY_HASH:
        assert misfits(cut(counted(partitioner=name)), {"in": 8}, {0: 4}) == []


def test_a_function_by_which_keys_are_assumed_is_not_trusted() -> None:
    def by(topic: str, key: str, value: None, count: int) -> int:
        return len(key) % count

    def assumed(**said: Any) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in", key=TEXT, value=TEXT)
        stream = stream.select_key(lambda key, value: value, returns="string")
        stream.assume_partitioned(**said).group_by_key().count(store="n")
        return builder.build()

    (found,) = misfits(cut(assumed(partitioner=by)), {"in": 8}, {0: 4})
    assert "the function by" in found.why
    for name in (None, *BY_HASH):
        assert misfits(cut(assumed(partitioner=name)), {"in": 8}, {0: 4}) == []


def test_a_topic_that_is_a_changelog_too_may_not_grow() -> None:
    builder = StreamsBuilder()
    builder.table("in", key=TEXT, value=TEXT, store="t")
    subs = cut(optimized(builder.build(), "reuse.ktable.source.topics"))
    fixed = fixed_tasks(subs, {"app-t-left-out-changelog": 4}, "app")
    (found,) = misfits(subs, {"in": 8}, fixed)
    assert "changelog of table t" in found.why


def test_what_a_running_program_reads_of_a_topic_that_grows() -> None:
    counts = {"in": 4}
    assert why_not_grown(counted(), counts, "in", 8, "app", COUNTS) is None
    assert growth(counted(), counts, {"in": 8}, "app", COUNTS).taken == {"in": 8}
    refused = why_not_grown(counted(), counts, "in", 6, "app", COUNTS)
    assert refused is not None
    assert "partitions=6" in refused
    assert growth(counted(), counts, {"in": 6}, "app", COUNTS).taken == {}
    assert why_not_grown(counted(), counts, "in", 2, "app", COUNTS) == ""
    unlogged = why_not_grown(joined(False), {"in": 4, "t": 4}, "in", 8, "app", {})
    assert unlogged is not None
    assert "store s" in unlogged


def test_the_partitions_with_offsets_say_what_was_read() -> None:
    committed = [TopicPartition("in", n) for n in (0, 3)] + [TopicPartition("t", 0)]
    assert read_before(committed) == {"in": 4, "t": 1}


# --- who reads what -------------------------------------------------------------------------------


def test_a_task_reads_every_nth_partition() -> None:
    counts = {"in": 8, "t": 4, "other": 2}
    assert inputs_of(TaskId(0, 1), ["in", "t"], counts, {0: 4}) == (
        TopicPartition("in", 1),
        TopicPartition("in", 5),
        TopicPartition("t", 1),
    )
    assert inputs_of(TaskId(1, 1), ["other"], counts, {0: 4}) == (TopicPartition("other", 1),)
    assert inputs_of(TaskId(1, 0), ["absent"], counts, {}) == ()
    assert len(tasks_of({0: ["in", "t"], 1: ["other"]}, counts, {0: 4})) == 4 + 2


@given(
    tasks=st.integers(1, 6),
    times=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    keys=st.lists(st.binary(min_size=1, max_size=6), min_size=1),
    by=st.sampled_from(BY_HASH),
)
def test_a_key_comes_to_the_task_that_has_its_state(
    tasks: int, times: list[int], keys: list[bytes], by: str
) -> None:
    """From producers with the partitions of the topic as it was, and as it is."""
    counts = {f"t{number}": tasks * one for number, one in enumerate(times)}
    found = tasks_of({0: [*counts]}, counts, {0: tasks})
    assert sorted(found) == [TaskId(0, number) for number in range(tasks)]
    reader = {tp: task for task, logs in found.items() for tp in logs}
    every = {TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)}
    assert reader.keys() == every, "each partition has one reader"
    column = pa.array(keys, pa.binary())
    own = [TaskId(0, number) for number in key_partitions(column, tasks, by).tolist()]
    for topic, count in counts.items():
        for number in range(tasks, count + 1, tasks):
            lie = key_partitions(column, number, by).tolist()
            assert [reader[TopicPartition(topic, place)] for place in lie] == own


# --- the plan -------------------------------------------------------------------------------------


def test_a_source_for_each_partition_of_a_task() -> None:
    program = with_shares(joined(), {"in": 12, "t": 4}, {0: 4})
    subs = cut(program)
    planned = plan(program, subs.index_of, "app")
    found = [(one.topic, one.first, one.until, one.merged) for one in planned.sources]
    assert sorted(found, key=str) == [
        ("in", 0, 4, True),
        ("in", 4, 8, True),
        ("in", 8, None, True),
        ("t", 0, None, True),
    ]
    assert len({one.slot for one in planned.sources}) == 4
    logs = [TopicPartition("in", n) for n in range(12)]
    for tp, source in sources_of_logs(planned.sources, logs).items():
        task = source.task(tp)
        assert task == TaskId(0, tp.partition % 4)
        assert source.log(task.partition) == tp
    assert grown_topics(subs, {"in": 12, "t": 4}, {0: 4}) == {"in": (12, 4)}
    as_before = with_shares(program, {"in": 4, "t": 4}, {0: 4})
    assert {node.firsts for node in as_before.nodes if isinstance(node, SourceNode)} == {()}


def test_each_partition_keeps_a_time_of_its_own() -> None:
    reading = {"timestamp": UsePartitionTimeOnInvalidTimestamp(), "idle_advance": "5 seconds"}
    program = counted(**reading)
    grown = with_shares(program, {"in": 8}, {0: 4})
    (before,), (after,) = (
        [node for node in one.nodes if isinstance(node, SourceNode)] for one in (program, grown)
    )
    assert before.partition_times() == {"in": before.name}
    assert after.partition_times() == {"in": before.name, "in+4": f"{before.name}+4"}
    idle = idle_sources(grown, "app")[after.name]
    assert {name: one.kept for name, one in idle.items()} == {
        "in": f"{before.name}/idle",
        "in+4": f"{before.name}+4/idle",
    }
