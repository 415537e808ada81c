"""Rows outside Kafka where a worker or a whole instance is killed (note 072): each is there once,
and they are those of the topics."""

import os
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from everflow.testing.broker import EmbeddedBroker
from everflow.worker.crash_points import (
    BEFORE_TRANSACTION,
    COMMITTED,
    OFFSETS_SENT,
    SINK_PARTLY,
    SINK_WRITTEN,
)
from integration.crash.crash_instance import Application, kill, records
from integration.crash.crash_topologies import ROWS

KEYS = 5


@pytest.fixture(scope="module")
def standing_rows(
    broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    name, folder = f"rows{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("rows")
    os.environ[ROWS] = str(folder)
    app = Application(name, broker, folder / name, "rows-outside")
    app.start()
    yield app
    app.close()
    del os.environ[ROWS]


def rows_of(app: Application, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(Path(os.environ[ROWS], name).glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def check_rows(app: Application) -> None:
    copies = Counter((row["key"], row["value"]) for row in rows_of(app, "copies"))
    assert copies == Counter(app.sent)
    counts: dict[str, list[int]] = {}
    for row in rows_of(app, "counts"):
        counts.setdefault(row["key"], []).append(row["value"])
    assert {key: found[-1] for key, found in counts.items()} == Counter(k for k, _ in app.sent)
    for key, found in counts.items():
        assert all(one < other for one, other in pairwise(found)), f"{key}: {found}"


@pytest.mark.parametrize(
    "point", [SINK_PARTLY, SINK_WRITTEN, BEFORE_TRANSACTION, OFFSETS_SENT, COMMITTED]
)
@pytest.mark.parametrize("whole", [False, True], ids=["worker", "instance"])
def test_each_row_is_there_once(point: str, whole: bool, standing_rows: Application) -> None:
    app = standing_rows
    app.arm(point)
    app.produce(records(KEYS, 20, uuid.uuid4().hex[:4]))
    worker = app.wait_reached(point)
    # The batch that is tried again could take these along.
    app.produce(records(KEYS, 20, uuid.uuid4().hex[:4]))
    if whole:
        kill(app.driver)
        app.wait_end()
    kill(worker)
    if whole:
        app.start()
    app.drain()
    app.check()
    check_rows(app)
