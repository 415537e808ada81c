"""PostgreSQL, Debezium's connector, a table of everflow and a copy of it in a second PostgreSQL, of
which two are killed again and again: the copies are the table, row for row, and the changes lead to
it. `./run chaos changes` does the same with 100,000 transactions."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everflow.testing import wait_until
from integration.debezium.connect import Connect
from integration.debezium.postgres import Postgres, server
from integration.debezium.shop import (
    COPIES,
    CURRENT,
    TABLE,
    UNLINKED,
    Instance,
    connector,
    dsn,
    folded,
    source_rows,
    table_of,
    transaction,
)
from integration.lifecycle.lifecycle_cluster import Cluster

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3_600),
]

TRANSACTIONS = 1_000
KILLS = 10
SAME_S = 900.0
SEED = 71


@dataclass
class Shop:
    postgres: Postgres
    second: Postgres
    cluster: Cluster
    connect: Connect
    instance: Instance

    def table(self) -> dict[tuple[int, int], Any]:
        return table_of(self.cluster.read(f"{self.cluster.prefix}-copy"))

    def until_same(self) -> None:
        wanted = source_rows(self.postgres)

        def same() -> bool:
            assert self.instance.alive(), "\n".join(self.instance.history())
            return source_rows(self.second) == wanted and self.table() == wanted

        def told() -> list[str]:
            found = self.table()
            keys = wanted.keys() | found.keys()
            other = [key for key in keys if wanted.get(key) != found.get(key)]
            pairs = [(wanted.get(key), found.get(key)) for key in other[:5]]
            shown = [f"{one!r:.300}\n  {another!r:.300}" for one, another in pairs]
            history = [*self.instance.history(), *self.connect.history()]
            return [f"{len(other)} differ: {other[:5]}", *shown, *history]

        wait_until(same, SAME_S, "the copies to be the table", told)


@pytest.fixture(params=["with-schemas", "without"])
def shop(
    request: pytest.FixtureRequest, cluster: Cluster, bootstrap: str, tmp_path: Path
) -> Iterator[Shop]:
    schemas = request.param == "with-schemas"
    prefix = cluster.prefix
    with server() as postgres, server() as second:
        postgres.run(TABLE)
        second.run(COPIES)
        postgres.run("".join(transaction(random.Random(SEED + one)) for one in range(50)))
        cluster.make(f"{prefix}.public.orders", partitions=2)
        cluster.make(f"{prefix}-copy", f"{prefix}-changes", partitions=2)
        connect = Connect(tmp_path / "connect", bootstrap, connector(postgres, prefix, schemas))
        settings = {
            "application_id": f"{prefix}-app",
            "bootstrap_servers": bootstrap,
            "processing_guarantee": "exactly_once_v2",
            "session_timeout_ms": 6_000,
            "num_stream_threads": 1,
            "state_dir": str(tmp_path / "state"),
        }
        given = {"prefix": prefix, "schemas": schemas, "copy": dsn(second), "settings": settings}
        instance = Instance(tmp_path, given)
        try:
            connect.start()
            instance.start()
            yield Shop(postgres, second, cluster, connect, instance)
        finally:
            instance.kill()
            connect.kill()


def test_the_copies_are_the_table_whoever_is_killed(shop: Shop) -> None:
    shop.until_same()
    random_ = random.Random(SEED)
    for kill in range(KILLS):
        for _ in range(0, TRANSACTIONS // KILLS, 100):
            shop.postgres.run("".join(transaction(random_) for _ in range(100)))
        if kill == KILLS // 2:  # the program does not name it, and goes on
            shop.postgres.run("ALTER TABLE orders ADD COLUMN extra text DEFAULT 'x';")
        shop.instance.kill()
        if kill % 2:
            shop.connect.kill()
            shop.connect.start()
        shop.instance.start()
    shop.until_same()
    rows, wrong = folded(shop.cluster.read(f"{shop.cluster.prefix}-changes"))
    assert not wrong
    assert source_rows(shop.second, CURRENT) == source_rows(shop.postgres)
    assert shop.second.run(UNLINKED).strip() == "0"
    assert rows == source_rows(shop.postgres)
