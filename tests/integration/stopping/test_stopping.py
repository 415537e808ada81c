"""Every row of docs/STOPPING.md: the moment is waited for, the signal sent to the whole process
group, as under a terminal, and what is printed and left is what the row says. Three of the rows
are in the default suite."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import ConsumerGroupState, Producer

from everflow.errors import StateLockedError
from everflow.kafka.admin import ClusterAdmin
from everflow.state.task_directory import StateDirectory
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from integration.lifecycle.lifecycle_cluster import Cluster, text

_SCREEN_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
START_S = 300.0
END_S = 30.0
NEVER_SHOWN = (
    "Traceback",
    "Exception ignored",
    "Py4J",
    "py4j",
    "KafkaTimeoutError",
    "org.apache",
    "incubator",
    "NativeCodeLoader",
    "log4j",
    "%3|",
    "kafka.",
)
"""What would be a traceback, a Java stack or a client's noise."""


class StopProcess:
    """``arguments`` of Python in ``folder``; its own temporary folder is short, for sockets."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, temporary: str, *, terminal: bool
    ) -> None:
        self.temporary = Path(temporary)
        self._printed = folder / f"printed-{os.path.basename(temporary)}"
        self._family: dict[int, psutil.Process] = {}
        self._controller = -1
        self._copying = threading.Thread(target=self._copy_screen, daemon=True)
        self._closing = threading.Event()
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
        }
        command = [sys.executable, *arguments]
        if terminal:
            self._child = self._under_terminal(command, folder, environment)
        else:
            with self._printed.open("wb") as out:
                self._child = subprocess.Popen(
                    command,
                    cwd=folder,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    preexec_fn=_in_the_foreground,
                )

    def _under_terminal(
        self, command: list[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        self._controller, screen = pty.openpty()
        take = (
            f"import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            f"os.execv({command[0]!r}, {command!r})"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", take],
            cwd=folder,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            env={**environment, "COLUMNS": "400"},
            preexec_fn=_in_the_foreground,
        )
        os.close(screen)
        self._copying.start()
        return child

    def _copy_screen(self) -> None:
        with self._printed.open("ab", buffering=0) as out, suppress(OSError):
            while not self._closing.is_set() and (data := os.read(self._controller, 65_536)):
                out.write(data)

    @property
    def printed(self) -> str:
        text = self._printed.read_text(errors="replace") if self._printed.exists() else ""
        return _SCREEN_CODES.sub("", text.replace("\r", "\n"))

    def until(self, what: str | Callable[[], bool], timeout_s: float = START_S) -> None:
        """Wait for a text, or a condition; it must not end meanwhile."""

        def come() -> bool:
            assert self._child.poll() is None, f"it has ended:\n{self.printed}"
            self.family()
            return what in self.printed if isinstance(what, str) else what()

        wait_until(come, timeout_s, str(what), lambda: [self.printed])

    def family(self) -> list[psutil.Process]:
        """All processes below it, also those seen earlier."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._child.pid).children(recursive=True):
                self._family.setdefault(process.pid, process)
        return list(self._family.values())

    def signal(self, number: int) -> None:
        """To the whole process group, as a terminal or a supervisor does."""
        self.family()
        os.killpg(self._child.pid, number)

    def type(self, keys: bytes) -> None:
        self.family()
        os.write(self._controller, keys)

    def hang_up(self) -> None:
        """Close its terminal; whoever reads it lets go at the next output, which a live progress
        line is."""
        self.family()
        self._closing.set()
        self._copying.join(END_S)
        os.close(self._controller)
        self._controller = -1

    def kill(self) -> None:
        self.family()
        self._child.kill()
        self._child.wait()

    def freeze(self) -> None:
        """Stop the process alone; its connections stay open and nobody answers for it."""
        self._child.send_signal(signal.SIGSTOP)

    def ended(self, timeout_s: float = END_S) -> int:
        wait_until(
            lambda: self._child.poll() is not None, timeout_s, "its end", lambda: [self.printed]
        )
        return int(self._child.returncode)

    def left(self) -> list[str]:
        family = self.family()
        with suppress(AssertionError):  # a JVM's launcher and an early daemon end by themselves
            wait_until(lambda: all(map(_is_zombie, family)), 10, "the end of all processes")
        running = [str(found) for found in family if not _is_zombie(found)]
        return running + [path.name for path in self.temporary.iterdir()]

    def close(self) -> None:
        self.family()
        self._child.kill()
        self._child.wait()
        for process in self._family.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._controller >= 0:
            os.close(self._controller)


