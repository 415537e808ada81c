"""What a change of a program needs: the sentences of Kafka Streams' compatibility, one by one."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from everflow import Materialized, StreamsBuilder, TimeWindows, Topology, TopologyError, agg, serdes
from everflow.topology.compatibility import (
    Change,
    Effect,
    ProgramFacts,
    changes,
    effect_of,
    facts_of,
    from_json,
    report,
    report_json,
    to_json,
)
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
    assert "n bigint (count)" in change.before
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
