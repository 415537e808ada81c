"""Options of the data source ``everflow-state``: what each gives, and what names the wrong one."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everflow import Stores, StreamsBuilder, serdes
from everflow.errors import ConfigError, StatePointError
from everflow.records import OffsetRange
from everflow.snapshots.logged_stores import LoggedStores, logged_stores
from everflow.snapshots.snapshot import room
from everflow.snapshots.state_reader import LogPart, LogParts, PartReader
from everflow.snapshots.state_source import OWN, SourceOptions
from everflow.travel.parcel import Parcel
from unit.snapshots.changelogs import FakeChangelog, Record

WHERE = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
PLAIN = {**WHERE, "store": "counts", "topology": "shop:builder"}


def options(given: dict[str, str], *, registered: bool = False, **settings: Any) -> SourceOptions:
    return SourceOptions.of(given, settings, registered=registered)


def test_an_option_is_what_it_says() -> None:
    found = options(PLAIN)
    assert (found.store, found.topology) == ("counts", "shop:builder")
    assert (found.at, found.diff, dict(found.settings)) == ("end", None, WHERE)


def test_a_program_that_names_a_store_alone_reads_that_of_another_application() -> None:
    builder = StreamsBuilder()
    fields = serdes.json("n long, name string")
    counts = Stores.window(
        "counts", key=serdes.string(), value=fields, size=1_000, retention=60_000
    )
    builder.stream("any").process(lambda record, context: None, stores=[counts])
    found = logged_stores(builder.build(), "shop", "none").named("counts")
    assert found.topic == "shop-counts-changelog"
    spec = found.columns.spec
    assert (spec.kind, spec.retention_ms, spec.window_size_ms) == ("window", 60_000, 1_000)
    schema = found.columns.schema
    assert (schema.field("key").type, schema.field("value").type) == (pa.string(), fields.type)


def test_a_registered_program_needs_the_store_alone() -> None:
    found = options(
        {"store": "s", "diff.from": "0=1"},
        registered=True,
        application_id="shop",
        bootstrap_servers="b:1",
    )
    assert (found.store, found.diff, found.topology) == ("s", ("0=1", "end"), None)
    assert found.settings == {"application_id": "shop", "bootstrap_servers": "b:1"}


def test_other_options_are_settings() -> None:
    secure = {"security.protocol": "SSL", "folder": "/big", "at": "0=3"}
    found = options({**PLAIN, **secure})
    assert (found.folder, found.at) == (Path("/big"), "0=3")
    assert found.settings == {**WHERE, "security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"store": ""}, r"missing.*topology"),
        ({"application.id": ""}, "option application.id is missing"),
        ({"bootstrap.servers": ""}, "option bootstrap.servers is missing: host:port"),
        ({"topology": None}, r"Nothing says.*Give `topology`, or register `EverflowStateSource"),
        ({"diff.to": "end"}, "option diff.from is missing"),
        ({"diff.from": "0=1", "at": "end"}, r"leave.*option"),
        ({"diff_from": "0=1"}, r"option diff_from.*diff.from"),
        ({"path": "counts"}, r"load.*store"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, str | None], says: str) -> None:
    given = {name: one for name, one in {**PLAIN, **change}.items() if one is not None}
    with pytest.raises(ConfigError, match=says):
        options(given)


@pytest.mark.parametrize("option", ["at", "diff.from", "diff.to"])
def test_what_is_no_point_is_named(option: str) -> None:
    points = {"diff.from": "0=1"} if option == "diff.to" else {}
    with pytest.raises(StatePointError, match=rf"option {option}.*'yesterday'"):
        options({**PLAIN, **points, option: "yesterday"})


REMOVED = ("key.serde", "value.serde", "kind", "retention.ms", "window.size.ms", "changelog.topic")


@pytest.mark.parametrize("option", REMOVED)
@pytest.mark.parametrize("registered", [True, False])
def test_an_option_that_was_removed_says_what_to_give(option: str, registered: bool) -> None:
    cure = r"Give `topology`, or register `EverflowStateSource\.of\(builder\.build\(\), \.\.\.\)`"
    with pytest.raises(ConfigError, match=f"option {option} was removed. {cure}"):
        options({**PLAIN, option: "window"}, registered=registered)


def test_a_registered_program_and_a_topology_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="leave the option topology out"):
        options(PLAIN, registered=True)


def test_the_page_has_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "QUERIES.md").read_text()
    assert [name for name in OWN if f"`{name}`" not in page] == []


def test_stores_and_what_is_read_of_them_travel(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    table = builder.table("users", key=serdes.string(), value=serdes.long(), store="users")
    table.to_stream().group_by_key().count(store="counts")
    packed = Parcel.of(logged_stores(builder.build(), "shop", "none"))
    stores: LoggedStores = pickle.loads(pickle.dumps(packed)).copy()
    log: dict[int, Record] = {at: (b"a", serdes.long().encode(at), at) for at in range(1, 4)}
    changelog: Any = FakeChangelog("shop-users-changelog", {0: log})
    look: LogParts = pickle.loads(
        pickle.dumps(LogParts([LogPart(0, OffsetRange(0, 2), OffsetRange(0, 4))]))
    )
    with room(tmp_path) as folder:
        reader = PartReader(stores.named("users"), changelog, folder)
        with reader.opened(look.parts[0]) as (found, records):
            (row,) = [row for batch in found for row in batch.to_pylist()]
    assert (row["change"], row["old_value"], row["new_value"]) == ("changed", 1, 3)
    assert records == 3
