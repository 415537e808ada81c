"""The systems under test, each as a child process that runs the same program.

Both are started, watched and stopped from outside in the same way; only the command line differs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import psutil

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.programs.catalogue import NEXMARK

EVERFLOW = "everflow"
# With a Spark job for each batch: the road that is left where Spark's code cannot be called.
# Without what guards it against damaged bytes and too little memory: what those cost.
EVERFLOW_UNGUARDED = "everflow-unguarded"
# Event time is the least that is certain, not the highest seen.
EVERFLOW_LOWEST = "everflow-lowest"
# Another checkout of the repository with its own environment: a commit before, in the same run.
EVERFLOW_BEFORE = "everflow-before"
KAFKA_STREAMS = "kafka-streams"
# With the protocol of KIP-1071, `group.protocol=streams`; the plain name is the classic one.
KAFKA_STREAMS_KIP1071 = "kafka-streams-kip1071"
# Both with state stores that are transactional (KIP-892), which Kafka 4.4 has off by default.
KAFKA_STREAMS_TRANSACTIONAL = "kafka-streams-transactional"
KAFKA_STREAMS_KIP1071_TRANSACTIONAL = "kafka-streams-kip1071-transactional"
# The programs that SQL can say: bench/flink has a script for each, and bench/flink/live.
FLINK_SQL = "flink-sql"
OURS = (EVERFLOW, EVERFLOW_UNGUARDED, EVERFLOW_LOWEST, EVERFLOW_BEFORE)
SYSTEMS = (
    KAFKA_STREAMS,
    KAFKA_STREAMS_KIP1071,
    KAFKA_STREAMS_TRANSACTIONAL,
    KAFKA_STREAMS_KIP1071_TRANSACTIONAL,
    FLINK_SQL,
    *OURS,
)
_TRANSACTIONAL = {"enable.transactional.statestores": "true"}
KAFKA_STREAMS_SETTINGS: Mapping[str, Mapping[str, str]] = {
    KAFKA_STREAMS: {"group.protocol": "classic"},
    KAFKA_STREAMS_KIP1071: {"group.protocol": "streams"},
    KAFKA_STREAMS_TRANSACTIONAL: {"group.protocol": "classic", **_TRANSACTIONAL},
    KAFKA_STREAMS_KIP1071_TRANSACTIONAL: {"group.protocol": "streams", **_TRANSACTIONAL},
}
"""Of each system that is Kafka Streams, what it sets besides a job's own settings."""
DEFAULT_SYSTEMS = (KAFKA_STREAMS, EVERFLOW)
COUNT = "count"
BACKLOG = "backlog"
CALLS = "calls"
SINKS = "sinks"
_PROGRAMS = {
    COUNT: "bench.apps.count_app:builder",
    BACKLOG: "bench.backlog.program:builder",
    CALLS: "bench.calls.program:builder",
    SINKS: "bench.sinks.program:builder",
    "trades-avro": "bench.schemas.programs:trades_avro",
    "trades-protobuf": "bench.schemas.programs:trades_protobuf",
    "trades-rekeyed": "bench.programs.topologies:trades",
    "trades-in-place": "bench.programs.topologies:trades_in_place",
    "flights-rekeyed": "bench.programs.topologies:flights",
    "flights-in-place": "bench.programs.topologies:flights_in_place",
    **{query: f"bench.nexmark.programs:{query}" for query in NEXMARK},
}
"""Those that are not in `bench.programs.topologies`."""

ROOT = Path(__file__).resolve().parent.parent
STOP_TIMEOUT_S = 60.0
LOG_TAIL_LINES = 40
NO_BUDGET_BYTES = 1 << 50
EVERFLOW_SETTINGS: Mapping[str, Mapping[str, str]] = {
    EVERFLOW: {},
    # No checksum is checked, and no batch comes near the budget of memory.
    EVERFLOW_UNGUARDED: {"consumer.check.crcs": "false", "max.memory.bytes": str(NO_BUDGET_BYTES)},
    EVERFLOW_LOWEST: {"stream.time": "lowest"},
}
"""Of each system that is this everflow, what it sets besides a job's own settings."""
_OF_A_BACKLOG: Mapping[str, Mapping[str, str]] = {
    EVERFLOW_LOWEST: {"stream.time.idle.ms": "100"},
}
"""Where the input has an end: what came last there would wait for the default of half a minute."""
# How long Kafka Streams must process nothing before it takes a program with repartition topics for
# done; it is inside its time.
QUIET_MS = 250
# `\b` keeps NOT_RUNNING out: an underscore is part of a word.
_RUNNING = re.compile(r"\bRUNNING\b")


class SystemFailedError(RuntimeError):
    """A system under test ended, or did not get ready or done in time; carries the end of what it
    printed."""


