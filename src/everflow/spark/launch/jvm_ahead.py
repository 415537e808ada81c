"""Launches PySpark's JVM before anybody has asked for it, beside what else a start has to do.

In its first second the JVM needs nothing of this process, which imports modules or asks brokers
meanwhile. Whoever starts Spark then takes it, if it is the very JVM that PySpark would launch: the
same command, environment and current folder, as a program may have set any of them since, or asked
for a Spark with settings of its own. Otherwise it ends, and PySpark launches another.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway

from everflow.spark.launch.jvm_output import JvmOutput
from everflow.stop_signals import NUMBERS

_TOLD_IN = "_PYSPARK_DRIVER_CONN_INFO_PATH"
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
        """Whether it lives, and nothing would be different in a JVM launched like this now."""
        return (
            bool(self.launched)
            and self.process.poll() is None
            and _of_the_jvm(command) == _of_the_jvm(self.command)
            and {**environment, _TOLD_IN: ""} == {**self.environment, _TOLD_IN: ""}
            and os.getcwd() == self.current
        )

    def tells_in(self, file: str) -> None:
        """Let what it has told, or will tell, be found in ``file``."""
        os.symlink(self.environment[_TOLD_IN], file)

    def forget_what_it_told(self) -> None:
        """Its port and its secret. Idempotent."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """Nobody needs it."""
        self.output.launched()
        for process in self.launched:
            if getattr(process, "pid", None) is not None:  # forked already
                process.kill()
                process.wait(WAIT_S)
        self.forget_what_it_told()


_ahead: list[JvmAhead] = []
"""One at the most."""


def launch_ahead(conf: SparkConf) -> None:
    """Launch the JVM that PySpark would launch for ``conf``; returns at once. Nothing happens where
    this process has one. Whatever goes wrong is found by the one who starts Spark. Not for several
    threads at once."""
    if _ahead or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    command, options = _pysparks_launch(conf)
    folder = Path(tempfile.mkdtemp(prefix="everflow-jvm-"))
    environment = {**options["env"], _TOLD_IN: str(folder / "told")}
    ahead = JvmAhead(command=command, environment=environment, current=os.getcwd(), folder=folder)
    _ahead.append(ahead)
    atexit.register(discard)
    try:
        recording(ahead.launched, ahead.output)(command, **{**options, "env": environment})
    except OSError:
        discard()
    ahead.output.launched()


def taken(command: Sequence[str], environment: Mapping[str, str]) -> JvmAhead | None:
    """The one that was launched ahead, in place of a launch with these; it is the caller's now.
    None where there is none, and where it would be another one, which has ended then."""
    if not _ahead:
        return None
    found = _ahead[0]
    if not found.is_that_of(command, environment):
        discard()
        return None
    found.tells_in(environment[_TOLD_IN])
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
    """How a JVM is launched; it is in ``launched`` then, and what it says goes to ``output``."""

    class Recorded(subprocess.Popen[Any]):
        """Known before the fork: an interrupt may come before the constructor returns."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            launched.append(self)
            options = {"stderr": output.write_end, **options, "start_new_session": True}
            options["preexec_fn"] = _and_deaf(options.get("preexec_fn"))
            super().__init__(*arguments, **options)

    return Recorded


def deaf() -> None:
    """In a child, before it is another program: a signal to everything that a terminal or a
    supervisor has started is not for it."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _and_deaf(given: Callable[[], None] | None) -> Callable[[], None]:
    def prepare() -> None:
        if given is not None:
            given()
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

    launcher: Any = java_gateway  # which names Popen for itself
    before, launcher.Popen = launcher.Popen, note
    try:
        launcher.launch_gateway(conf)
    except _NotLaunchedError:
        pass
    finally:
        launcher.Popen = before
    return found[0]


def _of_the_jvm(command: Sequence[str]) -> list[str]:
    return [part for part in command if not part.startswith(_NOT_OF_THE_JVM)]
