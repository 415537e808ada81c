"""What a change of a program needs: the sentences of Kafka Streams' compatibility, one by one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everflow import Materialized, StreamsBuilder, TimeWindows, Topology, TopologyError, agg, serdes
from everflow.cli.check import facts_on_cluster
from everflow.errors import StoreLayoutError
from everflow.records import TopicPartition
from everflow.topology.compatibility import (
    Change,
    Effect,
    changes,
    effect_of,
    layouts_to_keep,
    left_behind,
    lines_of,
    report,
    report_json,
    require_read,
    results,
    retyped,
)
from everflow.topology.connectors import connector_topic
from everflow.topology.known_programs import (
    difference_of_lines,
    facts_of_application,
    facts_of_lines,
)
from everflow.topology.program_facts import ProgramFacts, facts_of, from_json, to_json
from everflow.topology.store_layouts import Kept, fingerprint, kept_text
from everflow.topology.store_layouts import from_json as layouts_from_json
from everflow.topology.subtopologies import cut

Build = Callable[[StreamsBuilder], Any]
VALUE = serdes.json("a string, n bigint")


def program(*builds: Build) -> Topology:
    builder = StreamsBuilder()
    for build in builds:
        build(builder)
    return builder.build()


def facts(*builds: Build) -> ProgramFacts:
    return facts_of(cut(program(*builds)))


def found(old: ProgramFacts, new: ProgramFacts) -> list[Change]:
    assert from_json(to_json(old)) == old
    return changes(old, from_json(to_json(new)))


def kinds(listed: list[Change]) -> set[tuple[Effect, str, str]]:
    return {(change.effect, change.kind, change.name) for change in listed}


def stream(builder: StreamsBuilder, topic: str = "in") -> Any:
    return builder.stream(topic, key=serdes.string(), value=VALUE)


def counted(
    *,
    store: str | None = "counts",
    keep: Callable[[Any, Any], bool] = lambda key, value: value["n"] > 3,
    extra: bool = False,
    topic: str = "in",
    windows: TimeWindows | None = None,
    retention: str | None = None,
    returns: str = "string",
    partitions: int | None = None,
    also: Callable[[Any], object] | None = None,
) -> Build:
    """Counts by a new key, through the repartition topic ``by-a``."""

    def build(builder: StreamsBuilder) -> None:
        read = stream(builder, topic).filter(keep)
        if extra:
            read = read.map_values(lambda key, value: value, returns=VALUE.type)
        key = (lambda key, value: value["a"]) if returns == "string" else key_of_numbers
        keyed = read.select_key(key, returns=returns)
        grouped = keyed.repartition(name="by-a", partitions=partitions).group_by_key()
        if windows is not None:
            grouped = grouped.windowed_by(windows)
        kept = None if store is None else Materialized(store, retention=retention)
        counts = grouped.count() if kept is None else grouped.count(store=kept)
        counts.to_stream().to("out")
        if also is not None:
            also(read)

    return build


def key_of_numbers(key: Any, value: Any) -> int:
    return int(value["n"])


def test_the_same_program_is_the_same() -> None:
    assert found(facts(counted()), facts(counted())) == []
    assert effect_of([]) is Effect.SAME


SAFE = {
    "another condition": counted(keep=lambda key, value: value["n"] > 4),
    "another mapping of the same types": counted(extra=True),
    "a new branch without a repartition": counted(
        also=lambda read: read.filter(lambda key, value: True).to("big")
    ),
}


@pytest.mark.parametrize("new", SAFE.values(), ids=SAFE)
def test_what_keeps_nothing_is_safe_by_a_rolling_bounce(new: Build) -> None:
    listed = found(facts(counted()), facts(new))
    assert effect_of(listed) is Effect.BOUNCE
    assert {change.kind for change in listed} == {"node"}
    assert all(change.where and __file__ in change.where for change in listed)


HOUR, DAY = TimeWindows.of_size("1 hour"), TimeWindows.of_size("1 day")
GRAVE: dict[str, tuple[Build, Build, set[tuple[Effect, str, str]]]] = {
    "types before a repartition": (
        counted(),
        counted(returns="bigint"),
        {
            (Effect.RESET, "repartition topic", "by-a-repartition"),
            (Effect.RESET, "store", "counts"),
        },
    ),
    "the partitions of a repartition topic": (
        counted(partitions=4),
        counted(partitions=8),
        {(Effect.MIGRATION, "partitions", "by-a-repartition")},
    ),
    "partitions that only one program says": (
        counted(),
        counted(partitions=8),
        {(Effect.MIGRATION, "partitions", "by-a-repartition")},
    ),
    "an input topic that was added": (
        counted(),
        lambda builder: (counted()(builder), stream(builder, "other").to("out")),
        {(Effect.MIGRATION, "input topic", "other"), (Effect.MIGRATION, "sub-topology", "1")},
    ),
    "an input topic in place of another": (
        counted(),
        counted(topic="others"),
        {
            (Effect.MIGRATION, "input topic", "in"),
            (Effect.MIGRATION, "input topic", "others"),
        },
    ),
    "a store with another name": (
        counted(),
        counted(store="totals"),
        {(Effect.MIGRATION, "store", "counts")},
    ),
    "windows of another size": (
        counted(windows=HOUR),
        counted(windows=DAY, retention="2 days"),
        {(Effect.RESET, "store", "counts"), (Effect.MIGRATION, "store", "counts")},
    ),
    "another retention": (
        counted(windows=HOUR, retention="1 day"),
        counted(windows=HOUR, retention="2 days"),
        {(Effect.MIGRATION, "store", "counts")},
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), GRAVE.values(), ids=GRAVE)
def test_what_lasts_is_not_changed_at_once(
    old: Build, new: Build, expected: set[tuple[Effect, str, str]]
) -> None:
    listed = found(facts(old), facts(new))
    assert kinds([change for change in listed if change.kind != "node"]) == expected
    assert effect_of(listed) is max(effect for effect, _, _ in expected)


def test_a_store_has_a_name_so_that_no_inserted_operator_moves_it() -> None:
    """In Kafka Streams `KSTREAM-AGGREGATE-STATE-STORE-0000000007` becomes `...8`."""
    with pytest.raises(TopologyError, match="store="):
        facts(counted(store=None))


def test_a_number_that_moves_is_named() -> None:
    """The sources' names give the numbers: a source before the others takes the first."""

    def before_it(builder: StreamsBuilder) -> None:
        stream(builder, "first").to("copy")
        counted()(builder)

    listed = found(facts(counted()), facts(before_it))
    moved = {change.name: change.after for change in listed if change.kind == "sub-topology"}
    assert moved == {"0": "1", "1": "2"}


