"""What a migration carries, how, and what it refuses: from two programs alone."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from everflow import (
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    agg,
    serdes,
)
from everflow.errors import MigrationError
from everflow.migration.plan import Asked, MigrationPlan, Values, planned, stream_times
from everflow.migration.programs import Form, Program, program_of
from everflow.protocol.messages import FILLED, Mark, format_metadata
from everflow.records import TaskId, TopicPartition
from everflow.topology.compatibility import changes
from everflow.topology.idle_sources import MOST_BYTES

Build = Callable[[StreamsBuilder], Any]
VALUE = serdes.json("a string, n bigint")
DAY_MS = 86_400_000


def program(
    build: Build, application_id: str, optimization: str = "none", **topics: int
) -> Program:
    builder = StreamsBuilder()
    build(builder)
    return program_of(
        builder.build(),
        application_id=application_id,
        topics={"in": 4, "other": 4, **topics},
        optimization=optimization,
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


def chained(first: str = "by-a", second: str = "again") -> Build:
    """``in`` -> ``first`` -> joined with the table ``other`` -> ``second`` -> counts."""

    def build(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        keyed = stream.select_key(lambda key, value: value["a"], returns="string")
        table = builder.table("other", key=serdes.string(), value=VALUE, store="others")
        met = keyed.repartition(name=first).left_join(
            table, lambda one, _: one, returns="a string, n bigint"
        )
        met.repartition(name=second).group_by_key().count(store="counts").to_stream().to("out")

    return build


def test_topics_are_drained_in_stages_upstream_first() -> None:
    found = plan(chained(), chained(first="by-b"))
    assert found.drained == ("shop-by-a-repartition", "shop-again-repartition")
    first, second, third = found.stages
    before = program(chained(), "shop")
    read_in = {index for index, topics in before.inputs.items() if topics == ("in",)}
    joining = {index for index, topics in before.inputs.items() if "other" in topics}
    assert first == ((), read_in), "who joins goes on: it has to read what waits"
    assert second == (("shop-by-a-repartition",), joining)
    assert third == (("shop-again-repartition",), frozenset())


def test_who_joins_what_is_carried_is_stopped_at_once() -> None:
    found = plan(chained(), chained())
    first, second = found.stages
    assert len(first.parts) == 2
    assert second == (("shop-again-repartition",), frozenset())


def test_a_program_without_repartition_topics_has_one_stage() -> None:
    def build(builder: StreamsBuilder) -> None:
        builder.table("in", key=serdes.string(), value=VALUE, store="kept")

    assert len(plan(build, build).stages) == 1


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

    assert plan(one, both).fresh == {"sums": "it is new"}
    assert plan(both, one).left == ("sums",)


def test_one_store_is_not_made_of_two() -> None:
    def tables(*stores: str) -> Build:
        def build(builder: StreamsBuilder) -> None:
            for topic, store in zip(("in", "other"), stores, strict=True):
                builder.table(topic, key=serdes.string(), value=VALUE, store=store)

        return build

    said = refused(tables("a", "b"), tables("c", "d"), renames={"a": "c", "b": "c"})
    assert "a and b" in said


def test_an_option_for_a_store_that_would_begin_empty_is_refused() -> None:
    """With another name and other values at once a store is not found by itself."""
    old, new = summed(n=agg.count()), summed(n=agg.max("value.n"))

    def renamed(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        stream.group_by_key().aggregate(store="most", n=agg.max("value.n"))

    for asked in ({"functions": {"most"}}, {"shorter": {"most"}}):
        assert "--rename OLD=most" in refused(old, renamed, **asked)
    (move,) = plan(old, renamed, functions={"most"}, renames={"sums": "most"}).moves
    assert move.values is Values.FUNCTION
    assert plan(old, new, functions={"sums"}).moves[0].values is Values.FUNCTION


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


@pytest.mark.parametrize("length", range(88, 134, 4))
def test_a_mark_of_the_longest_name_fits_beside_an_offset(length: int) -> None:
    """Brokers refuse a longer text, and layouts take what room the times of a task leave."""
    topics = {f"in-{number}": 4 for number in range(24)}

    def many(builder: StreamsBuilder) -> None:
        for number, topic in enumerate(topics):
            stream = builder.stream(topic, key=serdes.string(), value=VALUE)
            stream.group_by_key().count(store=f"{number:0{length}d}")

    new = program(many, "shop-2", "none", **topics)
    mark = Mark(FILLED, "x" * 249, planned(program(many, "shop", "none", **topics), new).digest)
    assert len(format_metadata(mark.batch_id, {}, new.layouts)) <= MOST_BYTES
    assert new.layouts


def test_another_plan_has_another_digest() -> None:
    one = plan(counted(), counted("totals"))
    assert one.digest == plan(counted(), counted("totals")).digest
    assert one.digest != plan(counted(), counted("all")).digest


def test_stores_of_the_same_types_are_not_guessed() -> None:
    def pair(*names: str) -> Build:
        def build(builder: StreamsBuilder) -> None:
            for topic, name in zip(("in", "other"), names, strict=True):
                stream = builder.stream(topic, key=serdes.string(), value=VALUE)
                stream.group_by_key().count(store=name)

        return build

    old, new = pair("a", "b"), pair("y", "x")
    said = refused(old, new)
    assert "--rename" in said
    assert "a, b" in said
    checked = [
        one
        for one in changes(program(old, "shop").facts, program(new, "shop-2").facts)
        if one.kind == "store"
    ]
    assert [(one.name, one.after) for one in checked] == [("a", "x, y"), ("b", "x, y")]
    assert all(one.reason in said for one in checked), "check and migrate say the same"
    was = {move.store: move.was for move in plan(old, new, renames={"a": "y"}).moves}
    assert was == {"y": "a", "x": "b"}, "one is said, so the other is clear"
    found = plan(old, pair("y", "b"), renames={"a": ""})
    assert (found.left, dict(found.fresh)) == (("a",), {"y": "it is new"})


def test_what_is_kept_without_a_changelog_is_said_to_begin_empty() -> None:
    def kept(logging: bool, name: str = "counts") -> Build:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("in", key=serdes.string(), value=VALUE)
            stream.group_by_key().count(store=Materialized(name, logging=logging))

        return build

    for old, new, word in ((False, False, "no changelog"), (False, True, "had no changelog")):
        found = plan(kept(old), kept(new))
        assert list(found.fresh) == ["counts"]
        assert word in found.fresh["counts"]
        assert not found.moves
        assert not found.left
    found = plan(kept(True), kept(False))
    assert "no changelog" in found.fresh["counts"]
    assert not found.left, "the new program has it"
    found = plan(kept(False), kept(True, "totals"))
    assert (found.left, dict(found.fresh)) == (("counts",), {"totals": "it is new"})
    for asked in ({"renames": {"counts": "totals"}}, {"functions": ["totals"]}):
        said = refused(kept(True), kept(False, "totals"), **asked)
        assert "store totals" in said
        assert "no changelog" in said


@pytest.mark.spark
def test_ids_are_no_keys_that_say_a_partition(spark: SparkSession) -> None:
    def seen(partitions: int) -> Build:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("in", key=serdes.string(), value=VALUE)
            keyed = stream.repartition(name="again", partitions=partitions)
            keyed.deduplicate("1 minute", by=F.col("value.n"), store="ids")

        return build

    (move,) = plan(seen(4), seen(4)).moves
    assert (move.form, move.before, move.after) == (Form.OWN, 4, 4)
    assert "ids" in refused(seen(4), seen(8))


def test_records_that_wait_with_another_type_are_refused() -> None:
    def held(value: Any) -> Build:
        def build(builder: StreamsBuilder) -> None:
            past = builder.table(
                "other", key=serdes.string(), value=VALUE, store=Materialized("past", history="1 h")
            )
            stream = builder.stream("in", key=serdes.string(), value=value)
            stream.left_join(past, grace="1 minute", store="held").to("out")

        return build

    def closed(**fields: Any) -> Build:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("in", key=serdes.string(), value=VALUE)
            windows = stream.group_by_key().windowed_by(TimeWindows.of_size("1 minute"))
            table: Any = (
                windows.aggregate(store="sums", **fields) if fields else windows.count(store="sums")
            )
            table.suppress(Suppressed.until_window_closes(), store="buffer")

        return build

    said = refused(held(VALUE), held(serdes.json("a string, n string")))
    assert "store held" in said
    assert "wait" in said
    more = serdes.json("a string, n bigint, b string")
    assert not plan(held(VALUE), held(more)).fresh, "fields of JSON may come"
    most = agg.max("value.n")
    said = refused(closed(), closed(n=agg.count()), functions={"sums"})
    assert "store buffer" in said
    assert "store sums" not in said
    assert not plan(closed(n=agg.count()), closed(n=agg.count(), most=most)).fresh


def windowed_rows(between: bool, partitions: int) -> Build:
    """A table of windowed keys, behind the aggregate or behind a topic of its own."""

    def build(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", key=serdes.string(), value=VALUE)
        keyed = stream.repartition(name="first", partitions=partitions).group_by_key()
        counts = keyed.windowed_by(TimeWindows.of_size("1 minute")).count(store="counts")
        if between:
            rows = counts.to_stream().repartition(name="again", partitions=partitions)
            rows.to_table(store="rows")
        else:
            counts.filter(lambda key, value: True, store="rows")

    return build


@pytest.mark.parametrize(("between", "window_bytes"), [(False, 8), (True, 0)])
def test_windows_are_cut_off_where_they_came_behind_the_topic(
    between: bool, window_bytes: int
) -> None:
    found = plan(windowed_rows(between, 4), windowed_rows(between, 8))
    (move,) = (move for move in found.moves if move.store == "rows")
    assert (move.form, move.window_bytes) == (Form.KEY, window_bytes)


def test_windows_that_the_new_program_hashes_are_hashed() -> None:
    """And the other way round; in as many partitions nothing is copied to another one."""
    for before, window_bytes in ((False, 0), (True, 8)):
        found = plan(windowed_rows(before, 4), windowed_rows(not before, 8))
        (move,) = (move for move in found.moves if move.store == "rows")
        assert (move.form, move.window_bytes) == (Form.KEY, window_bytes)
        said = refused(windowed_rows(before, 4), windowed_rows(not before, 4))
        assert "store rows" in said
        assert "windows" in said


def test_the_time_of_a_node_without_a_store_follows_it() -> None:
    def processed(inserted: bool) -> Build:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("in", key=serdes.string(), value=VALUE)
            if inserted:
                stream = stream.process(lambda record, context: None)
            stream.process(lambda record, context: context.forward(record)).to("out")

        return build

    old, new = program(processed(False), "shop"), program(processed(True), "shop-2")
    before, after = (
        [one.name for one in each.facts.nodes or () if "PROCESSOR" in one.name][-1]
        for each in (old, new)
    )
    assert before in new.times.places, "another node has its name now"
    assert before != after
    times = {TopicPartition("in", 2): {before: 7, f"{before}/method": 8}}
    found = stream_times(planned(old, new), old, new, times)
    assert found[TaskId(0, 2)] == {after: 7, f"{after}/method": 8}


def test_an_input_that_had_grown_is_split_into_as_many_tasks_as_it_has_partitions() -> None:
    topics: dict[str, Any] = {"in": 8, "shop-counts-changelog": 4}
    old = program(counted_directly, "shop", **topics)
    new = program(counted_directly, "shop-2", **topics)
    (move,) = planned(old, new).moves
    assert (move.before, move.after) == (4, 8)
    assert old.tasks()[TaskId(0, 1)] == (TopicPartition("in", 1), TopicPartition("in", 5))
    assert len(new.tasks()) == 8
    node = old.facts.stores["counts"].node
    times = {TopicPartition("in", 1): {node: 5}, TopicPartition("in", 5): {node: 6}}
    found = stream_times(planned(old, new), old, new, times)
    assert [found[TaskId(0, number)][node] for number in range(8)] == [6] * 8


def counted_directly(builder: StreamsBuilder) -> None:
    builder.stream("in", key=serdes.string(), value=VALUE).group_by_key().count(store="counts")


def test_a_store_in_memory_and_one_in_the_user_s_topic_are_carried() -> None:
    def rows(name: str) -> Build:
        def build(builder: StreamsBuilder) -> None:
            builder.table("in", key=serdes.string(), value=VALUE, store=name)
            stream = builder.stream("other", key=serdes.string(), value=VALUE)
            kept = Materialized(f"{name}-counts", in_memory=True)
            stream.group_by_key().count(store=kept)

        return build

    reused = "reuse.ktable.source.topics"
    old, new = (
        program(rows(name), application_id, optimization=reused)
        for name, application_id in (("rows", "shop"), ("lines", "shop-2"))
    )
    found = planned(old, new)
    assert [(move.was, move.store) for move in found.moves] == [("rows-counts", "lines-counts")]
    (left_out,) = found.left_out
    assert (left_out.source, left_out.target) == (
        "shop-rows-left-out-changelog",
        "shop-2-lines-left-out-changelog",
    )
    assert not found.fresh
    assert not found.left
    with pytest.raises(MigrationError, match=r"the same topology\.optimization"):
        planned(old, program(rows("lines"), "shop-2"))


def by_length(topic: str, key: str, value: Any, partitions: int) -> int:
    return len(key) % partitions


def test_entries_are_not_moved_by_a_hash_where_a_function_spreads_the_records() -> None:
    def counts(by: Any, partitions: int = 4) -> Build:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("in", key=serdes.string(), value=VALUE)
            spread = stream.repartition(name="r", partitioner=by, partitions=partitions)
            spread.group_by_key().count(store="counts")

        return build

    assert plan(counts(by_length), counts(by_length)).moves
    for new in (counts(by_length, 8), counts(None)):
        assert "by_length" in refused(counts(by_length), new)
    assert "by_length" in refused(counts(None), counts(by_length))


def test_entries_are_not_left_where_another_hash_spreads_the_keys() -> None:
    def counts(between: dict[str, Any] | None) -> Build:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("in", key=serdes.string(), value=VALUE, partitioner="crc32")
            if between is not None:
                stream = stream.repartition(name="r", **between)
            stream.group_by_key().count(store="counts")

        return build

    direct = counts(None)
    assert "before: crc32; now: murmur2" in refused(direct, counts({}))
    assert "crc32" in refused(direct, counts({"partitions": 8, "partitioner": "crc32"}))
    (move,) = plan(direct, counts({"partitions": 8})).moves
    assert (move.before, move.after) == (4, 8)
    assert plan(direct, direct).moves


def test_entries_are_left_where_keys_stay_without_a_repartition_topic() -> None:
    """A field of the key puts it elsewhere than the whole key did."""
    struct = "struct<a:string,n:bigint>"

    def counts(assumed: dict[str, Any] | None, source: str = "murmur2") -> Build:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("in", key=serdes.string(), value=VALUE, partitioner=source)
            keyed = stream.select_key(lambda key, value: value, returns=struct)
            if assumed is not None:
                keyed = keyed.assume_partitioned(**assumed)
            keyed.group_by_key(name="by").count(store="counts")

        return build

    through = counts(None)
    found = plan(through, counts({}))
    assert [(move.before, move.after) for move in found.moves] == [(4, 4)]
    assert found.drained == ("shop-by-repartition",)
    assert plan(counts({}), through).moves
    by_field = counts({"by": "a"})
    assert "the key's field a" in refused(through, by_field)
    assert "the key's field a" in refused(by_field, through)
    assert "crc32" in refused(through, counts({}, "crc32"))
    assert plan(by_field, counts({"by": "a"})).moves
