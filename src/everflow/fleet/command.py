"""The driver of a fleet: Spark's application, its slots, its door; what Spark runs for a slot."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, SparkFiles, TaskContext

from everflow import logs
from everflow.autoscale import Autoscaler, InstanceSeen
from everflow.errors import ConfigError, FatalError, SetupError
from everflow.fleet.control import Door, Places, application
from everflow.fleet.decision import (
    PROGRAM_FILE,
    MissingPlaces,
    Report,
    SlotOrder,
    SlotOutcome,
    Wanted,
    instance_settings,
    require_cluster,
    spark_settings,
)
from everflow.observe.http_server import LOOPBACK, HttpServer
from everflow.observe.requests import OwnNames
from everflow.retry import waiting
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure
from everflow.spark.session import hush_accumulators, hush_py4j, interrupt_kept, prepare_environment
from everflow.stop_signals import StopSignals

log = logging.getLogger("everflow.fleet")

EVERY_S = 1.0
REACH_S = 5.0
CLOSING_S = 60.0
"""What a drain may take above its time-out: a batch in flight, and the stores."""
ANYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A fleet as it was asked for. ``settings``: of each instance; ``conf``: of Spark; ``files``:
    beside the program; ``listen``: host:port of the driver, "": Spark's driver host, any port."""

    target: str
    application_id: str
    settings: Mapping[str, object]
    least: int
    most: int
    master: str | None = None
    cores: int = 1
    memory: str = "512m"
    threads: int = 1
    folder: str = "~/.local/state/everflow-fleet"
    conf: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[Path] = ()
    listen: str = ""

    def order(self, slot: int, url: str, token: str) -> SlotOrder:
        drain_ms = float(str(self.settings.get("drain.timeout.ms", 60_000)))
        return SlotOrder(
            slot=slot,
            target=self.target,
            settings=instance_settings(self.settings, self.application_id, slot),
            threads=self.threads,
            folder=f"{self.folder}/{self.application_id}",
            url=url,
            token=token,
            drain_s=drain_ms / 1000 + CLOSING_S,
        )


def run_fleet(fleet: Fleet, say: Callable[[str], None], signals: StopSignals) -> None:
    """Run until a signal arrives; then all instances stop and stay members of the group. ``say``
    gets a line for each event, on any thread. Must be called from the main thread.

    Raises ConfigError or SetupError before anything runs; FatalError: Spark ended the application,
    or instances end by themselves again and again.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everflow-fleet-")))
        names = pack(fleet.target.partition(":")[0], fleet.files, folder / PROGRAM_FILE)
        context = stack.enter_context(_spark(fleet))
        context.addFile(str(folder / PROGRAM_FILE))
        places, token = Places(say), secrets.token_urlsafe(32)
        jobs = SparkJobs(context, fleet.application_id)
        missing = MissingPlaces(fleet.cores, fleet.memory)

        def start(slot: int, *_: object) -> SlotJob:
            return SlotJob(fleet.order(slot, f"http://{address}", token), places, jobs)

        def after_step(_: object) -> None:
            text = missing.text(places.without_s(), time.monotonic())
            if text is not None:
                say(text)
            require_running(context)

        loop = Autoscaler(
            target=fleet.target,
            options=(),
            folder=folder,
            least=fleet.least,
            most=fleet.most,
            say=say,
            every_s=EVERY_S,
            start=start,
            after_step=after_step,
        )
        address = stack.enter_context(_served(fleet, context, token, places, loop))
        say(
            f"the fleet {fleet.application_id} is application {context.applicationId} of "
            f"{context.master}; {', '.join(names) or 'no file'} goes to the hosts"
        )
        say(f"show or resize it from this host: everflow scale {address} --instances NUMBER")
        stop = threading.Event()
        with signals.reported_to(lambda *_: stop.set()):
            loop.run(stop)


@contextmanager
def _served(
    fleet: Fleet, context: SparkContext, token: str, places: Places, loop: Autoscaler
) -> Iterator[str]:
    conf = context.getConf()
    host = str(conf.get("spark.driver.host"))
    listen = fleet.listen or f"{conf.get('spark.driver.bindAddress', host)}:0"
    own = frozenset({*LOOPBACK, host, socket.gethostbyname(host)})
    server = HttpServer(
        listen,
        application(Door(token, own, fleet.application_id, places, loop)),
        "--listen",
        names=OwnNames(listen, [host]),
        free=lambda path: path == "/report",  # a supervisor shows its token
    )
    bound, _, port = server.address.rpartition(":")
    with closing(server):
        yield f"{host if bound.strip('[]') in ANYWHERE else bound}:{port}"


@contextmanager
def _spark(fleet: Fleet) -> Iterator[SparkContext]:
    """Spark's application, until the end of the block; under `spark-submit` in its JVM."""
    logs.install()
    hush_py4j()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit's JVM knows what it was given
        SparkContext._ensure_initialized()
    chosen = {**dict(SparkConf().getAll()), **fleet.conf}
    if "spark.pyspark.python" in chosen:  # PySpark itself looks at the environment alone
        os.environ["PYSPARK_PYTHON"] = chosen["spark.pyspark.python"]
    prepare_environment()
    master = require_cluster(fleet.master or chosen.get("spark.master"))
    require_master_answers(master)
    settings = spark_settings(
        fleet.application_id,
        fleet.least,
        fleet.cores,
        fleet.memory,
        chosen,
    )
    conf = SparkConf().setAll(list(settings.items())).setMaster(master)
    with (
        waiting(f"asking {master} for an application"),
        jvm_ends_with_failure(),
        interrupt_kept(),
    ):
        context = SparkContext(conf=conf)
    try:
        context.setLogLevel("ERROR")
        hush_accumulators(context)
        yield context
    finally:
        context.stop()


