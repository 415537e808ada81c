"""What a migration carries, how, and what it refuses: from two programs alone."""

from collections.abc import Callable
from typing import Any

import pytest

from everflow import (
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    agg,
    serdes,
)
from everflow.errors import MigrationError
from everflow.migration.plan import Asked, MigrationPlan, Values, planned, stream_times
from everflow.migration.programs import Form, Program, program_of
from everflow.records import TaskId, TopicPartition

Build = Callable[[StreamsBuilder], Any]
VALUE = serdes.json("a string, n bigint")
DAY_MS = 86_400_000


def program(build: Build, application_id: str, **topics: int) -> Program:
    builder = StreamsBuilder()
    build(builder)
    return program_of(
        builder.build(),
        application_id=application_id,
        topics={"in": 4, "other": 4, **topics},
        optimization="none",
        topic_config={},
        additional_retention_ms=DAY_MS,
    )


def plan(old: Build, new: Build, **asked: Any) -> MigrationPlan:
    return planned(program(old, "shop"), program(new, "shop-2"), Asked(**asked))


def refused(old: Build, new: Build, **asked: Any) -> str:
    with pytest.raises(MigrationError) as raised:
        plan(old, new, **asked)
    assert raised.value.code == "EF-MIGRATION-PLAN"
    return str(raised.value)