@dataclass(frozen=True)
class Job:
    """One start of a program: where it reads and writes, and with which settings."""

    bootstrap_servers: str
    application_id: str
    guarantee: str
    threads: int
    input_topic: str
    output_topic: str
    state_dir: Path
    # The count, or a name of `bench.programs.catalogue`; of everflow also MODULE:NAME.
    program: str = COUNT
    # Kafka Streams closes after so many records (CountBench.java tells why); 0: runs until stopped.
    stop_after: int = 0
    # Where the instance notes changes of state, tasks and restores (bench/events.py); SIGTERM then
    # makes it leave the group.
    events: Path | None = None
    # Records go on coming, and each is to show soon.
    live: bool = False
    # Any other setting, by its dotted key.
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """How to start one system on a job, and how to ask it to stop."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    # True: standard input is closed to stop it; False: SIGTERM.
    stops_at_end_of_input: bool = False
    # It ends by itself when it has done the input that there is; its offsets do not tell.
    ends_when_done: bool = False


Launcher = Callable[[Job], Launch]


def kafka_streams_launcher(java: list[str], system: str = KAFKA_STREAMS) -> Launcher:
    """`java` is the command of `bench.java_program.java_command`, `system` a key of
    `KAFKA_STREAMS_SETTINGS`."""
    settings = KAFKA_STREAMS_SETTINGS[system]

    def launch(job: Job) -> Launch:
        options = {
            "bootstrap-servers": job.bootstrap_servers,
            "application-id": job.application_id,
            "guarantee": job.guarantee,
            "threads": str(job.threads),
            "input": job.input_topic,
            "output": job.output_topic,
            "program": job.program,
            "state-dir": str(job.state_dir),
            "stop-after": str(job.stop_after),
            "quiet-ms": "0" if job.program == COUNT else str(QUIET_MS),
            **({} if job.events is None else {"events": str(job.events)}),
            **{f"set.{key}": value for key, value in {**settings, **job.settings}.items()},
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return Launch([*java, *arguments], stops_at_end_of_input=job.events is None)

    return launch


# A window closes at the end of the input, as in a run that goes on it would a grace later.
_FLINK_SCRIPTS = Path(__file__).with_name("flink")
_FLINK_NEXMARK = _FLINK_SCRIPTS / "nexmark"
_FLINK_OPENED = ("java.lang", "java.net", "java.nio", "java.util", "java.util.concurrent")
_FLINK_GUARANTEES = {
    "exactly_once_v2": ("EXACTLY_ONCE", "exactly-once"),
    "at_least_once": ("AT_LEAST_ONCE", "at-least-once"),
}


def flink_script(program: str, live: bool = False) -> Path | None:
    """The program in Flink's SQL; None where it has functions of its own. A ``live`` one reads on
    for ever and writes each change with the latest time of the records in it, as the others do;
    Flink's windows, which write when they close, are groups there, and it has no such sessions."""
    folders = (_FLINK_SCRIPTS / "live",) if live else (_FLINK_SCRIPTS, _FLINK_NEXMARK)
    found = (folder / f"{program}.sql" for folder in folders)
    return next((script for script in found if script.is_file()), None)


def flink_launcher(java: list[str]) -> Launcher:
    """`java` is the command of `bench.java_program.java_command`. A checkpoint each second, and of
    a live job each 100 ms, as Kafka Streams commits; all else as Flink comes."""

    def launch(job: Job) -> Launch:
        checkpoints, delivery = _FLINK_GUARANTEES[job.guarantee]
        values = {
            "input": job.input_topic,
            "output": job.output_topic,
            "bootstrap": job.bootstrap_servers,
            "id": job.application_id,
            "delivery": delivery,
            "execution.checkpointing.interval": "100 ms" if job.live else "1 s",
            "execution.checkpointing.mode": checkpoints,
            "execution.checkpointing.dir": (job.state_dir / "checkpoints").as_uri(),
            "parallelism.default": str(job.threads),
            "table.local-time-zone": "UTC",
            # Each key's results come from one task, in order: they need no store of their own.
            "table.exec.sink.upsert-materialize": "NONE",
        }
        opened = [
            part
            for package in _FLINK_OPENED
            for part in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
        ]
        arguments = [f"{name}={value}" for name, value in values.items()]
        script = flink_script(job.program, job.live)
        assert script is not None, f"Flink has no script of {job.program}"
        scripts = [_FLINK_NEXMARK / "events.sql", script] if job.program in NEXMARK else [script]
        command = [java[0], *opened, *java[1:], ",".join(map(str, scripts)), *arguments]
        return Launch(command, ends_when_done=not job.live)

    return launch


