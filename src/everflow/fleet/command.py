"""The driver of a fleet: Spark's application, its slots, its door."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import SparkConf, SparkContext

from everflow import logs
from everflow.autoscale import Autoscaler
from everflow.errors import ConfigError, SetupError
from everflow.fleet.control import Door, Places, application
from everflow.fleet.decision import (
    PROGRAM_FILE,
    PlacesTold,
    SlotOrder,
    instance_settings,
    require_cluster,
    spark_settings,
)
from everflow.fleet.slot_job import SlotJob, SparkJobs, require_running
from everflow.observe.host_names import OwnNames
from everflow.observe.http_server import LOOPBACK, HttpServer
from everflow.retry import waiting
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure
from everflow.spark.session import hush_accumulators, hush_py4j, interrupt_kept, prepare_environment
from everflow.stop_signals import StopSignals

EVERY_S = 1.0
REACH_S = 5.0
CLOSING_S = 60.0
"""What a drain may take above its time-out: a batch in flight, and the stores."""
ANYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A fleet as it was asked for. ``settings``: of each instance; ``conf``: of Spark; ``files``:
    beside the program; ``listen``: host:port of the driver's HTTP endpoint, "": Spark's driver
    host, a free port."""

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
    gets a line for each event, on any thread.

    Must be called from the main thread.

    Raises:
        ConfigError, SetupError: before anything runs.
        FatalError: Spark ended the application, or instances end by themselves again and again.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everflow-fleet-")))
        names = pack(fleet.target.partition(":")[0], fleet.files, folder / PROGRAM_FILE)
        context = stack.enter_context(_spark(fleet))
        context.addFile(str(folder / PROGRAM_FILE))
        places, token = Places(say), secrets.token_urlsafe(32)
        jobs = SparkJobs(context, fleet.application_id)
        missing = PlacesTold(fleet.cores, fleet.memory)

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
        with signals.told_to(lambda *_: stop.set()):
            loop.run(stop)


@contextmanager
def _served(
    fleet: Fleet, context: SparkContext, token: str, places: Places, loop: Autoscaler
) -> Iterator[str]:
    """The address of the driver's HTTP server, until the end of the block."""
    conf = context.getConf()
    host = str(conf.get("spark.driver.host"))
    listen = fleet.listen or f"{conf.get('spark.driver.bindAddress', host)}:0"
    own = frozenset({*LOOPBACK, host, socket.gethostbyname(host)})
    server = HttpServer(
        listen,
        application(Door(token, own, fleet.application_id, places, loop)),
        "--listen",
        names=OwnNames(listen, [host]),
        free=lambda path: path == "/report",  # a keeper shows its token
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
    settings = spark_settings(fleet.application_id, fleet.least, fleet.cores, fleet.memory, chosen)
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
    """SetupError where no address of a ``spark://`` master answers: Spark tries for a minute before
    it says so. Other managers have addresses of their own."""
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
    """The file of ``module``, or the folder of its package; None where it is installed, as it then
    is on the hosts, too."""
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
    """Write the program and ``more`` files and folders to the archive ``to``; the names at its top,
    in the folder that the program then runs in. ConfigError for one that is not there."""
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