def require_master_answers(master: str) -> None:
    """SetupError if no address of a ``spark://`` master answers: Spark tries for a minute."""
    if not master.startswith("spark://"):
        return
    failures = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), REACH_S):
                return
        except (OSError, ValueError) as error:
            failures.append(f"{address}: {error}")
    raise SetupError(
        f"no Spark master answers at {master} ({'; '.join(failures)}). Is the address the one "
        f"that its page shows, and can it be reached from here?"
    )


INSTALLED = ("site-packages", "dist-packages")
LEFT_OUT = "__pycache__"


def source_of(module: str) -> Path | None:
    """The file of ``module``, or its package's folder; None: it is installed, on the hosts too."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:
        return None
    if spec.submodule_search_locations:
        found = Path(next(iter(spec.submodule_search_locations)))
    elif spec.has_location and spec.origin is not None:
        found = Path(spec.origin)
    else:
        return None
    return None if set(INSTALLED) & set(found.parts) else found


def pack(module: str, more: Sequence[Path], to: Path) -> list[str]:
    """Pack the program and ``more`` into ``to``; the names at its top. ConfigError: missing."""
    source = source_of(module)
    parts = [*([source] if source is not None else []), *more]
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as packed:
        for part in parts:
            if not part.exists():
                raise ConfigError(f"--files {part}: there is no such file or folder")
            for file in [part] if part.is_file() else sorted(part.rglob("*")):
                if file.is_file() and LEFT_OUT not in file.parts:
                    packed.write(file, file.relative_to(part.parent))
    return [part.name for part in parts]


# --- a slot: a Spark job of one task, whose supervisor runs one instance --------------------------

FAILED = 70
"""The exit code of a slot whose job failed."""


class SparkJobs:
    """Slots as jobs of a cluster; each has a group of its own. Any thread."""

    def __init__(self, context: SparkContext, application_id: str) -> None:
        self._context, self._application_id = context, application_id

    def run(self, order: SlotOrder) -> SlotOutcome:
        """Have the order carried out on some host, and wait for its end. Any error of Spark's."""
        context = self._context
        context.setJobGroup(_group(order.slot), f"instance {order.slot} of {self._application_id}")
        orders = context.parallelize([order.to_json()], 1)
        (outcome,) = orders.mapPartitions(host_instance).collect()
        return SlotOutcome.from_json(outcome)

    def cancel(self, slot: int) -> None:
        with suppress(Py4JError, OSError):  # a Spark that is gone has no jobs
            self._context.cancelJobGroup(_group(slot))