def test_values_with_a_field_more_need_a_migration() -> None:
    def totals(**aggregates: Any) -> Build:
        def build(builder: StreamsBuilder) -> None:
            grouped = stream(builder).group_by_key()
            grouped.aggregate(**aggregates, store="totals").to_stream().to("out")

        return build

    old = facts(totals(n=agg.count()))
    listed = found(old, facts(totals(n=agg.count(), m=agg.count())))
    (change,) = [change for change in listed if change.kind == "store"]
    assert (change.effect, change.name) == (Effect.MIGRATION, "totals")
    assert change.before == "value no m"
    assert "m bigint (count)" in change.after


def test_the_report_is_for_people_and_for_programs() -> None:
    listed = found(facts(counted()), facts(counted(store="totals", extra=True)))
    text = report(listed).splitlines()
    assert text[0] == "needs a migration"
    at = text.index(next(line for line in text if line.startswith("  store counts: ")))
    assert text[at + 1].startswith("      at:     ")
    assert __file__ in text[at + 1]
    data = json.loads(report_json(listed))
    assert data["verdict"] == "migration"
    assert data["changes"][0] == {
        "effect": "migration",
        "kind": "store",
        "name": "counts",
        "reason": listed[0].reason,
        "before": "counts",
        "after": "totals",
        "where": listed[0].where,
    }


def copies(topic: str, returns: str = "string") -> Callable[[Any], object]:
    return lambda read: read.map_values(lambda key, value: value["a"], returns=returns).to(topic)