def everflow_launch(job: Job, system: str = EVERFLOW) -> Launch:
    """everflow through its own command, as a user starts it; with events, through the program that
    notes them. `system` is a key of `EVERFLOW_SETTINGS`."""
    settings = {
        "processing.guarantee": job.guarantee,
        "num.stream.threads": str(job.threads),
        "state.dir": str(job.state_dir),
        **EVERFLOW_SETTINGS[system],
        **({} if job.live else _OF_A_BACKLOG.get(system, {})),
        **job.settings,
    }
    if job.events is None:
        command = [
            sys.executable,
            "-c",
            "from everflow.cli import main; main()",
            "run",
            target_of(job.program),
        ]
    else:
        command = [sys.executable, "-m", "bench.apps.instance_app", "--events", str(job.events)]
    command += [
        "--application-id",
        job.application_id,
        "--bootstrap-servers",
        job.bootstrap_servers,
    ]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    environment = {
        INPUT_TOPIC_VARIABLE: job.input_topic,
        OUTPUT_TOPIC_VARIABLE: job.output_topic,
        "PYTHONPATH": _python_path(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    return Launch(command, environment)


def _python_path(checkout: Path) -> str:
    """The checkout, and its examples, some of which are programs of a bench."""
    own = [str(checkout), str(checkout / "examples")]
    return os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH", "")]))


def target_of(program: str) -> str:
    """What `everflow run` is given for it; a program with a module in front is one already."""
    known = program if ":" in program else f"bench.programs.topologies:{program}"
    return _PROGRAMS.get(program, known)


def turns(
    guarantees: Iterable[str], runs: int, launchers: Mapping[str, Launcher]
) -> Iterator[tuple[str, int, str, Launcher]]:
    """Guarantee, run, system and launcher of one start after the other, each other run backwards:
    who comes second finds a warmer machine, up to 5 % of a drain of the count."""
    for guarantee, run in product(guarantees, range(runs)):
        for system, launcher in list(launchers.items())[:: -1 if run % 2 else 1]:
            yield guarantee, run, system, launcher


def everflow_before_launcher(checkout: Path) -> Launcher:
    """everflow as it is in another `checkout`, whose own `.venv` must have been set up: its source,
    its Spark, and its version of the program under test.

    Raises `ValueError` where the checkout has no environment.
    """
    python = checkout.resolve() / ".venv" / "bin" / "python"
    if not python.is_file():
        raise ValueError(f"{checkout} has no .venv: run `./run everflow setup` in it first")

    def launch(job: Job) -> Launch:
        here = everflow_launch(job)
        return replace(
            here,
            command=[str(python), *here.command[1:]],
            environment={**here.environment, "PYTHONPATH": _python_path(checkout.resolve())},
        )

    return launch


class RunningSystem:
    """One child process. Use as a context manager: leaving it stops the process and whatever it
    started.

    A thread of its own copies what the process prints to `log_path` and notes the first line with
    RUNNING.
    """

    def __init__(self, name: str, launch: Launch, log_path: Path) -> None:
        self.name = name
        self._launch = launch
        self._log_path = log_path
        self._running = threading.Event()
        self._running_at = 0.0
        self.started_at = time.monotonic()
        self._process = subprocess.Popen(
            launch.command,
            env={**os.environ, **launch.environment},
            cwd=log_path.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(
            target=self._read_output, name=f"{name}-output", daemon=True
        )
        self._reader.start()

    def __enter__(self) -> RunningSystem:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the root of the tree."""
        return self._process.pid

    @property
    def running_at(self) -> float | None:
        """Monotonic time at which it printed RUNNING, or None so far."""
        return self._running_at if self._running.is_set() else None

    def wait_running(self, timeout_s: float) -> float:
        """Monotonic time of RUNNING; raises `SystemFailedError` if it ends before or takes
        longer."""
        deadline = time.monotonic() + timeout_s
        while not self._running.wait(0.05):
            self.check_alive()
            if time.monotonic() > deadline:
                raise self.failure(f"not RUNNING after {timeout_s:.0f} s")
        return self._running_at

    def check_alive(self) -> None:
        """Raise `SystemFailedError` if the process ended with an error, or before it was
        RUNNING."""
        code = self._process.poll()
        if code is not None and (code != 0 or not self._running.is_set()):
            raise self.failure(f"ended with exit code {code}")

    def failure(self, what: str) -> SystemFailedError:
        """An error that shows the end of the log."""
        tail = "".join(
            self._log_path.read_text(errors="replace").splitlines(keepends=True)[-LOG_TAIL_LINES:]
        )
        return SystemFailedError(f"{self.name}: {what}. The end of what it printed:\n{tail}")

    @property
    def ends_when_done(self) -> bool:
        """Whether it ends by itself when its input is done."""
        return self._launch.ends_when_done

    @property
    def ended(self) -> bool:
        """Whether the root of the tree has ended."""
        return self._process.poll() is not None

    def ask_to_stop(self) -> None:
        """Ask it to stop, as its user would; returns at once."""
        if self._launch.stops_at_end_of_input and self._process.stdin is not None:
            self._process.stdin.close()
        else:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask it to stop, wait, then kill what is left of its tree. Idempotent."""
        tree = self._tree()
        if not self.ended:
            self.ask_to_stop()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                print(f"{self.name} did not stop in {STOP_TIMEOUT_S:.0f} s, killing it", flush=True)
        self._kill(tree)

    def kill(self) -> None:
        """SIGKILL to the whole tree at once, as if its host had gone. Idempotent."""
        self._kill(self._tree())

    def _kill(self, tree: Sequence[psutil.Process]) -> None:
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()
        self._reader.join(STOP_TIMEOUT_S)

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._log_path.open("w") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                if not self._running.is_set() and _RUNNING.search(line):
                    self._running_at = time.monotonic()
                    self._running.set()
