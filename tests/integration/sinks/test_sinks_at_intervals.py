"""Rows that go to a lake at intervals (`write_stream(every=)`), with a broker: few commits, and
each row once, also where an instance is killed or stopped between two of them."""

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from everflow.worker.crash_points import SINK_WRITTEN
from integration.crash.crash_instance import PARTITIONS, Application, kill
from integration.crash.crash_topologies import EVERY_S, ROWS

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

BURSTS = 60
"""Records that come one after the other. Without an interval a commit has one, or a few."""


@pytest.fixture
def app(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Application]:
    os.environ[ROWS] = str(tmp_path)
    found = Application(
        f"interval{uuid.uuid4().hex[:8]}", broker, tmp_path / "app", "rows-at-intervals"
    )
    yield found
    found.close()
    del os.environ[ROWS]


def lake() -> DeltaTable | None:
    path = os.path.join(os.environ[ROWS], "lake")
    return DeltaTable(path) if DeltaTable.is_deltatable(path) else None


def rows() -> Counter[tuple[str, str]]:
    table = lake()
    read = [] if table is None else table.to_pyarrow_table().to_pylist()
    return Counter((row["key"], row["value"]) for row in read)


def commits() -> int:
    table = lake()
    return 0 if table is None else table.version() + 1


def trickle(app: Application) -> None:
    tag = uuid.uuid4().hex[:4]
    for n in range(BURSTS):
        app.produce([(f"k{n % 5}", f"{tag}-{n}")])


def await_rows(app: Application) -> None:
    wait_until(
        lambda: rows() == Counter(app.sent),
        60,
        "each row to be in the lake once",
        lambda: [f"{rows().total()} of {len(app.sent)}", *app.history()],
    )


def test_a_sink_at_intervals_makes_few_commits_and_has_each_row_once(app: Application) -> None:
    app.start()
    began = time.monotonic()
    for _ in range(2):
        trickle(app)
        await_rows(app)
    # A task's first batch does not wait, nor does the one that was cut by an end.
    intervals = (time.monotonic() - began) / EVERY_S
    assert commits() <= PARTITIONS * (intervals + 2)
    assert commits() < BURSTS

    # It is killed when the lake has the rows and Kafka does not know it.
    app.arm(SINK_WRITTEN)
    trickle(app)
    worker = app.wait_reached(SINK_WRITTEN)
    trickle(app)
    kill(app.driver)
    app.wait_end()
    kill(worker)
    app.start()
    await_rows(app)

    # It is stopped between two commits, and records come meanwhile.
    trickle(app)
    assert app.stop() == 0
    trickle(app)
    app.start()
    await_rows(app)
