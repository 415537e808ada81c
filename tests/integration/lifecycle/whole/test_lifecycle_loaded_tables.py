"""Global tables of DataFrames on a broker: loaded before the first record, refreshed while it runs,
loaded anew at a restart."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, Topology, serdes
from everflow.errors import TableLoadError
from everflow.instance.tasks.task import TaskRole
from everflow.spark.session import get_session
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import CAUGHT_UP_S, Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

TEXT = serdes.string()


def program(orders: str, out: str, late: str, lake: Path) -> Topology:
    spark, builder = get_session(), StreamsBuilder()
    people = builder.global_table_from(
        lambda: spark.read.schema("who string, city string").json(str(lake)),
        key="who",
        refresh=timedelta(seconds=1),
        store="people",
    )
    stream = builder.stream(orders, key=TEXT, value=TEXT)
    both = F.concat_ws("&", F.col("left"), F.coalesce(F.col("right.city"), F.lit("_")))
    stream.left_join(people, both, on=F.col("value")).to(out)
    stream.lookup_join(people, both, on=F.col("value"), timeout="1 hour", store="waiting").to(late)
    return builder.build()


def write(lake: Path, **cities: str) -> None:
    """The whole content of the lake, in one step."""
    lake.mkdir(exist_ok=True)
    rows = [f'{{"who": "{who}", "city": "{city}"}}' for who, city in cities.items()]
    (lake / ".next").write_text("\n".join(rows))
    (lake / ".next").rename(lake / "people.json")


def test_rows_are_there_for_the_first_record_and_refreshed(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    orders, out, late = (cluster.topic(name, 1) for name in ("orders", "out", "late"))
    lake = tmp_path / "lake"
    write(lake, ann="Rome", bob="Oslo")
    topology = program(orders, out, late, lake)
    cluster.write(orders, [text("1", "ann", 1), text("2", "cid", 2)])
    with app.running(topology) as streams:
        app.until_processed(streams, orders)
        assert [one.value for one in cluster.read(out)] == [b"ann&Rome", b"cid&_"]
        store = streams.store("people")
        assert store.get("bob") == {"who": "bob", "city": "Oslo"}
        (table,) = [one for one in streams.all_tasks().values() if one.role is TaskRole.GLOBAL]
        assert table.copied == 2
        write(lake, ann="Riga", cid="Bern")
        # Who has waited is let go by the refresh alone.
        wait_until(lambda: len(cluster.read(late)) == 2, CAUGHT_UP_S, "the record that waits")
        assert [one.value for one in cluster.read(late)] == [b"ann&Rome", b"cid&Bern"]
        assert {key for key, _ in store.all()} == {"ann", "cid"}
        cluster.write(orders, [text("3", "ann", 3), text("4", "bob", 4)])
        app.until_processed(streams, orders)
        # What it cannot load leaves the last one.
        (lake / "people.json").unlink()
        lake.rmdir()
        wait_until(
            lambda: [one.lag for one in streams.all_tasks().values()].count(None) == 1,
            CAUGHT_UP_S,
            "a refresh to fail",
        )
        cluster.write(orders, [text("5", "cid", 5)])
        app.until_processed(streams, orders)
    with pytest.raises(TableLoadError, match=r"people, at .*test_lifecycle_loaded_tables"):
        app.instance(topology).start()
    write(lake, bob="Kiel")
    with app.running(topology) as streams:
        cluster.write(orders, [text("6", "ann", 6)])
        app.until_processed(streams, orders)
        wait_until(lambda: len(cluster.read(late)) == 5, CAUGHT_UP_S, "bob, who has waited")
    assert [one.value for one in cluster.read(out)] == [
        b"ann&Rome",
        b"cid&_",
        b"ann&Riga",
        b"bob&_",
        b"cid&Bern",
        b"ann&_",
    ]
    assert sorted(one.value or b"" for one in cluster.read(late)) == [
        b"ann&Riga",
        b"ann&Rome",
        b"bob&Kiel",
        b"cid&Bern",
        b"cid&Bern",
    ]