def of_table(keep: Callable[[Any, Any], bool]) -> Build:
    """A stream that is joined with a table, through a repartition topic."""

    def build(builder: StreamsBuilder) -> None:
        table = builder.table("names", key=serdes.string(), value=VALUE, store="names")
        kept = table.filter(keep, store="kept")
        keyed = stream(builder).select_key(lambda key, value: value["a"], returns="string")
        keyed.join(kept, name="by-a").to("joined")
        stream(builder).to("copy")

    return build


def reasons(old: ProgramFacts, new: ProgramFacts) -> dict[str, str]:
    listed = results(old, new, found(old, new))
    assert listed is not None
    return {one.name: one.reason for one in listed}


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        (counted(), counted(), {"topic out": ""}),
        (counted(), counted(keep=lambda k, v: v["n"] > 4), {"topic out": "FILTER"}),
        (counted(), counted(extra=True), {"topic out": "MAPVALUES"}),
        (counted(), counted(store="totals"), {"topic out": "counts"}),
        (counted(), counted(topic="other"), {"topic out": "otherwise"}),
        (counted(), counted(returns="bigint"), {"topic out": "types"}),
        (counted(), counted(also=copies("big")), {"topic out": "", "topic big": "new"}),
        (counted(also=copies("big")), counted(), {"topic out": "", "topic big": "not written"}),
        (
            counted(also=copies("big")),
            counted(also=copies("big", "binary")),
            {"topic out": "", "topic big": "types"},
        ),
        # Behind a table, a join and a repartition topic.
        (
            of_table(lambda k, v: v["n"] > 3),
            of_table(lambda k, v: v["n"] > 4),
            {"topic joined": "otherwise", "topic copy": ""},
        ),
    ],
)
def test_what_becomes_of_the_results_is_said(
    old: Build, new: Build, differ: dict[str, str]
) -> None:
    told = reasons(facts(old), facts(new))
    assert told.keys() == differ.keys()
    for name, word in differ.items():
        assert bool(told[name]) == bool(word), told
        assert word in told[name]


def test_a_sink_outside_kafka_is_a_result(tmp_path: Path) -> None:
    def lake(partition_by: list[str]) -> Build:
        return lambda builder: stream(builder).write_stream(
            "delta", name="lake", path=str(tmp_path), partition_by=partition_by
        )

    assert reasons(facts(lake(["a"])), facts(lake(["a"]))) == {"sink lake": ""}
    assert reasons(facts(lake(["a"])), facts(lake(["n"])))["sink lake"]


def test_results_of_an_application_are_not_known() -> None:
    old, new = application(kept_by(program(counted()))), on_cluster(counted())
    listed = found(old, new)
    assert results(old, new, listed) is None
    assert "results:" in report(listed, None)
    assert json.loads(report_json(listed, None))["results"] is None


def test_a_report_says_what_stays() -> None:
    old, new = facts(counted(also=copies("big"))), facts(counted(also=copies("big", "binary")))
    listed = found(old, new)
    outputs = results(old, new, listed)
    text = report(listed, outputs).splitlines()
    assert "  as they are: topic out" in text
    assert any(line.startswith("  topic big: ") for line in text)
    data = json.loads(report_json(listed, outputs))["results"]
    assert {(one["output"], one["same"]) for one in data} == {
        ("topic out", True),
        ("topic big", False),
    }


# An application, known by its offsets and topics.

ROOM = 4_000


def kept_by(topology: Topology, *found: dict[str, Kept]) -> dict[str, Kept]:
    """What the program writes beside its offsets."""
    kept = layouts_to_keep("shop", topology, found)
    return layouts_from_json(json.loads(kept_text(kept, cut(topology), found, ROOM)))


def application(
    kept: dict[str, Kept] | None = None, *, grown: int = 2, java: bool = False
) -> ProgramFacts:
    """Of `counted`, over two partitions, one of which has nothing beside its offset."""
    offsets = [TopicPartition("in", 0), TopicPartition("shop-by-a-repartition", 0)]
    committed = dict.fromkeys(offsets, kept or {})
    return facts_of_application(
        "shop",
        {**committed, TopicPartition("in", 1): {}},
        {"in": grown, "shop-by-a-repartition": 2, "shop-counts-changelog": 2},
        java=java,
    )