def counted(
    store: str = "counts",
    *,
    inserted: bool = False,
    partitions: int | None = None,
    windows: Any = None,
    retention: str | None = None,
) -> Build:
    """Counts by a new key, behind the repartition topic ``by-a``."""

    def build(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        if inserted:
            stream = stream.filter(lambda key, value: value["n"] > 3)
        keyed = stream.select_key(lambda key, value: value["a"], returns="string")
        grouped = keyed.repartition(name="by-a", partitions=partitions).group_by_key()
        if windows is None:
            grouped.count(store=store)
            return
        grouped.windowed_by(windows).count(store=Materialized(store, retention=retention))

    return build


def summed(**fields: Any) -> Build:
    def build(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        stream.group_by_key().aggregate(store="sums", **fields)

    return build


def test_a_store_is_copied_as_it_is_when_an_operator_was_inserted() -> None:
    found = plan(counted(), counted(inserted=True))
    (move,) = found.moves
    assert (move.source, move.target) == ("shop-counts-changelog", "shop-2-counts-changelog")
    assert (move.values, move.before, move.after) == (Values.SAME, 4, 4)
    assert found.drained == ("shop-by-a-repartition",)
    assert not found.waiting
    (before, after) = next(iter(found.clocks.items()))
    assert before != after, "the inserted operator shifts the generated names"


def test_a_renamed_store_is_found_by_its_layout_or_by_name() -> None:
    assert plan(counted(), counted("totals")).moves[0].was == "counts"
    assert plan(counted(), counted("totals"), renames={"counts": "totals"}).moves[0].was == "counts"
    said = refused(counted(), counted("totals"), renames={"count": "totals"})
    assert "--rename" in said
    assert "count" in said


def test_more_partitions_move_keys_and_fewer_are_refused() -> None:
    (move,) = plan(counted(partitions=4), counted(partitions=6)).moves
    assert (move.before, move.after, move.form) == (4, 6, Form.KEY)
    assert "fewer" in refused(counted(partitions=4), counted(partitions=3))


@pytest.mark.parametrize(
    ("windows", "form"),
    [
        (TimeWindows.of_size("1 minute"), Form.WINDOW),
        (SessionWindows.of_inactivity_gap("1 minute"), Form.SESSION),
    ],
)
def test_windows_say_where_the_record_s_key_is(windows: Any, form: Form) -> None:
    (move,) = plan(
        counted(partitions=4, windows=windows), counted(partitions=8, windows=windows)
    ).moves
    assert move.form is form
    assert move.kept_ms is not None


def test_other_sizes_of_windows_and_types_of_keys_are_refused() -> None:
    one, two = TimeWindows.of_size("1 minute"), TimeWindows.of_size("2 minutes")
    assert "windows of another size" in refused(counted(windows=one), counted(windows=two))


def test_fields_that_come_and_go_are_carried_by_name() -> None:
    old = summed(n=agg.count(), total=agg.sum("value.n"))
    found = plan(old, summed(n=agg.count(), total=agg.sum("value.n"), most=agg.max("value.n")))
    assert found.moves[0].values is Values.FIELDS
    assert (
        plan(old, summed(n=agg.count(), most=agg.max("value.n"))).moves[0].values is Values.FIELDS
    )
    said = refused(old, summed(n=agg.count(), total=agg.max("value.n")))
    assert "--values sums=" in said
    by_function = plan(old, summed(n=agg.count(), total=agg.max("value.n")), functions={"sums"})
    assert by_function.moves[0].values is Values.FUNCTION


def table(value: Any) -> Build:
    def build(builder: StreamsBuilder) -> None:
        builder.table("in", key=serdes.string(), value=value, store="rows")

    return build


def test_a_json_value_with_a_field_more_is_copied_as_bytes() -> None:
    found = plan(table(VALUE), table(serdes.json("a string, n bigint, b string")))
    assert found.moves[0].values is Values.SAME
    assert "--values rows=" in refused(table(VALUE), table(serdes.json("a string, n string")))


def test_a_shorter_retention_has_to_be_allowed() -> None:
    windows = TimeWindows.of_size("1 minute")
    long, short = (counted(windows=windows, retention=one) for one in ("2 days", "1 day"))
    assert "--shorten counts" in refused(long, short)
    (move,) = plan(long, short, shorter=["counts"]).moves
    assert move.kept_ms == DAY_MS
    assert move.remarks
    assert plan(short, long).moves[0].remarks


def joined(name: str = "by-a", words: Any = VALUE) -> Build:
    """A task reads a repartition topic beside the user's topic."""

    def build(builder: StreamsBuilder) -> None:
        left = builder.stream("in", key=serdes.string(), value=words)
        keyed = left.select_key(lambda key, value: value["a"], returns="string").repartition(
            name=name
        )
        right = builder.stream("other", key=serdes.string(), value=VALUE)
        windows = JoinWindows.of_time_difference("1 minute")
        keyed.left_join(right, windows=windows, store="pairs").to("out")

    return build


def test_what_waits_beside_another_input_is_carried() -> None:
    found = plan(joined(), joined())
    assert [one.source for one in found.waiting] == ["shop-by-a-repartition"]
    assert not found.drained
    other = plan(joined(), joined("by-b"))
    assert not other.waiting
    assert other.drained == ("shop-by-a-repartition",)


def test_joined_records_that_wait_are_carried_by_their_form() -> None:
    forms = {move.store: move.form for move in plan(joined(), joined()).moves}
    assert sorted(forms.values()) == sorted([Form.WINDOW, Form.WINDOW, Form.WAITING])


def test_versions_of_nothing_in_common_are_refused() -> None:
    def elsewhere(builder: StreamsBuilder) -> None:
        builder.stream("other", key=serdes.string(), value=VALUE).group_by_key().count(store="x")

    assert "none of the topics" in refused(counted(), elsewhere)
    with pytest.raises(MigrationError, match="one application"):
        planned(program(counted(), "shop"), program(counted(), "shop"))


def test_stores_that_come_and_go_are_said() -> None:
    def both(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        stream.group_by_key().count(store="counts")
        stream.group_by_key().aggregate(store="sums", total=agg.sum("value.n"), n=agg.count())

    def one(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        stream.group_by_key().count(store="counts")

    assert plan(one, both).fresh == ("sums",)
    assert plan(both, one).left == ("sums",)


def test_stream_times_go_to_the_node_that_has_the_store() -> None:
    windows = TimeWindows.of_size("1 minute")
    old = program(counted(windows=windows, partitions=2), "shop")
    new = program(counted(windows=windows, partitions=4, inserted=True), "shop-2")
    found = planned(old, new)
    before = old.facts.stores["counts"].node
    after = new.facts.stores["counts"].node
    topic = "shop-by-a-repartition"
    times = {
        TopicPartition(topic, 0): {before: 7},
        TopicPartition(topic, 1): {before: 9},
        TopicPartition("in", 3): {"other/idle": 5},
    }
    index = new.facts.stores["counts"].subtopology
    assert index is not None
    of_tasks = stream_times(found, old, new, times)
    assert {of_tasks[TaskId(index, p)][after] for p in range(4)} == {9}, "the latest of all"
    same = program(counted(windows=windows, partitions=2, inserted=True), "shop-2")
    of_same = stream_times(planned(old, same), old, same, times)
    assert [of_same[TaskId(index, p)][after] for p in (0, 1)] == [7, 9]
    assert of_same[TaskId(1 - index, 3)] == {"other/idle": 5}


def test_another_plan_has_another_digest() -> None:
    one = plan(counted(), counted("totals"))
    assert one.digest == plan(counted(), counted("totals")).digest
    assert one.digest != plan(counted(), counted("all")).digest
