"""A source outside Kafka whose worker, or whose whole instance, is killed in the middle of a split
(note 073): each row is in the topic once."""

import os
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until
from everflow.worker.crash_points import BEFORE_TRANSACTION, COMMITTED, OFFSETS_SENT
from integration.crash.crash_instance import READY_S, Application, kill
from integration.crash.crash_topologies import BATCH_ROWS, ROWS, SPLIT_BATCHES, copies_topic

SPLIT_ROWS = SPLIT_BATCHES * BATCH_ROWS


@pytest.fixture(scope="module")
def standing_splits(
    broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    name, folder = f"splits{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("splits")
    os.environ[ROWS] = str(folder / "until")
    (folder / "until").write_text("0")
    app = Application(name, broker, folder / name, "slow-splits")
    app.start()
    yield app
    app.close()
    del os.environ[ROWS]


def splits(application: Application) -> int:
    with open(os.environ[ROWS]) as file:
        return int(file.read())


def rows_of(app: Application) -> Counter[tuple[str, str]]:
    return Counter(
        ((one.key or b"").decode(), (one.value or b"").decode())
        for one in app.read_all(copies_topic(app.name))
    )


@pytest.mark.parametrize(
    ("point", "whole"),
    [
        (BEFORE_TRANSACTION, False),
        (OFFSETS_SENT, False),
        (COMMITTED, False),
        (OFFSETS_SENT, True),  # the whole instance
    ],
)
def test_each_row_is_there_once(point: str, whole: bool, standing_splits: Application) -> None:
    app = standing_splits
    before = splits(app)
    with open(os.environ[ROWS], "w") as file:
        file.write(str(before + 2))
    full = SPLIT_ROWS * (before + 2)

    def begun() -> bool:
        return SPLIT_ROWS * before < sum(rows_of(app).values()) < full

    wait_until(begun, READY_S, "a piece of a split", app.history)
    app.arm(point)
    worker = app.wait_reached(point)
    assert sum(rows_of(app).values()) < full, "the splits are half read"
    if whole:
        kill(app.driver)
        app.wait_end()
    kill(worker)
    if whole:
        app.start()
    wait_until(lambda: sum(rows_of(app).values()) >= full, READY_S, "all rows", app.history)
    wanted = {(str(at), str(n)) for at in range(before + 2) for n in range(SPLIT_ROWS)}
    assert rows_of(app) == Counter(wanted)