def on_cluster(*builds: Build, **topics: int) -> ProgramFacts:
    there = {"in": 2, **topics}
    return facts_on_cluster(
        program(*builds), application_id="shop", topics=there, optimization="none"
    )


INTERNAL = {"shop-by-a-repartition": 2, "shop-counts-changelog": 2}


def plain(builder: StreamsBuilder) -> None:
    stream(builder).group_by_key().count(store="counts")


def grave(listed: list[Change]) -> set[tuple[Effect, str, str]]:
    return {one for one in kinds(listed) if one[0] >= Effect.MIGRATION}


def test_what_an_application_keeps_is_the_program_that_it_runs() -> None:
    listed = found(application(kept_by(program(counted()))), on_cluster(counted()))
    assert kinds(listed) == {(Effect.BOUNCE, "program", "functions and outputs")}
    changed = found(application(kept_by(program(counted()))), on_cluster(SAFE["another condition"]))
    assert changed == listed


def test_the_topic_of_connectors_is_no_stores_changelog() -> None:
    """Not even where an earlier release has kept nothing beside its offsets."""
    committed: dict[TopicPartition, dict[str, Kept]] = {TopicPartition("in", 0): {}}
    topics = {"in": 2, "shop-counts-changelog": 2}
    with_it = {**topics, connector_topic("shop"): 1}
    assert facts_of_application("shop", committed, with_it) == facts_of_application(
        "shop", committed, topics
    )


OF_AN_APPLICATION: dict[str, tuple[Build, set[tuple[Effect, str, str]]]] = {
    "a store with another name": (
        counted(store="totals"),
        {(Effect.MIGRATION, "store", "counts")},
    ),
    "types before a repartition": (
        counted(returns="bigint"),
        {
            (Effect.MIGRATION, "repartition topic", "by-a-repartition"),
            (Effect.RESET, "store", "counts"),
        },
    ),
    "partitions": (
        counted(partitions=4),
        {(Effect.MIGRATION, "partitions", "by-a-repartition")},
    ),
}


@pytest.mark.parametrize(("new", "expected"), OF_AN_APPLICATION.values(), ids=OF_AN_APPLICATION)
def test_what_an_application_keeps_is_not_changed_at_once(
    new: Build, expected: set[tuple[Effect, str, str]]
) -> None:
    assert grave(found(application(kept_by(program(counted()))), on_cluster(new))) == expected


def left(old: Topology, new: Topology) -> list[str]:
    """Topics in which records may wait for stores that go on."""
    return [change.name for change in left_behind(new, [kept_by(old)])]


def in_place(**said: Any) -> Build:
    def build(builder: StreamsBuilder) -> None:
        key = stream(builder).select_key(lambda key, value: value["a"], returns="string")
        key.assume_partitioned(**said).group_by_key().count(store="counts").to_stream().to("out")

    return build


def test_records_that_wait_for_a_store_are_not_left_behind() -> None:
    """The store goes on, and would never see them; a store that is dropped does not miss them."""
    old = program(counted(), plain_of("other"))
    assert left(old, program(in_place(), plain_of("other"))) == ["by-a-repartition"]
    assert left(old, old) == []
    assert left(old, program(plain_of("other"))) == []
    new = program(in_place(), plain_of("other"))
    known = [kept_by(new, kept_by(old))]
    assert left_behind(new, known) == [], "it was told at the start before"
    (change,) = left_behind(new, [kept_by(old)])
    waiting = {TopicPartition("shop-by-a-repartition", 1): 7}
    with pytest.raises(StoreLayoutError, match="partition 1: 7 waiting") as raised:
        require_read("shop", [change], waiting)
    assert "by-a-repartition" in str(raised.value)
    require_read("shop", [change], dict.fromkeys(waiting, 0))


def plain_of(topic: str) -> Build:
    return lambda builder: stream(builder, topic).group_by_key().count(store=f"of-{topic}")