def _is_zombie(found: psutil.Process) -> bool:
    """It has ended; who adopted it has not looked yet."""
    try:
        return bool(found.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _in_the_foreground() -> None:
    """A session with signals as a shell leaves them, however these tests were run."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def process(
    arguments: Sequence[str], folder: Path, *, terminal: bool = False, temporary: str | None = None
) -> Iterator[StopProcess]:
    """Killed at the end with all it started. ``temporary``: its temporary folder, else an own."""
    with tempfile.TemporaryDirectory(prefix="efs-", ignore_cleanup_errors=True) as own:
        found = StopProcess(arguments, folder, temporary or own, terminal=terminal)
        try:
            yield found
        finally:
            found.close()


def everflow(*arguments: str) -> list[str]:
    return ["-c", "from everflow.cli import main; main()", *arguments]


HUP = signal.SIGHUP
INT = signal.SIGINT
TERM = signal.SIGTERM
WAIT_S = 30.0
GONE = "could not be told that this instance leaves"
UNBEGUN = "stopping: nothing was running yet ({})"
UNJOINED = "stopping: it had not joined its group yet ({}; "
LEAVES = "stopping: it commits, hands its tasks over, leaves the group ({}; "
STAYS = "stopping: it commits, and stays in the group for a restart ({}; "
NOW = "stopping now: batches in flight have a second to end, nothing more is handed over"
STILL = "still stopping: "
ENDED = ["PENDING_SHUTDOWN", "NOT_RUNNING"]

COUNT = """
from everflow import StreamsBuilder, serdes
def topology():
    builder = StreamsBuilder()
    stream = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to({output!r})
    return builder
"""
STUCK = """
from pathlib import Path
from everflow import StreamsBuilder, serdes
def topology():
    def stuck(value):
        import threading
        Path({mark!r}).write_text("begun")
        threading.Event().wait(600)
        return value
    builder = StreamsBuilder()
    builder.stream({source!r}, key=serdes.string(), value=serdes.string()).map_values(stuck, returns=serdes.string()).to({output!r})
    return builder
"""  # noqa: E501
LOADING = """
import threading
print("loading", flush=True)
threading.Event().wait(600)
def topology():
    return None
"""
COLUMN = """
from pyspark.sql import functions as F
from everflow import StreamsBuilder, serdes
def topology():
    builder = StreamsBuilder()
    builder.stream("a", value=serdes.string()).filter(F.col("value") != "x").to("b")
    return builder
"""
SCRIPT = """
from everflow import KafkaStreams
from program import topology
if __name__ == "__main__":
    streams = KafkaStreams(
        topology().build(), application_id={app!r}, bootstrap_servers={servers!r}, state_dir="state", num_stream_threads=1,
        processing_guarantee="exactly_once_v2")
    streams.run()
    print("run has returned", flush=True)
"""  # noqa: E501


class World:
    """A folder with a program, a broker, topics and an application of one test."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder, self.servers = folder, servers
        self.app = f"s{uuid.uuid4().hex[:8]}"
        self.broker: EmbeddedBroker | None = None
        self.stack = ExitStack()
        self.written = 0

    def own_broker(self) -> EmbeddedBroker:
        """One that this test may end."""
        self.broker = self.stack.enter_context(EmbeddedBroker())
        self.servers = self.broker.bootstrap_servers
        return self.broker

    @cached_property
    def cluster(self) -> Cluster:
        """Kept: requests of a client that is gone end with it."""
        made = Cluster(self.servers, self.app)
        self.stack.callback(made.close)
        return made

    def program(self, text: str = COUNT) -> None:
        source, output = self.cluster.topic("in"), self.cluster.topic("out")
        (self.folder / "program.py").write_text(
            text.format(source=source, output=output, mark=str(self.folder / "mark"))
        )

    def write(self, records: int) -> None:
        self.cluster.write(
            f"{self.app}-in", [text(f"k{n % 7}", "v", n + 1, n % 2) for n in range(records)]
        )
        self.written += records

    def run(
        self, *more: str, state: str = "state", terminal: bool = False, **options: Any
    ) -> AbstractContextManager[StopProcess]:
        given = ["--application-id", self.app, "--bootstrap-servers", self.servers]
        given += ["--threads", "1", "--state-dir", state, "--guarantee", "exactly_once_v2"]
        return process(
            everflow("run", "program:topology", *given, *more),
            self.folder,
            terminal=terminal,
            **options,
        )

    def script(self) -> AbstractContextManager[StopProcess]:
        (self.folder / "script.py").write_text(SCRIPT.format(app=self.app, servers=self.servers))
        return process(["script.py"], self.folder)

    def members(self) -> int:
        return self.cluster.members(self.app)

    def committed(self) -> int:
        return sum(at for at, _ in self.cluster.committed(self.app, f"{self.app}-in").values())


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path, "localhost:1")
    made.shared = lambda: request.getfixturevalue("bootstrap")  # type: ignore[attr-defined]
    with made.stack:
        yield made


