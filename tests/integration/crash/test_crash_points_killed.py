"""kill -9 at every named point of a micro-batch, of each kind of process: I2, I3, I6.

Every case stops a worker at the point, proves there that the batch is half done, kills, and then
holds outputs and stores against what an undisturbed run makes of the same input. A killed worker is
the instance's own affair; after the death of the driver or of the JVM the instance is started
again.
"""

import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from everflow.instance.thread.worker_processes import alive
from everflow.records import TopicPartition
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until
from everflow.worker.crash_points import (
    APPLYING,
    BEFORE_TRANSACTION,
    COMMITTED,
    FIRST_RECORD,
    NAMES,
    OFFSETS_SENT,
)
from integration.crash.crash_instance import Application, kill, records
from integration.crash.crash_topologies import copies_topic

WORKER, DRIVER, JVM = "worker", "driver", "jvm"
QUICK = {(WORKER, FIRST_RECORD), (WORKER, APPLYING), (JVM, COMMITTED)}
"""The slice in the default suite, where `test_an_orphan_of_a_dead_driver_changes_nothing` kills the
driver; `./run test --all` has all 15, also with a store that two processors share (note 040)."""

OWN, SHARED = "own-store", "shared-store"
WAYS = (OWN, SHARED)
"""`SHARED`: by two processors that share the store."""

CASES = [
    pytest.param(
        way,
        victim,
        point,
        marks=() if (victim, point) in QUICK and way == OWN else pytest.mark.slow,
    )
    for way in WAYS
    for victim in (WORKER, DRIVER, JVM)
    for point in NAMES
]
KEYS = 7


@pytest.fixture(scope="module")
def shared(
    broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    name = f"shared{uuid.uuid4().hex[:8]}"
    app = Application(name, broker, tmp_path_factory.mktemp("crash") / name, program=SHARED)
    yield app
    app.close()


@pytest.mark.parametrize(("way", "victim", "point"), CASES)
def test_nothing_is_lost_doubled_or_wiped(
    way: str, victim: str, point: str, request: pytest.FixtureRequest
) -> None:
    """Scenarios 11 and 32: between send_offsets and commit, and after the commit."""
    app: Application = request.getfixturevalue("shared" if way == SHARED else "standing")
    if not app.running:
        app.start()
    app.produce(records(KEYS, 60, f"{point}-before"))
    app.drain()
    app.check()
    stores, positions, committed, copied = (
        app.store_paths(),
        app.positions(),
        app.committed(),
        _copies(app),
    )

    app.arm(point)
    app.produce(records(KEYS, 60, f"{point}-hit"))
    worker = app.wait_reached(point)
    _prove_half_done(app, point, positions, committed, copied)

    driver = app.driver
    orphans = [] if victim == WORKER else [process.pid for process in app.family()]
    if victim == DRIVER:
        _kill_driver(app)
    else:
        kill(worker if victim == WORKER else app.jvm())
    if victim == WORKER:
        assert app.running
    else:
        app.wait_end()
        app.produce(records(KEYS, 20, f"{point}-while-away"))
        app.start()
    app.produce(records(KEYS, 30, f"{point}-after"))
    app.drain()
    app.check()
    assert app.store_paths() == stores, "a store was wiped or rebuilt"
    assert (app.driver == driver) == (victim == WORKER)
    wait_until(
        lambda: not [pid for pid in orphans if alive(pid)],
        10,
        f"no process of the old instance {orphans} to be left",
    )


@pytest.mark.slow  # the next test would start the instance again
def test_an_undisturbed_run_passes_the_same_check(standing: Application) -> None:
    """Also after a clean stop: the check itself is right, and a stop leaves what a crash leaves."""
    app = standing
    if not app.running:
        app.start()
    app.produce(records(KEYS, 50, "undisturbed"))
    app.drain()
    app.check()
    assert app.stop() == 0
    app.check()


def _kill_driver(app: Application) -> None:
    assert app.process is not None
    os.kill(app.driver, signal.SIGKILL)
    app.process.wait(10)


def _copies(app: Application) -> int:
    return len(app.read_all(copies_topic(app.name), "read_uncommitted"))


def _all_visible(app: Application) -> bool:
    return app.ends(app.outputs(), "read_committed") == app.ends(app.outputs(), "read_uncommitted")


def _prove_half_done(
    app: Application,
    point: str,
    positions: dict[int, int | None],
    committed: dict[TopicPartition, int],
    copied: int,
) -> None:
    """The batch has come as far as its name says and no further; no store has moved (D5)."""
    assert app.positions() == positions, "a store moved before its time"
    stable, ends = (
        app.ends(app.outputs(), isolation) for isolation in ("read_committed", "read_uncommitted")
    )
    if point == BEFORE_TRANSACTION:
        assert stable == ends
        assert _copies(app) == copied
    if point in (FIRST_RECORD, OFFSETS_SENT):
        assert stable != ends, "no transaction is open"
        assert _copies(app) > copied
    if point in (BEFORE_TRANSACTION, FIRST_RECORD, OFFSETS_SENT):
        assert app.committed(stable=False) == committed
    if point in (COMMITTED, APPLYING):
        assert app.committed() != committed
        assert _copies(app) > copied
        wait_until(lambda: _all_visible(app), 10, "the transaction to be visible")