def test_a_program_without_its_repartition_topic_needs_a_migration() -> None:
    expected = {
        (Effect.MIGRATION, "repartition topic", "by-a-repartition"),
        (Effect.MIGRATION, "input topic", "in"),
        (Effect.MIGRATION, "sub-topology", "1"),
    }
    assert grave(found(facts(counted()), facts(in_place()))) == expected
    elsewhere = found(facts(in_place()), facts(in_place(partitioner=lambda t, k, v, n: 0)))
    assert grave(elsewhere) == {(Effect.RESET, "store", "counts")}


def test_an_input_that_was_grown_is_named_with_both_counts() -> None:
    """The input has more partitions than the store behind it, and no multiple."""
    old = application(kept_by(program(plain)), grown=5)
    new = from_json(to_json(on_cluster(plain, **{"in": 5}, **INTERNAL)))
    (change,) = [one for one in found(old, new) if one.effect >= Effect.MIGRATION]
    assert (change.kind, change.name, change.before, change.after) == ("partitions", "in", "2", "5")
    assert "partitions=5" in change.reason
    assert change.where is not None


@pytest.mark.parametrize(("build", "partitions"), [("plain", 4), ("rekeyed", 5)])
def test_an_input_that_fits_what_is_behind_it_is_no_change(build: str, partitions: int) -> None:
    """A multiple of the store's partitions; any number before a repartition topic."""
    made = plain if build == "plain" else counted()
    old = application(kept_by(program(made)), grown=partitions)
    assert grave(found(old, on_cluster(made, **{"in": partitions}, **INTERNAL))) == set()


def test_what_only_the_fingerprint_tells_is_no_rolling_bounce() -> None:
    hour, longer = (
        counted(windows=HOUR, retention="1 day"),
        counted(windows=HOUR, retention="2 days"),
    )
    old = application(kept_by(program(hour)))
    assert grave(found(old, on_cluster(hour))) == set()
    assert grave(found(old, on_cluster(longer))) == {(Effect.MIGRATION, "program", "fingerprint")}


def test_a_store_of_an_earlier_program_is_no_change() -> None:
    first = kept_by(
        program(
            counted(), lambda builder: stream(builder, "in2").group_by_key().count(store="gone")
        )
    )
    old = application(kept_by(program(counted()), first))
    assert old.stores["gone"].gone
    assert grave(found(old, on_cluster(counted()))) == set()


@pytest.mark.parametrize("java", [False, True])
def test_what_was_not_kept_is_known_by_its_topics_or_not_at_all(java: bool) -> None:
    old = application(java=java)
    assert (old.stores_known, old.subtopologies, old.fingerprint) == (False, None, None)
    assert grave(found(old, on_cluster(counted()))) == set()
    assert grave(found(old, on_cluster(counted(returns="bigint")))) == set()
    renamed = grave(found(old, on_cluster(counted(store="totals"))))
    assert renamed == {(Effect.MIGRATION, "store", name) for name in ("counts", "totals")}
    other = grave(found(old, on_cluster(counted(topic="other"), other=2)))
    assert other == {(Effect.MIGRATION, "input topic", name) for name in ("in", "other")}


def test_what_java_writes_otherwise_is_named_by_the_check_as_by_the_start() -> None:
    def packed(builder: StreamsBuilder) -> None:
        grouped = stream(builder).repartition(name="by-a").group_by_key()
        grouped.aggregate(store="counts", n=agg.count(), m=agg.count())

    assert grave(found(application(), on_cluster(packed))) == set()
    java = grave(found(application(java=True), on_cluster(packed)))
    assert java == {(Effect.RESET, "store", "counts")}


# What refuses a start says what the check says.


def test_a_start_is_refused_with_the_lines_of_the_check() -> None:
    old, new = counted(), counted(returns="bigint")
    kept = kept_by(program(old))
    (line,) = [
        "\n".join(lines_of(one))
        for one in found(application(kept), on_cluster(new))
        if one.kind == "store"
    ]
    with pytest.raises(StoreLayoutError) as refused:
        layouts_to_keep("shop", program(new), [kept])
    assert refused.value.difference == line
    assert line in str(refused.value)
    assert line in report(found(application(kept), on_cluster(new)))