def on_shared_broker(world: World, program: str = COUNT) -> None:
    world.servers = world.shared()  # type: ignore[attr-defined]
    world.program(program)


PATIENT = ("--set", "session.timeout.ms=120000")
"""Who has died, or stands still, is a member for so long: on a busy machine all else takes a
while."""


@contextmanager
def loading(world: World) -> Iterator[StopProcess]:
    (world.folder / "program.py").write_text(LOADING)
    with world.run() as child:
        child.until("loading\n")
        yield child


@contextmanager
def spark_starts(world: World) -> Iterator[StopProcess]:
    (world.folder / "program.py").write_text(COLUMN)
    with world.run() as child:
        child.until(lambda: len(child.family()) > 0)
        yield child


@contextmanager
def no_broker(world: World) -> Iterator[StopProcess]:
    (world.folder / "program.py").write_text(COUNT.format(source="a", output="b"))
    with world.run() as child:
        child.until("no answer from Kafka at localhost:1")
        yield child


@contextmanager
def creating_topics(world: World) -> Iterator[StopProcess]:
    broker = world.own_broker()
    world.program()
    with world.run() as child:
        child.until("CREATED -> REBALANCING")
        broker.pause()
        yield child
        broker.resume()


@contextmanager
def preparing(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.run() as child:
        child.until("Preparing Spark jobs")
        yield child


@contextmanager
def joining(world: World) -> Iterator[StopProcess]:
    broker = world.own_broker()
    world.program()
    with world.run() as child:
        child.until("Preparing Spark jobs")
        broker.kill()
        child.until("Still joining the group")
        yield child


@contextmanager
def rebalancing(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.run(*PATIENT, state="dead") as dead:
        dead.until("-> RUNNING")
        dead.kill()
    with world.run(*PATIENT) as child:
        child.until("Joining the group")

        def waits_for_the_dead() -> bool:
            group = world.cluster.group(world.app)
            return (
                group.state is ConsumerGroupState.PREPARING_REBALANCING and len(group.members) == 2
            )

        child.until(waits_for_the_dead)
        yield child


@contextmanager
def restoring(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.run() as child:
        child.until("Preparing Spark jobs")
        held = Producer(
            {"bootstrap.servers": world.servers, "transactional.id": f"held-{world.app}"}
        )
        held.init_transactions(WAIT_S)
        held.begin_transaction()
        for partition in range(2):
            held.produce(f"{world.app}-counts-changelog", b"v", b"k", partition)
        assert held.flush(WAIT_S) == 0
        child.until("Assigned 2 tasks")
        yield child
        held.abort_transaction(WAIT_S)
        assert "-> RUNNING" not in child.printed


def until_processed(world: World, child: StopProcess) -> None:
    world.write(70)
    child.until("-> RUNNING")
    child.until(lambda: world.committed() == world.written)


@contextmanager
def idle(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.run(terminal=True) as child:
        until_processed(world, child)
        yield child


@contextmanager
def load(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    over = threading.Event()

    def feed() -> None:
        while not over.is_set():
            world.write(500)

    feeder = threading.Thread(target=feed)
    with world.run() as child:
        feeder.start()
        try:
            child.until("-> RUNNING")
            child.until(lambda: world.committed() > 1_000)
            yield child
        finally:
            over.set()
            feeder.join(WAIT_S)


@contextmanager
def stay(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.run("--stay") as child:
        until_processed(world, child)
        yield child


@contextmanager
def broker_gone(world: World) -> Iterator[StopProcess]:
    broker = world.own_broker()
    world.program()
    with world.run() as child:
        until_processed(world, child)
        broker.kill()
        yield child


@contextmanager
def broker_hangs(world: World) -> Iterator[StopProcess]:
    broker = world.own_broker()
    world.program()
    with world.run() as child:
        until_processed(world, child)
        broker.pause()
        yield child
        broker.resume()


@contextmanager
def draining(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.run(*PATIENT) as child, world.run(*PATIENT, state="other") as other:
        child.until("-> RUNNING")
        other.until("-> RUNNING")
        other.freeze()
        yield child


@contextmanager
def stuck(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world, STUCK)
    with world.run() as child:
        child.until("-> RUNNING")
        world.write(2)
        child.until(lambda: (world.folder / "mark").exists())
        yield child


@contextmanager
def script(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.script() as child:
        until_processed(world, child)
        yield child


@contextmanager
def script_starting(world: World) -> Iterator[StopProcess]:
    (world.folder / "program.py").write_text(COUNT.format(source="a", output="b"))
    with world.script() as child:
        child.until("no answer from Kafka at localhost:1")
        yield child


@contextmanager
def script_spark_starts(world: World) -> Iterator[StopProcess]:
    on_shared_broker(world)
    with world.script() as child:
        child.until(lambda: len(child.family()) > 0)
        yield child


@contextmanager
def broker(world: World) -> Iterator[StopProcess]:
    with process(everflow("broker"), world.folder) as child:
        child.until("Ctrl-C stops it")
        yield child


@contextmanager
def describe(world: World) -> Iterator[StopProcess]:
    (world.folder / "program.py").write_text(COLUMN)
    with process(everflow("describe", "program:topology"), world.folder) as child:
        child.until(lambda: len(child.family()) > 0)
        yield child


@dataclass(frozen=True)
class Row:
    """``lines``: one for each signal. ``states``: those that come after the first signal.
    ``members``: of the group afterwards, None where nobody answers or there is none. ``quick``: in
    the default suite."""

    moment: Callable[[World], AbstractContextManager[StopProcess]]
    signals: tuple[int, ...]
    code: int
    lines: tuple[str, ...]
    states: tuple[str, ...] = (*ENDED,)
    members: int | None = None
    also: str = ""
    quick: bool = False


def stops(
    moment: Callable[[World], AbstractContextManager[StopProcess]], number: int, **more: Any
) -> Row:
    """An instance that has joined its group and leaves it."""
    return Row(moment, (number,), 0, (LEAVES,), **{"members": 0, **more})


ROWS = {
    "loading": Row(loading, (INT,), 130, (UNBEGUN,), ()),
    "spark-starts": Row(spark_starts, (INT,), 130, (UNBEGUN,), (), quick=True),
    "spark-starts-term": Row(spark_starts, (TERM,), 143, (UNBEGUN,), ()),
    "no-broker": Row(no_broker, (TERM,), 143, (UNJOINED,), quick=True),
    "no-broker-int": Row(no_broker, (INT,), 130, (UNJOINED,)),
    "no-broker-hup": Row(no_broker, (HUP,), 129, (UNJOINED,)),
    "creating-topics": Row(creating_topics, (TERM,), 143, (UNJOINED,)),
    "preparing": Row(preparing, (INT,), 130, (UNJOINED,)),
    "joining": Row(joining, (TERM,), 143, (UNJOINED,)),
    "rebalancing": stops(rebalancing, TERM, members=1),  # the dead one
    "restoring": stops(restoring, TERM),
    "idle": stops(idle, INT, quick=True),
    "load": stops(load, TERM),
    "stay": Row(stay, (TERM,), 0, (STAYS,), members=1),
    "broker-gone": stops(broker_gone, INT, members=None, also=GONE),
    "broker-hangs": stops(broker_hangs, TERM, members=None, also=GONE),
    "draining": Row(
        draining, (TERM, TERM), 0, (LEAVES, NOW), members=1
    ),  # the one that stands still
    "twice": Row(stuck, (INT, INT), 0, (LEAVES, NOW), members=0),
    "thrice": Row(stuck, (INT, INT, INT), 0, (LEAVES, NOW, STILL), members=0),
    "script": stops(script, INT, also="run has returned"),
    "script-starting": Row(script_starting, (TERM,), 0, (UNJOINED,), also="run has returned"),
    "script-spark-starts": Row(
        script_spark_starts, (INT,), 0, (UNJOINED,), also="run has returned"
    ),
    "broker": Row(broker, (INT,), 0, ("stopping: the broker ends",), ()),
    "describe": Row(describe, (TERM,), 143, (UNBEGUN,), ()),
}
ROWS_OF_THEIR_OWN = {"hangup", "killed"}
"""Rows with a test of their own."""


def marks(row: Row) -> list[pytest.MarkDecorator]:
    slow = [] if row.quick else [pytest.mark.slow, pytest.mark.timeout(900)]
    return [pytest.mark.spark, pytest.mark.broker, *slow]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks(row)) for name, row in ROWS.items()]
)
def test_a_signal_ends_it_in_order(name: str, world: World) -> None:
    row = ROWS[name]
    with row.moment(world) as child:
        before = len(child.printed)
        for number, line in zip(row.signals, row.lines, strict=True):
            if name == "idle":
                child.type(b"\x03")
            else:
                child.signal(number)
            if line is not row.lines[-1]:
                child.until(line.format(signal.Signals(number).name))
        code = child.ended()
        printed = child.printed
        assert code == row.code, printed
        assert child.left() == [], printed
        _says(printed[before:], row, printed)
    if row.members is not None:
        assert world.members() == row.members, "it must leave the group at once, not time out"
        assert not [
            found
            for found in ClusterAdmin({"bootstrap.servers": world.servers}).open_transactions()
            if found.startswith(world.app)
        ], printed
    if row.states:
        _is_released(world)
    if name == "load":
        assert 0 < world.committed() <= world.written


PROGRESS = re.compile(r"^(?:.* (?:records/s · |for \d+ s: ).*| *\d+_\d+ .*)\n?", re.MULTILINE)
"""Lines of the progress; on a terminal they are drawn again and again, and wiped at the end."""
CHANGE = re.compile(r"^(?:[\d:-]+ [\d:]+ )?state \w+ -> (\w+)$", re.MULTILINE)


def _says(after: str, row: Row, printed: str) -> None:
    after, printed = PROGRESS.sub("", after), PROGRESS.sub("", printed)
    assert [word for word in NEVER_SHOWN if word in printed] == [], printed
    for number, line in zip(row.signals, row.lines, strict=True):
        assert printed.count(line.format(signal.Signals(number).name)) == 1, printed
    said = [
        line for line in after.splitlines() if "stopping" in line and "Handing over" not in line
    ]
    assert len(said) == len(row.signals), printed
    assert row.also in printed
    assert CHANGE.findall(after) == list(row.states), printed
    assert "ERROR" not in printed
    last = after.strip().splitlines()[-1]
    assert any(
        text in last
        for text in ("-> NOT_RUNNING", "stopping: ", "run has returned", "broker stopped")
    ), printed


def _is_released(world: World) -> None:
    """Nobody holds the folder, and it was closed in order."""
    try:
        directory = StateDirectory.open(world.folder / "state", world.app)
    except StateLockedError as error:
        raise AssertionError(str(error)) from error
    try:
        assert directory.previous is not None
        assert directory.previous.clean_close
    finally:
        directory.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.broker
def test_a_closed_terminal_ends_it_in_order_and_the_log_says_so(world: World) -> None:
    with idle(world) as child:
        child.hang_up()
        assert child.ended() == 0, child.printed
        assert child.left() == [], child.printed
    log = (world.folder / "state" / world.app / "logs" / "everflow.log").read_text()
    told = log[log.index(LEAVES.format("SIGHUP")) :]
    assert log.count("stopping: ") == 1, log
    assert re.findall(r"state \w+ -> (\w+)", told) == ENDED, told
    assert "Traceback" not in told, told
    assert world.members() == 0
    _is_released(world)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.spark
@pytest.mark.broker
def test_what_a_killed_one_leaves_is_removed_by_the_next_start(world: World) -> None:
    on_shared_broker(world)
    temporary = tempfile.mkdtemp(prefix="efs-")
    try:
        with world.run(temporary=temporary) as killed:
            killed.until("-> RUNNING")
            killed.kill()
            wait_until(
                lambda: not [found for found in killed.left() if found.startswith("psutil")],
                WAIT_S,
                "its JVM to end",
            )
            assert all(name.startswith("ef") for name in os.listdir(temporary)), os.listdir(
                temporary
            )
            assert os.listdir(temporary) != []
        with world.run(temporary=temporary) as next_one:
            next_one.until("-> RUNNING")
            next_one.signal(TERM)
            assert next_one.ended() == 0, next_one.printed
            assert next_one.left() == []
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
