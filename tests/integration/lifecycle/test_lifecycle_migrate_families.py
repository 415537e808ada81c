"""Every kind of state through a migration: each operator's program goes on in the new version where
it was in the old one.

The programs are those of the guide's tables: an operator that gets one there is migrated here. What
comes out, and what the stores show in the end, is what the test driver has of all the records
without a migration.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from everflow import serdes
from everflow.errors import ApplicationMigratedError
from everflow.testing import TopologyTestDriver, wait_until
from integration.lifecycle.carried_families import Fed, programs, renames
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    until_failed,
    until_running,
)
from integration.lifecycle.migrating import POINT_S, Migration
from semantics.families import PAGES
from semantics.probes import VIEWS

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RAW = serdes.bytes_()
EACH: dict[str, Any] = {"emit_every_update": True}
IMPORT = "from integration.lifecycle.carried_families import add\n"
SHIFTED = 'words = words.repartition(name="in-front").filter(lambda key, value: True)\n'
"""One more operator, and one more sub-topology, before all others."""


class Carried:
    """The programs of some pages in one application, which is migrated."""

    def __init__(
        self, cluster: Cluster, folder: Path, pages: Sequence[str], before: int = 0, after: int = 0
    ) -> None:
        self.cluster, self.pages, self.spread = cluster, pages, before > 0
        self.migration = Migration(
            cluster,
            folder,
            self._lines("", "old", before),
            self._lines(SHIFTED, "new", after),
            partitions=1,
            settings=EACH,
        )
        self.old = self.migration.topology(self.migration.old)
        self.new = self.migration.topology(self.migration.new)
        self.fed = Fed(pages, cluster.prefix, self.spread)
        self.outputs = {
            one.output: one.last for one in programs(pages, cluster.prefix, self.spread)
        }
        cluster.make(*self.fed.inputs, *self.outputs)

    def _lines(self, front: str, version: str, partitions: int) -> str:
        called = f"add(builder, {list(self.pages)!r}, {self.cluster.prefix!r}, {version!r}"
        return f'{IMPORT}{front}words.to("{{out}}")\n{called}, {partitions})\n'

    # --- what has to come out --------------------------------------------------------------------

    @cached_property
    def wanted(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """Results by topic, and what the stores show, of all records without a migration."""
        with TopologyTestDriver(self.new, **EACH) as driver:
            topics = {one: driver.create_input_topic(one, RAW, RAW) for one in self.fed.inputs}
            for step in self.fed.steps:
                for whole in (True, False):
                    driver.pipe_batch(
                        {
                            topics[one]: records
                            for one, records in step.items()
                            if (self._is_global(one)) is whole
                        }
                    )
            results = {
                one: [
                    (r.key, r.value, r.timestamp)
                    for r in driver.create_output_topic(one, RAW, RAW).read_records()
                ]
                for one in self.outputs
            }
            return self._settled(results), dict(self._shown(driver))

    def _is_global(self, topic: str) -> bool:
        return "-global_table-" in topic

    def _shown(self, driver: TopologyTestDriver) -> Iterator[tuple[str, list[Any]]]:
        for name, kept in driver._kept.items():
            if kept.kind in VIEWS:
                view: Any = getattr(driver, f"get_{kept.kind}_store")(name)
                entries = list(view.all())
                if not any(isinstance(key, bytes) for key, _ in entries):
                    yield name, entries

    def _settled(self, results: Mapping[str, list[Any]]) -> dict[str, Any]:
        """By topic and key: of several tasks the results of different keys have no order."""
        found: dict[str, Any] = {}
        for topic, listed in results.items():
            by_key: dict[Any, Any] = {}
            for key, value, time in listed:
                by_key.setdefault(key, []).append((value, time))
            last = self.outputs[topic]
            found[topic] = {k: all_[-1][0] if last else all_ for k, all_ in by_key.items()}
        return found

    def found(self) -> dict[str, Any]:
        read = {
            one: [(r.key, r.value, r.timestamp) for r in self.cluster.read(one)]
            for one in self.outputs
        }
        return self._settled(read)

    # --- the way ---------------------------------------------------------------------------------

    def feed(self, app: Application, streams: Any, steps: Sequence[Any]) -> None:
        """Step by step, since the sides of a join come through topics of their own."""
        for step in steps:
            for whole in (True, False):
                for topic, records in step.items():
                    if self._is_global(topic) is whole:
                        self.cluster.write(topic, [Record(*record) for record in records])
            self.until_processed(app, streams)

    def until_processed(self, app: Application, streams: Any) -> None:
        """What asks by a foreign key feeds what answers: the topics between twice."""
        sources = [one for one in self.fed.inputs if not self._is_global(one)]
        between = [
            one
            for one in self.cluster.topics()
            if one.startswith(app.id) and one.endswith("-repartition")
        ]
        app.until_processed(streams, *sources, *between, *between)

    def carried(self) -> dict[str, list[Any]]:
        """Half of the steps in the old version, the others in the new one; what its stores show."""
        found, half = self.migration, self.fed.half
        options = [word for one in renames(self.old, self.new) for word in ("--rename", one)]
        streams = found.before.instance(self.old)
        try:
            streams.start()
            until_running(streams)
            self.feed(found.before, streams, self.fed.steps[:half])
            found.launch(*options)
            found.until_marked()
            with found.after.running(self.new) as new:
                found.until_switched()
                assert isinstance(until_failed(streams), ApplicationMigratedError)
                wait_until(lambda: found.runs(new), POINT_S, "tasks of the new version")
                self.feed(found.after, new, self.fed.steps[half:])
                shown = self.wanted[1]
                return {name: list(new.store(name).all()) for name in shown}
        finally:
            with suppress(ApplicationMigratedError):
                streams.close(60.0)


Make = Callable[..., Carried]


@pytest.fixture
def carried(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> Iterator[Make]:
    made: list[Carried] = []

    def make(*arguments: Any) -> Carried:
        made.append(Carried(cluster, tmp_path, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.migration.close()


SHORT = ("time.md", "joins-in-time.md")
OTHERS = [one for one in PAGES if one not in SHORT]
PARTS = [
    pytest.param(SHORT, id="in-time"),
    pytest.param(OTHERS, marks=pytest.mark.slow, id="others"),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pages", PARTS)
def test_renamed_stores_of_every_kind_go_on_behind_one_more_operator(
    carried: Make, pages: Sequence[str]
) -> None:
    found = carried(pages)
    shown = found.carried()
    results, stores = found.wanted
    assert shown == stores
    read = found.found()
    assert not {one: (read[one], results[one]) for one in results if read[one] != results[one]}


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("partitions", "pages"), [(6, SHORT), (8, OTHERS)], ids=["in-time", "others"]
)
def test_stores_of_every_kind_are_spread_over_more_partitions(
    carried: Make, partitions: int, pages: Sequence[str]
) -> None:
    found = carried(list(pages), 4, partitions)
    shown = found.carried()
    results, stores = found.wanted
    assert {name: sorted(map(repr, one)) for name, one in shown.items()} == {
        name: sorted(map(repr, one)) for name, one in stores.items()
    }
    read = found.found()
    assert not {one: (read[one], results[one]) for one in results if read[one] != results[one]}
