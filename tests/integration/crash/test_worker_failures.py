"""What happens around a micro-batch that fails while its instance lives: other readers, zombies,
orphans, idleness. The cases share one running application.
"""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

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
from integration.crash.crash_topologies import copies_topic, input_topic

KEYS = 5
SPARK_IDLE_S = 60.0
"""Spark ends Python workers that were idle for a minute; the figure is fixed in its
PythonWorkerFactory."""


@pytest.fixture
def app(standing: Application) -> Application:
    """The application of all tests, running and drained."""
    if not standing.running:
        standing.start()
    standing.produce(records(KEYS, 20, uuid.uuid4().hex[:4]))
    standing.drain()
    return standing


def test_a_worker_killed_in_a_transaction_delays_others_under_two_seconds(app: Application) -> None:
    """Scenario 11: the instance fences the transaction at once, it does not time out."""
    app.arm(OFFSETS_SENT)
    app.produce(records(KEYS, 20, "reader"))
    worker = app.wait_reached(OFFSETS_SENT)
    topic = copies_topic(app.name)
    held = [tp for tp in app.outputs() if tp.topic == topic and _open_transaction(app, tp)]
    assert held, "no transaction is open"
    bootstrap = {"bootstrap.servers": app.broker.bootstrap_servers}
    other = Producer(bootstrap)
    other.produce(topic, b"probe", b"probe", held[0].partition)
    assert other.flush(10) == 0
    reader = Consumer(
        {
            **bootstrap,
            "group.id": "other",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    try:
        start = app.ends([held[0]], "read_committed")[held[0]]
        reader.assign([ClientPartition(topic, held[0].partition, start)])
        assert not [m for m in reader.consume(100, timeout=1.0) if m.value() == b"probe"], (
            "the reader was not held up"
        )
        kill(worker)
        killed = time.monotonic()
        wait_until(
            lambda: [m for m in reader.consume(100, timeout=0.05) if m.value() == b"probe"],
            30,
            "the other record",
        )
        delay_s = time.monotonic() - killed
    finally:
        reader.close()
    app.foreign.append((b"probe", b"probe"))
    app.drain()
    app.check()
    assert delay_s < 2.0


def test_the_sink_of_a_failed_job_is_ended_before_the_retry(app: Application) -> None:
    """Scenarios 34 and 9: Spark lets it live, up to its commit, and must not run it again."""
    app.arm(FIRST_RECORD)
    app.produce(records(KEYS, 20, "zombie"))
    worker = app.wait_reached(FIRST_RECORD)
    said = len(app.said())
    os.kill(app.driver, signal.SIGUSR2)
    wait_until(lambda: not alive(worker), 120, "the sink's process to be ended", app.history)
    app.drain()
    app.check()
    assert app.running
    assert app.said()[said:].count("batch failed") == 1, "the batch ran more than twice"


def test_a_commit_whose_answer_is_lost_is_found_out_from_the_log(app: Application) -> None:
    """Scenario 32: the worker dies behind EndTxn; what the broker makes of it is respected."""
    app.arm(OFFSETS_SENT)
    app.produce(records(KEYS, 20, "unknown"))
    worker = app.wait_reached(OFFSETS_SENT)
    assert app.broker._guard is not None
    (broker,) = psutil.Process(app.broker._guard.pid).children()
    app.broker.pause()
    try:
        wait_until(
            lambda: broker.status() == psutil.STATUS_STOPPED, 10, "the broker to stand still"
        )
        waiting = _unread_bytes(worker)
        app.go(OFFSETS_SENT)
        wait_until(
            lambda: _unread_bytes(worker) > waiting,
            20,
            "the commit request to lie in the broker's socket",
        )
        kill(worker)
    finally:
        app.broker.resume()
    app.produce(records(KEYS, 20, "afterwards"))
    app.drain()
    app.check()
    assert app.running


def test_nothing_is_read_beyond_an_open_transaction_of_the_input(app: Application) -> None:
    """Scenario 5: ranges end at the last stable offset; the rest is read once it is committed."""
    foreign = Producer(
        {
            "bootstrap.servers": app.broker.bootstrap_servers,
            "transactional.id": f"{app.name}-writer",
        }
    )
    foreign.init_transactions(30)
    foreign.begin_transaction()
    for partition in range(2):
        foreign.produce(input_topic(app.name), b"open", b"x0" if partition else b"x1", partition)
    foreign.flush(10)
    app.produce(records(KEYS, 20, "behind"))
    stable = app.ends(app.inputs(), "read_committed")
    assert stable != app.ends(app.inputs(), "read_uncommitted")
    failures = app.said().count("batch failed")
    before = app.committed()
    assert before == stable
    foreign.commit_transaction(30)
    app.sent += [("x1", "open"), ("x0", "open")]
    app.drain()
    app.check_outputs()
    assert app.said().count("batch failed") == failures


@pytest.mark.slow
def test_after_an_idle_minute_the_same_workers_answer_at_once(app: Application) -> None:
    """Scenario 39: Spark would have ended them, and the record would wait for new ones."""
    workers = _python_workers(app)
    assert workers
    since = time.monotonic()
    wait_until(
        lambda: time.monotonic() > since + SPARK_IDLE_S + 5,
        SPARK_IDLE_S + 10,
        "more than a minute to pass",
    )
    sent = time.monotonic()
    app.produce(records(KEYS, 1, "idle"))
    ends = app.ends(app.inputs(), "read_uncommitted")
    wait_until(lambda: app.committed() == ends, 10, "the record to be committed")
    assert time.monotonic() - sent < 2.0
    assert _python_workers(app) == workers


def test_a_second_instance_on_the_same_state_folder_is_refused(app: Application) -> None:
    """Scenario 10: two processes on one folder would share transactional ids and stores."""
    second = Application.__new__(Application)
    second.__dict__.update(app.__dict__)
    second.folder = app.folder / "second"
    second.folder.mkdir(exist_ok=True)
    second.process = None
    second.launch(**{"state.dir": str(app.folder / "state")})
    assert second.wait_end(60) != 0
    assert f"by process {app.driver}" in second.said()
    app.produce(records(KEYS, 10, "still"))
    app.drain()
    app.check()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(OFFSETS_SENT, id="in-its-transaction"),
        pytest.param(COMMITTED, id="before-the-apply", marks=pytest.mark.slow),
    ],
)
def test_an_orphan_of_a_dead_driver_changes_nothing(point: str, app: Application) -> None:
    """Scenarios 10 and 3: transaction fenced, batch unknown, apply refused by its successor."""
    app.arm(point)
    app.produce(records(KEYS, 20, "orphan"))
    orphan = app.wait_reached(point)
    jvm = psutil.Process(app.jvm())
    jvm.suspend()  # it would end itself and its workers when the driver goes
    try:
        assert app.process is not None
        app.process.kill()
        app.wait_end()
        app.start()
        app.drain()
        positions = app.positions()
        assert alive(orphan)
        app.go(point)
        wait_until(lambda: not (app.points / f"{point}.go").exists(), 10, "the orphan to wake up")
        wait_until(_settled(orphan), 30, "the orphan to have tried all it can", app.history)
    finally:
        jvm.kill()
    wait_until(lambda: not alive(orphan), 30, "the orphan to end", app.history)
    assert app.positions() == positions
    app.produce(records(KEYS, 20, "successor"))
    app.drain()
    app.check()


