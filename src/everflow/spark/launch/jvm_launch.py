"""Launches PySpark's JVM: quiet, deaf to signals for others, alive no longer than its user.

`launch_ahead` launches it beside what else a start has to do. The start of Spark then takes it, if
PySpark would launch the very same: command, environment and current folder. Otherwise it ends, and
PySpark launches another.

Standard error of the JVM and the workers becomes lines of `everflow.logs.SPARK_OUTPUT`, through a
pipe: nothing in Spark's settings covers what the JVM says before its logging is set up.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway

from everflow.logs import SPARK_OUTPUT
from everflow.stop_signals import NUMBERS

_spark_output = logging.getLogger(SPARK_OUTPUT)
TAIL_LINES = 15
_READ_BYTES = 65_536


class JvmOutput:
    """One pipe: give ``write_end`` to the process, then `launched`. A thread reads until its
    end."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(
            target=self._read, name="everflow-spark-output", daemon=True
        )
        self._open = True
        self._thread.start()

    def launched(self) -> None:
        """This process writes nothing itself. Idempotent."""
        if self._open:
            self._open = False
            os.close(self.write_end)

    def tail(self, wait_s: float = 1.0) -> list[str]:
        self._thread.join(wait_s)
        return list(self._tail)

    def _read(self) -> None:
        # Not through a file object: its lock, taken while waiting, would be missed when the
        # interpreter ends.
        rest = b""
        while data := os.read(self._read_end, _READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._say(line)
        if rest:
            self._say(rest)
        os.close(self._read_end)

    def _say(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._tail.append(text)
            _spark_output.debug("%s", text)


_CONNECTION_PATH = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Names the file in which the JVM tells where it listens; each launch has a new one."""
_NOT_OF_THE_JVM = ("spark.master=", "spark.app.name=")
"""Settings that a SparkContext takes when it is made, in whatever JVM."""
WAIT_S = 10.0


@dataclass(kw_only=True)
class JvmAhead:
    """A JVM that was launched and not asked for anything yet."""

    command: Sequence[str]
    environment: Mapping[str, str]
    current: str
    folder: Path
    launched: list[subprocess.Popen[Any]] = field(default_factory=list)
    output: JvmOutput = field(default_factory=JvmOutput)

    @property
    def process(self) -> subprocess.Popen[Any]:
        return self.launched[0]

    def is_that_of(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """True if it lives, and nothing would be different in a JVM launched like this now."""
        return (
            bool(self.launched)
            and self.process.poll() is None
            and _of_the_jvm(command) == _of_the_jvm(self.command)
            and {**environment, _CONNECTION_PATH: ""} == {**self.environment, _CONNECTION_PATH: ""}
            and os.getcwd() == self.current
        )

    def remove_connection_file(self) -> None:
        """Its port and its secret are in it. Idempotent."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        self.output.launched()
        for process in self.launched:
            _end(process)
        self.remove_connection_file()


_ahead: list[JvmAhead] = []
"""One at the most."""


def launch_ahead(conf: SparkConf) -> None:
    """Launch the JVM for ``conf`` if there is none; returns at once, silently. One thread only."""
    if _ahead or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    command, options = _pysparks_launch(conf)
    folder = Path(tempfile.mkdtemp(prefix="everflow-jvm-"))
    environment = {**options["env"], _CONNECTION_PATH: str(folder / "connection")}
    ahead = JvmAhead(
        command=command,
        environment=environment,
        current=os.getcwd(),
        folder=folder,
    )
    _ahead.append(ahead)
    atexit.register(discard)
    try:
        recording(ahead.launched, ahead.output)(command, **{**options, "env": environment})
    except OSError:
        discard()
    ahead.output.launched()


def taken(command: Sequence[str], environment: Mapping[str, str]) -> JvmAhead | None:
    """The one launched ahead, if these would launch the same; else None, and it has ended."""
    if not _ahead:
        return None
    found = _ahead[0]
    if not found.is_that_of(command, environment):
        discard()
        return None
    os.symlink(found.environment[_CONNECTION_PATH], environment[_CONNECTION_PATH])
    _ahead.clear()
    return found


def discard() -> None:
    """End the one that was launched ahead, if nobody has taken it. Idempotent."""
    while _ahead:
        _ahead[-1].end()
        _ahead.pop()


def recording(
    launched: list[subprocess.Popen[Any]], output: JvmOutput
) -> type[subprocess.Popen[Any]]:
    """Launches a JVM, adds it to ``launched`` and sends its output to ``output``."""

    class Recorded(subprocess.Popen[Any]):
        """Known before the fork: an interrupt may come before the constructor returns."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            launched.append(self)
            options = {"stderr": output.write_end, **options, "start_new_session": True}
            options["preexec_fn"] = _and_deaf(options.get("preexec_fn"))
            super().__init__(*arguments, **options)

    return Recorded


def deaf() -> None:
    """Let a child ignore signals to everything that a terminal or a supervisor has started."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _and_deaf(before: Callable[[], None] | None) -> Callable[[], None]:
    def prepare() -> None:
        if before is not None:
            before()
        deaf()

    return prepare


class _NotLaunchedError(Exception):
    """Ends PySpark's launch where it would launch."""


def _pysparks_launch(conf: SparkConf) -> tuple[Sequence[str], dict[str, Any]]:
    """Command and options with which PySpark would launch a JVM now: its own code says it."""
    found: list[tuple[Sequence[str], dict[str, Any]]] = []

    def note(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        found.append((command, options))
        raise _NotLaunchedError

    launcher: Any = java_gateway
    with _launching_by(note), suppress(_NotLaunchedError):
        launcher.launch_gateway(conf)
    return found[0]


@contextmanager
def _launching_by(launch: Callable[..., subprocess.Popen[Any]]) -> Iterator[None]:
    launcher: Any = java_gateway  # which names Popen for itself
    before, launcher.Popen = launcher.Popen, launch
    try:
        yield
    finally:
        launcher.Popen = before


def _of_the_jvm(command: Sequence[str]) -> list[str]:
    return [part for part in command if not part.startswith(_NOT_OF_THE_JVM)]


log = logging.getLogger("everflow.spark")

END_S = 5.0
STOP_CHECK_S = 0.05


@contextmanager
def jvm_ends_with_failure(stop: threading.Event | None = None) -> Iterator[None]:
    """Around the start of a session: whatever it raises, also an interrupt, the JVM that it
    launched has ended first, and PySpark has forgotten it. An earlier JVM is left alone. ``stop``
    ends the JVM, and so the start, with some error of PySpark's. Not for several threads at once.

    The JVM has a process group of its own and ignores what `StopSignals` answers: this process,
    which then ends in order, still needs it. It ends with its standard input.
    """
    launched: list[subprocess.Popen[Any]] = []
    output = JvmOutput()
    recorded = recording(launched, output)
    were_ahead: list[JvmAhead] = []

    def launch(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        ahead = taken(command, options.get("env", {}))
        if ahead is None:
            return recorded(command, **options)
        were_ahead.append(ahead)
        launched.append(ahead.process)
        return ahead.process

    done = threading.Event()
    if stop is not None:
        threading.Thread(
            target=_end_on, args=(stop, done, launched), name="everflow-spark-launch", daemon=True
        ).start()
    try:
        with _launching_by(launch):
            yield
    except BaseException as error:
        done.set()
        for process in launched:
            _end(process)
        output.launched()
        if launched:
            _forget()
            if isinstance(error, Exception) and not (stop is not None and stop.is_set()):
                tails = [one.tail() for one in (output, *(one.output for one in were_ahead))]
                log.error("Spark did not start. Its last lines:\n  %s", "\n  ".join(chain(*tails)))
        raise
    finally:
        done.set()
        output.launched()
        for ahead in were_ahead:
            ahead.remove_connection_file()
    for process in launched:
        atexit.register(_end_in_order, process)


def _end_on(
    stop: threading.Event, done: threading.Event, launched: list[subprocess.Popen[Any]]
) -> None:
    while not done.wait(STOP_CHECK_S):
        if stop.is_set():
            for process in launched:
                if getattr(process, "pid", None) is not None:
                    with suppress(OSError):
                        os.kill(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[Any]) -> None:
    """spark-submit's shell becomes the JVM (exec), so there is one process to end."""
    if getattr(process, "pid", None) is None:  # not forked yet
        return
    process.kill()
    process.wait(WAIT_S)


def _end_in_order(process: subprocess.Popen[Any]) -> None:
    """At the end of this process: the JVM removes its folders and workers, and ends first."""
    if process.poll() is not None or process.stdin is None:
        return
    gateway: Any = SparkContext._gateway
    if gateway is not None and gateway.proc is process:
        # A thread reports to the JVM what Python no longer refers to: an ending JVM resets that,
        # which it shows.
        gateway._gateway_client.is_connected = False
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(WAIT_S)


def _forget() -> None:
    """Clear the class's gateway; a half-made context is in ``_active_spark_context``."""
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    if gateway is not None:
        gateway.shutdown()