class SlotJob:
    """An `everflow.autoscale.Instance`, of the loop's thread; another one waits for the job."""

    def __init__(self, order: SlotOrder, places: Places, jobs: SparkJobs) -> None:
        self.number = order.slot
        self.ending = False
        self._order, self._places, self._jobs = order, places, jobs
        self._outcome: SlotOutcome | None = None
        self._last: Report | None = None
        places.open(order.slot)
        self._thread = threading.Thread(
            target=self._wait_for_the_job, name=f"everflow-slot-{order.slot}", daemon=True
        )
        self._thread.start()

    @property
    def where(self) -> str:
        last = self._places.last(self.number) or self._last
        return "Spark chooses the host" if last is None else f"{last.host}: {last.log}"

    @property
    def code(self) -> int | None:
        return None if self._outcome is None else self._outcome.code

    def seen(self) -> InstanceSeen:
        self._cancel_if_deaf()
        return self._places.seen(self.number, self.ending)

    def end(self, for_good: bool) -> None:
        self.ending = True
        self._places.want(self.number, Wanted.drain if for_good else Wanted.stop)
        self._cancel_if_deaf()

    def _cancel_if_deaf(self) -> None:
        """Cancel the job of a slot that is to end and has no host: nobody there hears the order."""
        if self.ending and self.code is None and self._places.without_s().get(self.number):
            self.kill()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Spark ends the task; its supervisor ends the instance in order, if it can."""
        self._jobs.cancel(self.number)

    def tail(self) -> str:
        return "" if self._outcome is None else self._outcome.tail

    def _wait_for_the_job(self) -> None:
        try:
            outcome = self._jobs.run(self._order)
        except Exception as error:
            log.debug("the job of slot %d failed", self.number, exc_info=True)
            outcome = SlotOutcome(FAILED, last_words(error))
        self._last = self._places.close(self.number)
        self._outcome = outcome  # last: from here on the number may be used again


def _group(slot: int) -> str:
    return f"everflow-slot-{slot}"


def require_running(context: SparkContext) -> None:
    """FatalError where the cluster has ended the application."""
    try:
        runs = context._jsc is not None and not context._jsc.sc().isStopped()
    except (Py4JError, OSError):  # its JVM has ended
        runs = False
    if not runs:
        raise FatalError(
            "Spark has ended the application of the fleet: its master removed it, or somebody "
            "killed it there. The instances end in order; start the fleet again, and they go on "
            "where they were"
        )


def last_words(error: BaseException) -> str:
    """The text of a failed job without Java's stack."""
    text = str(error)
    if "No module named 'everflow'" in text:
        return (
            "The Python of the executors has no everflow: install it there, or name one that has "
            "it (PYSPARK_PYTHON, or --conf spark.pyspark.python=PATH)"
        )
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines[:20])


def host_instance(orders: Iterable[str]) -> Iterator[str]:
    """The outcome of each order. RuntimeError: its supervisor was killed; Spark runs it again."""
    for text in orders:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        order = SlotOrder.from_json(text).placed(SparkFiles.get(PROGRAM_FILE), attempt)
        yield kept(order).to_json()


def kept(order: SlotOrder) -> SlotOutcome:
    """Run an order with a supervisor, and wait; the outcome of its instance."""
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "everflow.fleet.supervisor"],
        stdin=subprocess.PIPE,  # stays open for as long as this process lives
        stdout=subprocess.PIPE,
        start_new_session=True,  # what ends a Python worker of Spark ends its process group
        env=dict(os.environ),
        text=True,
    )
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with supervisor.stdin, supervisor.stdout:
        supervisor.stdin.write(order.to_json() + "\n")
        supervisor.stdin.flush()
        said = supervisor.stdout.readline()
    code = supervisor.wait()
    try:
        return SlotOutcome.from_json(said)
    except ValueError:
        raise RuntimeError(
            f"the supervisor of instance {order.slot} ended without a word (exit code {code})"
        ) from None
