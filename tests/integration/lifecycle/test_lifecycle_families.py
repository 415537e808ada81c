"""Each family of operators over the life of its application on a broker: started, and started again
without its stores, or with those of a standby.

What comes out, and what the stores show in the end, is what the test driver has of the records. The
programs are those of the guide's tables: an operator that gets one there gets its life here.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from everflow import StreamsBuilder, serdes
from everflow.testing import TopologyTestDriver, wait_until
from integration.lifecycle.lifecycle_cluster import (
    CAUGHT_UP_S,
    GUARANTEES,
    Application,
    Cluster,
    Record,
)
from semantics.families import PAGES
from semantics.probes import TEXT, VIEWS, Step, built, with_own_names

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RAW = serdes.bytes_()
FOREIGN = re.compile(r"^table\.\w*join\(.*on=")
"""Joins by a foreign key: only the last result of a key is fixed (docs/differences.md)."""
PHASES = 2
EACH: dict[str, Any] = {"emit_every_update": True}
WITH_A_STANDBY = ("aggregations.md", "time.md")
"""Pages whose second start is with the stores of a standby; the others start without stores."""
STARTS = {
    "with-a-standby": WITH_A_STANDBY,
    "without-stores": [page for page in PAGES if page not in WITH_A_STANDBY],
}


class Output(NamedTuple):
    """A topic of results; ``last``: only the last one of each key is fixed."""

    topic: str
    last: bool


class Families:
    """All programs of some pages in one topology, each with topics of its own."""

    def __init__(self, pages: Sequence[str], prefix: str) -> None:
        builder = StreamsBuilder()
        self.phases: list[dict[str, list[Record]]] = [{} for _ in range(PHASES)]
        self.outputs: list[Output] = []
        self.stores: list[str] = []
        for name, family in (one for page in pages for one in PAGES[page].items()):
            for at, source in enumerate(family.programs.values()):
                own = with_own_names(source, f"{name}-{at}")
                made = built(builder, family, own, f"{prefix}-{name}-{at}")
                self.outputs.append(Output(made.output, FOREIGN.match(source) is not None))
                self.stores += made.stores
                for side, topics in made.sides.items():
                    steps = [step for step in family.steps if step.side == side]
                    for topic in topics:
                        self._give(topic, steps, family.steps, family.value)
        self.topology = builder.build()

    def _give(
        self, topic: str, mine: Sequence[Step], steps: Sequence[Step], value: serdes.Serde
    ) -> None:
        for number, phase in enumerate(self.phases):
            begin, end = (at * len(steps) // PHASES for at in (number, number + 1))
            phase[topic] = [
                Record(TEXT.encode(step.key), value.encode(step.value), step.time)
                for step in steps[begin:end]
                if step in mine
            ]

    @property
    def inputs(self) -> list[str]:
        return list(self.phases[0])

    def by_the_driver(self) -> tuple[Any, Any]:
        """Results by topic, and what the stores show. A global table has its records first."""
        with TopologyTestDriver(self.topology, **EACH) as driver:
            topics = {one: driver.create_input_topic(one, RAW, RAW) for one in self.inputs}
            for phase in self.phases:
                for whole in (True, False):
                    driver.pipe_batch(
                        {
                            topics[one]: [(r.key, r.value, r.timestamp) for r in records]
                            for one, records in phase.items()
                            if one.endswith("global_table") is whole
                        }
                    )
            results = {
                one: [
                    (r.key, r.value, r.timestamp)
                    for r in driver.create_output_topic(one.topic, RAW, RAW).read_records()
                ]
                for one in self.outputs
            }
            return self._settled(results), dict(self._shown(driver))

    def _shown(self, driver: TopologyTestDriver) -> Iterator[tuple[str, list[Any]]]:
        """The entries of stores that are read by keys and values of the program."""
        for name in self.stores:
            kind = driver._kept[name].kind if name in driver._kept else ""
            if kind in VIEWS:
                view: Any = getattr(driver, f"get_{kind}_store")(name)
                entries = list(view.all())
                if not any(isinstance(key, bytes) for key, _ in entries):
                    yield name, entries

    @staticmethod
    def _settled(results: Mapping[Output, list[Any]]) -> dict[str, Any]:
        return {
            one.topic: {found[0]: found[1] for found in listed} if one.last else listed
            for one, listed in results.items()
        }

    def in_the_cluster(self, cluster: Cluster) -> dict[str, Any]:
        read = {
            one: [(r.key, r.value, r.timestamp) for r in cluster.read(one.topic)]
            for one in self.outputs
        }
        return self._settled(read)


def until_processed(app: Application, streams: Any, families: Families) -> None:
    """Sources first; what asks by a foreign key feeds what answers, so the topics between twice. A
    global table is read before the instance runs."""
    sources = [one for one in families.inputs if not one.endswith("global_table")]
    between = [one for one in app.cluster.topics() if one.endswith("-repartition")]
    app.until_processed(streams, *sources, *between, *between)


def copied_to(app: Application, families: Families, folder: str) -> None:
    """Two instances until the second, in a folder of its own, has a copy of all stores."""
    with ExitStack() as running:
        both = [
            running.enter_context(
                app.running(families.topology, num_standby_replicas=1, state_dir=one, **EACH)
            )
            for one in (str(app.state), folder)
        ]

        def copied() -> bool:
            lags = [streams.all_local_store_partition_lags() for streams in both]
            stores = {name for one in lags for name in one}
            return bool(stores) and all(
                name in one and all(info.lag == 0 for info in one[name].values())
                for one in lags
                for name in stores
            )

        wait_until(copied, CAUGHT_UP_S, "a copy of each store on both")


@pytest.mark.parametrize(("start", "guarantee"), zip(STARTS, GUARANTEES, strict=True))
def test_families_go_on_where_they_were(
    app: Application, cluster: Cluster, start: str, guarantee: str
) -> None:
    families = Families(STARTS[start], cluster.prefix)
    cluster.make(*families.inputs, *(one.topic for one in families.outputs))
    settings: dict[str, Any] = {**EACH, "processing_guarantee": guarantee}
    for number, phase in enumerate(families.phases):
        last = number == PHASES - 1
        if last and start == "with-a-standby":
            settings["state_dir"] = str(app.folder / "other")
            copied_to(app, families, settings["state_dir"])
        elif last:
            shutil.rmtree(app.folder)
        for topic, records in phase.items():
            cluster.write(topic, records)
        with app.running(families.topology, **settings) as streams:
            until_processed(app, streams, families)
            wanted, shown = families.by_the_driver() if last else ({}, {})
            found = {name: list(streams.store(name).all()) for name in shown}
    assert found == shown
    for topic, results in families.in_the_cluster(cluster).items():
        assert results == wanted[topic], topic