def _settled(pid: int) -> Callable[[], bool]:
    """A condition: the process has used no processor time for half a second, or is gone."""
    seen = [(-1.0, time.monotonic())]

    def settled() -> bool:
        if not alive(pid):
            return True
        used = sum(psutil.Process(pid).cpu_times()[:2])
        if used != seen[0][0]:
            seen[0] = (used, time.monotonic())
        return time.monotonic() - seen[0][1] > 0.5

    return settled


def _open_transaction(app: Application, tp: object) -> bool:
    return app.ends([tp], "read_committed") != app.ends([tp], "read_uncommitted")  # type: ignore[list-item]


def _unread_bytes(pid: int) -> int:
    """Bytes sent over TCP that the other side (on this machine) has not read yet."""
    ports = {
        connection.laddr.port
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.raddr
    }
    total = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if (
                int(fields[2].rpartition(":")[2], 16) in ports
            ):  # the peer's socket: its remote port is ours
                total += int(fields[4].partition(":")[2], 16)
    return total


def _python_workers(app: Application) -> set[int]:
    return {
        p.pid for p in psutil.Process(app.driver).children(recursive=True) if "python" in p.name()
    }


# kill -9 at every named point of a micro-batch, of each kind of process: I2, I3, I6.
#
# Every case stops a worker at the point, proves there that the batch is half done, kills, and then
# holds outputs and stores against what an undisturbed run makes of the same input. After the death
# of the driver or of the JVM the instance is started again; a killed worker is its own affair.

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
KILLED_KEYS = 7


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
    app.produce(records(KILLED_KEYS, 60, f"{point}-before"))
    app.drain()
    app.check()
    stores, positions, committed, copied = (
        app.store_paths(),
        app.positions(),
        app.committed(),
        _copies(app),
    )

    app.arm(point)
    app.produce(records(KILLED_KEYS, 60, f"{point}-hit"))
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
        app.produce(records(KILLED_KEYS, 20, f"{point}-while-away"))
        app.start()
    app.produce(records(KILLED_KEYS, 30, f"{point}-after"))
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
    app.produce(records(KILLED_KEYS, 50, "undisturbed"))
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
