"""A slice of `./run chaos sinks`, and its books: they find what is missing, doubled or wrong."""

import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chaos.elastic_group import Group
from chaos.sink_places import HTTP, PARQUET, ROWS, TOTALS, UPSERT
from chaos.sinks import (
    ANY_TIME,
    BEHIND,
    MEANWHILE,
    PARTITIONS,
    SETTINGS,
    WORKER,
    Fault,
    SinkReport,
    account,
    draw,
    item_of,
    run,
)
from everflow.testing.broker import EmbeddedBroker
from everflow.worker.crash_points import SINK_WRITTEN

SENT = 50


@dataclass
class Kept:
    """A place as the program leaves it after `SENT` records; each has a total of its own."""

    kind: str = PARQUET
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = [{"id": f"k{n}", "n": n, "item": item_of(n)} for n in range(SENT) if n % 7]
        totals: dict[str, list[int]] = {}
        listed = []
        for n in range(SENT):
            totals.setdefault(item_of(n), []).append(n)
            seen = totals[item_of(n)]
            listed.append({"item": item_of(n), "count": len(seen), "total": sum(seen)})
        self.found = {ROWS: rows, TOTALS: listed}

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.found[name]


def report_of(place: Any) -> SinkReport:
    report = SinkReport(exact=place.kind != HTTP)
    account(report, place, SENT)
    return report


def test_rows_as_the_program_gives_them_are_clean() -> None:
    report = report_of(Kept())
    assert report.clean
    assert (report.sent, report.rows, report.totals) == (SENT, 42, SENT)


@pytest.mark.parametrize("name", [ROWS, TOTALS])
def test_a_row_that_is_missing_is_found(name: str) -> None:
    place = Kept()
    del place.found[name][-1]
    assert report_of(place).lost == 1


@pytest.mark.parametrize("name", [ROWS, TOTALS])
def test_a_row_that_is_doubled_counts_where_it_must_not_be(name: str) -> None:
    for kind in (PARQUET, HTTP):
        place = Kept(kind)
        place.found[name].append(place.found[name][3])
        report = report_of(place)
        assert (report.duplicated, report.clean) == (1, kind == HTTP)


def test_a_value_that_no_run_gives_is_wrong() -> None:
    place = Kept()
    place.found[ROWS][0]["item"] = "item-99"
    place.found[TOTALS][-1]["total"] += 1
    assert report_of(place).wrong == 2


def test_an_upsert_has_one_row_of_each_key() -> None:
    place = Kept(UPSERT)
    assert report_of(place).wrong == 20
    place.found[TOTALS] = place.found[TOTALS][-20:]
    assert report_of(place).clean


def test_a_seed_draws_the_same_faults() -> None:
    assert draw(9, random.Random("1 delta")) == draw(9, random.Random("1 delta"))
    assert draw(9, random.Random("1 delta")) != draw(9, random.Random("1 iceberg"))


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_two_rounds_on_files(broker: EmbeddedBroker, tmp_path: Path) -> None:
    faults = [Fault(WORKER, SINK_WRITTEN, MEANWHILE, 0.3), Fault(WORKER, ANY_TIME, BEHIND, 0.3)]
    servers, module = broker.bootstrap_servers, "chaos.sinks_instance"
    group = Group("chaos", servers, tmp_path, PARTITIONS, SETTINGS, module=module)
    with closing(group):
        group.start(1)
        report = run(PARQUET, faults, 1, broker, group)
    assert report.clean, report
    assert (report.rounds, report.faults) == (2, {WORKER: 2})
    assert report.sent > report.rows > 0