def only_repartition(returns: str) -> Build:
    def build(builder: StreamsBuilder) -> None:
        keyed = stream(builder).select_key(
            (lambda key, value: value["a"]) if returns == "string" else key_of_numbers,
            returns=returns,
        )
        keyed.repartition(name="by-a").to("out")

    return build


def test_records_that_wait_with_another_type_refuse_a_start() -> None:
    old, new = program(only_repartition("string")), program(only_repartition("bigint"))
    kept = kept_by(old)
    assert retyped(old, [kept]) == []
    (change,) = changed = retyped(new, [{}, kept])
    assert (change.name, change.where is not None) == ("by-a-repartition", True)
    topic = "shop-by-a-repartition"
    waiting = {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 40_000}
    with pytest.raises(StoreLayoutError) as refused:
        require_read("shop", changed, waiting)
    assert refused.value.difference.splitlines() == [
        *lines_of(change),
        f"      {topic}, partition 1: 40,000 waiting",
    ]
    assert "Run the old program" in str(refused.value)
    listed = found(application(kept), on_cluster(only_repartition("bigint")))
    assert change in listed
    require_read("shop", changed, {TopicPartition(topic, 0): 0})
    assert retyped(old, [kept, kept_by(new, kept)]), "what waits is of the program that ran last"


def test_a_program_is_known_by_the_lines_of_a_group() -> None:
    def all_kinds(builder: StreamsBuilder) -> None:
        counted(windows=HOUR)(builder)
        builder.global_table("all", key=serdes.string(), value=VALUE, store="whole")

    whole = facts(all_kinds)
    lines = facts_of_lines(fingerprint(cut(program(all_kinds))))
    assert {
        name: (one.layout, one.changelog, one.retention_ms, one.subtopology)
        for name, one in lines.stores.items()
    } == {
        name: (one.layout, one.changelog, one.retention_ms, one.subtopology)
        for name, one in whole.stores.items()
    }
    assert {name: one.words for name, one in lines.repartition.items()} == {
        name: one.words for name, one in whole.repartition.items()
    }
    assert (lines.subtopologies, lines.tables) == (whole.subtopologies, whole.tables)
    assert lines.fingerprint == whole.fingerprint


def test_a_group_refuses_with_the_lines_of_the_check() -> None:
    old, new = counted(), counted(returns="bigint")
    told = difference_of_lines(*(fingerprint(cut(program(one))) for one in (old, new)))
    checked = report(found(facts(old), facts(new))).splitlines()
    assert set(told.splitlines()) <= set(checked)
    assert "  store counts: its keys have another type or are spread otherwise" in checked
    assert "+ another line" in difference_of_lines(["a line"], ["another line"])


def by_length(topic: str, key: str, value: Any, partitions: int) -> int:
    return len(key) % partitions


def by_first_letter(topic: str, key: str, value: Any, partitions: int) -> int:
    return ord(key[0]) % partitions


def spread(by: Any, *, state: bool = True) -> Build:
    def build(builder: StreamsBuilder) -> None:
        keyed = stream(builder).repartition(name="r", partitioner=by)
        if state:
            keyed.group_by_key().count(store="counts")
        else:
            keyed.to("out")

    return build


@pytest.mark.parametrize(
    ("old", "new"), [(None, by_length), (by_length, None), (by_length, by_first_letter)]
)
def test_keys_that_are_spread_by_another_partitioner_leave_their_state(old: Any, new: Any) -> None:
    repartition = Effect.RESET, "repartition topic", "r-repartition"
    assert repartition in kinds(found(facts(spread(old)), facts(spread(new))))
    assert effect_of(found(facts(spread(old)), facts(spread(old)))) is Effect.SAME
    without = facts(spread(old, state=False)), facts(spread(new, state=False))
    assert effect_of(found(*without)) is Effect.BOUNCE


def test_an_application_does_not_keep_by_which_function_keys_are_spread() -> None:
    """A digest of code would refuse starts that move no key (note 067)."""
    old = application(kept_by(program(spread(by_length))))
    assert grave(found(old, on_cluster(spread(by_first_letter)))) == set()
